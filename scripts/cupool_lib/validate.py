"""`cupool validate`: a report against its schema, then against its own arithmetic.

The arithmetic is what every reader relies on: peaks are not below their current values, ratios are those of the
numbers beside them, the ledger sums to the device, the address map agrees with the counters.
"""

from __future__ import annotations

import itertools
import json
from typing import Iterator

from cupool_lib import json_schema, locate, report_file
from cupool_lib.terminal import fail, printable, put

_SHOWN_MAX = 20
_TOLERANCE = 1e-6


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
        put(f"{printable(path)}: valid ({report['schema']}, event {report['event']}, {len(report['devices'])} devices)\n")
    return 1 if found else 0


def arithmetic(report: dict) -> Iterator[str]:
    """Each contradiction, as '/json/path: sentence'. Precondition: the report fits the schema."""
    ordinals = [device["ordinal"] for device in report["devices"]]
    if len(set(ordinals)) != len(ordinals):
        yield f"/devices: an ordinal appears twice: {ordinals}"
    for index, device in enumerate(report["devices"]):
        place = f"/devices/{index}"
        yield from _counters(device, place)
        yield from _fragmentation(device, place)
        yield from _ledger(device, place)
        if report["data_quality"]["complete"]:
            yield from _address_map(device, place)
        if device.get("pages") is not None:
            yield from _pages(device, place, report["data_quality"]["complete"])
    for index, oom in enumerate(report["ooms"]):
        if oom["evidence"]["request_bytes"] and oom["evidence"]["request_bytes"] < oom["requested_bytes"]:
            yield f"/ooms/{index}: the rounded request is smaller than the request"
        if report["devices"] and oom["device"] not in ordinals and report["data_quality"]["complete"]:
            yield f"/ooms/{index}/device: no device {oom['device']} in the report"


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
    elif counters["live_blocks"]["current"] > counters["allocations"] - counters["frees"]:
        yield f"{place}/counters: live_blocks is above allocations - frees"


def _close(found: float | None, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return abs(found - wanted) <= _TOLERANCE


def _fragmentation(device: dict, place: str) -> Iterator[str]:
    now, counters = device["fragmentation"], device["counters"]
    for figures, where in ((now, "/fragmentation"), (now["at_peak"], "/fragmentation/at_peak")):
        free, largest = figures["free_bytes"], figures["largest_free_bytes"]
        if largest > free or figures["inactive_split_bytes"] > free:
            yield f"{place}{where}: largest_free_bytes or inactive_split_bytes is above free_bytes"
        elif not _close(figures["external"], 1 - largest / free if free else None):
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


def _ledger(device: dict, place: str) -> Iterator[str]:
    total = sum(device["ledger"].values())
    if total != device["total_bytes"]:
        yield f"{place}/ledger: the parts sum to {total}, total_bytes is {device['total_bytes']}"


def _address_map(device: dict, place: str) -> Iterator[str]:
    if not device["blocks"]:
        return
    sums = {"live": 0, "deferred": 0, "free": 0}
    live_blocks, requested_bytes = 0, 0
    previous_region, end = None, 0
    for index, (address, size, requested, state, region, _site, _time) in enumerate(device["blocks"]):
        if state not in sums:
            yield f"{place}/blocks/{index}: the state is {state!r}"
            return
        sums[state] += size
        if state == "live":
            live_blocks, requested_bytes = live_blocks + 1, requested_bytes + requested
        if region == previous_region and address != end:
            yield f"{place}/blocks/{index}: begins at {address}, the row before ends at {end}"
            return
        previous_region, end = region, address + size
    told = (("live rows sum to", sums["live"], "live_bytes"), ("deferred rows sum to", sums["deferred"], "deferred_bytes"),
            ("live rows are", live_blocks, "live_blocks"), ("live rows were asked as", requested_bytes, "requested_bytes"))
    for what, found, counter in told:
        if found != device["counters"][counter]["current"]:
            yield f"{place}/blocks: {what} {found}, {counter} is {device['counters'][counter]['current']}"
    for name, found in (("blocks", live_blocks), ("bytes", sums["live"]), ("requested_bytes", requested_bytes)):
        total = sum(row[name] for row in device["histogram"])
        if total != found:
            yield f"{place}/histogram: {name} sum to {total}, those of the live rows to {found}"
    # Under `async` free bytes are the driver's pool's too, whose holes have no addresses; nor have handles that are mapped nowhere.
    unmapped = sum(tier["unmapped_bytes"] for tier in (device.get("pages") or {"tiers": ()})["tiers"])
    nowhere = device["fragmentation"]["free_bytes"] - sums["free"] - unmapped
    if nowhere < 0 or (nowhere > 0 and device["policy"] != "async"):
        yield (f"{place}/blocks: free rows sum to {sums['free']}, and {unmapped} are mapped nowhere, "
               f"fragmentation/free_bytes is {device['fragmentation']['free_bytes']}")


def _pages(device: dict, place: str, complete: bool) -> Iterator[str]:
    """Each tier is the sum of its handles; together they are what is mapped, and every free byte lies in one of them."""
    pages, counters = device["pages"], device["counters"]
    mapped = {tier["handle_bytes"]: 0 for tier in pages["tiers"]}
    for index, tier in enumerate(pages["tiers"]):
        where = f"{place}/pages/tiers/{index}"
        if tier["handles"] * tier["handle_bytes"] != tier["mapped_bytes"] + tier["unmapped_bytes"]:
            yield f"{where}: {tier['handles']} handles of {tier['handle_bytes']} are not mapped_bytes + unmapped_bytes"
        if tier["empty_bytes"] + tier["pinned_bytes"] > tier["mapped_bytes"] or tier["empty_bytes"] + tier["stranded_bytes"] > tier["mapped_bytes"]:
            yield f"{where}: more is empty, pinned or stranded than is mapped"
        if tier["handle_bytes"] % pages["page_bytes"] if pages["page_bytes"] else True:
            yield f"{where}/handle_bytes: {tier['handle_bytes']} is no multiple of page_bytes"
    total = sum(tier["mapped_bytes"] for tier in pages["tiers"])
    if "mapped_bytes" in counters and total != counters["mapped_bytes"]["current"]:
        yield f"{place}/pages/tiers: mapped_bytes sum to {total}, the counter mapped_bytes is {counters['mapped_bytes']['current']}"
    quarantined = sum(row["quarantined_bytes"] for row in pages["reservations"])
    if "quarantined_bytes" in counters and quarantined != counters["quarantined_bytes"]["current"]:
        yield f"{place}/pages/reservations: quarantined_bytes sum to {quarantined}, the counter is {counters['quarantined_bytes']['current']}"
    free = sum(tier["unmapped_bytes"] + tier["empty_bytes"] + tier["stranded_bytes"] for tier in pages["tiers"])
    if free > device["fragmentation"]["free_bytes"]:
        yield f"{place}/pages/tiers: {free} bytes are free in them, fragmentation/free_bytes is {device['fragmentation']['free_bytes']}"
    if not complete:
        return
    for index, (address, size, free_bytes, state) in enumerate(pages["handles"]):
        if size not in mapped or free_bytes > size or (state == "empty" and free_bytes != size):
            yield f"{place}/pages/handles/{index}: {state}, {free_bytes} free of {size} bytes at {address}, is of no tier or contradicts itself"
            return
        mapped[size] += size
    for index, tier in enumerate(pages["tiers"]):
        if mapped[tier["handle_bytes"]] != tier["mapped_bytes"]:
            yield f"{place}/pages/tiers/{index}/mapped_bytes: {tier['mapped_bytes']}, its handles sum to {mapped[tier['handle_bytes']]}"
