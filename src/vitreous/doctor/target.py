"""`vitreous doctor TARGET`: a preset, a run, `path/to/model.py:ViT`, or `package.module:callable`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
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
from vitreous.doctor.diagnosis import diagnose, without_prints
from vitreous.doctor.findings import Diagnosis
from vitreous.doctor.model_file import TookTooLong, build, load_from_file, searching, time_limit
from vitreous.errors import ConfigError, DataError, VitreousError, quoted
from vitreous.hardware import prepare, require_memory
from vitreous.models import build as build_model
from vitreous.reports.formats import by, join
from vitreous.runs import Run, is_run, load_run_data

_MAX_PIXELS = 2**28  # 1 GB of float32: all of MNIST and CIFAR-10, a sample of larger data


def diagnose_target(
    target: str,
    *,
    data: str | None = None,
    input_shape: str | None = None,
    arguments: str | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose the model that `target` names, with its own data (a run) or those given.

    `arguments` is a JSON object for the constructor of a model in a Python file or module.

    A run whose own data are unavailable, or changed, is examined on synthetic inputs, without the data checks.
    """
    prepare()
    notes: tuple[str, ...] = ()
    if data is not None and input_shape is not None:
        raise ConfigError("--data and --input-shape were both given; the data have their own shape")
    shape = None if input_shape is None else _parse_shape(input_shape)
    given = _parse_arguments(arguments)
    if given and (is_run(target) or target in PRESETS):
        raise ConfigError(f"--args is for a model in a Python file; {target} has its own configuration")
    if is_run(target):
        run = Run.open(target)
        model, known = run.load_model(), _config_arguments(run.config.model) | {"fresh": False}
        try:
            known |= _data_arguments(load_run_data(run, data), run.preprocessing)
        except DataError as error:
            if data is not None:
                raise
            notes = (f"examined on synthetic inputs, without its data: {error}",)
    else:
        model, known = target_model(target, seed, given, shape)
        if "constructor" in known:
            found, built_with = known["constructor"]
            sizes = {key: value for key, value in built_with.items() if isinstance(value, int | float | str)}
            if target.endswith(".py"):
                notes = (f"examined {found.__name__}; name another class after a colon",)
            notes += (f"built with {sizes}",) if sizes else ()
        if data is not None:
            base = preset(target).data if target in PRESETS else DataConfig()
            dataset = load_dataset(base.replace(name=data))
            known |= _data_arguments(dataset, Preprocessing.for_dataset(dataset))
    if shape is not None:
        known["input_shape"] = shape
    with searching(known["constructor"][0]) if "constructor" in known else contextlib.nullcontext():
        return dataclasses.replace(diagnose(model, **known, seed=seed), notes=notes)


def target_model(
    target: str, seed: int = 0, given: dict[str, Any] | None = None, input_shape: tuple[int, ...] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the model that `target` names from `seed`; return it with further arguments for `diagnose`."""
    with torch.random.fork_rng(devices=[]), without_prints():
        torch.manual_seed(seed)
        if (file := re.fullmatch(r"(.+\.py)(?::(\w+))?", target)) is not None:
            return build(target, load_from_file(Path(file[1]), file[2] or ""), given or {}, input_shape)
        if ":" in target:
            return _import_model(target, given or {}, input_shape)
        if target not in PRESETS:
            raise VitreousError(
                f"{target!r} is neither a preset ({', '.join(PRESETS)}) nor path/to/model.py:ViT nor"
                " package.module:callable, as in my_models.vit:make_model"
            )
        config = preset(target).model
        return build_model(config), _config_arguments(config) | {"fresh": True}


def _config_arguments(config: Any) -> dict[str, Any]:
    return {
        "factory": lambda: build_model(config),
        "input_shape": (config.channels, *config.image_size),
        "num_classes": config.num_classes,
    }


def _import_model(
    target: str, given: dict[str, Any], input_shape: tuple[int, ...] | None
) -> tuple[nn.Module, dict[str, Any]]:
    module_name, _, path = target.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # `python -m` searches the current folder too; an installed command does not
    try:
        with time_limit(f"importing {module_name}"):
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            reason = f"there is no module {missing!r}, neither installed nor in the current folder {here}"
        else:
            reason = f"{module_name} could not be imported: the module {missing!r} is missing"
        raise VitreousError(f"{target!r}: {reason}") from None
    except TookTooLong:
        raise
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
    return build(target, found, given, input_shape)


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


def _parse_arguments(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--args is not JSON ({error}); expected an object, as in '{{\"depth\": 3}}'") from None
    if not isinstance(value, dict):
        raise ConfigError("--args is not a JSON object; expected one, as in '{\"depth\": 3}'")
    return value


def _parse_shape(text: str) -> tuple[int, ...]:
    text = text.replace(" ", "")
    if not re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}){0,7}", text):
        raise ConfigError(f"--input-shape {quoted(text)}: expected positive numbers with commas, as in 1,28,28")
    shape = tuple(map(int, text.split(",")))
    # most checks compare two images with two others
    require_memory(16 * math.prod(shape), f"inputs of {by(*shape)} values", "name a smaller --input-shape")
    return shape
