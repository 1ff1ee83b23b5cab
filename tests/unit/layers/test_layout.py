"""layout.py names the file that is laid out otherwise, and nothing on a good tree."""

import contextlib
import io
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import layout  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


class Layout(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copy(ROOT / ".clang-format", self.root)
        (self.root / "pool").mkdir()
        (self.root / "pool/good.cpp").write_text("int f(int a) { return a; }\n")

    def run_on(self, *more):
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["layout.py", str(self.root), *more]), contextlib.redirect_stdout(out):
            return layout.main(), out.getvalue()

    @unittest.skipUnless(layout.formatter(None), "there is no clang-format of that version")
    def test_a_file_that_is_laid_out_otherwise_is_named(self):
        self.assertEqual(self.run_on(), (0, ""))
        (self.root / "pool/bad.cpp").write_text("int f( int a ){return a;}\n")
        code, out = self.run_on()
        self.assertEqual(code, 1)
        self.assertIn("pool/bad.cpp", out)
        self.assertNotIn("good.cpp", out)

    @unittest.skipUnless(layout.formatter(None), "there is no clang-format of that version")
    def test_a_formatter_that_fails_is_no_good_tree(self):
        (self.root / ".clang-format").write_text("ColumnLimit: none\n")
        self.assertEqual(self.run_on()[0], 1)

    def test_another_version_skips(self):
        other = self.root / "clang-format"
        other.write_text("#!/bin/sh\necho 'clang-format version 3.9'\n")
        other.chmod(0o755)
        code, out = self.run_on(str(other))
        self.assertEqual(code, layout.NO_SUCH_VERSION)
        self.assertIn("skipped", out)


if __name__ == "__main__":
    unittest.main()
