"""Novelty: how unlike the training images an image is, from its distance to them in the model's representations.

In each representation (`vitreous.models.representations`) it is the Mahalanobis distance to the nearest class mean, with
one covariance for all classes (Lee et al., 2018). Each distance is divided by its 99th percentile on validation images,
their sum by the threshold: novelty above 1 means "unlike the images it was trained on". All of it is folded into one
matrix per representation, so that the ONNX graphs compute the same by two products.

Of the scores that were tried (docs/calibration.md), those of the logits alone miss what a representation sees: a CNN is
more confident on noise than on digits.

Shapes: n images, d width of a representation, c classes.
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

SHARE = 0.01  # of validation images may exceed the threshold
LEAST_VALIDATION = 20  # images; fewer say too little about how far images of the same kind may be
MOST_TRAINING = 5000  # images whose means and covariance are taken: more change the figures little
_NAMES = ("centre", "whitening", "means")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """The statistics of one representation; scaled, so that distances add up to 1 at the threshold."""

    centre: Tensor  # (d,)
    whitening: Tensor  # (d, d)
    means: Tensor  # (c, d): of the classes, centred and whitened

    def distance(self, values: Tensor) -> Tensor:
        """Return the distance (n,) of representations (n, d) to the nearest class mean."""
        white = (values - self.centre) @ self.whitening
        # |a - b|² = |a|² - 2 a·b + |b|²: (n, c, d) differences would not fit where there are many classes
        squares = white.square().sum(1, keepdim=True) - 2 * white @ self.means.mT + self.means.square().sum(1)
        return squares.amin(dim=1).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Novelty:
    """The fitted score of a model."""

    parts: tuple[Part, ...]

    def score(self, representations: Sequence[Tensor]) -> Tensor:
        """Return the novelty (n,) of images by their representations (n, d) each."""
        pairs = zip(self.parts, representations, strict=True)
        return torch.stack([part.distance(values) for part, values in pairs]).sum(dim=0)

    @classmethod
    def of_run(cls, run: Run) -> Novelty | None:
        """Return the score of a run; None where it has none."""
        tensors = novelty_statistics(run)
        return None if tensors is None else cls(_parts(tensors, run))

    def to_bytes(self) -> bytes:
        named = {f"{number}.{name}": getattr(part, name) for number, part in enumerate(self.parts) for name in _NAMES}
        return tensor_bytes(named)


def _parts(tensors: Mapping[str, Tensor], run: Run) -> tuple[Part, ...]:
    count = len(tensors) // len(_NAMES)
    try:
        return tuple(Part(*(tensors[f"{number}.{name}"] for name in _NAMES)) for number in range(count))
    except KeyError as error:
        raise RunError(
            f"the novelty file of {str(run.path)!r} lacks {error}; run `vitreous calibrate --run {run.path}`"
        ) from None


def fit_novelty(
    train: Sequence[Tensor], train_labels: Tensor, val: Sequence[Tensor], names: Sequence[str]
) -> tuple[Novelty, NoveltyRecord] | str:
    """Fit the score on representations of training images, and its threshold on those of validation images.

    Where that cannot be done, return the reason.
    """
    count = len(val[0]) if val else 0
    if not names:
        return "novelty is not measured: this model mixes the images of a batch"
    if count < LEAST_VALIDATION:
        return f"novelty is not measured: {count} validation images are fewer than {LEAST_VALIDATION}"
    labels = train_labels.numpy()
    parts, total = [], np.zeros(count)
    for of_train, of_val in zip(train, val, strict=True):
        part = _fit_part(of_train.double().numpy(), labels)
        if part is None:
            return "novelty is not measured: the representations of the training images do not vary within a class"
        distances = part.distance(of_val.double()).numpy()
        scale = float(np.quantile(distances, 1 - SHARE)) or 1.0
        parts.append((part, scale))
        total += distances / scale
    limit, share = threshold(total)
    scaled = tuple(
        Part(part.centre.float(), (part.whitening / (scale * limit)).float(), (part.means / (scale * limit)).float())
        for part, scale in parts
    )
    novelty = Novelty(scaled)
    content = novelty.to_bytes()
    record = NoveltyRecord(
        file=novelty_file_name(content),
        sha256=hashlib.sha256(content).hexdigest(),
        representations=tuple(names),
        train_images=len(labels),
        val_images=count,
        share=share,
    )
    return novelty, record


def threshold(scores: Floats) -> tuple[float, float]:
    """Return the score that about `SHARE` of new images of the same kind exceed, and that share.

    By rank (conformal prediction): of n + 1 exchangeable images, the last exceeds the k-th smallest of the others with
    probability (n + 1 - k) / (n + 1). Below 99 images even the largest is exceeded by more than 1 %: then it is taken.
    """
    n = len(scores)
    rank = min(n, math.ceil((n + 1) * (1 - SHARE)))
    return float(np.sort(scores)[rank - 1]) or 1.0, (n + 1 - rank) / (n + 1)


def _fit_part(values: Floats, labels: NDArray[np.int64]) -> Part | None:
    """Return means and whitening (not yet scaled); None where nothing varies within a class."""
    present = np.unique(labels)
    means = np.stack([values[labels == label].mean(axis=0) for label in present])
    residuals = values - means[np.searchsorted(present, labels)]
    freedom = len(values) - len(present)
    covariance = residuals.T @ residuals / max(1, freedom)
    mean_variance = float(np.trace(covariance)) / len(covariance)
    if freedom < 1 or not mean_variance > 1e-12 * max(1e-12, float(values.var())):
        return None
    covariance = shrink(covariance, freedom)
    # inverse of the Cholesky factor: |x W|² = xᵀ Σ⁻¹ x
    whitening = np.linalg.solve(np.linalg.cholesky(covariance), np.eye(len(covariance))).T
    centre = values.mean(axis=0)
    return Part(*(torch.from_numpy(array) for array in (centre, whitening, (means - centre) @ whitening)))


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
