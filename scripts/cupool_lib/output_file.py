"""Files that appear under their name when they are whole, and what they must not take the place of."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path


def check_replaceable(target: Path) -> None:
    """Raises OSError where a new file must not take the place of `target`: a folder, a device, a pipe, or a link that leads to one. The rule is that of
    check_replaceable_at in pool/observe/report_file.hpp."""
    try:
        mode = target.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISLNK(mode):
            mode = stat.S_IFCHR if os.readlink(target).startswith(("/proc/", "/dev/")) else target.stat().st_mode
    except FileNotFoundError:  # nothing there, or at the link's end
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "not a regular file")


def is_too_long(path: Path) -> bool:
    """Whether a part of the path is longer than any Linux file system allows a name to be."""
    return any(len(os.fsencode(part)) > 255 for part in path.parts)


def is_replaceable(target: Path) -> bool:
    """False: what is there (a device, a pipe) is to be written to, not replaced."""
    try:
        check_replaceable(target)
    except OSError as error:
        return error.errno != errno.EEXIST
    return True


def write_atomically(target: Path, text: str) -> None:
    """Under its name complete or not at all; 0600; parent folders are made. Raises OSError."""
    for folder in reversed(target.parents):  # as the library makes them; mkdir(parents=True) gives the mode to the last one only
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    check_replaceable(target)
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        os.rename(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
