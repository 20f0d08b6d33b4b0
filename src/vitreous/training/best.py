"""The best validation of a training: when to stop, and which weights to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import TrainConfig
from vitreous.evaluation.prediction import Evaluation

Score = tuple[float, ...]  # the larger, the better; later entries break ties


def score(evaluation: Evaluation, train: TrainConfig, class_weights: Sequence[float] | None = None) -> Score:
    """Return how good a validation is by `train.monitor`; classes count as they do in training.

    The loss is the default because it moves with every image, while the accuracy of 20 validation images has 21 values.
    Between equal accuracies the loss decides.
    """
    logits, labels = torch.from_numpy(evaluation.logits), torch.from_numpy(evaluation.labels)
    weights = None if class_weights is None else np.asarray(class_weights)[evaluation.labels]
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    loss = float(np.average(losses, weights=weights))
    if train.monitor == "loss":
        return (-loss,)
    return (float(np.average(logits.argmax(dim=1) == labels, weights=weights)), -loss)


class BestValidation:
    """The best validation so far, its weights where they are to be kept, and how many validations ago it was."""

    def __init__(self, train: TrainConfig):
        self.patience, self.keeps_weights = train.early_stopping, train.keeps_best
        self.is_needed = bool(self.patience) or self.keeps_weights
        self.step: int | None = None  # None: there was no validation with a finite loss
        self.score: Score = ()
        self.since = 0
        self.weights: dict[str, Tensor] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether early stopping ends the training here."""
        return self.patience is not None and self.since >= self.patience

    def update(self, step: int, score: Score, model: nn.Module) -> None:
        if all(map(math.isfinite, score)) and (self.step is None or score > self.score):
            self.step, self.score, self.since = step, score, 0
            if self.keeps_weights:
                self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        else:
            self.since += 1

    def load_into(self, model: nn.Module) -> int | None:
        """Give `model` the best weights and return their step; None: those of the last step are kept."""
        if not self.keeps_weights or self.step is None:
            return None
        model.load_state_dict(self.weights)
        return self.step

    # --- as part of a checkpoint ---------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        score = None if self.step is None else list(self.score)
        return {"best_step": self.step, "best_score": score, "validations_since_best": self.since}

    def restore(self, facts: dict[str, Any], weights: dict[str, Tensor], model: nn.Module) -> None:
        """Go on from a checkpoint; a LookupError if it has not the weights of `model`."""
        self.step, self.since = facts["best_step"], facts["validations_since_best"]
        self.score, self.weights = tuple(facts["best_score"] or ()), weights
        if self.keeps_weights and self.step is not None and weights.keys() != model.state_dict().keys():
            raise LookupError("best weights")
