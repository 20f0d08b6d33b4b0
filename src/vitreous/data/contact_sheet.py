"""A contact sheet: what a data set looks like and how many images each class has, on one quiet page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitreous.data.checks import class_counts
from vitreous.data.datasets import Dataset
from vitreous.data.splits import keep_per_class
from vitreous.downloads.files import atomic_write_bytes
from vitreous.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 40  # rows; more would make a poster
SAMPLES = 16  # columns
GAP = 0.08  # between pictures, as a share of their width
_NUMBER_EDGES = (0.5, 1.0, 1.5)  # inches: the right edges of the three columns of counts; a bar follows
INK, SOFT, ACCENT, TRACK = "#1b2126", "#5b6670", "#0b7f7c", "#e9edef"


def contact_sheet(dataset: Dataset, path: Path) -> None:
    """Write a PNG: a row a class with some of its training images, its counts in each split as numbers and a bar."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = dataset.image_size
    shown = min(dataset.num_classes, MOST_CLASSES)
    cell_width = 0.5 if width <= height else 0.5 * min(2.0, width / height)  # inches
    cell_height = cell_width * height / width
    row = max(cell_height * (1 + GAP), 0.3)
    names = [_short(name) for name in dataset.class_names[:shown]]
    left = 0.75 + 0.085 * max(map(len, names))
    strip, right, top, bottom = SAMPLES * cell_width * (1 + GAP), 3.3, 1.15, 0.35 + 0.2 * len(dataset.notes)
    numbers, end = left + strip + 0.2, left + strip + right - 0.45
    total = (left + strip + right, top + shown * row + bottom)
    with matplotlib.rc_context({"font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=total, dpi=150, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, total[0]), ylim=(total[1], 0))  # inches, from the top left
        axes.axis("off")
        _write_head(axes, dataset, shown, left, numbers)
        counts = np.array([counted[1:] for counted in class_counts(dataset)]).T  # (3, classes)
        chosen = keep_per_class(dataset.train.labels, SAMPLES, seed=0)
        for label in range(shown):
            middle = top + (label + 0.5) * row
            _write(axes, left - 0.2, middle, names[label], ha="right")
            members = chosen[dataset.train.labels.numpy()[chosen] == label]
            for column, index in enumerate(members):
                x = left + column * cell_width * (1 + GAP)
                _draw_picture(axes, dataset.train.images[index], x, middle, cell_width, cell_height)
            _write_counts(axes, counts[:, label], counts[0].max(), numbers, end, middle)
        for line, note in enumerate(dataset.notes):
            _write(axes, left, top + shown * row + 0.25 + 0.2 * line, _short(note, 180), color=SOFT, fontsize=8)
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(buffer)
    try:
        atomic_write_bytes(path, buffer.getvalue())
    except OSError as error:
        raise DataError(f"cannot write the contact sheet {path}: {error.strerror or error}") from None


def _short(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _write(axes: Axes, x: float, y: float, text: str, color: str = INK, **style: Any) -> None:
    axes.text(x, y, text, color=color, va="center", parse_math=False, **style)


def _write_head(axes: Axes, dataset: Dataset, shown: int, left: float, numbers: float) -> None:
    height, width = dataset.image_size
    colours = "grayscale" if dataset.channels == 1 else "colour"
    title = _short(Path(dataset.name).name or dataset.name, 60)
    _write(axes, left, 0.42, title, fontsize=17, fontweight="bold")
    number = len(dataset.train) + len(dataset.val) + len(dataset.test)
    classes = f"{dataset.num_classes} classes" + (f", the first {shown} shown" if shown < dataset.num_classes else "")
    summary = f"{number:,} images · {height} × {width}, {colours} · {classes}"
    _write(axes, left, 0.74, summary, color=SOFT)
    for x, word in zip(_NUMBER_EDGES, ("train", "val", "test"), strict=True):
        _write(axes, numbers + x, 0.98, word, color=SOFT, fontsize=8, ha="right")


def _write_counts(axes: Axes, counts: np.ndarray, most: int, start: float, end: float, middle: float) -> None:
    for x, count in zip(_NUMBER_EDGES, counts, strict=True):
        _write(axes, start + x, middle, f"{count:,}", fontsize=8.5, ha="right")
    bar = start + _NUMBER_EDGES[-1] + 0.2
    axes.barh(middle, end - bar, left=bar, height=0.07, color=TRACK)
    axes.barh(middle, (end - bar) * counts[0] / most, left=bar, height=0.07, color=ACCENT)


def _draw_picture(axes: Axes, image: Tensor, x: float, middle: float, width: float, height: float) -> None:
    pixels = image.permute(1, 2, 0).numpy()  # (H, W, C)
    extent = (x, x + width, middle + height / 2, middle - height / 2)
    # the gray scale's ends are fixed, so that a faint picture looks faint; colour pictures have no use for them
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest", aspect="auto")
