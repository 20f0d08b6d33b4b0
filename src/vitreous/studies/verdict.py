"""What the runs say about each part of a study's claim: it holds, it is contradicted, or it stays undecided.

`better` and `worse`: a significant difference (p < 0.05, corrected for all comparisons of the study) in the expected
direction confirms, one in the other direction contradicts. `same`: confirmed where the whole interval lies within the
margin, contradicted by a significant difference larger than the margin. `best`: which arm has the highest accuracy, and
which do not differ significantly from it. `crossing`: from which point on which of two arms is significantly better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vitreous.reports import formats
from vitreous.reports.formats import join
from vitreous.studies.cells import Cell, Cells, Difference, corrected, difference
from vitreous.studies.definition import Check, GridStudy, Value

Outcome = Literal["holds", "contradicted", "undecided", "mixed", "measured"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check, in a sentence with its numbers."""

    check: Check
    outcome: Outcome
    sentence: str
    differences: tuple[Difference, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "claim": self.check.claim,
            "expect": self.check.expect,
            "outcome": self.outcome,
            "sentence": self.sentence,
            "differences": [one.as_dict() for one in self.differences],
        }


def decide(study: GridStudy, cells: Cells) -> tuple[Verdict, ...]:
    """Decide every check of the study; p values are corrected (Holm) for all comparisons together."""
    compared = [_differences(study, check, cells) for check in study.verdict]
    flat = corrected([one for group in compared for one in group])
    verdicts, start = [], 0
    for check, group in zip(study.verdict, compared, strict=True):
        verdicts.append(_decide_one(study, check, cells, flat[start : start + len(group)]))
        start += len(group)
    return tuple(verdicts)


def _points_of(study: GridStudy, check: Check) -> Sequence[Value | None]:
    if study.points is None:
        return [None]
    return check.at or study.points.values


def _differences(study: GridStudy, check: Check, cells: Cells) -> list[Difference]:
    found = []
    for point in _points_of(study, check):
        if check.expect == "best":
            leading = _leading(study, cells, point)
            others = [cells[arm.name, point] for arm in study.arms if arm.name != leading.arm]
            found += [difference(leading, other) for other in others]
            continue
        other_point = point if check.against_at is None else check.against_at
        if check.against is None and other_point == point:
            continue
        found.append(difference(cells[check.arm, point], cells[check.against or check.arm, other_point]))
    return found


def _leading(study: GridStudy, cells: Cells, point: Value | None) -> Cell:
    return max((cells[arm.name, point] for arm in study.arms), key=lambda cell: cell.accuracy.value)


def _decide_one(study: GridStudy, check: Check, cells: Cells, differences: Sequence[Difference]) -> Verdict:
    if check.expect == "best":
        return Verdict(check, "measured", _best_sentence(study, check, cells, differences), tuple(differences))
    if check.expect == "crossing":
        return Verdict(check, "measured", _crossing_sentence(study, check, differences), tuple(differences))
    outcomes: list[Outcome] = [_outcome(check, one) for one in differences]
    outcome: Outcome = outcomes[0] if len(set(outcomes)) == 1 else "mixed"
    parts = []
    for kind in ("holds", "contradicted", "undecided"):
        if members := [one for one, each in zip(differences, outcomes, strict=True) if each == kind]:
            word = {"holds": "holds", "contradicted": "is contradicted", "undecided": "stays undecided"}[kind]
            parts.append(f"{word} {_numbers(study, members)}")
    return Verdict(check, outcome, f"{_sentence_case(check.claim)}: {join(parts)}.", tuple(differences))


def _outcome(check: Check, one: Difference) -> Outcome:
    value, margin = one.interval.value, check.margin / 100
    if check.expect == "same":
        if -margin <= one.interval.low and one.interval.high <= margin:
            return "holds"
        return "contradicted" if one.significant and abs(value) > margin else "undecided"
    if not one.significant:
        return "undecided"
    return "holds" if (value > 0) == (check.expect == "better") else "contradicted"


def _numbers(study: GridStudy, differences: Sequence[Difference]) -> str:
    parts = []
    for one in differences:
        where = (
            "" if study.points is None or one.first.point is None else f" at {study.points.name_of(one.first.point)}"
        )
        parts.append(f"{one.points} points{where}, {formats.p_value(one.p_value)}")
    return f"({'; '.join(parts)})"


def _best_sentence(study: GridStudy, check: Check, cells: Cells, differences: Sequence[Difference]) -> str:
    parts = []
    for point in _points_of(study, check):
        leading = _leading(study, cells, point)
        ties = [one for one in differences if one.first.point == point and not one.significant]
        where = "" if study.points is None or point is None else f"at {study.points.name_of(point)} "
        text = f"{where}{leading.arm} ({leading.text})"
        if ties:
            tied = join(f"{one.second.arm} ({one.second.text})" for one in ties)
            text += f", not significantly better than {tied}"
        else:
            text += ", significantly better than every other"
        parts.append(text)
    return f"{_sentence_case(check.claim)}: {'; '.join(parts)}."


def _crossing_sentence(study: GridStudy, check: Check, differences: Sequence[Difference]) -> str:
    assert study.points is not None
    stretches: list[tuple[str, list[Difference]]] = []
    for one in differences:
        better = "no significant difference" if not one.significant else _better(one)
        if not stretches or stretches[-1][0] != better:
            stretches.append((better, []))
        stretches[-1][1].append(one)
    parts = []
    for better, members in stretches:
        first, last = (study.points.name_of(member.first.point) for member in (members[0], members[-1]))  # type: ignore[arg-type]
        where = f"at {first}" if first == last else f"from {first} to {last}"
        what = better if better.startswith("no ") else f"{better} is better"
        parts.append(f"{what} {where} ({', '.join(member.points for member in members)} points)")
    return f"{_sentence_case(check.claim)} ({check.arm} minus {check.against}): {'; '.join(parts)}."


def _better(one: Difference) -> str:
    return one.first.arm if one.interval.value > 0 else one.second.arm


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return what holds and what does not, without numbers; where something is only measured, its sentence."""
    words = {"holds": "Holds", "contradicted": "Contradicted", "undecided": "Undecided", "mixed": "Mixed"}
    parts = []
    for outcome, word in words.items():
        if claims := [verdict.check.claim.rstrip(".") for verdict in verdicts if verdict.outcome == outcome]:
            parts.append(f"{word}: {'; '.join(claims)}.")
    measured = [verdict.sentence for verdict in verdicts if verdict.outcome == "measured"]
    return " ".join(
        [*parts, *(f"{sentence.partition(', not significantly')[0].rstrip('.')}." for sentence in measured)]
    )
