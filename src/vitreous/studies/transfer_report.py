"""The transfer study as a table for the terminal, a figure, `transfer.json` and one HTML report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.comparison.figures import tick_percent
from vitreous.reports.colors import ModelStyle, light, model_styles
from vitreous.reports.figures import CaptionedFigure, figure_style, finish_figure
from vitreous.reports.formats import join
from vitreous.reports.pages import write_report
from vitreous.studies.transfer_results import FINE_TUNED, Transfer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_TEMPLATE = Path(__file__).with_name("transfer.html.jinja")
_APART = 1.07  # factor between the arms on the logarithmic axis, so that no bar hides another


def render_table(result: Transfer) -> Table:
    """Return the table for the terminal: one row per number of labelled images."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{result.title}: test accuracy, mean ± 95 % interval over {result.seeds} seeds"),
        title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0),
    )  # fmt: skip
    for heading in ("labels per class", *result.arms, "gain of fine-tuning, points", "p"):
        table.add_column(Text(heading, style="bold"), justify="right", no_wrap=True)
    for row in result.rows:
        cells = [Text(arm.text, style="bold" if arm.arm == row.best_arm else "") for arm in row.arms.values()]
        gain = row.gains[FINE_TUNED]
        table.add_row(f"{row.per_class:,}", *cells, gain.text, gain.p_text)
    return table


def write_transfer(result: Transfer) -> Transfer:
    """Write the report, `transfer.json` and the figure."""
    # fine-tuned has the ViT's own colour: the study is about it
    styles = model_styles({arm: "vit" if arm == FINE_TUNED else "other" for arm in result.arms})
    figure = _draw_accuracies(result, styles)
    write_report(
        result.report,
        _TEMPLATE,
        title=result.title,
        description=result.verdict,
        figures=[figure.drawn],
        beside={result.results.name: result.as_dict()},
        result=result,
        styles=styles,
        figure=figure,
        fine_tuned=FINE_TUNED,
        factors=sorted({factor for row in result.rows for arm in row.arms.values() for factor in arm.tried}),
    )
    return result


def _draw_accuracies(result: Transfer, styles: dict[str, ModelStyle]) -> CaptionedFigure:
    """Draw test accuracy against labelled images per class: one line per arm, with intervals and every seed."""
    counts = [row.per_class for row in result.rows]
    with figure_style("accuracy", 640, 400) as figure:
        axes = figure.add_subplot()
        for place, arm in enumerate(result.arms):
            _draw_arm(axes, result, arm, styles[arm], _APART ** (place - (len(result.arms) - 1) / 2))
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xlim(counts[0] / 1.6, counts[-1] * 1.6)
        axes.set_xlabel("labelled images per class")
        axes.set_ylabel("test accuracy", labelpad=6)
        axes.yaxis.set_major_formatter(lambda value, _: tick_percent(value))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.02))
        figure.legend(loc="outside upper left", ncols=len(result.arms), labelcolor=light("ink"), handlelength=3)
        drawn = finish_figure(figure, "accuracy")
    spoken = [
        f"{arm} " + join(f"{row.arms[arm].text} with {row.per_class:,}" for row in result.rows) for arm in result.arms
    ]
    return CaptionedFigure(
        drawn,
        "Test accuracy against the number of labels.",
        f"Large marks: mean over {result.seeds} seeds; bars: its 95 % interval; small marks: the seeds. The arms are"
        " drawn a little apart so that none hides another. All fine-tuned seeds start from one pre-training, so their"
        " bars do not include its variation.",
        f"Line plot of test accuracy on {result.target} against labelled images per class: {'; '.join(spoken)}.",
    )


def _draw_arm(axes: Axes, result: Transfer, arm: str, style: ModelStyle, shift: float) -> None:
    cells = [row.arms[arm] for row in result.rows]
    x = [row.per_class * shift for row in result.rows]
    for position, cell in zip(x, cells, strict=True):
        axes.plot([position] * 2, [cell.accuracy.low, cell.accuracy.high], color=style.color, linewidth=2, alpha=0.5)
        seeds = [position] * len(cell.accuracies)
        axes.plot(seeds, cell.accuracies, style.marker, color=style.color, markersize=3, alpha=0.55, markeredgewidth=0)
    axes.plot(
        x, [cell.accuracy.value for cell in cells], color=style.color, label=arm, marker=style.marker, markersize=7,
        linestyle=(0, style.dash) if style.dash else "solid", markeredgecolor=light("paper"),
    )  # fmt: skip
