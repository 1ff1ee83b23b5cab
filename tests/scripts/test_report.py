"""`cupool report` and `explain`: what they show, what they refuse, and that nothing in a file can hurt."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import unittest

import support
from support import Files, cupool, paged_report, sample_report
from cupool_lib import report_file, terminal

SCHEMA = json.loads((support.ROOT / "config/report.schema.json").read_text(encoding="utf-8"))


class Summary(Files):
    def test_the_cause_comes_first_and_every_figure_is_there(self):
        text = cupool("report", self.put(sample_report())).stdout
        self.assertLess(text.index("external_fragmentation"), text.index("GPU 0  Test GPU"))
        for words in ("short by 1.00 GiB", "CUPOOL_POLICY=preallocate", "policy         grow, backing segments", "6.00 GiB   in 40 blocks",
                      "8.00 GiB", "50.0% now", "4 to allocate and free", "would have made 1,998", "optim.py:88 step", "not pooled: cuMemAllocAsync",
                      "rank 3", str(self.path)):
            self.assertIn(words, text)
        self.assertNotIn("nothing to do", text)  # an info is no advice
        self.assertIn("small blocks that keep free memory apart:\n        2.00 GiB beside 3.00 GiB in 1 block at 0x7f00c0000000\n", text)

    def test_what_is_missing_is_rounded_up(self):
        for missing, text in ((67980800, "64.84 MiB"), (1025, "1.01 KiB"), (512, "512 B"), (2**30, "1.00 GiB")):  # the first is 64.8315
            self.assertEqual(terminal.size_up(missing), text)
        report = sample_report()
        report["ooms"][0]["shortfall_bytes"] += 1
        self.assertIn("short by 1.01 GiB", cupool("report", self.put(report)).stdout)

    def test_groups_of_live_blocks_have_their_exact_sizes(self):
        report = sample_report()
        leak = report["leaks"][0]
        for change, told in (({"smallest_requested_bytes": 3 << 20, "largest_requested_bytes": 3 << 20, "common_requested_bytes": 3 << 20, "common_blocks": 2}, "site 7 of 3.00 MiB, GPU 0"),
                             ({"smallest_requested_bytes": 1024, "common_requested_bytes": None, "common_blocks": 0}, "site 7 of 1.00 KiB to 3.00 MiB, GPU 0"),
                             ({"blocks": 3, "common_requested_bytes": 2048, "common_blocks": 2}, "in 3 blocks site 7 of 1.00 KiB to 3.00 MiB, 2 of them of 2.00 KiB, GPU 0"),
                             ({"site": None, "size_class_bytes": 1024}, "in 3 blocks of 1.00 KiB to 3.00 MiB, 2 of them")):
            leak.update(change)
            self.assertIn(told, cupool("report", self.put(report)).stdout)

    def test_what_came_after_an_oom_is_told_and_the_newest_comes_first(self):
        report = sample_report()
        first = report["ooms"][0]
        written = report["written_unix_ns"]
        report["ooms"] = [dict(first, requested_bytes=first["requested_bytes"] - n, time_unix_ns=written - n * 10**9, **after)
                          for n, after in ((50, {}), (40, {"allocations_before": 990, "served_since": True}), (30, {"allocations_before": 999, "served_since": False}),
                                           (20, {"allocations_before": 1000, "served_since": False}))]
        text = cupool("report", self.put(report)).stdout
        told = ["20.0 s before this report", "nothing was allocated on this GPU since", "30.0 s before", "the program went on: 1 allocation since, none of its size", "40.0 s before",
                "the program went on: 10 allocations since, at least one of its size or larger", "and 1 earlier one in the JSON"]
        places = [text.find(words) for words in told]
        self.assertNotIn(-1, places, text)
        self.assertEqual(places, sorted(places))
        self.assertNotIn("50.0 s", text)
        report["ooms"] = [dict(first, allocations_before=1, served_since=None)]
        self.assertIn("went on: 999 allocations since\n", cupool("report", self.put(report)).stdout)
        self.assertNotIn("since", cupool("report", self.put(sample_report())).stdout)  # of an older version's

    def test_versions_are_shown_where_the_report_says_them(self):
        report = sample_report()
        self.assertNotIn("driver for CUDA", cupool("report", self.put(report)).stdout)  # of an older version's
        report["process"].update(cupool_version="0.1.0", driver_version=12080)
        self.assertIn("; cupool 0.1.0, driver for CUDA 12.8\n", cupool("report", self.put(report)).stdout)

    def test_a_limit_that_is_enough_is_told_as_it_can_be_typed(self):
        report = sample_report()
        for evidence, told in (("shortfall_bytes=5 enough_limit_bytes=1048577 raise_by_bytes=6", ": CUPOOL_LIMIT=2MiB"), ("enough_limit_bytes=1048576", ": CUPOOL_LIMIT=1MiB"),
                               ("not_enough_limit_bytes=5", None), ("enough_limit_bytes=0", None)):
            report["ooms"][0]["suggestions"] = [dict(report["ooms"][0]["suggestions"][0], level="fix", evidence=evidence, message="raise it")]
            text = cupool("report", self.put(report)).stdout
            self.assertEqual("CUPOOL_LIMIT=" in text, told is not None, evidence)
            if told:
                self.assertIn(f"raise it{told}\n", text)

    def test_where_no_setting_helps_the_first_thing_to_do_is_said(self):
        report = sample_report()
        report["ooms"][0].update(cause="impossible_request", suggestions=[dict(report["ooms"][0]["suggestions"][0], level="info", message="no setting can help")])
        text = cupool("report", self.put(report)).stdout
        self.assertIn("try: Look for a wrong shape", text)
        self.assertNotIn("no setting can help", text)

    def test_pages_are_told_by_size_of_handle_with_what_moved_and_what_it_cost(self):
        text = cupool("report", self.put(paged_report())).stdout
        for words in ("pages              8.00 GiB   mapped; 5.00 GiB moved in 17 remaps; 3.00 GiB of addresses quarantined", "1,234 calls of the driver for them took 56.0 ms",
                      "4.00 GiB in 1 handle of 4.00 GiB: 1.00 GiB free beside others", "2.00 GiB in 2 handles of 1.00 GiB: 1.00 GiB empty"):
            self.assertIn(words, text)
        self.assertNotIn("pages  ", cupool("report", self.put(sample_report())).stdout)
        many = paged_report()
        many["devices"][0]["pages"]["tiers"] += [dict(many["devices"][0]["pages"]["tiers"][0], handle_bytes=size << 20) for size in (2, 4)]
        self.assertIn("and 1 other size", cupool("report", self.put(many)).stdout)

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

    def test_what_was_taken_outside_the_pool_is_told_with_its_peak(self):
        report = sample_report()
        self.assertNotIn("peak outside", cupool("report", self.put(report)).stdout)
        report["devices"][0]["counters"]["outside_bytes"] = {"current": 1 << 20, "peak": 3 << 30}
        shown = cupool("report", self.put(report)).stdout
        self.assertRegex(shown, r"peak outside +3\.00 GiB .*cuMemCreate; now 1\.00 MiB")

    def test_calls_that_the_program_made_itself_are_no_savings(self):
        report = sample_report()
        self.assertNotIn("the program's own", cupool("report", self.put(report)).stdout)
        report["devices"][0]["counters"]["driver_served"] = 1500
        shown = cupool("report", self.put(report)).stdout
        self.assertRegex(shown, r"1,504 to allocate and free, .*\n +1,500 of them the program's own, in stream order")

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

    def test_output_that_cannot_be_written_is_one_line(self):
        self.put(sample_report())
        for command in ("report", "validate"):
            for streams in (">&-", "> /dev/full"):
                shell = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", str(support.CUPOOL), command, str(self.path)]
                result = subprocess.run(shell, capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)
                self.assertIn("stdout: ", result.stderr)


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
            self.refused("\ufeff{}", ":1:1: a byte order mark", command)
            self.refused("# cupool\n", ":1:1: not JSON, which a report is", command)
            self.refused(f'{{"a": {"9" * 5000}}}', "too large" if hasattr(sys, "set_int_max_str_digits") else "/schema", command)

    def test_every_truncation_is_one_line_that_says_so(self):
        text = json.dumps({**sample_report(), "more": ["\u00e4", -1.5e-7, True, False, None]})
        for length in range(0, len(text), len(text) // 12):
            self.refused(text[:length], f":1:{len(text[:length].rstrip()) + 1}: the file ends here: it was cut short")
        for length in range(len(text)):
            with self.assertRaisesRegex(report_file.BadReport, "cut short"):
                report_file.load(str(self.put(text[:length])))

    def test_a_wrong_word_at_the_end_is_not_called_a_cut(self):
        for text in ('{"a": truX', '{"a": bad', '{"a": "\\u12g4"}', '{"a": 1.x'):
            with self.assertRaisesRegex(report_file.BadReport, ":1:[0-9]+: (Expecting|Invalid)"):
                report_file.load(str(self.put(text)))

    def test_an_object_that_only_calls_itself_a_report_is_refused(self):
        for keys, missing in (((), "event"), (("event", "process"), "devices")):
            report = sample_report()
            self.refused({key: report[key] for key in ("schema", *keys)}, f"/{missing} is missing")

    def test_what_is_no_file_is_refused_and_a_pipe_from_the_shell_is_read(self):
        pipe = str(self.put("").with_name("pipe"))
        os.mkfifo(pipe)
        for command in ("report", "validate"):
            for path, words in ((pipe, "not a regular file"), ("/dev/zero", "not a regular file"), ("", "name is empty")):
                result = cupool(command, path)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (1, "", 1), result.stderr)
                self.assertIn(words, result.stderr)
        text = json.dumps(sample_report())
        for shell in ('cat "$2" | "$1" report /dev/stdin', '"$1" report <(cat "$2")', '"$1" report /dev/stdin < "$2"'):
            result = subprocess.run(["/bin/bash", "-c", shell, "bash", support.CUPOOL, self.put(text)], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((result.returncode, result.stderr), (0, ""), shell)
            self.assertIn("OUT OF MEMORY", result.stdout)

    def test_what_a_pipe_brings_is_bounded(self):
        most_bytes = report_file._MAX_BYTES
        self.addCleanup(setattr, report_file, "_MAX_BYTES", most_bytes)
        for bound_bytes, words in ((100, "larger than"), (most_bytes, "1:1")):
            report_file._MAX_BYTES = bound_bytes
            reader, writer = os.pipe()
            self.addCleanup(os.close, reader)
            os.write(writer, b"x" * 4000)
            os.close(writer)
            with self.assertRaises(report_file.BadReport) as refused:
                report_file.load(f"/proc/self/fd/{reader}")
            self.assertIn(words, str(refused.exception))

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

    def test_the_causes_are_listed_in_the_order_in_which_they_are_tried(self):
        lines = cupool("explain").stdout.splitlines()
        self.assertEqual(lines[1].split(", "), ["  impossible_request", *SCHEMA["$defs"]["oom"]["properties"]["cause"]["enum"][1:]])

    def test_the_letters_of_a_formula_are_told_and_all_are_in_the_table(self):
        letters = json.loads((support.ROOT / "config/causes.json").read_text(encoding="utf-8"))["letters"]
        used = set()
        for cause in cupool("explain").stdout.splitlines()[1].strip().split(", "):
            text = cupool("explain", cause).stdout
            formula = set(re.findall(r"\b[A-Z]{1,4}\b", re.search("^Holds when .*$", text, re.MULTILINE).group())) - {"GPU", "NVML"}
            self.assertEqual(formula, set(re.findall(r"^  ([A-Z]+) +\w", text, re.MULTILINE)), text)
            used |= formula
        self.assertEqual(used, set(letters))

    def test_what_people_read_is_explained(self):
        table = (support.ROOT / "README.md").read_text(encoding="utf-8").partition("## Reading the report")[2].partition("\n## ")[0].partition("| word | meaning |")[2]
        rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
        words = [word for row in rows for word in (row.split(", ") if row == "live, requested" else [row])]
        self.assertIn("utilization", words)
        for word in [*words, "pinned_by", "leaks", "shortfall_bytes", "confidence", "holes", "rung_magazines", "evidence", "suggestions", "CUPOOL_LIMIT"]:
            self.assertEqual(cupool("explain", word).returncode, 0, word)

    def test_a_word_of_two_meanings_tells_both(self):
        text = cupool("explain", "limit").stdout
        self.assertIn("limit (cause)\n", text)
        self.assertIn("limit (option)\n", text)
        self.assertIn(" limit,", cupool("explain").stdout.partition("\nOptions\n")[2])

    def test_every_counter_is_in_the_schema(self):
        rows = re.findall(r"^(?:GAUGE|TOTAL)\(\s*(\w+)", (support.ROOT / "pool/observe/counters.def").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertLessEqual(set(rows), set(SCHEMA["$defs"]["device"]["properties"]["counters"]["properties"]))

    def test_a_misspelt_word_gets_the_nearest(self):
        result = cupool("explain", "external_fragmentaton")
        self.assertEqual(result.returncode, 1)
        self.assertIn("did you mean external_fragmentation", result.stderr)
        for word in ("laeks_x", "timelineage_of_it"):
            self.assertNotIn("did you mean", cupool("explain", word).stderr)


class Numbers(unittest.TestCase):
    def test_sizes_and_times(self):
        self.assertEqual([terminal.size(n) for n in (0, 1023, 1536, 5 << 30)], ["0 B", "1023 B", "1.50 KiB", "5.00 GiB"])
        self.assertEqual([terminal.duration(n) for n in (10**6, 90 * 10**9, 3661 * 10**9)], ["1.0 ms", "90.0 s", "1 h 1 min"])
        self.assertEqual([terminal.several(n, "block") for n in (0, 1, 1000)], ["0 blocks", "1 block", "1,000 blocks"])


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
