"""`vitreous doctor --run`: curves of a training run."""

from __future__ import annotations

import math

import pytest

from vitreous.doctor import NotMeasured, diagnose_curves
from vitreous.doctor.curves import CURVE_CHECKS, Curves


def found(train: list[tuple[float, float]], val: list[tuple[float, float]], *, epochs: int = 5) -> set[str]:
    """Return the ids for curves of (loss, accuracy), spread evenly over the epochs."""

    def records(values: list[tuple[float, float]]) -> list[dict]:
        return [
            {"loss": loss, "accuracy": accuracy, "epoch": epochs * (i + 1) / len(values), "lr": 1e-3}
            for i, (loss, accuracy) in enumerate(values)
        ]

    curves = Curves(records(train), records(val), 10)
    ids = set()
    for check in CURVE_CHECKS.values():
        try:
            ids |= {finding.id for finding in check(curves)}
        except NotMeasured:
            continue
    return ids


LEARNS = [(2.3, 0.1), (1.2, 0.6), (0.6, 0.8), (0.3, 0.9), (0.2, 0.95)]
CHANCE = [(2.31, 0.10), (2.302, 0.11), (2.305, 0.1), (2.301, 0.1), (2.304, 0.11)]
FLOOR = math.log(math.e + 9) - 1


@pytest.mark.parametrize(
    ("ids", "train", "val"),
    [
        (set(), LEARNS, LEARNS),
        (set(), [(2.3, 0.1), (1.6, 0.5), (1.4, 0.6), (1.3, 0.6), (1.3, 0.6)], LEARNS),  # mixup: the training loss alone
        (set(), LEARNS, [(2.3, 0.1), (1.0, 0.8), (0.8, 0.9), (0.7, 0.95), (0.65, 0.97)]),  # label smoothing
        ({"loss-at-chance"}, CHANCE, CHANCE),
        ({"learning-rate-low"}, [(2.31 - 0.005 * i, 0.1) for i in range(8)], CHANCE),
        ({"training-diverges"}, [(2.3, 0.1), (1.9, 0.3), (2.5, 0.2), (5.0, 0.1), (9.0, 0.1)], CHANCE),
        ({"training-diverges"}, [(2.3, 0.1), (1.9, 0.3), (math.nan, 0.1)], CHANCE),
        ({"softmax-twice"}, [(2.3, 0.1), (1.8, 0.6), (1.5, 0.95)], [(2.0, 0.5), (FLOOR + 0.07, 0.95)]),
        ({"perfect-at-once"}, LEARNS, [(0.001, 1.0)] * 5),
    ],
)
def test_each_mistake_has_its_name(ids: set[str], train: list, val: list) -> None:
    assert found(train, val) == ids


def test_the_bundled_run_is_in_order() -> None:
    diagnosis = diagnose_curves("bundled:vit")
    assert not diagnosis.findings
    assert diagnosis.exit_code == 0
