"""Live pages: read by the documented layout, distrusted byte by byte, and turned into valid reports after a death."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support
from support import MIB
from cupool_lib import completion, doctor_machine, json_schema, live_page, locate, report_file, validate

SCHEMA = json.loads((support.ROOT / "config/report.schema.json").read_text(encoding="utf-8"))


def dead_process() -> tuple[int, int]:
    """(pid, start ticks) of a process that is no more."""
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    child.stdin.close()
    child.wait()
    return child.pid, ticks


class Completion(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.pages = self.folder / "pages"
        self.pages.mkdir(mode=0o700)
        self.report = self.folder / "out" / "report.json"
        self.pid, self.ticks = dead_process()

    def facts(self, run_id: str = "run1", **extra) -> dict:
        process = {"pid": self.pid, "command": ["python", "x.py"], "host": "h", "rank": None, "start_unix_ns": 10**18, "duration_ns": 0, "exit": None}
        options = {"policy": {"value": "grow", "source": "default"}, "run_id": {"value": run_id, "source": "env"}}
        return {"process": process, "options": options, "report_path": str(self.report), **extra}

    def put(self, pid: int | None = None, ticks: int | None = None, page_facts: dict | None = None, **page) -> Path:
        pid, ticks = self.pid if pid is None else pid, self.ticks if ticks is None else ticks
        path = self.pages / f"{pid}.{ticks}"
        path.write_bytes(support.live_page(pid, ticks, self.facts() if page_facts is None else page_facts, **page))
        return path

    def complete(self, ended: dict[int, int] | None = None, run_id: str = "run1") -> list[str]:
        return completion.complete_run(run_id, {self.pid: signal.SIGKILL} if ended is None else ended, 10**18 + 5 * 10**9, self.pages)

    def check_valid(self) -> dict:
        report = report_file.load(str(self.report))
        self.assertEqual(list(json_schema.problems(report, SCHEMA)), [])
        self.assertEqual(list(validate.arithmetic(report)), [])
        return report

    def test_a_page_that_cannot_be_read_is_named_when_it_may_be_the_programs_own(self):
        self.put().write_bytes(b"no page")
        self.assertEqual([line for line in self.complete() if "cannot be used" not in line], [])
        self.assertEqual(len(self.complete()), 1)

    def test_a_page_of_an_older_process_of_the_same_pid_is_none_of_this_run_s_business(self):
        self.put(ticks=1).write_bytes(b"a page of another version")
        self.assertEqual(self.complete(), [])

    def test_what_threads_had_not_told_yet_counts(self):
        told = {"allocations": 10, "frees": 7, "live_blocks": 3}
        shards = ({"allocations": 5, "live_blocks": 5, "live_bytes": 5120}, {"frees": 2, "live_blocks": -2, "live_bytes": -1024})
        self.put(devices=[support.device_slot(1024, shards=shards, **told)])
        self.complete()
        counters = self.check_valid()["devices"][0]["counters"]
        self.assertEqual((counters["allocations"], counters["frees"], counters["live_blocks"]["current"]), (15, 9, 6))
        self.assertEqual(counters["live_bytes"]["current"], 30 * MIB + 4096)

    def test_a_killed_process_gets_a_valid_report(self):
        path = self.put()
        lines = self.complete()
        report = self.check_valid()
        self.assertEqual(report["process"]["exit"], {"code": None, "signal": 9})
        self.assertEqual(report["process"]["duration_ns"], 5 * 10**9)
        self.assertEqual(report["data_quality"]["source"], "live_page")
        self.assertEqual(report["data_quality"]["unpooled_apis_seen"], ["cuMemAllocAsync"])
        device = report["devices"][0]
        self.assertEqual(device["counters"]["live_bytes"], {"current": 30 * MIB, "peak": 31 * MIB})
        self.assertEqual(device["counters"]["driver_calls"], {"cuMemAlloc_v2": 1})
        self.assertEqual(device["ledger"]["free_pinned"], 10 * MIB)
        self.assertEqual(device["ledger"]["driver_free"], 900 * MIB)
        self.assertAlmostEqual(device["fragmentation"]["external"], 1 - 20 / 30)
        self.assertEqual(os.stat(self.report).st_mode & 0o777, 0o600)
        self.assertEqual(os.listdir(self.report.parent), ["report.json"])
        self.assertFalse(path.exists())
        self.assertEqual(len(lines), 1)
        self.assertIn("SIGKILL", lines[0])
        self.assertEqual(support.cupool("report", self.report).returncode, 0)

    def test_what_is_free_follows_from_the_counters_and_older_figures_are_named(self):
        self.put()
        self.complete()
        self.assertNotIn("approximate", " ".join(self.check_valid()["data_quality"]["warnings"]))
        for published in (0, 10 * MIB, 60 * MIB):
            self.put(devices=[support.device_slot(1024, free_bytes=published, largest_free_bytes=min(published, 20 * MIB), inactive_split_bytes=0)])
            self.complete()
            report = self.check_valid()
            device = report["devices"][0]
            self.assertEqual((device["fragmentation"]["free_bytes"], device["ledger"]["free_releasable"], device["ledger"]["metadata"]), (30 * MIB, 30 * MIB, 0))
            words = f"approximate: published when {published} bytes were free" if published else "unknown: published when nothing was free"
            self.assertIn(words, " ".join(report["data_quality"]["warnings"]))
            self.assertEqual(device["fragmentation"]["external"] is None, not published)
            self.assertEqual("unknown now" in support.cupool("report", self.report).stdout, not published)

    def test_a_process_that_dies_at_its_peak_has_that_moment_s_figures(self):
        self.put(devices=[support.device_slot(1024, live_bytes_peak=30 * MIB, at_peak_live_bytes=20 * MIB)])
        self.complete()
        figures = self.check_valid()["devices"][0]["fragmentation"]
        self.assertEqual({**figures["at_peak"], "at_peak": None}, {**figures, "utilization": 30 / 64, "at_peak": None})

    def test_an_exit_without_a_report_keeps_its_code(self):
        self.put(state=2)
        self.complete({self.pid: 7 << 8})
        self.assertEqual(self.check_valid()["process"]["exit"], {"code": 7, "signal": None})

    def test_a_descendant_whose_end_nobody_saw(self):
        self.put()
        self.complete({})
        self.assertEqual(self.check_valid()["process"]["exit"], {"code": None, "signal": None})

    def test_pages_of_others_stay(self):
        for run_id in ("run2", "run10", "", "xrun1"):
            path = self.put(page_facts=self.facts(run_id))
            self.assertEqual(self.complete(), [])
            self.assertTrue(path.exists() and not self.report.exists(), run_id)

    def test_a_run_inside_the_run_belongs_to_it(self):
        self.put(page_facts=self.facts("run1.inner"))
        self.complete()
        self.check_valid()

    def test_a_living_process_is_left_alone(self):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        path = self.put(os.getpid(), ticks)
        self.assertEqual(self.complete(), [])
        self.assertTrue(path.exists())

    def test_a_page_that_another_process_has_locked_is_left_alone(self):
        path = self.put()
        program = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            self.assertEqual(owner.stdout.readline(), b"locked\n")
            self.assertEqual(self.complete(), [])
            self.assertTrue(path.exists())
            owner.stdin.close()
        self.complete()
        self.check_valid()

    def test_nothing_is_owed(self):
        unused = support.device_slot(1024, **{name: 0 for name, _ in support.COUNTERS}, **{f"{name}_peak": 0 for name, _ in support.COUNTERS})
        for case in ({"state": 3}, {"devices": []}, {"devices": [unused]}, {"page_facts": self.facts(report_path="")}):
            path = self.put(**case)
            self.assertEqual(self.complete(), [])
            self.assertFalse(self.report.exists() or path.exists(), case)

    def test_a_report_that_cannot_be_written_is_one_line(self):
        self.put(page_facts=self.facts(report_path="/proc/no/such/folder/report.json"))
        lines = self.complete()
        self.assertEqual(len(lines), 1)
        self.assertIn("no report", lines[0])
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.put(page_facts=self.facts(report_path=str(pipe)))
        self.assertIn("not a regular file", self.complete()[0])
        self.assertTrue(pipe.is_fifo())

    def test_earlier_ooms_are_taken_over(self):
        self.report.parent.mkdir()
        earlier = support.sample_report()
        earlier["process"]["pid"] = self.pid
        earlier.update(event="oom", final_of_series=False)
        earlier["ooms"][0].update(allocations_before=1, served_since=False)
        taken_over = [dict(earlier["ooms"][0], served_since=None)]  # what came after that report nobody has listed
        reports = [self.report.parent / f"report.oom{k}.json" for k in (1, 2)]
        for separators in ((", ", ": "), (",", ":")):  # as people and as the library write it
            for path in reports:
                path.write_text(json.dumps(earlier, separators=separators))
            self.put(oom_count=2)
            self.complete()
            self.assertEqual(self.check_valid()["ooms"], taken_over)
            self.assertEqual([json.loads(path.read_text()) for path in reports], [earlier, {**earlier, "final_of_series": True}])

    def test_an_oom_report_of_another_process_or_behind_a_link_is_not_marked(self):
        self.report.parent.mkdir()
        other = support.sample_report()
        other.update(event="oom", final_of_series=False)
        path, elsewhere = self.report.parent / "report.oom1.json", self.report.parent / "elsewhere.json"
        path.write_text(json.dumps(other))
        self.put(oom_count=1)
        self.complete()
        self.assertEqual(json.loads(path.read_text()), other)
        other["process"]["pid"] = self.pid
        elsewhere.write_text(json.dumps(other))
        path.unlink()
        path.symlink_to(elsewhere)
        self.put(oom_count=1)
        self.complete()
        self.assertEqual(json.loads(elsewhere.read_text()), other)

    def test_missing_oom_reports_are_said(self):
        self.put(oom_count=3)
        self.complete()
        self.assertIn("3 times", " ".join(self.check_valid()["data_quality"]["warnings"]))

    def test_numbers_that_do_not_fit_together_still_give_a_valid_report(self):
        for numbers in ({"live_bytes": 2 << 30}, {"requested_bytes": 31 * MIB, "requested_bytes_peak": 31 * MIB}, {"largest_free_bytes": 1 << 40},
                        {"live_bytes_peak": 0}, {"arrays": 1 << 50}, {"inactive_split_bytes": 1 << 40}, {"frees": 20},
                        {"reserved_bytes": 1, "reserved_bytes_peak": 1}, {"free_bytes": 2**64 - 1}):
            with self.subTest(numbers):
                self.put(devices=[support.device_slot(1024, **numbers)])
                self.complete()
                self.check_valid()
                self.report.unlink()

    def test_links_folders_and_strangers_are_not_opened(self):
        target = self.folder / "target"
        target.write_bytes(support.live_page(self.pid, self.ticks, self.facts()))
        (self.pages / f"{self.pid}.{self.ticks}").symlink_to(target)
        (self.pages / f"{self.pid}.1").mkdir()
        os.mkfifo(self.pages / f"{self.pid}.2")
        (self.pages / "README").write_text("hello")
        self.complete()
        self.assertFalse(self.report.exists())
        self.assertEqual(live_page.page_files(self.folder / "nothing"), [])
        link = self.folder / "link"
        link.symlink_to(self.pages)
        self.assertEqual(live_page.page_files(link), [])

    def test_pages_of_folders_that_stand_in_for_one_whose_name_is_taken_are_found(self):
        taken = self.folder / "taken"
        taken.mkdir(mode=0o777)
        taken.chmod(0o777)
        name = f"{self.pid}.{self.ticks}"
        for folder, mode in ((taken, 0o777), (self.folder / "taken.AAAAAA", 0o770), (self.folder / "taken.BBBBBB", 0o700)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
            (folder / name).write_bytes(support.live_page(self.pid, self.ticks, self.facts()))
        self.assertEqual(live_page.page_files(taken), [self.folder / "taken.BBBBBB" / name])
        with unittest.mock.patch.object(locate, "live_page_folder", return_value=taken):
            finding = doctor_machine._shared_memory()
        self.assertIn("taken.XXXXXX stands in for it", finding.detail)

    def test_a_page_under_another_processs_name_is_not_used(self):
        (self.pages / f"{self.pid}.{self.ticks}").write_bytes(support.live_page(self.pid + 1, self.ticks, self.facts()))
        self.assertEqual(self.complete(), [])
        self.assertFalse(self.report.exists())


class Malformed(unittest.TestCase):
    def setUp(self):
        self.page = support.live_page(5, 6, {"process": {}, "options": {}, "report_path": "/x"})

    def test_the_sample_is_read(self):
        page = live_page.parse(self.page)
        self.assertEqual((page.pid, page.start_ticks, page.state, len(page.devices)), (5, 6, "live", 1))
        self.assertEqual(page.devices[0].fragmentation["at_peak_live_bytes"], 40 * MIB)

    def test_every_truncation_is_refused(self):
        for length in [*range(0, 700), *range(700, len(self.page), 37)]:
            with self.assertRaises(live_page.BadPage, msg=length):
                live_page.parse(self.page[:length])

    def test_every_header_word_may_lie(self):
        for offset in range(0, 160, 4):
            for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(self.page) - 1, len(self.page)):
                damaged = self.page[:offset] + struct.pack("<I", value) + self.page[offset + 4:]
                try:
                    live_page.parse(damaged)
                except live_page.BadPage as error:
                    self.assertTrue(str(error))

    def test_random_damage_is_refused_or_read_but_never_crashes(self):
        numbers = random.Random(4711)
        for _ in range(3000):
            damaged = bytearray(self.page)
            for _ in range(numbers.randint(1, 12)):
                damaged[numbers.randrange(len(damaged) if numbers.random() < 0.5 else 700)] = numbers.randrange(256)
            try:
                page = live_page.parse(bytes(damaged))
                json.dumps(completion.build_report(page, None, 10**18))
            except live_page.BadPage:
                pass

    def test_json_bombs_are_refused(self):
        for text in ("[" * 100000, "{}}", '{"process": 3}', "nul", '"x"'):
            page = support.live_page(5, 6, {})
            at, = struct.unpack_from("<I", page, 64)
            page = page[:64] + struct.pack("<II", len(page), len(text)) + page[72:] + text.encode()
            self.assertGreater(at, 0)
            with self.assertRaises(live_page.BadPage, msg=text[:10]):
                live_page.parse(page)


if __name__ == "__main__":
    unittest.main()
