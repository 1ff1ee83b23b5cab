"""Reads what the loader reads of an ELF file: machine, interpreter, needed libraries, needed symbol versions.

Only as much as doctor asks for. The file may be anything: every offset is checked, sizes are bounded.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 10, 0x6FFFFFFE, 0x6FFFFFFF
_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64"}
_MAX_SEGMENTS = 1000
_MAX_DYNAMIC_BYTES = 1 << 16
_MAX_TEXT = 4096


class NotElf(Exception):
    """Not an ELF file, or a broken one."""


@dataclass
class Elf:
    bits: int
    machine: str
    interpreter: str | None = None      # None: the kernel starts it without a loader
    is_dynamic: bool = False
    needed: list[str] = field(default_factory=list)
    versions: dict[str, set[str]] = field(default_factory=dict)  # library: names such as GLIBC_2.34

    @property
    def is_static(self) -> bool:
        return self.interpreter is None


class _File:
    """Only what is asked for is read: programs may be of gigabytes."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def read(self, size: int, offset: int) -> bytes:
        """As much as there is."""
        if not 0 <= offset < 1 << 62:
            raise NotElf("an offset points outside the file")
        return os.pread(self.descriptor, size, offset)

    def unpack(self, layout: struct.Struct, offset: int) -> tuple:
        data = self.read(layout.size, offset)
        if len(data) < layout.size:
            raise NotElf("an offset points outside the file")
        return layout.unpack(data)

    def text(self, offset: int) -> str:
        text, end, _ = self.read(_MAX_TEXT, offset).partition(b"\0")
        if not end:
            raise NotElf("a string lies outside the file")
        return text.decode("utf-8", "replace")


def read(path: str) -> Elf:
    """Raises NotElf or OSError."""
    with open(path, "rb", buffering=0) as stream:
        return _read(_File(stream.fileno()))


def _read(file: _File) -> Elf:
    header = file.read(64, 0)
    if header[:4] != b"\x7fELF":
        raise NotElf("not an ELF file")
    if len(header) < 64 or header[4] not in (1, 2) or header[5] != 1:
        raise NotElf("not a little-endian ELF file")
    machine = _MACHINES.get(struct.unpack_from("<H", header, 18)[0], "unknown")
    if header[4] == 1:
        return Elf(32, machine)
    elf = Elf(64, machine)
    segments = _segments(file)
    for kind, offset, _address, _size in segments:
        if kind == _PT_INTERP:
            elf.interpreter = file.text(offset)
    for kind, offset, _address, size in segments:
        if kind == _PT_DYNAMIC:
            elf.is_dynamic = True
            _read_dynamic(file, elf, segments, offset, size)
    return elf


def _segments(file: _File) -> list[tuple[int, int, int, int]]:
    """(type, file offset, address, size in the file)"""
    table, = file.unpack(struct.Struct("<Q"), 32)
    entry_bytes, number = file.unpack(struct.Struct("<HH"), 54)
    header = struct.Struct("<IIQQQQ")
    rows = [file.unpack(header, table + index * entry_bytes) for index in range(min(number, _MAX_SEGMENTS))]
    return [(row[0], row[2], row[3], row[5]) for row in rows]


def _file_offset(segments, address: int) -> int:
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise NotElf("an address is in no segment")


def _read_dynamic(file: _File, elf: Elf, segments, offset: int, size: int) -> None:
    needed, values = [], {}
    for position in range(offset, offset + min(size, _MAX_DYNAMIC_BYTES) - 15, 16):
        tag, value = file.unpack(struct.Struct("<qQ"), position)
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        values[tag] = value
    if _DT_STRTAB not in values:
        return
    strings = _file_offset(segments, values[_DT_STRTAB])
    elf.needed = [file.text(strings + name) for name in needed]
    if _DT_VERNEED in values:
        _read_versions(file, elf, strings, _file_offset(segments, values[_DT_VERNEED]), min(values.get(_DT_VERNEEDNUM, 0), 1000))


def _read_versions(file: _File, elf: Elf, strings: int, offset: int, number: int) -> None:
    library_row, version_row = struct.Struct("<HHIII"), struct.Struct("<IHHII")
    for _ in range(number):
        _version, count, name, first, following = file.unpack(library_row, offset)
        names = elf.versions.setdefault(file.text(strings + name), set())
        position = offset + first
        for _ in range(count):
            _hash, _flags, _other, version_name, step = file.unpack(version_row, position)
            names.add(file.text(strings + version_name))
            position += step
        offset += following


def highest_glibc(elf: Elf) -> tuple[int, ...]:
    """The newest GLIBC_x.y that the file needs: (2, 34)."""
    names = elf.versions.get("libc.so.6", set()) | elf.versions.get("ld-linux-x86-64.so.2", set()) | elf.versions.get("libm.so.6", set())
    versions = [tuple(int(part) for part in name[6:].split(".")) for name in names
                if name.startswith("GLIBC_") and name[6:].replace(".", "").isdigit()]
    return max(versions, default=(0,))
