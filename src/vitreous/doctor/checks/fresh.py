"""Can a freshly initialised model learn at all?"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.doctor.attention_ops import layer_op, patch_layer
from vitreous.doctor.checks.outputs import activation_on_logits
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.reports.formats import number, plural

OVERFIT_STEPS = 200
OVERFIT_IMAGES = 32
OVERFIT_SECONDS = 20.0  # of CPU time
PATIENCE = 60  # steps without progress after which the next learning rate is tried; the last one gets all steps
_ADDITIONS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.add_, torch.Tensor.__iadd__}
LEARNING_RATES = (3e-3, 1e-3, 3e-4)  # small ViTs learn fastest with the first, deep and post-norm ones need the others


def first_loss(tested: ModelUnderTest) -> Iterator[Finding]:
    """An untrained classifier should have a loss of about ln(classes)."""
    _require_fresh(tested)
    with tested.borrowed() as model:
        loss = float(F.nll_loss(tested.log_probabilities(model, tested.images), tested.labels))
    expected = math.log(tested.num_classes)
    # Measured on fresh ViTs, 30 seeds each: torch's default head is at most 0.13 nats above, a Xavier one 0.7 on
    # average and at most 1.55 (2 classes). Twice that is not caused by the seed.
    if abs(loss - expected) > 3:
        yield finding(
            "first-loss",
            f"the first loss is {number(loss)}; an untrained model should have ln({tested.num_classes}) ="
            f" {number(expected)}.",
        )


def weight_sizes(tested: ModelUnderTest) -> Iterator[Finding]:
    """Compare the standard deviation of every linear layer's initial weights with 1/√(inputs)."""
    named = dict(tested.model.named_parameters())
    ratios: dict[str, float] = {}
    for node in tested.recording.nodes:
        layer = layer_op(node) or patch_layer(node)
        if layer is not None and layer.weight in named and layer.in_features >= 8:
            ratios[layer.weight] = float(named[layer.weight].detach().std()) * layer.in_features**0.5
    if len(ratios) < 4:
        raise NotMeasured("fewer than four linear layers were observed")
    # Of 1/√inputs, the usual initialisations have 0.05 (std 0.02, width 8) to 1.4 (Xavier, Kaiming); last layers of
    # branches and heads may start at zero, which is less than half of the layers.
    large = [name for name, ratio in ratios.items() if ratio > 2.5]
    small = [name for name, ratio in ratios.items() if ratio < 0.01]
    tiny = [name for name in small if ratios[name]]  # zeros may be on purpose, tiny numbers are not
    is_small = 5 * len(small) >= 3 * len(ratios) or 4 * len(tiny) >= len(ratios)
    if not is_small:  # no trained model has such weights
        _require_fresh(tested)
    for names, id, is_found in (
        (large, "weights-too-large", 5 * len(large) >= 3 * len(ratios)),
        (small, "weights-too-small", is_small),
    ):
        if is_found:
            typical = sorted(ratios[name] for name in names)[len(names) // 2]
            yield finding(
                id,
                f"the initial weights of {len(names)} of {len(ratios)} linear layers, first `{names[0]}`, have"
                f" {number(typical)} times the standard deviation 1/√inputs that preserves the size of a signal"
                f" (`{names[0]}`: {number(float(named[names[0]].detach().std()))}).",
                module=names[0].rpartition(".")[0],
            )


def activations_with_depth(tested: ModelUnderTest) -> Iterator[Finding]:
    sizes, _ = _through_blocks(tested)
    yield from _trend("activations", sizes, f"from a root mean square of {number(sizes[0])} after the first block")


def gradients_with_depth(tested: ModelUnderTest) -> Iterator[Finding]:
    _, norms = _through_blocks(tested)
    if 0.0 in norms:
        raise NotMeasured("the first blocks get no gradient at all, which parameters-without-gradient reports")
    yield from _trend("gradients", norms[::-1], f"from a norm of {number(norms[-1])} after the last block")


def _trend(what: str, sizes: list[float], start_text: str) -> Iterator[Finding]:
    # Healthy stacks of width 32, 2 to 24 deep, 3 to 13 seeds each: activations grow up to 24 times (pre-norm),
    # gradients change by 1/100 (post-norm) to 13 times. 1000 is far outside.
    finite = all(math.isfinite(size) for size in sizes)
    ratio = sizes[-1] / sizes[0] if sizes[0] else math.inf
    if finite and 1e-3 <= ratio <= 1e3:
        return
    verb, change = ("vanish", "shrink") if finite and ratio < 1 else ("explode", "grow")
    yield finding(
        f"{what}-{verb}",
        f"{what} {verb} with depth: {start_text} they {change} to {number(sizes[-1])} after the"
        f" {'first' if what == 'gradients' else 'last'} of {len(sizes)} blocks.",
    )


def cannot_overfit(tested: ModelUnderTest) -> Iterator[Finding]:
    """A model that cannot memorise a few images cannot learn anything else."""
    if tested.fresh is False:
        raise NotMeasured("the model is trained already")
    count = len(tested.images[:OVERFIT_IMAGES])
    if count < 8:
        raise NotMeasured(f"only {plural(count, 'image')} can be used at once")
    if any(found.id == "activation-on-logits" for found in activation_on_logits(tested)):
        raise NotMeasured("the logits are limited by an activation, which includes this")
    tested.require_repeatable()  # and finite
    if tested.ignores_image:
        raise NotMeasured("the output does not depend on the image, which includes this")
    deadline = min(time.thread_time() + OVERFIT_SECONDS, tested.deadline)
    tried: list[tuple[float, int, float]] = []  # loss, correct predictions, learning rate
    for learning_rate in LEARNING_RATES:
        loss, num_correct = _overfit(tested, learning_rate, deadline)
        if _fits(loss, num_correct / count):
            return
        tried.append((loss, num_correct, learning_rate))
    loss, num_correct, learning_rate = min(tried)
    yield finding(
        "cannot-overfit",
        f"the model cannot memorise {count} images: after {OVERFIT_STEPS} steps of AdamW the loss is {number(loss)} and"
        f" {num_correct} of {count} predictions are correct, at the best of {len(tried)} learning rates"
        f" ({learning_rate:g}); a working model gets below 0.5.",
    )


def _fits(loss: float, accuracy: float) -> bool:
    # the loss too: bounded or scaled-down logits can have the right order and never become confident
    return loss < 0.5 and accuracy >= 0.95


def _overfit(tested: ModelUnderTest, learning_rate: float, deadline: float) -> tuple[float, int]:
    """Train until the model fits or the steps are used up; return its loss and number of correct predictions."""
    images, labels = tested.images[:OVERFIT_IMAGES], tested.labels[:OVERFIT_IMAGES]
    with tested.borrowed(training=True) as model:
        seed_everything(tested.seed)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise NotMeasured("no parameter requires a gradient")
        optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
        first_loss, loss, num_correct = math.inf, math.inf, 0
        for step in range(OVERFIT_STEPS):
            if time.thread_time() >= deadline:
                raise NotMeasured(f"{step} of {OVERFIT_STEPS} steps took all the CPU time that a diagnosis may take")
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1, (step + 1) / 10)
            log_probabilities = tested.log_probabilities(model, images, mode=nullcontext(), grad=True)
            batch_loss = F.nll_loss(log_probabilities, labels)
            first_loss = float(batch_loss) if step == 0 else first_loss
            optimizer.zero_grad()
            batch_loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % 10 == 9 or step == OVERFIT_STEPS - 1:
                model.eval()
                log_probabilities = tested.log_probabilities(model, images)
                model.train()
                loss = float(F.nll_loss(log_probabilities, labels))
                loss = loss if math.isfinite(loss) else math.inf
                num_correct = int((log_probabilities.argmax(1) == labels).sum())
                no_progress = step + 1 >= PATIENCE and not loss < 0.97 * first_loss
                if _fits(loss, num_correct / len(labels)) or (no_progress and learning_rate != LEARNING_RATES[-1]):
                    break
    return loss, num_correct


def _require_fresh(tested: ModelUnderTest) -> None:
    if tested.fresh is None:
        raise NotMeasured("it is unclear whether the model is fresh")
    if not tested.fresh:
        raise NotMeasured("the model is trained already")


def _through_blocks(tested: ModelUnderTest) -> tuple[list[float], list[float]]:
    """Return the root mean square of each block's output, and the norm of the gradient of the last block there.

    The gradient is that of a random weighted sum: the loss sends no gradient back through a head that starts at zero.
    Its norm, not its mean: the last block may return the class token alone, so that the gradient before it is spread
    over many tokens.
    """
    _require_fresh(tested)
    if "through_blocks" in tested.results:
        return tested.results["through_blocks"]
    tested.require_repeatable()  # and finite
    with tested.borrowed() as model:
        outputs = _block_outputs(tested, model) or _residual_sums(tested, model)
        if len(outputs) < 2:
            raise NotMeasured("neither a stack of blocks nor residual connections were found")
        if not outputs[-1].requires_grad:
            raise NotMeasured("no gradient passes through the blocks")
        gradients = tested.gradients(outputs[-1], outputs, offset=9)
    sizes = [float(output.detach().pow(2).mean().sqrt()) for output in outputs]
    norms = [0.0 if gradient is None else float(gradient.norm()) for gradient in gradients]
    tested.results["through_blocks"] = sizes, norms
    return sizes, norms


def _few(tested: ModelUnderTest) -> Tensor:
    return tested.batch if tested.fixed_batch_size else tested.batch[:8]


def _block_outputs(tested: ModelUnderTest, model: nn.Module) -> list[Tensor]:
    """Return the outputs of the longest list of equal modules that run one after the other; empty if there is none.

    Heads in a list all receive the same tensor, so they are no such stack.
    """
    longest: list[Tensor] = []
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        if len({type(child) for child in module}) > 1 or next(module[0].parameters(), None) is None:
            continue
        inputs: list[int] = []
        outputs: list[Tensor] = []

        def remember(_module: nn.Module, given: tuple[object, ...], output: object,
                     inputs: list[int] = inputs, outputs: list[Tensor] = outputs) -> None:  # fmt: skip
            tensor = output[0] if isinstance(output, list | tuple) and output else output
            if isinstance(tensor, Tensor):
                inputs.append(id(given[0]) if given else 0)
                outputs.append(tensor)

        with ExitStack() as hooks:
            for block in module:
                hooks.callback(block.register_forward_hook(remember).remove)
            tested.outputs(model, _few(tested), grad=True)
        in_turn = len(outputs) == len(module) == len(set(inputs))
        if in_turn and len({(output.ndim, output.shape[-1]) for output in outputs}) == 1:
            longest = max(longest, outputs, key=len)
    return longest


class _Sums(TorchFunctionMode):
    """Keeps every sum of two activations of the same shape: the stream of a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ADDITIONS and all(isinstance(a, Tensor) and a.requires_grad for a in args):
            one, two = args
            self.found += [result] if one.shape == two.shape and result.ndim == 3 else []
        return result


def _residual_sums(tested: ModelUnderTest, model: nn.Module) -> list[Tensor]:
    """Return the residual sums of the most frequent shape, in order."""
    with _Sums() as sums:
        tested.outputs(model, _few(tested), grad=True)
    shapes = Counter(tuple(total.shape) for total in sums.found)
    return [total for total in sums.found if tuple(total.shape) == shapes.most_common(1)[0][0]]
