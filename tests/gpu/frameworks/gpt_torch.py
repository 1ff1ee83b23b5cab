"""Trains a small GPT with PyTorch, with fixed and with varying lengths: step times, losses, peak memory, the largest batch that
fits. Knows nothing of cupool; --allocator says which of torch's backends is expected, so that a setting that did not take is seen."""

import argparse
import gc
import random
import time

from told import DeviceMemory, figures, largest, leave_out, tell

memory = DeviceMemory()  # before torch makes a context

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 12, 768, 12, 32768, 1024, 8
WARM_UP, TIMED, WATCHED = 6, 40, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = (part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                             for part in self.mix(self.before(x)).split(WIDTH, dim=2))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.last(x)).view(-1, VOCABULARY), targets.reshape(-1))


class Training:
    def __init__(self):
        torch.manual_seed(7)
        with torch.device("cuda"):  # filled there: on the host it would take longer than the training
            self.model = Gpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self, batch, length, sample=lambda: None):
        tokens = torch.randint(0, VOCABULARY, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
        sample()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        sample()
        self.optimizer.step()
        sample()
        return loss.item()  # waits for the step


def clean_up():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def measure(kind, lengths):
    training, losses, times_ns = Training(), [], []
    for number in range(WARM_UP + TIMED):
        start = time.perf_counter_ns()
        losses.append(training.step(BATCH, lengths[number % len(lengths)]))
        times_ns.append(time.perf_counter_ns() - start)
    tell(f"losses, {kind}", losses)
    tell(f"steps, {kind}", figures(times_ns[WARM_UP:]))
    memory.tell_peak(kind, lambda sample: [training.step(BATCH, lengths[number % len(lengths)], sample) for number in range(WATCHED)])
    tell(f"torch's own figures, {kind}", {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()})


def is_out_of_memory(error):
    words = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in words or "ALLOC_FAILED" in words


def find_largest(kind, lengths, guess, deadline_s):
    training = Training()
    training.step(1, LENGTH)

    def fits(batch):
        try:
            for length in lengths:
                training.step(batch, length)
            return True
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        finally:
            training.optimizer.zero_grad(set_to_none=True)
            clean_up()
        return False

    # About 0.9 GB of activations and logits a sequence: a start for the search, not an answer.
    start = guess or max(torch.cuda.get_device_properties(0).total_memory // 900_000_000, 1)
    found, sure = largest(fits, start, bool(guess), deadline_s)
    if sure:
        tell(f"largest batch that fits, {kind}", found)
    else:
        leave_out(f"largest batch that fits, {kind}", f"no time to be sure; {found} fits")


def check_basics():
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    tell("free memory is possible", 0 < free_bytes <= total_bytes)
    big = torch.full((64 << 20,), 3, dtype=torch.uint8, device="cuda")
    tell("64 MiB hold what was written", bool((big == 3).all().item()))
    try:
        torch.empty(total_bytes * 2, dtype=torch.uint8, device="cuda")
        tell("twice the device", "allocated")
    except RuntimeError as error:  # without its caching allocator PyTorch raises torch.AcceleratorError
        if not is_out_of_memory(error):
            raise
        tell("twice the device", type(error).__name__)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--guess", default="", help="fixed,varying: another run's largest batches")
    parser.add_argument("--no-batches", action="store_true")
    options = parser.parse_args()
    deadline_s = time.monotonic() + options.seconds * 0.8
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # would be timed, and would hide what a pool hands out
    tell("version", torch.__version__)
    tell("device", torch.cuda.get_device_name())
    tell("allocator", torch.cuda.memory.get_allocator_backend())
    kinds = {"fixed lengths": [LENGTH], "varying lengths": [random.Random(7).randrange(64, LENGTH + 1) for _ in range(WARM_UP + TIMED)]}
    for kind, lengths in kinds.items():
        measure(kind, lengths)
        clean_up()
        torch.cuda.reset_peak_memory_stats()
    check_basics()
    clean_up()
    if not options.no_batches:
        guesses = [int(word) if word.isdigit() else 0 for word in (options.guess + ",").split(",")]
        left_s = deadline_s - time.monotonic()
        find_largest("fixed lengths", [LENGTH, LENGTH], guesses[0], deadline_s - left_s / 2)
        clean_up()
        find_largest("varying lengths", [LENGTH, 389, 811, 1000, 640, LENGTH], guesses[1], deadline_s)


if __name__ == "__main__":
    main()
