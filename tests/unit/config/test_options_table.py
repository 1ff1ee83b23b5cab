"""scripts/options_table on a temporary tree: what it writes, what it finds out of date, what it refuses."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "options_table"

loader = importlib.machinery.SourceFileLoader("options_table", str(SCRIPT))
options_table = importlib.util.module_from_spec(importlib.util.spec_from_loader("options_table", loader))
loader.exec_module(options_table)

ROW = ('OPTION(free, free, choice, FreeMode, FreeMode::sync, "", "sync", "", "", user,\n  "When: `sync` "\n  "or not")\n'
       'FREE_MODE(sync, "sync", "waits")  // a comment, with OPTION(\nFREE_MODE(other, "other", "does not")\n')
SECRET = 'OPTION(id, id, text, std::string, "", "", "", "", "", internal, "An id")\n'


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "config").mkdir()
        self.write(ROW + SECRET)

    def write(self, table):
        (self.root / "config" / "options.def").write_text(table, encoding="utf-8")

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, "--root", self.root, *arguments],
                              capture_output=True, text=True, check=False)

    def test_what_is_missing_is_written_and_then_up_to_date(self):
        self.assertEqual(self.run_tool("--check").returncode, 1)
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual(self.run_tool("--check").returncode, 0)
        self.assertEqual(self.run_tool().stdout, "")

    def test_a_changed_row_is_out_of_date_in_both_files(self):
        self.run_tool()
        self.write(ROW.replace("or not", "or never") + SECRET)
        said = self.run_tool("--check")
        self.assertEqual(said.returncode, 1)
        self.assertIn("options.json is out of date", said.stderr)
        self.assertIn("README.md is out of date", said.stderr)

    def test_an_edited_generated_file_is_found(self):
        self.run_tool()
        for name in ("config/options.json", "README.md"):
            path = self.root / name
            good = path.read_text(encoding="utf-8")
            path.write_text(good.replace("When:", "Whence:"), encoding="utf-8")
            self.assertEqual(self.run_tool("--check").returncode, 1, name)
            path.write_text(good, encoding="utf-8")
        self.assertEqual(self.run_tool("--check").returncode, 0)

    def test_only_what_stands_between_the_markers_is_replaced(self):
        readme = self.root / "README.md"
        readme.write_text("above\n<!-- options:begin -->\nold\n<!-- options:end -->\nbelow\n", encoding="utf-8")
        self.run_tool()
        text = readme.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("above\n<!-- options:begin -->\n| variable |"))
        self.assertTrue(text.endswith("<!-- options:end -->\nbelow\n"))
        self.assertNotIn("old", text)
        self.assertIn("| `CUPOOL_FREE` | `sync` | When: `sync` or not |", text)
        self.assertNotIn("CUPOOL_ID", text)

    def test_a_readme_without_markers_is_refused_and_left_alone(self):
        readme = self.root / "README.md"
        for text in ("none", "<!-- options:end --><!-- options:begin -->", "<!-- options:begin -->" * 2 + "<!-- options:end -->"):
            readme.write_text(text, encoding="utf-8")
            self.assertEqual(self.run_tool().returncode, 1)
            self.assertEqual(readme.read_text(encoding="utf-8"), text)

    def test_rows_carry_what_the_wrapper_needs(self):
        self.run_tool()
        free, secret = json.loads((self.root / "config" / "options.json").read_text(encoding="utf-8"))["options"]
        self.assertEqual(free["flag"], "--free")
        self.assertEqual(free["doc"], "When: sync or not")
        self.assertEqual(free["values"], ["sync", "other"])
        self.assertEqual(free["value_docs"]["other"], "does not")
        self.assertEqual(secret["visibility"], "internal")

    def test_a_broken_table_is_refused_with_its_line(self):
        for table, complaint in ((ROW.replace('"", "sync", ', '"sync", '), "line 1: 10 columns"),
                                 (ROW.replace("choice", "chioce"), "unknown kind 'chioce'"),
                                 (ROW.replace("FREE_MODE(", "FREEMODE("), "line 4: unknown macro FREEMODE"),
                                 (ROW.replace("choice", "text"), "a choice needs words"),
                                 (ROW + "OPTION(", "never closed"), (ROW + "stray", "expected MACRO(...)"), ("", "no OPTION row"),
                                 (ROW.replace('"sync", "", "", user', '"", "", "", user'), "must not be empty")):
            self.write(table)
            said = self.run_tool()
            self.assertEqual(said.returncode, 1, table)
            self.assertIn(complaint, said.stderr)


class RealTable(unittest.TestCase):
    def rows(self):
        return options_table.read_table((ROOT / "config" / "options.def").read_text(encoding="utf-8"))

    def test_every_variable_of_the_contract_is_there(self):
        wanted = "POLICY PREALLOCATE LIMIT BACKING FREE RELEASE_THRESHOLD IPC REPORT STACKS STACK_DEPTH TIMELINE TRACE LOG LOG_FILE"
        shown = [row["variable"] for row in self.rows() if row["visibility"] == "user"]
        self.assertEqual(shown, ["CUPOOL_" + name for name in wanted.split()])

    def test_a_count_has_a_range_that_fits_its_type(self):
        for row in self.rows():
            if row["type"] == "count":
                least, _, most = row["range"].partition("..")
                size = int(most.rstrip("KMi")) * {"Ki": 1 << 10, "Mi": 1 << 20}.get(most[-2:], 1)
                self.assertTrue(0 <= int(least) < size < 1 << 32, row["name"])

    def test_docs_fit_a_table_and_a_terminal(self):
        for row in self.rows():
            self.assertNotIn("|", row["markdown"], row["name"])
            self.assertEqual(row["markdown"].count("`") % 2, 0, row["name"])
            self.assertNotRegex(row["markdown"], r"\s\s|\n", row["name"])


if __name__ == "__main__":
    unittest.main()
