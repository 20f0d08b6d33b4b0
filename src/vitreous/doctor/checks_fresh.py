"""Can a freshly made model learn at all?"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import log_probabilities, number
from vitreous.doctor.subject import Patient, seed_everything

OVERFIT_IMAGES = 64
OVERFIT_STEPS = 200
OVERFIT_SECONDS = 20.0
PATIENCE = 60  # steps without progress after which the next learning rate is tried; the last one gets them all
LEARNING_RATES = (3e-3, 1e-3, 3e-4)  # small ViTs learn fastest with the first, deep and post-norm ones need the others


def first_loss(patient: Patient) -> Iterator[Finding]:
    """Before training, a classifier should know nothing: a loss of ln(classes)."""
    _require_fresh(patient)
    with patient.borrowed() as model:
        answers = patient.log_probabilities(model, patient.images)
    loss, expected = float(F.nll_loss(answers, patient.labels)), math.log(patient.num_classes)
    # Logits of some spread cost something at first. Measured on fresh ViTs, 30 seeds each: torch's default head at most
    # 0.13 nats, a Xavier one 0.7 on average and at most 1.55 (2 classes). Twice that is no accident of a seed.
    if abs(loss - expected) > 3:
        yield Finding(
            "first-loss", "warning",
            f"the first loss is {number(loss)}; a model that knows nothing yet has ln({patient.num_classes}) ="
            f" {number(expected)}.",
            "It starts out sure of wrong answers (or the number of classes does not fit), and must unlearn them first.",
            "Start the last layer small (std 0.02, or zeros as the paper does) and put a LayerNorm before it.",
        )  # fmt: skip


def activations_with_depth(patient: Patient) -> Iterator[Finding]:
    sizes, _ = _through_blocks(patient)
    yield from _trend("activations", sizes, f"from a root mean square of {number(sizes[0])} after the first block")


def gradients_with_depth(patient: Patient) -> Iterator[Finding]:
    _, norms = _through_blocks(patient)
    yield from _trend("gradients", norms[::-1], f"from a norm of {number(norms[-1])} after the last block")


def _trend(what: str, sizes: list[float], start_in_words: str) -> Iterator[Finding]:
    """Measured on healthy stacks of width 32, 2 to 24 deep, 3 to 13 seeds each: activations grow up to 24 times
    (pre-norm), gradients change by 1/100 (post-norm) to 13 times. 1000 is far outside."""
    start, end = sizes[0], sizes[-1]
    finite = all(math.isfinite(size) for size in sizes)
    ratio = end / start if start else math.inf
    if finite and 1e-3 <= ratio <= 1e3:
        return
    verb = "vanish" if finite and ratio < 1 else "explode"
    yield Finding(
        f"{what}-{verb}", "warning",
        f"{what} {verb} with depth: {start_in_words} they {'shrink' if verb == 'vanish' else 'grow'} to {number(end)}"
        f" after the {'first' if what == 'gradients' else 'last'} of {len(sizes)} blocks.",
        "Signals that shrink or grow with every block leave the early blocks untrained or make the late ones blow up.",
        "Residual connections around attention and MLP (x = x + f(norm(x))), a LayerNorm in each branch, and weights"
        " that keep the variance (Xavier, or std 0.02).",
    )  # fmt: skip


def cannot_overfit(patient: Patient) -> Iterator[Finding]:
    """A model that cannot learn 64 images by heart will not learn anything else."""
    if patient.fresh is False:
        raise NotMeasured("the model is trained already")
    images, labels = patient.images[:OVERFIT_IMAGES], patient.labels[:OVERFIT_IMAGES]
    if len(images) < 8:
        raise NotMeasured(f"only {len(images)} images were given")
    deadline = min(time.monotonic() + OVERFIT_SECONDS, patient.deadline)
    tried: list[tuple[float, float, float]] = []  # loss, accuracy, learning rate
    for learning_rate in LEARNING_RATES:
        result = _overfit(patient, images, labels, learning_rate, deadline)
        if result is None:
            raise NotMeasured(f"there was no time for {OVERFIT_STEPS} steps: a visit is kept under a minute")
        if _fits(*result):
            return
        tried.append((*result, learning_rate))
    loss, accuracy, learning_rate = min(tried)
    yield Finding(
        "cannot-overfit", "broken",
        f"the model cannot learn {len(images)} images by heart: in {OVERFIT_STEPS} steps of AdamW the loss comes"
        f" down to {number(loss)} and {accuracy * len(images):.0f} of {len(images)} are right, at the best of"
        f" {len(tried)} learning rates ({learning_rate:g}); a working model gets below 0.5.",
        "A model that cannot fit a handful of images does not fit a data set: the fault is in the model, not in the"
        " data or the patience.",
        "Look at the findings above first. Otherwise: is the output bounded or scaled down, is a part detached, does"
        " the signal from the image reach the head at all?",
    )  # fmt: skip


def _fits(loss: float, accuracy: float) -> bool:
    # the loss too: logits that are bounded or scaled down can be in the right order and still never be confident
    return loss < 0.5 and accuracy >= 0.95


def _overfit(
    patient: Patient, images: Tensor, labels: Tensor, learning_rate: float, deadline: float
) -> tuple[float, float] | None:
    """Loss and accuracy in eval mode when it fits or the steps are used up; None when time is."""
    with patient.borrowed(training=True) as model:
        seed_everything(patient.seed)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise NotMeasured("no parameter asks for a gradient")
        optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
        first, loss, accuracy = math.inf, math.inf, 0.0
        for step in range(OVERFIT_STEPS):
            if time.monotonic() >= deadline:
                return None
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1, (step + 1) / 10)
            outputs = patient.answers(model, images, dice=nullcontext(), grad=True)
            batch_loss = F.nll_loss(log_probabilities(outputs, patient.output_kind), labels)
            first = float(batch_loss) if step == 0 else first
            optimizer.zero_grad()
            batch_loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % 10 == 9 or step == OVERFIT_STEPS - 1:
                model.eval()
                answers = patient.log_probabilities(model, images)
                model.train()
                loss = float(F.nll_loss(answers, labels))
                accuracy = float((answers.argmax(1) == labels).float().mean())
                loss = loss if math.isfinite(loss) else math.inf
                no_progress = step + 1 >= PATIENCE and not loss < 0.97 * first
                if _fits(loss, accuracy) or (no_progress and learning_rate != LEARNING_RATES[-1]):
                    break
    return loss, accuracy


def _require_fresh(patient: Patient) -> None:
    if patient.fresh is not True:
        raise NotMeasured(
            "the model is trained already" if patient.fresh is False else "it is not known whether the model is fresh"
        )


def _through_blocks(patient: Patient) -> tuple[list[float], list[float]]:
    """Each block's output (its root mean square), and the gradient there (its norm) of a random reading of the last.

    The model's own loss would not do: a head that starts at zero sends no gradient back at all. The norm, since the
    last block may give out the class token alone, so that the gradient before it is spread over many tokens.
    """
    _require_fresh(patient)
    with patient.borrowed() as model:
        stacks = [
            list(module)
            for module in model.modules()
            if isinstance(module, nn.ModuleList | nn.Sequential)
            and len(module) > 1
            and len({type(child) for child in module}) == 1
            and any(True for _ in module[0].parameters())
        ]
        if not stacks:
            raise NotMeasured("no stack of like blocks (nn.ModuleList or nn.Sequential) was found")
        stack = max(stacks, key=len)
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: object, output: object) -> None:
            outputs.append(_first_tensor(output))

        hooks = [block.register_forward_hook(keep) for block in stack]
        try:
            patient.answers(model, patient.batch[:8], grad=True)
        finally:
            for hook in hooks:
                hook.remove()
        if len(outputs) != len(stack) or len({(output.ndim, output.shape[-1]) for output in outputs}) != 1:
            raise NotMeasured("the blocks do not run once each, one after the other")
        if not outputs[-1].requires_grad:
            raise NotMeasured("no gradient passes through the blocks")
        reading = torch.randn(outputs[-1].shape, generator=patient.generator(9)).to(outputs[-1].device)
        gradients = torch.autograd.grad((outputs[-1] * reading).sum(), outputs, allow_unused=True)
    sizes = [float(output.detach().pow(2).mean().sqrt()) for output in outputs]
    slopes = [0.0 if gradient is None else float(gradient.norm()) for gradient in gradients]
    return sizes, slopes


def _first_tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, list | tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    raise NotMeasured("the blocks do not return tensors")
