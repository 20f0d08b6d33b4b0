"""Faithfulness of a map: deletion and insertion scores, compared with random orders and with occlusion.

Deletion occludes the cells in the order of the map, most important first: a faithful map makes the probability fall
early (a small area under the curve). Insertion starts from the empty image and restores the cells in the same order:
the probability should rise early (a large area). A map that does no better than random orders explains nothing.

Shapes: C channels, `height` × `width` pixels, P cells, M orders, S + 1 points on a curve, K classes. One image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.evaluation.prediction import calibrated
from vitreous.inspection.cells import Array
from vitreous.inspection.query import batched_logits

REFERENCE = "occlusion"  # the map that the others are compared with
BETTER_THAN = 0.9  # share of the random orders to beat; ties count half
ENOUGH_OF_REFERENCE = 0.75  # share of the lead of occlusion over the random orders
SMALLEST_SWING = 0.1  # of the target's probability, between the image and the empty image


@dataclass(frozen=True)
class Score:
    """The scores of one map. `gain` = insertion − deletion: higher is better, random orders have about 0.

    Verdicts: `faithful` beats random orders and has most of the lead of occlusion; `partly` beats random orders;
    `chance` does not; `unclear`: the class is nearly as probable for the empty image, so the curves measure nothing.
    """

    name: str
    deletion: float
    insertion: float
    gain: float
    relative_gain: float  # 0: as random orders, 1: as occlusion; NaN where occlusion does not beat them
    rank_correlation: float  # Spearman's, with occlusion over the cells; NaN for a constant map
    verdict: str


@dataclass(frozen=True)
class Faithfulness:
    """Scores, best first, and the curves they are computed from."""

    shares: Array  # (S + 1,): share of the cells that are occluded or restored
    deletion_curves: dict[str, Array]  # (S + 1,) each: the target's probability
    insertion_curves: dict[str, Array]
    random_deletion: Array  # (M, S + 1)
    random_insertion: Array
    random_gains: Array  # (M,)
    scores: tuple[Score, ...]

    def score(self, name: str) -> Score:
        return next(score for score in self.scores if score.name == name)


def judge(
    model: nn.Module,
    image: Tensor,
    fill: Tensor,
    cell_masks: Tensor,
    target: int,
    maps: Mapping[str, Array],
    *,
    random_orders: int,
    most_steps: int,
    temperature: float = 1.0,
) -> Faithfulness:
    """Score maps of (rows, columns) cells; `maps` must include occlusion."""
    cells = len(cell_masks)
    rng = np.random.default_rng(0)
    # cells from the highest value to the lowest; ties are broken at random, so that no corner is favoured
    orders = [np.lexsort((rng.random(cells), -values.ravel())) for values in maps.values()]
    orders += [rng.permutation(cells) for _ in range(random_orders)]
    points = np.unique(np.linspace(0, cells, min(cells, most_steps) + 1).round().astype(int))
    rank = np.argsort(orders, axis=1)  # rank[m, cell]: when that cell changes
    changed = torch.as_tensor(rank[:, None, :] < points[None, :, None], device=image.device)  # (maps + M, S + 1, P)
    cell_of_pixel = cell_masks.to(torch.uint8).argmax(dim=0)  # (height, width)

    def curves(start: Tensor, end: Tensor) -> Array:
        """Return the target's probability (maps + M, S + 1) while the cells of `start` become those of `end`."""
        probabilities = []
        for one in changed:
            images = torch.where(one[:, cell_of_pixel][:, None], end[None], start[None])
            probabilities.append(calibrated(batched_logits(model, images), temperature)[:, target])
        return torch.stack(probabilities).double().cpu().numpy()

    deletion, insertion = curves(image, fill), curves(fill, image)
    shares, count = points / cells, len(maps)
    areas = np.trapezoid(np.stack([deletion, insertion]), shares, axis=-1)  # (2, maps + M)
    random_gains = areas[1, count:] - areas[0, count:]
    swing = float(deletion[0, 0] - deletion[0, -1])
    return Faithfulness(
        shares=shares,
        deletion_curves=dict(zip(maps, deletion[:count], strict=True)),
        insertion_curves=dict(zip(maps, insertion[:count], strict=True)),
        random_deletion=deletion[count:],
        random_insertion=insertion[count:],
        random_gains=random_gains,
        scores=_scores(maps, areas[:, :count], random_gains, can_judge=swing >= SMALLEST_SWING),
    )


def _scores(maps: Mapping[str, Array], areas: Array, random_gains: Array, can_judge: bool) -> tuple[Score, ...]:
    gains = dict(zip(maps, (areas[1] - areas[0]).tolist(), strict=True))
    chance = float(random_gains.mean())
    can_compare = can_judge and _beats_chance(gains[REFERENCE], random_gains)
    scores = []
    for (name, values), deletion, insertion in zip(maps.items(), *areas.tolist(), strict=True):
        gain = gains[name]
        relative = (gain - chance) / (gains[REFERENCE] - chance) if can_compare else float("nan")
        if not can_judge:
            verdict = "unclear"
        elif not _beats_chance(gain, random_gains):
            verdict = "chance"
        else:  # NaN, where occlusion itself does not beat chance and cannot be the reference, counts as faithful
            verdict = "partly" if relative < ENOUGH_OF_REFERENCE else "faithful"
        correlation = _rank_correlation(values, maps[REFERENCE])
        scores.append(Score(name, deletion, insertion, gain, relative, correlation, verdict))
    return tuple(sorted(scores, key=lambda score: -score.gain))


def _beats_chance(gain: float, random_gains: Array) -> bool:
    # a random order can be the best possible one by luck: if one cell of six decides, one order of six has it first
    better = np.mean(gain > random_gains) + 0.5 * np.mean(gain == random_gains)
    return bool(better >= BETTER_THAN and gain > 0)


def _rank_correlation(first: Array, second: Array) -> float:
    from scipy.stats import spearmanr

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(spearmanr(first, second, axis=None).statistic)
