"""`vitreous doctor TARGET`: finds the model and the data a target names, and has it examined."""

from __future__ import annotations

from typing import Any

import torch

from vitreous.config import Config, DataConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.doctor import diagnose, target_model
from vitreous.doctor.findings import Diagnosis
from vitreous.errors import ConfigError, DataError
from vitreous.hardware import prepare
from vitreous.models import build
from vitreous.runs import Run, is_run

_MOST_PIXELS = 2**28  # a gigabyte as floats: all of MNIST and CIFAR-10; of larger data a part is examined


def consult(
    target: str, *, data: str | None = None, input_shape: str | None = None, seed: int = 0
) -> tuple[Diagnosis, str]:
    """The diagnosis of a preset, a run or `package.module:callable`, and what to call the patient."""
    prepare()
    if data is not None and input_shape is not None:
        raise ConfigError("--data and --input-shape were both given; the data have their own shape")
    if is_run(target):
        run = Run.open(target)
        images = _data_of(run.config.data if data is None else DataConfig(name=data), run.preprocessing)
        config = run.config.model
        return diagnose(
            run.load_model(), **images, num_classes=config.num_classes, fresh=False, seed=seed,
            factory=lambda: build(config), input_shape=(config.channels, *config.image_size),
        ), target  # fmt: skip
    model, facts = target_model(target, seed)
    arguments = facts.arguments()
    if input_shape is not None:
        arguments["input_shape"] = _parse_shape(input_shape)
    images = {} if data is None else _data_of(_data_config(target, data), None)
    return diagnose(model, **images, **arguments, seed=seed), facts.name


def _data_config(target: str, name: str) -> DataConfig:
    config: Config | None = preset(target) if target in PRESETS else None
    return DataConfig(name=name) if config is None else config.data.replace(name=name)


def _data_of(config: DataConfig, preprocessing: Preprocessing | None) -> dict[str, Any]:
    """Training images as the model gets them, their labels, and test images; nothing where the data cannot be had."""
    try:
        dataset = load_dataset(config)
    except DataError:
        if preprocessing is None:
            raise
        return {}  # a run can be examined without its data: inputs are made up, and the data checks are not measured
    to_input = (preprocessing or Preprocessing.for_dataset(dataset)).to_input
    # all of them where memory allows, so that none that stands in the test set too is overlooked
    most = max(64, _MOST_PIXELS // dataset.train.images[0].numel())
    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[:most]
    return {
        "images": to_input(dataset.train.images[chosen]),
        "labels": dataset.train.labels[chosen],
        "test_images": to_input(dataset.test.images),
    }


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"--input-shape {text!r}: expected numbers with commas, as in 1,28,28")
    return shape
