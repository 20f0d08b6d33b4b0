"""The sentences of the report that depend on the result, and the format of odds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vitreous.inspection.examination import CONTROL, MAPS, Examination
from vitreous.inspection.faithfulness import REFERENCE, Faithfulness
from vitreous.inspection.subject import Subject
from vitreous.reports.formats import join, percent

VERDICTS = {
    "faithful": "can be trusted",
    "partly": "partly faithful",
    "chance": "no better than chance",
    "unclear": "cannot be judged here",
}


def factor(drop: float) -> str:
    """Return the factor by which the odds change for a drop (or rise) of log₁₀ odds."""
    if abs(drop) >= 6:
        return f"10^{abs(drop):.0f}"
    times = 10 ** abs(drop)
    if times < 1.095:
        return f"{times:.3g}"
    return f"{times:.2g}" if times < 99.5 else f"{float(f'{times:.2g}'):,.0f}"


def odds(drop: float) -> str:
    """Return "odds ÷ 10" for a drop of log₁₀ odds by 1."""
    return "odds unchanged" if factor(drop) == "1" else f"odds {'÷' if drop > 0 else '×'} {factor(drop)}"


def place(cell: int, grid: tuple[int, int]) -> str:
    row, column = divmod(cell, grid[1])
    return f"row {row + 1}, column {column + 1}"


def mid_sentence(name: str) -> str:
    """Return the name of a model as it appears inside a sentence: the ViT."""
    return name.replace("The ", "the ", 1)


def headline(subjects: Sequence[Subject], class_names: Sequence[str], label: int | None) -> str:
    """State what each model predicts and whether it is correct."""

    def correctness(prediction: int) -> str:
        if label is None:
            return ""
        return " That is correct." if prediction == label else f" That is wrong: the label is {class_names[label]}."

    predicted = [(each.name, each.result.prediction, percent(each.result.probabilities.max())) for each in subjects]
    first = predicted[0][1]
    if len(subjects) == 2 and predicted[1][1] == first:
        both = join(f"{mid_sentence(name)} with {probability}" for name, _, probability in predicted)
        return f"Both predict {class_names[first]}: {both}.{correctness(first)}"
    return " ".join(
        f"{name} predicts {class_names[prediction]} with {probability}.{correctness(prediction)}"
        for name, prediction, probability in predicted
    )


def most_important(result: Examination, class_names: Sequence[str], part: str) -> str:
    """State the largest effect of occluding a single cell."""
    effects = result.maps["occlusion"].cells
    cell = int(effects.argmax())
    name = class_names[result.target]
    if effects.flat[cell] < math.log10(1.05):
        return f"No single {part} is needed for “{name}”: occluding any one of them does not lower the odds noticeably."
    return (
        f"The most important {part} is in {place(cell, result.cells.grid)}: occluding it divides the odds of “{name}”"
        f" by {factor(float(effects.flat[cell]))}."
    )


class Advice(NamedTuple):
    """One sentence about the maps, and the verdict it belongs to (empty for a remark)."""

    verdict: str
    text: str


def advice(faithfulness: Faithfulness) -> list[Advice]:
    """Return one sentence per verdict, then remarks."""
    maps = [score for score in faithfulness.scores if score.name != CONTROL]
    if any(score.verdict == "unclear" for score in maps):
        text = (
            "No map can be judged here: the class is almost as probable for the empty image, or more probable, so"
            " occluding cells measures nothing. Take each map as a hint."
        )
        return [Advice("unclear", text)]
    named = {
        verdict: join(_mid_sentence_title(score.name) for score in maps if score.verdict == verdict)
        for verdict in VERDICTS
    }
    lines = [Advice("chance", "No map can be trusted fully here.")]
    if named["faithful"]:
        lines = [Advice("faithful", f"You can trust {named['faithful']} here.")]
    if named["partly"]:
        lines.append(Advice("partly", f"Use {named['partly']} with care: above chance, clearly below occlusion."))
    if named["chance"]:
        lines.append(Advice("chance", f"Do not trust {named['chance']}: no better than chance for this image."))
    if faithfulness.score(REFERENCE).verdict == "chance":
        lines.append(Advice("", "Even occlusion fails: one cell at a time, it misses what cells do together."))
    if maps[0].gain <= faithfulness.score(CONTROL).gain:
        lines.append(Advice("", "No map does better than ink alone: they show little beyond where something is drawn."))
    return lines


def _mid_sentence_title(name: str) -> str:
    title = MAPS[name].title
    return title if name.endswith("cam") else title[0].lower() + title[1:]
