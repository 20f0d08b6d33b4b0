"""The model, its optimizers and one training step.

Shapes: B images of a batch, on this rank.
"""

from __future__ import annotations

import contextlib
import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import Config, TrainConfig
from vitreous.data.augment import augment
from vitreous.data.datasets import Dataset
from vitreous.data.mixing import draw, mixed_labels, paste
from vitreous.data.preprocessing import Preprocessing
from vitreous.evaluation.blank import set_background
from vitreous.hardware import one_thread, return_freed_memory
from vitreous.models import build
from vitreous.models.fast.split_batch import SplitBatch, split_is_faster
from vitreous.runs import Resolved
from vitreous.training.devices import make_repeatable, seed_generators
from vitreous.training.distillation import Teacher, distillation_loss
from vitreous.training.distributed import Group
from vitreous.training.muon import Muon
from vitreous.training.optimizers import AveragedWeights, lr_factor, make_optimizers
from vitreous.training.sharding import gathered, mesh_of, recompute_blocks, shard

#: of parameters; bf16 products are made by autocast
DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "auto": torch.float32, "float64": torch.float64}

Weights = dict[str, Tensor]


def freeze(model: nn.Module, train: TrainConfig) -> None:
    """Let only the head learn, where `train.freeze` says so."""
    if train.freeze == "backbone":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(("head.", "pre_logits.")))


class Stepper:
    """The model, its optimizers and one training step."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        preprocessing: Preprocessing,
        resolved: Resolved,
        group: Group,
        weights: Weights | None = None,
    ):
        self.config, self.dataset, self.preprocessing, self.resolved = config, dataset, preprocessing, resolved
        self.group = group
        train = config.train
        self.device = torch.device(resolved.device)
        self.dtype = DTYPES[train.precision]
        self.is_bfloat16 = (resolved.precision or train.precision) == "bfloat16"
        make_repeatable(self.device)
        torch.manual_seed(config.seed)  # the same start on every rank
        self.is_sharded = train.shard and group.world_size > 1
        if self.is_sharded or train.activation_checkpointing:
            return_freed_memory()
        # a sharded model is moved in parts: the whole may not fit
        self.model = build(config.model).to("cpu" if self.is_sharded else self.device, self.dtype)
        if weights is not None:
            self.model.load_state_dict(weights)
        set_background(self.model, preprocessing)
        freeze(self.model, train)
        self.class_weights: Tensor | None = None  # (classes,)
        if resolved.class_weights is not None:
            self.class_weights = torch.tensor(resolved.class_weights, dtype=self.dtype, device=self.device)
        self.teacher = Teacher(train.teacher, dataset).to(self.device, self.dtype) if train.teacher else None
        averaged = copy.deepcopy(self.model) if train.ema_decay else None
        if train.activation_checkpointing:
            recompute_blocks(self.model)
        if self.is_sharded:
            mesh = mesh_of(self.device, group.world_size)
            for model in filter(None, (self.model, averaged)):
                shard(model, mesh)
                group.wrap(model)
        self._gathered: nn.Module | None = None  # since the last step
        self.optimizers = make_optimizers(self.model, train, torch.bfloat16 if self.is_bfloat16 else None)
        self.peak_lrs = [[g["lr"] for g in optimizer.param_groups] for optimizer in self.optimizers]
        self.averaged = AveragedWeights(self.model, averaged, train.ema_decay) if averaged is not None else None
        seed_generators(config.seed, group.rank)
        callable_model = self.model if self.is_sharded else group.wrap(self.model)
        self.forward = torch.compile(callable_model) if resolved.compile else callable_model
        alone = self.device.type == "cpu" and resolved.world_size == group.world_size == 1 and not resolved.compile
        # more than two partial gradients would not be reproducible; recomputing restores one generator for all threads
        splits = alone and not (train.micro_batch or train.activation_checkpointing)
        splits = splits and split_is_faster(config.model, resolved.batch_size, resolved.threads)
        self.split_batch = SplitBatch(resolved.threads) if splits else None

    @property
    def kept_model(self) -> nn.Module:
        """The model that is evaluated and saved: the averaged one if there is one.

        A sharded one is gathered on every rank, whole, until the next step: so the first use after a step must be by
        all ranks.
        """
        kept = self.averaged.averaged if self.averaged is not None else self.model
        if not self.is_sharded:
            return kept
        if self._gathered is None:
            self._gathered = gathered(kept, self.config.model)
        return self._gathered

    def lr(self, step: int) -> float:
        """Return the learning rate at that step, before `layer_decay`."""
        return self.config.train.lr * lr_factor(step, self.resolved.steps, self.config.train)

    def step(self, step: int, epoch: int, indices: Tensor, factor: float | None = None) -> tuple[float, int]:
        """Take one optimizer step; return the loss and the number of correct predictions on this rank.

        The learning rates are the peak ones times `factor`, which is by default the schedule's.
        """
        train = self.config.train
        self._gathered = None
        self.model.train()
        self._set_lr(lr_factor(step, self.resolved.steps, train) if factor is None else factor)
        # the other cores would spin between the operations of this thread, and slow down the two that have the batch
        with one_thread() if self.split_batch is not None else contextlib.nullcontext():
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            total, num_correct = self._backward(epoch, indices)
            if train.clip_norm:
                nn.utils.clip_grad_norm_(self.model.parameters(), train.clip_norm)
            for optimizer in self.optimizers:
                if self.split_batch is not None and isinstance(optimizer, Muon):
                    self.split_batch.map(optimizer.update, optimizer.parts())
                else:
                    optimizer.step()
            if self.averaged is not None:
                self.averaged.update(step)
        return total, num_correct

    def _backward(self, epoch: int, indices: Tensor) -> tuple[float, int]:
        """Accumulate the gradients of the mean loss; return the loss and the number of correct predictions."""

        # the mean over the ranks is that over all images, also where their shares are not equal
        world_size = self.group.world_size
        images_per_rank = len(indices) if world_size == 1 else self.resolved.batch_size / world_size

        def backward(part: Tensor) -> tuple[float, int]:
            loss, num_correct = self._loss(*self.batch(epoch, part))
            value = loss.item()
            if not math.isfinite(value):
                raise FloatingPointError(f"{value}")
            share = len(part) / images_per_rank
            (loss * share if share != 1 else loss).backward()
            return value * (len(part) / len(indices)), num_correct

        if self.split_batch is not None:
            results = self.split_batch.run(backward, indices)
        else:
            parts, results = indices.split(self.config.train.micro_batch or len(indices)), []
            for part in parts:
                with self.group.averaging(self.forward, part is parts[-1]):
                    results.append(backward(part))
        return sum(loss for loss, _ in results), sum(num_correct for _, num_correct in results)

    def _loss(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Return the mean loss and the number of correct predictions.

        With class weights, an image counts as often as the weight of its class says, with its smoothed label and its
        teacher too. The sum is divided by the number of images, not by their weights (whose mean over the training set
        is 1): so the step does not depend on how the batch is divided among micro-batches, threads and processes.
        """
        train, weights = self.config.train, self.class_weights
        reduction = "mean" if weights is None else "none"
        pixels = pixels.to(self.device)  # as bytes, unless they were augmented: a quarter of the floats
        images = self.preprocessing.to_input(pixels).to(self.dtype)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_bfloat16):
            logits = self.forward(images)
            if self.is_bfloat16:
                logits = logits.float()
            if train.loss == "nll":
                loss = F.nll_loss(logits, labels, reduction=reduction)
            else:
                loss = F.cross_entropy(logits, labels, label_smoothing=train.label_smoothing, reduction=reduction)
            if self.teacher is not None:
                share, temperature = train.teacher_weight, train.teacher_temperature
                teacher = self.teacher.probabilities(pixels, temperature)
                loss = (1 - share) * loss + share * distillation_loss(logits, teacher, temperature, reduction)
            if weights is not None:
                loss = ((weights[labels] if labels.dim() == 1 else labels @ weights) * loss).mean()
        largest = labels if labels.dim() == 1 else labels.argmax(dim=1)
        return loss, int((logits.argmax(dim=1) == largest).sum())

    def batch(self, epoch: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented images before normalisation, (B, C, H, W), and labels (B,): mixed ones are (B, classes)."""
        train, share, seed = self.dataset.train, self.config.data.augment.mix, self.config.seed
        pixels, labels = self._augmented(epoch, indices), train.labels[indices]
        if share:
            chosen, others, random = draw(share, seed, epoch, indices, len(train))
            pixels[chosen], mixed = paste(pixels[chosen], self._augmented(epoch, others), random)
            kept = torch.ones(len(indices)).index_copy(0, chosen, mixed)
            theirs = labels.index_copy(0, chosen, train.labels[others])
            labels = mixed_labels(labels, theirs, kept, self.dataset.num_classes).to(self.dtype)
        return pixels, labels.to(self.device)

    def _augmented(self, epoch: int, indices: Tensor) -> Tensor:
        train, chosen = self.dataset.train, self.config.data.augment
        pixels = train.stored_batch(indices) if chosen.crop else train.batch(indices)  # crops of a larger image
        if chosen == type(chosen)():
            return pixels
        size = train.image_shape[1:]
        return augment(pixels.float() / 255, indices, chosen, self.config.seed, epoch, size, len(train))

    def _set_lr(self, factor: float) -> None:
        for optimizer, peaks in zip(self.optimizers, self.peak_lrs, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
