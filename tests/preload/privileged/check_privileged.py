#!/usr/bin/env python3
"""A setuid program into which somebody without its rights preloads the library: the library does nothing at all there.

    check_privileged.py --library libcupool.so --program PROGRAM

ld.so preloads into such a program only a library with the setuid bit from a system folder, so the library is bound over one of
libc's small ones, in a mount namespace of the test's own. The same program without the bit is the control: there it is served.
Exit 77, with the reason, where that cannot be made (no root, no mount namespace, a file system without setuid).
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STAND_IN = Path("/lib/x86_64-linux-gnu/libBrokenLocale.so.1")
SOMEBODY = 64020
SKIPPED = 77
NAMESPACE = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount --bind "$1" "$2" && shift 2 && exec setpriv --reuid="$1" --regid="$1" --clear-groups "$2"', "sh"]


class CannotBeMade(Exception):
    pass


def prepare(folder: Path, library: Path, program: Path) -> None:
    if os.geteuid() != 0 or not STAND_IN.exists() or not shutil.which("unshare") or not shutil.which("setpriv"):
        raise CannotBeMade("it needs root, unshare, setpriv and a libc with " + STAND_IN.name)
    if os.statvfs(folder).f_flag & os.ST_NOSUID:
        raise CannotBeMade(f"{folder} is mounted nosuid")
    folder.chmod(0o755)
    shutil.copy(library, folder / "library.so")
    shutil.copy(program, folder / "program")
    (folder / "library.so").chmod(0o4755)
    (folder / "of-root").mkdir(mode=0o755)
    tried = subprocess.run([*NAMESPACE, str(folder / "library.so"), str(STAND_IN), str(SOMEBODY), "/bin/true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise CannotBeMade(tried.stderr.strip())


def run(folder: Path, is_setuid: bool, **variables: str) -> subprocess.CompletedProcess:
    (folder / "program").chmod(0o4755 if is_setuid else 0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "LD_"))}
    environment.update(LD_PRELOAD=STAND_IN.name, CUSIM_MEMORY="1GiB", **variables)
    return subprocess.run([*NAMESPACE, str(folder / "library.so"), str(STAND_IN), str(SOMEBODY), str(folder / "program")], env=environment,
                          cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def problems(folder: Path) -> list[str]:
    target = folder / "of-root"
    control = run(folder, False, CUPOOL_REPORT="none")
    if control.returncode == 127 or "cannot open shared object" in control.stderr:
        raise CannotBeMade("another user cannot read the build folder: " + control.stderr.strip())
    ours = STAND_IN.name
    broken = []
    if f"secure 0, euid {SOMEBODY}\nlinked {ours}, looked up {ours}\n0 0 0 0 0 0" not in control.stdout:
        broken.append(f"the control is not served:\n{control.stdout}{control.stderr}")
    names = ("CUPOOL_REPORT", "CUPOOL_LOG_FILE", "CUPOOL_TRACE")
    privileged = run(folder, True, CUPOOL_LOG="trace", CUPOOL_POLCIY="x", **{name: str(target / name) for name in names})
    if privileged.returncode != 5 or privileged.stderr:
        broken.append(f"exit {privileged.returncode}, stderr {privileged.stderr!r}")
    if f"secure 1, euid 0\nlinked {ours}, looked up libcuda.so.1\n0 0 0 0 0 0" not in privileged.stdout:
        broken.append(f"the privileged program:\n{privileged.stdout}")
    if written := sorted(p.name for p in target.iterdir()):
        broken.append(f"it wrote {written} with rights that are not the caller's")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cupool-privileged-") as name:
        try:
            prepare(Path(name), given.library, given.program)
            broken = problems(Path(name))
        except CannotBeMade as why:
            print(f"SKIPPED {why}")
            return SKIPPED
    for sentence in broken:
        print(f"BROKEN {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
