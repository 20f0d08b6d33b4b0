"""Is the map true? Deletion and insertion scores of each map, against random orders and against occlusion.

Deletion paints the cells over, the one the map calls most important first: if the map is true, the answer falls early
(a small area under the curve). Insertion starts from the empty picture and puts the cells back in the same order: the
answer should rise early (a large area). A map that does no better than random orders says nothing about this answer.

Shapes: C channels, `height` × `width` pixels, P cells, M orders, S + 1 points on a curve, K classes. One image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.inspection.cells import Array
from vitreous.inspection.query import answers

GROUND_TRUTH = "occlusion"
#: How a map did: `true` beat chance and has most of occlusion's lead; `partly` beat chance; `chance` did not;
#: `unclear`: the empty picture gets nearly the same answer, so that painting over can tell nothing.
VERDICTS = ("true", "partly", "chance", "unclear")
BETTER_THAN = 0.9  # of the random orders; equal ones count half
ENOUGH_OF_OCCLUSION = 0.75  # of occlusion's lead over the random orders
SMALLEST_SWING = 0.1  # of the target's probability, between the whole and the empty picture


@dataclass(frozen=True)
class Score:
    """One map's marks. `gain` = insertion − deletion: higher is better, random orders have about 0."""

    name: str
    deletion: float
    insertion: float
    gain: float
    share: float  # of occlusion's lead over random: 1 is as good as occlusion, 0 as random; NaN: it has none
    agreement: float  # Spearman's rank correlation with occlusion over the cells; NaN for a flat map
    verdict: str  # one of VERDICTS


@dataclass(frozen=True)
class Faithfulness:
    """Scores, the best first, with the curves they are the areas of."""

    shares: Array  # (S + 1,): how much of the picture is painted over, or put back
    deletion_curves: dict[str, Array]  # (S + 1,) each: the target's probability
    insertion_curves: dict[str, Array]
    random_deletion: Array  # (M, S + 1)
    random_insertion: Array
    scores: tuple[Score, ...]
    random_gain: tuple[float, float]  # mean and standard deviation over the random orders
    swing: float  # the target's probability in the whole picture, less that in the empty one

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
    random_orders: int = 32,
    most_steps: int = 49,
    seed: int = 0,
) -> Faithfulness:
    """Judge maps of (rows, columns) cells; `maps` must hold occlusion, which the others are measured by."""
    cells = len(cell_masks)
    chance = np.random.default_rng(seed)
    orders = {name: _order(values, chance) for name, values in maps.items()}
    drawn = np.stack([chance.permutation(cells) for _ in range(random_orders)])
    points = np.unique(np.linspace(0, cells, min(cells, most_steps) + 1).round().astype(int))
    all_orders = np.concatenate([np.stack(list(orders.values())), drawn])
    deletion = _curves(model, image, fill, cell_masks, target, all_orders, points)
    insertion = _curves(model, fill, image, cell_masks, target, all_orders, points)
    shares = points / cells
    deletion_areas, insertion_areas = (_areas(curves, shares) for curves in (deletion, insertion))
    gains = insertion_areas - deletion_areas
    known = len(maps)
    swing = float(deletion[0, 0] - deletion[0, -1])
    judged = deletion_areas[:known], insertion_areas[:known], gains[known:]
    scores = _scores(maps, *judged, can_judge=swing >= SMALLEST_SWING)
    return Faithfulness(
        shares=shares,
        deletion_curves=dict(zip(maps, deletion[:known], strict=True)),
        insertion_curves=dict(zip(maps, insertion[:known], strict=True)),
        random_deletion=deletion[known:],
        random_insertion=insertion[known:],
        scores=scores,
        random_gain=(float(gains[known:].mean()), float(gains[known:].std(ddof=1))),
        swing=swing,
    )


def _order(values: Array, chance: np.random.Generator) -> NDArray[np.int64]:
    """Cells from the highest value to the lowest; ties are broken by lot, so that no corner is favoured."""
    flat = values.ravel()
    return np.lexsort((chance.random(flat.size), -flat))


def _curves(
    model: nn.Module,
    start: Tensor,
    end: Tensor,
    cell_masks: Tensor,
    target: int,
    orders: NDArray[np.int64],
    points: NDArray[np.int64],
) -> Array:
    """(M, S + 1): the target's probability while the cells of `start` become those of `end`, order by order."""
    rank = np.argsort(orders, axis=1)  # rank[m, cell]: when that cell changes
    changed = torch.as_tensor(rank[:, None, :] < points[None, :, None], device=start.device)  # (M, S + 1, P)
    owner = cell_masks.to(torch.uint8).argmax(dim=0)  # (height, width): each pixel's cell
    curves = []
    for one in changed:
        pictures = torch.where(one[:, owner][:, None], end[None], start[None])
        curves.append(answers(model, pictures).softmax(dim=-1)[:, target])
    return torch.stack(curves).double().cpu().numpy()


def _scores(
    maps: Mapping[str, Array], deletion: Array, insertion: Array, random_gains: Array, can_judge: bool
) -> tuple[Score, ...]:
    gains = dict(zip(maps, insertion - deletion, strict=True))
    middle = float(random_gains.mean())
    lead = float(gains[GROUND_TRUTH]) - middle
    occlusion_leads = _beats_chance(gains[GROUND_TRUTH], random_gains)
    scores = []
    for index, (name, values) in enumerate(maps.items()):
        share = (float(gains[name]) - middle) / lead if occlusion_leads and can_judge else float("nan")
        if not can_judge:
            verdict = "unclear"
        elif not _beats_chance(gains[name], random_gains):
            verdict = "chance"
        else:  # where occlusion itself finds nothing, it cannot be the measure
            verdict = "partly" if share < ENOUGH_OF_OCCLUSION else "true"
        agreement = _rank_correlation(values, maps[GROUND_TRUTH])
        areas = float(deletion[index]), float(insertion[index])
        scores.append(Score(name, *areas, float(gains[name]), share, agreement, verdict))
    return tuple(sorted(scores, key=lambda score: -score.gain))


def _beats_chance(gain: float, random_gains: Array) -> bool:
    # by luck, a random order may be as good as can be (one cell in six decides: one order in six has it first)
    better = np.mean(gain > random_gains) + 0.5 * np.mean(gain == random_gains)
    return bool(better >= BETTER_THAN and gain > 0)


def _areas(curves: Array, shares: Array) -> Array:
    """(M, S + 1) → (M,)"""
    return np.asarray(np.trapezoid(curves, shares, axis=1))


def _rank_correlation(first: Array, second: Array) -> float:
    from scipy.stats import rankdata

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
