"""`cupool trace FILE`: prints a trace, or converts it into what other programs replay."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import secrets
from pathlib import Path
from typing import Callable, Iterator, TextIO, cast

from cupool_lib.output_file import is_replaceable
from cupool_lib.terminal import fail, printable, put
from cupool_lib.trace_file import BadTrace, Event, Trace, moves

_COLUMNS = ("unix_ns", "device", "kind", "address", "requested_bytes", "bytes", "stream", "site", "thread")


def _counts(trace: Trace, device: int) -> dict[str, int]:
    allocations = frees = live = peak = 0
    for move in moves(trace, device):
        allocations, frees = allocations + (not move.is_free), frees + move.is_free
        live += -move.requested_bytes if move.is_free else move.requested_bytes
        peak = max(peak, live)
    return {"events": allocations + frees, "allocs": allocations, "frees": frees, "peak_live": peak, "end_live": live}


def _command(trace: Trace) -> str:
    words = trace.facts.get("process", {}).get("command")
    return " ".join(map(str, words)) if isinstance(words, list) else ""


def write_text(trace: Trace, devices: list[int], out: TextIO) -> None:
    """The format of recorded jobs (tests/bench/traces): one line of metadata, then `a <id> <bytes> <stream>` and `f <id>`."""
    device = devices[0] if devices else 0
    counts = _counts(trace, device)
    process = trace.facts.get("process", {})
    command = _command(trace)
    metadata = {
        "workload": command, "source": "recorded by cupool (CUPOOL_TRACE)", "host": process.get("host"),
        "rank": process.get("rank"), "device": device, "start_unix_ns": trace.start_unix_ns, "units": "bytes (as requested)",
        "dropped_events": trace.dropped, "format": "a <id> <bytes> <stream> | f <id>", **counts}
    out.write("# " + json.dumps(metadata) + "\n")
    for position, move in enumerate(moves(trace, device)):
        if position == counts["events"]:  # the process goes on writing
            break
        out.write(f"f {move.block}\n" if move.is_free else f"a {move.block} {move.requested_bytes} {move.stream}\n")


def write_rmm(trace: Trace, devices: list[int], out: TextIO) -> None:
    """What RMM's logging adaptor writes, and its replay benchmark reads: only these two actions, streams as decimal numbers."""
    out.write("Thread,Time,Action,Pointer,Size,Stream\n")
    for move in moves(trace, devices[0] if devices else 0):
        event = move.event
        action = "free" if move.is_free else "allocate"
        out.write(f"{event.thread},{_time_of_day(trace.unix_ns(event.ticks))},{action},{event.address:#x},{move.requested_bytes},{move.stream}\n")


def _time_of_day(unix_ns: int) -> str:
    """HH:MM:SS.ffffff, UTC."""
    seconds, nanoseconds = divmod(unix_ns, 1_000_000_000)
    minutes, second = divmod(seconds % 86400, 60)
    return "%02d:%02d:%02d.%06d" % (*divmod(minutes, 60), second, nanoseconds // 1000)


def _rows(trace: Trace, devices: list[int]) -> Iterator[tuple]:
    events: Iterator[Event] = trace.events_of(devices[0]) if len(devices) == 1 else trace.events()
    for event in events:
        yield (trace.unix_ns(event.ticks), event.device, event.kind, event.address, event.requested_bytes, event.bytes, event.stream,
               event.site, event.thread)


def write_native(trace: Trace, devices: list[int], out: TextIO) -> None:
    """Every event with all that is known of it, one per line."""
    command = _command(trace)
    out.write(f"# pid {trace.pid}, {trace.state}, {trace.dropped} events dropped, {printable(command)}\n# {' '.join(_COLUMNS)}\n")
    for unix_ns, device, kind, address, *rest in _rows(trace, devices):
        out.write(f"{unix_ns} {device} {kind} {address:#x} " + " ".join("-" if value is None else str(value) for value in rest) + "\n")


def write_json(trace: Trace, devices: list[int], out: TextIO) -> None:
    head = {"schema": "cupool.trace/1", "pid": trace.pid, "state": trace.state, "start_unix_ns": trace.start_unix_ns,
            "dropped_events": trace.dropped, "devices": devices, **trace.facts, "columns": _COLUMNS}
    out.write(json.dumps(head)[:-1] + ', "events": [')
    separator = "\n"
    for row in _rows(trace, devices):
        out.write(separator + json.dumps(row))
        separator = ",\n"
    out.write("\n]}\n")


FORMATS: dict[str, Callable[[Trace, list[int], TextIO], None]] = {"text": write_text, "native": write_native, "rmm": write_rmm, "json": write_json}
_ONE_DEVICE = ("text", "rmm")


class _Stdout(io.TextIOBase):
    def write(self, text: str) -> int:
        put(text, at_once=False)
        return len(text)


def _opened(path: str, name: str, mode: str) -> TextIO:
    return cast(TextIO, gzip.open(path, mode, encoding="utf-8") if name.endswith(".gz") else open(path, mode, encoding="utf-8"))


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    """stdout, or a file that appears under its name when it is whole; compressed when the name says so. What is there and no file (/dev/null, a pipe) is written to."""
    if path is None:
        yield cast(TextIO, _Stdout())
        put("")  # now, not when this process ends
        return
    if not is_replaceable(Path(path)):
        with _opened(path, path, "wt") as out:
            yield out
        return
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with _opened(temporary, path, "xt") as out:
            yield out
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # of the name that was asked for
            raise OSError(error.errno, error.strerror, path) from None
        raise


def run(path: str, form: str, device: int | None, output: str | None) -> int:
    if output is not None and os.path.exists(output) and os.path.samefile(path, output):
        return fail(f"{output}: that is the trace itself", 2)
    try:
        with contextlib.closing(Trace(path)) as trace:
            if device is not None and device not in trace.devices:
                return fail(f"{path}: no events of device {device}: there are those of {', '.join(map(str, trace.devices)) or 'none'}", 1)
            devices = trace.devices if device is None else [device]
            if form in _ONE_DEVICE and len(devices) > 1:
                return fail(f"{path}: events of devices {', '.join(map(str, devices))}: choose one with --device", 1)
            with _output(output) as out:
                FORMATS[form](trace, devices, out)
    except BadTrace as error:
        return fail(str(error), 1)
    except OSError as error:
        return fail(f"{error.filename or output or path}: {error.strerror}", 1)
    return 0
