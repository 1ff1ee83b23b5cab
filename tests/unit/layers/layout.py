"""Checks that the C and C++ sources are laid out as .clang-format says; prints each file that is not.

Usage: layout.py ROOT [CLANG_FORMAT]
Exit: 0 all are, 1 some are not, 2 wrong usage, 77 there is no clang-format of the version that laid them out (versions differ in details).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = 14
SUFFIXES = {".cpp", ".hpp", ".h", ".c"}
ROOMS = ("config", "pool", "shim", "tests", "examples")
NO_SUCH_VERSION = 77


def version_of(program: str) -> int | None:
    """The major version that `program` says it has."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"version (\d+)", told)
    return int(found[1]) if found else None


def formatter(wanted: str | None) -> str | None:
    """A clang-format of the right version."""
    candidates = [wanted] if wanted else [f"clang-format-{VERSION}", "clang-format"]
    return next((name for name in candidates if shutil.which(name) and version_of(name) == VERSION), None)


def ill_laid(program: str, root: Path) -> list[str]:
    """The sources that clang-format would change, by their paths in the tree."""
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in SUFFIXES)
    if not files:
        sys.exit(f"layout.py: {root}: no sources")
    names = [str(path.relative_to(root)) for path in files]
    told = subprocess.run([program, "--dry-run", "-Werror", *names], cwd=root, capture_output=True, text=True, timeout=600)
    found = sorted({line.split(":", 1)[0] for line in told.stderr.splitlines() if "clang-format-violations" in line})
    return found if found or told.returncode == 0 else [told.stderr.strip()]


def main() -> int:
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[1])
    program = formatter(sys.argv[2] if len(sys.argv) == 3 else None)
    if program is None:
        print(f"layout.py: skipped, there is no clang-format {VERSION}")
        return NO_SUCH_VERSION
    if not (root / ".clang-format").is_file():
        print(f"layout.py: {root} has no .clang-format", file=sys.stderr)
        return 2
    found = ill_laid(program, root)
    for name in found:
        print(f"{name}: not as .clang-format says; run: {program} -i {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
