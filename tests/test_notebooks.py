"""The notebooks run: their code cells, in order, in one namespace and an empty folder, without jupyter."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line, if that is an expression, as a notebook would show it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(name: str, *replacements: tuple[str, str]) -> tuple[dict[str, Any], list[Any]]:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "__main__"}
        shown = []
        for cell in code_cells(FOLDER / name):
            for old, new in replacements:
                cell = cell.replace(old, new)
            shown.append(run_cell(cell, names))
        return names, shown

    backend = matplotlib.get_backend()
    matplotlib.use("agg")
    yield run
    matplotlib.pyplot.close("all")
    matplotlib.use(backend)


def test_vit_in_100_lines(run_notebook, capsys):
    assert sum(len(cell.splitlines()) for cell in code_cells(FOLDER / "vit_in_100_lines.ipynb")[:3]) <= 100
    names, shown = run_notebook("vit_in_100_lines.ipynb", ("epochs=10", "epochs=2"), ("EPOCHS = 15", "EPOCHS = 8"))
    assert names["accuracy"] > 0.7, "the ViT of the notebook learns"
    assert names["difference"] < 1e-4
    assert any(hasattr(value, "_repr_html_") for value in shown), "the run is shown with its figures"
    assert "largest difference of the logits" in capsys.readouterr().out


def test_look_inside(run_notebook, capsys):
    names, shown = run_notebook("look_inside.ipynb")
    assert shown[0].labels == ["6"]
    assert len(names["layers"]) == names["model"].config.depth
    assert names["looked"].report.exists()
    assert "with its upper half" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    for cell in stored["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
