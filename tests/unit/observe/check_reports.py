#!/usr/bin/env python3
"""Judges reports of many kinds, independently of the library: by the schema, and by doing the arithmetic again.

usage: check_reports.py MAKE_REPORTS CONFIG_FOLDER
Needs python's jsonschema (Debian: python3-jsonschema). Without it this fails: a schema that nobody checks is no schema.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import jsonschema
except ImportError:
    # The system's python may have the package that this one lacks.
    if sys.executable != "/usr/bin/python3" and not os.environ.get("CUPOOL_CHECK_AGAIN"):
        os.environ["CUPOOL_CHECK_AGAIN"] = "1"
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    sys.exit("check_reports: python's jsonschema is missing: apt-get install python3-jsonschema")

failures = []


def expect(truth, what):
    if not truth:
        failures.append(what)


def ratio(numerator, denominator):
    return None if denominator == 0 else min(numerator / denominator, 1.0)


def close(found, wanted):
    return found is wanted if wanted is None or found is None else abs(found - wanted) <= 1e-9


def unique(pairs):
    keys = [key for key, _ in pairs]
    expect(len(keys) == len(set(keys)), f"a key appears twice: {keys}")
    return dict(pairs)


def check_figures(where, f, live, requested):
    free, largest = f["free_bytes"], f["largest_free_bytes"]
    expect(close(f["external"], ratio(free - min(largest, free), free)), f"{where}: external {f['external']}")
    expect(f["external"] is None or f["external_remapped"] <= f["external"], f"{where}: remapping made it worse")
    expect((f["external"] is None) == (free == 0) == (f["external_remapped"] is None), f"{where}: external is null exactly when nothing is free")
    if live is not None:
        expect(close(f["internal"], ratio(live - min(requested, live), live)), f"{where}: internal {f['internal']}")


def check_arrays(where, device):
    columns = device["block_columns"]
    rows = [dict(zip(columns, row)) for row in device["blocks"]]
    for row in rows:
        expect(row["state"] in ("live", "deferred", "free"), f"{where}: state {row['state']}")
        expect(all(isinstance(row[name], int) for name in columns if name != "state"), f"{where}: a column has the wrong type: {row}")
        expect(row["requested_bytes"] <= row["bytes"], f"{where}: asked for more than the block has")
    for index, region in enumerate(device["regions"]):
        address = region["address"]
        for row in (row for row in rows if row["region"] == index):
            expect(row["address"] == address, f"{where}: the rows of region {index} have a gap")
            address += row["bytes"]
        expect(address == region["address"] + region["bytes"], f"{where}: the rows do not fill region {index}")
    live = [row for row in rows if row["state"] == "live"]
    free = [row for row in rows if row["state"] == "free"]
    counters = device["counters"]
    expect(sum(row["bytes"] for row in live) == counters["live_bytes"]["current"], f"{where}: live rows and counter differ")
    expect(len(live) == counters["live_blocks"]["current"], f"{where}: number of live rows and counter differ")
    expect(sum(row["requested_bytes"] for row in live) == counters["requested_bytes"]["current"], f"{where}: requested rows and counter differ")
    unmapped = sum(tier["unmapped_bytes"] for tier in device["pages"]["tiers"]) if device["pages"] else 0
    expect(sum(row["bytes"] for row in free) + unmapped == device["fragmentation"]["free_bytes"], f"{where}: free rows and free_bytes differ")
    expect(max((row["bytes"] for row in free), default=0) == device["fragmentation"]["largest_free_bytes"], f"{where}: largest hole")
    expect(device["holes_total"] == {"count": len(free), "bytes": sum(row["bytes"] for row in free)}, f"{where}: holes_total")
    wanted = sorted(((row["bytes"], -row["address"]) for row in free), reverse=True)[:64]
    expect([(hole["bytes"], -hole["address"]) for hole in device["holes"]] == wanted, f"{where}: holes are not the largest")
    for bin_ in device["histogram"]:
        inside = [row for row in live if bin_["min_bytes"] <= row["bytes"] < 2 * bin_["min_bytes"]]
        expect((bin_["blocks"], bin_["bytes"]) == (len(inside), sum(row["bytes"] for row in inside)), f"{where}: histogram {bin_}")
    expect(sum(bin_["blocks"] for bin_ in device["histogram"]) == len(live), f"{where}: histogram misses blocks")
    if device["pages"]:
        check_pages(where, device, rows)
    else:
        check_pins(where, device, rows)


def overlap(row, handle):
    return max(0, min(row["address"] + row["bytes"], handle["address"] + handle["bytes"]) - max(row["address"], handle["address"]))


def check_pages(where, device, rows):
    """Each handle again from the rows, each tier again from the handles, each pin by taking its blocks away."""
    pages = device["pages"]
    handles = [dict(zip(pages["handle_columns"], row)) for row in pages["handles"]]
    for handle in handles:
        free = sum(overlap(row, handle) for row in rows if row["state"] == "free")
        expect(handle["free_bytes"] == free, f"{where}: free_bytes of {handle}")
        expect(handle["state"] != "empty" or free == handle["bytes"], f"{where}: {handle} is not empty")
    for tier in pages["tiers"]:
        of_size = [handle for handle in handles if handle["bytes"] == tier["handle_bytes"]]
        expect(tier["mapped_bytes"] == sum(handle["bytes"] for handle in of_size), f"{where}: mapped_bytes of {tier}")
        expect(tier["handles"] * tier["handle_bytes"] == tier["mapped_bytes"] + tier["unmapped_bytes"], f"{where}: handles of {tier}")
        expect(tier["empty_bytes"] == sum(handle["bytes"] for handle in of_size if handle["state"] == "empty"), f"{where}: empty_bytes of {tier}")
        expect(tier["pinned_bytes"] == sum(handle["bytes"] for handle in of_size if handle["state"] == "pinned"), f"{where}: pinned_bytes of {tier}")
        expect(tier["stranded_bytes"] == sum(handle["free_bytes"] for handle in of_size if handle["state"] != "empty"), f"{where}: stranded_bytes of {tier}")
    expect([tier["handle_bytes"] for tier in pages["tiers"]] == sorted({tier["handle_bytes"] for tier in pages["tiers"]}), f"{where}: tiers out of order")
    movable = sum(tier["empty_bytes"] + tier["unmapped_bytes"] for tier in pages["tiers"])
    expect(device["ledger"]["free_releasable"] == movable, f"{where}: free_releasable is not what may move")
    expect(device["pinned_by"], f"{where}: nothing is pinned")
    used = [row for row in rows if row["state"] != "free"]
    for pin in device["pinned_by"]:
        first = next(index for index, row in enumerate(used) if row["address"] == pin["address"])
        gone = used[first:first + pin["blocks"]]
        expect(sum(row["bytes"] for row in gone) == pin["bytes"], f"{where}: bytes of {pin}")
        expect(sum(row["bytes"] for row in gone if row["state"] == "deferred") == pin["deferred_bytes"], f"{where}: deferred_bytes of {pin}")
        left = [row for row in used if row not in gone]
        emptied = [handle for handle in handles if handle["state"] == "used" and handle["free_bytes"] and not any(overlap(row, handle) for row in left)]
        expect(pin["handles"] == len(emptied) and pin["holds_region"], f"{where}: handles of {pin}: {emptied}")
        expect(pin["pinned_free_bytes"] == sum(handle["free_bytes"] for handle in emptied) > pin["bytes"] // 4, f"{where}: pinned_free_bytes of {pin}")


def check_pins(where, device, rows):
    """Each pin: give its run back, and see how much more is contiguous, or returnable."""
    for pin in device["pinned_by"]:
        run = [row for row in rows if pin["address"] <= row["address"] < pin["address"] + pin["bytes"]]
        expect(sum(row["bytes"] for row in run) == pin["bytes"] and len(run) == pin["blocks"], f"{where}: pin is no run")
        region = [row for row in rows if row["region"] == pin["region"]]
        before = [row for row in region if row["address"] + row["bytes"] == pin["address"]]
        after = [row for row in region if row["address"] == pin["address"] + pin["bytes"]]
        beside = sum(row["bytes"] for row in before + after if row["state"] == "free")
        all_free = sum(row["bytes"] for row in region if row["state"] == "free")
        only = len([row for row in region if row["state"] != "free"]) == len(run)
        expect(pin["holds_region"] == only, f"{where}: holds_region of {pin}")
        expect(pin["pinned_free_bytes"] == (all_free if only else beside), f"{where}: pinned_free_bytes of {pin}")


def check_device(name, device, cut):
    where = f"{name}: device {device['ordinal']}"
    counters, fragmentation = device["counters"], device["fragmentation"]
    expect(sum(device["ledger"].values()) == device["total_bytes"], f"{where}: the ledger sums to {sum(device['ledger'].values())}")
    for key, value in counters.items():
        if isinstance(value, dict) and key != "driver_calls":
            expect(value["current"] <= value["peak"], f"{where}: {key} is above its peak")
    check_figures(where, fragmentation, counters["live_bytes"]["current"], counters["requested_bytes"]["current"])
    check_figures(where + " at peak", fragmentation["at_peak"], None, None)
    wanted = ratio(counters["live_bytes"]["peak"], counters["reserved_bytes"]["peak"])
    expect(close(fragmentation["utilization"], wanted), f"{where}: utilization {fragmentation['utilization']}")
    expect(fragmentation["inactive_split_bytes"] <= fragmentation["free_bytes"], f"{where}: split bytes exceed free bytes")
    if not cut and name != "huge":
        check_arrays(where, device)


def check_oom(where, oom):
    """The first counterfactual that holds is the cause: REPORT.md section 2 in Python, on evidence without unknowns."""
    e = oom["evidence"]
    request, limit = e["request_bytes"], e["limit_bytes"]
    expect(all(s["level"] == "info" for s in oom["suggestions"] if s["already_enabled"]), f"{where}: advises what is on")
    expect([c["cause"] for c in oom["counterfactuals"]] == list(CAUSES), f"{where}: counterfactuals out of order")
    if e["driver_free_bytes"] is None or e["other_process_bytes"] is None:
        return
    reach = e["driver_free_bytes"] + e["releasable_bytes"]
    blocked = limit is not None and e["held_bytes"] - e["releasable_bytes"] + request > limit
    pool = e["pool_free_bytes"]
    holds = {
        "impossible_request": request > e["device_total_bytes"] or (limit is not None and request > limit),
        "limit": blocked and reach >= request,
        "driver_refused": not blocked and e["driver_free_bytes"] >= request,
        "deferred_free": e["deferred_bytes"] > 0 and e["largest_free_with_deferred_bytes"] >= request,
        "external_fragmentation": pool >= request > e["largest_free_remapped_bytes"] >= e["largest_free_bytes"] and reach < request,
        "other_process": reach < request <= reach + e["other_process_bytes"],
        "non_pool_memory": reach < request <= reach + e["own_outside_bytes"],
        "true_exhaustion": e["driver_free_bytes"] + pool + e["deferred_bytes"] < request,
    }
    expect(oom["cause"] == next(cause for cause in CAUSES if holds[cause]), f"{where}: {oom['cause']} though {holds}")
    if oom["cause"] == "external_fragmentation":
        gathered = max(e["largest_free_remapped_bytes"], reach if e["can_remap"] else 0)
        expect(oom["shortfall_bytes"] == request - gathered, f"{where}: shortfall")
    if oom["cause"] == "true_exhaustion" and limit is None:
        expect(oom["shortfall_bytes"] == request - e["driver_free_bytes"] - pool - e["deferred_bytes"], f"{where}: shortfall")


def check_leaks(name, report):
    for device in report["devices"]:
        groups = [leak for leak in report["leaks"] if leak["device"] == device["ordinal"]]
        if name != "huge":
            expect(sum(g["bytes"] for g in groups) == device["counters"]["live_bytes"]["current"], f"{name}: leaks and live bytes differ")
        expect(groups == sorted(groups, key=lambda g: -g["bytes"]), f"{name}: leaks are not sorted")


def check_report(path, validator):
    name = path.stem
    report = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=unique)
    for error in validator.iter_errors(report):
        failures.append(f"{name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}")
    cut = bool(report["data_quality"]["cut"])
    expect(cut == (name == "cut"), f"{name}: cut")
    for device in report["devices"]:
        check_device(name, device, cut)
    for index, oom in enumerate(report["ooms"]):
        check_oom(f"{name}: oom {index}", oom)
    check_leaks(name, report)
    return report


def check_names(lines, causes_file, schema):
    """counters.def, OomCause, the schema and causes.json know the same names."""
    names = [line.split()[1] for line in lines if line.startswith("cause ")]
    described = json.loads(causes_file.read_text())
    expect([cause["cause"] for cause in described["causes"]] == names, "config/causes.json does not explain exactly the causes of OomCause, in order")
    expect(schema["$defs"]["oom"]["properties"]["cause"]["enum"] == names, "the schema's causes are not OomCause's")
    inputs = set(schema["$defs"]["oom"]["properties"]["evidence"]["properties"])
    for cause in described["causes"]:
        expect(set(cause) == {"cause", "meaning", "holds_when", "shortfall", "inputs", "what_to_do"}, f"causes.json: keys of {cause['cause']}")
        expect(set(cause["inputs"]) <= inputs, f"causes.json: {cause['cause']} names inputs that no report has")
        expect(all(cause.values()), f"causes.json: {cause['cause']} leaves something empty")
    counters = dict(line.split()[1:3] for line in lines if line.startswith("counter "))
    described = schema["$defs"]["device"]["properties"]["counters"]["properties"]
    for counter in described:
        if counter != "driver_calls":
            kind = "gauge" if described[counter].get("$ref") == "#/$defs/gauge" else "total"
            expect(counters.get(counter) == kind, f"the schema's counter {counter} is no {kind} of counters.def")
    return counters


def check_rejects(report, validator):
    """The schema refuses what is wrong: otherwise it would prove nothing."""
    def spoilt(change):
        copy = json.loads(json.dumps(report))
        change(copy)
        return validator.is_valid(copy)
    device = lambda r: r["devices"][0]
    expect(not spoilt(lambda r: r.pop("leaks")), "schema: accepts a report without leaks")
    expect(not spoilt(lambda r: r.update(event="crash")), "schema: accepts an unknown event")
    expect(not spoilt(lambda r: r.update(surprise=1)), "schema: accepts an unknown key")
    expect(not spoilt(lambda r: device(r)["counters"].pop("live_bytes")), "schema: accepts missing counters")
    expect(not spoilt(lambda r: device(r)["counters"]["live_bytes"].pop("peak")), "schema: accepts a gauge without peak")
    expect(not spoilt(lambda r: device(r).update(total_bytes="1 GiB")), "schema: accepts formatted units")
    expect(not spoilt(lambda r: device(r)["fragmentation"].update(external=1.5)), "schema: accepts a ratio above one")
    expect(not spoilt(lambda r: device(r)["ledger"].update(lost=1)), "schema: accepts an unknown part of the ledger")
    expect(not spoilt(lambda r: device(r)["blocks"][0].pop()), "schema: accepts a short row")
    expect(not spoilt(lambda r: device(r).update(pages={"page_bytes": 1})), "schema: accepts pages without tiers")
    expect(not spoilt(lambda r: r["ooms"][0].update(cause="bad luck")), "schema: accepts an unknown cause")
    expect(not spoilt(lambda r: device(r)["counters"]["driver_calls"].update({"1": 2})), "schema: accepts a call that is no symbol")


def main(make_reports, config):
    global CAUSES
    schema = json.loads((config / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([make_reports, folder], check=True)
        lines = (Path(folder) / "names.txt").read_text().splitlines()
        CAUSES = tuple(line.split()[1] for line in lines if line.startswith("cause "))
        counters = check_names(lines, config / "causes.json", schema)
        reports = {path.stem: check_report(path, validator) for path in sorted(Path(folder).glob("*.json"))}
    for device in (device for report in reports.values() for device in report["devices"]):
        expect(set(device["counters"]) == set(counters) | {"driver_calls"}, "a report does not have exactly the counters of counters.def")
    expect({oom["cause"] for oom in reports["all_causes"]["ooms"]} == set(CAUSES), "not every cause was made")
    check_rejects(reports["all_causes"], validator)
    expect(reports["odd_text"]["process"]["command"][0] == "\ufffd\ufffd\ufffd", "odd_text: bytes that are not UTF-8")
    for failure in failures[:40]:
        print("FAILED", failure)
    print(f"{len(reports)} reports checked, {len(failures)} failures")
    return 1 if failures or len(reports) < 12 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
