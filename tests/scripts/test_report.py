"""`cupool report`, `validate` and `explain`: what they show, what they refuse, and that nothing in a file can hurt."""

from __future__ import annotations

import copy
import json
import os
import pty
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from support import cupool, paged_report, sample_report
from cupool_lib import json_schema, terminal, validate

SCHEMA = json.loads((support.ROOT / "config/report.schema.json").read_text(encoding="utf-8"))


class Files(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "report.json"

    def put(self, content: object) -> Path:
        if isinstance(content, bytes):
            self.path.write_bytes(content)
        else:
            self.path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return self.path


class Summary(Files):
    def test_the_cause_comes_first_and_every_figure_is_there(self):
        text = cupool("report", self.put(sample_report())).stdout
        self.assertLess(text.index("external_fragmentation"), text.index("GPU 0  Test GPU"))
        for words in ("short by 1.00 GiB", "CUPOOL_POLICY=preallocate", "policy         grow, backing segments", "6.00 GiB   in 40 blocks",
                      "8.00 GiB", "50.0% now", "4 to allocate and free", "would have made 1,998", "optim.py:88 step", "not pooled: cuMemAllocAsync",
                      "rank 3", str(self.path)):
            self.assertIn(words, text)
        self.assertNotIn("nothing to do", text)  # an info is no advice

    def test_pages_are_told_by_size_of_handle_with_what_moved_and_what_it_cost(self):
        text = cupool("report", self.put(paged_report())).stdout
        for words in ("pages              8.00 GiB   mapped; 5.00 GiB moved in 17 remaps; 3.00 GiB of addresses quarantined", "1,234 calls of the driver for them took 56.0 ms",
                      "4.00 GiB in 1 handles of 4.00 GiB: 1.00 GiB free beside others", "2.00 GiB in 2 handles of 1.00 GiB: 1.00 GiB empty"):
            self.assertIn(words, text)
        self.assertNotIn("pages  ", cupool("report", self.put(sample_report())).stdout)
        many = paged_report()
        many["devices"][0]["pages"]["tiers"] += [dict(many["devices"][0]["pages"]["tiers"][0], handle_bytes=size << 20) for size in (2, 4)]
        self.assertIn("and 1 other sizes", cupool("report", self.put(many)).stdout)

    def test_no_colour_in_a_pipe(self):
        self.assertNotIn("\x1b", cupool("report", self.put(sample_report())).stdout)

    def on_terminal(self, **variables: str) -> bytes:
        pid, terminal_fd = pty.fork()
        if pid == 0:
            os.execve(support.CUPOOL, [str(support.CUPOOL), "report", str(self.path)], support.clean_environment(**{"TERM": "xterm", **variables}))
        output = b""
        while True:
            try:
                piece = os.read(terminal_fd, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(terminal_fd)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        return output

    def test_colour_on_a_terminal_unless_no_color_is_set(self):
        self.put(sample_report())
        self.assertIn(b"\x1b[", self.on_terminal())
        self.assertIn(b"\x1b[", self.on_terminal(NO_COLOR=""))
        self.assertNotIn(b"\x1b", self.on_terminal(NO_COLOR="1"))
        self.assertNotIn(b"\x1b", self.on_terminal(TERM="dumb"))

    def test_escapes_in_a_report_do_not_reach_the_terminal(self):
        report = sample_report()
        report["process"]["command"] = ["\x1b]0;owned\x07", "\r\n"]
        report["devices"][0]["name"] = "\x1b[31mGPU\u202e"
        report["devices"][0]["sites"][0]["frames"][0]["name"] = "f\x1b[2J"
        report["data_quality"]["warnings"] = ["\x9b31m"]
        report["ooms"][0]["suggestions"][0]["message"] = "\x1b[1m"
        output = cupool("report", self.put(report)).stdout
        self.assertFalse({"\x1b", "\x9b", "\r", "\x07", "\u202e"} & set(output))

    def test_a_report_without_devices(self):
        report = sample_report()
        report.update(devices=[], ooms=[], leaks=[])
        self.assertIn("No device memory", cupool("report", self.put(report)).stdout)

    def test_an_empty_pool_is_not_divided_by(self):
        report = sample_report()
        figures = report["devices"][0]["fragmentation"]
        for part in (figures, figures["at_peak"]):
            part.update(external=None, external_remapped=None, internal=None, utilization=None, free_bytes=0, largest_free_bytes=0)
        report["devices"][0].update(total_bytes=0, ledger={})
        result = cupool("report", self.put(report))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("none", result.stdout)

    def test_memory_of_which_nobody_knows_whether_it_is_used_is_not_shown_as_used(self):
        report = sample_report()
        ledger = report["devices"][0]["ledger"]
        ledger.update(unknown=ledger.pop("unattributed") + ledger.pop("driver_free"), unattributed=0)
        shown = cupool("report", self.put(report)).stdout
        self.assertIn("nobody asked the driver", shown)
        self.assertNotIn("contexts and others", shown)

    def test_a_reader_that_goes_away_is_no_error(self):
        self.put(sample_report())
        result = subprocess.run(["/bin/bash", "-c", f"set -o pipefail; {support.CUPOOL} report {self.path} | true"], capture_output=True, check=False)
        self.assertEqual(result.stderr, b"")


class Malformed(Files):
    def refused(self, content: object, words: str, command: str = "report") -> None:
        result = cupool(command, self.put(content))
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(words, result.stderr)

    def test_broken_files_are_one_line_with_the_place(self):
        for command in ("report", "validate"):
            self.refused("", ":1:1:", command)
            self.refused("{\n  \"schema\": oops\n}", ":2:13:", command)
            self.refused(b"\xff\xfe", "byte 0: not UTF-8", command)
            self.refused("[1, 2]", ":1:1: expected an object", command)
            self.refused("{}", "/schema", command)
            self.refused('{"schema": "cupool.report/2"}', "cupool.report/2", command)
            self.refused("[" * 200000, "nested too deeply", command)
            self.refused('{"a": 1, "a": 2}', "twice", command)
            self.refused('{"schema": NaN}', "NaN", command)

    def test_every_truncation_is_one_line(self):
        text = json.dumps(sample_report())
        for length in range(0, len(text), len(text) // 12):
            self.refused(text[:length], ":1:")

    def test_wrong_types_name_their_place(self):
        for change, words in ((lambda r: r.update(process=[]), "/process"), (lambda r: r.update(devices={}), "/devices"),
                              (lambda r: r["devices"].append(3), "/devices/1"), (lambda r: r["devices"][0].update(counters=None), ""),
                              (lambda r: r["devices"][0]["counters"].update(live_bytes=7), "/devices/0/counters/live_bytes"),
                              (lambda r: r["devices"][0]["ledger"].update(live="x"), "/devices/0/ledger/live"),
                              (lambda r: r["data_quality"].update(warnings=[1]), "/data_quality/warnings/0")):
            report = sample_report()
            change(report)
            result = cupool("report", self.put(report))
            if words:
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)
                self.assertIn(words, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_missing_files(self):
        for path in ("/no/such/file", "/"):
            result = cupool("report", path)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1))


class Validate(Files):
    def test_the_sample_is_valid(self):
        self.assertEqual(cupool("validate", self.put(sample_report())).returncode, 0)

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
        }
        for words, change in changes.items():
            with self.subTest(words):
                report = sample_report()
                change(report)
                self.assertEqual(list(json_schema.problems(report, SCHEMA)), [])
                self.assertTrue(any(words in line for line in validate.arithmetic(report)), list(validate.arithmetic(report)))
                self.assertEqual(cupool("validate", self.put(report)).returncode, 1)

    def test_each_contradiction_of_pages_is_found(self):
        def pages(report):
            return report["devices"][0]["pages"]

        def unmap(report):  # a handle mapped nowhere is free memory without a place in the map
            pages(report)["tiers"][0].update(handles=3, unmapped_bytes=1 << 30)

        def free_too(report):
            unmap(report)
            report["devices"][0]["fragmentation"].update(free_bytes=3 << 30, external=2 / 3, external_remapped=1 / 3)

        changes = {
            "are not mapped_bytes": lambda r: pages(r)["tiers"][0].update(handles=3),
            "pinned or stranded": lambda r: pages(r)["tiers"][0].update(pinned_bytes=2 << 30),
            "multiple of page_bytes": lambda r: pages(r).update(page_bytes=3 << 20),
            "the counter mapped_bytes": lambda r: r["devices"][0]["counters"]["mapped_bytes"].update(current=1),
            "quarantined_bytes sum": lambda r: pages(r)["reservations"][0].update(quarantined_bytes=1),
            "bytes are free in them": lambda r: pages(r)["tiers"][1].update(stranded_bytes=1 << 30),
            "contradicts itself": lambda r: pages(r)["handles"][0].__setitem__(3, "empty"),
            "its handles sum to": lambda r: pages(r)["handles"].pop(),
            "are mapped nowhere": unmap,
        }
        self.assertEqual(cupool("validate", self.put(paged_report())).returncode, 0)
        for words, change in changes.items():
            with self.subTest(words):
                report = paged_report()
                change(report)
                self.assertEqual(list(json_schema.problems(report, SCHEMA)), [])
                self.assertTrue(any(words in line for line in validate.arithmetic(report)), list(validate.arithmetic(report)))
        report = paged_report()
        free_too(report)
        self.assertEqual(list(validate.arithmetic(report)), [])

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


class Explain(unittest.TestCase):
    def test_every_cause_metric_and_part_is_explained(self):
        properties = SCHEMA["$defs"]
        names = [*properties["oom"]["properties"]["cause"]["enum"], *properties["device"]["properties"]["ledger"]["properties"],
                 "external", "internal", "utilization", "live_bytes", "policy"]
        names += [*properties["tier"]["properties"], "remaps", "moved_bytes", "vmm_ns", "quarantined_bytes"]
        listed = cupool("explain").stdout
        for name in names:
            self.assertIn(name, listed)
        self.assertIn("What to do", cupool("explain", "deferred_free").stdout)
        self.assertIn("cannot move", cupool("explain", "stranded_bytes").stdout)

    def test_a_misspelt_word_gets_the_nearest(self):
        result = cupool("explain", "external_fragmentaton")
        self.assertEqual(result.returncode, 1)
        self.assertIn("did you mean external_fragmentation", result.stderr)


class Numbers(unittest.TestCase):
    def test_sizes_and_times(self):
        self.assertEqual([terminal.size(n) for n in (0, 1023, 1536, 5 << 30)], ["0 B", "1023 B", "1.50 KiB", "5.00 GiB"])
        self.assertEqual([terminal.duration(n) for n in (10**6, 90 * 10**9, 3661 * 10**9)], ["1.0 ms", "90.0 s", "1 h 1 min"])


class CommandLine(unittest.TestCase):
    def test_usage_errors_are_one_line(self):
        for arguments in (["frobnicate"], ["report"], ["report", "--no-such"], ["explain", "a", "b"]):
            result = cupool(*arguments)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)

    def test_help_names_every_subcommand(self):
        text = cupool("--help").stdout
        for name in ("run", "report", "doctor", "validate", "explain"):
            self.assertIn(f"cupool {name}", text)
            self.assertEqual(cupool(name, "--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
