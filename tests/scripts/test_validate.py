"""`cupool validate`: what the schema forbids, and every contradiction of a report's own arithmetic."""

from __future__ import annotations

import copy
import json
import unittest

import support
from support import Files, cupool, paged_report, sample_report
from cupool_lib import json_schema, validate

SCHEMA = json.loads((support.ROOT / "config/report.schema.json").read_text(encoding="utf-8"))


class Validate(Files):
    def test_the_sample_is_valid(self):
        self.assertEqual(cupool("validate", self.put(sample_report())).returncode, 0)

    def check_each(self, changes, make_report):
        """The schema has nothing against each changed report; the arithmetic has, in these words."""
        for words, change in changes.items():
            with self.subTest(words):
                report = make_report()
                change(report)
                self.assertEqual(list(json_schema.problems(report, SCHEMA)), [])
                self.assertTrue(any(words in line for line in validate.arithmetic(report)), list(validate.arithmetic(report)))
                self.assertEqual(cupool("validate", self.put(report)).returncode, 1)

    def test_each_contradiction_is_found(self):
        def device(report):
            return report["devices"][0]

        changes = {
            "/ledger": lambda r: device(r)["ledger"].update(live=1),
            "/fragmentation/external": lambda r: device(r)["fragmentation"].update(external=0.1, external_remapped=0.1),
            "external_remapped": lambda r: device(r)["fragmentation"].update(external_remapped=0.9),
            "/fragmentation/utilization": lambda r: device(r)["fragmentation"].update(utilization=0.1),
            "/fragmentation/internal": lambda r: device(r)["fragmentation"].update(internal=0.9),
            "above free_bytes": lambda r: device(r)["fragmentation"].update(largest_free_bytes=1 << 60),
            "above peak": lambda r: device(r)["counters"]["live_bytes"].update(peak=1),
            "more frees": lambda r: device(r)["counters"].update(frees=5000),
            "live_blocks": lambda r: device(r)["counters"]["live_blocks"].update(current=30),
            "live rows sum": lambda r: device(r)["blocks"][0].__setitem__(3, "free"),
            "live rows are": lambda r: device(r)["counters"]["live_blocks"].update(current=1),
            "were asked as": lambda r: device(r)["blocks"][0].__setitem__(2, 1),
            "/histogram: bytes": lambda r: device(r)["histogram"][0].update(bytes=1),
            "begins at": lambda r: device(r)["blocks"][1].__setitem__(0, 1),
            "appears twice": lambda r: r["devices"].append(copy.deepcopy(device(r))),
            "rounded request": lambda r: r["ooms"][0]["evidence"].update(request_bytes=1),
            "no device 3": lambda r: r["ooms"][0].update(device=3),
            "/ledger/live: ": lambda r: device(r)["ledger"].update(live=2 << 30, free_pinned=5365563392),
            "/ledger/metadata: ": lambda r: device(r)["ledger"].update(metadata=1 << 30, unattributed=0),
            "/ledger/outside_arrays: ": lambda r: device(r)["ledger"].update(outside_arrays=1 << 30, unattributed=0),
            "/ledger/outside_managed: ": lambda r: device(r)["ledger"].update(outside_managed=1 << 30, unattributed=0),
            "/reserved_bytes: ": lambda r: device(r)["counters"]["reserved_bytes"].update(current=7 << 30),
            "/at_peak/free_bytes: ": lambda r: device(r)["fragmentation"]["at_peak"].update(free_bytes=9 << 30, largest_free_bytes=9 << 30),
            "/mapped_bytes: ": lambda r: device(r)["counters"].update(mapped_bytes={"current": 9 << 30, "peak": 9 << 30}),
            "/outside_bytes: ": lambda r: device(r)["counters"].update(outside_bytes={"current": 1, "peak": 1}),
            "can be gathered": lambda r: device(r)["fragmentation"].update(external_remapped=0.1),
            "/histogram: blocks from": lambda r: device(r)["histogram"][0].update(min_bytes=1 << 30),
            "/histogram: requested_bytes": lambda r: device(r)["histogram"][0].update(requested_bytes=1),
            "/holes_total": lambda r: device(r)["holes_total"].update(count=0, bytes=0),
            "/holes: ": lambda r: device(r)["holes"].clear(),
            "largest hole of the map": lambda r: device(r)["fragmentation"].update(largest_free_bytes=2 << 30, external=0, external_remapped=0),
            "inactive_split_bytes: ": lambda r: (device(r)["fragmentation"].update(inactive_split_bytes=0), device(r)["ledger"].update(free_pinned=0, free_releasable=2 << 30)),
            "/regions/0": lambda r: device(r)["regions"][0].update(bytes=1),
            "not in regions": lambda r: device(r)["regions"].clear(),
            "/sites: ": lambda r: device(r)["sites"][0].update(blocks=1),
            "are not 1 bytes in the map": lambda r: device(r)["pinned_by"][0].update(bytes=1),
            "free beside it": lambda r: device(r)["pinned_by"][0].update(pinned_free_bytes=1 << 30),
            "/leaks: 0 groups": lambda r: r["leaks"].clear(),
            "which asked for": lambda r: r["leaks"][0].update(smallest_requested_bytes=1, largest_requested_bytes=2),
            "no size of more than half": lambda r: r["leaks"][0].update(smallest_requested_bytes=1, largest_requested_bytes=2**40, common_requested_bytes=2, common_blocks=1),
            "/leaks: of device 0": lambda r: r["leaks"][0].update(blocks=3),
            "asked for as more": lambda r: device(r)["blocks"][1].__setitem__(2, 1),
            "/final_of_series": lambda r: r.update(event="exit", final_of_series=True),
            "/ooms: empty": lambda r: r.update(event="oom", ooms=[]),
            "/data_quality/complete": lambda r: r["data_quality"].update(cut=["blocks of device 0"]),
            "/data_quality/dropped_events": lambda r: device(r)["timeline"].update(dropped=1 << 40),
        }
        self.check_each(changes, sample_report)

    def test_each_contradiction_of_pages_is_found(self):
        def pages(report):
            return report["devices"][0]["pages"]

        def unmap(report):  # a handle mapped nowhere is free memory without a place in the map
            pages(report)["tiers"][0].update(handles=3, unmapped_bytes=1 << 30)

        def free_too(report):
            unmap(report)
            device = report["devices"][0]
            device["fragmentation"].update(free_bytes=3 << 30, external=2 / 3, external_remapped=1 / 3, utilization=6 / 9)
            device["counters"]["reserved_bytes"] = {"current": 9 << 30, "peak": 9 << 30}
            device["ledger"].update(free_releasable=2 << 30, unattributed=0)

        changes = {
            "are not mapped_bytes": lambda r: pages(r)["tiers"][0].update(handles=3),
            "pinned or stranded": lambda r: pages(r)["tiers"][0].update(pinned_bytes=2 << 30),
            "multiple of page_bytes": lambda r: pages(r).update(page_bytes=3 << 20),
            "the counter mapped_bytes": lambda r: r["devices"][0]["counters"]["mapped_bytes"].update(current=1),
            "quarantined_bytes sum": lambda r: pages(r)["reservations"][0].update(quarantined_bytes=1),
            "bytes are free in them": lambda r: pages(r)["tiers"][1].update(stranded_bytes=1 << 30),
            "contradicts itself": lambda r: pages(r)["handles"][0].__setitem__(3, "empty"),
            "its handles sum to": lambda r: pages(r)["handles"].pop(),
            "its address": lambda r: pages(r)["handles"][0].__setitem__(0, pages(r)["handles"][0][0] + 512),
            "are mapped nowhere": unmap,
            "smallest first": lambda r: pages(r)["tiers"].reverse(),
            "/stranded_bytes: ": lambda r: pages(r)["tiers"][2].update(stranded_bytes=0),
            "/pinned_bytes: ": lambda r: pages(r)["tiers"][1].update(pinned_bytes=1 << 30),
            "free in that at": lambda r: (pages(r)["handles"][0].__setitem__(2, 1), pages(r)["tiers"][1].update(stranded_bytes=1)),
            "more is vacant": lambda r: pages(r)["reservations"][0].update(vacant_bytes=62 << 30),
            "hold nothing, by": lambda r: r["devices"][0]["fragmentation"].update(inactive_split_bytes=2 << 30),
        }
        self.assertEqual(cupool("validate", self.put(paged_report())).returncode, 0)
        self.check_each(changes, paged_report)
        report = paged_report()
        free_too(report)
        self.assertEqual(list(validate.arithmetic(report)), [])

    def test_each_contradiction_of_a_cause_with_its_evidence_is_found(self):
        def put(cause: str, shortfall: int, **evidence):
            def change(report):
                report["ooms"][0].update(cause=cause, shortfall_bytes=shortfall)
                report["ooms"][0]["evidence"].update(evidence)
            return change

        gib = 1 << 30
        changes = {
            "limit, though there is no limit": put("limit", gib),
            "are within the limit": put("limit", 0, limit_bytes=10 * gib, held_bytes=gib),
            "limit_bytes is not the device's": put("external_fragmentation", gib, limit_bytes=10 * gib, held_bytes=gib),
            "device_total_bytes is not the device's": put("external_fragmentation", gib, device_total_bytes=1 << 40),
            "not larger than device and limit": put("impossible_request", 0),
            "is larger than device and limit": put("external_fragmentation", gib, device_total_bytes=gib),
            "the driver did not have the bytes": put("driver_refused", 0),
            "nothing was deferred": put("deferred_free", gib, deferred_bytes=0, largest_free_with_deferred_bytes=gib),
            "the largest hole has": put("external_fragmentation", 0, largest_free_bytes=2 * gib, largest_free_with_deferred_bytes=2 * gib),
            "does not reach the request": put("external_fragmentation", gib, pool_free_bytes=gib, deferred_bytes=0, driver_free_bytes=0),
            "could go back to it reach": put("external_fragmentation", gib, releasable_bytes=gib),
            "other processes hold makes no difference": put("other_process", gib, other_process_bytes=1),
            "outside the pool makes no difference": put("non_pool_memory", gib),
            "all that is free reaches the request": put("true_exhaustion", 0),
            "/shortfall_bytes: 5, by the evidence it is 1073741824": put("external_fragmentation", 5),
            "a part of what is free is more": put("external_fragmentation", gib, pool_free_bytes=1),
            "with deferred frees": put("external_fragmentation", gib, largest_free_with_deferred_bytes=9 * gib),
            "are more than own_outside_bytes": put("external_fragmentation", gib, own_outside_bytes=gib, mempool_idle_bytes=2 * gib),
            "pinned_free_bytes is above": put("external_fragmentation", gib, pinned_free_bytes=1, stranded_bytes=0),
            "of which it is a part": put("external_fragmentation", gib, graph_bytes=gib, own_outside_bytes=0),
            "are more than the device has": put("external_fragmentation", gib, graph_bytes=1 << 50, own_outside_bytes=1 << 50),
            "mempool_used_bytes of no maxSize": put("external_fragmentation", gib, mempool_max_bytes=None, mempool_used_bytes=1),
            "remapped_bytes is below": put("external_fragmentation", gib, largest_free_remapped_bytes=0),
            "rounded by 512 bytes or more": put("external_fragmentation", gib + 512, request_bytes=2 * gib + 512),
            "/missing_inputs: driver_free_bytes": put("external_fragmentation", gib, driver_free_bytes=None),
            "/missing_inputs: other_process_bytes": put("external_fragmentation", gib, other_process_bytes=5),
            "eight causes in their order": lambda r: r["ooms"][0]["counterfactuals"].reverse(),
            "more is missing than": lambda r: r["ooms"][0]["counterfactuals"][0].update(shortfall_bytes=9 * gib),
            "device counts 1000 at the end": lambda r: r["ooms"][0].update(allocations_before=1001),
            "nothing was allocated since": lambda r: r["ooms"][0].update(allocations_before=1000, served_since=True),
            "advises what is on": lambda r: r["ooms"][0]["suggestions"][0].update(already_enabled=True),
        }
        self.check_each(changes, sample_report)

    def test_of_free_memory_whose_holes_nobody_knows_what_could_go_back_to_the_driver_counts(self):
        report, gib = sample_report(), 1 << 30
        evidence = report["ooms"][0]["evidence"]
        evidence.update(holes_known=False, largest_free_bytes=0, largest_free_remapped_bytes=0, driver_free_bytes=gib, releasable_bytes=gib // 2)
        report["ooms"][0]["shortfall_bytes"] = gib // 2
        self.assertEqual(list(validate.arithmetic(report)), [])
        evidence["holes_known"] = True
        self.assertTrue(any("/shortfall_bytes: 536870912, by the evidence it is 2147483648" in line for line in validate.arithmetic(report)))

    def test_on_pages_only_whole_pages_of_what_the_driver_has_count(self):
        """The figures of an H100: its free bytes are no multiple of a page."""
        report = paged_report()
        oom = sample_report()["ooms"][0]
        oom["evidence"].update(request_bytes=2147483648, device_total_bytes=report["devices"][0]["total_bytes"], driver_free_bytes=679673856, pool_free_bytes=2043904,
                               largest_free_bytes=2043904, largest_free_remapped_bytes=2043904, releasable_bytes=0, deferred_bytes=0,
                               largest_free_with_deferred_bytes=2043904, releasable_with_deferred_bytes=0, can_remap=True, page_bytes=2097152, stranded_bytes=2043904)
        oom.update(cause="true_exhaustion", requested_bytes=2147483648, shortfall_bytes=1465962496)
        report["ooms"] = [oom]
        self.assertEqual([line for line in validate.arithmetic(report) if "shortfall" in line], [])
        oom["evidence"]["can_remap"] = False
        self.assertEqual([line for line in validate.arithmetic(report) if "shortfall" in line],
                         ["/ooms/0/shortfall_bytes: 1465962496, by the evidence it is 1465765888"])

    def test_managed_memory_of_any_size_is_what_the_driver_refused(self):
        report, size = sample_report(), 2**64 - 1
        oom = report["ooms"][0]
        oom["evidence"].update(request_bytes=size, managed=True)
        oom.update(api="cuMemAllocManaged", requested_bytes=size, cause="driver_refused", shortfall_bytes=0)
        self.assertEqual(list(validate.arithmetic(report)), [])
        oom["evidence"]["request_bytes"] = 0
        self.assertTrue(any("/ooms/0/cause: driver_refused, though the request" in line for line in validate.arithmetic(report)))

    def test_what_the_limit_refused_is_the_limits_whatever_is_held_a_moment_later(self):
        report, gib = sample_report(), 1 << 30
        oom = report["ooms"][0]
        request = oom["evidence"]["request_bytes"]
        oom["evidence"].update(limit_bytes=16 * gib, held_bytes=0, driver_free_bytes=2 * request, refused_by_limit=True)
        report["devices"][0]["limit_bytes"] = 16 * gib
        oom.update(cause="limit", shortfall_bytes=0)
        self.assertEqual([line for line in validate.arithmetic(report) if "/ooms/0/cause" in line], [])
        oom["cause"] = "driver_refused"
        self.assertEqual(len([line for line in validate.arithmetic(report) if "/ooms/0/cause" in line]), 2)

    def test_a_million_blocks_are_judged(self):
        report = sample_report()
        device, rows = report["devices"][0], 1_000_000
        device["blocks"] = [[base + 512 * index, 512, 500, "live", 0, 0, 0] for base in (1 << 40,) for index in range(rows)]
        self.assertEqual(list(json_schema.problems(report, SCHEMA)), [])
        found = list(validate.arithmetic(report))
        self.assertTrue(any("live rows are 1000000" in line for line in found), found)

    SCHEMA_CHANGES = (
        lambda r: r.pop("devices"), lambda r: r.update(extra=1), lambda r: r.update(event="crash"), lambda r: r["process"].update(pid="x"),
        lambda r: r["process"].update(pid=-1), lambda r: r["process"].update(exit={"code": 1}), lambda r: r["options"].update({"Bad Name": {}}),
        lambda r: r["devices"][0]["fragmentation"].update(external=2), lambda r: r["devices"][0]["counters"].update(frees=None),
        lambda r: r["devices"][0]["blocks"].append([1]), lambda r: r["devices"][0]["blocks"][0].__setitem__(3, "lost"),
        lambda r: r["devices"][0]["blocks"][0].__setitem__(2, "live"), lambda r: r["devices"][0]["blocks"][0].__setitem__(3, 7),
        lambda r: r["ooms"][0]["counterfactuals"].pop(), lambda r: r["ooms"][0].update(cause="bad_luck"), lambda r: r.update(final_of_series=1),
        lambda r: r["devices"][0]["counters"]["driver_calls"].update(malloc=1), lambda r: r["leaks"][0].update(blocks=1.5), lambda r: None)

    def test_the_built_in_validator_finds_what_the_schema_forbids(self):
        for index, change in enumerate(self.SCHEMA_CHANGES[:-1]):
            report = sample_report()
            change(report)
            self.assertTrue(list(json_schema.problems(report, SCHEMA)), index)

    def test_it_agrees_with_pythons_jsonschema(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("python's jsonschema is not installed (Debian: python3-jsonschema)")
        reference = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
        for index, change in enumerate(self.SCHEMA_CHANGES):
            report = sample_report()
            change(report)
            self.assertEqual(not list(json_schema.problems(report, SCHEMA)), reference.is_valid(report), index)

    def test_an_unknown_keyword_is_an_error_not_a_pass(self):
        with self.assertRaises(json_schema.BadSchema):
            list(json_schema.problems({}, {"dependentSchemas": {}}))

    def test_many_problems_are_cut(self):
        report = sample_report()
        report["data_quality"]["warnings"] = list(range(100))
        lines = cupool("validate", self.put(report)).stderr.splitlines()
        self.assertEqual(len(lines), 21)


if __name__ == "__main__":
    unittest.main()
