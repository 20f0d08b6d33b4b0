"""`vitreous doctor TARGET`: a preset, or `package.module:callable` giving any `nn.Module`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.config.presets import PRESETS, preset
from vitreous.doctor.inputs import Shape
from vitreous.errors import VitreousError
from vitreous.models import build


@dataclass(frozen=True)
class TargetFacts:
    """What is known of a target besides the model: give it to `diagnose` as `**facts.arguments()`."""

    name: str
    factory: Callable[[], nn.Module] | None = None  # builds another one like it
    input_shape: Shape | None = None
    num_classes: int | None = None
    fresh: bool | None = None

    def arguments(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("factory", "input_shape", "num_classes", "fresh")}


def target_model(text: str, seed: int = 0) -> tuple[nn.Module, TargetFacts]:
    """The model that `text` names, built from `seed`, and what is known of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _callable_target(text) if ":" in text else _preset_target(text)


def _preset_target(name: str) -> tuple[nn.Module, TargetFacts]:
    if name not in PRESETS:
        raise VitreousError(
            f"{name!r} is neither a preset ({', '.join(PRESETS)}) nor package.module:callable, as in"
            " my_models.vit:make_model"
        )
    config = preset(name).model
    shape = (config.channels, *config.image_size)
    return build(config), TargetFacts(name, lambda: build(config), shape, config.num_classes, fresh=True)


def _callable_target(text: str) -> tuple[nn.Module, TargetFacts]:
    module_name, _, path = text.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # `python -m` looks in the current folder too; an installed command does not
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise VitreousError(
                f"{text!r}: there is no module {missing!r}, neither installed nor in the current folder {here}"
            ) from None
        raise VitreousError(f"{text!r}: importing {module_name} failed, for want of the module {missing!r}") from None
    except Exception as error:
        raise VitreousError(f"{text!r}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    for name in filter(None, path.split(".")):
        if not hasattr(found, name):
            names = sorted(key for key, value in vars(found).items() if callable(value) and not key.startswith("_"))
            raise VitreousError(f"{text!r}: {module_name} has no {path!r}; it has {', '.join(names[:12]) or 'nothing'}")
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        return found, TargetFacts(text)
    if not path or not callable(found):
        raise VitreousError(f"{text!r} names no callable; give package.module:callable, which makes an nn.Module")
    try:
        model = found()
    except Exception as error:
        raise VitreousError(
            f"{text!r} could not be called without arguments: {type(error).__name__}: {error}; name a function that"
            " returns the model ready made"
        ) from error
    if not isinstance(model, nn.Module):
        raise VitreousError(f"{text!r} gave a {type(model).__name__}, not an nn.Module")
    return model, TargetFacts(text, found, fresh=None)
