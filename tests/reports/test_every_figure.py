"""Every figure that the program draws, with class and model names of any length and script, in several fonts.

Figures ask for no font but DejaVu Sans, which comes with matplotlib. A page draws their text in the reader's font, so
the layouts must bear others too. Warnings are errors here, as in all tests.
"""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

import vitreous
from vitreous.comparison.figures import draw_accuracy, draw_accuracy_over_time, draw_loss
from vitreous.comparison.results import ModelResult, summarise
from vitreous.config import Config, ViTConfig
from vitreous.data.contact_sheet import contact_sheet
from vitreous.data.datasets import Dataset
from vitreous.data.splits import Split
from vitreous.inspection import sheets
from vitreous.inspection.figures import draw_figures
from vitreous.inspection.subject import ModelInput, examine_models
from vitreous.models import ViT
from vitreous.reports import figures, fonts, text_width
from vitreous.reports.colors import model_styles
from vitreous.reports.confusion import MOST_DRAWN, draw_confusion
from vitreous.reports.tiles import draw_tiles
from vitreous.runs.history import History, draw_history
from vitreous.studies import transfer_report
from vitreous.studies.cells import Cell, Cells
from vitreous.studies.definition import GridStudy, parse_study
from vitreous.studies.figures import arm_styles, draw_study
from vitreous.studies.grid import Evaluated
from vitreous.training.lr_finder import LearningRateSweep

SOURCE = Path(vitreous.__file__).parent
OWN_FONTS = Path(matplotlib.get_data_path())
NAMES = [
    "W" * 60,
    "a very long name of a class, with many words in it, of which the last one tells it from the others: " * 3,
    "é",
    "数字" * 20,
    "العربية",
    "नमस्ते",
    "🦊🦊",
    "two\nlines\tand \x07",
    "$x_{",
    '<b>"&',
    "%s {{7*7}}",
    "",
]
RNG = np.random.default_rng(0)


# --- every figure, drawn from made-up results ---------------------------------------------------------------------


def comparison(tmp_path: Path) -> None:
    labels = np.arange(240) % len(NAMES)
    results = []
    for place, name in enumerate(NAMES[:6]):
        table = RNG.dirichlet(np.ones(len(NAMES)), 240)
        table[np.arange(240), labels] += place
        table /= table.sum(axis=1, keepdims=True)
        lines = [
            {"event": event, "epoch": step, "loss": 3 / step, "accuracy": 0.5, "elapsed_seconds": step}
            for step in range(1, 9)
            for event in ("train", "val")
        ]
        published = {"accuracy": 0.2 * place, "nll": 1.0, "source": "elsewhere"}
        kind = "cnn" if place % 2 else "vit"
        results += [
            ModelResult(name, seed, kind, 10, 10, 8.0, 1.0, lines, table.astype("f4"), labels, "run", {}, published)
            for seed in range(2)
        ]
    models = summarise(results)
    styles = model_styles({model.name: model.kind for model in models})
    for number in (1, 6):
        draw_accuracy(models[:number], styles)
    draw_loss(models, styles)
    draw_accuracy_over_time(models, styles)


def confusion(tmp_path: Path) -> None:
    for classes in (2, len(NAMES), MOST_DRAWN, MOST_DRAWN + 1):
        counts = np.diag([12_345.0] * classes)
        counts[:3] = 12_345
        names = [NAMES[index % len(NAMES)] for index in range(classes)]
        draw_confusion(counts, names, name="c", title=NAMES[0], color="#000000")


def curves(tmp_path: Path) -> None:
    draw_history(History(*({"epoch": [1e4, 2e4], "loss": [9e4, 4e4], "accuracy": [0.0, 1.0]},) * 2))
    lrs = np.geomspace(1e-6, 10, 50)
    LearningRateSweep(Config(), NAMES[0], lrs, 1e4 * (np.log10(lrs) - 0.5) ** 2, 50).figure()


def tiles(tmp_path: Path) -> None:
    lines = [[(name, "#000000"), (f"{name} 99.9 %", "#000000")] for name in NAMES]
    draw_tiles([(np.zeros((3, 20, 40), np.uint8), each) for each in lines], "tiles", columns=4)


def sheet_of_data(tmp_path: Path) -> None:
    labels = torch.arange(2 * len(NAMES)) % len(NAMES)
    split = Split(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels)
    dataset = Dataset(
        "folder " + NAMES[0], split, split, split, tuple(NAMES), (0.5,), (0.5,), "dark on light", {}, tuple(NAMES)
    )
    contact_sheet(dataset, tmp_path / "sheet.png")


def transfer(tmp_path: Path) -> None:
    arms = (transfer_report.SCRATCH, transfer_report.FINE_TUNED, transfer_report.HEAD_ONLY)
    tables = [
        {arm: transfer_report.ArmResult(arm, 1.0, {1.0: 0.5}, (0.1 * i, 0.9), (1.0, 1.0), ("a", "b")) for arm in arms}
        for i in range(1, 6)
    ]
    gains = transfer_report.gains_over_scratch(tables)
    rows = [
        transfer_report.Row(10**place, 10**place, 1, 1, table, gain)
        for place, (table, gain) in enumerate(zip(tables, gains, strict=True))
    ]
    result = transfer_report.Transfer(
        NAMES[0], NAMES[1], "vit", 2, 10, tuple(rows), "", {}, {}, "", tmp_path / "r.html", tmp_path / "r.json"
    )
    transfer_report._draw_accuracies(result, model_styles(dict.fromkeys(arms, "other")))


def study(tmp_path: Path) -> None:
    """A ladder of all names, and lines of six over points with names of any length."""
    names = [name[:60] or "-" for name in NAMES]
    values = {
        "name": "s", "title": "t", "claim": "c", "source": "me", "quick": {"how": "less"},
        "arms": [{"name": name} for name in names], "verdict": [{"claim": "c", "arm": names[0], "expect": "best"}],
    }  # fmt: skip
    ladder = parse_study(GridStudy, values, "test")
    points = {"label": NAMES[0][:60], "values": [1, 2, 3, 4], "names": NAMES[:4], "settings": ["model.depth={}"]}
    grids = [
        parse_study(GridStudy, values | {"arms": values["arms"][:6], "points": points | {"scale": scale}}, "test")
        for scale in ("words", "linear", "log")
    ]
    for each in (ladder, *grids):
        places = each.points.values if each.points else (None,)
        cells = Cells({
            (arm.name, point): Cell(arm.name, point, tuple(_evaluated(seed, 40 + 20 * index) for seed in range(3)))
            for index, arm in enumerate(each.arms) for point in places
        })  # fmt: skip
        draw_study(each, cells, arm_styles(cells))


def _evaluated(seed: int, correct: int) -> Evaluated:
    right = np.arange(300) < correct + seed
    return Evaluated("run", seed, 500, "vit", 1, 1, 1, 1, 1.0, 0.1, "sha", "CPU", 1, right)


@pytest.fixture(scope="module")
def look() -> Callable[[Path], None]:
    config = ViTConfig(
        image_size=(8, 8), patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=8, num_classes=len(NAMES), zero_head=False
    )
    torch.manual_seed(0)
    model = ViT(config).eval()
    given = ModelInput(model, Config(name=NAMES[0], model=config), torch.randn(1, 8, 8))
    subjects = examine_models([given], np.zeros((1, 8, 8), np.uint8), target=0, patch=None)
    return lambda tmp_path: draw_figures(subjects[0], NAMES, "") and None


# --- what is checked ----------------------------------------------------------------------------------------------


@pytest.fixture
def drawn_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Check every figure when it is written; yield the functions that drew one."""
    found: set[str] = set()

    def check(figure: Figure, *_: object, **__: object) -> None:
        found.update(_callers())
        if figure.get_layout_engine() is None and getattr(figure, "checked", False):
            return  # the PNG after the SVG
        figure.checked = True
        figure.draw_without_rendering()
        width, height = figure.get_size_inches()
        extent = figure.get_tightbbox()  # of everything visible
        assert min(extent.x0, extent.y0) > -0.02, f"text leaves the canvas at {extent.min}"
        assert extent.x1 < width + 0.02, f"text leaves the canvas: {extent.max} of {(width, height)}"
        assert extent.y1 < height + 0.02, f"text leaves the canvas: {extent.max} of {(width, height)}"
        assert all(min(axes.bbox.size) > 48 for axes in figure.axes), "axes collapsed"

    def check_sheet(canvas: sheets._Canvas, x: int, y: int, text: str, color: str, width: int) -> None:
        found.update(_callers())
        text = text_width.shorten_to(text, width, 9)
        assert x + text_width.text_width(text, 9) <= canvas.png.width / 2
        write(canvas, x, y, text, color, width)

    monkeypatch.setattr(fonts, "_installed", list)  # letters that DejaVu lacks: boxes on every machine
    fonts.fallback_fonts.cache_clear()
    write = sheets._Canvas.text
    monkeypatch.setattr(sheets._Canvas, "text", check_sheet)
    monkeypatch.setattr(Figure, "savefig", check)
    return found


def _callers() -> set[str]:
    frames = [frame for frame in inspect.stack() if SOURCE in Path(frame.filename).parents]
    return {f"{Path(frame.filename).relative_to(SOURCE).as_posix()}:{frame.function}" for frame in frames}


def _drawing_functions() -> set[str]:
    """Return every function in the source that starts a figure or a sheet."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name != "figure_style":
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                names = {call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls}
                if names & {"figure_style", "Figure", "_Canvas"}:
                    found.add(f"{path.relative_to(SOURCE).as_posix()}:{function.name}")
    return found


def _draw_all(look: Callable[[Path], None], tmp_path: Path) -> None:
    for draw in (comparison, confusion, curves, tiles, sheet_of_data, transfer, study, look):
        draw(tmp_path)


def _other_families() -> list[str]:
    """Return the families of this machine that have letters, the widest first: they are the hardest to lay out."""
    widths = {}
    for entry in font_manager.fontManager.ttflist:
        if entry.name not in widths and entry.name not in ("DejaVu Sans", "Last Resort High-Efficiency"):
            font = font_manager.get_font(entry.fname)
            if all(font.get_char_index(ord(letter)) for letter in "aé%"):
                font.set_text("the quick brown fox")
                widths[entry.name] = font.get_width_height()[0]
    return sorted(widths, key=lambda name: (-widths[name], name))


# --- the tests ----------------------------------------------------------------------------------------------------


def test_every_figure_in_matplotlibs_own_font(look, drawn_by, tmp_path, monkeypatch, caplog):
    """Whatever fonts and settings the user has: all text is in DejaVu Sans, nothing collapses or leaves the canvas."""
    families: set[str] = set()
    draw_text = Text.draw

    def record(text: Text, *arguments: object) -> None:
        families.add(font_manager.get_font(font_manager.findfont(text.get_fontproperties())).family_name)
        draw_text(text, *arguments)

    monkeypatch.setattr(Text, "draw", record)
    with matplotlib.rc_context({"font.family": ["Absent", "DejaVu Serif"], "font.sans-serif": ["Absent"]}):
        _draw_all(look, tmp_path)
    assert families == {"DejaVu Sans"}
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING], "findfont: …"
    assert _drawing_functions() <= drawn_by, "a figure is missing from this test"


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] * (index > 0)) for index, name in enumerate(_other_families())],
)
def test_every_figure_in_another_font(look, drawn_by, tmp_path, monkeypatch, family):
    style = tmp_path / "other.mplstyle"
    lines = figures._STYLE.read_text(encoding="utf-8").splitlines()
    asked = [f"font.sans-serif: {family}" if line.startswith("font.sans-serif") else line for line in lines]
    assert asked != lines
    style.write_text("\n".join(asked), encoding="utf-8")
    monkeypatch.setattr(figures, "_STYLE", style)
    _draw_all(look, tmp_path)
