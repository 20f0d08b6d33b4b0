"""The curves of a training, as metrics.jsonl has them: lists by name, for plots and data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.reports.colors import light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import plural
from vitreous.reports.notebook import data_frame, html_card, html_figure

_WIDTH, _HEIGHT = 640, 232  # CSS pixels


@dataclass(frozen=True, repr=False)
class History:
    """`history.train["loss"]`, `history.val["accuracy"]`: one list per measure, by step; `val` is after each epoch."""

    train: dict[str, list[Any]]  # step, epoch, loss, accuracy, lr, images_per_second, elapsed_seconds
    val: dict[str, list[Any]]  # step, epoch, loss, accuracy, elapsed_seconds

    @classmethod
    def from_metrics(cls, lines: Sequence[dict[str, Any]]) -> History:
        return cls(*(_columns([line for line in lines if line.get("event") == event]) for event in ("train", "val")))

    def __repr__(self) -> str:
        counts = (plural(len(part.get("step", [])), "line") for part in (self.train, self.val))
        return "History({} of training, {} of validation)".format(*counts)

    def _repr_html_(self) -> str:
        return html_card(repr(self), {}, html_figure(draw_history(self)) if self.train or self.val else "")

    def to_pandas(self) -> Any:
        """Return a data frame with a row per line of metrics.jsonl; `split` is train or val."""
        names = dict.fromkeys([*self.train, *self.val])
        parts = [("train", self.train), ("val", self.val)]
        counts = [len(part.get("step", [])) for _, part in parts]
        columns: dict[str, list[Any]] = {
            "split": [name for (name, _), count in zip(parts, counts, strict=True) for _ in range(count)]
        }
        for name in names:
            columns[name] = [
                value
                for (_, part), count in zip(parts, counts, strict=True)
                for value in part.get(name, [None] * count)
            ]
        return data_frame(columns)


def _columns(lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for line in lines for name in line if name != "event")
    return {name: [line.get(name) for line in lines] for name in names}


def draw_history(history: History) -> DrawnFigure:
    """Draw loss and accuracy against epochs, training and validation."""
    with figure_style("history", _WIDTH, _HEIGHT) as figure:
        for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for part, label, color in ((history.train, "training", "cnn"), (history.val, "validation", "vit")):
                steps = zip(part.get("epoch", []), part.get(name, []), strict=True)
                points = [(x, y) for x, y in steps if y is not None]  # a loss that was not finite
                xs, ys = zip(*points, strict=True) if points else ((), ())
                axes.plot(xs, ys, marker="o" if len(xs) == 1 else None, color=light(color), label=label)
            axes.set_title(name)
            axes.set_xlabel("epoch")
        figure.axes[0].legend()
        return finish_figure(figure, "history", alt="Loss and accuracy of the training and validation images by epoch.")
