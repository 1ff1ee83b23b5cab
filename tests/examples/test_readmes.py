"""The examples' READMEs: each folder has one beside its one file, their links lead somewhere, their commands are ones that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import unittest

import place
from place import EXAMPLES, ROOT

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__")
READMES = [EXAMPLES / "README.md", *(folder / "README.md" for folder in FOLDERS)]
OPTIONS = {option["variable"] for option in json.loads((ROOT / "config" / "options.json").read_text(encoding="utf-8"))["options"]}


def commands() -> list[tuple[str, str]]:
    """(README, line) of every command line."""
    return [(readme.parent.name, line) for readme in READMES for block in place.fenced(readme.read_text(encoding="utf-8"), "")
            for line in block.splitlines() if line.strip()]


class Readmes(unittest.TestCase):
    def test_each_folder_has_a_readme_and_one_file(self):
        listed = re.findall(r"^\| \[(\w+)\]\(\1\) \|", READMES[0].read_text(encoding="utf-8"), flags=re.MULTILINE)
        self.assertEqual(sorted(listed), [folder.name for folder in FOLDERS])
        for folder in FOLDERS:
            files = [path.name for path in folder.iterdir() if path.name not in ("README.md", "__pycache__")]
            self.assertEqual(len(files), 1, files)
            self.assertIn(f"[{files[0]}]({files[0]})", (folder / "README.md").read_text(encoding="utf-8"))

    def test_links_and_paths_lead_somewhere(self):
        for readme in READMES:
            text = readme.read_text(encoding="utf-8")
            for link in re.findall(r"\]\(([^)#]+)\)", text):
                self.assertTrue((readme.parent / link).exists(), (readme, link))
            for path in re.findall(r"(?<![\w/])(?:examples|scripts|tests)/[\w./]*\w", text):
                self.assertTrue((ROOT / path).exists() or path.startswith("examples/compose/reports"), (readme, path))

    def test_every_command_of_cupool_is_one_that_it_takes(self):
        seen = 0
        for folder, line in commands():
            words = shlex.split(line.partition("; do ")[2].partition("; done")[0] or line)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if not words or words[0] != "scripts/cupool":
                continue
            seen += 1
            if words[1] == "run":
                result = place.run("cupool", "run", "--dry-run", *words[2:])
                self.assertEqual((result.returncode, result.stderr), (0, ""), (folder, line))
                self.assertIn("would run: ", result.stdout)
            else:
                self.assertEqual(words[1], "report", (folder, line))
        self.assertGreater(seen, 15)

    def test_variables_and_flags_of_cupool_exist(self):
        known = place.run("cupool", "run", "--help").stdout
        for path in sorted(EXAMPLES.rglob("*")):
            if not path.is_file() or path.suffix == ".pyc":
                continue
            text = path.read_text(encoding="utf-8")
            for name in re.findall(r"\bCUPOOL_[A-Z_]+\b", text):
                self.assertIn(name, OPTIONS, path)
            for flag in re.findall(r"`(--(?:ipc|limit|policy|report|keep-framework-pool|profile|trace)\b)", text):
                self.assertIn(flag, known, path)

    def test_scripts_are_executable_and_clean(self):
        scripts = [EXAMPLES / "torchrun/run.sh", EXAMPLES / "mpirun/run.sh", EXAMPLES / "slurm/job.sbatch"]
        for script in scripts:
            self.assertTrue(script.stat().st_mode & 0o100, script)
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck")
        result = place.run("shellcheck", *scripts)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_what_the_jax_readme_says_of_its_variables(self):
        line = next(line for folder, line in commands() if folder == "jax" and line.startswith("XLA_"))
        variables, words = [], shlex.split(line)
        while "=" in words[0]:
            variables.append(words.pop(0).split("=", 1))
        result = place.run("cupool", *words[1:2], "--dry-run", *words[2:], env=place.simulated(**dict(variables)))
        for expected in ("CUPOOL_LIMIT=50%", "CUPOOL_POLICY=preallocate", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=false"):
            self.assertIn(f" {expected} ", result.stdout)


if __name__ == "__main__":
    unittest.main()
