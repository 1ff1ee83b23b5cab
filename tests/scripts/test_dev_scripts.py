"""scripts/build, test, check and demo: usage, and the counting that decides whether CI passes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support

sys.path.insert(0, str(support.ROOT / "scripts"))
import junit_count  # noqa: E402  (a script, not a package)


def script(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(support.ROOT / "scripts" / name), *arguments], env=support.clean_environment(), text=True, capture_output=True, check=False,
                          timeout=60)


class Usage(unittest.TestCase):
    def test_help_needs_nothing_installed_and_changes_nothing(self):
        for name in ("build", "test", "check", "demo"):
            result = script(name, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""), name)
            self.assertIn("Usage:", result.stdout)

    def test_unknown_arguments_are_refused(self):
        for name in ("build", "test", "check", "demo"):
            result = script(name, "--frobnicate")
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), name)


class Counting(unittest.TestCase):
    def counts(self, *cases: str) -> tuple[int, int, int]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "junit.xml"
            path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            return junit_count.counts(path)

    def test_a_test_that_could_not_be_started_has_failed(self):
        self.assertEqual(self.counts('<testcase name="a" status="run"/>', '<testcase name="b" status="fail"><failure/></testcase>',
                                     '<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>',
                                     '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>',
                                     '<testcase name="e" status="disabled"/>'), (1, 2, 2))

    def test_targets_are_the_files_of_the_build_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            tests = {"tests": [{"command": [f"{folder}/unit/heap_test", "--flag"]}, {"command": ["/usr/bin/python3", f"{folder}/unit/x"]}, {}]}
            with mock.patch("sys.stdin", io.StringIO(json.dumps(tests))):
                self.assertEqual(junit_count.targets(folder), ["unit/heap_test", "unit/x"])


if __name__ == "__main__":
    unittest.main()
