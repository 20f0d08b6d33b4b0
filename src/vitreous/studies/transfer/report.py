"""The study as a table for the terminal, a figure, `transfer.json` and one self-contained HTML report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

import vitreous.comparison.report
from vitreous.comparison.curves import ReportFigure
from vitreous.comparison.verdict import in_a_row
from vitreous.downloads.files import atomic_write_text
from vitreous.errors import RunError
from vitreous.evaluation.metrics import p_in_words
from vitreous.reports.colors import ModelStyle, light, model_styles
from vitreous.reports.figures import figure_style, finish_figure
from vitreous.reports.pages import html_page, page_environment
from vitreous.studies.transfer.results import FINE_TUNED, ArmResult, Gain, Row, Transfer, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_HERE = Path(__file__).parent
#: The header, the tables and their rhythm are those of the comparison's report.
_SHARED_CSS = Path(vitreous.comparison.report.__file__).with_name("report.css")
WIDTH, HEIGHT = 640, 400
_APART = 1.07  # between the arms on the logarithmic axis, so that no bar hides another


def arm_styles(result: Transfer) -> dict[str, ModelStyle]:
    """Fine-tuned in the ViT's own colour: it is what the study is about."""
    return model_styles({arm: "vit" if arm == FINE_TUNED else "other" for arm in result.arms})


def accuracy_cell(arm: ArmResult) -> str:
    """Mean ± half of the 95 % interval, both in percent."""
    return f"{100 * arm.accuracy.value:.1f} ± {100 * arm.accuracy.half_width:.1f} %"


def gain_cell(gain: Gain) -> str:
    return f"{points(gain.points.value)} ± {100 * gain.points.half_width:.1f}"


def best_arm(row: Row) -> str | None:
    """Fine-tuned or scratch, only where the difference between them is real."""
    gain = row.gains[FINE_TUNED]
    if not gain.real:
        return None
    return FINE_TUNED if gain.points.value > 0 else next(arm for arm in row.arms if arm not in row.gains)


def render_table(result: Transfer) -> Table:
    """For the terminal: a row for each number of labelled images a class."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{result.title}: test accuracy, mean ± 95 % interval over {result.seeds} seeds"),
        title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0),
    )  # fmt: skip
    for heading in ("labels a class", *result.arms, "gain of fine-tuning, points", "p"):
        table.add_column(Text(heading, style="bold"), justify="right", no_wrap=True)
    for row in result.rows:
        gain, best = row.gains[FINE_TUNED], best_arm(row)
        cells = [Text(accuracy_cell(arm), style="bold" if arm.arm == best else "") for arm in row.arms.values()]
        table.add_row(f"{row.per_class:,}", *cells, gain_cell(gain), p_in_words(gain.p_value).removeprefix("p = "))
    return table


# --- files -----------------------------------------------------------------------------------------------------


def write_report(result: Transfer, folder: Path) -> Transfer:
    """Write the figure, `transfer.json` and `report.html` into `folder`."""
    try:
        figures = folder / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        figure = draw_accuracies(result, figures)
        text = json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write_text(result.results, text)
        atomic_write_text(result.report, _page(result, figure))
    except OSError as error:
        raise RunError(f"cannot write the report into {str(folder)!r}: {error.strerror or error}") from error
    return result


def _page(result: Transfer, figure: ReportFigure) -> str:
    environment = page_environment(_HERE)
    factors = sorted({factor for row in result.rows for arm in row.arms.values() for factor in arm.tried})
    environment.filters.update(p_in_words=p_in_words, accuracy_cell=accuracy_cell, gain_cell=gain_cell)
    body = environment.get_template("report.html.jinja").render(
        result=result,
        styles=arm_styles(result),
        figure=figure,
        best_arm=best_arm,
        fine_tuned=FINE_TUNED,
        factors=factors,
    )
    css = _SHARED_CSS.read_text(encoding="utf-8")
    return html_page(result.title, Markup(body), description=result.verdict, extra_css=css)


# --- the figure ------------------------------------------------------------------------------------------------


def draw_accuracies(result: Transfer, folder: Path) -> ReportFigure:
    """Test accuracy against labelled images a class, an arm a line, with intervals and every seed."""
    styles = arm_styles(result)
    with figure_style("accuracy", WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for place, arm in enumerate(result.arms):
            _draw_arm(axes, result, arm, styles[arm], _APART ** (place - (len(result.arms) - 1) / 2))
        counts = [row.per_class for row in result.rows]
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xlim(counts[0] / 1.6, counts[-1] * 1.6)
        axes.set_xlabel("labelled images a class")
        axes.set_ylabel("test accuracy", labelpad=6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %" if value <= 1 + 1e-9 else "")
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.02))
        figure.legend(loc="outside upper left", ncols=len(result.arms), labelcolor=light("ink"), handlelength=3)
        drawn = finish_figure(figure, "accuracy", folder)
    return ReportFigure(drawn, "Test accuracy against the number of labels.", _reading(result), _alt(result))


def _draw_arm(axes: Axes, result: Transfer, arm: str, style: ModelStyle, shift: float) -> None:
    cells = [row.arms[arm] for row in result.rows]
    x = [row.per_class * shift for row in result.rows]
    for position, cell in zip(x, cells, strict=True):
        axes.plot([position] * 2, [cell.accuracy.low, cell.accuracy.high], color=style.color, linewidth=2, alpha=0.5)
        seeds = [position] * len(cell.accuracies)
        axes.plot(seeds, cell.accuracies, style.marker, color=style.color, markersize=3, alpha=0.55, markeredgewidth=0)
    means = [cell.accuracy.value for cell in cells]
    line = (0, style.dash) if style.dash else "solid"
    axes.plot(
        x, means, color=style.color, linestyle=line, marker=style.marker, markersize=7,
        markeredgecolor=light("paper"), label=arm,
    )  # fmt: skip


def _reading(result: Transfer) -> str:
    return (
        f"Large marks: mean over {result.seeds} seeds; bars: its 95 % interval; small marks: the seeds."
        " The arms stand a little apart so that none hides another."
        " All fine-tuned seeds start from one pre-training: its own luck is not in their bars."
    )


def _alt(result: Transfer) -> str:
    parts = [
        f"{arm} " + in_a_row([f"{accuracy_cell(row.arms[arm])} with {row.per_class:,}" for row in result.rows])
        for arm in result.arms
    ]
    return f"Line plot of test accuracy on {result.target} against labelled images a class: {'; '.join(parts)}."
