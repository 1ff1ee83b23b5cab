"""scripts/build, test, check, demo and fuzz: usage, and the counting that decides whether CI passes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

sys.path.insert(0, str(support.ROOT / "scripts"))
import ctest_facts  # noqa: E402  (a script, not a package)


def script(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(support.ROOT / "scripts" / name), *arguments], env=support.clean_environment(), text=True, capture_output=True, check=False,
                          timeout=60)


class Usage(unittest.TestCase):
    def test_help_needs_nothing_installed_and_changes_nothing(self):
        for name in ("build", "test", "check", "demo", "fuzz"):
            result = script(name, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""), name)
            self.assertIn("Usage:", result.stdout)

    def test_unknown_arguments_are_refused(self):
        for name in ("build", "test", "check", "demo", "fuzz"):
            result = script(name, "--frobnicate")
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), name)

    def test_a_flag_without_its_value_and_a_file_that_is_not_there_are_refused_before_anything_is_done(self):
        for name, *arguments in (("build", "--target"), ("build", "--jobs"), ("test", "--label"), ("demo", "--policy"), ("demo", "--trace"), ("fuzz", "--seconds"),
                                 ("demo", "--trace", "/no/such"), ("demo", "--trace", "/"), ("demo", "--trace", str(support.ROOT / "LICENSE")), ("demo", "--policy", "fast"),
                                 ("build", "--preset", "nope"), ("build", "--jobs", "x"), ("build", "--jobs", "0"), ("test", "--jobs", "2x"), ("test", "--label", "nope"), ("test", "--label", "unit|nope")):
            with self.subTest(name=name, arguments=arguments):
                result = script(name, *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertRegex(result.stderr, rf"^scripts/{name}: {arguments[0]}( needs a value|.*: no such file|.*: not (a trace|one of|a number)|.*: there is no label 'nope'|.*: there is no such preset).*\n$")

    def test_the_demo_takes_every_policy_and_test_every_label_that_there_is(self):
        options = json.loads((support.ROOT / "config/options.json").read_text(encoding="utf-8"))["options"]
        policies = next(option["values"] for option in options if option["name"] == "policy")
        self.assertIn(f"\n  {' | '.join(policies)}) ;;\n", (support.ROOT / "scripts/demo").read_text(encoding="utf-8"))
        rows = [row for path in (support.ROOT / "tests").rglob("CMakeLists.txt") for row in re.findall(r'LABELS "?([a-z;]+)', path.read_text(encoding="utf-8"))]
        known = re.search(r"\n    (unit \|.*)\) ;;\n", (support.ROOT / "scripts/test").read_text(encoding="utf-8"))[1].split(" | ")
        self.assertEqual(set(known), {label for row in rows for label in row.split(";")})
        for label in known:
            self.assertIn(label, script("test", "--help").stdout)

    def test_ctest_facts_says_how_it_is_used(self):
        for arguments, code in ((["--help"], 0), ([], 2), (["--targets"], 2), (["--what"], 2), (["--failures"], 2)):
            result = subprocess.run([sys.executable, "-B", support.ROOT / "scripts/ctest_facts.py", *arguments], text=True, capture_output=True, check=False)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (code, code // 2), result.stderr)


class Counting(unittest.TestCase):
    def counts(self, *cases: str) -> tuple[int, int, int]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "junit.xml"
            path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            return ctest_facts.counts(path)

    def test_a_test_that_could_not_be_started_has_failed(self):
        self.assertEqual(self.counts('<testcase name="a" status="run"/>', '<testcase name="b" status="fail"><failure/></testcase>',
                                     '<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>',
                                     '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>',
                                     '<testcase name="e" status="disabled"/>'), (1, 2, 2))

    def test_a_failure_is_told_by_its_name_and_the_end_of_what_it_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "junit.xml"
            printed = "\n".join(f"line {i}" for i in range(100))
            path.write_text(f'<testsuite><testcase name="a" status="run"><system-out>fine</system-out></testcase>'
                            f'<testcase name="b" status="fail"><failure/><system-out>{printed}</system-out></testcase>'
                            '<testcase name="c" status="notrun"><skipped message="Unable to find executable"/></testcase></testsuite>')
            told = ctest_facts.failures(path)
        self.assertEqual((told[0], told[1], told[-2], told[-1]), ("failed: b", "  line 40", "  line 99", "failed: c"))
        self.assertEqual(len(told), 62)

    def test_targets_are_what_the_labelled_tests_start_from_the_build_folder(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "tests").mkdir()
            (folder / "found").mkdir()
            (folder / "tests/CTestTestfile.cmake").write_text(
                f'add_test([=[unit.heap]=] "{folder}/unit/heap_test" "--flag" "{folder}/found")\n'
                'set_tests_properties([=[unit.heap]=] PROPERTIES  LABELS "unit;slow" _BACKTRACE_TRIPLES "x;1;")\n'
                f'add_test(all "/usr/bin/python3" "{folder}/unit/maker" "{folder}/data.json")\n'
                'set_tests_properties(all PROPERTIES  LABELS "conformance" _BACKTRACE_TRIPLES "x;1;")\n'
                f'add_test(other "{folder}/preload/victim")\nset_tests_properties(other PROPERTIES  LABELS "preload")\n')
            self.assertEqual(ctest_facts.targets(str(folder), ["unit", "conformance"]), ["unit/heap_test", "unit/maker"])


if __name__ == "__main__":
    unittest.main()
