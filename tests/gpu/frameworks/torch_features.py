"""PyTorch features that lean on the allocator: `loader` (DataLoader workers, forked and spawned, pinned memory), `graphs` (a captured
training step, replayed), `compile` (torch.compile; --mode as torch names it). Each tells its losses. Knows nothing of cupool."""

import argparse
import time

from told import figures, tell

import torch
from torch import nn

STEPS = 12


class Numbers(torch.utils.data.Dataset):
    """Samples that depend on their index alone, so that workers cannot change them."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), index % 10


def fresh():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)).to("cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_step(model, optimizer, inputs, targets):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


def loader(_options):
    for way in ("fork", "spawn"):
        model, optimizer = fresh()
        batches = torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True, multiprocessing_context=way)
        tell(f"losses, {way}", [train_step(model, optimizer, inputs.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True))
                                for inputs, targets in batches])


def graphs(_options):
    model, optimizer = fresh()
    inputs, targets = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warms up beside the capture, as torch asks for
        for _ in range(3):
            train_step(model, optimizer, inputs, targets)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    losses, times_ns, between = [], [], []
    for number in range(STEPS):
        inputs.copy_(torch.randn(64, 256, generator=torch.Generator().manual_seed(number)))
        between.append(torch.empty((1 + number) << 20, device="cuda").fill_(number))  # ordinary memory beside the graph's
        begin = time.perf_counter_ns()
        graph.replay()
        losses.append(loss.item())
        times_ns.append(time.perf_counter_ns() - begin)
    tell("losses, replayed", losses)
    tell("steps, replayed", figures(times_ns))
    tell("memory beside the graph holds what was written", all(bool((block == number).all().item()) for number, block in enumerate(between)))


def compiled(options):
    model, optimizer = fresh()
    fast = torch.compile(model, mode=options.mode)
    losses, times_ns = [], []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        inputs, targets = torch.randn(64, 256, generator=generator).to("cuda"), torch.randint(0, 10, (64,), generator=generator).to("cuda")
        begin = time.perf_counter_ns()
        losses.append(train_step(fast, optimizer, inputs, targets))
        times_ns.append(time.perf_counter_ns() - begin)
    tell("losses, compiled", losses)
    tell("steps, compiled", figures(times_ns[STEPS // 2:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("feature", choices=["loader", "graphs", "compile"])
    parser.add_argument("--mode", default="default")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    tell("version", torch.__version__)
    tell("allocator", torch.cuda.memory.get_allocator_backend())
    {"loader": loader, "graphs": graphs, "compile": compiled}[options.feature](options)


if __name__ == "__main__":
    main()
