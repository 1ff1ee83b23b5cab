"""`cupool fill`: reaches its target or says how far it came, frees in every ending, and runs under the preload as without."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from support import clean_environment, cupool, simulator_environment
from cupool_lib import fill

MIB = 1 << 20


class Sizes(unittest.TestCase):
    def test_sizes_read_as_the_library_reads_them(self):
        for text, amount in (("512MiB", 512 * MIB), ("8G", 8 << 30), ("8gb", 8 * 10**9), ("1.5GiB", 3 << 29), ("4096", 4096), (" 1 KiB ", 1024), (".5k", 512)):
            self.assertEqual(fill.parse_bytes(text), amount, text)
        for text in ("", "GiB", "-1", "1.5", "1e9", "8 foo", "99999999999G", "０"):
            with self.assertRaises(ValueError, msg=text):
                fill.parse_bytes(text)

    def test_targets(self):
        for text, of_a_thousand in (("90%", 900), ("0.25", 250), ("12.5%", 125), ("100%", 1000), ("300", 300), ("1KiB", 1024), ("0%", 0)):
            self.assertEqual(fill.Target.parse(text).of(1000), of_a_thousand, text)
        for text in ("101%", "1.5", "%", "most"):
            with self.assertRaises(ValueError, msg=text):
                fill.Target.parse(text)


class WithoutADriver(unittest.TestCase):
    def test_wrong_usage_and_no_driver(self):
        for arguments in (("--to", "101%"), ("--step", "0"), ("--hold", "-3"), ("--hold", "nan"), ("extra",)):
            result = cupool("fill", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("'x' is no number of seconds", cupool("fill", "--hold", "x").stderr)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "libcuda.so.1").write_bytes(b"no library")
            result = cupool("fill", env=clean_environment(LD_LIBRARY_PATH=folder))
        self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (1, "", 1))
        self.assertIn("libcuda.so.1", result.stderr)


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class Filling(unittest.TestCase):
    def lines(self, *arguments: object, code: int = 0, **variables: str) -> list[str]:
        result = cupool("fill", *arguments, env=simulator_environment(**variables))
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout.splitlines()

    def test_reaches_a_share_in_steps(self):
        lines = self.lines("--to", "90%", "--step", "2GiB")
        steps = [re.match(r"  \+(\S+ \S+): ", line)[1] for line in lines[1:-2]]
        self.assertEqual(steps, ["2.00 GiB", "2.00 GiB", "2.00 GiB", "1.20 GiB"])
        self.assertIn("(90.0%)", lines[-2])
        self.assertEqual(lines[-1], "freed 7.20 GiB")

    def test_a_target_that_is_met_already_takes_nothing(self):
        self.assertEqual(self.lines("--to", "0%")[-1], "freed 0 B")

    def test_the_device_is_really_taken_and_chosen(self):
        lines = self.lines("--to", "1GiB", "--device", "1", CUSIM_DEVICES="2")
        self.assertTrue(lines[0].startswith("GPU 1 ("))
        result = cupool("fill", "--device", "2", env=simulator_environment(CUSIM_DEVICES="2"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("no device 2", result.stderr)
        self.assertEqual(cupool("fill", "--device", "-1", env=simulator_environment()).returncode, 1)

    def test_what_cannot_be_reached_takes_all_there_is_and_ends_with_1(self):
        lines = self.lines("--to", "9GiB", "--step", "3GiB", code=1)
        self.assertEqual(lines[-2], "out of memory: 8.00 GiB taken, 8.00 GiB of 8.00 GiB in use (100.0%), 1.00 GiB short of 9GiB")
        self.assertEqual(lines[-1], "freed 8.00 GiB")

    def test_a_driver_that_fails_is_named(self):
        result = cupool("fill", env=simulator_environment(CUSIM_NO_DEVICE="1"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("CUDA_ERROR_NO_DEVICE", result.stderr)

    def test_holds_for_a_time(self):
        lines = self.lines("--to", "10%", "--hold", "0.01")
        self.assertEqual(lines[-2:], ["holding 819.20 MiB for 0.01 s", "freed 819.20 MiB"])

    def test_under_the_preload_the_limit_is_the_device_and_a_report_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "r.json"
            lines = self.lines("--to", "50%", "--step", "300MiB", LD_PRELOAD=str(support.LIBRARY), CUPOOL_LIMIT="2GiB", CUPOOL_REPORT=str(report))
            device = json.loads(report.read_text(encoding="utf-8"))["devices"][0]
        self.assertIn("1.00 GiB of 2.00 GiB in use (50.0%)", lines[-2])
        counters = device["counters"]
        self.assertEqual((counters["live_bytes"], counters["allocations"], counters["frees"]), ({"current": 0, "peak": 1 << 30}, 4, 4))
        with tempfile.TemporaryDirectory() as folder:
            lines = self.lines("--to", "3GiB", code=1, LD_PRELOAD=str(support.LIBRARY), CUPOOL_LIMIT="2GiB", CUPOOL_LOG="off", CUPOOL_REPORT=f"{folder}/r.json")
        self.assertIn("2.00 GiB taken", lines[-2])


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class Signals(unittest.TestCase):
    def start(self, *arguments: str, **options) -> subprocess.Popen:
        process = subprocess.Popen([str(support.CUPOOL), "fill", *arguments], env=simulator_environment(), stdout=subprocess.PIPE, text=True, **options)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.stdout.close(), process.wait()))
        return process

    def test_a_signal_ends_the_holding_frees_and_is_the_ending(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for hold in (("--hold",), ("--hold", "until-signal"), ("--hold", "100000")):
                process = self.start("--to", "10%", *hold)
                while not process.stdout.readline().startswith("holding"):
                    self.assertIsNone(process.poll())
                process.send_signal(number)
                self.assertEqual(process.stdout.read(), "freed 819.20 MiB\n")
                self.assertEqual(process.wait(timeout=30), -number)

    def test_a_signal_ends_the_filling(self):
        process = self.start("--to", "100%", "--step", "2MiB")  # more lines than the pipe holds: it cannot finish before we read
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read().splitlines()
        self.assertEqual(process.wait(timeout=30), -signal.SIGTERM)
        self.assertTrue(rest[-1].startswith("freed "), rest[-1])
        self.assertFalse([line for line in rest if line.startswith("reached")])

    def test_an_ignored_signal_stays_ignored(self):
        process = self.start("--to", "10%", "--hold", "0.5", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), restore_signals=False)
        while not process.stdout.readline().startswith("holding"):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(timeout=30), 0)


if __name__ == "__main__":
    os.chdir("/")
    unittest.main()
