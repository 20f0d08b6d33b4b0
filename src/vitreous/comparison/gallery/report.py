"""A gallery as files: one self-contained HTML page, PNG and SVG figures, `gallery.json`, and every image in a CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

import vitreous.comparison.report
from vitreous.comparison.confusion import draw_confusions
from vitreous.comparison.confusion import reading as confusion_reading
from vitreous.comparison.curves import ReportFigure, short_name
from vitreous.comparison.gallery.findings import Gallery, HardImage
from vitreous.comparison.results import ModelResult, summarise
from vitreous.downloads.files import atomic_write_text
from vitreous.errors import RunError
from vitreous.evaluation.metrics import percent
from vitreous.reports.colors import ModelStyle, light, model_styles
from vitreous.reports.figures import figure_style, finish_figure
from vitreous.reports.pages import html_page, page_environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HERE = Path(__file__).parent
#: The header, tables and tiles are those of the comparison's report.
_SHARED_CSS = Path(vitreous.comparison.report.__file__).with_name("report.css")
#: CSS pixels: a tile with its three lines of text, the picture in it, and the space between pictures.
_COLUMNS, _TILE, _PICTURE, _GAP = 6, (148, 200), 136, 12


def write_gallery(found: Gallery, folder: Path) -> Path:
    """Write everything into `folder`; returns the page."""
    try:
        figures = folder / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        style = model_styles({found.model_name: found.kind})[found.model_name]
        _draw_worst(found, style, figures)
        confusion = _draw_confusion(found, style, figures)
        text = json.dumps(found.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write_text(folder / "gallery.json", text)
        atomic_write_text(folder / "by-loss.csv", _by_loss(found))
        atomic_write_text(folder / "gallery.html", _page(found, style, confusion))
    except OSError as error:
        raise RunError(f"cannot write the gallery into {str(folder)!r}: {error.strerror or error}") from error
    return folder / "gallery.html"


def _page(found: Gallery, style: ModelStyle, confusion: ReportFigure) -> str:
    environment = page_environment(_HERE)
    environment.filters["percent"] = percent
    body = environment.get_template("gallery.html.jinja").render(
        found=found,
        style=style,
        confusion=confusion,
        confusion_reading=confusion_reading(len(found.class_names)),
        hardest_first=sorted(found.classes, key=lambda one: one.interval.value if one.interval else 2.0),
    )
    css = _SHARED_CSS.read_text(encoding="utf-8") + (_HERE / "gallery.css").read_text(encoding="utf-8")
    title = f"What {found.model_name} finds hardest in {Path(found.data_name).name or found.data_name}"
    return html_page(title, Markup(body), description=found.said, extra_css=css)


def _draw_worst(found: Gallery, style: ModelStyle, folder: Path) -> None:
    """The tiles as a picture, for slides. Not the comparison's: there "truly" stands for a label that may be wrong."""
    rows = -(-len(found.worst) // _COLUMNS)
    width, height = _TILE[0] * _COLUMNS, _TILE[1] * rows
    with figure_style("worst", width, height) as figure:
        figure.set_layout_engine("none")  # every tile has its place
        for position, image in enumerate(found.worst):
            row, column = divmod(position, _COLUMNS)
            corner = (_TILE[0] * column + _GAP / 2, height - _TILE[1] * row - _PICTURE - _GAP / 2)
            place = (corner[0] / width, corner[1] / height, _PICTURE / width, _PICTURE / height)
            _draw_tile(figure.add_axes(place), image, style)
        finish_figure(figure, "worst", folder)


def _draw_tile(axes: Axes, image: HardImage, style: ModelStyle) -> None:
    pixels, own = image.mistake.pixels, image.mistake.own
    if len(pixels) == 3:
        axes.imshow(pixels.transpose(1, 2, 0))
    else:
        axes.imshow(pixels[0], cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
    file = f"…{image.path[-21:]}" if image.path and len(image.path) > 22 else image.path or f"no. {image.mistake.index}"
    right = " ✓" if own.right else ""
    lines = [
        (f"label: {short_name(image.mistake.truth, 14)}", light("ink"), 8),
        (f"answer: {short_name(own.answer, 14)}, {own.percent}{right}", style.color, 8),
        (file, light("ink-soft"), 6.5),
    ]
    for line, (text, color, size) in enumerate(lines):
        below = (0, -12 - 11 * line)
        axes.annotate(text, (0.5, 0), below, "axes fraction", "offset points", ha="center", color=color, fontsize=size)


def _draw_confusion(found: Gallery, style: ModelStyle, folder: Path) -> ReportFigure:
    """The comparison's matrix, which takes a model as a result among others; what it does not draw is left at zero."""
    result = ModelResult(
        name=found.model_name, seed=0, kind=found.kind, parameters=0, flops=0, train_seconds=0.0,
        images_per_second=0.0, history=[], probabilities=found.probabilities.astype(np.float32), labels=found.labels,
        run=found.run,
    )  # fmt: skip
    models = summarise([result])
    return draw_confusions(models, {found.model_name: style}, found.class_names, folder, ["confusion"])[0]


def _by_loss(found: Gallery) -> str:
    """Every image of the split, the highest loss first: for a spreadsheet, or a script that fixes labels."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "index", "path", "label", "answer", "confidence"])
    for index in np.argsort(-found.losses, kind="stable"):
        row = found.probabilities[index]
        writer.writerow([
            f"{found.losses[index]:.6g}", int(index), found.paths[index] if found.paths else "",
            found.class_names[int(found.labels[index])], found.class_names[int(row.argmax())], f"{row.max():.6g}",
        ])  # fmt: skip
    return text.getvalue()
