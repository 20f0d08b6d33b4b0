"""Distillation: a trained model's predictions for the images of each batch are a second label.

A CNN has locality and translation equivariance built in; distillation passes them on to the ViT. The teacher sees the
same augmented images, and its probabilities say more about them than their label does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.datasets import Dataset
from vitreous.errors import ConfigError
from vitreous.models.fast.inference import infer
from vitreous.runs import Run


class Teacher:
    """Another run's model, fixed."""

    def __init__(self, name: str, dataset: Dataset):
        run = Run.open(name)
        theirs = (run.preprocessing.image_size, run.preprocessing.channels, run.class_names)
        ours = (dataset.image_size, dataset.channels, dataset.class_names)
        for what, has, needed in zip(("image size", "channels", "classes"), theirs, ours, strict=True):
            if has != needed:
                raise ConfigError(
                    f"train.teacher={name!r} has other {what} than {dataset.name} ({has}, not {needed}):"
                    " choose a run that was trained on the same kind of images"
                )
        self.model, self.preprocessing = run.load_model(), run.preprocessing
        self.fingerprint = {"run": name, "sha256": run.record.weights.sha256 or ""}

    def to(self, device: torch.device, dtype: torch.dtype) -> Teacher:
        self.model.to(device, dtype)
        return self

    @torch.no_grad()
    def probabilities(self, pixels: Tensor, temperature: float) -> Tensor:
        """Return (B, classes) for images before normalisation, (B, C, H, W); a high temperature flattens them."""
        first = next(self.model.parameters())
        images = self.preprocessing.to_input(pixels.to(first.device)).to(first.dtype)
        return (infer(self.model, images) / temperature).softmax(dim=1)


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy to the teacher's probabilities, times T² to scale its gradients (Hinton, 2015)."""
    return F.cross_entropy(logits / temperature, teacher, reduction=reduction) * temperature**2
