"""Where things are and how programs are started: the build folder, the CUDA runtime, Python, environments.

Every program starts from an environment without CUPOOL_*, CUSIM_*, preloads or a trace, so that a part means the same everywhere.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bounded

ROOT = Path(__file__).resolve().parents[3]
RUNTIME_NAME = "libcudart.so.13"
KEPT_LETTERS = 20_000  # of each stream of a program that did not end well


@dataclass
class Place:
    build: Path
    simulated: bool
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="cupool-gpu-check-")))
    ends_badly: list[str] = field(default_factory=list)  # what programs said that did not end well: a GPU is far away

    @property
    def library(self) -> Path:
        return self.build / "libcupool.so"

    def program(self, name: str) -> Path | None:
        path = self.build / "gpu" / name
        return path if path.is_file() else None

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(("CUPOOL_", "CUSIM_", "GPU_TRACE")) and key != "LD_PRELOAD"}
        folders = [str(self.build / "sim")] if self.simulated else runtime_folders()
        old = kept.get("LD_LIBRARY_PATH", "")
        if old and not self.simulated:
            folders = old.split(":") + folders
        if folders:
            kept["LD_LIBRARY_PATH"] = ":".join(folders)
        kept.update(more)
        return kept

    def shim_environment(self, report: str, **more: str) -> dict[str, str]:
        return self.environment(LD_PRELOAD=str(self.library), CUPOOL_REPORT=report, **more)

    def run(self, command: list[str], limit_s: float, environment: dict[str, str] | None = None) -> bounded.Ended:
        given = environment or self.environment()
        ended = bounded.run(command, given, limit_s, str(self.scratch))
        if ended.code != 0 or ended.timed_out:
            settings = " ".join(f"{key}={value}" for key, value in given.items() if os.environ.get(key) != value)
            self.ends_badly.append(f"### {settings} {' '.join(command)}\n{ended.reason()}\n--- stdout\n{ended.output[-KEPT_LETTERS:]}\n"
                                   f"--- stderr\n{ended.errors[-KEPT_LETTERS:]}\n")
        return ended

    def device_facts(self) -> dict[str, Any]:
        """What scripts/cupool_lib/driver_probe.py says of the driver; {"usable": False, "reason": …} where it does not answer."""
        probe = ROOT / "scripts" / "cupool_lib" / "driver_probe.py"
        ended = self.run([sys.executable, "-I", "-S", str(probe)], 60)
        try:
            return json.loads(ended.output)
        except ValueError:
            return {"usable": False, "reason": f"the driver did not answer ({ended.reason()})"}

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


def nvcc() -> str | None:
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"):
        if home and os.access(f"{home}/bin/nvcc", os.X_OK):
            return f"{home}/bin/nvcc"
    return shutil.which("nvcc")


def runtime_folders() -> list[str]:
    """Folders that hold the real shared CUDA runtime: the toolkit's, else the one among Python's packages."""
    compiler = nvcc()
    places = [f"{Path(compiler).resolve().parents[1]}/lib64"] if compiler else []
    places += ["/usr/local/cuda/lib64"] + sorted(p for entry in sys.path for p in glob.glob(f"{entry}/nvidia/*/lib"))
    return [place for place in places if os.path.exists(f"{place}/{RUNTIME_NAME}")][:1]
