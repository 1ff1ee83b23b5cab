"""Runs a notebook's cells in order as plain Python and keeps what they show, as Jupyter does. No Jupyter is needed.

Usage: notebook.py FILE.ipynb   runs it and writes its outputs into the file (with cupool in PATH, or from the source tree)
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict) -> list[dict]:
    """The outputs of one cell: what it printed, and its last expression where it is one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [type(value).__name__]}
        if hasattr(value, "_repr_svg_"):
            data["image/svg+xml"] = [value._repr_svg_()]
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return outputs


def run(notebook: dict) -> list[list[dict]]:
    """The outputs of each code cell. What a cell raises comes through, with the cell named."""
    names: dict = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        try:
            outputs.append(run_cell(source_of(cell), names))
        except Exception as error:
            raise RuntimeError(f"code cell {number}: {error!r}") from error
        for output in outputs[-1]:
            if "execution_count" in output:
                output["execution_count"] = number
    return outputs


def main(path: Path) -> int:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook)), start=1):
        cell["outputs"], cell["execution_count"] = outputs, number
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
