"""`vitreous doctor TARGET`: a preset, a run, or `package.module:callable` returning any `nn.Module`."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.config import DataConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.doctor.diagnosis import diagnose
from vitreous.doctor.findings import Diagnosis
from vitreous.errors import ConfigError, DataError, VitreousError, quoted
from vitreous.hardware import prepare, require_memory
from vitreous.models import build
from vitreous.reports.formats import by, join
from vitreous.runs import Run, is_run, load_run_data

_MAX_PIXELS = 2**28  # 1 GB of float32: all of MNIST and CIFAR-10, a sample of larger data


def diagnose_target(
    target: str, *, data: str | None = None, input_shape: str | None = None, seed: int = 0
) -> Diagnosis:
    """Diagnose the model that `target` names, with its own data (a run) or those given.

    A run whose own data are unavailable, or changed, is examined on synthetic inputs, without the data checks.
    """
    prepare()
    notes: tuple[str, ...] = ()
    if data is not None and input_shape is not None:
        raise ConfigError("--data and --input-shape were both given; the data have their own shape")
    if is_run(target):
        run = Run.open(target)
        model, arguments = run.load_model(), _config_arguments(run.config.model) | {"fresh": False}
        try:
            arguments |= _data_arguments(load_run_data(run, data), run.preprocessing)
        except DataError as error:
            if data is not None:
                raise
            notes = (f"examined on synthetic inputs, without its data: {error}",)
    else:
        model, arguments = target_model(target, seed)
        if data is not None:
            base = preset(target).data if target in PRESETS else DataConfig()
            dataset = load_dataset(base.replace(name=data))
            arguments |= _data_arguments(dataset, Preprocessing.for_dataset(dataset))
    if input_shape is not None:
        arguments["input_shape"] = _parse_shape(input_shape)
    return dataclasses.replace(diagnose(model, **arguments, seed=seed), notes=notes)


def target_model(target: str, seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Build the model that `target` names from `seed`; return it with further arguments for `diagnose`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ":" in target:
            return _import_model(target)
        if target not in PRESETS:
            raise VitreousError(
                f"{target!r} is neither a preset ({', '.join(PRESETS)}) nor package.module:callable, as in"
                " my_models.vit:make_model"
            )
        config = preset(target).model
        return build(config), _config_arguments(config) | {"fresh": True}


def _config_arguments(config: Any) -> dict[str, Any]:
    return {
        "factory": lambda: build(config),
        "input_shape": (config.channels, *config.image_size),
        "num_classes": config.num_classes,
    }


def _import_model(target: str) -> tuple[nn.Module, dict[str, Any]]:
    module_name, _, path = target.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # `python -m` searches the current folder too; an installed command does not
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            reason = f"there is no module {missing!r}, neither installed nor in the current folder {here}"
        else:
            reason = f"{module_name} could not be imported: the module {missing!r} is missing"
        raise VitreousError(f"{target!r}: {reason}") from None
    except Exception as error:
        raise VitreousError(f"{target!r}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    for name in filter(None, path.split(".")):
        if not hasattr(found, name):
            names = sorted(key for key, value in vars(found).items() if callable(value) and not key.startswith("_"))
            raise VitreousError(
                f"{target!r}: {module_name} has no {path!r}; it has {join(names, most=12) or 'nothing'}"
            )
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        return found, {}
    if not path or not callable(found):
        raise VitreousError(f"{target!r} does not name a callable; expected package.module:callable")
    try:
        model = found()
    except Exception as error:
        raise VitreousError(
            f"{target!r} could not be called without arguments: {type(error).__name__}: {error}; name a function that"
            " returns the finished model"
        ) from error
    if not isinstance(model, nn.Module):
        raise VitreousError(f"{target!r} returned a {type(model).__name__}, not an nn.Module")
    return model, {"factory": found}


def _data_arguments(dataset: Dataset, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return training images as the model receives them, their labels, and test images."""
    to_input = preprocessing.to_input
    # all images where memory allows, so that no duplicate of a test image is missed
    most = max(64, _MAX_PIXELS // math.prod(dataset.train.image_shape))
    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[:most]
    return {
        "images": to_input(dataset.train.batch(chosen)),
        "labels": dataset.train.labels[chosen],
        "test_images": to_input(dataset.test.batch(slice(most))),
    }


def _parse_shape(text: str) -> tuple[int, ...]:
    text = text.replace(" ", "")
    if not re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}){0,7}", text):
        raise ConfigError(f"--input-shape {quoted(text)}: expected positive numbers with commas, as in 1,28,28")
    shape = tuple(map(int, text.split(",")))
    # most checks compare two images with two others
    require_memory(16 * math.prod(shape), f"inputs of {by(*shape)} values", "name a smaller --input-shape")
    return shape
