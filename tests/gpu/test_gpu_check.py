#!/usr/bin/env python3
"""Tests of scripts/gpu-check itself, on the simulated driver: the JSON's shape, the table, limits, choice of parts, exit codes.

Over 400 lines because every part of the one command is checked through the one dry run that the first class makes.
TEST_BUILD_FOLDER names the build folder. The parts called self_* exist for these tests only (GPU_CHECK_SELF_TEST).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TEST_BUILD_FOLDER", ROOT / "build"))
STATUSES = {"passed", "failed", "timeout", "skipped"}
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "gpu" / "check"))
sys.path.insert(1, str(ROOT / "tests" / "gpu" / "frameworks"))

import bounded  # noqa: E402
import goals  # noqa: E402
import native  # noqa: E402
import outcome  # noqa: E402
import pairs  # noqa: E402
import reports  # noqa: E402
import result  # noqa: E402
import routes  # noqa: E402
import training  # noqa: E402
from place import Place  # noqa: E402


class Run:
    """One run of gpu-check with an out folder of its own."""

    def __init__(self, *words: str, self_test: bool = False, **environment: str) -> None:
        kept = {key: value for key, value in os.environ.items() if key != "GPU_CHECK_SELF_TEST"}
        kept.update(environment, **({"GPU_CHECK_SELF_TEST": "1"} if self_test else {}))
        with tempfile.TemporaryDirectory(prefix="gpu-check-test-") as folder:
            done = subprocess.run([str(ROOT / "scripts" / "gpu-check"), "--build", str(BUILD), "--out", folder, *words],
                                  env=kept, capture_output=True, text=True, timeout=220, check=False)
            self.code, self.out, self.errors = done.returncode, done.stdout, done.stderr
            self.files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json")}
            self.logs = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).glob("*.log")}

    @property
    def json(self) -> dict:
        (only,) = self.files.values()
        return only

    def part(self, name: str) -> dict:
        return next(part for part in self.json["parts"] if part["name"] == name)


class Reports(unittest.TestCase):
    def test_of_memory_that_a_framework_maps_itself_the_report_must_have_seen_a_gibibyte(self) -> None:
        sample = json.loads((ROOT / "tests/scripts/sample_report.json").read_text(encoding="utf-8"))
        counters = sample["devices"][0]["counters"]
        place = Place(BUILD, False)
        valid, place.run = place.run, lambda *_, **__: bounded.Ended(0, "", "", False, 0.0)  # `cupool validate` has tests of its own
        try:
            for peak, fault in ((1 << 30, ""), (1 << 20, "1048576 bytes were seen outside the pool, expected at least 1073741824")):
                counters["outside_bytes"] = {"current": 0, "peak": peak}
                path = place.scratch / "report.json"
                path.write_text(json.dumps(sample), encoding="utf-8")
                found, figures = reports.judge(place, str(path), 1 << 60, maps_itself=True)
                self.assertEqual((found, figures["peak_outside_bytes"]), (fault, peak))
                self.assertIn("allocations reached the pool, expected at least", reports.judge(place, str(path), 1 << 60)[0])
        finally:
            place.run = valid
            place.close()


class Files(unittest.TestCase):
    def test_a_second_run_of_a_day_replaces_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            names = [result.write(Path(folder), {"date": "2026-11-27T01:00:00", "simulated": False, "machine": {"driver": {"device": "A B"}}, "n": n}, []).name
                     for n in range(3)]
            self.assertEqual(names, ["2026-11-27-a-b.json", "2026-11-27-a-b-2.json", "2026-11-27-a-b-3.json"])
            self.assertEqual([json.loads((Path(folder) / name).read_text())["n"] for name in names], [0, 1, 2])
            self.assertEqual(list(Path(folder).glob("*.log")), [])


class DryRun(unittest.TestCase):
    """Every part once on the simulated driver."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.run_once = Run("--dry-run")

    def test_every_part_that_needs_no_gpu_passes(self) -> None:
        bad = [(part["name"], part["reason"]) for part in self.run_once.json["parts"] if part["status"] in ("failed", "timeout")]
        self.assertEqual(bad, [], self.run_once.out + self.run_once.errors)
        self.assertEqual(self.run_once.code, 0, self.run_once.out)

    def test_parts_that_need_a_gpu_are_skipped_with_the_reason(self) -> None:
        for name in ("torch", "jax", "cupy", "both", "graphs", "loader", "compile", "calls_static", "kernels_shared", "kernels_static", "verify_static"):
            part = self.run_once.part(name)
            self.assertEqual((part["status"], part["reason"]), ("skipped", "no GPU"))
            self.assertRegex(self.run_once.out, rf"(?m)^{name} +skipped +\S+  skipped: no GPU$")

    def test_the_json_has_its_shape(self) -> None:
        (name,) = self.run_once.files
        self.assertRegex(name, r"^\d{4}-\d\d-\d\d-simulated\.json$")
        data = self.run_once.json
        self.assertEqual(data["schema"], "cupool.gpu-check/1")
        self.assertTrue(data["simulated"])
        self.assertLessEqual({"driver", "python", "kernel", "cpus"}, set(data["machine"]))
        self.assertEqual(sum(data["summary"][status] for status in STATUSES), len(data["parts"]))
        for part in data["parts"]:
            self.assertLessEqual({"name", "question", "status", "reason", "limit_s", "wall_s", "differing", "answers", "goals"}, set(part))
            self.assertIn(part["status"], STATUSES)
            for answer in part["answers"]:
                self.assertTrue("answer" in answer or "left_out" in answer, answer)

    def test_the_simulated_driver_answers_what_the_code_assumes(self) -> None:
        """Else simulator and code have drifted apart, and every other test means less."""
        differing = [(part["name"], one) for part in self.run_once.json["parts"] for one in part["answers"]
                     if "assumed" in one and one["answer"] != one["assumed"]]
        self.assertEqual(differing, [])

    def test_the_probes_ask_what_the_facts_leave_open(self) -> None:
        asked = {part["name"]: [one["question"] for one in part["answers"] if "answer" in one] for part in self.run_once.json["parts"]}
        rows = sum(1 for line in (ROOT / "shim" / "entry_points.def").read_text(encoding="utf-8").splitlines()
                   if line.startswith("HOOK(") and int(line.split(",")[2]) <= 13000)  # the rest is newer than the simulated driver
        self.assertEqual(sum("against dlsym" in question for question in asked["lookups"]), rows)
        wanted = {"calls_shared": "driver calls of cudaMalloc: those about memory", "ipc": "cuIpcGetMemHandle of an interior address",
                  "codes": "size of a block of 1000003 bytes: cuMemGetAddressRange", "pointers": "SYNC_MEMOPS of the block allocated after it",
                  "contexts": "no current context: cuMemFree of a live block", "fork": "forked child: cuInit",
                  "capture": "cuEventQuery during a global capture, same thread, its mode exchanged to relaxed",
                  "exit": "destructor of a global: cuMemFree", "overlap": "cuMemUnmap of 64 MiB while another stream works",
                  "vmm_copies": "mapped memory to another context of the device, cuMemcpyPeer",
                  "waits": "cuMemFree: owner A, current B, work in B", "stream_ordered": "the context of its stream is destroyed: cuMemFreeAsync",
                  "mempools": "cuMemPoolTrimTo(0), a free waits for running work: it waited for the work",
                  "graph_memory": "captured cuMemFreeAsync of cuMemAlloc memory: the capture lives",
                  "startup": "bytes of the device that loading a module takes",
                  "costs": "cost of cuCtxRecordEvent, one stream", "costs_vmm": "cost of cuMemCreate, 256 MiB handles"}
        for part, question in wanted.items():
            self.assertIn(question, asked[part])

    def test_what_is_known_to_be_open_still_is(self) -> None:
        said = [one["answer"] for part in self.run_once.json["parts"] for one in part["answers"] if one["question"].startswith("open: ")]
        for pattern, why in native.OPEN:
            self.assertTrue(any(re.match(pattern, sentence) for sentence in said), f"mended? take it out of native.OPEN: {pattern} ({why})")

    def test_costs_are_medians_with_their_spread(self) -> None:
        for part in ("costs", "costs_vmm"):
            for one in self.run_once.part(part)["answers"]:
                if one["question"].startswith("cost of"):
                    figures = one["answer"]
                    self.assertLessEqual(figures["p10_ns"], figures["median_ns"])
                    self.assertLessEqual(figures["median_ns"], figures["p99_ns"])
                    self.assertGreaterEqual(figures["count"], 10)

    def test_the_program_under_the_pool_was_really_pooled(self) -> None:
        answers = {one["question"]: one["answer"] for one in self.run_once.part("verify_shared")["answers"]}
        for policy in ("grow", "preallocate", "platform"):
            self.assertEqual(answers[f"{policy}: wrong bytes"], 0)
            self.assertEqual(answers[f"{policy}: report"]["policy"], policy)
        calls = {policy: sum(n for name, n in answers[f"{policy}: report"]["driver_calls"].items() if name.startswith("cuMemAlloc"))
                 for policy in ("grow", "platform")}
        self.assertLess(calls["grow"], calls["platform"] / 10)


    def test_a_python_program_goes_the_way_of_the_frameworks(self) -> None:
        part = self.run_once.part("python")
        answers = {one["question"]: one["answer"] for one in part["answers"] if "answer" in one}
        left_out = {one["question"]: one["left_out"] for one in part["answers"] if "left_out" in one}
        for route in routes.COMPARISONS["python"].routes:
            self.assertEqual(len(answers[f"{route.name}: losses, fixed lengths"]), 20)
            self.assertLessEqual(answers[f"{route.name}: steps, varying lengths"]["p10_ns"], answers[f"{route.name}: steps, varying lengths"]["p90_ns"])
            self.assertIn("no NVML", left_out[f"{route.name}: peak memory, fixed lengths"])
            self.assertGreater(answers[f"{route.name}: largest batch that fits, fixed lengths"], 16)
            if route.name != "natively":
                self.assertEqual(answers[f"{route.name}: losses are the native ones"], "to the last bit")
            if route.is_pooled:
                self.assertGreaterEqual(answers[f"{route.name}: report"]["allocations"], 40)

    def test_no_goal_is_judged_on_the_simulated_driver(self) -> None:
        found = [goal for part in self.run_once.json["parts"] for goal in part["goals"]]
        self.assertEqual({goal["verdict"] for goal in found}, {goals.NOT_MEASURED})
        self.assertEqual(self.run_once.json["summary"]["goals"], {"met": 0, "missed": 0, "not measured": len(found)})
        self.assertIn("the simulated driver's times mean nothing", self.run_once.out)

    def test_every_pair_is_timed_and_what_cannot_be_is_named(self) -> None:
        part = self.run_once.part("pairs")
        asked = {one["question"] for one in part["answers"] if "answer" in one}
        left_out = {one["question"] for one in part["answers"] if "left_out" in one}
        for who in ("cuMemAlloc", "cuMemAllocAsync, threshold 0", "cuMemAllocAsync, threshold unlimited", "cupool, cuMemAlloc", "cupool, cuMemAllocAsync"):
            for shape in ("1 KiB, 1 thread", "256 KiB, 16 threads", "4096 KiB, 16 threads"):
                self.assertIn(f"pair cost: {who}, {shape}", asked)
                self.assertRegex(self.run_once.out, rf"(?m)^  {who} +\d+")
        self.assertLessEqual({"pair cost: PyTorch's caching allocator", "pair cost: cupy", "pair cost: rmm", "pair cost: XLA's BFC"}, left_out)


class Limits(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.run_once = Run("--dry-run", "--only", "self_hang,self_crash,self_ramble,self_differs,self_real", self_test=True)

    def test_a_part_that_hangs_is_killed_with_its_children_and_keeps_what_it_said(self) -> None:
        part = self.run_once.part("self_hang")
        self.assertEqual(part["status"], "timeout")
        self.assertIn("killed after 1 s", part["reason"])
        (answer,) = part["answers"]
        self.assertFalse(self._is_running(answer["answer"]), "the grandchild outlived its part")

    @staticmethod
    def _is_running(pid: int) -> bool:
        """Alive, and no zombie that only waits for its reaper."""
        try:
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def test_a_part_that_dies_fails_with_its_signal_and_the_next_ones_run(self) -> None:
        self.assertEqual(self.run_once.part("self_crash")["status"], "failed")
        self.assertIn("SIGSEGV", self.run_once.part("self_crash")["reason"])

    def test_what_did_not_end_well_is_told_in_a_log_beside_the_result(self) -> None:
        ((name, text),) = self.run_once.logs.items()
        self.assertEqual(name.removesuffix(".log"), next(iter(self.run_once.files)).removesuffix(".json"))
        self.assertEqual(text.count("\n--- stderr\n"), 2, text)  # self_hang and self_crash
        self.assertIn("died of SIGSEGV", text)
        self.assertIn('"question": "grandchild"', text)
        self.assertEqual(self.run_once.part("self_differs")["status"], "passed")

    def test_half_a_line_of_json_is_a_failure(self) -> None:
        self.assertIn("cannot be read", self.run_once.part("self_ramble")["reason"])

    def test_an_answer_that_differs_is_shown_and_does_not_fail(self) -> None:
        self.assertEqual(self.run_once.part("self_differs")["differing"], 1)
        self.assertIn("differs  self_differs: q: 1 (assumed: 2)", self.run_once.out)

    def test_a_failure_makes_exit_code_1_and_the_table_counts(self) -> None:
        self.assertEqual(self.run_once.code, 1)
        self.assertIn("1 passed, 2 failed, 1 timed out, 1 skipped, 1 answers differ", self.run_once.out)

    def test_a_spent_budget_skips_what_is_left(self) -> None:
        run = Run("--dry-run", "--only", "self_hang,self_differs", "--budget", "0.5", self_test=True)
        self.assertEqual([part["status"] for part in run.json["parts"]], ["skipped", "skipped"])
        self.assertEqual(run.part("self_hang")["reason"], "the budget is spent")
        self.assertEqual(run.code, 77)

    def test_the_limits_leave_no_part_more_than_the_budget(self) -> None:
        import parts
        self.assertTrue(all(0 < part.limit_s <= 190 for part in parts.PARTS))


class Choice(unittest.TestCase):
    def test_only_and_skip(self) -> None:
        run = Run("--dry-run", "--only", "lookups,fork,exit", "--skip", "fork")
        self.assertEqual([part["name"] for part in run.json["parts"]], ["lookups", "exit"])
        self.assertEqual(run.code, 0)

    def test_an_unknown_part_is_named_and_nothing_runs(self) -> None:
        run = Run("--dry-run", "--only", "lookups,nonsense")
        self.assertEqual((run.code, run.files), (2, {}))
        self.assertIn("'nonsense'", run.errors)

    def test_list_names_every_part_and_runs_none(self) -> None:
        run = Run("--list")
        self.assertEqual((run.code, run.files), (0, {}))
        self.assertRegex(run.out, r"(?m)^torch +180 s  \[GPU\] ")
        self.assertNotIn("self_", run.out)

    def test_the_simulated_driver_is_not_taken_for_a_gpu(self) -> None:
        run = Run("--only", "exit", LD_LIBRARY_PATH=str(BUILD / "sim"))
        self.assertEqual((run.code, run.files), (77, {}))
        self.assertIn("NOTHING WAS CHECKED", run.errors)

    def test_a_run_of_skipped_parts_alone_is_not_a_success(self) -> None:
        self.assertEqual(Run("--dry-run", "--only", "torch").code, 77)

    def test_an_unbuilt_folder_is_an_error_of_its_own(self) -> None:
        run = Run("--dry-run", "--build", "/nonexistent")
        self.assertEqual(run.code, 2)
        self.assertIn("scripts/build", run.errors)


class Comparing(unittest.TestCase):
    """A comparison whose program is one of these tests' own: what becomes of routes that fail, hang, differ or are not offered."""

    PROGRAM = """import os, sys
print('{"question": "losses", "answer": [%s]}' % os.environ.get("LOSS", "1.0"))
print('{"question": "steps, fixed lengths", "answer": {"median_ns": %s, "mean_ns": 5}}' % os.environ.get("NS", "5"))
print('{"question": "allocator", "answer": "%s"}' % os.environ.get("GPU_CHECK_WAY", "native"))
sys.stdout.flush()
if os.environ.get("HANGS"): import signal; signal.pause()
if os.environ.get("DIES"): print(os.environ["DIES"], file=sys.stderr); sys.exit(1)
"""

    def compare(self, *more: routes.Route, limit_s: float = 30, share_s: float = 10) -> outcome.Outcome:
        place = Place(BUILD, False)  # not "simulated", so that goals are judged; nothing here uses a driver
        program = place.scratch / "program.py"
        program.write_text(self.PROGRAM, encoding="utf-8")
        first = routes.Route("natively", own=True, allocator="native")
        routes.COMPARISONS["tested"] = routes.Comparison(("json",), str(program), (first, *more), share_s=share_s, goal=True)
        judge, reports.judge = reports.judge, lambda *_: ("", {"allocations": 1})
        try:
            return training.comparison_part("tested")(place, limit_s)
        finally:
            reports.judge = judge
            del routes.COMPARISONS["tested"]
            place.close()

    @staticmethod
    def left_out(result: outcome.Outcome) -> dict[str, str]:
        return {one["question"]: one["left_out"] for one in result.answers if "left_out" in one}

    def pooled(self, name: str = "cupool", **more) -> routes.Route:
        return routes.Route(name, flags=(), **more)

    def test_equal_losses_pass_and_the_goal_is_judged_against_the_best_own_pool(self) -> None:
        result = self.compare(routes.Route("quicker", {"NS": "4"}, own=True), self.pooled(), routes.Route(routes.AGAIN, {"NS": "6"}))
        self.assertEqual((result.status, result.reason), (outcome.PASSED, ""))
        fixed = next(goal for goal in result.goals if "fixed" in goal.goal)
        self.assertEqual((fixed.verdict, fixed.measured), (goals.MISSED, 1.25))
        self.assertIn("against quicker; the same run twice natively: 1.200", fixed.note)

    def test_other_losses_under_the_pool_fail(self) -> None:
        result = self.compare(self.pooled(environment={"LOSS": "2.0"}))
        self.assertEqual(result.status, outcome.FAILED)
        self.assertIn("losses differ", result.reason)

    def test_a_route_of_the_pool_that_dies_fails_the_part_and_the_others_still_run(self) -> None:
        result = self.compare(self.pooled("dies", environment={"DIES": "boom"}), self.pooled("lives"))
        self.assertEqual(result.status, outcome.FAILED)
        self.assertIn("dies: exit code 1: boom", result.reason)
        self.assertIn({"question": "lives: losses are the native ones", "answer": "to the last bit"}, result.answers)

    def test_a_route_that_hangs_is_killed_and_the_part_timed_out(self) -> None:
        result = self.compare(self.pooled("hangs", environment={"HANGS": "1"}), share_s=1)
        self.assertEqual(result.status, outcome.TIMEOUT)

    def test_a_peer_that_cannot_run_is_left_out_with_its_reason(self) -> None:
        result = self.compare(routes.Route("peer", {"DIES": "no such backend"}, own=True), self.pooled())
        self.assertEqual(result.status, outcome.PASSED)
        self.assertIn("no such backend", self.left_out(result)["peer: could not be compared"])

    def test_what_the_framework_does_not_offer_is_left_out_and_alone_it_is_no_pass(self) -> None:
        never = self.pooled("never", environment={"DIES": "torch does not yet support this"}, unsupported="does not yet support")
        self.assertEqual(self.compare(never, self.pooled()).status, outcome.PASSED)
        self.assertEqual(self.compare(never).status, outcome.SKIPPED)

    def test_other_errors_of_a_route_that_may_be_unsupported_still_fail(self) -> None:
        result = self.compare(self.pooled("never", environment={"DIES": "illegal memory access"}, unsupported="does not yet support"), self.pooled())
        self.assertEqual(result.status, outcome.FAILED)

    def test_a_setting_that_did_not_take_fails(self) -> None:
        result = self.compare(self.pooled(allocator="cudaMallocAsync"))
        self.assertEqual(result.status, outcome.FAILED)
        self.assertIn("its allocator is native, wanted cudaMallocAsync", result.reason)

    def test_no_time_left_is_no_pass(self) -> None:
        result = self.compare(routes.Route("hangs", {"HANGS": "1"}), self.pooled(), limit_s=3)
        self.assertEqual(result.status, outcome.SKIPPED)
        self.assertIn("time is spent", result.reason)

    def test_flags_that_this_xla_does_not_know_are_dropped_once(self) -> None:
        place = Place(BUILD, False)
        runs = training.Runs(place, "jax", sys.executable, 10)
        runs.program = [sys.executable, "-c", "import os, sys; print('{\"question\": \"q\", \"answer\": 1}'); "
                        "sys.exit('Unknown flag in XLA_FLAGS' if 'XLA_FLAGS' in os.environ else 0)"]
        try:
            result = runs.run(routes.COMPARISONS["jax"].routes[0])
        finally:
            place.close()
        self.assertEqual((result.status, runs.xla_flags), (outcome.PASSED, ""))


class Told(unittest.TestCase):
    """What the frameworks' programs share."""

    def test_the_largest_batch_is_found_from_any_start(self) -> None:
        import told
        for limit in (0, 1, 2, 7, 64, 129):
            for guess, known in ((1, False), (64, False), (limit, True), (limit + 1, True), (max(limit - 1, 1), True), (200, True)):
                self.assertEqual(told.largest(lambda n: n <= limit, guess, known, float("inf")), (limit, True), (limit, guess, known))

    def test_a_search_without_time_says_so(self) -> None:
        import told
        self.assertEqual(told.largest(lambda n: True, 8, False, 0), (0, False))

    def fake_nvml(self, processes, used=(10, 70)):
        """NVML with these (pid, bytes), and a device that uses `used[0]` bytes at first and `used[1]` later."""
        import ctypes
        import told
        later = iter([used[0]] + [used[1]] * 100)

        class Nvml:
            asked_index = None

            def nvmlInit_v2(self):
                return 0

            def nvmlDeviceGetHandleByIndex_v2(self, index, _out):
                self.asked_index = index.value
                return 0

            def nvmlDeviceGetMemoryInfo(self, _device, out):
                ctypes.cast(out, ctypes.POINTER(told._Memory)).contents.used = next(later)
                return 0

            def nvmlDeviceGetComputeRunningProcesses_v3(self, _device, count, found):
                room = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
                if room.value < len(processes):
                    return told._INSUFFICIENT_SIZE
                room.value = len(processes)
                for i, (pid, size) in enumerate(processes):
                    found[i].pid, found[i].used_bytes = pid, size
                return 0
        return Nvml()

    def test_peak_memory_is_this_process_own_where_nvml_names_it(self) -> None:
        import told
        memory = told.DeviceMemory(self.fake_nvml([(1, 5), (os.getpid(), 4711)]))
        memory.sample()
        self.assertEqual((memory.peak_bytes, memory.source), (4711, "NVML, this process"))
        many = told.DeviceMemory(self.fake_nvml([(1, 5)] * 100 + [(os.getpid(), 4711)]))
        many.sample()
        self.assertEqual(many.peak_bytes, 4711)

    def test_peak_memory_is_the_devices_growth_where_nvml_does_not_know_us(self) -> None:
        import told
        for processes in ([], [(1, 5)], [(os.getpid(), told._NOT_AVAILABLE)]):
            memory = told.DeviceMemory(self.fake_nvml(processes))
            memory.sample()
            self.assertEqual((memory.peak_bytes, memory.source), (60, "NVML, the device's growth since the start"))

    def test_without_nvml_nothing_is_claimed(self) -> None:
        import told
        memory = told.DeviceMemory(object())
        memory.sample()
        self.assertIn("no NVML", memory.why_not)
        self.assertEqual(memory.peak_bytes, 0)


class Judging(unittest.TestCase):
    """What decides a part, without running one."""

    def test_every_guess_has_a_question_or_a_reason(self) -> None:
        """[?] in the sources: as many rows in README.md as a file has guesses, each with parts that exist or a reason."""
        import parts
        known = {part.name for part in parts.PARTS}
        rows = re.findall(r"(?m)^\| `([^`]+)` \| (.+?) \| (.+?) \|$", (ROOT / "tests/gpu/README.md").read_text(encoding="utf-8").split("## Guesses", 1)[1])
        for _, guess, by in rows:
            asked = re.findall(r"`(\w+)`", by)
            self.assertTrue(by.startswith("not asked: ") or (asked and set(asked) <= known), f"{guess}: {by}")
        listed = [path for path, _, _ in rows]
        found = {}
        for folder in ("shim", "pool", "tests/sim"):
            for path in (ROOT / folder).rglob("*.?pp"):
                count = path.read_text(encoding="utf-8").count("[?")
                if count:
                    found[str(path.relative_to(ROOT))] = count
        self.assertEqual({path: listed.count(path) for path in listed}, found, "tests/gpu/README.md, Guesses: one row for each [?]")

    def test_differences_between_native_and_pooled_answers(self) -> None:
        native_answers = [{"question": "a", "answer": 1}, {"question": "cuMemAlloc during a global capture, same thread", "answer": "refused"},
                          {"question": "only natively", "answer": 1}]
        pooled = [{"question": "a", "answer": 2}, {"question": "cuMemAlloc during a global capture, same thread", "answer": native.SERVED},
                  {"question": "only pooled", "answer": 1}]
        found = native.differences(native_answers, pooled)
        self.assertEqual([sentence.split(":")[0] for sentence in found], ["a", "only natively", "only pooled"])

    def test_a_capture_that_dies_under_the_pool_is_no_deliberate_difference(self) -> None:
        question = "cuMemFree during a relaxed capture, another thread"
        found = native.differences([{"question": question, "answer": native.SERVED}], [{"question": question, "answer": "CUDA_SUCCESS, capture gone"}])
        self.assertEqual(len(found), 1)

    def test_losses(self) -> None:
        base = {"losses, x": [1.0, 0.5]}
        self.assertEqual(training.compare_losses(base, {"losses, x": [1.0, 0.5]}, 1e-5), ("to the last bit", ""))
        how, fault = training.compare_losses(base, {"losses, x": [1.0, 0.5 + 1e-9]}, 1e-5)
        self.assertEqual((how[:7], fault), ("within ", ""))
        for pooled in ([1.0], [1.0, 0.6], [1.0, float("nan")], []):
            self.assertNotEqual(training.compare_losses(base, {"losses, x": pooled}, 1e-5)[1], "", pooled)
        self.assertNotEqual(training.compare_losses(base, {"losses, y": [1.0, 0.5]}, 1e-5)[1], "")
        self.assertNotEqual(training.compare_losses({}, {}, 1e-5)[1], "")
        nowhere = {"losses, x": [float("nan")]}
        self.assertNotEqual(training.compare_losses(nowhere, nowhere, 1e-5)[1], "")

    def test_goals(self) -> None:
        peers = {"a": 100.0, "b": 80.0}
        verdict = lambda *rest, **more: goals.at_most_best("g", *rest, **more).verdict  # noqa: E731
        self.assertEqual(verdict(80.0, peers, False), goals.MET)
        self.assertEqual(verdict(80.0, peers, False, below=True), goals.MISSED)
        self.assertEqual(verdict(80.1, peers, False), goals.MISSED)
        self.assertEqual([verdict(80.0, peers, True), verdict(None, peers, False), verdict(80.0, {}, False)], [goals.NOT_MEASURED] * 3)
        self.assertEqual(goals.at_most_best("g", 40.0, peers, False).measured, 0.5)
        self.assertIn("against b", goals.at_most_best("g", 40.0, peers, False).note)
        lines = goals.table([("p", goals.at_most_best("g", 90.0, peers, False)), ("p", goals.not_measured("h", "why")), ("p", goals.not_measured("i", "why"))])
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"FAIL 1\.125  p: g")
        self.assertIn("2 goals (why)", lines[1])

    def test_pair_costs_are_compared_with_peers_that_pay_the_same(self) -> None:
        costs = pairs.Costs()
        def add(who: str, median_ns: int, rename=None) -> None:
            costs.add(outcome.Outcome(outcome.PASSED, "", [{"question": f"pair cost: {who}, 1 KiB, 1 thread", "answer": {"median_ns": median_ns}}]), rename)
        add("cuMemAlloc", 500)
        add("cuMemAllocAsync, threshold 0, synchronised every 64", 50)
        add("CuPy's pool, through Python", 10)
        add("cuMemAlloc", 400, pairs._WAYS)
        add("cuMemAllocAsync, threshold unlimited", 600, pairs._WAYS)
        add("cuMemAllocAsync, threshold 0", 1, pairs._WAYS)  # the pool's own threshold counts: not a way of its own
        found = {goal.goal.split(", ", 1)[1]: goal for goal in costs.goals(False)}
        self.assertEqual((found["cupool, cuMemAlloc, 1 KiB, 1 thread"].verdict, found["cupool, cuMemAlloc, 1 KiB, 1 thread"].measured), (goals.MET, 0.8))
        self.assertEqual(found["cupool, cuMemAllocAsync, 1 KiB, 1 thread"].verdict, goals.MISSED)
        self.assertEqual(found["cupool, cuMemAllocAsync, synchronised every 64, 1 KiB, 1 thread"].verdict, goals.NOT_MEASURED)

    def test_a_framework_that_is_not_installed_is_skipped_by_name(self) -> None:
        place = Place(BUILD, True)
        self.addCleanup(place.close)
        self.assertEqual(training.python_with(place, ("json", "no_such_framework"), 20), (None, "no_such_framework is not installed"))

    def test_counters_that_cannot_be(self) -> None:
        good = {name: {"current": 1, "peak": 2} for name in ("live_bytes", "requested_bytes", "reserved_bytes", "deferred_bytes", "live_blocks")}
        good.update(allocations=3, frees=2)
        self.assertEqual(reports._counter_faults(good), [])
        for change in ({"frees": 4}, {"frees": 1}, {"live_bytes": {"current": 3, "peak": 2}}, {"requested_bytes": {"current": 2, "peak": 2}}):
            self.assertNotEqual(reports._counter_faults({**good, **change}), [], change)

    def test_output_that_is_no_answer_is_let_pass_and_broken_answers_are_not(self) -> None:
        answers, bad = outcome.parse_answers('hello\n{"question": "q", "answer": 1}\n')
        self.assertEqual((len(answers), bad), (1, ""))
        self.assertNotEqual(outcome.parse_answers('{"question": "q"}\n')[1], "")


if __name__ == "__main__":
    unittest.main()
