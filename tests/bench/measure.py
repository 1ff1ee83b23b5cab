"""What the bench scripts share: where the build is, the environments to compare, medians and spreads, their output."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(__file__).resolve().parent / "traces"
MIB = 1 << 20
RUN_TIMEOUT_S = 600


class Parser(argparse.ArgumentParser):
    """What is wrong with the arguments is one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def times(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of times: {text}")
    return int(text)


def output(text: str) -> str:
    """A file that can be written. Told at the start: measuring takes minutes."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot be written: {text}")
    return text


def build_folder(argument: str | None) -> Path:
    folder = Path(argument).resolve() if argument else ROOT / "build"
    if not (folder / "bench" / "replay").is_file():
        sys.exit(f"{folder}/bench/replay not found: run scripts/build first")
    return folder


def environment(build: Path, policy: str | None, **variables: str) -> dict[str, str]:
    """On the simulated driver; `policy` None: without cupool."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUPOOL_", "CUSIM_", "LD_", "PYTORCH_"))}
    clean["LD_LIBRARY_PATH"] = str(build / "sim")
    if policy is not None:
        clean.update(LD_PRELOAD=str(build / "libcupool.so"), CUPOOL_POLICY=policy, CUPOOL_REPORT="none", CUPOOL_LOG="off")
    return {**clean, **variables}


@dataclass
class Case:
    """One allocator in one configuration: a program and what it runs under."""
    name: str
    command: list[str]
    policy: str | None = None        # of cupool; None: not preloaded
    on_device: bool = True           # False: host memory, a yardstick for time only
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, build: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Ended by a timeout, it has returned 124."""
        command = [*self.command, *arguments]
        try:
            return subprocess.run(command, env=environment(build, self.policy, **{**self.variables, **variables}), text=True, capture_output=True,
                                  check=False, timeout=RUN_TIMEOUT_S, errors="replace")
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"more than {RUN_TIMEOUT_S} s")


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    ordered = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "first_quartile": ordered[0], "third_quartile": ordered[2], "samples": len(values)}


def shown(figures: dict[str, float] | None) -> str:
    """`median (first quartile .. third quartile)`."""
    if figures is None:
        return "-"
    return f"{figures['median']:.0f} ({figures['first_quartile']:.0f} .. {figures['third_quartile']:.0f})"


def print_row(widths: tuple[int, ...], cells: tuple) -> None:
    """Negative widths: left-aligned."""
    print(" ".join(f"{cell!s:{'<' if width < 0 else '>'}{abs(width)}}" for width, cell in zip(widths, cells)).rstrip(), flush=True)


def write_json(path: str | None, bench: str, rows: list[dict], **settings) -> None:
    if path:
        machine = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0]}
        Path(path).write_text(json.dumps({"bench": bench, "settings": settings, "machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
