#!/usr/bin/env python3
"""A bounded run of the explorer: what must never hit, what must, every schedule that ever did, and what events a free costs."""
import argparse
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
GIVEN = argparse.Namespace(build=None)
PRESSURE = ("--memory", "24MiB")


def explore(*arguments):
    """(exit code, figures, stdout and stderr)"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "explore.py"), "--build", str(GIVEN.build), "--out", folder, "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"steps"') and '"hits"' in line]
    return done.returncode, json.loads(lines[-1] if lines else "{}"), done.stdout + done.stderr


class Races(unittest.TestCase):
    def never_hits(self, *arguments, steps="15000"):
        code, figures, said = explore("--steps", steps, *arguments)
        self.assertEqual((code, figures.get("hits")), (0, []), said)
        return figures

    def test_the_program_itself_is_correct_on_the_bare_driver(self):
        self.never_hits("--native", "--devices", "2")
        self.never_hits("--native", *PRESSURE)
        self.never_hits("--native", "--backing", "pages", *PRESSURE)

    def test_no_race_with_plain_frees(self):
        self.never_hits("--route", "plain")
        self.never_hits("--route", "plain", "--devices", "2", *PRESSURE)

    def test_no_race_in_stream_order(self):
        self.never_hits("--route", "ordered")
        self.never_hits("--route", "ordered", "--devices", "3", *PRESSURE)

    def test_no_race_when_both_are_mixed(self):
        self.never_hits("--devices", "2")
        figures = self.never_hits(*PRESSURE)
        self.assertGreater(figures["refused"], 0, "there was no pressure")

    def test_no_race_where_memory_is_plenty(self):
        self.never_hits("--memory", "64GiB", steps="200000")
        self.never_hits("--memory", "64GiB", "--route", "plain", "--devices", "2", steps="200000")
        self.never_hits("--native", "--memory", "64GiB", steps="200000")

    def test_no_race_while_memory_is_moved(self):
        for arguments in (PRESSURE, ("--memory", "64MiB", "--route", "ordered"), ("--memory", "64MiB", "--devices", "2", "--unlinked")):
            figures = self.never_hits("--backing", "pages", *arguments, steps="25000")
            self.assertGreater(figures["remaps"], 5, arguments)
            self.assertGreater(figures["moved_bytes"], 5 << 21, arguments)

    def test_no_race_while_large_handles_are_cracked(self):
        for policy in ("grow", "preallocate"):
            figures = self.never_hits("--backing", "pages", "--times", "64", "--memory", "4GiB", "--policy", policy)
            self.assertGreater(figures["remaps"], 5, policy)

    def test_a_thread_that_the_driver_keeps_while_memory_is_moved_keeps_no_other(self):
        for arguments in (PRESSURE, ("--memory", "256MiB", "--policy", "preallocate"), ("--memory", "64MiB", "--devices", "2")):
            self.never_hits("--backing", "pages", "--note-sync", "--may-be-kept", *arguments)

    def test_no_race_under_a_limit_a_threshold_and_preallocation(self):
        self.never_hits("--limit", "20MiB")
        self.never_hits("--memory", "64MiB", "--threshold", "4MiB")
        self.never_hits("--memory", "64MiB", "--policy", "preallocate")

    def test_no_race_with_the_drivers_own_pool(self):
        self.never_hits("--policy", "async", "--memory", "64MiB")
        self.never_hits("--policy", "async", "--route", "plain", "--devices", "2", *PRESSURE)

    def test_no_race_where_frees_synchronise(self):
        self.never_hits("--free", "sync", *PRESSURE)
        self.never_hits("--driver", "12000", "--devices", "2", *PRESSURE)
        self.never_hits("--driver", "11080", "--devices", "2", "--unlinked", "--threshold", "1MiB", "--backing", "pages", "--memory", "256MiB", "--route", "plain")

    def test_no_allocation_waits_where_no_event_covers_a_context(self):
        self.never_hits("--driver", "12030", "--backing", "pages", "--memory", "64MiB", "--limit", "50%", "--blocks", "16", "--seed", "764706", steps="90000")

    def test_what_streams_free_during_captures_is_refused_to_nobody_where_no_event_covers_a_context(self):
        figures = self.never_hits("--driver", "12040", "--route", "ordered", "--backing", "pages", "--memory", "512MiB", "--seed", "950101", steps="20000")
        self.assertGreater(figures["allocations"], 1000)
        self.assertEqual(figures["refused"], 0)

    def test_races_are_found_where_there_are_some_and_become_small_programs(self):
        code, figures, said = explore("--seed", "4", "--steps", "100000", "--free", "immediate", "--route", "plain", "--memory", "8GiB", "--shrink", "--shrink-limit", "60")
        self.assertEqual(code, 1, said)
        self.assertRegex(figures["hits"][0]["what"], "changed by somebody")
        self.assertLess(figures["hits"][0]["operations"], 12, said)

    def test_a_run_is_the_same_every_time(self):
        for backing in ("segments", "pages"):
            self.is_the_same_every_time(backing)

    def is_the_same_every_time(self, backing):
        program = [str(GIVEN.build / "tests" / "explorer" / "explorer"), "--seed", "5", "--steps", "8000"]
        env = {"LD_LIBRARY_PATH": str(GIVEN.build / "sim"), "LD_PRELOAD": str(GIVEN.build / "libcupool.so"), "CUPOOL_REPORT": "none", "CUPOOL_LOG": "off",
               "CUSIM_MEMORY": "32MiB", "CUSIM_REUSE_HANDLES": "1", "CUPOOL_BACKING": backing}
        others = ([], {}), (["--print"], {"MALLOC_ARENA_MAX": "1"})  # where the program's memory lies is not to matter
        said = [subprocess.run(program + more, env=env | variables, capture_output=True, text=True, timeout=60, check=True).stdout for more, variables in others]
        digests = [re.search('"digest": "(.*?)"', text).group(1) for text in said]
        self.assertEqual(digests[0], digests[1])

    def test_steady_training_costs_one_record_and_one_query_in_64_frees(self):
        for backing, more in (("segments", 1), ("pages", 8)):  # the work lags behind, so the pool grows, by less at a time on pages: each miss asks
            figures = self.never_hits("--route", "steady", "--memory", "8GiB", "--backing", backing, steps="80000")
            self.assertGreater(figures["frees"], 9000)
            for name in ("pool_records", "pool_queries"):
                print(f"{backing}: {name} per free: {figures[name] / figures['frees']:.5f} (1/64 is {1 / 64:.5f})")
                self.assertLessEqual(figures[name] * 64, figures["frees"] + 64 * more, name)

    def test_no_schedule_that_ever_hit_hits_again(self):
        schedules = sorted((HERE / "schedules").glob("*.txt"))
        self.assertTrue(schedules)
        for path in schedules:
            with self.subTest(path.name):
                code, _, said = explore("--replay", str(path))
                self.assertEqual(code, 0, said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.parse_known_args(namespace=GIVEN)
    unittest.main(argv=[sys.argv[0], "-v"], verbosity=2)
