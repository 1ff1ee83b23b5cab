"""The address map of a report, and all that is told from it again: counters, histogram, holes, regions, pins, leaks, sites, pages.

A report may have millions of rows: they are looked at column by column. Precondition everywhere: the report fits the schema, and the map is whole.
The definitions are those of pool/observe/address_map.hpp and of REPORT's metrics.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from typing import Iterator

_HOLES_LISTED = 64  # kReportedHoles


class Map:
    """One device's rows, as columns, and what lives in them by call site and size."""

    def __init__(self, device: dict):
        rows = device["blocks"]
        self.address, self.bytes, self.requested, self.state, self.region, self.site, self.time = (list(map(operator.itemgetter(column), rows)) for column in range(7))
        self.is_free = [state == "free" for state in self.state]
        self.free = list(itertools.compress(zip(self.address, self.bytes, self.region), self.is_free))
        self.free_bytes = sum(size for _, size, _ in self.free)
        self.deferred_bytes = sum(itertools.compress(self.bytes, [state == "deferred" for state in self.state]))
        self.groups = self._groups()  # (site, power of two): [blocks, bytes, requested bytes, first time]

    def _groups(self) -> dict[tuple[int, int], list[int]]:
        groups: dict[tuple[int, int], list[int]] = {}
        for state, size, requested, site, time in zip(self.state, self.bytes, self.requested, self.site, self.time):
            if state != "live":
                continue
            key = site, size.bit_length()
            group = groups.get(key)
            if group is None:
                groups[key] = [1, size, requested, time]
                continue
            group[0] += 1
            group[1] += size
            group[2] += requested
            if time and (time < group[3] or not group[3]):
                group[3] = time
        return {(site, 1 << max(length - 1, 0)): group for (site, length), group in groups.items()}

    def live(self, column: int) -> int:
        """The sum of a column of the groups."""
        return sum(group[column] for group in self.groups.values())

    def largest_hole(self) -> int:
        """Neighbours count as one: the pool may keep them apart for streams."""
        largest = run = end = 0
        last_region = None
        for address, size, region in self.free:
            run = run + size if (region, address) == (last_region, end) else size
            largest, last_region, end = max(largest, run), region, address + size
        return largest


def check(device: dict, place: str, table: Map) -> Iterator[str]:
    yield from _rows(table, f"{place}/blocks")
    yield from _counters(device, place, table)
    yield from _free(device, place, table)
    yield from _histogram(device, f"{place}/histogram", table)
    yield from _holes(device, place, table)
    yield from _regions(device, place, table)
    yield from _sites(device, f"{place}/sites", table)
    yield from _pins(device, f"{place}/pinned_by", table)


def _rows(table: Map, place: str) -> Iterator[str]:
    if any(map(operator.gt, table.requested, table.bytes)) or any(itertools.compress(table.requested, table.is_free)):
        yield f"{place}: a row was asked for as more than it has"
    ends = map(operator.add, table.address, table.bytes)
    pairs = zip(table.region, table.region[1:], ends, table.address[1:])
    gap = next(((index, end, address) for index, (before, region, end, address) in enumerate(pairs, 1) if before == region and end != address), None)
    if gap:
        yield f"{place}/{gap[0]}: begins at {gap[2]}, the row before ends at {gap[1]}"


def _counters(device: dict, place: str, table: Map) -> Iterator[str]:
    told = (("live rows sum to", table.live(1), "live_bytes"), ("deferred rows sum to", table.deferred_bytes, "deferred_bytes"),
            ("live rows are", table.live(0), "live_blocks"), ("live rows were asked as", table.live(2), "requested_bytes"))
    for what, found, counter in told:
        if found != device["counters"][counter]["current"]:
            yield f"{place}/blocks: {what} {found}, {counter} is {device['counters'][counter]['current']}"


def _free(device: dict, place: str, table: Map) -> Iterator[str]:
    """Under `async` free bytes are the driver's pool's too, whose holes have no addresses; nor have handles that are mapped nowhere."""
    figures = device["fragmentation"]
    unmapped = sum(tier["unmapped_bytes"] for tier in (device.get("pages") or {"tiers": ()})["tiers"])
    nowhere = figures["free_bytes"] - table.free_bytes - unmapped
    if nowhere < 0 or (nowhere > 0 and device["policy"] != "async"):
        yield (f"{place}/blocks: free rows sum to {table.free_bytes}, and {unmapped} are mapped nowhere, "
               f"fragmentation/free_bytes is {figures['free_bytes']}")
    if device["policy"] != "async" and figures["largest_free_bytes"] > table.largest_hole():
        yield f"{place}/fragmentation/largest_free_bytes: {figures['largest_free_bytes']}, the largest hole of the map has {table.largest_hole()}"
    if not device.get("pages"):
        used = set(itertools.compress(table.region, map(operator.not_, table.is_free)))
        split = sum(size for _, size, region in table.free if region in used)
        if figures["inactive_split_bytes"] < split:
            yield f"{place}/fragmentation/inactive_split_bytes: {figures['inactive_split_bytes']}, {split} are free in regions that hold something"


def _histogram(device: dict, place: str, table: Map) -> Iterator[str]:
    bins: dict[int, list[int]] = {}
    for (_site, size_class), group in table.groups.items():
        bins[size_class] = list(map(operator.add, bins.get(size_class, (0, 0, 0)), group))
    for name, column in (("blocks", 0), ("bytes", 1), ("requested_bytes", 2)):
        told = {row["min_bytes"]: row[name] for row in device["histogram"]}
        found = {size_class: sums[column] for size_class, sums in bins.items()}
        if sum(told.values()) != sum(found.values()):
            yield f"{place}: {name} sum to {sum(told.values())}, those of the live rows to {sum(found.values())}"
        elif told != found:
            size_class = next(iter(dict(told.items() ^ found.items())))
            yield f"{place}: {name} from {size_class} bytes on are {told.get(size_class, 0)}, those of the live rows {found.get(size_class, 0)}"


def _holes(device: dict, place: str, table: Map) -> Iterator[str]:
    total = device["holes_total"]
    if (total["count"], total["bytes"]) != (len(table.free), table.free_bytes):
        yield f"{place}/holes_total: {total['count']} of {total['bytes']} bytes, the map has {len(table.free)} free rows of {table.free_bytes}"
    wanted = heapq.nsmallest(_HOLES_LISTED, ((-size, address, region) for address, size, region in table.free))
    told = [(-hole["bytes"], hole["address"], hole["region"]) for hole in device["holes"]]
    if told != wanted:
        yield f"{place}/holes: are not the {len(wanted)} largest free rows of the map, largest first"


def _regions(device: dict, place: str, table: Map) -> Iterator[str]:
    """The rows of a region fill it."""
    found: dict[int, list[int]] = {}
    for region, rows in itertools.groupby(zip(table.region, table.address, table.bytes), operator.itemgetter(0)):
        sizes = list(rows)
        if region in found or region >= len(device["regions"]):
            yield f"{place}/blocks: region {region} is in pieces, or not in regions"
            return
        found[region] = [sizes[0][1], sum(size for _, _, size in sizes)]
    for index, region in enumerate(device["regions"]):
        if found.get(index, [region["address"], 0]) != [region["address"], region["bytes"]]:
            yield f"{place}/regions/{index}: {region['bytes']} bytes at {region['address']}, its rows are {found.get(index, [0, 0])[1]} at {found.get(index, [0])[0]}"
            return


def _sites(device: dict, place: str, table: Map) -> Iterator[str]:
    found: dict[int, list[int]] = {}
    for (site, _), group in table.groups.items():
        if site:
            found[site] = list(map(operator.add, found.get(site, (0, 0, 0)), group))
    told = {row["site"]: [row["blocks"], row["bytes"], row["requested_bytes"]] for row in device["sites"]}
    if told != found:
        yield f"{place}: are not the sums of the live rows by site"


def _pins(device: dict, place: str, table: Map) -> Iterator[str]:
    wanted = {pin["address"] for pin in device["pinned_by"]}
    index_of = {table.address[index]: index for index in range(len(table.address)) if table.address[index] in wanted and not table.is_free[index]} if wanted else {}
    for number, pin in enumerate(device["pinned_by"]):
        where = f"{place}/{number}"
        begin = index_of.get(pin["address"])
        used = itertools.islice((index for index in range(begin or 0, len(table.address)) if not table.is_free[index]), pin["blocks"])
        run = [] if begin is None else list(used)
        deferred = sum(table.bytes[index] for index in run if table.state[index] == "deferred")
        if not run or (sum(table.bytes[index] for index in run), deferred) != (pin["bytes"], pin["deferred_bytes"]):
            yield f"{where}: {pin['blocks']} blocks from {pin['address']} on are not {pin['bytes']} bytes in the map, {pin['deferred_bytes']} of them deferred"
        elif pin["pinned_free_bytes"] > device["fragmentation"]["free_bytes"]:
            yield f"{where}/pinned_free_bytes: {pin['pinned_free_bytes']}, fragmentation/free_bytes is {device['fragmentation']['free_bytes']}"
        elif not pin.get("handles") and pin["pinned_free_bytes"] != _free_beside(table, run, pin["holds_region"]):
            yield f"{where}/pinned_free_bytes: {pin['pinned_free_bytes']}, {_free_beside(table, run, pin['holds_region'])} are free beside it"


def _free_beside(table: Map, run: list[int], holds_region: bool) -> int:
    region = table.region[run[0]]
    if holds_region:
        return sum(size for _, size, its_region in table.free if its_region == region)
    beside = [index for index in (run[0] - 1, run[-1] + 1) if 0 <= index < len(table.region)]
    return sum(table.bytes[index] for index in beside if table.is_free[index] and table.region[index] == region)


def check_leaks(report: dict, tables: dict[int, Map]) -> Iterator[str]:
    """`tables`: by ordinal. Groups are by site, where that is known, else by size; most bytes first for each device."""
    for ordinal, table in tables.items():
        told = [leak for leak in report["leaks"] if leak["device"] == ordinal]
        found: dict[tuple, list[int]] = {}
        for (site, size_class), (blocks, size, requested, first) in table.groups.items():
            key = (site, None) if site else (None, size_class)
            before = found.get(key, [0, 0, 0, 0])
            found[key] = [before[0] + blocks, before[1] + size, before[2] + requested, min(filter(None, (before[3], first)), default=0)]
        is_cut = any(f"groups of device {ordinal} are listed" in warning for warning in report["data_quality"]["warnings"])
        if len(told) != len(found) and not is_cut:
            yield f"/leaks: {len(told)} groups of device {ordinal}, its live rows make {len(found)}"
        for leak in told:
            wanted = found.get((leak["site"], leak["size_class_bytes"]))
            if wanted != [leak["blocks"], leak["bytes"], leak["requested_bytes"], leak["first_allocated_unix_ns"] or 0]:
                yield f"/leaks: of device {ordinal}, site {leak['site']}, size class {leak['size_class_bytes']}: {leak['blocks']} blocks of {leak['bytes']} bytes, the live rows are {wanted}"
            yield from _leak_sizes(leak, f"/leaks: of device {ordinal}, site {leak['site']}, size class {leak['size_class_bytes']}")
        if any(map(operator.lt, (leak["bytes"] for leak in told), (leak["bytes"] for leak in told[1:]))):
            yield f"/leaks: those of device {ordinal} are not most bytes first"


def _leak_sizes(leak: dict, place: str) -> Iterator[str]:
    smallest, largest, common = (leak.get(f"{name}_requested_bytes") for name in ("smallest", "largest", "common"))
    blocks = leak["blocks"]
    if smallest is None or largest is None:
        return
    if not smallest * blocks <= leak["requested_bytes"] <= largest * blocks:
        yield f"{place}: {blocks} blocks of {smallest} to {largest} bytes, which asked for {leak['requested_bytes']} together"
    if common is not None and not (smallest <= common <= largest and blocks < 2 * leak.get("common_blocks", 0) <= 2 * blocks):
        yield f"{place}: {common} bytes are no size of more than half of the blocks"
