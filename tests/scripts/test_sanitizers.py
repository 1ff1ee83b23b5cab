"""`cupool run` of programs that are built with AddressSanitizer, whose runtime wants to be the first library."""

from __future__ import annotations

import os
import subprocess
import unittest

import support
from support import clean_environment, cupool, run_arguments

PROGRAM = os.environ.get("TEST_SANITIZED_PROGRAM", "")


def environment(**extra: str) -> dict[str, str]:
    return {key: value for key, value in clean_environment(**extra).items() if key != "ASAN_OPTIONS" or key in extra}


def run(*command: str, **extra: str) -> subprocess.CompletedProcess:
    return subprocess.run(run_arguments(*command), env=environment(**extra), capture_output=True, text=True, check=False, timeout=60)


def dry_run(*command: str, **extra: str) -> str:
    return cupool("run", "--library", support.PRELOAD, "--dry-run", "--", *command, env=environment(**extra)).stdout


@unittest.skipUnless(PROGRAM, "no compiler with a shared AddressSanitizer")
class Sanitized(unittest.TestCase):
    def test_without_help_it_does_not_start(self):
        result = subprocess.run([PROGRAM], env=environment(LD_PRELOAD=str(support.PRELOAD)), capture_output=True, text=True, check=False, timeout=60)
        self.assertIn("does not come first", result.stderr)

    def test_under_run_it_starts_and_still_finds_errors(self):
        result = run(PROGRAM)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("heap-use-after-free", run(PROGRAM, "wrong").stderr)

    def test_other_options_stay(self):
        self.assertIn("ASAN_OPTIONS=exitcode=9:verify_asan_link_order=0 ", dry_run(PROGRAM, ASAN_OPTIONS="exitcode=9"))
        self.assertEqual(run(PROGRAM, "wrong", ASAN_OPTIONS="exitcode=9").returncode, 9)

    def test_who_decides_is_left_alone(self):
        self.assertNotIn("ASAN_OPTIONS", dry_run(PROGRAM, ASAN_OPTIONS="verify_asan_link_order=1"))

    def test_found_by_path_too(self):
        folder, name = os.path.split(PROGRAM)
        self.assertIn("verify_asan_link_order=0", dry_run(name, PATH=f"{folder}:{os.environ['PATH']}"))


class Others(unittest.TestCase):
    def test_other_programs_get_nothing(self):
        for program in ("true", "/bin/sh", "no-such-command-anywhere", str(support.ROOT), __file__):
            with self.subTest(program=program):
                self.assertNotIn("ASAN_OPTIONS", dry_run(program))

    def test_a_runtime_that_the_user_preloads_comes_second_and_is_told_so(self):
        self.assertIn("ASAN_OPTIONS=verify_asan_link_order=0 ", dry_run("true", LD_PRELOAD="/usr/lib/libasan.so.8"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
