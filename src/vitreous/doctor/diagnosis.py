"""The list of checks, and `diagnose`, which runs them all on one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.doctor import (
    checks_attention,
    checks_batch,
    checks_data,
    checks_fresh,
    checks_outputs,
    checks_patches,
    checks_state,
)
from vitreous.doctor.findings import Diagnosis, Finding, NotMeasured, Unmeasured
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import restored_global_state
from vitreous.errors import VitreousError

Check = Callable[[ModelUnderTest], Iterator[Finding]]

#: Every check under its name in `healthy` and `not_measured`. A finding has the name of its check, or a more specific
#: one (activations-vanish).
CHECKS: tuple[tuple[str, Check], ...] = (
    ("answers-not-finite", checks_outputs.not_finite),
    ("batch-dependence", checks_batch.batch_dependence),
    ("tokens-never-attend", checks_batch.tokens_never_attend),
    ("patches-without-influence", checks_patches.without_influence),
    ("border-cut-off", checks_patches.border_ignored),
    ("patch-order-ignored", checks_patches.order_ignored),
    ("unregistered-tensors", checks_state.unregistered),
    ("class-token-untrained", checks_state.class_token_untrained),
    ("parameters-without-gradient", checks_state.parameters_without_gradient),
    ("state-lost-on-reload", checks_state.lost_on_reload),
    ("probabilities-not-logits", checks_outputs.probabilities),
    ("log-probabilities", checks_outputs.log_probabilities_returned),
    ("linear-after-linear", checks_outputs.linear_after_linear),
    ("dropout-in-eval", checks_outputs.dropout_in_eval),
    ("nondeterministic-eval", checks_outputs.not_deterministic),
    ("attention-scale", checks_attention.scale),
    ("softmax-axis", checks_attention.softmax_axis),
    ("attention-blown-up", checks_attention.blown_up),
    ("attention-collapsed", checks_attention.collapsed),
    ("first-loss", checks_fresh.first_loss),
    ("activations-with-depth", checks_fresh.activations_with_depth),
    ("gradients-with-depth", checks_fresh.gradients_with_depth),
    ("cannot-overfit", checks_fresh.cannot_overfit),
    ("inputs-wrong-range", checks_data.wrong_range),
    ("inputs-not-normalised", checks_data.not_normalised),
    ("inputs-channel-order", checks_data.channel_order),
    ("labels-out-of-range", checks_data.labels_out_of_range),
    ("train-test-overlap", checks_data.train_test_overlap),
)


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
    seed: int = 0,
) -> Diagnosis:
    """Examine a classifier of images (B, C, H, W), or of patches (B, N, ...), and leave it unchanged.

    `images` and `labels` (tensors or arrays) are training data as the model receives them. Without them, normalised
    inputs of `input_shape` are generated, or of the first common shape that the model accepts. `fresh` states whether
    the model is untrained (default: inferred from its norm layers); `factory` builds another instance, for the reload
    check.
    """
    if not isinstance(model, nn.Module):
        raise VitreousError(f"diagnose takes an nn.Module, not a {type(model).__name__}")
    start = time.perf_counter()
    images, labels = _tensor(images, "images"), _tensor(labels, "labels")
    if images is not None and labels is not None and len(images) != len(labels):
        raise VitreousError(f"{len(images)} images and {len(labels)} labels: give one label per image")
    findings: list[Finding] = []
    not_measured: list[Unmeasured] = []
    healthy: list[str] = []
    with restored_global_state(next((p.device for p in model.parameters()), torch.device("cpu"))):
        tested = ModelUnderTest(
            model,
            images,
            labels,
            test_images=_tensor(test_images, "test_images"),
            input_shape=input_shape,
            num_classes=num_classes or 0,
            fresh=fresh,
            factory=factory,
            seed=seed,
        )
        for name, check in CHECKS:
            try:
                found = list(check(tested))
            except NotMeasured as error:
                not_measured.append(Unmeasured(name, str(error)))
            except Exception as error:  # a check that fails on this model must not stop the others
                not_measured.append(Unmeasured(name, f"{type(error).__name__}: {error}"))
            else:
                findings += found
                healthy += [] if found else [name]
    return Diagnosis(tuple(findings), tuple(not_measured), tuple(healthy), time.perf_counter() - start)


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
