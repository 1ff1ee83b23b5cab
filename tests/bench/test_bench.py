"""The benches run, their figures are of the kind they claim, and a pool that reuses memory too early is caught."""

from __future__ import annotations

import gzip
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


class Usage(unittest.TestCase):
    def program(self, name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
        if not (BUILD / "bench" / name).is_file():
            self.skipTest(f"{name} is not built")
        return run(BUILD / "bench" / name, *arguments, LD_LIBRARY_PATH=str(BUILD / "sim"), **variables)

    def test_help_is_no_error(self):
        for name in ("identical_steps", "pinned_blocks", "full_device", "page_model"):
            done = self.program(name, "--help", CUSIM_NO_DEVICE="1")
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertTrue(done.stdout.startswith(f"Usage: {name} "), done.stdout)
            done = self.program(name, *(["what"] if name in ("identical_steps", "full_device") else []))
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)

    def test_identical_steps_says_which_setting_it_does_not_understand(self):
        for setting in ("memory=", "memory=x", "memory=1", "jobs=", "jobs=-1", "jobs=0", "steps=2", "jobs=1x", "times=", "times=-3", "times=nan", "shape=round", "wait="):
            done = self.program("identical_steps", setting)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), (setting, done.stderr))
        done = self.program("identical_steps", "jobs=1", "steps=3", "memory=80.5GB")
        self.assertEqual((done.returncode, done.stderr, json.loads(done.stdout)["failed"]), (0, "", 0))


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class RepeatedSteps(WithTrace):
    def setUp(self):
        super().setUp()
        # Weights that stay, and a step of 40 blocks of which ten live at once.
        events = [f"a 1000 {8 * MIB} 0\n"]
        for i in range(40):
            events.append(f"a {i} {(1 + i % 3) * 4 * MIB} 0\n" + (f"f {i - 9}\n" if i >= 9 else ""))
        events += [f"f {i}\n" for i in range(31, 40)]
        self.trace.write_text('# {"workload": "step"}\n' + "".join(events), encoding="utf-8")

    def test_each_step_is_counted_and_what_the_first_one_left_stays(self):
        done = run(PROGRAM, "--json", "--steps", 5, self.trace, LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_MEMORY="1GiB")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        steps = json.loads(done.stdout)["steps"]
        self.assertEqual([step["memory_calls"] for step in steps], [81, 80, 80, 80, 80])
        for wrong in ("0", "-1", "x"):
            self.assertEqual(run(PROGRAM, "--steps", wrong, self.trace, LD_LIBRARY_PATH=str(BUILD / "sim")).returncode, 2, wrong)

    def test_the_script_tells_what_later_steps_call_and_when_they_have_to_wait(self):
        rows = self.script("repeated_steps.py", "--steps", 8, "--pending", 0, "--pending", 30, "--device", "1.2x", "--device", "1GiB", self.trace)["rows"]
        self.assertEqual([(row["behind"], row["device"]) for row in rows], [(0, "1.2x"), (0, "1GiB"), (30, "1.2x"), (30, "1GiB")])
        for row in rows:
            self.assertEqual(len(row["steps"]), 8)
        self.assertEqual(rows[0]["peak_bytes"], (8 + 80 + 4) * MIB)
        self.assertGreater(rows[2]["unavailable_bytes"], rows[2]["device_bytes"])
        self.assertIn("1.2x *", self.output)
        self.assertEqual([step["memory_calls"] for step in rows[1]["steps"][2:]], [0] * 6)
        platform = self.script("repeated_steps.py", "--steps", 4, "--pending", 0, "--device", "1GiB", "--policy", "platform", self.trace)["rows"]
        self.assertEqual([step["memory_calls"] for step in platform[0]["steps"]], [81, 80, 80, 80])

    def test_arguments(self):
        damaged = self.folder / "damaged.trace"
        damaged.write_text("a 1 x 0\n", encoding="utf-8")
        done = run(sys.executable, "-B", BENCH / "repeated_steps.py", "--build", BUILD, damaged)
        self.assertEqual((done.returncode, done.stderr), (1, f"{damaged}:1: not an event of a trace: 'a 1 x 0'\n"))
        for wrong in (("--steps", "3"), ("--device", "x"), ("--device", "0.5x"), ("--device", "nan"), ("--pending", "-1")):
            done = run(sys.executable, "-B", BENCH / "repeated_steps.py", *wrong, self.trace)
            self.assertEqual((done.returncode, done.stdout), (2, ""), wrong)


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class PinnedBlocks(unittest.TestCase):
    def missing_bytes(self, memory: int, large: int, **variables: str) -> int:
        done = run(BUILD / "bench" / "pinned_blocks", large // 1024, 40, LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_MEMORY=str(memory), **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["missing_bytes"]

    def test_on_pages_small_blocks_that_stay_keep_little_from_large_ones(self):
        for memory, large in ((16 * 1024 * MIB, 32 * MIB), (1024 * MIB, MIB)):
            with self.subTest(memory=memory, large=large):
                self.assertLess(self.missing_bytes(memory, large), 16 * MIB)
                self.assertLess(self.missing_bytes(memory, large, LD_PRELOAD=str(BUILD / "libcupool.so"), CUPOOL_REPORT="none"), memory // 20)


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class FullDevice(unittest.TestCase):
    def refused(self, *more: object, percent: int = 98, memory: str = "80GiB", **variables: str) -> int:
        done = run(BUILD / "bench" / "full_device", 1, percent, *more, LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_MEMORY=memory, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertGreater(figures["peak_of_free"], percent / 100 - 0.005)
        return figures["refused"]

    def test_on_pages_random_blocks_fill_a_device_as_they_do_natively(self):
        self.assertEqual(self.refused(), 0)
        self.assertLess(self.refused(LD_PRELOAD=str(BUILD / "libcupool.so"), CUPOOL_REPORT="none"), 6)  # 68 in handles of up to 256 MiB

    def test_so_they_do_with_work_pending_and_on_streams(self):
        for behind, streams in ((256, 0), (0, 2), (256, 2)):
            self.assertLess(self.refused(behind, streams, LD_PRELOAD=str(BUILD / "libcupool.so"), CUPOOL_REPORT="none"), 10, (behind, streams))

    def test_blocks_of_whole_pages_are_refused_nothing_that_is_free(self):
        for memory, most_mib in (("16GiB", 64), ("80GiB", 256)):
            for more in ({}, {"CUPOOL_POLICY": "preallocate"}):  # without cracking 1,753 to 3,425 in all but the first
                with self.subTest(memory=memory, **more):
                    self.assertEqual(self.refused(0, 0, most_mib, percent=97, memory=memory, LD_PRELOAD=str(BUILD / "libcupool.so"), CUPOOL_REPORT="none", **more), 0)


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
        self.assertEqual({row.get("measured_at_bytes", 0) % (2 * MIB) for row in rows.values()}, {0})
        self.assertEqual((rows["driver"]["needs_bytes"], rows["driver"]["memory_calls_per_allocation"]), (8 * MIB, 2.0))
        self.assertLess(rows["grow"]["memory_calls_per_allocation"], 2.0)
        self.assertGreater(rows["grow"]["deferred_peak_bytes"], 0)
        self.assertNotIn("needs_bytes", rows["glibc"])
        of = {line[:21].strip(): line[21:].split() for line in self.output.splitlines()}
        self.assertEqual(of["case"][-4:], ["memory", "few", "calls", "both"])
        self.assertEqual(of["driver"][-3:], ["1", "0", "0"])  # it needs the peak, and two calls for each allocation

    def test_replay_counts_the_jobs_that_meet_the_goals(self):
        code = ("import json, replay\n"
                "print(json.dumps([replay.meets_goals({'peak_live_bytes': 100 << 20, 'needs_bytes': needs, 'memory_calls_per_allocation': calls})\n"
                "                  for needs, calls in ((110 << 20, 0.1), ((110 << 20) + 1, 0.101), (None, None))]))")
        done = run(sys.executable, "-B", "-c", code, PYTHONPATH=str(BENCH))
        self.assertEqual((json.loads(done.stdout), done.stderr), ([[True, True], [False, False], [False, False]], ""))

    def test_host_memory_sees_what_the_pool_costs_and_what_the_timeline_does(self):
        row = self.script("host_memory.py", "--repeat", 1, self.trace)["rows"][0]
        self.assertEqual((row["trace"], row["peak_live_bytes"]), ("turns", 8 * MIB))
        for kind in ("resident", "written", "written_without_timeline"):
            self.assertGreater(row[f"{kind}_bytes"], 0)
            self.assertLess(row[f"{kind}_bytes"], 64 * MIB)
        self.assertNotEqual(run(sys.executable, "-B", BENCH / "host_memory.py", "--build", BUILD, "/no/such.trace").returncode, 0)

    def test_wrong_counts_and_files_that_cannot_be_written_are_one_line_before_anything_is_measured(self):
        for name in ("startup.py", "host_memory.py", "hot_path.py", "replay.py"):
            for arguments in (("--json", "/nope/x"), ("--json", "/"), ("--repeat", "x"), *(() if name == "replay.py" else (("--repeat", "0"),))):
                done = run(sys.executable, "-B", BENCH / name, "--build", BUILD, *arguments)
                self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), (name, arguments, done.stderr))
                self.assertIn(arguments[1], done.stderr)

    def test_startup_measures_each_case(self):
        rows = self.script("startup.py", "--repeat", 1)["rows"]
        self.assertEqual(set(rows), {"plain", "cupool off", "cupool grow"})

    def test_replay_names_what_it_does_not_know(self):
        for arguments in (["--cases", "fast"], ["--pending", "x"], ["--repeat", "-1"], ["/no/such.trace"]):
            done = run(sys.executable, "-B", BENCH / "replay.py", "--build", BUILD, *arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertTrue(done.stderr.strip().splitlines()[-1], arguments)

    def test_replay_says_in_one_line_what_is_no_trace(self):
        whole = gzip.compress(b"# {}\na 1 512 0\nf 1\n")
        with tempfile.TemporaryDirectory() as folder:
            damaged = Path(folder, "damaged.trace.gz")
            for data in (b"", b"# {}\n", b"# a text\n\nnothing\n", b"a 1 x 0\n", b"a 1\n", b"f 7\n", whole[:-9], whole[:14] + b"\xff" * 20, b"\xc5\x00\xff"):
                damaged.write_bytes(data)
                done = run(sys.executable, "-B", BENCH / "replay.py", "--build", BUILD, "--cases", "grow", damaged)
                self.assertNotEqual(done.returncode, 0, data)
                self.assertTrue(done.stderr.startswith(str(damaged)), (data, done.stderr))
                self.assertEqual(len(done.stderr.splitlines()), 1, (data, done.stderr))

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

    def test_hot_path_goes_on_without_a_case_that_breaks(self):
        done = run(sys.executable, "-B", "-c", "import pathlib, sys; import hot_path\n"
                   "build = pathlib.Path(sys.argv[1]); program = str(build / 'bench' / 'hot_path')\n"
                   "cases = [hot_path.Case('no such', [program, 'no-such-allocator']), hot_path.Case('glibc', [program, 'glibc'])]\n"
                   "pairs = hot_path.run_pairs(build, cases, 2, '--quick')\n"
                   "print(sorted({row['case'] for row in pairs.rows}), len(pairs.shapes), pairs.broken)", BUILD, PYTHONPATH=str(BENCH))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^\['glibc'\] 2 \{'no such': .no such ended with 2: .*no-such-allocator")

    def test_a_thread_whose_blocks_do_not_fit_stops_nobody(self):
        # A ring of one thread is 16 GiB of these, rings of two are 32; the shape after it finds all memory free again.
        done = run(BUILD / "bench" / "hot_path", "driver", f"{2 << 30}:2:0", f"{2 << 30}:1:0", LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_MEMORY="20GiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([len(json.loads(line)["ns_per_pair"]) > 0 for line in done.stdout.splitlines()], [False, True])
        self.assertIn("cuMemAlloc failed with 2", done.stderr)


@unittest.skipUnless(HAS_PARTS, "the library, the simulated driver or the replay program is not built")
class Peers(WithTrace):
    COMMAND = ROOT / "scripts" / "compare-peers"

    def test_arguments(self):
        self.assertIn("--with-torch", run(self.COMMAND, "--help").stdout)
        for arguments in (["--no-rmm"], ["--what"], ["--repeat", "x"], ["--pairs", "512"], ["--pairs", "512:0:0"], ["--pairs", "--repeat", 0]):
            self.assertEqual(run(self.COMMAND, *arguments).returncode, 2, arguments)
        self.assertIn("no such trace", run(self.COMMAND, "--build", BUILD, "/no/such.trace").stderr)

    def test_pairs_of_a_stand_in_stand_beside_ours(self):
        """The driver in a peer's place, one that breaks beside it: neither is fetched or compiled."""
        figures, table = self.folder / "pairs.json", self.folder / "pairs.md"
        done = run(sys.executable, "-B", "-c", "import importlib.machinery, importlib.util, sys\n"
                   "loader = importlib.machinery.SourceFileLoader('compare_peers', sys.argv[1])\n"
                   "peers = importlib.util.module_from_spec(importlib.util.spec_from_loader('compare_peers', loader))\n"
                   "sys.modules['compare_peers'] = peers\n"
                   "loader.exec_module(peers)\n"
                   "case = lambda build, name: peers.measure.Case(name, [str(build / 'bench' / 'hot_path'), name], variables=peers.PAIRS_MEMORY)\n"
                   "peers.cases_of = lambda peer, folder, build, pairs: [case(build, name) for name in ('driver-pool', 'nobody') if pairs]\n"
                   "sys.argv = sys.argv[1:]\n"
                   "sys.exit(peers.main())", self.COMMAND, "--build", BUILD, "--pairs", "--repeat", 1, "--json", figures, "--markdown", table,
                   "512:1:0", f"{300 << 30}:1:0")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("compare-peers: nobody ended with 2", done.stderr)
        rows = {row["case"]: row["ns_per_pair"] for row in json.loads(figures.read_text(encoding="utf-8"))["rows"] if row["bytes"] == 512}
        ours = ("cupool", "cupool async", "library", "library async")
        self.assertEqual(set(rows), {*ours, "driver-pool", "driver", "driver async", "mimalloc"})
        beside = done.stdout[done.stdout.index("÷ cheapest peer"):].splitlines()
        peer_ns = rows["driver-pool"]["median"]
        self.assertEqual(beside[1].split()[2:], ["driver-pool", f"{peer_ns:.0f}", *(f"{rows[name]['median'] / peer_ns:.2f}" for name in ours)])
        self.assertEqual(beside[2].split()[2:], ["-"] * 6, "nobody holds blocks larger than the device")
        self.assertTrue(table.read_text(encoding="utf-8").startswith(f"| pair of | {' | '.join(ours)} | driver-pool | nobody | driver |"))

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
        pairs = run(self.COMMAND, "--build", BUILD, "--pairs", "--repeat", 1, "--json", figures, *flags, "4096:2:100")
        self.assertEqual(pairs.returncode, 0, pairs.stdout + pairs.stderr)
        rows = {row["case"]: row["ns_per_pair"] for row in json.loads(figures.read_text(encoding="utf-8"))["rows"]}
        for name, there in (("rmm arena", stamps["rmm"]), ("torch async", stamps["torch"])):
            self.assertEqual(rows.get(name) is not None, there, pairs.stderr)

    def test_an_arena_waits_for_the_stream_of_a_large_free(self):
        """The wait must not go to the runtime inside librmm.so: it serves no driver but NVIDIA's, and its failure is not seen."""
        if not (ROOT / "build" / "peers" / "rmm" / "requirements.txt").is_file():
            self.skipTest("RMM was not fetched: scripts/compare-peers")
        turns = self.folder / "streams.trace"
        turns.write_text('# {"workload": "streams"}\n' + "".join(f"a {i} {4 * MIB} {i % 2}\nf {i}\n" for i in range(40)), encoding="utf-8")
        figures = self.folder / "peers.json"
        done = run(self.COMMAND, "--build", BUILD, "--repeat", 0, "--json", figures, turns)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {row["case"]: row for row in json.loads(figures.read_text(encoding="utf-8"))["rows"]}
        self.assertGreaterEqual(rows["rmm arena"]["memory_calls_per_allocation"], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
