"""A failed allocation of a report: its evidence against itself, and its cause and shortfall against the evidence.

What each cause says must hold (config/causes.json, holds_when and shortfall), as far as the evidence has the inputs; how one was chosen where inputs
are missing is the library's. Letters as there: R request, T total, F driver free, PF pool free, LF largest free, REL releasable, PEND deferred, U other processes,
N own bytes outside the pool, L limit, H held. Precondition: the report fits the schema.
"""

from __future__ import annotations

from typing import Iterator

CAUSES = ("impossible_request", "limit", "driver_refused", "deferred_free", "external_fragmentation", "other_process", "non_pool_memory", "true_exhaustion")
_UNKNOWN_REQUEST = 2**64 - 1
_BLOCK_BYTES = 512


class _Evidence:
    def __init__(self, evidence: dict):
        self.R = evidence["request_bytes"] or _UNKNOWN_REQUEST
        self.is_beyond_all = not evidence["request_bytes"]  # it cannot be rounded
        self.T, self.F, self.PF = evidence["device_total_bytes"], evidence["driver_free_bytes"], evidence["pool_free_bytes"]
        page = evidence.get("page_bytes") if evidence["can_remap"] else None
        if self.F is not None and page:  # the driver tells its free bytes by finer pieces than a block on pages can have
            self.F -= self.F % page
        self.LF = max(evidence["largest_free_bytes"], evidence.get("largest_free_remapped_bytes", 0))
        self.REL, self.PEND, self.U, self.N = evidence["releasable_bytes"], evidence["deferred_bytes"], evidence["other_process_bytes"], evidence["own_outside_bytes"]
        self.L, self.H = evidence["limit_bytes"], evidence["held_bytes"]
        self.unheld = min(evidence.get("deferred_unheld_bytes", 0), self.PEND)  # of PEND, what the limit does not count
        self.is_managed = evidence.get("managed", False)
        if self.is_managed:  # neither bounds it
            self.T = self.L = None
        self.limit_said_no = evidence.get("refused_by_limit", False)
        self.needs_hole = not evidence["can_remap"] and evidence.get("holes_known", True) and not evidence.get("outside_pool", False) and not evidence.get("deferred_at_driver_bytes", 0)  # else what goes back to the driver does as well

    def cap(self) -> int:
        return min(self.T or _UNKNOWN_REQUEST, self.L or _UNKNOWN_REQUEST)

    def over_limit(self, more: int = 0) -> int:
        """Bytes by which the limit would be exceeded once REL (and so much more) went back; none: it does not block."""
        return max(0, max(0, self.H - self.REL - more) + self.R - self.L) if self.L else 0

    def driver_has(self, more: int) -> bool | None:
        """F + more >= R; None: F is unknown."""
        return None if self.F is None else self.F + more >= self.R

    def exhausted_by(self) -> int:
        pool, held = self.PF + self.PEND, self.PF + self.PEND - self.unheld
        limit = max(0, max(0, self.H - held) + self.R - self.L) if self.L else 0
        return 0 if held >= self.R else max(self.R - (self.F or 0) - pool, limit, 0)


def check(oom: dict, device: dict | None, place: str) -> Iterator[str]:
    """`device`: that of the report, when it is there and complete."""
    yield from _evidence(oom, device, f"{place}/evidence")
    yield from _missing_inputs(oom, f"{place}/missing_inputs")
    yield from _aftermath(oom, device, place)
    e = _Evidence(oom["evidence"])
    for sentence in _cause(oom, e):
        yield f"{place}/cause: {oom['cause']}, though {sentence}"
    least, most = _shortfall(oom["cause"], e)
    if not least <= oom["shortfall_bytes"] <= most:
        yield f"{place}/shortfall_bytes: {oom['shortfall_bytes']}, by the evidence it is {least if least == most else f'{least} to {most}'}"
    rows = oom["counterfactuals"]
    if tuple(row["cause"] for row in rows) != CAUSES:
        yield f"{place}/counterfactuals: are not the eight causes in their order"
    beyond_limit = max(0, e.H - e.L) if e.L else 0  # under `async` the driver may have taken more than was asked for
    if any((row["shortfall_bytes"] or 0) > e.R + beyond_limit for row in rows):
        yield f"{place}/counterfactuals: more is missing than was asked for"
    if any(row["level"] != "info" for row in oom["suggestions"] if row["already_enabled"]):
        yield f"{place}/suggestions: advises what is on already"


def _aftermath(oom: dict, device: dict | None, place: str) -> Iterator[str]:
    if device is None or "allocations_before" not in oom:
        return
    before, now = oom["allocations_before"], device["counters"]["allocations"]
    if before > now:
        yield f"{place}/allocations_before: {before}, and the device counts {now} at the end"
    elif before == now and oom.get("served_since"):
        yield f"{place}/served_since: true, and nothing was allocated since"


def _evidence(oom: dict, device: dict | None, place: str) -> Iterator[str]:
    evidence = oom["evidence"]
    request = evidence["request_bytes"]
    if request and request < oom["requested_bytes"]:
        yield f"{place}: the rounded request is smaller than the request"
    elif request - oom["requested_bytes"] >= _BLOCK_BYTES:
        yield f"{place}/request_bytes: {request} is {oom['requested_bytes']} rounded by {_BLOCK_BYTES} bytes or more"
    pool, remapped = evidence["pool_free_bytes"], evidence.get("largest_free_remapped_bytes", evidence["largest_free_bytes"])
    stranded, pinned = evidence.get("stranded_bytes"), evidence.get("pinned_free_bytes")
    deferred = pool + evidence["deferred_bytes"]
    for is_wrong, sentence in (
            (remapped < evidence["largest_free_bytes"], "largest_free_remapped_bytes is below largest_free_bytes"),
            (max(remapped, evidence["releasable_bytes"], stranded or 0, evidence.get("other_context_free_bytes", 0)) > pool, "a part of what is free is more than pool_free_bytes"),
            (evidence.get("graph_bytes", 0) + evidence.get("mempool_idle_bytes", 0) > evidence["own_outside_bytes"], "graph_bytes and mempool_idle_bytes are more than own_outside_bytes"),
            ((pinned or 0) > (stranded or 0), "pinned_free_bytes is above stranded_bytes"),
            (max(evidence["largest_free_with_deferred_bytes"], evidence["releasable_with_deferred_bytes"] or 0) > deferred, "a part of what is free with "
             "deferred frees is more than pool_free_bytes and deferred_bytes"),
            (evidence.get("graph_bytes", 0) > evidence["own_outside_bytes"], "graph_bytes is above own_outside_bytes, of which it is a part"),
            (0 < evidence.get("graph_bytes", 0) and evidence["graph_bytes"] + (evidence["driver_free_bytes"] or 0) + evidence["held_bytes"] > (evidence["device_total_bytes"] or _UNKNOWN_REQUEST),
             "graph_bytes, driver_free_bytes and held_bytes are more than the device has"),
            (not evidence.get("deferred_unheld_bytes", 0) <= evidence.get("deferred_at_driver_bytes", 0) <= evidence["deferred_bytes"],
             "deferred_unheld_bytes, deferred_at_driver_bytes and deferred_bytes: not each within the next"),
            ((evidence.get("mempool_max_bytes") is None) and (evidence.get("mempool_used_bytes") is not None), "mempool_used_bytes of no maxSize"),
            (device is not None and evidence["device_total_bytes"] not in (0, device["total_bytes"]), "device_total_bytes is not the device's total_bytes"),
            (device is not None and evidence["limit_bytes"] != device["limit_bytes"], "limit_bytes is not the device's")):
        if is_wrong:
            yield f"{place}: {sentence}"


def _missing_inputs(oom: dict, place: str) -> Iterator[str]:
    """Exactly those inputs that may be unknown and are."""
    evidence, missing = oom["evidence"], oom["missing_inputs"]
    wrong = [name for name in missing if evidence.get(name) not in (None, 0)]
    wrong += [name for name in ("driver_free_bytes", "other_process_bytes") if evidence[name] is None and name not in missing]
    if wrong:
        yield f"{place}: {', '.join(wrong)}: known and missing, or unknown and not missing"


def _cause(oom: dict, e: _Evidence) -> Iterator[str]:
    """What speaks against the cause: one before it that holds, or its own condition that does not."""
    cause, is_impossible = oom["cause"], e.R > e.cap() or e.is_beyond_all
    if is_impossible != (cause == "impossible_request"):
        yield f"the request of {e.R} bytes is {'larger' if is_impossible else 'not larger'} than device and limit"
    if cause not in ("impossible_request", "limit") and (e.limit_said_no or e.over_limit()) and e.driver_has(e.REL):
        yield "the limit blocks it, and the driver has the bytes"
    yield from {"limit": _limit, "driver_refused": _driver_refused, "deferred_free": _deferred, "external_fragmentation": _fragmented, "other_process": _others,
                "non_pool_memory": _outside, "true_exhaustion": _exhausted}.get(cause, lambda *_: ())(oom, e)


def _limit(_oom: dict, e: _Evidence) -> Iterator[str]:
    if not e.over_limit() and not (e.L and e.limit_said_no):
        yield "there is no limit" if not e.L else f"{e.H} bytes held, {e.REL} of them releasable, and the request are within the limit of {e.L}"
    elif e.driver_has(e.REL) is False:
        yield "the driver does not have the bytes"


def _driver_refused(oom: dict, e: _Evidence) -> Iterator[str]:
    """With low confidence also when nothing else explains the failure."""
    if oom["confidence"] != "low" and not e.is_managed and (e.limit_said_no or e.over_limit() or e.driver_has(0) is False):
        yield "the driver did not have the bytes, or the limit blocks them"


def _deferred(_oom: dict, e: _Evidence) -> Iterator[str]:
    if not e.PEND or e.LF >= e.R:
        yield "nothing was deferred, or a hole was large enough"


def _fragmented(_oom: dict, e: _Evidence) -> Iterator[str]:
    if e.LF >= e.R:
        yield f"the largest hole has {e.LF} bytes"
    elif e.driver_has(e.PF + e.PEND) is False:
        yield "all that is free does not reach the request"
    elif e.driver_has(e.REL):
        yield "the driver and what could go back to it reach the request"


def _others(_oom: dict, e: _Evidence) -> Iterator[str]:
    if e.over_limit():
        yield "the limit refuses as well"
    if e.driver_has(e.REL) or (e.U is not None and e.driver_has(e.REL + e.U) is False):
        yield "what other processes hold makes no difference"


def _outside(_oom: dict, e: _Evidence) -> Iterator[str]:
    if e.over_limit(e.N):
        yield "the limit refuses as well"
    if e.driver_has(e.REL) or e.driver_has(e.REL + e.N) is False:
        yield "what this process holds outside the pool makes no difference"


def _exhausted(_oom: dict, e: _Evidence) -> Iterator[str]:
    if not e.exhausted_by():
        yield "all that is free reaches the request"


def _shortfall(cause: str, e: _Evidence) -> tuple[int, int]:
    """The least and the most that it may be."""
    beyond_driver = max(0, e.R - (e.F or 0) - e.REL)
    beyond_holes = max(0, e.R - e.LF)
    if cause == "impossible_request":
        return max(0, e.R - e.cap()), max(0, e.R - e.cap())
    if cause == "limit":  # at least: the pool may have to take more than the request at once
        return e.over_limit(), max(e.R, e.over_limit())
    if cause == "driver_refused":
        return 0, 0
    if cause in ("deferred_free", "external_fragmentation"):
        return (beyond_holes if e.needs_hole else min(beyond_holes, beyond_driver)), beyond_holes
    if cause == "true_exhaustion":
        return e.exhausted_by(), e.exhausted_by()
    return beyond_driver, beyond_driver
