#!/usr/bin/env python3
"""Imports a real PyTorch, with and without the library preloaded: output, errors and exit code must be the same, and it must not hang.

    python3 -m venv VENV && VENV/bin/pip install torch
    tests/preload/import_torch.py --build build --python VENV/bin/python

Run by hand: the wheels of a CUDA build are several GB. No GPU is needed: once without any driver, once with the simulated driver
without a device (`--driver`: and once with one, where PyTorch gets as far as the simulator knows what it asks). Prints the times.
Exit 77, with the reason, when that Python has no torch.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
TIME_LIMIT_S = 300
SLOWER_MOST = 1.5  # with a second on top: imports of several GB of libraries vary

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())
print((torch.arange(6.0).reshape(2, 3) @ torch.ones(3, 2)).tolist())
loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
print([batch[0].tolist() for batch in loader])
print(torch.cuda.is_available(), torch.cuda.device_count())
try:
    print(torch.zeros(1 << 20, device="cuda").shape)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
"""


def run(python: Path, library: Path | None, variables: dict[str, str], folder: Path) -> tuple[int, str, str, float]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "LD_"))}
    environment.update(variables)
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    started = time.monotonic()
    try:
        done = subprocess.run([str(python), "-c", PROGRAM], env=environment, cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S,
                              stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return -1, "", f"(killed after {TIME_LIMIT_S} s)", TIME_LIMIT_S
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


def compare(name: str, given: argparse.Namespace, variables: dict[str, str]) -> bool:
    library = given.build.resolve() / "libcupool.so"
    with tempfile.TemporaryDirectory(prefix="cupool-torch-") as scratch:
        runs = [run(given.python, use, variables, Path(scratch)) for use in (library, None, library, None)]
        files = sorted(path.name for path in Path(scratch).iterdir())
    with_us, bare = min(runs[0:4:2], key=lambda r: r[3]), min(runs[1:4:2], key=lambda r: r[3])
    is_same = runs[0][:3] == runs[1][:3] == runs[2][:3] == runs[3][:3]
    is_soon = with_us[3] <= SLOWER_MOST * bare[3] + 1
    print(f"{name}: exit {bare[0]}, {bare[3]:.1f} s bare, {with_us[3]:.1f} s preloaded, output {'the same' if is_same else 'DIFFERENT'}, files {files}")
    print("".join(f"    {line}\n" for line in bare[1].splitlines()), end="")
    if not is_same:
        for who, (code, out, err, _) in zip(("preloaded", "bare"), runs):
            print(f"--- {who}: {code}\n{out}{err}")
    return is_same and is_soon and not files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--driver", action="store_true", help="also with a simulated device")
    given = parser.parse_args()
    if subprocess.run([str(given.python), "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        print(f"SKIPPED {given.python} has no torch that can be imported")
        return SKIPPED
    simulator = {"LD_LIBRARY_PATH": str(given.build.resolve() / "sim")}
    good = compare("no driver", given, {})
    good &= compare("a driver without a device", given, {**simulator, "CUSIM_NO_DEVICE": "1"})
    if given.driver:
        good &= compare("a simulated device", given, {**simulator, "CUPOOL_REPORT": "none"})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
