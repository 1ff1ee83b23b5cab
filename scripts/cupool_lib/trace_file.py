"""Reads traces: every event of a process, as CUPOOL_TRACE wrote it. The format is published in pool/observe/trace_format.hpp.

The file may still be growing, may end where SIGKILL cut it off, and may not be a trace at all: every length is checked before
it is used, and one chunk at a time is in memory.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
import stat
import struct
import zlib
from typing import BinaryIO, Iterator, NamedTuple, cast

from cupool_lib.live_page import finite

MAGIC = int.from_bytes(b"CUPLTRC1", "little")
CHUNK_MAGIC = int.from_bytes(b"CUPLCHK1", "little")
VERSION = 1
HEADER = struct.Struct("<QIIiIQQQIIQQQQQQQ2Q")
CHUNK = struct.Struct("<QIIiIQQQ2Q")
KINDS = {1: "allocate", 2: "free_requested", 3: "free_completed", 4: "region_create", 5: "region_release", 6: "oom"}
STATES = ("open", "closed")
_MAX_HEADER_BYTES, _MAX_CHUNK_BYTES, _CHUNK_UNIT = 1 << 24, 1 << 28, 64
_MAX_BLOCK_BYTES = 1 << 50
_ADDRESS, _REQUESTED, _BYTES, _STREAM, _ORIGIN, _TICKS = 1, 2, 4, 8, 16, 32
_WORDS = [bin(fields).count("1") for fields in range(256)]


class BadTrace(Exception):
    """`FILE: byte OFFSET: what is wrong`."""


class Event(NamedTuple):
    ticks: int
    device: int
    kind: str
    address: int
    requested_bytes: int | None
    bytes: int | None
    stream: int
    site: int
    thread: int


class _Chunk(NamedTuple):
    offset: int
    length: int
    base_ticks: int


class Trace:
    """One file: `facts` ({"process": …, "options": …}), `dropped`, `devices`, and their events."""

    def __init__(self, path: str):
        self.path = path
        self._file = self._open()
        try:
            self._take_in(self._read_header())
        except BaseException:
            self.close()
            raise

    def _take_in(self, fields: tuple) -> None:
        (_, _, header_bytes, self.pid, state, _, self.start_unix_ns, self.dropped, json_offset, json_bytes, readings) = fields[:11]
        self.state = STATES[state]
        self._clock = _clock(readings, fields[11:17])
        self.facts = self._read_facts(header_bytes, json_offset, json_bytes)
        self._chunks, self.dropped_of = self._find_chunks(header_bytes)
        self.devices = sorted(self._chunks)

    def _open(self) -> BinaryIO:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode) and not os.path.isdir(self.path):  # it is read more than once, and from places
                raise BadTrace(f"{self.path}: not a regular file")
            file = open(self.path, "rb")
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return cast(BinaryIO, gzip.open(file)) if packed else file
        except OSError as error:
            raise BadTrace(f"{self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()

    def fail(self, offset: int, what: str) -> BadTrace:
        return BadTrace(f"{self.path}: byte {offset}: {what}")

    def _read(self, offset: int, length: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(length)
        except (OSError, EOFError, zlib.error) as error:
            raise self.fail(offset, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def _read_header(self) -> tuple:
        raw = self._read(0, HEADER.size)
        if len(raw) < HEADER.size or HEADER.unpack(raw)[0] != MAGIC:
            raise self.fail(0, "not a trace of cupool's: the magic number is wrong")
        fields = HEADER.unpack(raw)
        if fields[1] != VERSION:
            raise self.fail(8, f"version {fields[1]} is not known, {VERSION} is")
        if not HEADER.size <= fields[2] <= _MAX_HEADER_BYTES or fields[2] % 8:
            raise self.fail(12, f"a header of {fields[2]} bytes")
        if (held := len(self._read(0, fields[2]))) < fields[2]:
            raise self.fail(held, "the file ends inside its header")
        if fields[3] <= 0 or fields[4] >= len(STATES):
            raise self.fail(16, "pid or state is out of range")
        return fields

    def _read_facts(self, header_bytes: int, offset: int, length: int) -> dict:
        if offset < HEADER.size or offset + length > header_bytes:
            raise self.fail(48, f"the process facts lie outside the header ({offset}+{length} of {header_bytes} bytes)")
        try:
            facts = json.loads(self._read(offset, length).decode("utf-8", "replace"), parse_float=finite, parse_constant=finite)
        except (ValueError, RecursionError) as error:
            raise self.fail(offset, f"the process facts are not JSON: {error}") from None
        if not isinstance(facts, dict) or not isinstance(facts.get("process", {}), dict):
            raise self.fail(offset, "the process facts are not an object of objects")
        return facts

    def _find_chunks(self, offset: int) -> tuple[dict[int, list[_Chunk]], dict[int, int]]:
        """Every device's chunks in its own order, and what it had lost before them."""
        found: dict[int, list[tuple[int, _Chunk]]] = {}
        dropped: dict[int, int] = {}
        while len(raw := self._read(offset, CHUNK.size)) == CHUNK.size:
            magic, length, _, device, _, base_ticks, dropped_before, sequence, *_ = CHUNK.unpack(raw)
            if magic == 0:
                break
            if magic != CHUNK_MAGIC or not _CHUNK_UNIT <= length <= _MAX_CHUNK_BYTES or length % _CHUNK_UNIT:
                raise self.fail(offset, "no chunk begins here")
            if sequence:
                if not 0 <= device < 1024:
                    raise self.fail(offset + 16, f"device {device} is out of range")
                found.setdefault(device, []).append((sequence, _Chunk(offset, length, base_ticks)))
                dropped[device] = dropped.get(device, 0) + dropped_before
            offset += length
        for device, chunks in found.items():
            chunks.sort()
            for position, (sequence, chunk) in enumerate(chunks, 1):
                if sequence != position:
                    raise self.fail(chunk.offset + 40, f"chunk {sequence} of device {device} where {position} is expected")
        return {device: [chunk for _, chunk in chunks] for device, chunks in found.items()}, dropped

    def unix_ns(self, ticks: int) -> int:
        ticks_first, ns_first, ns_per_tick = self._clock
        return ns_first + int((ticks - ticks_first) * ns_per_tick)

    def events_of(self, device: int) -> Iterator[Event]:
        for chunk in self._chunks.get(device, ()):
            yield from self._events_in(chunk, device)

    def events(self) -> Iterator[Event]:
        """Those of all devices, by time."""
        yield from heapq.merge(*(self.events_of(device) for device in self.devices), key=lambda event: event.ticks)

    def _events_in(self, chunk: _Chunk, device: int) -> Iterator[Event]:
        raw = self._read(chunk.offset, chunk.length)
        if len(raw) != chunk.length:
            raise self.fail(chunk.offset + len(raw), f"the file ends inside a chunk of {chunk.length} bytes")
        words = struct.unpack(f"<{chunk.length // 8}Q", raw)
        at, ticks, end = CHUNK.size // 8, chunk.base_ticks, len(words)
        while at < end and (first := words[at]):
            fields = first >> 8 & 0xFF
            following = at + 1 + _WORDS[fields]
            if first & 0xFF == 0 or following > end:
                raise self.fail(chunk.offset + at * 8, "no record begins here")
            values = iter(words[at + 1:following])
            address, requested, rounded, stream, origin, at_ticks = (
                next(values) if fields & bit else None for bit in (_ADDRESS, _REQUESTED, _BYTES, _STREAM, _ORIGIN, _TICKS))
            ticks = at_ticks if at_ticks is not None else (ticks + (first >> 32)) & 0xFFFFFFFFFFFFFFFF
            kind = KINDS.get(first & 0xFF)
            if kind is not None:
                if address is None or (kind == "allocate" and not 0 < (requested or 0) <= _MAX_BLOCK_BYTES):
                    raise self.fail(chunk.offset + at * 8, f"not an event of kind {kind}")
                if rounded is None and requested is not None:
                    rounded = requested + 511 & ~511
                yield Event(ticks, device, kind, address, requested, rounded, stream or 0, (origin or 0) & 0xFFFFFFFF, first >> 16 & 0xFFFF)
            at = following


def _clock(readings: int, fields: tuple) -> tuple[int, int, float]:
    """(ticks, unix_ns) of the first reading, and nanoseconds per tick up to the latest."""
    first, later = fields[:2], (fields[2:4], fields[4:6])
    if readings == 0:
        return first[0], first[1], 0.0
    latest = later[(readings - 1) % 2]
    ticks, elapsed_ns = latest[0] - first[0], latest[1] - first[1]
    return first[0], first[1], elapsed_ns / ticks if ticks > 0 and elapsed_ns > 0 else 0.0


class Move(NamedTuple):
    """A block begins, or ends. Blocks count from 0."""
    is_free: bool
    block: int
    requested_bytes: int
    stream: int
    event: Event


def moves(trace: Trace, device: int) -> Iterator[Move]:
    """Allocations and frees of `device`, consistent also where events were dropped: the free of an unknown block is left out, a
    block whose place is taken anew is freed first. Streams are numbered from 1 in the order of their appearance; 0: none."""
    live: dict[int, tuple[int, int, int]] = {}
    streams: dict[int, int] = {0: 0}
    count = 0
    for event in trace.events_of(device):
        if event.kind not in ("allocate", "free_requested"):
            continue
        stream = streams.setdefault(event.stream, len(streams))
        ended = live.pop(event.address, None)
        if ended is not None:
            is_own = event.kind == "free_requested"
            yield Move(True, ended[0], ended[1], stream if is_own and stream else ended[2], event)
        if event.kind == "allocate":
            live[event.address] = (count, event.requested_bytes or 0, stream)
            yield Move(False, count, event.requested_bytes or 0, stream, event)
            count += 1
