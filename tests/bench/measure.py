"""What the bench scripts share: where the build is, the environments to compare, medians and spreads."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(__file__).resolve().parent / "traces"


def build_folder(argument: str | None) -> Path:
    folder = Path(argument).resolve() if argument else ROOT / "build"
    if not (folder / "bench" / "replay").is_file():
        sys.exit(f"{folder}/bench/replay not found: run scripts/build first")
    return folder


def environment(build: Path, policy: str | None, **variables: str) -> dict[str, str]:
    """On the simulated driver; `policy` None: without cupool."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUPOOL_", "CUSIM_", "LD_"))}
    clean["LD_LIBRARY_PATH"] = str(build / "sim")
    if policy is not None:
        clean.update(LD_PRELOAD=str(build / "libcupool.so"), CUPOOL_POLICY=policy, CUPOOL_REPORT="none")
    return {**clean, **variables}


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    ordered = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "first_quartile": ordered[0], "third_quartile": ordered[2], "samples": len(values)}
