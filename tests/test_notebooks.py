"""The notebooks run: their code cells, in order, in one namespace and an empty folder, without jupyter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
_SPEC = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
runner = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(runner)


def code_cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in runner.code_cells(json.loads(path.read_text(encoding="utf-8")))]


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(name: str, *replacements: tuple[str, str]) -> tuple[dict[str, Any], list[Any]]:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "__main__"}
        shown = []
        for cell in code_cells(FOLDER / name):
            for old, new in replacements:
                cell = cell.replace(old, new)
            shown.append(runner.run_cell(cell, names))
        return names, shown

    backend = matplotlib.get_backend()
    matplotlib.use("agg")
    yield run
    matplotlib.pyplot.close("all")
    matplotlib.use(backend)


def test_vit_in_100_lines(run_notebook, capsys):
    assert sum(len(cell.splitlines()) for cell in code_cells(FOLDER / "vit_in_100_lines.ipynb")[:3]) <= 100
    names, shown = run_notebook("vit_in_100_lines.ipynb", ("epochs=15", "epochs=2"), ("EPOCHS = 15", "EPOCHS = 8"))
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
def test_outputs_are_of_this_code_and_small(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    assert stored["metadata"]["outputs_of"] == runner.checksum(stored), "python notebooks/run.py stores them anew"
    assert path.stat().st_size < 100_000
    cells = runner.code_cells(stored)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {kind for cell in cells for output in cell["outputs"] for kind in output.get("data", ["text"])}
    assert kinds == {"text", "image/png", "text/plain", "text/html"}
