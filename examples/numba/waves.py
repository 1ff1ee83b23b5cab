"""A wave on a line, step by step, with a Numba kernel and a new device array for each step. Knows nothing of cupool.

Numba has no pool of its own: each array is one cuMemAlloc. Without Numba or without a GPU it says so and ends with 77.
"""

from __future__ import annotations

import sys

POINTS, STEPS = 1 << 16, 200


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import numpy
    from numba import cuda
except (ImportError, OSError) as error:
    skip(f"Numba cannot be imported ({error}); pip install 'numba-cuda[cu13]==0.30.4'")


def compile_kernel():
    @cuda.jit
    def advance(following, current, previous):
        i = cuda.grid(1)
        if 0 < i < current.size - 1:
            following[i] = 2 * current[i] - previous[i] + 0.25 * (current[i - 1] - 2 * current[i] + current[i + 1])
        elif i < current.size:
            following[i] = 0
    return advance


def run(points: int, steps: int) -> float:
    """Returns the wave's sum at the end, which its equation keeps as long as it has not reached the ends."""
    advance = compile_kernel()
    place = numpy.arange(points, dtype=numpy.float64)
    start = numpy.exp(-(((place - points / 2) / (points / 64)) ** 2))
    previous, current = cuda.to_device(start), cuda.to_device(start)
    for _ in range(steps):
        following = cuda.device_array_like(current)
        advance[(points + 255) // 256, 256](following, current, previous)
        previous, current = current, following
    return float(current.copy_to_host().sum() / start.sum())


def main() -> None:
    if not cuda.is_available():
        skip("Numba sees no GPU")
    name = cuda.get_current_device().name
    print(f"device   {name.decode() if isinstance(name, bytes) else name}")
    print(f"result   {run(POINTS, STEPS):.6f} of the wave is left after {STEPS} steps")


if __name__ == "__main__":
    main()
