"""Fits a small network for a few steps with CuPy; prints its losses. GPU_CHECK_CUPY_DIRECT=1 switches CuPy's own pool off,
which only code can do (set_allocator); no other line knows of it."""

import json
import os

import cupy


def tell(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


if os.environ.get("GPU_CHECK_CUPY_DIRECT"):
    cupy.cuda.set_allocator(None)
random = cupy.random.RandomState(7)
first, second = random.standard_normal((256, 512)) * 0.05, random.standard_normal((512, 8)) * 0.05
losses = []
for number in range(10):
    inputs = random.standard_normal((64 + 32 * (number % 3), 256))
    hidden = cupy.tanh(inputs @ first)
    error = hidden @ second - inputs[:, :8]
    losses.append(float((error ** 2).mean()))
    scale = 2.0 / error.size
    back = (error @ second.T) * (1 - hidden ** 2)
    second = second - 0.5 * scale * (hidden.T @ error)
    first = first - 0.5 * scale * (inputs.T @ back)
tell("losses", losses)
tell("version", cupy.__version__)
tell("device", cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
big = cupy.full((64 << 20,), 3, dtype=cupy.uint8)
tell("64 MiB hold what was written", bool((big == 3).all()))
