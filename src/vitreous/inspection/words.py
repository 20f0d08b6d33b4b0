"""The report's sentences: what to see, how to read it, what to be careful about. Plain words, short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitreous.inspection.examination import CONTROLS, Examination
from vitreous.inspection.faithfulness import Score

TITLES = {
    "occlusion": "Occlusion",
    "patch-removal": "Patch removal",
    "relevance": "Relevance",
    "attention-rollout": "Attention rollout",
    "last-attention": "Last layer’s attention",
    "gradient": "Gradient",
    "integrated-gradients": "Integrated gradients",
    "grad-cam": "Grad-CAM",
    "hires-cam": "HiResCAM",
    "ink": "Ink alone",
}
WHAT_IT_IS = {
    "occlusion": "Each cell alone is painted over with the background.",
    "patch-removal": "Each patch alone is hidden from all tokens.",
    "relevance": "Gradient × attention through all layers, for this class.",
    "attention-rollout": "Attention multiplied through all layers; knows no class.",
    "last-attention": "Where the last layer looks, heads averaged; knows no class.",
    "gradient": "Where a small change of a pixel moves the answer most.",
    "integrated-gradients": "Gradients gathered on the way from the empty picture.",
    "grad-cam": "The last convolution’s features, weighed by their mean gradient.",
    "hires-cam": "The last convolution’s features × gradient, place by place.",
    "ink": "A control: where something is drawn. It knows nothing of the model.",
}
VERDICT_WORDS = {
    "true": "may be trusted",
    "partly": "partly true",
    "chance": "no better than chance",
    "unclear": "cannot be judged here",
}


def percent(share: float) -> str:
    """Digits that matter, and never a rounded-up certainty."""
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.3g} %" if share >= 0.1 else f"{100 * share:.1f} %"


def times(lost: float) -> str:
    """By how much the odds are divided (or multiplied) when evidence (log₁₀ of the odds) is lost (or won)."""
    if abs(lost) >= 6:
        return f"10^{abs(lost):.0f}"
    factor = 10 ** abs(lost)
    if factor < 1.095:
        return f"{factor:.3g}"
    return f"{factor:.2g}" if factor < 99.5 else f"{float(f'{factor:.2g}'):,.0f}"


def odds(lost: float) -> str:
    """Evidence lost as what happens to the odds."""
    factor = times(lost)
    return "odds unchanged" if factor == "1" else f"odds {'÷' if lost > 0 else '×'} {factor}"


def joined(names: Iterable[str]) -> str:
    """a, b and c."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]


def place(cell: int, grid: tuple[int, int]) -> str:
    row, column = divmod(cell, grid[1])
    return f"row {row + 1}, column {column + 1}"


def headline(names: Sequence[str], found: Sequence[Examination], class_names: Sequence[str], label: int | None) -> str:
    """Who says what, and whether that is right."""
    chances = [percent(float(each.probabilities[each.answer])) for each in found]
    answers = [each.answer for each in found]
    if len(found) == 2 and answers[0] == answers[1]:
        both = " and ".join(f"{name_inside(name)} with {chance}" for name, chance in zip(names, chances, strict=True))
        return f"Both say {class_names[answers[0]]}: {both}.{_right(answers[0], class_names, label)}"
    return " ".join(
        f"{name} says {class_names[answer]}, with {chance}.{_right(answer, class_names, label)}"
        for name, answer, chance in zip(names, answers, chances, strict=True)
    )


def _right(answer: int, class_names: Sequence[str], label: int | None) -> str:
    if label is None:
        return ""
    return " That is right." if answer == label else f" That is wrong: it is {class_names[label]}."


def name_inside(name: str) -> str:
    """A model's name inside a sentence: the ViT."""
    return name.replace("The ", "the ", 1)


def most_needed(found: Examination, class_names: Sequence[str], part: str) -> str:
    """What painting over one cell costs at most."""
    lost = found.maps["occlusion"].cells
    cell = int(lost.argmax())
    name = class_names[found.target]
    if lost.flat[cell] < math.log10(1.05):
        return f"No single {part} is needed for “{name}”: painted over one at a time, none makes the odds fall."
    return (
        f"The {part} that matters most is in {place(cell, found.cells.grid)}: painted over, the odds of “{name}” are"
        f" divided by {times(float(lost.flat[cell]))}."
    )


@dataclass(frozen=True)
class Advice:
    """One line of the verdict: the mark it goes by (empty: none) and the words."""

    mark: str
    text: str


def advice(found: Examination) -> list[Advice]:
    """Which maps may be believed for this image, a line a verdict."""
    judged = found.faithfulness
    if any(score.verdict == "unclear" for score in judged.scores):
        gets = "gets the same answer, no less surely" if judged.swing <= 0 else "gets nearly the same answer"
        text = f"No map can be judged here: the empty picture {gets}, so painting over can tell nothing."
        return [Advice("unclear", f"{text} Take each map as a hint.")]
    by_verdict: dict[str, list[Score]] = {}
    for score in judged.scores:
        if score.name not in CONTROLS:
            by_verdict.setdefault(score.verdict, []).append(score)
    said = []
    if good := by_verdict.get("true"):
        said.append(Advice("true", f"You may trust {_named(good)} here."))
    else:
        said.append(Advice("chance", "No map may be trusted fully here."))
    if partly := by_verdict.get("partly"):
        said.append(Advice("partly", f"Take {_named(partly)} with care: above chance, clearly below occlusion."))
    if chance := by_verdict.get("chance"):
        said.append(Advice("chance", f"Do not believe {_named(chance)}: no better than chance for this picture."))
    return said + _remarks(found)


def _remarks(found: Examination) -> list[Advice]:
    judged, said = found.faithfulness, []
    if judged.score("occlusion").verdict == "chance":
        said.append(Advice("", "Even occlusion fails: one cell at a time, it misses what the cells do together."))
    ink = judged.score("ink")
    beaten = [score for score in judged.scores if score.name not in CONTROLS and score.gain > ink.gain]
    if not beaten:
        said.append(Advice("", "No map does better than ink alone: they say little beyond where something is drawn."))
    return said


def _named(scores: Sequence[Score]) -> str:
    return joined(_inside_sentence(TITLES[score.name]) for score in scores)


def _inside_sentence(title: str) -> str:
    return title if title.startswith(("Grad-CAM", "HiRes")) else title[0].lower() + title[1:]


def missing(gap: float) -> str:
    """How far integrated gradients are from adding up."""
    return "less than 0.1 %" if gap < 0.001 else percent(gap)


def filters_words(source: str, explained: float, count: int) -> str:
    return (
        f"Of {source}: the {count} directions in which its filters differ most, the largest first; together they hold"
        f" {percent(explained)} of the variance."
    )
