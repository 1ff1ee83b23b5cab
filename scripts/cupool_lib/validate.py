"""`cupool validate`: a report against its schema, then against its own arithmetic.

The arithmetic is what every reader relies on: peaks are not below their current values, ratios are those of the
numbers beside them, the ledger is made of the counters and sums to the device, the address map agrees with all that is told from it
(validate_map.py, validate_pages.py), causes with their evidence (validate_oom.py).
"""

from __future__ import annotations

import itertools
import json
from typing import Iterator

from cupool_lib import json_schema, locate, report_file, validate_map, validate_oom, validate_pages
from cupool_lib.terminal import fail, printable, put, several

_SHOWN_MAX = 20
_TOLERANCE = 1e-6
_LIMITED = ("arrays", "program_vmm", "mempools")  # what counts against the limit
_IN_LEDGER = (*_LIMITED, "graphs")  # in the ledger's order, before what is free at the driver


def run(path: str) -> int:
    try:
        report = report_file.load(path)
        schema = json.loads(locate.data_file("report.schema.json").read_text(encoding="utf-8"))
        found = list(itertools.islice(json_schema.problems(report, schema), _SHOWN_MAX + 1))
        if not found:  # the arithmetic needs the shape
            found = list(itertools.islice(arithmetic(report), _SHOWN_MAX + 1))
    except report_file.BadReport as error:
        return fail(str(error), 1)
    except RecursionError:
        return fail(f"{path}: nested too deeply", 1)
    except (locate.NotFound, json_schema.BadSchema, ValueError, OSError) as error:
        return fail(f"validate: {error}", 1)
    for line in found[:_SHOWN_MAX]:
        fail(f"{path}: {line}", 1)
    if len(found) > _SHOWN_MAX:
        fail(f"{path}: and more", 1)
    if not found:
        put(f"{printable(path)}: valid ({report['schema']}, event {report['event']}, {several(len(report['devices']), 'device')})\n")
    return 1 if found else 0


def arithmetic(report: dict) -> Iterator[str]:
    """Each contradiction, as '/json/path: sentence'. Precondition: the report fits the schema."""
    ordinals = [device["ordinal"] for device in report["devices"]]
    if len(set(ordinals)) != len(ordinals):
        yield f"/devices: an ordinal appears twice: {ordinals}"
    is_complete = report["data_quality"]["complete"]
    tables: dict[int, validate_map.Map] = {}
    for index, device in enumerate(report["devices"]):
        place = f"/devices/{index}"
        yield from _counters(device, place)
        yield from _fragmentation(device, place, report["data_quality"]["source"] == "live_page")
        yield from _ledger(device, place)
        if report["data_quality"]["source"] == "process":
            yield from _pieces(device, place)
        if is_complete:
            yield from _reserved(device, place)
            table = tables[device["ordinal"]] = validate_map.Map(device)
            yield from validate_map.check(device, place, table)
        if device.get("pages") is not None:
            yield from validate_pages.check(device, place, tables.get(device["ordinal"]))
    if is_complete:
        yield from validate_map.check_leaks(report, tables)
    yield from _ooms(report, is_complete)
    yield from _about_itself(report)


def _ooms(report: dict, is_complete: bool) -> Iterator[str]:
    devices = {device["ordinal"]: device for device in report["devices"]}
    for index, oom in enumerate(report["ooms"]):
        yield from validate_oom.check(oom, devices.get(oom["device"]) if is_complete else None, f"/ooms/{index}")
        if devices and oom["device"] not in devices and is_complete:
            yield f"/ooms/{index}/device: no device {oom['device']} in the report"


def _about_itself(report: dict) -> Iterator[str]:
    quality = report["data_quality"]
    if report["final_of_series"] and report["event"] != "oom":
        yield f"/final_of_series: true, and the event is {report['event']}"
    if report["event"] == "oom" and not report["ooms"]:
        yield "/ooms: empty, and the event is oom"
    if quality["complete"] and (quality["cut"] or quality["source"] == "live_page"):
        yield "/data_quality/complete: true, though something was cut or is missing"
    dropped = sum(device["timeline"]["dropped"] for device in report["devices"])
    if quality["dropped_events"] < dropped:
        yield f"/data_quality/dropped_events: {quality['dropped_events']}, the devices' timelines sum to {dropped}"


def _counters(device: dict, place: str) -> Iterator[str]:
    counters = device["counters"]
    for name, value in counters.items():
        if isinstance(value, dict) and set(value) == {"current", "peak"} and value["current"] > value["peak"]:
            yield f"{place}/counters/{name}: current {value['current']} is above peak {value['peak']}"
    live, requested = counters["live_bytes"], counters["requested_bytes"]
    for moment in ("current", "peak"):
        if requested[moment] > live[moment]:
            yield f"{place}/counters: requested_bytes {moment} is above live_bytes {moment}"
    if counters["frees"] > counters["allocations"]:
        yield f"{place}/counters: more frees ({counters['frees']}) than allocations ({counters['allocations']})"
    elif counters["live_blocks"]["current"] > counters["allocations"] - counters["frees"] - counters.get("ended_blocks", 0):
        yield f"{place}/counters: live_blocks is above allocations - frees - ended_blocks"


def _close(found: float | None, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return abs(found - wanted) <= _TOLERANCE


def _fragmentation(device: dict, place: str, is_completed: bool) -> Iterator[str]:
    """In a report that was completed from the live page the pieces may be unknown."""
    now, counters = device["fragmentation"], device["counters"]
    for figures, where in ((now, "/fragmentation"), (now["at_peak"], "/fragmentation/at_peak")):
        free, largest = figures["free_bytes"], figures["largest_free_bytes"]
        if largest > free or figures["inactive_split_bytes"] > free:
            yield f"{place}{where}: largest_free_bytes or inactive_split_bytes is above free_bytes"
        elif device["policy"] == "async":
            if figures["external"] is not None or figures["external_remapped"] is not None:
                yield f"{place}{where}/external: {figures['external']}, and nobody knows the pieces of the driver's pool"
        elif not _close(figures["external"], 1 - largest / free if free else None) and not (is_completed and not largest and figures["external"] is None):
            yield f"{place}{where}/external: {figures['external']} is not 1 - {largest}/{free}"
        if figures["external"] is not None and figures["external_remapped"] is not None:
            if figures["external_remapped"] > figures["external"] + _TOLERANCE:
                yield f"{place}{where}: external_remapped is above external"
    peak_live, peak_reserved = counters["live_bytes"]["peak"], counters["reserved_bytes"]["peak"]
    if not _close(now["utilization"], peak_live / peak_reserved if peak_reserved else None):
        yield f"{place}/fragmentation/utilization: {now['utilization']} is not peak live {peak_live} / peak reserved {peak_reserved}"
    live, requested = counters["live_bytes"]["current"], counters["requested_bytes"]["current"]
    if not _close(now["internal"], (live - requested) / live if live else None):
        yield f"{place}/fragmentation/internal: {now['internal']} is not ({live} - {requested})/{live}"


def _pieces(device: dict, place: str) -> Iterator[str]:
    """Remapping gathers what lies beside nothing at most, and nothing where there are no pages."""
    figures = device["fragmentation"]
    free, gathered = figures["free_bytes"], max(figures["largest_free_bytes"], figures["free_bytes"] - figures["inactive_split_bytes"])
    if device.get("pages") is None:
        gathered = figures["largest_free_bytes"]
    if figures["external_remapped"] is not None and free and figures["external_remapped"] < 1 - gathered / free - _TOLERANCE:
        yield f"{place}/fragmentation/external_remapped: {figures['external_remapped']}, at most {gathered} of {free} free bytes can be gathered"


def _reserved(device: dict, place: str) -> Iterator[str]:
    """What the pool holds is live, deferred, free, or the ledger's metadata."""
    counters, free = device["counters"], device["fragmentation"]["free_bytes"]
    live, deferred, reserved = (counters[name]["current"] for name in ("live_bytes", "deferred_bytes", "reserved_bytes"))
    if live + deferred + free > reserved:
        yield f"{place}/counters/reserved_bytes: {reserved}, live {live} + deferred {deferred} + free {free} are more"
    if device["fragmentation"]["at_peak"]["free_bytes"] > counters["reserved_bytes"]["peak"]:
        yield f"{place}/fragmentation/at_peak/free_bytes: above the peak of reserved_bytes"
    if "mapped_bytes" in counters and counters["mapped_bytes"]["current"] > reserved:
        yield f"{place}/counters/mapped_bytes: {counters['mapped_bytes']['current']} is above reserved_bytes {reserved}"
    outside = sum(device["outside"].get(kind, 0) for kind in _LIMITED)
    if "outside_bytes" in counters and counters["outside_bytes"]["current"] != outside:
        yield f"{place}/counters/outside_bytes: {counters['outside_bytes']['current']}, {', '.join(_LIMITED)} sum to {outside}"


def _ledger(device: dict, place: str) -> Iterator[str]:
    """As pool/observe/ledger.cpp hands the device's bytes out: what is exact in order, each part at most what is left, and the rest."""
    ledger, counters, figures, outside = device["ledger"], device["counters"], device["fragmentation"], device["outside"]
    total, left = sum(ledger.values()), device["total_bytes"]
    if total != device["total_bytes"]:
        yield f"{place}/ledger: the parts sum to {total}, total_bytes is {device['total_bytes']}"
    live, deferred, reserved = (counters[name]["current"] for name in ("live_bytes", "deferred_bytes", "reserved_bytes"))
    requested, free = min(counters["requested_bytes"]["current"], live), figures["free_bytes"]
    pinned = min(figures["inactive_split_bytes"], free)
    wanted = {"live": requested, "rounding": live - requested, "deferred": deferred, "free_releasable": free - pinned, "free_pinned": pinned,
              "metadata": max(0, reserved - live - deferred - free), **{f"outside_{kind}": outside.get(kind, 0) for kind in _IN_LEDGER}}
    for name, amount in wanted.items():
        if ledger.get(name, 0) != min(amount, left):
            yield f"{place}/ledger/{name}: {ledger.get(name, 0)}, by the counters it is {min(amount, left)}"
        left -= min(amount, left)
    managed = min(outside.get("managed", 0), max(0, left - ledger.get("driver_free", 0)))
    if ledger["outside_managed"] != managed:
        yield f"{place}/ledger/outside_managed: {ledger['outside_managed']}, by what is outside it is {managed}"
