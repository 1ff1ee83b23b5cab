"""The notebook, run as plain Python: every cell, on the simulated driver; and that the outputs kept in it are of these cells."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest import mock

import notebook
import place

FILE = place.EXAMPLES / "notebook" / "report.ipynb"
NOTEBOOK = json.loads(FILE.read_text(encoding="utf-8"))


def printed(outputs: list[dict]) -> str:
    return "".join(line for output in outputs if output["output_type"] == "stream" for line in output["text"])


def same_in_every_run(text: str) -> str:
    """Without command, pid, host, folders and times."""
    return re.sub(r"^cupool report  .*$|pid \d+ on \S+; ran [\d.]+ m?s|took [\d.]+ m?s|^JSON  .*$", "", text, flags=re.MULTILINE)


def pictures(outputs: list[dict]) -> list[str]:
    return ["".join(output["data"]["image/svg+xml"]) for output in outputs if "image/svg+xml" in output.get("data", {})]


class Notebook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # A GPU that this machine may have does not count: the notebook finds the simulated driver as its driver.
        with mock.patch.dict(os.environ, place.simulated(TMPDIR=folder.name), clear=True), mock.patch("tempfile.tempdir", folder.name):
            cls.outputs = notebook.run(NOTEBOOK)
        (work,) = Path(folder.name).glob("cupool-notebook-*")
        cls.report = json.loads((work / "report.json").read_text(encoding="utf-8"))

    def test_it_is_a_notebook_as_the_format_wants_it(self):
        self.assertEqual((NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"], NOTEBOOK["metadata"]["language_info"]["name"]), (4, 5, "python"))
        self.assertEqual(len({cell["id"] for cell in NOTEBOOK["cells"]}), len(NOTEBOOK["cells"]))
        for cell in NOTEBOOK["cells"]:
            wanted = {"cell_type", "id", "metadata", "source"} | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())
            self.assertEqual(set(cell), wanted)

    def test_it_shows_what_the_report_says(self):
        text = "".join(printed(outputs) for outputs in self.outputs)
        counters = self.report["devices"][0]["counters"]
        self.assertIn("the job ended with 0", text)
        self.assertIn(f"{counters['allocations']} allocations and {counters['frees']} frees", text)
        self.assertIn(f"{counters['live_bytes']['peak'] / 2**20:,.0f} MiB in {counters['live_blocks']['peak']} blocks", text)
        for part, size in self.report["devices"][0]["ledger"].items():
            self.assertEqual(size > 0, f"\n{part} " in text or text.startswith(f"{part} "), part)
        self.assertIn("cupool report", text)
        (counted,) = re.findall(r"; ([\d,]+) calls of the driver to serve them", text)
        self.assertIn(f"driver calls   {int(counted.replace(',', '')):,} to allocate and free", text)

    def test_its_pictures_are_whole_and_hold_every_event_and_extent(self):
        (timeline,), (extents,) = [shown for shown in map(pictures, self.outputs) if shown]
        device, svg = self.report["devices"][0], "{http://www.w3.org/2000/svg}"
        changes = [event for event in device["timeline"]["events"] if event[1] in ("allocate", "free_requested")]
        self.assertEqual(len(ET.fromstring(timeline).find(f"{svg}polyline").get("points").split()), len(changes))
        rectangles = ET.fromstring(extents).findall(f"{svg}rect")
        self.assertEqual(len(rectangles), len(device["blocks"]))
        self.assertTrue(all(0 <= float(r.get("x")) and float(r.get("x")) + float(r.get("width")) <= 761 for r in rectangles))

    def test_without_a_gpu_it_takes_the_simulated_driver_of_the_source_tree(self):
        plain, names = place.support.clean_environment(), {}
        with tempfile.TemporaryDirectory() as nothing:
            (Path(nothing) / "libcuda.so.1").write_text("not a library", encoding="utf-8")
            with mock.patch.dict(os.environ, {**plain, "LD_LIBRARY_PATH": nothing}, clear=True), mock.patch("tempfile.tempdir", nothing), \
                    mock.patch("os.getcwd", return_value=str(place.ROOT / "examples" / "notebook")):
                outputs = notebook.run_cell(notebook.source_of(notebook.code_cells(NOTEBOOK)[0]), names)
        self.assertIn("the simulated driver stands in", printed(outputs))
        self.assertEqual((names["root"], names["environment"]["LD_LIBRARY_PATH"]), (place.ROOT, str(place.ROOT / "build" / "sim")))

    def test_the_outputs_in_the_file_are_of_these_cells(self):
        kept = [cell["outputs"] for cell in notebook.code_cells(NOTEBOOK)]
        for number, (old, new) in enumerate(zip(kept, self.outputs), start=1):
            self.assertEqual([output["output_type"] for output in old if output["output_type"] != "stream"],
                             [output["output_type"] for output in new if output["output_type"] != "stream"], f"cell {number}: run tests/examples/notebook.py")
        for number, (old, new) in enumerate(zip(kept, self.outputs), start=1):  # one run's: figures too
            if number > 1:
                self.assertEqual(*(same_in_every_run(printed(outputs)) for outputs in (old, new)), f"cell {number}: run tests/examples/notebook.py")
                self.assertEqual(pictures(old), pictures(new), f"cell {number}: run tests/examples/notebook.py")
        self.assertNotIn(str(Path.home()) + "/", json.dumps(kept))


if __name__ == "__main__":
    unittest.main()
