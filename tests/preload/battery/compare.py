#!/usr/bin/env python3
"""Runs the transparency battery natively, or under the library and compares line by line.

    compare.py native  --program BATTERY --build BUILD --lines FILE
    compare.py POLICY  --program BATTERY --build BUILD --lines FILE --library libcupool.so [--all]

A line is `symbol | situation | case | outcome | what holds afterwards | violations`. Only differences that accepted.py names for
the policy may occur, and each of those must. What natively is no violation of the driver's rules must be none under the library.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from accepted import ACCEPTED, Accepted

POLICIES = {
    "grow": {"CUPOOL_BACKING": "pages"},
    "preallocate": {"CUPOOL_POLICY": "preallocate", "CUPOOL_PREALLOCATE": "64MiB"},
    "limit": {"CUPOOL_LIMIT": "900MiB", "CUPOOL_BACKING": "segments"},
    "sync": {"CUPOOL_FREE": "sync", "CUPOOL_BACKING": "pages"},
    "immediate": {"CUPOOL_FREE": "immediate", "CUPOOL_BACKING": "segments"},
    "async": {"CUPOOL_POLICY": "async"},
    "native_ipc": {"CUPOOL_IPC": "native"},
    "platform": {"CUPOOL_POLICY": "platform"},
    "off": {"CUPOOL_POLICY": "off"},
}
SHOWN = 40
Key = tuple[str, str, str]


def environment(build: Path, policy: str, library: Path | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "CUDA_"))}
    env.update(LD_LIBRARY_PATH=str(build / "sim"), CUSIM_DEVICES="2", CUSIM_MEMORY="1GiB", CUSIM_DRIVER_VERSION="13040", CUSIM_VARIABLE_BYTES="3MiB")  # the newest row
    if library is not None:
        env.update(POLICIES[policy], LD_PRELOAD=str(library), CUPOOL_REPORT="none", CUPOOL_LOG="off")
    return env


def run(program: Path, env: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory(prefix="cupool-battery-") as folder, open(os.devnull, "wb") as nothing:
        done = subprocess.run([str(program)], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=nothing, text=True, errors="replace")
        litter = os.listdir(folder)
        if litter:
            return 1, done.stdout + f"files were left: {litter}\n"
    return done.returncode, done.stdout


def read(text: str) -> tuple[dict[Key, tuple[list[str], int]], list[str]]:
    """The lines by row, situation and case, as tokens and violations; and what is no such line."""
    lines: dict[Key, tuple[list[str], int]] = {}
    other = []
    for line in text.splitlines():
        parts = line.split(" | ")
        if len(parts) != 6 or not parts[5].isdigit() or (parts[0], parts[1], parts[2]) in lines:
            other.append(line)
            continue
        # "two words=value" is one token
        tokens = re.findall(r"[^=]+=\S*", parts[3] + " " + parts[4])
        lines[parts[0], parts[1], parts[2]] = ([token.strip() for token in tokens], int(parts[5]))
    return lines, other


def changes(native: list[str], ours: list[str]) -> list[tuple[str, str]]:
    """Pairs of tokens that differ; where the numbers of tokens differ, everything between the first and the last of them."""
    if len(native) == len(ours):
        return [(a, b) for a, b in zip(native, ours) if a != b]
    shorter = min(len(native), len(ours))
    begin = next((i for i in range(shorter) if native[i] != ours[i]), shorter)
    end = next((i for i in range(shorter - begin) if native[-1 - i] != ours[-1 - i]), shorter - begin)
    return [(" ".join(native[begin:len(native) - end]), " ".join(ours[begin:len(ours) - end]))]


def unexplained(key: Key, native: list[str], ours: list[str], policy: str,
                entries: list[Accepted]) -> tuple[list[tuple[str, str]], bool]:
    """What no entry covers, and whether an entry with consequences covers the rest of the line."""
    left = []
    for before, after in changes(native, ours):
        entry = next((e for e in entries if policy in e.policies and e.covers(key, before, after)), None)
        if entry is None:
            left.append((before, after))
            continue
        entry.seen.add(policy)
        if entry.consequences:
            return left, True
    return left, False


def compare(native_text: str, text: str, policy: str, entries: list[Accepted]) -> list[str]:
    native, _ = read(native_text)
    lines, other = read(text)
    broken = [f"not a line of the battery: {line}" for line in other]
    broken += [f"missing: {' | '.join(key)}" for key in native if key not in lines]
    broken += [f"only under the library: {' | '.join(key)}" for key in lines if key not in native]
    for key, (tokens, violations) in lines.items():
        before, violations_before = native.get(key, (tokens, violations))
        left, is_other = unexplained(key, before, tokens, policy, entries)
        if left:
            broken.append(f"{' | '.join(key)}: " + "; ".join(f"natively {a or 'nothing'}, here {b or 'nothing'}" for a, b in left))
        # With a destroyed context current our own questions meet it too; whoever breaks a rule natively hears of it twice.
        elif violations > violations_before == 0 and key[1] != "destroyed" and not is_other:
            broken.append(f"{' | '.join(key)}: {violations} violations of the driver's rules, natively none")
    broken += [f"stale: natively {e.native!r}, here {e.ours!r} ({e.reason}) does not occur for {e.symbols} {e.situations} {e.cases}"
               for e in entries if policy in e.policies and policy not in e.seen]
    return broken


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("policy", choices=["native", *POLICIES])
    for name in ("program", "build", "lines", "library"):
        parser.add_argument(f"--{name}", type=Path, required=name != "library")
    parser.add_argument("--all", action="store_true", help="print every difference, not only the first")
    given = parser.parse_args()
    code, text = run(given.program, environment(given.build, given.policy, given.library if given.policy != "native" else None))
    if given.policy == "native":
        given.lines.write_text(text, encoding="utf-8")
        broken = [f"not a line of the battery: {line}" for line in read(text)[1]]
    else:
        broken = compare(given.lines.read_text(encoding="utf-8"), text, given.policy, ACCEPTED[given.program.name])
    if code != 0:
        broken.append(f"the battery ended with {code}")
    for sentence in broken if given.all else broken[:SHOWN]:
        print(f"BROKEN {sentence}")
    print(f"{len(text.splitlines())} cases, {len(broken)} unexplained")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
