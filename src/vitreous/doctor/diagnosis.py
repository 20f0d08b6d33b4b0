"""`diagnose`: run all checks on one model."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.doctor.checks import CHECKS, FROM_RECORDING
from vitreous.doctor.findings import Diagnosis, Finding, NotMeasured, Unmeasured
from vitreous.doctor.model_under_test import NO_TIME, Constructor, ModelUnderTest
from vitreous.doctor.randomness import restored_global_state
from vitreous.errors import VitreousError
from vitreous.models.fast.vit import FastViT, readable


def diagnose(
    model: nn.Module,
    images: Any = None,
    labels: Any = None,
    *,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    fresh: bool | None = None,
    test_images: Any = None,
    factory: Callable[[], nn.Module] | None = None,
    constructor: Constructor | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Examine a classifier of images (B, C, H, W), or of patches (B, N, ...), and leave it unchanged.

    `images` and `labels` (tensors or arrays) are training data as the model receives them. Without them, normalised
    inputs of `input_shape` are generated, or of the first common shape that the model accepts. `fresh` states whether
    the model is untrained (default: inferred from its norm layers); `factory` builds another instance, for the reload
    check; `constructor` is a class or function and its arguments, to build the model with others.
    """
    if not isinstance(model, nn.Module):
        raise VitreousError(f"diagnose takes an nn.Module, not a {type(model).__name__}")
    if isinstance(model, FastViT):
        model = readable(model)
    start, cpu_start = time.perf_counter(), time.thread_time()
    images, labels = _tensor(images, "images"), _tensor(labels, "labels")
    if images is not None and labels is not None and len(images) != len(labels):
        raise VitreousError(f"{len(images)} images and {len(labels)} labels: give one label per image")
    findings: list[Finding] = []
    not_measured: list[Unmeasured] = []
    healthy: list[str] = []
    with restored_global_state(), without_prints():
        tested = ModelUnderTest(
            original=model,
            given_images=images,
            given_labels=labels,
            test_images=_tensor(test_images, "test_images"),
            input_shape=input_shape,
            num_classes=num_classes or 0,
            fresh=fresh,
            factory=factory or _call(constructor),
            constructor=constructor,
            seed=seed,
        )
        for name, check in CHECKS.items():
            if "not-a-classifier" in {found.id for found in findings}:
                not_measured.append(Unmeasured(name, "the model is not a classifier"))
                continue
            tested.is_limited = name not in FROM_RECORDING
            if tested.is_far_too_late and tested.is_limited:
                not_measured.append(Unmeasured(name, NO_TIME))
                continue
            try:
                found = list(check(tested))
            except NotMeasured as error:
                not_measured.append(Unmeasured(name, str(error)))
            except Exception as error:  # a check that fails on this model must not stop the others
                not_measured.append(Unmeasured(name, f"{type(error).__name__}: {error}"))
            else:
                findings += found
                if not found:
                    healthy.append(name)
        findings = [_located(model, found) for found in findings]
    elapsed, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
    return Diagnosis(tuple(findings), tuple(not_measured), tuple(healthy), elapsed, cpu_seconds=cpu)


@contextlib.contextmanager
def without_prints() -> Iterator[None]:
    """Discard what the model prints, such as shapes in every forward pass: JSON must stay JSON."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _call(constructor: Constructor | None) -> Callable[[], nn.Module] | None:
    if constructor is None:
        return None
    build, arguments = constructor
    return lambda: build(**arguments)


def _located(model: nn.Module, found: Finding) -> Finding:
    """Add file and line of the class of the module where it was measured; torch's own classes have none to change."""
    names = found.module.split(".") if found.module else []
    for count in range(len(names), -1, -1):  # the innermost module with a class of the user's
        try:
            module = model.get_submodule(".".join(names[:count]))
            path, line = inspect.getsourcefile(type(module)), inspect.getsourcelines(type(module))[1]
        except (AttributeError, TypeError, OSError):
            continue
        if path and not type(module).__module__.startswith("torch."):
            return dataclasses.replace(found, location=f"{path}:{line}")
    return found


def _tensor(values: Any, name: str) -> Tensor | None:
    if values is None:
        return None
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise VitreousError(f"{name} must be a tensor or an array: {error}") from None
    if tensor.ndim < 1 or len(tensor) == 0:
        raise VitreousError(f"{name} is empty")
    return tensor.detach()
