"""Checks the rules of the rooms (STYLE: layers) on a source tree; prints each breach as FILE:LINE: sentence.

Usage: layers.py [--archive libcupool_pool.a] [--nm PROGRAM] ROOT
With --archive the compiled pool is searched for writable globals, which no reading of the sources finds surely.
Exit: 0 none, 1 breaches, 2 wrong usage or a tree without rooms.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cpp_text import code_only, line_of, without_comments

# A room may include itself and these. Bottom up; a longer path wins over a shorter one.
MAY_INCLUDE = {
    "config": (),
    "pool/core": ("config",),
    "pool/driver": ("config", "pool/core"),
    "pool/heap": ("config", "pool/core"),
    "pool/observe": ("config", "pool/core"),
    "pool/vmm": ("config", "pool/core", "pool/driver", "pool/heap", "pool/observe"),
    "pool/device": ("config", "pool/core", "pool/driver", "pool/heap", "pool/observe", "pool/vmm"),
    "pool/ipc": ("config", "pool/core", "pool/driver", "pool/heap", "pool/observe", "pool/vmm", "pool/device"),
    "shim": ("config", "pool"),
}
# The one exception: the live page holds the counts of driver calls, whose names are the driver's list.
MAY_INCLUDE_TOO = {("pool/observe/live_page.hpp", "pool/driver/driver_api.hpp")}
# Headers of the system that would bring in what a room must not have.
NO_SYSTEM_HEADER = {
    "config": r"cuda.*|dlfcn\.h|iostream|ostream|sstream|regex|locale|thread|pthread\.h|unistd\.h",
    "pool/heap": r"cuda.*",
    "pool": r"dlfcn\.h|iostream|regex|thread",
}
# What config/ and pool/ never say.
FORBIDDEN_WORDS = (
    (r"\b(?:secure_)?getenv\b|\benviron\b", "reads the environment: it is handed in"),
    (r"\bdlv?sym\b|\bdlopen\b", "looks symbols up: that is the shim's business"),
    (r'\bextern\s+"C"', 'has extern "C": exported names are the shim\'s business'),
    (r"\bspdlog\b", "logs: only shim/log.cpp knows spdlog"),
    (r"\bstd::j?thread\b|\bstd::async\b|\bpthread_create\b|\bthrd_create\b", "starts a thread"),
    (r"\bstd::(?:cout|cerr|clog)\b|\b(?:f|v|vf)?printf\s*\(|\bf?puts\s*\(", "prints"),
    (r"\b(?:_?exit|_Exit|quick_exit|abort|terminate)\s*\(", "ends the process of its host"),
)
# Writable storage of the pool that is argued for. Everything else with static storage duration is a breach.
ARGUED_GLOBALS = {
    "::t_cache": "per thread, trivial; remembers lookups and is checked against the PoolSet's id at each use",
    "system_clock()::clock": "without state; exists because a clock is handed on by reference",
}
# The list itself, and the declarations of its rows that an older <cuda.h> lacks.
MAY_NAME_ENTRIES = {"shim/entry_points.def", "shim/newer_api.hpp"}
MAX_NLOHMANN_FILES = 2
MAX_LINES = 400
UNNAMED = re.compile(r"(?:^|_)(?:utils?|common|helpers?|manager)(?:_|$)")
CODE = {".cpp", ".hpp", ".h", ".c", ".def", ".S", ".py", ".sh"}


@dataclass(frozen=True, order=True)
class Breach:
    path: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.sentence}"


class Tree:
    """The sources of one tree, read once."""

    def __init__(self, root: Path):
        self.root = root
        self.texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
                      for folder in ("config", "pool", "shim", "tests", "scripts")
                      for path in sorted((root / folder).rglob("*")) if path.is_file() and is_code(path)}

    def cpp(self, *folders: str):
        """(path, text) of the C++ sources in these folders."""
        for path, text in self.texts.items():
            if path.endswith((".cpp", ".hpp", ".h", ".def")) and path.startswith(tuple(folder + "/" for folder in folders)):
                yield path, text


def is_code(path: Path) -> bool:
    if path.suffix in CODE:
        return True
    if path.suffix or path.parent.name != "scripts":
        return False
    with path.open("rb") as stream:
        return stream.read(2) == b"#!"


def room_of(path: str) -> str | None:
    """The room that a file or an include belongs to; None: in no room."""
    return max((room for room in MAY_INCLUDE if path.startswith(room + "/")), key=len, default=None)


def check_includes(tree: Tree):
    for path, text in tree.cpp("config", "pool", "shim"):
        room = room_of(path)
        if room is None:
            yield Breach(path, 1, "lies in no room: give it one and say in layers.py what it may include")
            continue
        code = without_comments(text)
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', code, re.MULTILINE):
            quoted, system = match.groups()
            line = line_of(code, match.start())
            if quoted:
                yield from _check_quoted(path, line, room, quoted)
            else:
                yield from _check_system(path, line, system)


def _check_quoted(path: str, line: int, room: str, include: str):
    allowed = (room, *MAY_INCLUDE[room])
    if room_of(include) is None and not include.startswith("pool/"):
        yield Breach(path, line, f'includes "{include}": write the path from the root, beginning with a room')
    elif not include.startswith(tuple(folder + "/" for folder in allowed)) and (path, include) not in MAY_INCLUDE_TOO:
        yield Breach(path, line, f'includes "{include}": {room} may include {", ".join(allowed)} only')


def _check_system(path: str, line: int, include: str):
    for room, pattern in NO_SYSTEM_HEADER.items():
        if path.startswith(room + "/") and re.fullmatch(pattern, include):
            yield Breach(path, line, f"includes <{include}>, which {room}/ must not know")
    if include.startswith("spdlog/") and path != "shim/log.cpp":
        yield Breach(path, line, f"includes <{include}>: only shim/log.cpp knows spdlog")
    if include.startswith("nlohmann/") and not path.endswith(".cpp"):
        yield Breach(path, line, f"includes <{include}> in a header")


def check_words(tree: Tree):
    for path, text in tree.cpp("config", "pool"):
        code = code_only(text)
        for pattern, sentence in FORBIDDEN_WORDS:
            for match in re.finditer(pattern, code):
                yield Breach(path, line_of(code, match.start()), f"'{match.group().strip()}' {sentence}")


def check_spdlog(tree: Tree):
    for path, text in tree.cpp("shim"):
        match = re.search(r"\bspdlog\b", code_only(text))
        if match and path != "shim/log.cpp":
            yield Breach(path, line_of(text, match.start()), "names spdlog: only shim/log.cpp does")


def check_nlohmann(tree: Tree):
    users = [path for path, text in tree.cpp("config", "pool", "shim") if "#include <nlohmann/" in without_comments(text)]
    for path in users[MAX_NLOHMANN_FILES:]:
        yield Breach(path, 1, f"is one user of nlohmann/json too many: {', '.join(users)}")


def intercepted_names(entry_points: str) -> set[str]:
    """Looked-up names and exported symbols of every row."""
    rows = re.findall(r"^HOOK\(\s*(\w+)\s*,\s*(\w+)\s*,", without_comments(entry_points), re.MULTILINE)
    return {name for row in rows for name in row}


def check_intercepted_names(tree: Tree):
    """`api.NAME` is a call of the real driver through the pool's own list; everything else is a second list in the making."""
    names = intercepted_names(tree.texts.get("shim/entry_points.def", ""))
    for path, text in tree.texts.items():
        if not path.startswith("shim/") or path in MAY_NAME_ENTRIES:
            continue
        code = without_comments(text)
        for match in re.finditer(r"\bcu[A-Z]\w*", code):
            is_api_call = code[:match.start()].endswith(("api.", "api->"))
            if match.group() in names and not is_api_call:
                yield Breach(path, line_of(code, match.start()),
                             f"names {match.group()}, which stands in entry_points.def: make it a column or a role there")


def check_length(tree: Tree):
    for path, text in tree.texts.items():
        count = text.count("\n")
        header = "\n".join(text.splitlines()[:12])
        if count > MAX_LINES and not re.search(r"\blines\b", header):
            yield Breach(path, 1, f"has {count} lines: say in its header why more than {MAX_LINES} lines are right, or split it")


def check_names(tree: Tree):
    for path in tree.texts:
        if UNNAMED.search(Path(path).stem):
            yield Breach(path, 1, "is named after nothing: name it after the one concept that it holds")


def check_headers(tree: Tree):
    for path, text in tree.cpp("config", "pool", "shim"):
        if not text.startswith("//"):
            yield Breach(path, 1, "does not begin with a comment that says what it owns")


def check_globals(archive: Path, nm: str):
    """Symbols of the compiled pool in writable sections. A reference to a type or personality is the compiler's."""
    listed = subprocess.run([nm, "-C", "-f", "sysv", archive], capture_output=True, text=True, check=True).stdout
    for row in listed.splitlines():
        columns = [column.strip() for column in row.rsplit("|", 6)]
        if len(columns) != 7 or columns[3] not in ("OBJECT", "TLS"):
            continue
        name, section = columns[0], columns[6]
        is_writable = re.match(r"\.(?:data|bss|tdata|tbss)\b|\*?COM\*?|COMMON", section) and ".rel.ro" not in section
        if is_writable and not name.startswith("DW.ref.") and not any(argued in name for argued in ARGUED_GLOBALS):
            yield Breach("pool", 0, f"has writable static storage: {name} in {section}; state belongs to a PoolSet")


SOURCE_CHECKS = (check_includes, check_words, check_spdlog, check_nlohmann, check_intercepted_names, check_length, check_names,
                 check_headers)


def breaches_of(root: Path, archive: Path | None = None, nm: str = "nm") -> list[Breach]:
    tree = Tree(root)
    found = {breach for check in SOURCE_CHECKS for breach in check(tree)}
    if archive is not None:
        found.update(check_globals(archive, nm))
    return sorted(found)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="layers.py", description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("root", type=Path)
    choice = parser.parse_args(arguments)
    missing = [room for room in ("config", "pool", "shim/entry_points.def") if not (choice.root / room).exists()]
    if missing:
        print(f"layers.py: {choice.root} has no {', '.join(missing)}", file=sys.stderr)
        return 2
    found = breaches_of(choice.root, choice.archive, choice.nm)
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
