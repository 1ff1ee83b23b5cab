"""Files that appear under their name when they are whole, and what they must not take the place of."""

from __future__ import annotations

import contextlib
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


def _follow(folder: int, name: str, rest: list[str]) -> int | None:
    """What the link `name` in `folder` leads to goes in front of `rest`. Returns the folder where that begins; None: in `folder`. Raises OSError."""
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(facts.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    target = os.readlink(name, dir_fd=folder)
    if target.startswith("/proc/") or facts.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.ELOOP, "a symbolic link there is not followed; name what it leads to")
    rest[:0] = target.split("/")
    return os.open("/", os.O_PATH | os.O_DIRECTORY) if target.startswith("/") else None


def _enter(folder: int, name: str) -> int:
    """Opens a folder in `folder` without following a link, and makes it if there is none. Raises OSError."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=folder)
    except PermissionError:  # one that may be passed, and not read
        return os.open(name, os.O_PATH | flags, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        return os.open(name, os.O_PATH | flags, dir_fd=folder)


def open_folder(path: Path) -> int:
    """A descriptor of the folder, past no link that another user than root has placed. Missing folders are made (0700). Raises OSError. The rule is that
    of pool/observe/trusted_path.hpp."""
    folder = os.open("/" if path.is_absolute() else ".", os.O_PATH | os.O_DIRECTORY)
    rest = list(path.parts[path.is_absolute():])
    links = 0
    try:
        while rest:
            name = rest.pop(0) or "."
            entered: int | None
            try:
                entered = _enter(folder, name)
            except OSError as error:
                links += 1
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or links > 40:
                    raise
                entered = _follow(folder, name, rest)
            if entered is not None:
                os.close(folder)
                folder = entered
    except BaseException:
        os.close(folder)
        raise
    return folder


def write_atomically(target: Path, text: str) -> None:
    """Under its name complete or not at all; 0600; parent folders are made. Raises OSError."""
    check_replaceable(target)
    folder = open_folder(target.parent)
    try:
        temporary = f".{target.name[:100]}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            os.rename(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)
