"""Completes the reports of processes that died before they could write one, from their live pages.

A page has the counters, not the blocks: histogram, holes, address map, timeline and leaks stay empty, and data_quality says so. The figures are
computed as pool/observe/report_device.cpp and ledger.cpp compute them. How much is free follows from the counters, which are exact; into what pieces
it is divided is what the pool published last. Only one process at a time completes a page (it locks the file), and removes it once the report is
written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, NoReturn

from cupool_lib import live_page, locate
from cupool_lib.live_page import BadPage, Device, Page
from cupool_lib.output_file import write_atomically
from cupool_lib.report_file import SCHEMA_NAME, BadReport, load

_BLOCK_COLUMNS = ["address", "bytes", "requested_bytes", "state", "region", "site", "allocated_unix_ns"]
_TIMELINE_COLUMNS = ["unix_ns", "kind", "address", "bytes", "requested_bytes", "site", "thread", "stream_class"]
_MISSING = "completed by cupool run from the live page: histogram, holes, address map, timeline, sites and leaks are missing"
QUIET = ("off", "error", "err", "critical")
_OTHERS_SECONDS = 10.0
_OOM_REPORTS_MAX = 8  # more are not written, see shim/reporter.cpp


def complete_run(run_id: str, ended: dict[int, int], end_unix_ns: int, folder: Path | None = None) -> list[str]:
    """A report for every dead process of the run that owes one. `ended`: wait status by pid, where known. Returns lines for stderr."""
    lines = []
    for path in live_page.page_files(locate.live_page_folder() if folder is None else folder):
        try:
            line = _complete_page(path, run_id, ended, end_unix_ns)
        except (BadPage, OSError, RecursionError) as error:
            # Only a page of the program itself is this run's business, not one of others that is gone meanwhile or cannot be read. An older process
            # of the same pid may have left one as well, perhaps of another version: its start is before ours.
            pid, start_ticks = map(int, path.name.split("."))
            line = f"live page {path} cannot be used: {error}" if pid in ended and start_ticks >= live_page.own_start_ticks() else ""
        if line:
            lines.append(line)
    return lines


def complete_for_others(run_id: str, ended: dict[int, int], end_unix_ns: int) -> list[str]:
    """complete_run for processes of root's run that have become another user's (gosu, su, setpriv). A child that becomes that user does it: a page is only as
    trustworthy as its owner, who says where its report goes."""
    lines: list[str] = []
    for uid, gid in sorted(live_page.other_owners().items()) if os.geteuid() == 0 else ():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _complete_as(uid, gid, writer, lambda: complete_run(run_id, ended, end_unix_ns))
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            told = _read_within(answer.fileno(), _OTHERS_SECONDS)
        if told is None:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        lines += [] if told is None else told.decode("utf-8", "replace").splitlines()
    return lines


def _complete_as(uid: int, gid: int, writer: int, complete: Callable[[], list[str]]) -> NoReturn:
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.write(writer, "\n".join(complete()).encode("utf-8", "replace")[:select.PIPE_BUF])
    finally:
        os._exit(0)


def _read_within(descriptor: int, seconds: float) -> bytes | None:
    """Up to the end of file; None where that does not come in time."""
    until, data = time.monotonic() + seconds, b""
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(descriptor, select.PIPE_BUF)
        if not piece:
            return data
        data += piece
    return None


def without_page(pid: int, status: int, folder: Path | None = None) -> list[str]:
    """Where there was no room for a page, nobody knows whether a process that was killed owes a report: one line. Before complete_run, which takes pages away."""
    folder = locate.live_page_folder() if folder is None else folder
    if not os.WIFSIGNALED(status) or any(path.name.startswith(f"{pid}.") for path in live_page.page_files(folder)):
        return []
    reason = live_page.no_room(folder)
    return [f"process {pid} {_ending(status)}; if it used device memory, its report is lost: no room for its counters in {reason}"] if reason else []


def _complete_page(path: Path, run_id: str, ended: dict[int, int], end_unix_ns: int) -> str:
    pid, start_ticks = map(int, path.name.split("."))
    if live_page.is_alive(pid, start_ticks):
        return ""
    try:
        descriptor = live_page.open_page(path)
    except FileNotFoundError:  # completed or taken away meanwhile
        return ""
    try:
        page = live_page.parse(os.read(descriptor, os.fstat(descriptor).st_size))
        own_id = page.run_id()
        if (own_id != run_id and not own_id.startswith(run_id + ".")) or (page.pid, page.start_ticks) != (pid, start_ticks):
            return ""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its owner lives in another pid namespace, or somebody else completes it
            return ""
        line, is_done = _complete(page, ended.get(pid), end_unix_ns)
        if is_done:  # else the page stays, as all that is left of the process
            path.unlink(missing_ok=True)
        return line
    finally:
        os.close(descriptor)


def _complete(page: Page, status: int | None, end_unix_ns: int) -> tuple[str, bool]:
    """What to tell the user, and whether the page is needed no more."""
    target = page.facts.get("report_path")
    if page.state == "reported" or not target or not isinstance(target, str) or not any(device.used() for device in page.devices):
        return "", True
    text = json.dumps(build_report(page, status, end_unix_ns), ensure_ascii=False, separators=(",", ":")) + "\n"
    try:
        if target == "stderr":
            sys.stderr.write(text)
            sys.stderr.flush()
            return "", True
        write_atomically(Path(target), text)
        _mark_final(page)
    except (OSError, ValueError) as error:
        if page.state == "exiting" and status is not None and os.WIFEXITED(status):
            return "", False  # the library has told the user already
        return f"no report for process {page.pid}: {target}: {getattr(error, 'strerror', None) or error}", False
    quiet = page.facts.get("options", {}).get("log", {})
    if isinstance(quiet, dict) and quiet.get("value") in QUIET:
        return "", True
    return f"process {page.pid} {_ending(status)}; its report was completed from shared memory: {target}", True


def _ending(status: int | None) -> str:
    if status is None:
        return "died without writing its report"
    if not os.WIFSIGNALED(status):
        return f"ended with {os.WEXITSTATUS(status)} without writing its report"
    number = os.WTERMSIG(status)
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"


def build_report(page: Page, status: int | None, end_unix_ns: int) -> dict:
    """`status` None: nobody knows how the process ended."""
    process: dict[str, Any] = {"pid": page.pid, "command": [], "host": "", "rank": None, "start_unix_ns": page.start_unix_ns, **page.facts.get("process", {})}
    process["duration_ns"] = max(0, end_unix_ns - page.start_unix_ns)
    process["exit"] = {"code": None, "signal": None}
    if status is not None and os.WIFSIGNALED(status):
        process["exit"]["signal"] = os.WTERMSIG(status)
    elif status is not None:
        process["exit"]["code"] = os.WEXITSTATUS(status)
    warnings = [_MISSING]
    ooms = _ooms(page, warnings)
    devices = [_device(device, warnings) for device in page.devices]
    return {"schema": SCHEMA_NAME, "event": "exit", "written_unix_ns": time.time_ns(), "final_of_series": False, "process": process,
            "options": page.facts.get("options", {}), "devices": devices, "ooms": ooms, "leaks": [],
            "data_quality": {"complete": False, "dropped_events": 0, "unpooled_apis_seen": page.unpooled,
                             "cut": ["histogram", "holes", "pinned_by", "sites", "regions", "pages", "blocks", "timeline", "leaks"],
                             "warnings": warnings, "source": "live_page"}}


def _last_oom(page: Page) -> tuple[str, dict]:
    """Where its last OOM report is, and what it says: nothing where it is not this process's, or there is none."""
    number = min(page.oom_count, _OOM_REPORTS_MAX)
    if number == 0 or page.facts["report_path"] == "stderr":
        return "", {}
    stem, extension = os.path.splitext(page.facts["report_path"])
    path = f"{stem}.oom{number}{extension}"
    try:
        report = load(path)
        if report.get("process", {}).get("pid") == page.pid and isinstance(report.get("ooms"), list):
            return path, report
    except (BadReport, AttributeError):
        pass
    return path, {}


def _mark_final(page: Page) -> None:
    """As shim/reporter.cpp at exit: in place, of the same length, so that the file is never half written. One that cannot be marked stays as it is."""
    path, report = _last_oom(page)
    if not report:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = re.search(rb'"final_of_series": ?(false)', os.pread(descriptor, 4096, 0))
        if found:
            os.pwrite(descriptor, b"true ", found.start(1))
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _ooms(page: Page, warnings: list[str]) -> list:
    """The page only counts them; the last report about one has them all."""
    path, report = _last_oom(page)
    if not path or report:
        ooms = report.get("ooms", [])
        for oom in ooms:  # what came after that report nobody has listed
            if isinstance(oom, dict) and oom.get("served_since") is False:
                oom["served_since"] = None
        return ooms
    warnings.append(f"memory ran out {page.oom_count} times, and {path} cannot be read")
    return []


def _ratio(part: int, whole: int) -> float | None:
    return None if whole == 0 else part / whole


def _figures(free: int, largest: int, remapped: int, split: int, live: int, requested: int, utilization: float | None) -> dict:
    return {"external": _ratio(free - min(largest, free), free), "external_remapped": _ratio(free - min(max(largest, remapped), free), free),
            "internal": _ratio(live - min(requested, live), live), "utilization": utilization, "free_bytes": free,
            "largest_free_bytes": min(largest, free), "inactive_split_bytes": min(split, free)}


def _counters(device: Device, warnings: list[str]) -> dict:
    """The device's counters, made to fit together: a process may die between the stores of one update."""
    gauges = {name: {"current": current, "peak": max(current, peak)} for name, (current, peak) in device.gauges.items()}
    counters: dict[str, Any] = {**gauges, **device.totals}
    as_found = json.dumps(counters)
    for least, most in (("requested_bytes", "live_bytes"), ("live_bytes", "reserved_bytes")):
        for moment in ("current", "peak") if least in counters and most in counters else ():
            counters[most][moment] = max(counters[most][moment], counters[least][moment])
    if "live_blocks" in counters and "frees" in counters:
        counters["allocations"] = max(counters.get("allocations", 0), counters["frees"] + counters["live_blocks"]["current"])
    if json.dumps(counters) != as_found:
        warnings.append(f"devices: counters of device {device.ordinal}: some did not fit together and were raised (the process died in the middle of an update)")
    return counters


def _settled(device: Device, gauge: dict, warnings: list[str]) -> dict[str, int]:
    """The published figures with the free bytes that the counters leave: what the pool holds is live, deferred or free."""
    f = dict(device.fragmentation)
    live, deferred, reserved = (gauge[name]["current"] for name in ("live_bytes", "deferred_bytes", "reserved_bytes"))
    free, published = max(0, reserved - live - deferred), f.get("free_bytes", 0)
    if free != published:
        warnings.append(f"devices: fragmentation of device {device.ordinal}: largest_free_bytes and inactive_split_bytes (so external and free_pinned too) are "
                        + (f"approximate: published when {published} bytes were free" if published else "unknown: published when nothing was free"))
    f["free_bytes"] = free
    if live == gauge["live_bytes"]["peak"] != f.get("at_peak_live_bytes", 0):  # it died at its peak, which is published after it
        names = ("free_bytes", "largest_free_bytes", "largest_free_remapped_bytes", "inactive_split_bytes")
        f.update({f"at_peak_{name}": f.get(name, 0) for name in names}, at_peak_live_bytes=live,
                 at_peak_requested_bytes=gauge["requested_bytes"]["current"], at_peak_reserved_bytes=reserved)
    return f


def _device(device: Device, warnings: list[str]) -> dict:
    counters = _counters(device, warnings)
    counters["driver_calls"] = device.driver_calls
    gauge = {name: counters.get(name, {"current": 0, "peak": 0}) for name in
             ("live_bytes", "requested_bytes", "reserved_bytes", "deferred_bytes")}
    f = _settled(device, gauge, warnings)

    def figures(prefix: str, live: int, requested: int, utilization: float | None) -> dict:
        names = ("free_bytes", "largest_free_bytes", "largest_free_remapped_bytes", "inactive_split_bytes")
        free, largest, remapped, split = (f.get(prefix + name, 0) for name in names)
        found = _figures(free, largest, remapped, split, live, requested, utilization)
        # Published before anything was free; or the driver's pool, whose pieces nobody knows.
        if (free and not largest and not device.fragmentation.get("free_bytes")) or device.policy == "async":
            found.update(external=None, external_remapped=None)
        return found

    now = figures("", gauge["live_bytes"]["current"], gauge["requested_bytes"]["current"],
                  _ratio(gauge["live_bytes"]["peak"], gauge["reserved_bytes"]["peak"]))
    at_peak_live = f.get("at_peak_live_bytes", 0)
    at_peak_reserved = max(at_peak_live, f.get("at_peak_reserved_bytes", 0))
    now["at_peak"] = figures("at_peak_", at_peak_live, f.get("at_peak_requested_bytes", 0), _ratio(at_peak_live, at_peak_reserved))
    return {"ordinal": device.ordinal, "uuid": device.uuid, "name": device.name, "total_bytes": device.total_bytes,
            "limit_bytes": device.limit_bytes or None, "policy": device.policy, "backing": device.backing, "driver_free_unix_ns": device.driver_free_unix_ns or None,
            "counters": counters, "fragmentation": now, "ledger": _ledger(device, gauge, now, warnings),
            "outside": device.outside, "histogram": [], "holes_total": {"count": 0, "bytes": 0}, "holes": [], "pinned_by": [], "sites": [],
            "regions": [], "block_columns": _BLOCK_COLUMNS, "blocks": [],
            "timeline": {"dropped": 0, "columns": _TIMELINE_COLUMNS, "events": []}}


def _ledger(device: Device, gauge: dict, now: dict, warnings: list[str]) -> dict[str, int]:
    """As ledger.cpp: what is exact first, each part at most what is left, the rest unattributed, or unknown where nobody asked the driver."""
    left, ledger, cut = device.total_bytes, {}, []

    def take(name: str, wanted: int) -> None:
        nonlocal left
        ledger[name] = min(max(0, wanted), left)
        left -= ledger[name]
        if wanted > ledger[name] and name not in ("outside_managed", "outside_mempools", "outside_graphs"):
            cut.append(name)

    live, deferred, reserved = (gauge[name]["current"] for name in ("live_bytes", "deferred_bytes", "reserved_bytes"))
    requested = min(gauge["requested_bytes"]["current"], live)
    pinned = min(now["inactive_split_bytes"], now["free_bytes"])
    take("live", requested)
    take("rounding", live - requested)
    take("deferred", deferred)
    take("free_releasable", now["free_bytes"] - pinned)
    take("free_pinned", pinned)
    take("metadata", reserved - live - deferred - now["free_bytes"])
    for kind in ("arrays", "program_vmm", "mempools", "graphs"):
        take(f"outside_{kind}", device.outside.get(kind, 0))
    if device.driver_free_bytes is not None:
        take("driver_free", device.driver_free_bytes)
    take("outside_managed", device.outside.get("managed", 0))
    take("unattributed", left if device.driver_free_bytes is not None else 0)
    if device.driver_free_bytes is None:
        take("unknown", left)
    where = f"devices: ledger of device {device.ordinal}: "
    if cut:
        warnings.append(f"{where}{', '.join(cut)} claimed more than was left and were cut (figures of different moments)")
    warnings.append(where + ("other processes and contexts are in unattributed" if device.driver_free_bytes is not None else
                             "the driver was never asked for its free bytes; they are in unknown"))
    return ledger
