"""Fits a small network with CuPy: step times, losses, peak memory. GPU_CHECK_CUPY chooses CuPy's allocator, which only code can do:
own (CuPy's pool), direct (none: cudaMalloc per array), async (MemoryAsyncPool: cudaMallocAsync). Knows nothing of cupool."""

import os
import time

from told import DeviceMemory, figures, tell

memory = DeviceMemory()  # before CuPy makes a context

import cupy  # noqa: E402

WARM_UP, TIMED, WATCHED = 10, 100, 5
WIDTH = 1024


def choose_allocator(way):
    if way == "direct":
        cupy.cuda.set_allocator(None)
    elif way == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)


class Training:
    def __init__(self):
        self.random = cupy.random.RandomState(7)
        self.first = self.random.standard_normal((WIDTH, 2 * WIDTH), dtype=cupy.float32) * 0.02
        self.second = self.random.standard_normal((2 * WIDTH, 64), dtype=cupy.float32) * 0.02

    def step(self, rows):
        inputs = self.random.standard_normal((rows, WIDTH), dtype=cupy.float32)
        hidden = cupy.tanh(inputs @ self.first)
        error = hidden @ self.second - inputs[:, :64]
        loss = float((error ** 2).mean())  # waits for the step
        back = (error @ self.second.T) * (1 - hidden ** 2)
        self.second = self.second - (1.0 / error.size) * (hidden.T @ error)
        self.first = self.first - (1.0 / error.size) * (inputs.T @ back)
        return loss


def measure(kind, rows):
    training, losses, times_ns = Training(), [], []
    for number in range(WARM_UP + TIMED):
        begin = time.perf_counter_ns()
        losses.append(training.step(rows[number % len(rows)]))
        times_ns.append(time.perf_counter_ns() - begin)
    tell(f"losses, {kind}", losses)
    tell(f"steps, {kind}", figures(times_ns[WARM_UP:]))

    def watched(sample):
        for number in range(WATCHED):
            training.step(rows[number % len(rows)])
            sample()
    memory.tell_peak(kind, watched)


def main():
    choose_allocator(os.environ.get("GPU_CHECK_CUPY", "own"))
    tell("version", cupy.__version__)
    tell("device", cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    measure("fixed lengths", [512])
    measure("varying lengths", [64 + 37 * (number * 7 % 23) for number in range(23)])
    big = cupy.full((64 << 20,), 3, dtype=cupy.uint8)
    tell("64 MiB hold what was written", bool((big == 3).all()))


if __name__ == "__main__":
    main()
