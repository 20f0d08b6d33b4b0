"""Distillation: a trained model answers the very images of the batch, and its answers are a second label.

A CNN knows from birth that neighbouring pixels belong together; a ViT on few images has to find out. What the CNN makes
of a digit that is turned or bent says more than the digit's name does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.datasets import Dataset
from vitreous.errors import ConfigError
from vitreous.models.fast.inference import answer
from vitreous.runs import Run


class Teacher:
    """Another run's model, fixed."""

    def __init__(self, name: str, dataset: Dataset):
        run = Run.open(name)
        theirs = (run.preprocessing.image_size, run.preprocessing.channels, tuple(run.class_names))
        ours = (dataset.image_size, dataset.channels, tuple(dataset.class_names))
        for what, its, wanted in zip(("image size", "channels", "classes"), theirs, ours, strict=True):
            if its != wanted:
                raise ConfigError(
                    f"train.teacher={name!r} has other {what} than {dataset.name} ({its}, not {wanted}):"
                    " choose a run that was trained on the same kind of images"
                )
        self.model, self.preprocessing = run.load_model(), run.preprocessing
        self.fingerprint = {"run": name, "sha256": run.record.weights.sha256 or ""}

    def to(self, device: torch.device, dtype: torch.dtype) -> Teacher:
        self.model.to(device, dtype)
        return self

    @torch.no_grad()
    def probabilities(self, pixels: Tensor, temperature: float) -> Tensor:
        """Its answers to images before normalisation, (B, C, H, W) → (B, classes); a high temperature evens them."""
        first = next(self.model.parameters())
        images = self.preprocessing.to_input(pixels).to(first.device, first.dtype)
        return (answer(self.model, images) / temperature).softmax(dim=1)


def loss_beside_the_teacher(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Cross-entropy to the teacher's answers; T² keeps its gradients as large as those of the labels (Hinton 2015)."""
    return F.cross_entropy(logits / temperature, taught) * temperature**2
