"""Where cupool's own files are, in a source tree and when installed. Nothing is taken from the environment.

Source tree: scripts/cupool_lib, config/, build/libcupool.so. Installed: PREFIX/bin/cupool,
PREFIX/share/cupool/{cupool_lib,options.json,report.schema.json,profiles}, PREFIX/lib*/[triplet/]libcupool.so.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
LIBRARY_NAME = "libcupool.so"


class NotFound(Exception):
    """A file of cupool's own is missing; the text says where it was looked for."""


def is_source_tree() -> bool:
    return PACKAGE.parent.name == "scripts" and (PACKAGE.parent.parent / "config").is_dir()


def root() -> Path:
    """The source tree, or PREFIX."""
    return PACKAGE.parent.parent if is_source_tree() else PACKAGE.parent.parent.parent


def is_shared_object(path: str) -> bool:
    """By its first bytes: an ELF file of type ET_DYN."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(18)
    except OSError:
        return False
    return header[:4] == b"\x7fELF" and header[16:18] == b"\x03\x00"


def preload_problem(path: str) -> str:
    """Why ld.so could not preload it whatever it is, or empty."""
    for character, name in ((" ", "a space"), (":", "a colon"), ("$", "a dollar sign"), ("\t", "a tab"), ("\n", "a line feed")):
        if character in path:
            return f"ld.so cannot preload a path with {name} in it"
    return ""


def library(explicit: str | None = None) -> Path:
    """libcupool.so as an absolute path; raises NotFound."""
    if explicit is not None:
        try:
            path = Path(explicit).absolute()
        except FileNotFoundError:
            raise NotFound(f"--library {explicit}: the working folder does not exist any more") from None
        if not os.path.isfile(path):
            raise NotFound(f"--library {explicit}: no such file")
        return path
    if is_source_tree():
        candidates = [root() / "build" / LIBRARY_NAME]
        advice = "run scripts/build"
    else:
        folders = sorted(root().glob("lib*"))
        candidates = [folder / LIBRARY_NAME for folder in folders]
        candidates += [path for folder in folders for path in sorted(folder.glob("*/" + LIBRARY_NAME))]
        advice = "the installation is incomplete"
    for candidate in candidates:
        if os.path.isfile(candidate):
            return candidate
    looked = candidates[0] if candidates else root() / "lib" / LIBRARY_NAME
    raise NotFound(f"{LIBRARY_NAME} not found at {looked}: {advice}, or name it with --library")


def data_file(name: str) -> Path:
    """A file of config/ (options.json, report.schema.json, profiles/NAME.json); raises NotFound."""
    folder = root() / "config" if is_source_tree() else PACKAGE.parent
    path = folder / name
    if not os.path.isfile(path):
        raise NotFound(f"{name} not found at {path}: the installation is incomplete")
    return path


def live_page_folder() -> Path:
    return Path(f"/dev/shm/cupool-{os.geteuid()}")
