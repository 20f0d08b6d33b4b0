"""Deletion and insertion: curves by hand, verdicts for maps whose quality is clear, reproducible."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitreous.inspection.faithfulness import judge


class QuadrantSum(nn.Module):
    """Two classes; the log-odds are twice the weighted sum of the quadrants of a (1, 4, 4) image."""

    def __init__(self, weights: list[float], bias: float = 0.0):
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.bias = bias

    def forward(self, images: Tensor) -> Tensor:
        quadrants = images.view(len(images), 2, 2, 2, 2).mean(dim=(2, 4)).flatten(1)
        score = quadrants @ self.weights + self.bias
        return torch.stack([-score, score], dim=1)


@pytest.fixture
def masks() -> Tensor:
    quadrant = torch.arange(4).view(2, 2).repeat_interleave(2, 0).repeat_interleave(2, 1)
    return quadrant[None] == torch.arange(4)[:, None, None]


def judged(weights: list[float], maps: dict[str, list[float]], masks: Tensor, bias: float = 0.0):
    drawn = {name: np.array(values).reshape(2, 2) for name, values in maps.items()}
    image = torch.ones(1, 4, 4)
    model, empty = QuadrantSum(weights, bias), torch.zeros_like(image)
    return judge(model, image, empty, masks, 1, drawn, random_orders=32, most_steps=49)


def test_curves_and_areas_by_hand(masks) -> None:
    found = judged([2, 1, 0, -1], {"occlusion": [2, 1, 0, -1], "reverse": [-1, 0, 1, 2]}, masks)

    def probability(score: float) -> float:
        return 1 / (1 + np.exp(-2 * score))

    falls = [probability(score) for score in (2, 0, -1, -1, 0)]
    rises = [probability(score) for score in (0, 2, 3, 3, 2)]
    np.testing.assert_allclose(found.deletion_curves["occlusion"], falls, rtol=1e-6)
    np.testing.assert_allclose(found.insertion_curves["occlusion"], rises, rtol=1e-6)
    score = found.score("occlusion")
    assert score.deletion == pytest.approx(sum((a + b) / 8 for a, b in pairwise(falls)))
    assert score.insertion == pytest.approx(sum((a + b) / 8 for a, b in pairwise(rises)))
    assert score.gain == pytest.approx(score.insertion - score.deletion)
    assert found.score("reverse").gain < 0
    assert [each.name for each in found.scores] == ["occlusion", "reverse"]


def test_rank_correlation_is_spearmans(masks) -> None:
    maps = {"occlusion": [4, 3, 2, 1], "same order": [400, 30, 2, 0.1], "reverse": [1, 2, 3, 4], "flat": [1, 1, 1, 1]}
    found = judged([2, 1, 0.5, 0.1], maps, masks)
    assert found.score("same order").rank_correlation == pytest.approx(1)
    assert found.score("reverse").rank_correlation == pytest.approx(-1)
    assert np.isnan(found.score("flat").rank_correlation)
    assert found.score("same order").relative_gain == pytest.approx(1)


def test_no_verdict_if_the_empty_image_gets_the_same_prediction(masks) -> None:
    found = judged([1, 1, 1, 1], {"occlusion": [4, 3, 2, 1]}, masks, bias=20.0)
    assert found.score("occlusion").verdict == "unclear"
    assert np.ptp(found.deletion_curves["occlusion"]) < 0.01


def test_scores_are_reproducible(masks) -> None:
    maps = {"occlusion": [1.0, 1, 0, 0], "ties": [0.0, 0, 0, 0]}
    first, second = (judged([2, 1, 0, -1], maps, masks) for _ in range(2))
    np.testing.assert_array_equal(first.random_deletion, second.random_deletion)
    assert [score.gain for score in first.scores] == [score.gain for score in second.scores]


def test_large_grids_take_few_steps() -> None:
    cells = torch.arange(64).view(8, 8)
    masks = cells[None] == torch.arange(64)[:, None, None]

    class Mean(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.stack([-images.mean(dim=(1, 2, 3)), images.mean(dim=(1, 2, 3))], dim=1)

    image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    drawn = {"occlusion": image[0].numpy()}
    found = judge(Mean(), image, torch.zeros_like(image), masks, 1, drawn, random_orders=3, most_steps=10)
    assert len(found.shares) == 11
    assert (found.shares[0], found.shares[-1]) == (0, 1)
    assert found.random_deletion.shape == (3, 11)
