"""What a training derives from its data: steps per epoch, when to validate, class weights, and a hint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous import hardware
from vitreous.config import Config, TrainConfig
from vitreous.data.datasets import Dataset
from vitreous.data.sampler import BatchSampler
from vitreous.errors import ConfigError, RunError
from vitreous.reports.formats import plural
from vitreous.runs import Resolved, Run

if TYPE_CHECKING:
    from vitreous.training.distributed import Group

_LARGEST_CLASS_WEIGHT = 10.0  # times the weight of a class of average size
_FEWEST_STEPS = 300  # of a training from scratch: `vit` on 5 to 30 digits per class, docs/small-sets.md
_FEWEST_STEPS_FINE_TUNING = 100


def steps_per_epoch(num_images: int, batch_size: int, train: TrainConfig) -> int:
    """Return the steps of an epoch: one pass over the images, or several if that is below the floor.

    Batches stay as large as they were configured. Smaller ones would raise the number of steps too, but learn less
    per step: 300 digits, 80 steps: 96 % of the validation set with batches of 128, 79 % with 16 (docs/small-sets.md).
    """
    return max(train.min_steps_per_epoch, BatchSampler(num_images, batch_size, seed=0).steps_per_epoch)


def validation_interval(train: TrainConfig, steps_per_epoch: int, batch_size: int, num_validation_images: int) -> int:
    """Return the steps between two validations.

    By default an epoch, or as many whole epochs as keep validation below half of the time: the forward pass it needs
    takes about a third of a training step's time per image.
    """
    if train.validate_every is not None:
        return max(1, round(train.validate_every * steps_per_epoch))
    return steps_per_epoch * max(1, math.ceil(num_validation_images / (3 * batch_size * steps_per_epoch)))


def class_weights(labels: Tensor, num_classes: int, train: TrainConfig) -> tuple[float, ...] | None:
    """Return what an image of each class counts in the loss, on average 1; None: all the same.

    Inverse frequency: n / (classes · count), at most 10, so that a class of three images is not learned by heart. The
    weights are then divided by their mean over the images, so that the learning rate keeps its meaning.
    """
    if train.class_weights == "none":
        return None
    counts = torch.bincount(labels, minlength=num_classes).double()  # (classes,)
    weights = (len(labels) / (num_classes * counts.clamp(min=1))).clamp(max=_LARGEST_CLASS_WEIGHT)
    mean = (weights * counts).sum() / len(labels)
    return tuple((weights / mean).tolist())


def require_validation(config: Config, dataset: Dataset) -> None:
    """Raise if the training is to be judged on a validation split that does not exist."""
    train = config.train
    if len(dataset.val) or not (train.early_stopping or train.keeps_best):
        return
    setting = f"train.early_stopping={train.early_stopping}" if train.early_stopping else "train.keep='best'"
    raise ConfigError(
        f"{setting} needs validation images, and {dataset.name} has none (data.val_fraction="
        f"{config.data.val_fraction:g}): set data.val_fraction=0.1, or leave {setting.partition('=')[0]} out"
    )


def hint(config: Config, resolved: Resolved) -> str | None:
    """Return a sentence for a training of very few steps, with the number of epochs that would suffice."""
    fewest = _FEWEST_STEPS_FINE_TUNING if config.start.weights else _FEWEST_STEPS
    if resolved.steps >= fewest:
        return None
    if resolved.seconds_per_step is not None:
        longer = f"--seconds {_round_up(fewest * resolved.seconds_per_step)}"
    else:
        longer = f"--epochs {_round_up(fewest / resolved.steps_per_epoch)}"
    return (
        f"only {plural(resolved.steps, 'step')} ({resolved.steps_per_epoch} per epoch), where about {fewest} are needed"
        f" to learn much: add {longer}"
    )


def _round_up(value: float) -> int:
    """Round up to one digit and zeros: 23 → 30."""
    unit = 10 ** int(math.log10(max(1.0, value)))
    return math.ceil(value / unit) * unit


# --- another number of processes ---------------------------------------------------------------------------------


def for_processes(run: Run, group: Group) -> Resolved:
    """Return what was resolved for a run, changed for the processes that go on with it.

    The global batch, and with it every batch of images, stays the same: each process takes its share of it.
    """
    resolved = run.resolved
    if group.world_size == resolved.world_size:
        return resolved
    if group.world_size > resolved.batch_size:
        raise RunError(
            f"{str(run.path)!r} trains on batches of {plural(resolved.batch_size, 'image')}, too few for"
            f" {group.world_size} processes: resume with --processes {resolved.batch_size} or fewer"
        )
    threads = run.config.train.threads or max(1, hardware.default_threads() // group.local_world_size)
    return resolved.model_copy(update={"world_size": group.world_size, "threads": threads})


def note_processes(run: Run, resolved: Resolved, step: int) -> Resolved:
    """Record that a run goes on from `step` on another number of processes."""
    before = run.resolved.world_sizes or ((0, run.resolved.world_size),)
    sizes = (*(each for each in before if each[0] < step), (step, resolved.world_size))
    resolved = resolved.model_copy(update={"world_sizes": sizes if len(sizes) > 1 else ()})
    run.update_resolved(resolved)
    return resolved
