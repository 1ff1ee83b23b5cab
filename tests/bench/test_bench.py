"""The benches run, their figures are of the kind they claim, and a pool that reuses memory too early is caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
BUILD = Path(os.environ.get("TEST_BUILD_FOLDER", ROOT / "build"))
PROGRAM = BUILD / "bench" / "replay"
HAS_PARTS = PROGRAM.is_file() and (BUILD / "libcupool.so").is_file() and (BUILD / "sim" / "libcudart.so.13").exists()
MIB = 1 << 20
# One block at a time, of two sizes, each twice in a row.
TURNS = '# {"workload": "turns"}\n' + "".join(f"a {i} {(1 + i // 2 % 2) * 4 * MIB} 0\nf {i}\n" for i in range(40))


def run(*command: object, **variables: str) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUPOOL_", "CUSIM_", "LD_"))}
    return subprocess.run([str(word) for word in command], env={**clean, **variables}, text=True, capture_output=True, check=False, timeout=200)


class WithTrace(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.trace = self.folder / "turns.trace"
        self.trace.write_text(TURNS, encoding="utf-8")

    def script(self, name: str, *arguments: object) -> dict:
        figures = self.folder / "figures.json"
        done = run(sys.executable, "-B", BENCH / name, "--build", BUILD, "--json", figures, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.output = done.stdout
        return json.loads(figures.read_text(encoding="utf-8"))


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class PendingWork(WithTrace):
    def play(self, **variables: str) -> subprocess.CompletedProcess:
        return run(PROGRAM, "--pending", 8, "--json", self.trace, LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_MEMORY="1GiB", **variables)

    def preloaded(self, **variables: str) -> subprocess.CompletedProcess:
        return self.play(LD_PRELOAD=str(BUILD / "libcupool.so"), **variables)

    def test_the_pool_really_defers_and_the_driver_alone_needs_not(self):
        report = self.folder / "report.json"
        self.assertEqual(self.play().returncode, 0)
        self.assertEqual(self.preloaded(CUPOOL_REPORT=str(report)).returncode, 0)
        deferred = json.loads(report.read_text(encoding="utf-8"))["devices"][0]["counters"]["deferred_bytes"]["peak"]
        self.assertGreaterEqual(deferred, 8 * 4 * MIB)

    def test_memory_that_is_reused_under_pending_work_is_found_corrupt(self):
        done = self.preloaded(CUPOOL_FREE="immediate", CUPOOL_REPORT="none")
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertIn("changed under pending work", done.stderr)

    def test_it_needs_the_simulated_driver(self):
        done = run(PROGRAM, "--pending", 8, self.trace, LD_LIBRARY_PATH=str(self.folder))
        self.assertNotEqual(done.returncode, 0)
        for bad in ("0", "-1", "many"):
            self.assertEqual(run(PROGRAM, "--pending", bad, self.trace, LD_LIBRARY_PATH=str(BUILD / "sim")).returncode, 2)


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class Scripts(WithTrace):
    def test_replay_finds_the_smallest_device_and_counts_the_drivers_calls(self):
        rows = {row["case"]: row for row in self.script("replay.py", "--repeat", 1, "--pending", 4, self.trace)["rows"]}
        self.assertEqual(set(rows), {"driver", "driver, async", "grow", "preallocate", "platform", "grow, async", "grow, segments", "grow, segments, async",
                                     "grow, pages", "grow, pages, async", "glibc", "mimalloc"})
        for name, row in rows.items():
            self.assertEqual((row["peak_live_bytes"], row["allocations"]), (8 * MIB, 40), name)
            self.assertGreater(row["ns_per_call"]["median"], 0, name)
        self.assertEqual((rows["driver"]["needs_bytes"], rows["driver"]["memory_calls_per_allocation"]), (8 * MIB, 2.0))
        self.assertLess(rows["grow"]["memory_calls_per_allocation"], 2.0)
        self.assertGreater(rows["grow"]["deferred_peak_bytes"], 0)
        self.assertNotIn("needs_bytes", rows["glibc"])

    def test_replay_names_what_it_does_not_know(self):
        for arguments in (["--cases", "fast"], ["--pending", "x"], ["--repeat", "-1"], ["/no/such.trace"]):
            done = run(sys.executable, "-B", BENCH / "replay.py", "--build", BUILD, *arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertTrue(done.stderr.strip().splitlines()[-1], arguments)

    def test_replay_says_so_when_a_run_is_broken(self):
        done = run(sys.executable, "-B", "-c", "import sys; sys.argv = ['replay.py', *sys.argv[1:]]; import replay\n"
                   "make = replay.all_cases\n"
                   "replay.all_cases = lambda build: [replay.Case('grow', make(build)[2].command, 'grow', variables={'CUPOOL_FREE': 'immediate'})]\n"
                   "sys.exit(replay.main())", "--build", BUILD, "--repeat", 1, self.trace, PYTHONPATH=str(BENCH))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("changed under pending work", done.stdout)

    def test_hot_path_measures_every_allocator_in_every_shape(self):
        rows = self.script("hot_path.py", "--quick", "--repeat", 1)["rows"]
        self.assertEqual(len({row["case"] for row in rows}), 8)
        self.assertEqual(len(rows), 16)
        for row in rows:
            self.assertGreater(row["ns_per_pair"]["median"], 0, row)
        self.assertIn("4 MiB, 2 threads, 100 live blocks", self.output)


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class Peers(WithTrace):
    COMMAND = ROOT / "scripts" / "compare-peers"

    def test_arguments(self):
        self.assertIn("--with-torch", run(self.COMMAND, "--help").stdout)
        for arguments in (["--no-rmm"], ["--what"], ["--repeat", "x"]):
            self.assertEqual(run(self.COMMAND, *arguments).returncode, 2, arguments)
        self.assertIn("no such trace", run(self.COMMAND, "--build", BUILD, "/no/such.trace").stderr)

    def test_a_tiny_run_of_each_peer_that_was_fetched(self):
        """Never fetches: what an earlier compare-peers left in build/peers is played."""
        stamps = {name: (ROOT / "build" / "peers" / name / "requirements.txt").is_file() for name in ("rmm", "torch")}
        if not any(stamps.values()):
            self.skipTest("no peer was fetched: scripts/compare-peers [--with-torch]")
        figures = self.folder / "peers.json"
        flags = [*(["--with-torch"] if stamps["torch"] else []), *([] if stamps["rmm"] else ["--no-rmm"])]
        done = run(self.COMMAND, "--build", BUILD, "--repeat", 1, "--json", figures, *flags, self.trace)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {row["case"]: row for row in json.loads(figures.read_text(encoding="utf-8"))["rows"]}
        for name, there in (("rmm pool", stamps["rmm"]), ("torch expandable", stamps["torch"])):
            self.assertEqual(name in rows and rows[name]["ratio"] is not None, there, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
