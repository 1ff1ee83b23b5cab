"""The benches' input: recorded traces say where they are from, made-up ones are well-formed and the same each time."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent


def synthetic_jobs(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-B", BENCH / "synthetic_jobs.py", *arguments]
    return subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False, timeout=200)


class Traces(unittest.TestCase):
    def test_the_first_line_names_what_the_readme_says(self):
        paths = sorted((BENCH / "traces").glob("*.trace.gz"))
        self.assertGreater(len(paths), 10)
        for path in paths:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                metadata = json.loads(file.readline().removeprefix("# "))
            wanted = ("source", "licence") if path.name.startswith(("gpu_", "minimalloc_")) else ("workload", "method")
            self.assertTrue(all(metadata.get(key) for key in wanted), path.name)


class SyntheticJobs(unittest.TestCase):
    def write(self, folder: str, *arguments: object) -> dict[str, list[str]]:
        done = synthetic_jobs(folder, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        paths = [Path(line) for line in done.stdout.splitlines()]
        self.assertEqual(sorted(paths), sorted(Path(folder).iterdir()))
        return {path.name: gzip.decompress(path.read_bytes()).decode().splitlines() for path in paths}

    def test_each_kind_is_a_trace_of_its_own_and_the_same_each_time(self):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            jobs = self.write(first, "--seeds", 1)
            again = self.write(second, "--seeds", 1, "--kinds", "columns,prefetch")
            self.assertEqual(again, {name: jobs[name] for name in again})
        self.assertGreater(len(jobs), 10)
        for name, (head, *events) in jobs.items():
            self.assertEqual(f"{json.loads(head.removeprefix('# '))['kind']}_1.trace.gz", name)
            self.assertGreater(self.check_events(name, events)[0], 1000, name)
        self.assertEqual(len({tuple(events) for events in jobs.values()}), len(jobs))

    def check_events(self, name: str, events: list[str]) -> tuple[int, int]:
        """How many blocks are allocated, and how many live on. A free is of a live block."""
        live: set[str] = set()
        allocations = 0
        for event in events:
            kind, block, *rest = event.split()
            if kind == "a":
                self.assertNotIn(block, live, name)
                self.assertTrue(int(rest[0]) >= 512 and int(rest[0]) % 512 == 0 and rest[1] in "01", f"{name}: {event}")
                live.add(block)
                allocations += 1
            else:
                self.assertEqual((kind, rest), ("f", []), name)
                live.remove(block)
        return allocations, len(live)

    def test_steps_are_written_where_they_are_named_and_leave_weights_and_state(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as all_kinds:
            steps = self.write(folder, "--seeds", 6, "--kinds", "iteration")
            self.assertFalse(set(steps) & set(self.write(all_kinds, "--seeds", 1)))
        self.assertEqual(len(steps), 6)
        for name, (_, *events) in steps.items():
            allocations, staying = self.check_events(name, events)
            self.assertTrue(36 <= staying <= allocations - 36, f"{name}: {staying} of {allocations}")

    def test_seeds_and_scales_differ(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs = {**self.write(folder, "--kinds", "columns", "--seeds", 2)}
        with tempfile.TemporaryDirectory() as folder:
            jobs.update(self.write(folder, "--kinds", "columns", "--seeds", 1, "--scale", 4))
        self.assertEqual(sorted(jobs), ["columns_1.trace.gz", "columns_1x4.trace.gz", "columns_2.trace.gz"])
        self.assertNotEqual(jobs["columns_1.trace.gz"][1:], jobs["columns_2.trace.gz"][1:])
        sizes = [[int(event.split()[2]) for event in jobs[name] if event.startswith("a")] for name in ("columns_1.trace.gz", "columns_1x4.trace.gz")]
        self.assertAlmostEqual(sum(sizes[1]) / sum(sizes[0]), 4, places=2)

    def test_wrong_arguments_are_one_line_and_leave_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments, words in ((("--kinds", "sparse"), "no kind sparse"), (("--seeds", "0"), "seeds"), (("--scale", "0"), "scale"), (("--scale", "nan"), "scale")):
                done = synthetic_jobs(folder, *arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
                self.assertIn(words, done.stderr)
            self.assertEqual(list(Path(folder).iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
