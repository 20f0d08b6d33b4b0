"""Does training reach every parameter?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from vitreous.doctor.attention_ops import layer_op
from vitreous.doctor.checks.layout import heads_scrambled
from vitreous.doctor.checks.norms import norm_axis
from vitreous.doctor.class_tokens import class_tokens
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import scalings
from vitreous.doctor.recording import without_views
from vitreous.reports.formats import plural


def training_mode_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """What runs in eval mode must run in training mode too."""
    images = tested.batch if tested.fixed_batch_size else tested.batch[:2]
    with tested.borrowed(training=True) as model, torch.no_grad():
        try:
            model(images.clone())
            return
        except Exception as error:
            message = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            failed = f"{type(error).__name__}: {message}"
    yield finding(
        "training-mode-fails",
        f"{plural(len(images), 'image')} can be predicted in eval mode, but after model.train() the forward pass stops"
        f" with {failed}",
    )


def backward_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """The outputs must have a gradient, in training mode."""
    images = tested.batch if tested.fixed_batch_size else tested.batch[:2]
    with tested.borrowed(training=True) as model:
        outputs = tested.outputs(model, images, grad=True)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not outputs.requires_grad or not trainable:
            return  # parameters-without-gradient
        try:
            torch.autograd.grad(outputs.sum(), trainable, allow_unused=True)
            return
        except RuntimeError as error:
            message = str(error).split(". Hint")[0]
    yield finding(
        "backward-fails",
        f"the forward pass of {plural(len(images), 'image')} works, but its gradient cannot be computed: {message}.",
    )


def class_token_untrained(tested: ModelUnderTest) -> Iterator[Finding]:
    """Tokens that are prepended to those of every image and get no gradient."""
    untrained = _untrained_class_tokens(tested)
    if untrained is None:
        raise NotMeasured("no class token was observed")
    for name, reason in untrained.items():
        yield finding(
            "class-token-untrained",
            f"the class token `{name}` is {reason}: its gradient over {len(tested.batch)} images is 0, so training"
            " leaves it at its initial value.",
        )


def parameters_without_gradient(tested: ModelUnderTest) -> Iterator[Finding]:
    """Parameters without gradient in eval and in training mode."""
    if tested.ignores_image:
        raise NotMeasured("the image does not reach the output, which includes this")
    if (count := _num_untrained(tested)) is not None:
        yield finding(
            "parameters-without-gradient",
            f"none of {count} parameter tensors gets a gradient, neither in training nor in eval mode: the output does"
            " not require one. The forward pass runs under torch.no_grad(), or its result is detached.",
            level="broken",
        )
        return
    dead = _without_gradient(tested) - set(_untrained_class_tokens(tested) or {})
    # where merged heads are mixed up, a class token may read some of them only
    if not dead and not _is_found(heads_scrambled, tested) and (parts := _dead_parts(tested)):
        name, (start, stop, rows) = next(iter(parts.items()))
        yield finding(
            "parameters-without-gradient",
            f"rows {start} to {stop - 1} of {rows} of {len(parts)} weights (first: `{name}`) get no gradient from"
            f" {len(tested.batch)} images, even with all parameters randomised: what is computed there, the queries,"
            " keys or values for example, is not used.",
            module=name.rpartition(".")[0],
        )
    if dead:
        named = dict(tested.model.named_parameters())
        size = sum(named[name].numel() for name in dead)
        # one vector that is not used is a spare token (for masked training), not a forgotten layer
        spare = all(named[name].numel() == named[name].shape[-1] and named[name].ndim > 1 for name in dead)
        single = dead <= _of_single_keys(tested)
        yield finding(
            "parameters-without-gradient",
            f"{len(dead)} of {len(named)} parameter tensors ({quoted(sorted(dead))}; {plural(size, 'value')}) get no"
            f" gradient from {len(tested.batch)} images, even with all parameters randomised"
            + (": their attention has a single token to read at this image size." if single else "."),
            level="note" if spare or single else None,
            module=min(dead).rpartition(".")[0],
        )


def _num_untrained(tested: ModelUnderTest) -> int | None:
    """Return the number of parameters if the output requires no gradient although they do."""
    for training in (False, True):
        with tested.borrowed(training=training) as model:
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            if not trainable or tested.outputs(model, tested.batch[:2] if not tested.fixed_batch_size else tested.batch,
                                               grad=True).requires_grad:  # fmt: skip
                return None
    return len(trainable)


def _untrained_class_tokens(tested: ModelUnderTest) -> dict[str, str] | None:
    """Return name → reason for the class tokens that are not trained; None where no class token was observed."""
    tokens = class_tokens(tested)
    if not tokens:
        return None
    parameters = dict(tested.model.named_parameters())
    without = _without_gradient(tested)
    reasons = {}
    for name, kind in tokens.items():
        if kind != "parameter":
            reasons[name] = f"a {'plain tensor' if kind == 'plain' else kind}, not a parameter"
        elif name in parameters and not parameters[name].requires_grad and not _is_mostly_frozen(tested.model):
            reasons[name] = "a frozen parameter (requires_grad=False)"
        elif name in without:
            reasons[name] = "a parameter without effect on the output (detached or unused)"
    return reasons


def _is_mostly_frozen(model: nn.Module) -> bool:
    """Whether most parameters are frozen: a backbone with a new head, as in linear probing."""
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return 2 * trainable < sum(parameter.numel() for parameter in model.parameters())


def _without_gradient(tested: ModelUnderTest) -> set[str]:
    """Return the trainable parameters whose gradient is missing or exactly 0, in eval and in training mode.

    Exactly: biases of keys, which softmax ignores, still get the rounding noise of their terms, a disconnected
    parameter gets nothing. Those biases are exempt by name as well, should the noise cancel.
    """
    return {name for name, used in tested.rows_with_gradient.items() if not bool(used.any())} - _key_biases(tested)


def _is_found(check: Callable[[ModelUnderTest], Iterator[Finding]], tested: ModelUnderTest) -> bool:
    try:
        return next(check(tested), None) is not None
    except NotMeasured:
        return False


def _dead_parts(tested: ModelUnderTest) -> dict[str, tuple[int, int, int]]:
    """Return name → (start, stop, rows) of the linear layers of which a sixth of the outputs or more is never used.

    One block of rows: single units of a ReLU may be inactive for all images.
    """
    layers = {linear.weight for node in tested.recording.nodes if (linear := layer_op(node)) is not None}
    if not _is_found(norm_axis, tested):  # with one weight per token, those of tokens that are not read are unused
        layers |= {norm.weight for norm in scalings(tested.recording.nodes)}  # features that nothing behind it reads
    layers -= _of_single_keys(tested)
    used = {name: rows for name, rows in tested.rows_with_gradient.items() if name in layers and len(rows) >= 6}
    found = {}
    for name, rows in used.items():
        unused = (~rows).nonzero().flatten().tolist()
        if unused and 6 * len(unused) >= len(rows) and unused[-1] - unused[0] + 1 == len(unused) < len(rows):
            found[name] = (unused[0], unused[-1] + 1, len(rows))
    return found


def _of_single_keys(tested: ModelUnderTest) -> set[str]:
    """Return the parameters that scores of a single key are computed with: its weight is 1, whatever they are."""
    softmaxes = [node for node in tested.recording.nodes if node.op in ("_softmax", "_safe_softmax")]
    scores = [node.parents[0] for node in softmaxes if node.tensor.shape[node.arguments[1]] == 1]
    found: set[str] = set()
    seen: set[int] = set()
    while scores:
        node = scores.pop()
        if id(node) not in seen:
            seen.add(id(node))
            found |= {node.name} if node.kind == "parameter" else set()
            scores += node.parents
    return found


def _key_biases(tested: ModelUnderTest) -> set[str]:
    """Return the biases of keys, and of scores themselves (attention pooling): softmax ignores both."""
    try:
        nodes = [op.scores.key_node if op.scores else without_views(op.logits_node) for op in tested.attention]
    except NotMeasured:
        return set()
    return {without_views(node.parents[0]).name for node in nodes if node.op == "addmm"}
