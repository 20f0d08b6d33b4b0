"""Differences with their intervals, and what follows from them, on made-up predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from vitreous.errors import DataError
from vitreous.studies.cells import Cell, Cells, collect_cells, difference
from vitreous.studies.definition import GridStudy, parse_study
from vitreous.studies.grid import Evaluated
from vitreous.studies.verdict import decide, headline

IMAGES = 2000


def cell(arm: str, accuracies: Sequence[float], point=None, run: str = "") -> Cell:
    """Return a cell whose seeds are right on the first images."""
    runs = []
    for seed, accuracy in enumerate(accuracies):
        correct = np.arange(IMAGES) < round(accuracy * IMAGES)
        runs.append(
            Evaluated(f"{run or arm}{seed}", seed, 500, "vit", 10, 10, 100, 5, 1.0, 0.1, "sha", "CPU", 1, correct)
        )
    return Cell(arm, point, tuple(runs))


def study(*checks: dict, points: Sequence[int] = (), arms: Sequence[str] = ("a", "b"), seeds: int = 3) -> GridStudy:
    values = {
        "name": "s", "title": "t", "claim": "c", "source": "me", "seeds": seeds, "quick": {"how": "less"},
        "arms": [{"name": name} for name in arms], "verdict": list(checks),
    }  # fmt: skip
    if points:
        values["points"] = {"label": "layers", "values": list(points), "settings": ["model.depth={}"]}
    return parse_study(GridStudy, values, "test")


def decided(first: Sequence[float], second: Sequence[float], expect: str, **more):
    check = {"claim": "a is good", "arm": "a", "against": "b", "expect": expect, **more}
    (verdict,) = decide(study(check), Cells({("a", None): cell("a", first), ("b", None): cell("b", second)}))
    return verdict


def test_difference_is_the_wider_interval_and_the_larger_p():
    first, second = cell("a", [0.95, 0.96, 0.955]), cell("b", [0.93, 0.94, 0.90])
    found = difference(first, second)
    seeds = stats.ttest_ind(first.accuracies, second.accuracies, equal_var=False)
    images = stats.ttest_1samp(first.share_correct - second.share_correct, 0)
    assert found.interval.value == pytest.approx(np.mean(first.accuracies) - np.mean(second.accuracies))
    assert found.p_value == pytest.approx(max(seeds.pvalue, images.pvalue))
    widths = [np.diff(test.confidence_interval()).item() for test in (seeds, images)]
    assert 2 * found.interval.half_width == pytest.approx(max(widths))


def test_the_same_weights_are_compared_over_images_alone():
    accuracies = [0.9, 0.5, 0.7], [0.8, 0.3, 0.1]
    paired = difference(cell("in batches", accuracies[0], run="r"), cell("one by one", accuracies[1], run="r"))
    assert paired.p_seeds is None
    assert paired.p_value == paired.p_images
    assert paired.significant
    assert not difference(cell("a", accuracies[0]), cell("b", accuracies[1])).significant


def test_one_seed_each_is_tested_over_images_alone():
    found = difference(cell("a", [0.95]), cell("b", [0.90]))
    assert found.p_seeds is None
    assert found.p_value == pytest.approx(stats.binomtest(100, 100).pvalue)
    assert found.points == "+5.00 ± 0.96"


def test_better_worse_and_same():
    good, bad = [0.97, 0.971, 0.969], [0.90, 0.901, 0.899]
    assert decided(good, bad, "better").outcome == "holds"
    assert decided(good, bad, "worse").outcome == "contradicted"
    assert decided(good, good, "better").outcome == "undecided"
    assert decided(good, good, "same", margin=0.5).outcome == "holds"
    assert decided(good, bad, "same", margin=0.5).outcome == "contradicted"
    assert decided([0.97, 0.93, 0.95], [0.96, 0.95, 0.94], "same", margin=0.5).outcome == "undecided"
    assert decided([0.97, 0.971, 0.969], [0.966, 0.967, 0.965], "same", margin=0.1).outcome == "contradicted"
    sentence = decided(good, bad, "better").sentence
    assert sentence.startswith("A is good: holds (+7.0 ± 1.1 points, p < 0.001)")


def test_p_values_are_corrected_for_all_comparisons_of_the_study():
    check = {"claim": "a is good", "arm": "a", "against": "b", "expect": "better"}
    cells = Cells({("a", None): cell("a", [0.95, 0.96, 0.955]), ("b", None): cell("b", [0.93, 0.945, 0.93])})
    (alone,) = decide(study(check), cells)
    thrice = decide(study(check, check, check), cells)
    assert thrice[0].differences[0].p_value == pytest.approx(3 * alone.differences[0].p_value)


def grid(rows: dict[str, Sequence[float]], points: Sequence[int]) -> Cells:
    return Cells({
        (arm, point): cell(arm, [mean - 0.001, mean, mean + 0.001], point)
        for arm, means in rows.items() for point, mean in zip(points, means, strict=True)
    })  # fmt: skip


def test_mixed_outcomes_name_their_points():
    check = {"claim": "a is good", "arm": "a", "against": "b", "expect": "better"}
    cells = grid({"a": [0.95, 0.95, 0.9], "b": [0.9, 0.95, 0.95]}, (2, 4, 8))
    (verdict,) = decide(study(check, points=(2, 4, 8)), cells)
    assert verdict.outcome == "mixed"
    assert "holds (+5.00" in verdict.sentence
    assert "at 2" in verdict.sentence
    assert "is contradicted (−5.00" in verdict.sentence
    assert "at 8" in verdict.sentence
    assert headline([verdict]) == "Mixed: a is good."


def test_crossing_says_from_where_to_where():
    check = {"claim": "where they cross", "arm": "a", "against": "b", "expect": "crossing"}
    cells = grid({"a": [0.7, 0.8, 0.9, 0.97], "b": [0.8, 0.85, 0.9, 0.93]}, (10, 100, 1000, 10_000))
    (verdict,) = decide(study(check, points=(10, 100, 1000, 10_000)), cells)
    assert verdict.outcome == "measured"
    assert "b is better from 10 to 100 (" in verdict.sentence
    assert "no significant difference at 1,000" in verdict.sentence
    assert "a is better at 10,000" in verdict.sentence
    assert headline([verdict]) == verdict.sentence


def test_best_names_what_does_not_differ_from_it():
    check = {"claim": "the best", "arm": "a", "expect": "best"}
    values = {"a": [0.9, 0.901, 0.9], "b": [0.97, 0.975, 0.965], "c": [0.972, 0.97, 0.971]}
    cells = Cells({(arm, None): cell(arm, accuracies) for arm, accuracies in values.items()})
    (verdict,) = decide(study(check, arms=("a", "b", "c")), cells)
    assert verdict.sentence == "The best: c (97.10 ± 0.25 %), not significantly better than b (97.00 ± 1.24 %)."


def test_against_another_point_of_the_same_arm():
    check = {"claim": "more layers help", "arm": "a", "at": [8], "against_at": 2, "expect": "better"}
    (verdict,) = decide(study(check, points=(2, 8)), grid({"a": [0.9, 0.95], "b": [0.9, 0.9]}, (2, 8)))
    (one,) = verdict.differences
    assert (one.first.point, one.second.point, verdict.outcome) == (8, 2, "holds")


def test_other_test_images_are_refused():
    from dataclasses import replace

    first = cell("a", [0.9])
    other = replace(first.runs[0], test_sha256="other")
    check = {"claim": "x", "arm": "a", "against": "b", "expect": "better"}
    with pytest.raises(DataError, match="do not have the same test images"):
        collect_cells(study(check), {("a", None): [first.runs[0]], ("b", None): [other]})
