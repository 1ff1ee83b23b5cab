"""The replay program: what it says of files that are no traces, and that it plays those that are."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from support import clean_environment, simulator_environment

REPLAY = support.BUILD / "bench" / "replay"
HEAD = '# {"workload": "test"}\n'


def replay(*arguments: object, env: dict | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([str(REPLAY), *map(str, arguments)], env=env or simulator_environment(), text=True, capture_output=True, check=False, timeout=120)


@unittest.skipUnless(REPLAY.is_file(), "the replay program is not built")
class BadTraces(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "x.trace.gz"

    def refused(self, data: bytes, words: str) -> None:
        self.path.write_bytes(data)
        result = replay(self.path)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(words, result.stderr)

    def test_each_fault_names_its_line(self):
        for body, line, words in (
                ("a 0 512 0\nx\n", 3, "expected"), ("a 0 512\n", 2, "expected"), ("a 0 512 0 9\n", 2, "expected"), ("a 0 0 0\n", 2, "0 bytes"),
                ("a 0 -5 0\n", 2, "expected"), ("a 0 99999999999999999999 0\n", 2, "expected"), ("a 0 1125899906842625 0\n", 2, "bytes"),
                ("a 0 512 0\na 0 512 0\n", 3, "twice"), ("f 7\n", 2, "not allocated"), ("a 0 512 0\nf 0\nf 0\n", 4, "freed twice"),
                ("a\n", 2, "no block id"), ("f\n", 2, "no block id"), ("a 0 512 0\n\n", 3, "expected"), ("f 0 1\n", 2, "expected"),
                ("a " + "1" * 70000 + "\n", 2, "longer"), ("a 0 512 0\r\n", 2, "expected")):
            with self.subTest(body[:20]):
                self.refused(gzip.compress((HEAD + body).encode()), f":{line}: ")
                self.refused((HEAD + body).encode(), words)  # plain text is read too

    def test_files_that_are_something_else(self):
        self.refused(b"", ":1: not a trace")
        self.refused(b"hello\n", ":1: not a trace")
        self.refused(b"x" + os.urandom(5000), ":1: ")
        self.refused(b"C" + os.urandom(5000), "byte 0: not a trace")  # as CUPOOL_TRACE's begin
        self.refused(b"#" * 100000, ":1: ")

    def test_cut_and_damaged_compression(self):
        whole = gzip.compress((HEAD + "a 0 512 0\n" * 1 + "".join(f"a {i} {i * 37} 0\n" for i in range(1, 5000))).encode())
        self.refused(whole[:len(whole) // 2], "damaged or cut short")
        self.refused(whole[:200] + b"\xff" * 50 + whole[250:], ":")

    def test_missing_files_folders_and_usage(self):
        self.assertEqual(replay("/no/such/file").returncode, 1)
        self.assertEqual(replay("/").returncode, 1)
        for arguments in ([], ["a", "b"], ["--no-such-flag"]):
            self.assertEqual(replay(*arguments).returncode, 2)


@unittest.skipUnless(REPLAY.is_file() and support.HAS_LIBRARY, "the replay program or the library is not built")
class Plays(unittest.TestCase):
    TRACE = support.ROOT / "tests/bench/traces/a2_gpt_fixed_real.trace.gz"

    def test_a_recorded_job_plays_natively_and_under_each_policy_with_its_data_intact(self):
        self.assertEqual(replay("--verify", self.TRACE).returncode, 0)
        for policy in ("grow", "preallocate", "platform"):
            result = support.cupool("run", "--library", support.LIBRARY, "--policy", policy, "--report", "none", "--", REPLAY, "--verify", self.TRACE,
                                    env=simulator_environment())
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("7608 blocks verified", result.stdout)

    def test_a_device_that_is_too_small_is_a_cuda_error(self):
        result = replay(self.TRACE, env=clean_environment(LD_LIBRARY_PATH=str(support.SIMULATOR), CUSIM_MEMORY="64MiB"))
        self.assertEqual(result.returncode, 3)
        self.assertIn("cudaMalloc failed at event", result.stderr)


class ShippedTraces(unittest.TestCase):
    def test_each_keeps_its_first_line_and_matches_it(self):
        import json
        traces = sorted((support.ROOT / "tests/bench/traces").glob("*.trace.gz"))
        self.assertGreater(len(traces), 5)
        for path in traces:
            with gzip.open(path, "rt") as file:
                first, *events = file
            metadata = json.loads(first[2:])
            self.assertEqual(metadata["events"], len(events), path.name)
            self.assertTrue("source" in metadata or "method" in metadata, path.name)


if __name__ == "__main__":
    unittest.main()
