"""A doctor for anybody's ViT: it runs the model, measures, and says what is wrong and how to mend it.

    diagnosis = diagnose(model)              # or: images, labels, test_images of your own
    render(diagnosis)

It measures, it does not lint: nothing is read from source or class names. What it cannot observe it calls not measured.
"""

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
from vitreous.doctor.render import plain_text, render
from vitreous.doctor.subject import Patient, untouched_world
from vitreous.doctor.target import TargetFacts, target_model
from vitreous.errors import VitreousError

__all__ = [
    "CHECKS", "Diagnosis", "Finding", "NotMeasured", "TargetFacts", "diagnose", "plain_text", "render", "target_model",
]  # fmt: skip

Check = Callable[[Patient], Iterator[Finding]]

#: Every check under the name it bears in `healthy` and `not_measured`. A finding has its check's name, or a nearer one
#: (activations-vanish); a check that crashes over the patient is not measured.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("answers-not-finite", checks_outputs.not_finite),
    ("batch-dependence", checks_batch.batch_dependence),
    ("tokens-never-attend", checks_batch.tokens_never_attend),
    ("patches-without-influence", checks_patches.without_influence),
    ("border-cut-off", checks_patches.border_cut_off),
    ("patch-order-ignored", checks_patches.order_ignored),
    ("unregistered-tensors", checks_state.unregistered_tensors),
    ("class-token-untrained", checks_state.class_token_untrained),
    ("parameters-without-gradient", checks_state.parameters_without_gradient),
    ("state-lost-on-reload", checks_state.state_lost_on_reload),
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
    ("inputs-wrong-range", checks_data.inputs_range),
    ("inputs-not-normalised", checks_data.inputs_not_normalised),
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
    """Examine a classifier of images (B, C, H, W), or of patches (B, N, ...), and leave it as it was.

    `images` and `labels` (tensors or arrays) are training data as the model gets them; without, normalised inputs of
    `input_shape` are made up, and where that is not given, of the first shape that the model takes. `fresh` says
    whether the model is untrained (left out: read off its norm layers), `factory` builds another one like it, for the
    reload check.
    """
    if not isinstance(model, nn.Module):
        raise VitreousError(f"diagnose takes an nn.Module, not a {type(model).__name__}")
    start = time.perf_counter()
    given = _tensor(images, "images"), _tensor(labels, "labels")
    if given[0] is not None and given[1] is not None and len(given[0]) != len(given[1]):
        raise VitreousError(f"{len(given[0])} images and {len(given[1])} labels: give one label an image")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    findings: list[Finding] = []
    not_measured: list[Unmeasured] = []
    healthy: list[str] = []
    with untouched_world(device):
        patient = Patient(
            model, *given, input_shape=input_shape, num_classes=num_classes, fresh=fresh,
            test_images=_tensor(test_images, "test_images"), factory=factory, seed=seed,
        )  # fmt: skip
        for name, check in CHECKS:
            try:
                found = list(check(patient))
            except NotMeasured as error:
                not_measured.append(Unmeasured(name, str(error)))
                continue
            except Exception as error:  # whatever the patient does, the doctor goes on
                not_measured.append(Unmeasured(name, f"{type(error).__name__}: {error}"))
                continue
            findings += found
            if not found:
                healthy.append(name)
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
