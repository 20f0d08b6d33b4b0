"""Novelty: how far an image is from the training images, in the representations of the model.

In each representation (`vitreous.models.representations`) it is a Mahalanobis distance, with one covariance for all:
of a vector to the nearest class mean (Lee et al., 2018), of vectors at many places to the mean of each place (the root
of the mean square). Novelty is the geometric mean of these distances, each weighted by one over the spread of its
logarithm on validation images, and 1 at the threshold: above it, the image is "unlike the images it was trained on".
The scales are folded into the matrices, so that the ONNX graphs compute the same by a few products.

Of the scores that were tried (docs/calibration.md), those of the logits alone miss what a representation sees: a CNN
is more confident on noise than on digits.

Shapes: n images, p places, d width of a representation, c classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import RunError
from vitreous.runs import NoveltyRecord, Run, novelty_file_name, novelty_statistics
from vitreous.runs.tensors import tensor_bytes

SHARE = 0.02  # of validation images may exceed the threshold
LEAST_VALIDATION = 20  # images; fewer say too little about how far images of the same kind may be
_LEAST_DISTANCE = 1e-6  # of the threshold's: its logarithm is finite
_NAMES = ("centre", "whitening", "means", "weight")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """The statistics of one representation."""

    centre: Tensor  # (d,), or (p, d)
    whitening: Tensor  # (d, d)
    means: Tensor  # (c, d): of the classes, centred and whitened; (1, d) zeros where there are places
    weight: Tensor  # (): of the logarithm of the distance

    def distance(self, values: Tensor) -> Tensor:
        """Return the distance (n,) of representations (n, d) or (n, p, d)."""
        white = (values - self.centre) @ self.whitening
        # |a - b|² = |a|² - 2 a·b + |b|²: (n, c, d) differences would not fit where there are many classes
        squares = white.square().sum(-1, keepdim=True) - 2 * white @ self.means.mT + self.means.square().sum(-1)
        nearest = squares.amin(dim=-1).clamp(min=0)  # (n,) or (n, p)
        return (nearest if values.ndim == 2 else nearest.mean(dim=1)).sqrt()


@dataclass(frozen=True)
class Novelty:
    """The fitted score of a model."""

    parts: tuple[Part, ...]

    def score(self, representations: Sequence[Tensor]) -> Tensor:
        """Return the novelty (n,) of images by their representations."""
        logs = [
            part.weight * part.distance(values).clamp(min=_LEAST_DISTANCE).log()
            for part, values in zip(self.parts, representations, strict=True)
        ]
        return torch.stack(logs).sum(dim=0).exp()

    @classmethod
    def of_run(cls, run: Run) -> Novelty | None:
        """Return the score of a run; None where it has none."""
        tensors = novelty_statistics(run)
        return None if tensors is None else cls(_parts(tensors, run))

    def to_bytes(self) -> bytes:
        named = {f"{number}.{name}": getattr(part, name) for number, part in enumerate(self.parts) for name in _NAMES}
        return tensor_bytes(named)


def _parts(tensors: Mapping[str, Tensor], run: Run) -> tuple[Part, ...]:
    try:
        count = len(tensors) // len(_NAMES)
        return tuple(Part(*(tensors[f"{number}.{name}"] for name in _NAMES)) for number in range(count))
    except KeyError as error:
        raise RunError(
            f"the novelty file of {str(run.path)!r} lacks {error}; run `vitreous calibrate --run {run.path}`"
        ) from None


def fit_part(values: Tensor, labels: Tensor) -> Part | None:
    """Return the statistics of training images (n, d) or (n, p, d), not yet scaled; None where nothing varies.

    Labels (n,) matter only where there are no places.
    """
    array, truth = values.double().numpy(), labels.numpy()
    if array.ndim == 3:
        centre, means = array.mean(axis=0), np.zeros((1, array.shape[2]))
        residuals, freedom = array - centre, (len(array) - 1) * array.shape[1]
        residuals = residuals.reshape(-1, residuals.shape[2])
    else:
        present = np.unique(truth)
        centre = array.mean(axis=0)
        means = np.stack([array[truth == label].mean(axis=0) for label in present]) - centre
        residuals, freedom = array - centre - means[np.searchsorted(present, truth)], len(array) - len(present)
    if freedom < 1 or not np.square(residuals).mean() > 1e-12 * max(1e-12, float(array.var())):
        return None
    covariance = shrink(residuals.T @ residuals / freedom, freedom)
    # inverse of the Cholesky factor: |x W|² = xᵀ Σ⁻¹ x
    whitening = np.linalg.solve(np.linalg.cholesky(covariance), np.eye(len(covariance))).T
    centre_, whitening_, means_ = (torch.from_numpy(each) for each in (centre, whitening, means @ whitening))
    return Part(centre_, whitening_, means_, weight=torch.tensor(1.0))


def shrink(covariance: Floats, count: int) -> Floats:
    """Return the covariance of `count` vectors shrunk towards a multiple of the identity (OAS; Chen et al., 2010).

    A floor of a millionth keeps directions without any variance invertible: features of a ReLU may be always 0.
    """
    d = len(covariance)
    trace, of_square = float(np.trace(covariance)), float((covariance**2).sum())
    spread = (count + 1 - 2 / d) * (of_square - trace**2 / d)
    amount = 1.0 if spread <= 0 else min(1.0, ((1 - 2 / d) * of_square + trace**2) / spread)
    amount = max(amount, 1e-6)
    return (1 - amount) * covariance + amount * trace / d * np.eye(d)


def combine_parts(parts: Sequence[Part], distances: Tensor) -> tuple[Novelty, float]:
    """Return the score by parts and their distances (n, parts) of validation images, and the share above 1."""
    logs = np.log(np.maximum(distances.double().numpy(), 1e-30))
    weights = 1 / np.maximum(logs.std(axis=0), 1e-3)
    weights /= weights.sum()
    limit, share = threshold(logs @ weights)
    scale = math.exp(-limit)  # the weights add up to 1, so this divides the score by its threshold
    scaled = tuple(
        Part(part.centre.float(), (part.whitening * scale).float(), (part.means * scale).float(), torch.tensor(weight))
        for part, weight in zip(parts, weights.astype(np.float32).tolist(), strict=True)
    )
    return Novelty(scaled), share


def threshold(scores: Floats) -> tuple[float, float]:
    """Return the score that about `SHARE` of new images of the same kind exceed, and that share.

    By rank (conformal prediction): of n + 1 exchangeable images, the last exceeds the k-th smallest of the others with
    probability (n + 1 - k) / (n + 1). Of fewer than 49 images, even the largest is exceeded by more: then it is taken.
    """
    n = len(scores)
    rank = min(n, math.ceil((n + 1) * (1 - SHARE)))
    return float(np.sort(scores)[rank - 1]), (n + 1 - rank) / (n + 1)


def novelty_record(
    novelty: Novelty, share: float, names: Sequence[str], train_images: int, val_images: int
) -> NoveltyRecord:
    content = novelty.to_bytes()
    return NoveltyRecord(
        file=novelty_file_name(content),
        sha256=hashlib.sha256(content).hexdigest(),
        representations=tuple(names),
        train_images=train_images,
        val_images=val_images,
        share=share,
    )
