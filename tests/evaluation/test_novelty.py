"""Novelty: Mahalanobis distances equal to SciPy's, the threshold's share, and outliers above it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import oas

from vitreous.evaluation.novelty import LEAST_VALIDATION, SHARE, combine_parts, fit_part, shrink, threshold


def vectors(n: int = 300, d: int = 6, c: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, c, n)
    mixing = np.random.default_rng(99).normal(size=(d, d))  # the same for every seed
    values = random.normal(size=(n, d)) @ mixing + 4 * np.random.default_rng(98).normal(size=(c, d))[labels]
    return torch.from_numpy(values), torch.from_numpy(labels)


def test_shrinkage_is_scikit_learns():
    values = vectors()[0].numpy()
    values = values - values.mean(axis=0)
    expected, amount = oas(values, assume_centered=True)
    # scikit-learn's formula leaves out the terms of 2 / d, as its documentation says
    found = shrink(values.T @ values / len(values), len(values))
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * amount * np.trace(expected))


def test_distance_is_scipys_to_the_nearest_mean():
    values, labels = vectors()
    part = fit_part(values, labels)
    means = np.stack([values[labels == label].mean(dim=0).numpy() for label in range(3)])
    residuals = values.numpy() - means[labels.numpy()]
    inverse = np.linalg.inv(shrink(residuals.T @ residuals / (300 - 3), 300 - 3))
    new = vectors(seed=1)[0][:20]
    expected = [min(mahalanobis(row, mean, inverse) for mean in means) for row in new.numpy()]
    np.testing.assert_allclose(part.distance(new).numpy(), expected, rtol=1e-9)


def test_places_are_compared_with_their_own_mean():
    random = np.random.default_rng(0)
    offsets = 50 * random.normal(size=(4, 3))
    values = torch.from_numpy(random.normal(size=(500, 4, 3)) + offsets)
    part = fit_part(values, torch.zeros(500, dtype=torch.long))
    assert part.distance(values).square().mean() == pytest.approx(3, rel=0.05)  # the mean square is the width
    swapped = values[:, [1, 0, 2, 3]]
    assert (part.distance(swapped) > 5 * part.distance(values)).all()


def test_a_share_of_new_images_exceeds_the_threshold():
    values, labels = vectors(3000)
    part = fit_part(values, labels)
    novelty, share = combine_parts([part], part.distance(vectors(2000, seed=1)[0])[:, None])
    assert share == pytest.approx(SHARE, abs=1e-3)
    flagged = (novelty.score([vectors(20_000, seed=2)[0].float()]) > 1).double().mean()
    assert flagged == pytest.approx(SHARE, abs=0.01)
    far = vectors(100, seed=3)[0] + 60
    assert (novelty.score([far.float()]) > 1).all()


def test_it_is_the_weighted_geometric_mean_of_distances():
    values, labels = vectors()
    parts = [fit_part(values, labels), fit_part(values[:, :2], labels)]
    distances = torch.stack([parts[0].distance(values), parts[1].distance(values[:, :2])], dim=1)
    novelty, _ = combine_parts(parts, distances)
    logs = np.log(distances.numpy())
    weights = 1 / logs.std(axis=0)
    weights /= weights.sum()
    limit, _ = threshold(logs @ weights)
    expected = np.exp(logs @ weights - limit)
    found = novelty.score([values.float(), values[:, :2].float()]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert [float(part.weight) for part in novelty.parts] == pytest.approx(weights.tolist(), rel=1e-6)


@pytest.mark.parametrize(("count", "rank", "share"), [(1000, 981, 20 / 1001), (49, 49, 1 / 50), (20, 20, 1 / 21)])
def test_threshold_by_rank(count, rank, share):
    """Few images: the largest, which more than 2 % of new ones exceed."""
    scores = np.random.default_rng(0).permutation(count) + 1.0
    assert threshold(scores) == (rank, pytest.approx(share))
    assert LEAST_VALIDATION <= 20


def test_what_does_not_vary_has_no_distance():
    labels = torch.arange(10) % 2
    assert fit_part(torch.ones(10, 3), labels) is None
    assert fit_part(torch.eye(3), torch.arange(3)) is None  # one image per class: no spread within any
    constant_feature = torch.cat([torch.randn(50, 3), torch.zeros(50, 1)], dim=1)  # a ReLU that is always off
    part = fit_part(constant_feature, torch.arange(50) % 2)
    assert torch.isfinite(part.distance(constant_feature.double())).all()
