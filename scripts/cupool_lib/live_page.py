"""Reads live pages: a process's counters in shared memory. The format is published in pool/observe/live_page.hpp.

The bytes are another program's: it may have been killed in the middle of a store, and the file may be no page at all. So every offset and length is
checked against the file's size before it is used, and only regular files of this user are opened.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = int.from_bytes(b"CUPULPG1", "little")
VERSION = 2
STATES = ("cold", "live", "exiting", "reported")
HEADER = struct.Struct("<QIIiIQQQ28I")
_HEADER_FIELDS = (
    "magic", "version", "header_bytes", "pid", "state", "start_ticks", "start_unix_ns", "start_monotonic_ns",
    "counter_names_offset", "counter_names_bytes", "driver_call_names_offset", "driver_call_names_bytes",
    "process_json_offset", "process_json_bytes", "devices_offset", "device_stride", "device_count", "counters_in_device",
    "driver_calls_in_device", "fragmentation_in_device", "request", "outside_in_device", "fragmentation_names_offset",
    "fragmentation_names_bytes", "outside_names_offset", "outside_names_bytes", "unpooled_offset", "unpooled_stride",
    "unpooled_count", "oom_count", "shards_in_device", "shard_stride", "shard_count", "shard_names_offset", "shard_names_bytes", "unused")
DEVICE = struct.Struct("<Ii40s128s16s16sQQQQ")
_UNPOOLED_VALID = 2
_USUAL_PAGE_BYTES = 344 << 10
_MAX_PAGE_BYTES, _MAX_SLOTS, _MAX_NAMES = 16 << 20, 1024, 4096
_FOLDER_NAME = re.compile(r"cupool-(\d{1,10})(?:\..*)?")
_FILE_NAME = re.compile(r"([1-9][0-9]{0,9})\.([0-9]{1,20})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class BadPage(Exception):
    """Not a live page; the text says what is wrong with it."""


@dataclass
class Device:
    ordinal: int
    uuid: str
    name: str
    policy: str
    backing: str
    total_bytes: int
    limit_bytes: int                  # 0: none
    driver_free_bytes: int | None     # None: the driver was never asked
    driver_free_unix_ns: int
    gauges: dict[str, tuple[int, int]] = field(default_factory=dict)  # name: (current, peak)
    totals: dict[str, int] = field(default_factory=dict)
    driver_calls: dict[str, int] = field(default_factory=dict)
    fragmentation: dict[str, int] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)

    def used(self) -> bool:
        """Whether the process ever asked for memory of this device."""
        return any(peak for _, peak in self.gauges.values()) or any(self.totals.values())


@dataclass
class Page:
    pid: int
    state: str
    start_ticks: int
    start_unix_ns: int
    oom_count: int
    facts: dict  # {"process": …, "options": …, "report_path": …}
    devices: list[Device]
    unpooled: list[str]

    def run_id(self) -> str:
        option = self.facts.get("options", {}).get("run_id", {})
        return str(option.get("value", "")) if isinstance(option, dict) else ""


def _slice(data: bytes, offset: int, length: int, what: str) -> bytes:
    if offset < HEADER.size or offset > len(data) or length > len(data) - offset:
        raise BadPage(f"{what} lies outside the page ({offset}+{length} of {len(data)} bytes)")
    return data[offset:offset + length]


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _rows(data: bytes, header: dict, table: str, words: int) -> list[list[str]]:
    """The lines of a name table, each split into at least `words` words of which the first is an identifier."""
    raw = _slice(data, header[f"{table}_names_offset"], header[f"{table}_names_bytes"], f"{table} names")
    rows = [line.split() for line in raw.rstrip(b"\0").decode("ascii", "replace").splitlines()]
    if len(rows) > _MAX_NAMES:
        raise BadPage(f"{table} names: {len(rows)} are too many")
    for row in rows:
        if len(row) < words or not _NAME.fullmatch(row[0]):
            raise BadPage(f"{table} names: cannot read '{' '.join(row)[:60]}'")
    return rows


def finite(text: str) -> float:
    """A number as JSON has it, which Python's reader does not insist on. Raises ValueError for NaN and infinities."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:60]} is no number of JSON")  # the completed report could not hold it
    return number


def _facts(raw: bytes) -> dict:
    try:
        facts = json.loads(raw.rstrip(b"\0").decode("utf-8", "replace"), parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise BadPage(f"process facts are not JSON: {error}") from None
    if not isinstance(facts, dict) or not all(isinstance(facts.get(key, {}), dict) for key in ("process", "options")):
        raise BadPage("process facts are not an object of objects")
    return facts


def _header(data: bytes) -> dict:
    if len(data) < HEADER.size:
        raise BadPage(f"{len(data)} bytes are too few for a header")
    header = dict(zip(_HEADER_FIELDS, HEADER.unpack_from(data)))
    if header["magic"] != MAGIC:
        raise BadPage("no live page: the magic number is wrong")
    if header["version"] != VERSION or header["header_bytes"] < HEADER.size:
        raise BadPage(f"version {header['version']} with a header of {header['header_bytes']} bytes is not known")
    if header["state"] >= len(STATES) or header["pid"] <= 0:
        raise BadPage("state or pid is out of range")
    if header["device_count"] > _MAX_SLOTS or header["unpooled_count"] > _MAX_SLOTS:
        raise BadPage("more slots than a page can have")
    return header


def parse(data: bytes) -> Page:
    """The page in `data`; raises BadPage."""
    header = _header(data)
    layout = _DeviceLayout(data, header)
    stride = header["device_stride"]
    area = _slice(data, header["devices_offset"], stride * header["device_count"], "the devices")
    devices = [layout.read(area[slot * stride:(slot + 1) * stride]) for slot in range(header["device_count"])]
    facts = _facts(_slice(data, header["process_json_offset"], header["process_json_bytes"], "process facts"))
    return Page(header["pid"], STATES[header["state"]], header["start_ticks"], header["start_unix_ns"], header["oom_count"], facts,
                [device for device in devices if device], _unpooled(data, header))


def _unpooled(data: bytes, header: dict) -> list[str]:
    stride = header["unpooled_stride"]
    if header["unpooled_count"] and stride < 8:
        raise BadPage("unpooled names: the slots are too small")
    area = _slice(data, header["unpooled_offset"], stride * header["unpooled_count"], "unpooled names")
    names = []
    for slot in range(header["unpooled_count"]):
        raw = area[slot * stride:(slot + 1) * stride]
        name = _text(raw[4:])
        if struct.unpack_from("<I", raw)[0] == _UNPOOLED_VALID and _NAME.fullmatch(name) and name not in names:
            names.append(name)
    return names


class _DeviceLayout:
    """Where a device's numbers are; checked once against the stride."""

    def __init__(self, data: bytes, header: dict):
        self.counters = _rows(data, header, "counter", 2)
        for row in self.counters:
            if row[1] not in ("gauge", "total"):
                raise BadPage(f"counter names: '{row[1][:60]}' is neither gauge nor total")
        self.names = {table: [row[0] for row in _rows(data, header, name, 1)] for table, name in (
            ("driver_calls", "driver_call"), ("fragmentation", "fragmentation"), ("outside", "outside"), ("shards", "shard"))}
        self.offsets = {table: header[f"{table}_in_device"] for table in ("counters", *self.names)}
        self.shard_stride, self.shard_count = header["shard_stride"], header["shard_count"]
        if self.shard_count > _MAX_SLOTS or (self.shard_count and self.shard_stride < 8 * len(self.names["shards"])):
            raise BadPage("shards: too many, or too small")
        lengths = {table: 8 * len(names) for table, names in self.names.items()}
        lengths["counters"] = sum(16 if kind == "gauge" else 8 for _, kind, *_ in self.counters)
        lengths["shards"] = self.shard_stride * self.shard_count
        for table, offset in self.offsets.items():
            if offset < DEVICE.size or offset + lengths[table] > header["device_stride"]:
                raise BadPage(f"{table} lie outside a device's {header['device_stride']} bytes")

    def _table(self, raw: bytes, table: str) -> dict[str, int]:
        names = self.names[table]
        return dict(zip(names, struct.unpack_from(f"<{len(names)}Q", raw, self.offsets[table])))

    def _add_shard(self, device: Device, raw: bytes, offset: int) -> None:
        """What one thread did since it last told the device."""
        names = self.names["shards"]
        for name, word in zip(names, struct.unpack_from(f"<{len(names)}Q", raw, offset)):
            if word and name in device.gauges:
                current, peak = device.gauges[name]
                current = (current + word) % 2**64
                device.gauges[name] = (0 if current >= 2**63 else current, peak)  # caught in the middle of an update
            elif word and name in device.totals:
                device.totals[name] = (device.totals[name] + word) % 2**64

    def read(self, raw: bytes) -> Device | None:
        in_use, ordinal, uuid, name, policy, backing, total, limit, free, asked_ns = DEVICE.unpack_from(raw)
        if not in_use:
            return None
        device = Device(ordinal, _text(uuid), _text(name), _text(policy), _text(backing), total, limit,
                        free if asked_ns else None, asked_ns)
        offset = self.offsets["counters"]
        for counter, kind, *_ in self.counters:
            if kind == "gauge":
                current, peak = struct.unpack_from("<QQ", raw, offset)
                device.gauges[counter] = current, peak
            else:
                device.totals[counter] = struct.unpack_from("<Q", raw, offset)[0]
            offset += 16 if kind == "gauge" else 8
        for shard in range(self.shard_count):
            self._add_shard(device, raw, self.offsets["shards"] + shard * self.shard_stride)
        device.driver_calls = {symbol: calls for symbol, calls in self._table(raw, "driver_calls").items() if calls}
        device.fragmentation = self._table(raw, "fragmentation")
        device.outside = self._table(raw, "outside")
        return device


def open_page(path: Path) -> int:
    """A descriptor of `path` if it is a regular file of this user's; raises BadPage or OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size <= _MAX_PAGE_BYTES:
        return descriptor
    os.close(descriptor)
    raise BadPage("not a regular file of this user's, or too large")


def page_files(folder: Path) -> list[Path]:
    """Pages in `folder` and in what stands in for it where its name is taken (shim/private_folder.hpp), as far as these are this user's own."""
    found = []
    for own in own_folders(folder):
        with contextlib.suppress(OSError):  # gone meanwhile
            found += [path for path in own.iterdir() if _FILE_NAME.fullmatch(path.name)]
    return sorted(found)


def own_folders(folder: Path) -> list[Path]:
    """`folder` and its stand-ins, those that this user alone may use."""
    def is_own(path: Path) -> bool:
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077

    return [path for path in [folder, *sorted(folder.parent.glob(f"{folder.name}.*"))] if is_own(path)]


def other_owners(shared: Path = Path("/dev/shm")) -> dict[int, int]:
    """Other users, each with a group, whose private folders hold a page of a process that has ended."""
    owners = {}
    for folder in shared.glob("cupool-*"):
        match = _FOLDER_NAME.fullmatch(folder.name)
        with contextlib.suppress(OSError):
            status = os.lstat(folder)
            if not match or not stat.S_ISDIR(status.st_mode) or status.st_uid != int(match[1]) or status.st_uid == os.geteuid():
                continue
            pages = [path.name.split(".") for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
            if not all(is_alive(int(pid), int(ticks)) for pid, ticks in pages):
                owners[status.st_uid] = status.st_gid
    return owners


def no_room(folder: Path) -> str:
    """Why no page can be made beside `folder`, as the library would make one; empty: it can."""
    try:
        descriptor = os.open(folder.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _USUAL_PAGE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{folder.parent}: {error.strerror}"
    return ""


def own_start_ticks() -> int:
    """When this process started, as page files say it: what it started itself did not start before."""
    return int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether the process with this identity still runs; a zombie does not, unless other threads of it do."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if int(fields[19]) != start_ticks:
            return False
        return fields[0] not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (OSError, ValueError, IndexError):
        return False
