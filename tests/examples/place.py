"""Where the examples' tests find things: the examples, what was built of them, and cupool as it is installed."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "scripts"))

import support  # noqa: E402

EXAMPLES = ROOT / "examples"
BUILT = support.BUILD / "tests" / "examples"
CUDA_INCLUDE = Path(os.environ.get("TEST_CUDA_INCLUDE", "/usr/local/cuda/include"))
SKIPPED = 77


@lru_cache(maxsize=None)
def installed(*flags: str) -> Path:
    """The prefix of a fresh `cmake --install`, once for each process."""
    prefix = Path(tempfile.mkdtemp(prefix="cupool-prefix-"))
    atexit.register(shutil.rmtree, prefix, ignore_errors=True)
    subprocess.run(["cmake", "--install", str(support.BUILD), "--prefix", str(prefix), *flags], check=True, capture_output=True, text=True)
    return prefix


def simulated(**extra: str) -> dict[str, str]:
    """The environment of a machine with the simulated driver and with cupool installed."""
    environment = support.simulator_environment(**extra)
    for name in [name for name in environment if name.startswith(("SLURM_", "OMPI_", "PMI_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]:
        if name not in extra:
            del environment[name]
    environment["PATH"] = f"{installed() / 'bin'}:{environment['PATH']}"
    return environment


def run(*command: object, env: dict | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], env=simulated() if env is None else env, cwd=cwd, text=True, capture_output=True,
                          check=False, timeout=100)


def fenced(markdown: str, language: str) -> list[str]:
    """The contents of the fenced blocks of `language`."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def shape(text: str) -> list[str]:
    """Its lines without what differs from run to run: numbers, addresses, the paths in front of file names."""
    text = re.sub(r"(?:/[\w.+-]+)+/", "", text)
    text = re.sub(r"0x[0-9a-f]+|\d[\d.,]*", "0", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
