"""Walks with fixed seeds; and that a difference is found where there is one, and becomes a small walk."""
import subprocess
import sys
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop(1))
LIBRARY = Path(sys.argv.pop(1))
COMPARE = Path(__file__).with_name("compare.py")


def compare(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-S", str(COMPARE), "--build", str(BUILD), "--library", str(LIBRARY), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout


class Walks(unittest.TestCase):
    def test_every_answer_is_the_native_one(self):
        code, said = compare("--seed", "1", "--walks", "24")
        self.assertEqual(code, 0, said)

    def test_also_where_there_is_hardly_more_memory_than_the_program_needs(self):
        code, said = compare("--seed", "1", "--walks", "10", "--tight", "1")
        self.assertEqual(code, 0, said)

    def test_a_difference_is_found_and_becomes_a_small_walk(self):
        code, said = compare("--seed", "1", "--walks", "3", "--policy", "grow", "--setting", "LIMIT=48MiB", "--steps", "400", "--shrink")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"(?m)^DIFFERS seed \d+: .*LIMIT=48MiB")
        self.assertRegex(said, r"natively '\d+ .*(total|bytes)=8589934592")
        self.assertRegex(said, r"(?m)^    walks \d+ 400 \d+ 0 0-")


if __name__ == "__main__":
    unittest.main(verbosity=2)
