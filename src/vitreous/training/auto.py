"""`auto`: a training whose settings are chosen from the data, for people who do not know ViTs.

Everything is decided by the images, their number and one short pilot training; nothing depends on the speed of the
machine, so the same data give the same run everywhere. Settings that the user names stay as named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous import hardware
from vitreous.config import AugmentConfig, Config, DataConfig, TrainConfig, ViTConfig, merge_toml, override
from vitreous.data.checks import MAX_IMBALANCE
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.sampler import BatchSampler
from vitreous.errors import ConfigError
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.prediction import compute_logits
from vitreous.models.summary import count_flops, count_parameters_of
from vitreous.reports.formats import by
from vitreous.runs import Resolved
from vitreous.training.distributed import Group
from vitreous.training.step import Stepper

NAME = "auto"
#: Floating-point operations of the whole training: about three minutes on two cores at 180 GFLOP/s (docs/auto.md).
TRAIN_FLOPS = 1.5e13
PILOT_STEPS, PILOT_CHUNK = 240, 40  # at most; it ends earlier once it knows enough
FEWEST_STEPS, MOST_EPOCHS = 600, 300
FEWEST_PROBES, PROBES = 40, 1000  # validation images: fewer decide nothing, more add nothing
MAX_SIDE = 64  # pixels; larger images are scaled down, because the cost grows with their area
KEEPS_MEANING = 0.7  # share of the pilot's skill that must be left on mirrored or turned images


@dataclass(frozen=True)
class AutoRequest:
    """A training that the data determine, apart from the settings named here (`--set`, a TOML file)."""

    data: str
    settings: tuple[str, ...] = ()
    file: Path | None = None
    seed: int | None = None
    changes: Callable[[Config], Config] | None = None  # the same, from Python

    @property
    def train(self) -> TrainConfig:
        """The training settings as far as the user named them."""
        return self.applied(Config()).train

    def applied(self, config: Config) -> Config:
        """Return `config` with the user's own settings, which always win."""
        config = config if self.file is None else merge_toml(config, self.file)
        config = override(config, self.settings)
        config = config if self.changes is None else self.changes(config)
        config = config.replace(data=config.data.replace(name=self.data))
        return config if self.seed is None else config.replace(seed=self.seed)


def choose(request: AutoRequest, log: Callable[[str], None] = lambda line: None) -> Config:
    """Look at the data and return the configuration to train, with reasons; `log` gets a line before the pilot."""
    if not request.data:
        raise ConfigError(
            "`auto` chooses a training from the data: name some with --data (a folder, an .npz, mnist, …)"
        )
    config = request.applied(Config(name=NAME, data=DataConfig(name=request.data)))
    if config.start.weights is not None:
        raise ConfigError(
            "`auto` chooses a model of its own; with --from, name a ViT preset: `vitreous train vit --from …`"
        )
    dataset = load_dataset(config.data, longest_side=MAX_SIDE)
    data = config.data.replace(image_size=config.data.image_size or _affordable(dataset.image_size))
    if data.image_size != dataset.image_size:
        dataset = load_dataset(data)
    model = _model(dataset)
    train = _train(model, len(dataset.train))
    if _imbalance(dataset) >= MAX_IMBALANCE:
        train = train.replace(class_weights="auto")
    config = Config(name=NAME, model=model, data=data, train=train)
    config = request.applied(config.replace(data=data.replace(augment=_safe_augment(dataset))))
    if len(dataset.val) >= FEWEST_PROBES:
        log(f"{NAME}: a short pilot training decides whether mirrored and turned images keep their meaning …")
    meaning = _probe(config, dataset)
    config = request.applied(config.replace(data=config.data.replace(augment=_augment(dataset, meaning))))
    return config.replace(reasons=_reasons(config, dataset, meaning))


# --- size, model, length -----------------------------------------------------------------------------------------


def _affordable(size: tuple[int, int]) -> tuple[int, int]:
    """Return a size that two cores can train on, of the same aspect ratio."""
    scale = min(1.0, MAX_SIDE / max(size))
    height, width = (max(8, round(side * scale)) if scale < 1 else side for side in size)
    return height, width


def _model(dataset: Dataset) -> ViTConfig:
    """A conv stem shrinks the image until 6 to 12 tokens are left along a side; four blocks attend to them.

    Patches straight from pixels need far more images to reach the same accuracy (docs/auto.md).
    """
    stages = max(1, math.ceil(math.log2(math.sqrt(math.prod(dataset.image_size)) / 12.5)))
    channels = tuple(96 >> (stages - 1 - stage) for stage in range(stages))  # 96; 48, 96; 24, 48, 96
    return ViTConfig(
        image_size=dataset.image_size, channels=dataset.channels, num_classes=dataset.num_classes, patch_size=1,
        stem_channels=tuple(max(32, width) for width in channels), stem_depth=2, dim=96, depth=4, num_heads=3,
        mlp_dim=192,
    )  # fmt: skip


def _train(model: ViTConfig, num_images: int) -> TrainConfig:
    """Small sets get small batches, and every set about the same amount of arithmetic."""
    batch_size = next(size for size, fewest in ((128, 8000), (64, 500), (32, 0)) if num_images >= fewest)
    steps_per_epoch = max(1, num_images // batch_size)
    images = TRAIN_FLOPS / (3 * count_flops(model))  # a backward pass costs twice the forward pass
    steps = max(FEWEST_STEPS, images / batch_size)
    epochs = max(1, min(MOST_EPOCHS, round(steps / steps_per_epoch)))
    steps = epochs * steps_per_epoch
    return TrainConfig(
        epochs=epochs, min_steps_per_epoch=1, batch_size=batch_size, optimizer="muon", muon_lr=0.02, lr=0.005,
        weight_decay=0.05, label_smoothing=0.1, ema_decay=round(min(0.998, max(0.9, 1 - 12 / steps)), 3),
    )  # fmt: skip


# --- augmentation: what keeps the meaning of an image --------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """Accuracy of the pilot on validation images, upright, mirrored and turned; None: it learned too little to tell."""

    images: int
    chance: float  # accuracy of always predicting the largest class
    accuracy: float
    mirrored: float
    turned: float | None  # by 90, 180 and 270 degrees; None where the images are not square

    @property
    def skill(self) -> float:
        """Accuracy above chance, by the lower end of its 95 % interval, as a share of what is possible."""
        interval = wilson_interval(round(self.accuracy * self.images), self.images)
        return (interval.low - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0

    @property
    def is_skilled(self) -> bool:
        """Return whether more training would tell nothing new."""
        return self.skill > 0.6

    @property
    def is_informative(self) -> bool:
        return self.images >= FEWEST_PROBES and self.skill > 0.1

    def keeps(self, accuracy: float | None) -> bool:
        """Return whether most of the pilot's skill (accuracy above chance) is left."""
        return accuracy is not None and accuracy - self.chance >= KEEPS_MEANING * (self.accuracy - self.chance)


def _safe_augment(dataset: Dataset) -> AugmentConfig:
    """Return shifts by up to an eighth of the image and small changes of scale, which keep the meaning of any image."""
    side = min(dataset.image_size)
    if dataset.channels == 3:
        return AugmentConfig(shift=max(1, side // 8), erase=0.25)
    return AugmentConfig(shift=max(1.0, side / 16), rotate=7, scale=0.07)


def _augment(dataset: Dataset, meaning: Meaning | None) -> AugmentConfig:
    safe = _safe_augment(dataset)
    if meaning is None or not meaning.is_informative:
        return safe.replace(flip=dataset.channels == 3)  # photographs of things nearly always keep theirs
    turns = meaning.keeps(meaning.turned)
    return safe.replace(flip=meaning.keeps(meaning.mirrored), rotate=180.0 if turns else safe.rotate)


def _probe(config: Config, dataset: Dataset) -> Meaning | None:
    """Train a pilot on upright images until it is skilled, and measure it on mirrored and turned validation images."""
    if len(dataset.val) < FEWEST_PROBES:
        return None
    batch_size = min(32, len(dataset.train))
    pilot = config.replace(train=config.train.replace(batch_size=batch_size, ema_decay=0.9, schedule="constant"))
    resolved = Resolved(
        threads=hardware.prepare(config.train.threads or hardware.default_threads()),
        batch_size=batch_size, steps=PILOT_STEPS, steps_per_epoch=max(1, len(dataset.train) // batch_size),
    )  # fmt: skip
    preprocessing, sampler = (
        Preprocessing.for_dataset(dataset),
        BatchSampler.of(dataset.train, batch_size, config.seed),
    )
    with torch.random.fork_rng(devices=[]):
        stepper = Stepper(pilot, dataset, preprocessing, resolved, Group())
        for first in range(0, PILOT_STEPS, PILOT_CHUNK):
            try:
                for step, epoch, indices in sampler.steps(first, first + PILOT_CHUNK):
                    stepper.step(step, epoch, indices)
            except FloatingPointError:
                return None
            meaning = _measure(stepper, dataset.val.batch(slice(PROBES)), dataset.val.labels[:PROBES])
            if meaning.is_skilled:
                break
    return meaning


def _measure(stepper: Stepper, images: Tensor, labels: Tensor) -> Meaning:
    def accuracy(transformed: Tensor) -> float:
        logits = compute_logits(stepper.kept_model, transformed, stepper.preprocessing)
        return float((logits.argmax(dim=1) == labels).float().mean())

    is_square = images.shape[-1] == images.shape[-2]
    turns = [accuracy(images.rot90(quarter, (-2, -1))) for quarter in (1, 2, 3)] if is_square else []
    return Meaning(
        images=len(labels),
        chance=float(torch.bincount(labels).max() / len(labels)),
        accuracy=accuracy(images),
        mirrored=accuracy(images.flip(-1)),
        turned=min(turns) if turns else None,
    )


# --- the explanation ---------------------------------------------------------------------------------------------


def _reasons(config: Config, dataset: Dataset, meaning: Meaning | None) -> tuple[str, ...]:
    """Return five lines: data, model, augmentation, training, and what to do next."""
    model, train, augment = config.model, config.train, config.data.augment
    ratio = _imbalance(dataset)
    balance = "balanced"
    if ratio >= MAX_IMBALANCE:
        weights = f"class weights: {train.class_weights}"
        balance = f"the largest class with {ratio:.1f} times the images of the smallest ({weights})"
    colour = "colour" if dataset.channels == 3 else "gray"
    lines = [
        f"data: {len(dataset.train):,} training images of {by(*dataset.image_size)} in {colour},"
        f" {dataset.num_classes} classes, {balance}"
    ]
    tokens = f", {model.num_patches} tokens for {model.depth} blocks" if isinstance(model, ViTConfig) else ""
    stem = " behind a conv stem, which needs fewer images than plain patches" if _has_stem(config) else ""
    lines.append(f"model: a ViT of {count_parameters_of(model):,} parameters{stem}{tokens}")
    amounts = [f"{name} {value:g}" for name, value in augment.model_dump().items() if value and name != "flip"]
    kept = f"{', '.join(amounts) or 'no changes'}, {'mirrored' if augment.flip else 'never mirrored'}"
    lines.append(f"augmentation: {kept}{_measured(meaning, dataset)}")
    steps = round(train.epochs * max(1, len(dataset.train) // train.batch_size))
    lines.append(
        f"training: {steps:,} steps of {min(train.batch_size, len(dataset.train))} images ({train.epochs:g} epochs),"
        f" {train.optimizer}, learning rate {train.lr:g} for {train.schedule} decay, averaged weights"
    )
    lines.append(
        "change anything with --set, --epochs or --seconds; `vitreous compare auto cnn --data …` shows whether a CNN is"
        " better"
    )
    return tuple(lines)


def _imbalance(dataset: Dataset) -> float:
    """Return the size of the largest class, in training images, divided by that of the smallest."""
    counts = torch.bincount(dataset.train.labels, minlength=dataset.num_classes)
    return float(counts.max() / counts.min())


def _has_stem(config: Config) -> bool:
    return isinstance(config.model, ViTConfig) and bool(config.model.stem_channels)


def _measured(meaning: Meaning | None, dataset: Dataset) -> str:
    kind = "colour" if dataset.channels == 3 else "gray"
    if meaning is None:
        return f" (fewer than {FEWEST_PROBES} validation images decide nothing: the rule for {kind} images)"
    if not meaning.is_informative:
        return f" (the pilot learned too little to tell: the rule for {kind} images)"
    turned = "" if meaning.turned is None else f", {meaning.turned:.0%} turned"
    return f" (a pilot: {meaning.accuracy:.0%} of validation images upright, {meaning.mirrored:.0%} mirrored{turned})"
