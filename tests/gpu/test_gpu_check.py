#!/usr/bin/env python3
"""Tests of scripts/gpu-check itself, on the simulated driver: the JSON's shape, the table, limits, choice of parts, exit codes.

TEST_BUILD_FOLDER names the build folder. The parts called self_* exist for these tests only (GPU_CHECK_SELF_TEST).
"""

from __future__ import annotations

import json
import os
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

import frameworks  # noqa: E402
import native  # noqa: E402
import outcome  # noqa: E402
import reports  # noqa: E402
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
            self.files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()}

    @property
    def json(self) -> dict:
        (only,) = self.files.values()
        return only

    def part(self, name: str) -> dict:
        return next(part for part in self.json["parts"] if part["name"] == name)


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
        for name in ("torch", "jax", "cupy", "calls_static", "kernels_shared", "kernels_static", "verify_static", "green"):
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
            self.assertLessEqual({"name", "question", "status", "reason", "limit_s", "wall_s", "differing", "answers"}, set(part))
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
                   if line.startswith(("HOOK(", "HOOK_FREE(", "HOOK_LOOKUP(")))
        self.assertEqual(sum("against dlsym" in question for question in asked["lookups"]), rows)
        wanted = {"calls_shared": "driver calls of cudaMalloc: those about memory", "ipc": "cuIpcGetMemHandle of an interior address",
                  "codes": "size of a block of 1000003 bytes: cuMemGetAddressRange", "pointers": "SYNC_MEMOPS of the block allocated after it",
                  "contexts": "no current context: cuMemFree of a live block", "fork": "forked child: cuInit",
                  "capture": "cuEventQuery during a global capture, same thread, its mode exchanged to relaxed",
                  "exit": "destructor of a global: cuMemFree", "overlap": "cuMemUnmap of 64 MiB while another stream works",
                  "vmm_copies": "mapped memory to another context of the device, cuMemcpyPeer",
                  "costs": "cost of cuCtxRecordEvent, one stream", "costs_vmm": "cost of cuMemCreate, 256 MiB handles"}
        for part, question in wanted.items():
            self.assertIn(question, asked[part])

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
        answers = {one["question"]: one["answer"] for one in self.run_once.part("python")["answers"]}
        self.assertEqual(len(answers["natively: losses"]), 20)
        for how in ("as it comes", "its pool aside", "handed over"):
            self.assertEqual(answers[f"{how}: losses"], answers["natively: losses"])
            self.assertEqual(answers[f"{how}: report"]["allocations"], 20)


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
        self.assertTrue(all(0 < part.limit_s <= 120 for part in parts.PARTS))


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
        self.assertRegex(run.out, r"(?m)^torch +120 s  \[GPU\] ")
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


class Judging(unittest.TestCase):
    """What decides a part, without running one."""

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
        fault, answers = frameworks._compare([1.0, 0.5], [1.0, 0.5], "x")
        self.assertEqual((fault, answers[0]["answer"]), ("", True))
        fault, answers = frameworks._compare([1.0, 0.5], [1.0, 0.5 + 1e-9], "x")
        self.assertEqual((fault, answers[0]["answer"]), ("", False))
        for pooled in ([1.0], [1.0, 0.6], [1.0, float("nan")], []):
            self.assertIn("losses", frameworks._compare([1.0, 0.5], pooled, "x")[0])
        self.assertIn("losses", frameworks._compare([], [], "x")[0])

    def test_a_framework_that_is_not_installed_is_skipped_by_name(self) -> None:
        self.assertEqual(frameworks._python_with(Place(BUILD, True), "no_such_framework", 20), (None, "no_such_framework is not installed"))

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
