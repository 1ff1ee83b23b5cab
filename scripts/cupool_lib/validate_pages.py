"""The physical handles of a report (backing pages): tiers against handles, handles against the address map.

Each tier is the sum of its handles; together they are what is mapped, and every free byte lies in one of them.
"""

from __future__ import annotations

from typing import Iterator

from cupool_lib.validate_map import Map

_AWAY = ("moving", "lost")  # on the way when the report was written, or unknown: what is free there is no row's


def check(device: dict, place: str, table: Map | None) -> Iterator[str]:
    """`table` None: the map is not whole, nor are the handles."""
    yield from _tiers(device, place)
    if table is None:
        return
    page_bytes = device["pages"]["page_bytes"]
    sums = {tier["handle_bytes"]: {"mapped_bytes": 0, "empty_bytes": 0, "pinned_bytes": 0, "stranded_bytes": 0} for tier in device["pages"]["tiers"]}
    for index, (address, size, free_bytes, state) in enumerate(device["pages"]["handles"]):
        if size not in sums or free_bytes > size or (state == "empty" and free_bytes != size):
            yield f"{place}/pages/handles/{index}: {state}, {free_bytes} free of {size} bytes at {address}, is of no tier or contradicts itself"
            return
        if address % (page_bytes or 1):
            yield f"{place}/pages/handles/{index}: its address {address} is no multiple of page_bytes"
            return
        tier = sums[size]
        tier["mapped_bytes"] += size
        tier["empty_bytes"] += size if state == "empty" else 0
        tier["pinned_bytes"] += size if state == "pinned" else 0
        tier["stranded_bytes"] += free_bytes if state != "empty" else 0
    for index, tier in enumerate(device["pages"]["tiers"]):
        for name, found in sums[tier["handle_bytes"]].items():
            if found != tier[name]:
                yield f"{place}/pages/tiers/{index}/{name}: {tier[name]}, its handles sum to {found}"
    yield from _against_rows(device, place, table)


def _against_rows(device: dict, place: str, table: Map) -> Iterator[str]:
    """Handles and free rows in the order of their addresses, one walk over both."""
    holes = sorted((address, address + size) for address, size, _ in table.free)
    at = 0
    for address, size, free_bytes, state in sorted(device["pages"]["handles"]):
        while at < len(holes) and holes[at][1] <= address:
            at += 1
        found, hole = 0, at
        while hole < len(holes) and holes[hole][0] < address + size:
            found += min(holes[hole][1], address + size) - max(holes[hole][0], address)
            hole += 1
        at = max(at, hole - 1)
        if found != free_bytes and state not in _AWAY:
            yield f"{place}/pages/handles: {free_bytes} bytes are free in that at {address}, {found} by the map"
            return


def _tiers(device: dict, place: str) -> Iterator[str]:
    pages, counters = device["pages"], device["counters"]
    for index, tier in enumerate(pages["tiers"]):
        where = f"{place}/pages/tiers/{index}"
        if tier["handles"] * tier["handle_bytes"] != tier["mapped_bytes"] + tier["unmapped_bytes"]:
            yield f"{where}: {tier['handles']} handles of {tier['handle_bytes']} are not mapped_bytes + unmapped_bytes"
        if tier["empty_bytes"] + tier["pinned_bytes"] > tier["mapped_bytes"] or tier["empty_bytes"] + tier["stranded_bytes"] > tier["mapped_bytes"]:
            yield f"{where}: more is empty, pinned or stranded than is mapped"
        if tier["handle_bytes"] % pages["page_bytes"] if pages["page_bytes"] else True:
            yield f"{where}/handle_bytes: {tier['handle_bytes']} is no multiple of page_bytes"
    sizes = [tier["handle_bytes"] for tier in pages["tiers"]]
    if sizes != sorted(set(sizes)):
        yield f"{place}/pages/tiers: are not each size once, smallest first"
    total = sum(tier["mapped_bytes"] for tier in pages["tiers"])
    if "mapped_bytes" in counters and total != counters["mapped_bytes"]["current"]:
        yield f"{place}/pages/tiers: mapped_bytes sum to {total}, the counter mapped_bytes is {counters['mapped_bytes']['current']}"
    quarantined = sum(row["quarantined_bytes"] for row in pages["reservations"])
    if "quarantined_bytes" in counters and quarantined != counters["quarantined_bytes"]["current"]:
        yield f"{place}/pages/reservations: quarantined_bytes sum to {quarantined}, the counter is {counters['quarantined_bytes']['current']}"
    for index, row in enumerate(pages["reservations"]):
        if row["vacant_bytes"] + row["quarantined_bytes"] > row["bytes"]:
            yield f"{place}/pages/reservations/{index}: more is vacant or quarantined than is reserved"
    figures, movable = device["fragmentation"], sum(tier["unmapped_bytes"] + tier["empty_bytes"] for tier in pages["tiers"])
    free = movable + sum(tier["stranded_bytes"] for tier in pages["tiers"])
    if free > figures["free_bytes"]:
        yield f"{place}/pages/tiers: {free} bytes are free in them, fragmentation/free_bytes is {figures['free_bytes']}"
    elif movable + figures["inactive_split_bytes"] > figures["free_bytes"]:
        yield f"{place}/pages/tiers: {movable} bytes hold nothing, by fragmentation at most {figures['free_bytes'] - figures['inactive_split_bytes']}"
