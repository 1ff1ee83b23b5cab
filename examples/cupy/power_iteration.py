"""Power iteration for the largest eigenvalue of a matrix with CuPy, whose own pool is switched off: that can only be done in code.

Knows nothing else of cupool. Without CuPy or without a GPU it says so and ends with 77.
"""

from __future__ import annotations

import sys

SIZE, ROUNDS = 2048, 50


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import cupy
except (ImportError, OSError) as error:
    skip(f"CuPy cannot be imported ({str(error).strip().splitlines()[0]}); pip install cupy-cuda13x==14.2.0")


def largest_eigenvalue() -> float:
    random = cupy.random.RandomState(7)
    matrix = random.standard_normal((SIZE, SIZE))
    matrix = (matrix + matrix.T) / 2 + 100 * cupy.eye(SIZE)
    vector = cupy.ones(SIZE)
    for _ in range(ROUNDS):
        vector = matrix @ vector
        vector /= cupy.linalg.norm(vector)
    return float(vector @ matrix @ vector)


def main() -> None:
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        skip(f"CuPy sees no GPU ({error})")
    if count == 0:
        skip("CuPy sees no GPU")
    cupy.cuda.set_allocator(None)  # before the first array: from here on each array is one cudaMalloc
    print(f"device   {cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, cupy {cupy.__version__}")
    print(f"result   {largest_eigenvalue():.3f}")
    print(f"pool     CuPy's own holds {cupy.get_default_memory_pool().total_bytes()} bytes")


if __name__ == "__main__":
    main()
