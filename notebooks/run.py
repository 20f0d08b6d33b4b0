"""Run the notebooks and store what their cells show: `python notebooks/run.py`, without jupyter.

Outputs are committed, so that a forge and the site show them, with a checksum of the code that they are of.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

FOLDER = Path(__file__).parent


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def checksum(notebook: dict[str, Any]) -> str:
    """Return the SHA-256 of the code of all cells."""
    return hashlib.sha256(json.dumps([cell["source"] for cell in code_cells(notebook)]).encode()).hexdigest()


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line, if that is an expression, as a notebook would show it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def outputs_of(code: str, names: dict[str, Any], clean: Any) -> list[dict[str, Any]]:
    """Execute a cell and return its outputs as a notebook stores them: text, figures, the last value."""
    from matplotlib import pyplot

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = run_cell(code, names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(clean(printed.getvalue()))})
    for number in pyplot.get_fignums():
        png = io.BytesIO()
        pyplot.figure(number).savefig(png, dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(png.getvalue()).decode("ascii")}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    if value is not None:
        data = {"text/plain": _lines(clean(repr(value)))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(clean(value._repr_html_()))
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def run(path: Path) -> None:
    """Run a notebook in an empty folder and write it back with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as work:
        temporary = re.compile(re.escape(work) + r"/tmp\w+")  # as tempfile.mkdtemp() names folders
        tempfile.tempdir = work
        os.chdir(work)
        try:
            for count, cell in enumerate(code_cells(notebook), start=1):
                outputs = outputs_of("".join(cell["source"]), names, lambda text: temporary.sub("/tmp/example", text))
                for output in outputs:
                    if output["output_type"] == "execute_result":
                        output["execution_count"] = count
                cell["outputs"], cell["execution_count"] = outputs, count
        finally:
            os.chdir(here)
            tempfile.tempdir = None
    notebook["metadata"]["outputs_of"] = checksum(notebook)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    matplotlib.use("agg")
    for each in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        run(each)
