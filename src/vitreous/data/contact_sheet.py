"""A contact sheet: sample images of every class of a data set and the class counts, as one PNG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.checks import class_counts
from vitreous.data.datasets import Dataset
from vitreous.data.splits import keep_per_class
from vitreous.downloads.files import atomic_write_bytes
from vitreous.errors import DataError
from vitreous.reports.figures import figure_style, save_figure
from vitreous.reports.formats import by
from vitreous.reports.text_width import shorten_to, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CLASSES = 40  # rows
SAMPLES = 16  # columns
GAP = 1.08  # from one image to the next, in widths of an image
INK, SOFT, ACCENT, TRACK = "#1b2126", "#5b6670", "#0b7f7c", "#e9edef"
# inches
TOP, COUNTS_WIDTH, MARGIN = 1.15, 2.85, 0.45
LONGEST_NAME = 1.75
COUNT_COLUMNS = {"train": 0.7, "val": 1.2, "test": 1.7}  # right edges, from the end of the images
BAR_LEFT = 1.9


def contact_sheet(dataset: Dataset, path: Path) -> None:
    """Write a PNG with a row per class: some of its training images, its counts in each split, and a bar."""
    height, width = dataset.image_size
    names = [shorten_to(name, 96 * LONGEST_NAME, 10) for name in dataset.class_names[:MAX_CLASSES]]
    cell_width = 0.5 * min(2.0, max(1.0, width / height))
    cell_height = cell_width * height / width
    row_height = max(cell_height * GAP, 0.3)
    left = 0.65 + max(text_width(name, 10) for name in names) / 96
    right = left + SAMPLES * cell_width * GAP
    bottom = TOP + len(names) * row_height
    size = (right + COUNTS_WIDTH + MARGIN, bottom + 0.35 + 0.2 * len(dataset.notes))
    counts = class_counts(dataset)
    most = max(train for _, train, *_ in counts)
    chosen = keep_per_class(dataset.train.labels, SAMPLES, seed=0)
    with figure_style("contact-sheet", 96 * size[0], 96 * size[1]) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, size[0]), ylim=(size[1], 0))  # inches, from the top left
        axes.axis("off")
        _write_head(axes, dataset, len(names), left, right)
        for label, name in enumerate(names):
            y = TOP + (label + 0.5) * row_height
            _write(axes, left - 0.2, y, name, ha="right")
            for column, index in enumerate(chosen[dataset.train.labels.numpy()[chosen] == label]):
                x = left + column * cell_width * GAP
                extent = (x, x + cell_width, y + cell_height / 2, y - cell_height / 2)
                pixels = dataset.train.image(int(index)).permute(1, 2, 0).numpy()  # (H, W, C)
                # a fixed gray scale (colour images ignore it), so that a faint image looks faint
                axes.imshow(pixels, "gray", vmin=0, vmax=255, extent=extent, interpolation="nearest", aspect="auto")
            for x, count in zip(COUNT_COLUMNS.values(), counts[label][1:], strict=True):
                _write(axes, right + x, y, f"{count:,}", size=8.5, ha="right")
            bar_width = COUNTS_WIDTH - BAR_LEFT
            for share, color in ((1.0, TRACK), (counts[label][1] / most, ACCENT)):
                axes.barh(y, bar_width * share, left=right + BAR_LEFT, height=0.07, color=color)
        for line, note in enumerate(dataset.notes):
            note = shorten_to(note, 96 * (size[0] - left - MARGIN), 8)
            _write(axes, left, bottom + 0.25 + 0.2 * line, note, color=SOFT, size=8)
        buffer = io.BytesIO()
        save_figure(figure, buffer, format="png", dpi=150)
    try:
        atomic_write_bytes(path, buffer.getvalue())
    except OSError as error:
        raise DataError(f"cannot write the contact sheet {path}: {error.strerror or error}") from None


def _write(axes: Axes, x: float, y: float, text: str, color: str = INK, size: float = 10, **style: Any) -> None:
    axes.text(x, y, text, color=color, size=size, va="center", **style)


def _write_head(axes: Axes, dataset: Dataset, shown: int, left: float, right: float) -> None:
    title = shorten_to(Path(dataset.name).name or dataset.name, 96 * (right + COUNTS_WIDTH - left), 17, bold=True)
    _write(axes, left, 0.42, title, size=17, weight="bold")
    number = len(dataset.train) + len(dataset.val) + len(dataset.test)
    colours = "grayscale" if dataset.channels == 1 else "colour"
    classes = f"{dataset.num_classes} classes" + (f", the first {shown} shown" if shown < dataset.num_classes else "")
    summary = f"{number:,} images · {by(*dataset.image_size)}, {colours} · {classes}"
    _write(axes, left, 0.74, summary, color=SOFT)
    for name, x in COUNT_COLUMNS.items():
        _write(axes, right + x, 0.98, name, color=SOFT, size=8, ha="right")
