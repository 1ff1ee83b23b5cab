#!/usr/bin/env python3
"""Writes made-up jobs as allocation traces for replay.py: kinds that the recorded ones do not have, by seed.

The recorded jobs are mostly training and generation of language models. What else people run differs in how long
blocks live beside which others, and that is what a heap's placement is good or bad at. Sizes are rounded like those of
tensors (512 B). The same kind, seed and version of Python give the same file.
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import itertools
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from measure import Parser

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Job:
    """A job in the making: its events, and a source of random sizes."""

    def __init__(self, seed: int, scale: float = 1):
        self.random = random.Random(seed)
        self.scale = scale
        self.events: list[str] = []
        self._blocks = 0

    def allocate(self, size_bytes: float, stream: int = 0) -> int:
        self._blocks += 1
        self.events.append(f"a {self._blocks} {max(512, math.ceil(size_bytes * self.scale / 512) * 512)} {stream}")
        return self._blocks

    def free(self, *blocks: int) -> None:
        self.events.extend(f"f {block}" for block in blocks)

    def between(self, low_bytes: float, high_bytes: float) -> float:
        """Log-uniform, as sizes of tensors of one program tend to be."""
        return math.exp(self.random.uniform(math.log(low_bytes), math.log(high_bytes)))

    def chain(self, sizes: list[float], stream: int = 0) -> None:
        """A forward pass without gradients: each layer's output is freed once the next one has it."""
        last = None
        for size in sizes:
            block = self.allocate(size, stream)
            if last is not None:
                self.free(last)
            last = block
        if last is not None:
            self.free(last)

    def train(self, sizes: list[float], workspace_bytes: float = 0) -> None:
        """Activations kept until the backward pass, which has a gradient of each and, if asked, a workspace."""
        kept = [self.allocate(size) for size in sizes]
        for size, block in zip(reversed(sizes), reversed(kept), strict=True):
            gradient = self.allocate(size)
            if workspace_bytes:
                self.free(self.allocate(self.random.uniform(0.2, 1) * workspace_bytes))
            self.free(block, gradient)


def replay_buffer(job: Job) -> None:
    """Reinforcement learning: thousands of blocks of 10 KB to 2 MB that stay between larger temporaries, oldest out first."""
    buffer: deque[int] = deque()
    layers = [job.between(1 * MIB, 48 * MIB) for _ in range(10)]
    for episode in range(60):
        for _ in range(40):
            buffer.append(job.allocate(job.between(10e3, 2e6)))
            job.chain([job.between(0.5, 1) * size for size in layers[: job.random.randint(2, 10)]])
        while len(buffer) > 1800:
            job.free(buffer.popleft())
        if episode % 2:
            job.train([size * job.random.uniform(0.7, 1) for size in layers])


def prioritized_buffer(job: Job) -> None:
    """The same with whatever has least priority out first, which is any of them, in batches."""
    buffer: list[int] = []
    layers = [job.between(256 * KIB, 32 * MIB) for _ in range(12)]
    for _ in range(900):
        buffer.append(job.allocate(job.between(10e3, 2e6)))
        buffer.append(job.allocate(job.between(2e3, 50e3)))
        job.chain([size * job.random.uniform(0.5, 1) for size in layers[: job.random.randint(3, 12)]])
        if len(buffer) > 1500:
            for _ in range(100):
                job.free(buffer.pop(job.random.randrange(len(buffer))))


def evaluation(job: Job) -> None:
    """Training with an evaluation now and then, which keeps each batch's small results until it concatenates them."""
    weights = [job.allocate(job.between(64 * KIB, 24 * MIB)) for _ in range(120)]
    for _ in range(12):
        for _ in range(6):
            job.train([job.between(1 * MIB, 40 * MIB) for _ in range(24)], 16 * MIB)
        results = []
        for _ in range(50):
            job.chain([job.between(1 * MIB, 40 * MIB) for _ in range(12)])
            results += [job.allocate(job.between(4 * KIB, 3 * MIB)) for _ in range(3)]
        whole = job.allocate(150 * MIB)
        job.free(*results)
        job.free(whole)
    job.free(*weights)


def graph_sampling(job: Job) -> None:
    """A graph network whose sampled subgraphs differ each step, beside a cache of features that changes slowly."""
    cache = [job.allocate(job.between(256 * KIB, 4 * MIB)) for _ in range(300)]
    for _ in range(250):
        nodes = job.between(3e3, 120e3)
        frontier = [job.allocate(nodes * factor * 8) for factor in (1, 4, 9)]
        job.train([nodes * width * 4 for width in (128, 128, 256, 256, 64)], nodes * 256)
        job.free(*frontier)
        for _ in range(4):
            index = job.random.randrange(len(cache))
            fresh = job.allocate(job.between(256 * KIB, 4 * MIB))
            job.free(cache[index])
            cache[index] = fresh


def adapters(job: Job) -> None:
    """Inference of one model with many small adapters that come and go by popularity."""
    weights = [job.allocate(size) for size in [32 * MIB, 8 * MIB, 86 * MIB] * 24]
    loaded: list[list[int]] = []
    for _ in range(500):
        if len(loaded) < 24 or job.random.random() < 0.2:
            if len(loaded) >= 24:
                job.free(*loaded.pop(int(job.random.random() ** 2 * len(loaded))))
            rank = job.random.choice((8, 16, 64))
            loaded.append([job.allocate(rank * width * 2) for width in (4096, 4096, 11008, 4096) * 8])
        tokens = job.between(64, 4096)
        job.chain([tokens * width * 2 for width in (4096, 12288, 4096, 11008, 4096) * 4])
    job.free(*weights)


def columns(job: Job) -> None:
    """Data frames: columns of very different sizes, joins that make many of them at once, some of which stay for long."""
    tables: list[list[int]] = []
    for _ in range(700):
        rows = job.between(2e3, 4e6)
        scratch = [job.allocate(rows * job.random.choice((1, 4, 8))) for _ in range(job.random.randint(1, 6))]
        tables.append([job.allocate(rows * job.random.choice((1, 4, 8, 8)) * job.random.uniform(0.2, 1)) for _ in range(job.random.randint(2, 12))])
        job.free(*scratch)
        if len(tables) > 40:
            job.free(*tables.pop(job.random.randrange(len(tables))))


def speech(job: Job) -> None:
    """Training on utterances of very different lengths, with a joint of everything that is as large as the rest together."""
    weights = [job.allocate(job.between(512, 8 * MIB)) for _ in range(250)]
    states = [job.allocate(job.between(512, 8 * MIB)) for _ in range(500)]
    for _ in range(120):
        frames, labels = job.between(100, 2000), job.between(10, 200)
        sizes = [frames * width * 16 for width in (512, 2048, 512, 1024) * 4]
        kept = [job.allocate(size) for size in sizes]
        job.train([frames * labels * 640 * 4, frames * labels * 128 * 4])
        for size, block in zip(reversed(sizes), reversed(kept), strict=True):
            gradient = job.allocate(size)
            job.free(block, gradient)
    job.free(*weights, *states)


def experts(job: Job) -> None:
    """A mixture of experts, each of which gets another share of the tokens each time."""
    weights = [job.allocate(size) for size in [18 * MIB, 18 * MIB, 9 * MIB] * 40]
    for _ in range(60):
        kept = []
        for _ in range(6):
            kept.append(job.allocate(32 * MIB))
            shares = [job.random.expovariate(1) for _ in range(16)]
            for share in shares:
                tokens = 8192 * 2 * share / sum(shares)
                kept += [job.allocate(tokens * width * 2) for width in (2048, 5632, 5632, 2048)]
        for block in reversed(kept):
            gradient = job.allocate(job.between(64 * KIB, 24 * MIB))
            job.free(block, gradient)
    job.free(*weights)


def search(job: Job) -> None:
    """A search for hyperparameters: models of different sizes one after the other in a process, some kept as the best so far."""
    best: list[int] = []
    for trial in range(25):
        width = job.between(256, 2048)
        model = [job.allocate(width * factor * 4) for factor in (width, 4 * width, 4 * width, 1, 1) * 12]
        states = [job.allocate(width * factor * 4) for factor in (width, 4 * width, 4 * width, 1, 1) * 24]
        for _ in range(8):
            job.train([job.random.choice((4096, 8192)) * width * factor for factor in (1, 4, 1, 2) * 6], 8 * MIB)
        job.free(*states)
        if trial % 4:
            job.free(*model)
        else:
            job.free(*best)
            best = model


def paged_cache(job: Job) -> None:
    """Generation over a cache in blocks of one size, which requests of different lengths take and give back, with prefills between."""
    weights = [job.allocate(job.between(8 * MIB, 90 * MIB)) for _ in range(64)]
    requests: list[list[int]] = []
    for _ in range(1200):
        if len(requests) < 48 and job.random.random() < 0.4:
            tokens = job.between(32, 4096)
            job.chain([tokens * width * 2 for width in (4096, 12288, 11008, 4096) * 2])
            requests.append([job.allocate(512 * KIB) for _ in range(int(tokens / 64) + 1)])
        for request in requests:
            if job.random.random() < 0.1:
                request.append(job.allocate(512 * KIB))
        job.chain([len(requests) * width * 2 for width in (4096, 12288, 11008, 4096)] + [len(requests) * 128256 * 4])
        if requests and job.random.random() < 0.35:
            job.free(*requests.pop(job.random.randrange(len(requests))))
    job.free(*weights)


def prefetch(job: Job) -> None:
    """Training with batches of different sizes that a second stream brings two steps ahead."""
    weights = [job.allocate(job.between(16 * KIB, 16 * MIB)) for _ in range(150)]
    ahead: deque[tuple[int, float]] = deque()
    for _ in range(200):
        while len(ahead) < 3:
            size = job.between(4 * MIB, 64 * MIB)
            ahead.append((job.allocate(size, 1), size))
        batch, size = ahead.popleft()
        job.train([size * factor for factor in (1, 2, 1, 0.5, 0.5, 0.25, 0.25, 0.1)], size)
        job.free(batch)
    job.free(*weights)


def diffusion(job: Job) -> None:
    """Images of a few resolutions by requests, each with its own text embeddings kept in a cache."""
    weights = [job.allocate(job.between(4 * KIB, 30 * MIB)) for _ in range(300)]
    cache: deque[int] = deque()
    for _ in range(70):
        pixels = job.random.choice((512, 640, 768, 896, 1024)) * job.random.choice((512, 768, 1024)) / 64
        cache.extend(job.allocate(77 * width * 2) for width in (768, 2048, 1280))
        job.chain([77 * 4096 * 2] * 24)
        latent = job.allocate(pixels * 4 * 4)
        for _ in range(8):
            skips = [job.allocate(pixels * width * 2 / shrink) for width, shrink in ((320, 1), (640, 4), (1280, 16))]
            job.chain([pixels * 320 * 4, pixels * 320 * 10, pixels * 320 * 2])
            job.free(*reversed(skips))
        job.chain([pixels * 64 * factor for factor in (8, 16, 32, 6)])
        job.free(latent)
        while len(cache) > 90:
            job.free(cache.popleft())
    job.free(*weights)


def iteration(job: Job) -> None:
    """One iteration of training, for repeated_steps.py: the weights, and the optimizer's state that the first one leaves, stay."""
    states, state_size = job.random.choice(((0, 1), (1, 1), (2, 1), (2, 1), (3, 2)))  # SGD, momentum, Adam, Adam of weights in half precision
    weights_bytes = job.between(0.3 * GIB, 4 * GIB)
    activations_bytes = min(weights_bytes * job.between(0.2, 12), 40 * GIB - (2 + states * state_size) * weights_bytes)
    layers, irregularity = job.random.randint(6, 48), job.random.uniform(0, 0.5)

    def layer(shares: tuple[float, ...], all_bytes: float) -> list[float]:
        return [all_bytes / layers * share / sum(shares) for share in shares]

    weights = [layer((3, 1, 4, 4, 0.001, 0.001), weights_bytes) for _ in range(layers)]
    activations = [[size * job.random.uniform(1 - irregularity, 1) for size in layer((1, 3, 1, 1, 4, 4, 1), activations_bytes)] for _ in range(layers)]
    for size in itertools.chain(*weights):
        job.allocate(size)
    kept = [[job.allocate(size) for size in sizes] for sizes in activations]
    upstream = job.allocate(activations[-1][-1])
    gradients = []
    for sizes, outputs, blocks in zip(reversed(weights), reversed(activations), reversed(kept), strict=True):
        for size, block in zip(reversed(outputs), reversed(blocks), strict=True):
            gradient = job.allocate(size)
            job.free(upstream, block)
            upstream = gradient
        gradients += [job.allocate(size) for size in sizes]
    job.free(upstream)
    for size in itertools.chain(*weights):
        for _ in range(states):
            job.allocate(size * state_size)
        job.free(job.allocate(size))
    if job.random.random() < 0.7:  # the others keep their gradients from step to step
        job.free(*gradients)


KINDS: dict[str, Callable[[Job], None]] = {kind.__name__: kind for kind in (
    replay_buffer, prioritized_buffer, evaluation, graph_sampling, adapters, columns, speech, experts, search, paged_cache, prefetch, diffusion)}
STEPS: dict[str, Callable[[Job], None]] = {iteration.__name__: iteration}  # no whole jobs: written only where they are asked for


def write(folder: Path, kind: str, seed: int, scale: float) -> Path:
    job = Job(seed, scale)
    make = (KINDS | STEPS)[kind]
    make(job)
    head = {"workload": inspect.getdoc(make), "source": "tests/bench/synthetic_jobs.py", "kind": kind, "seed": seed, "scale": scale}
    path = folder / f"{kind}_{seed}{'' if scale == 1 else f'x{scale:g}'}.trace.gz"
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(("\n".join([f"# {json.dumps(head)}", *job.events]) + "\n").encode())
    return path


def main() -> int:
    kinds = "\n".join(f"  {kind:<20}{inspect.getdoc(make)}" for kind, make in (KINDS | STEPS).items())
    parser = Parser(description=f"{__doc__}\nkinds:\n{kinds}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write KIND_SEED.trace.gz")
    parser.add_argument("--kinds", help=f"comma separated (default: all but {', '.join(STEPS)})")
    parser.add_argument("--seeds", type=int, default=2, help="seeds 1 to N of each (default 2)")
    parser.add_argument("--scale", type=float, default=1, help="every size times this (default 1: peaks of 0.3 to 6 GiB, of steps up to 40 GiB)")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or not 0 < arguments.scale < math.inf:
        parser.error("--seeds is at least 1, --scale above 0")
    kinds_wanted = arguments.kinds.split(",") if arguments.kinds else list(KINDS)
    if unknown := [kind for kind in kinds_wanted if kind not in KINDS | STEPS]:
        parser.error(f"no kind {unknown[0]}; there are {', '.join(KINDS | STEPS)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds_wanted:
        for seed in range(1, arguments.seeds + 1):
            print(write(arguments.folder, kind, seed, arguments.scale))
    return 0


if __name__ == "__main__":
    sys.exit(main())
