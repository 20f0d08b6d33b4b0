"""Are the outputs what a loss function expects, and the same each time?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from vitreous.doctor.attention_ops import LinearOp, layer_op, linear_feeding
from vitreous.doctor.constructors import constructor_values
from vitreous.doctor.findings import Finding, Level, NotMeasured, finding, quoted
from vitreous.doctor.graph import FUSED_NORMS, Graph, is_dropped, origin
from vitreous.doctor.model_io import kind_of, logits_in, max_moved
from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import DROPOUT, Deterministic, seed_everything
from vitreous.doctor.recording import VIEWS, Node, record_forward, without_views
from vitreous.reports.formats import number, percent, plural

#: Operation → its name. Sigmoid and softmax have findings of their own.
ACTIVATIONS = {
    "relu": "ReLU", "gelu": "GELU", "tanh": "tanh", "silu": "SiLU", "elu": "ELU", "leaky_relu": "LeakyReLU",
    "hardtanh": "a clipped linear unit", "softplus": "softplus", "mish": "Mish", "clamp_min": "ReLU",
}  # fmt: skip


def not_finite(tested: ModelUnderTest) -> Iterator[Finding]:
    """NaN or infinity in the outputs for ordinary inputs."""
    with tested.borrowed() as model:
        outputs = tested.outputs(model, tested.batch)
    share = float((~torch.isfinite(outputs)).float().mean())
    if share:
        yield finding(
            "outputs-not-finite", f"{percent(share)} of the outputs for {len(tested.batch)} images are NaN or infinite."
        )


def not_a_classifier(tested: ModelUnderTest) -> Iterator[Finding]:
    """One row of class scores per image."""
    images = tested.images if tested.fixed_batch_size else tested.images[:3]
    with tested.borrowed() as model, torch.no_grad(), Deterministic():
        output = model(images.clone())
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else tuple(logits_in(output).shape)
    shape = shape[:2] if set(shape[2:]) == {1} else shape
    if len(shape) > 2 or shape[:1] != (len(images),) or not any(True for _ in tested.model.parameters()):
        yield finding(
            "not-a-classifier",
            f"for {plural(len(images), 'image')} of shape {tested.shape} the output has the shape {shape}, from"
            f" {plural(sum(parameter.numel() for parameter in tested.model.parameters()), 'parameter')}; a classifier"
            " returns one row of scores per image.",
        )
    elif (stated := _stated_classes(tested)) is not None and len(shape) == 2 and shape[1] not in (*stated.values(), 1):
        name, count = next(iter(stated.items()))
        yield finding(
            "not-a-classifier",
            f"the output has {plural(shape[1], 'value')} per image, but the constructor was given {name}={count}: these"
            " may be features, not scores.",
        )


def _stated_classes(tested: ModelUnderTest) -> dict[str, int] | None:
    """Return the constructor's arguments that state the number of classes."""
    stated = {
        name: value
        for name, value in constructor_values(tested.constructor).items()
        if name.rpartition(".")[2].lower() in ("num_classes", "n_classes", "nb_classes", "num_labels", "classes")
    }
    return {name: value for name, value in stated.items() if type(value) is int and value > 1} or None


def input_modified(tested: ModelUnderTest) -> Iterator[Finding]:
    """Run the model and compare its input with what it was before."""
    images = tested.images if tested.fixed_batch_size else tested.images[:2]
    given = images.clone()
    with tested.borrowed() as model, torch.no_grad(), Deterministic():
        model(given)
    changed = float((given != images).float().mean())
    if changed:
        yield finding(
            "input-modified",
            f"forward changes the images it is given: {percent(changed)} of their values, by up to"
            f" {number(float((given - images).abs().max()))}; a second call with the same tensor gets other images.",
        )


def activation_on_logits(tested: ModelUnderTest) -> Iterator[Finding]:
    """The last operation must be the linear layer: what comes after it limits the logits."""
    output = tested.recording.output
    if output is None:
        raise NotMeasured("the logits could not be found in the recording")
    last = origin(output)
    normed = last.op in FUSED_NORMS
    inner = origin(last.parents[0]) if normed else last
    is_activated = inner.op in ACTIVATIONS and linear_feeding(inner.parents[0]) is not None
    if is_activated or (normed and linear_feeding(inner) is not None):
        with tested.borrowed(randomised=True) as model:
            outputs = tested.outputs(model, tested.batch)
        through = [ACTIVATIONS[inner.op]] * is_activated + ["a norm over the classes"] * normed
        yield finding(
            "activation-on-logits",
            f"the logits pass through {' and '.join(through)}: with all parameters randomised, {outputs.numel()}"
            f" outputs lie between {number(float(outputs.min()))} and {number(float(outputs.max()))}, and"
            f" {percent(float((outputs == 0).float().mean()))} of them are exactly 0.",
            module=last.module,
        )
    with tested.borrowed(training=True) as model:
        images = tested.images[: tested.num_recorded].clone()
        training = record_forward(model, images, unregistered_tensors(model))
    last = without_views(training.output) if training.output is not None else output
    if is_dropped(last):
        yield finding(
            "dropout-on-logits",
            f"in training mode dropout is the last operation: it sets some of the {last.tensor.shape[-1]} logits to 0"
            " at random.",
            module=last.module,
        )


def probabilities(tested: ModelUnderTest) -> Iterator[Finding]:
    """Rows that are probabilities; or, with random parameters, outputs all within (0, 1): a sigmoid."""
    with tested.borrowed(randomised=True) as model:
        outputs = tested.outputs(model, tested.batch)
    if tested.output_kind == "probabilities":
        what = f"every row sums to 1 (within {float((outputs.sum(1) - 1).abs().max()):.0e})"
    elif tested.output_kind == "logits" and bool(((outputs > 0) & (outputs < 1)).all()) and outputs.numel() >= 64:
        what = "every output is between 0 and 1, whatever the parameters"
    else:
        return
    yield finding(
        "probabilities-not-logits",
        f"the model returns probabilities where logits are expected: for {len(outputs)} images, {what}.",
    )


def log_probabilities_returned(tested: ModelUnderTest) -> Iterator[Finding]:
    with tested.borrowed() as model:
        outputs = tested.outputs(model, tested.batch)
    if tested.output_kind == kind_of(outputs) == "log-probabilities":
        yield finding(
            "log-probabilities",
            f"the model returns log-probabilities, not logits: for {len(outputs)} images all outputs are at most 0 and"
            f" their exponentials sum to 1 (within {float((outputs.exp().sum(1) - 1).abs().max()):.0e}).",
        )


def linear_after_linear(tested: ModelUnderTest) -> Iterator[Finding]:
    """A linear layer's output that enters another linear layer through views only, in a recorded forward pass."""
    pairs: dict[Level, dict[tuple[str, str], tuple[int, int, int]]] = {"warning": {}, "note": {}}
    for node in tested.recording.nodes:
        second = layer_op(node)
        first = linear_feeding(second.data) if second else None
        if first and second and _feeds_only(tested.graph, _part(first, second), second.weight):
            # of a layer that is split, only the part that is read
            widths = first.in_features, min(first.out_features, second.in_features), second.out_features
            # a bottleneck that saves parameters (factorised layers) may be there on purpose
            saves = widths[1] * (widths[0] + widths[2]) < widths[0] * widths[2]
            level: Level = "note" if saves else "warning"
            pairs[level][first.weight, second.weight] = widths
    for level, found in pairs.items():
        if found:
            (first_weight, second_weight), (into, middle, out) = next(iter(found.items()))
            more = f", and {plural(len(found) - 1, 'more pair')}" if len(found) > 1 else ""
            yield finding(
                "linear-after-linear",
                f"`{_layer(first_weight)}` ({into} → {middle}) feeds `{_layer(second_weight)}` ({middle} → {out}) with"
                f" nothing between{more}: {into * middle + middle * out:,} weights do the work of one layer's"
                f" {into * out:,}.",
                level=level,
            )


def _part(first: LinearOp, second: LinearOp) -> Node:
    """Return the part of the first layer's features that the second one reads, where they are split."""
    node = second.data
    while node is not first.output and node.parents:
        parent = node.parents[0]
        is_split = node.op in ("split", "split_with_sizes", "unsafe_split", "slice")
        if is_split and node.tensor.shape[-1] < parent.tensor.shape[-1] and node.tensor.ndim == parent.tensor.ndim:
            return node
        node = parent
    return first.output


def _feeds_only(graph: Graph, node: Node, weight: str) -> bool:
    """Whether nothing else reads this output; one that is also a skip connection cannot be merged with a layer."""
    for child in graph.children.get(id(node), []):
        linear = layer_op(child)
        is_bias = child.op == "add" and any(without_views(parent).tensor.ndim == 1 for parent in child.parents)
        is_bias = is_bias or (child.op == "add" and linear_feeding(child) is not None)  # the sum of two layers
        if linear is not None and linear.weight == weight:
            continue
        if not ((child.op in VIEWS or is_bias) and _feeds_only(graph, child, weight)):
            return False
    return True


def _layer(weight: str) -> str:
    return weight.removesuffix(".weight").removesuffix("_weight") or weight


def dropout_in_eval(tested: ModelUnderTest) -> Iterator[Finding]:
    """Dropout masks drawn although the model is in eval mode."""
    drawn = [node for node in tested.recording.nodes if node.op in DROPOUT]
    if drawn:
        modules = sorted({node.module or "forward" for node in drawn})
        moved, _ = _moved_between_calls(tested, nullcontext())
        yield finding(
            "dropout-in-eval",
            f"dropout is active in eval mode: {plural(len(drawn), 'mask')} per forward pass (in {quoted(modules)});"
            f" between two calls, up to {percent(moved)} of the probability moves.",
        )


def drops_everything(tested: ModelUnderTest) -> Iterator[Finding]:
    """Dropout that leaves (almost) nothing in training mode."""
    with tested.borrowed(training=True) as model:
        images = tested.images[: tested.num_recorded].clone()
        training = record_forward(model, images, unregistered_tensors(model))
    rates = [(rate, node) for node in training.nodes if (rate := dropout_rate(node)) is not None]
    rate, node = max(rates, key=lambda pair: pair[0], default=(0.0, None))
    if node is not None and rate >= 0.7:  # rates in use end at 0.5; 0.8 and 0.9 are meant as the share that is kept
        yield finding(
            "dropout-too-high",
            f"in training mode dropout in `{node.module or 'forward'}` sets {percent(rate)} of the values to 0, of its"
            f" {tuple(node.tensor.shape)} input.",
            module=node.module,
        )


def dropout_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Change the rate of each dropout layer: in training, with the same random numbers, the outputs must change."""
    images = tested.batch if tested.fixed_batch_size else tested.batch[:2]
    with tested.borrowed(randomised=True, training=True) as model:
        layers = {name: module for name, module in model.named_modules() if isinstance(module, _DropoutNd) and module.p}

        def outputs() -> Tensor:
            seed_everything(tested.seed)
            return tested.outputs(model, images, mode=nullcontext())

        if not layers:
            return
        before = outputs()
        if not torch.equal(before, outputs()):
            raise NotMeasured("the outputs cannot be repeated with the same random numbers")
        without = []
        for name, layer in layers.items():
            if tested.is_late:
                raise NotMeasured("there was no time to change all dropout layers")
            rate, layer.p = layer.p, 0.25 if layer.p > 0.4 else 0.5  # not 0, which would draw no random numbers
            if torch.equal(before, outputs()):
                without.append(name)
            layer.p = rate
    if without:
        yield finding(
            "dropout-without-effect",
            f"{len(without)} of {plural(len(layers), 'dropout layer')} with a rate above 0 ({quoted(without)}) changed"
            f" nothing in training mode: with another rate, the outputs of {plural(len(images), 'image')} are the same"
            " numbers.",
            module=without[0].rpartition(".")[0],
        )


def dropout_rate(node: Node) -> float | None:
    """Return the share that this operation sets to 0; None for other operations."""
    if node.op == "bernoulli" and len(node.arguments) > 1 and isinstance(node.arguments[1], float):
        return 1 - node.arguments[1]
    if node.op == "native_dropout" and node.result == 0:
        return float(node.arguments[1])
    # torch replaces a dropout of 1 by a product with one zero
    others = [parent for parent in node.parents if not parent.from_input]
    if node.op == "mul" and len(others) == len(node.parents) - 1 == 1 and others[0].op in ("zeros", "leaf"):
        is_zero = others[0].kind in ("", "constant") and others[0].tensor.ndim == 0 and float(others[0].tensor) == 0
        return 1.0 if is_zero else None
    return None


def not_deterministic(tested: ModelUnderTest) -> Iterator[Finding]:
    """Outputs that vary, dropout aside: random numbers drawn in forward, or state kept from earlier calls."""
    moved, same_seed = _moved_between_calls(tested, Deterministic(only_dropout=True))
    if moved > 1e-6 or same_seed > 1e-6:
        yield finding(
            "nondeterministic-eval",
            f"in eval mode the outputs for the same images differ between two calls: up to"
            f" {percent(max(moved, same_seed))} of the probability moves"
            f"{', even with the same random seed' if same_seed > 1e-6 else ''}.",
        )


def _moved_between_calls(tested: ModelUnderTest, mode: AbstractContextManager) -> tuple[float, float]:
    """Return the probability moved between two random seeds, and between two calls with the same seed."""
    outputs = []
    with tested.borrowed(randomised=True) as model:
        for seed in (tested.seed, tested.seed + 1, tested.seed + 1):
            seed_everything(seed)
            outputs.append(tested.log_probabilities(model, tested.batch, mode=mode))
    first, second, again = outputs
    return max_moved(first, second), max_moved(second, again)
