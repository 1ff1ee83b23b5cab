"""Builds files as CUPOOL_TRACE writes them (pool/observe/trace_format.hpp), and broken ones."""

from __future__ import annotations

import json
import struct

KINDS = {"allocate": 1, "free_requested": 2, "free_completed": 3, "region_create": 4, "region_release": 5, "oom": 6}
HEADER_BYTES = 128
CHUNK_HEADER_BYTES = 64


def header(*, magic: bytes = b"CUPLTRC1", version: int = 1, pid: int = 7, state: int = 0, dropped: int = 0, facts: object = None,
           readings: tuple = ((1000, 5_000_000_000), (3000, 5_000_001_000)), header_bytes: int | None = None) -> bytes:
    text = json.dumps({"process": {"pid": pid, "command": ["job"], "host": "h", "rank": None}} if facts is None else facts).encode()
    whole = HEADER_BYTES + len(text)
    whole += -whole % 8
    first, *later = readings
    slots = [(0, 0), (0, 0)]
    for position, reading in enumerate(later):
        slots[position % 2] = reading
    raw = struct.pack("<8sIIiIQQQIIQ6Q2Q", magic, version, whole if header_bytes is None else header_bytes, pid, state, 11, 4_000_000_000, dropped,
                      HEADER_BYTES, len(text), len(later), *first, *slots[0], *slots[1], 0, 0)
    return (raw + text).ljust(whole, b"\0")


def record(kind: str | int, address: int | None = None, requested: int | None = None, rounded: int | None = None, *, stream: int | None = None,
           origin: int | None = None, ticks: int | None = None, elapsed: int = 1, thread: int = 1) -> bytes:
    words = [address, requested, rounded, stream, origin, ticks]
    fields = sum(1 << bit for bit, word in enumerate(words) if word is not None)
    number = KINDS[kind] if isinstance(kind, str) else kind
    first = number | fields << 8 | thread << 16 | (0 if ticks is not None else elapsed) << 32
    return struct.pack(f"<{1 + bin(fields).count('1')}Q", first, *(word for word in words if word is not None))


def chunk(*records: bytes, device: int = 0, sequence: int = 1, index: int = 0, base_ticks: int = 1000, dropped_before: int = 0,
          length: int | None = None, magic: bytes = b"CUPLCHK1") -> bytes:
    body = b"".join(records)
    whole = CHUNK_HEADER_BYTES + len(body)
    whole += -whole % 64
    raw = struct.pack("<8sIIiIQQQ2Q", magic, whole if length is None else length, index, device, 0, base_ticks, dropped_before, sequence, 0, 0)
    return (raw + body).ljust(whole, b"\0")
