"""The transfer study's results: gains over training from scratch, the verdict, a table, a figure and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.comparison.figures import tick_percent
from vitreous.comparison.results import accuracy_interval
from vitreous.evaluation import metrics
from vitreous.reports import formats
from vitreous.reports.colors import ModelStyle, light, model_styles
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import join, number
from vitreous.reports.pages import write_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

SCRATCH, FINE_TUNED, HEAD_ONLY = "from scratch", "fine-tuned", "head only"
_TEMPLATE = Path(__file__).with_name("transfer.html.jinja")
_APART = 1.07  # factor between the arms on the logarithmic axis, so that no bar hides another


@dataclass(frozen=True)
class ArmResult:
    """One way to train, at one number of labelled images, over all seeds."""

    arm: str
    lr_factor: float  # chosen on the validation images of the first seed
    tried: Mapping[float, float]  # learning-rate factor → validation accuracy of the first seed
    accuracies: tuple[float, ...]  # on the test set, one per seed
    train_seconds: tuple[float, ...]
    runs: tuple[str, ...]

    @property
    def accuracy(self) -> metrics.Interval:
        return accuracy_interval(self.accuracies)

    @property
    def text(self) -> str:
        """Mean ± half of the 95 % interval."""
        return f"{100 * self.accuracy.value:.1f} ± {formats.percent(self.accuracy.half_width, 1)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "accuracies": list(self.accuracies),
            "lr_factor": self.lr_factor,
            "validation_accuracy_by_lr_factor": {f"{factor:g}": value for factor, value in self.tried.items()},
            "train_seconds": list(self.train_seconds),
            "runs": list(self.runs),
        }


@dataclass(frozen=True)
class Gain:
    """The gain of an arm over training from scratch. Seeds are paired: both saw the same labelled images."""

    arm: str
    difference: metrics.Interval  # of test accuracies, as a share
    p_paired: float
    p_welch: float
    p_value: float  # the paired one, corrected (Holm) for the several numbers of labelled images

    @property
    def significant(self) -> bool:
        return self.p_value < metrics.LEVEL

    @property
    def points(self) -> str:
        """The gain in percentage points, signed: "+3.1"."""
        return number(100 * self.difference.value, "+.1f")

    @property
    def text(self) -> str:
        return f"{self.points} ± {100 * self.difference.half_width:.1f}"

    @property
    def p_text(self) -> str:
        """The p value for a column headed "p": "0.03", "< 0.001"."""
        return formats.p_value(self.p_value).removeprefix("p ").removeprefix("= ")

    def as_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "gain": self.difference.value,
            "gain_interval": [self.difference.low, self.difference.high],
            "p_paired_over_seeds": self.p_paired,
            "p_welch_over_seeds": self.p_welch,
            "p_paired_holm": self.p_value,
            "significant": self.significant,
        }


@dataclass(frozen=True)
class Row:
    """All arms at one number of labelled images per class."""

    per_class: int
    images: int
    steps: int
    batch_size: int
    arms: Mapping[str, ArmResult]
    gains: Mapping[str, Gain]  # every arm but scratch

    @property
    def best_arm(self) -> str | None:
        """Fine-tuned or scratch, only where they differ significantly."""
        gain = self.gains[FINE_TUNED]
        if not gain.significant:
            return None
        return FINE_TUNED if gain.difference.value > 0 else SCRATCH

    def as_dict(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, key) for key in ("per_class", "images", "steps", "batch_size")},
            "arms": [arm.as_dict() for arm in self.arms.values()],
            "gains": [gain.as_dict() for gain in self.gains.values()],
        }


@dataclass(frozen=True)
class Transfer:
    """The findings, and the files they were written to."""

    source: str
    target: str
    preset: str
    seeds: int
    test_images: int
    rows: tuple[Row, ...]
    verdict: str
    pretrained: Mapping[str, Any]  # run, epochs, its own test accuracy, how its weights were adapted to the target
    settings: Mapping[str, Any]
    hardware: str
    report: Path
    results: Path

    @property
    def title(self) -> str:
        return f"From {self.source} to {self.target}"

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.rows[0].arms)

    @cached_property
    def figure(self) -> DrawnFigure:
        return _draw_accuracies(self, self.styles)

    @property
    def styles(self) -> dict[str, ModelStyle]:
        """Fine-tuned has the ViT's own colour: the study is about it."""
        return model_styles({arm: "vit" if arm == FINE_TUNED else "other" for arm in self.arms})

    def as_markdown(self) -> str:
        """Return the content of `table.md`."""
        headings = ("labels per class", "steps × batch", *self.arms, "gain of fine-tuning, points", "p")
        lines = [headings, ("---:",) * len(headings)]
        for row in self.rows:
            cells = (row.arms[arm].text for arm in self.arms)
            steps, gain = f"{row.steps} × {row.batch_size}", row.gains[FINE_TUNED]
            lines.append((f"{row.per_class:,}", steps, *cells, gain.text, gain.p_text))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        plain = ("title", "verdict", "source", "target", "preset", "seeds", "test_images", "hardware")
        return {
            **{key: getattr(self, key) for key in plain},
            "level": metrics.LEVEL,
            "rows": [row.as_dict() for row in self.rows],
            "pretrained": dict(self.pretrained),
            "settings": dict(self.settings),
        }


def gains_over_scratch(tables: Sequence[Mapping[str, ArmResult]]) -> list[dict[str, Gain]]:
    """Return, for each number of labelled images, the gain of every other arm over scratch."""
    gains: list[dict[str, Gain]] = [{} for _ in tables]
    for arm in [name for name in tables[0] if name != SCRATCH]:
        pairs = [(table[arm].accuracies, table[SCRATCH].accuracies) for table in tables]
        differences = [[ours - theirs for ours, theirs in zip(*pair, strict=True)] for pair in pairs]
        p_paired = [metrics.paired_t_test(values) for values in differences]
        corrected = metrics.holm(p_paired)
        for index, (values, pair) in enumerate(zip(differences, pairs, strict=True)):
            interval, p_welch = metrics.seed_interval(values), metrics.welch_t_test(*pair)
            gains[index][arm] = Gain(arm, interval, p_paired[index], p_welch, corrected[index])
    return gains


def verdict(source: str, target: str, rows: Sequence[Row], seeds: int) -> str:
    """Return whether fine-tuning beats training from scratch, and at which numbers of labels."""
    effects = {FINE_TUNED: "helps", SCRATCH: "hurts", None: f"makes no significant difference over {seeds} seeds"}
    clauses = []
    for best_arm, effect in effects.items():
        if members := [row for row in rows if row.best_arm == best_arm]:
            clauses.append(f"{effect} {_where(members)}")
    return f"At equal training steps on {target}, pre-training on {source} {join(clauses)}."


def _where(rows: Sequence[Row]) -> str:
    counts = join(f"{row.per_class:,}" for row in rows)
    noun = "labelled image" if rows[-1].per_class == 1 else "labelled images"
    return f"with {counts} {noun} per class ({join(row.gains[FINE_TUNED].points for row in rows)} points)"


# --- table, figure and page --------------------------------------------------------------------------------


def render_table(result: Transfer) -> Table:
    """Return the table for the terminal: one row per number of labelled images."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{result.title}: test accuracy, mean ± 95 % interval over {result.seeds} seeds"),
        title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for heading in ("labels per class", *result.arms, "gain of fine-tuning, points", "p"):
        lines = heading.replace(" ", "\n").replace("-", "-\n")  # 60 columns are enough
        table.add_column(Text(lines, style="bold"), justify="right", vertical="bottom", overflow="fold")
    for row in result.rows:
        cells = [Text(arm.text, style="bold" if arm.arm == row.best_arm else "") for arm in row.arms.values()]
        gain = row.gains[FINE_TUNED]
        table.add_row(f"{row.per_class:,}", *cells, gain.text, gain.p_text)
    return table


def write_transfer(result: Transfer) -> Transfer:
    """Write the report, `results.json`, `table.md` and the figure."""
    figure = result.figure
    write_report(
        result.report,
        _TEMPLATE,
        title=result.title,
        description=result.verdict,
        beside={
            result.results.name: result.as_dict(),
            "table.md": result.as_markdown(),
            "figure.svg": figure.svg,
            "figure.png": figure.png,
        },
        result=result,
        styles=result.styles,
        accuracies=figure,
        fine_tuned=FINE_TUNED,
        factors=sorted({factor for row in result.rows for arm in row.arms.values() for factor in arm.tried}),
    )
    return result


def _draw_accuracies(result: Transfer, styles: dict[str, ModelStyle]) -> DrawnFigure:
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
        spoken = [
            f"{arm} " + join(f"{row.arms[arm].text} with {row.per_class:,}" for row in result.rows)
            for arm in result.arms
        ]
        what = f"Line plot of test accuracy on {result.target} against labelled images per class"
        return finish_figure(figure, "accuracy", alt=f"{what}: {'; '.join(spoken)}.")


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
