"""Is the model built as intended: separate blocks, norms over the features, arguments that have an effect?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor.attention_ops import LinearOp, linear_op
from vitreous.doctor.checks.residual import stages
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_under_test import ModelUnderTest, unregistered_tensors
from vitreous.doctor.randomness import seed_everything
from vitreous.doctor.recording import Node, record_forward
from vitreous.reports.formats import plural


def block_reused(tested: ModelUnderTest) -> Iterator[Finding]:
    """Linear layers applied to something that was computed with the same layer."""
    graph = tested.graph
    uses: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if (linear := linear_op(node)) is not None:
            uses.setdefault(linear.weight, []).append(node)
    if not uses:
        raise NotMeasured("no linear layer was observed")
    chains = {name: _chain(graph, nodes) for name, nodes in uses.items() if len(nodes) > 1}
    reused = {name: length for name, length in chains.items() if length > 1}
    if len(reused) >= 2:  # one layer alone (a shared projection) is no block
        name, times = max(reused.items(), key=lambda item: item[1])
        yield finding(
            "block-reused",
            f"the same {len(reused)} of {len(uses)} linear layers, among them `{name}`, are applied {times} times one"
            " after the other: the depth has no parameters of its own.",
            module=uses[name][0].module,
        )


def _chain(graph: Graph, nodes: list[Node]) -> int:
    """Return how many of these nodes depend on each other, one after the other."""
    length, last = 1, nodes[0]
    for node in nodes[1:]:
        if graph.depends(node, last):
            length, last = length + 1, node
    return length


def norm_axis(tested: ModelUnderTest) -> Iterator[Finding]:
    """The norm before attention must run over the features, which are what the next linear layer sums over."""
    measured, joint = 0, None
    for start, _ in stages(tested):
        if start.op == "native_layer_norm":
            width = len(start.arguments[1])
            if width > 1 and start.tensor.ndim - width < 2:
                joint, measured = joint or start, measured + 1
                continue
            shape = (*start.tensor.shape[:-1], 1)
        elif start.op == "native_batch_norm" and start.tensor.ndim > 2:
            shape = (1, start.tensor.shape[1], *[1] * (start.tensor.ndim - 2))
        else:
            continue
        labels = torch.arange(torch.Size(shape).numel()).view(shape).expand(start.tensor.shape)
        for carried in tested.graph.follow(start, labels):
            if (linear := linear_op(carried.consumer)) is None or linear.data is not carried.node:
                continue
            rows = carried.labels.reshape(-1, carried.labels.shape[-1])
            measured += 1
            same_in_row = bool((rows == rows[:, :1]).all())
            if min(rows.shape) > 1 and same_in_row != (start.op == "native_layer_norm"):
                yield _wrong_axis(start, linear)
                return
            break
    if joint is not None:
        yield finding(
            "norm-axis",
            f"`{joint.module}` normalises {tuple(joint.arguments[1])} together, all tokens of an image at once: each"
            " token's scale depends on the others.",
            level="note",
            module=joint.module,
        )
    elif not measured:
        raise NotMeasured("no norm before an attention was observed")


def _wrong_axis(norm: Node, linear: LinearOp) -> Finding:
    axis = "the tokens" if norm.op == "native_layer_norm" else "one channel per token"
    return finding(
        "norm-axis",
        f"`{norm.module}` normalises over {axis} of its {tuple(norm.tensor.shape)} input; the linear layer behind it"
        f" sums over {linear.in_features} features, which is another axis.",
        module=norm.module,
    )


# --- constructor arguments -----------------------------------------------------------------------------------

#: Arguments that set a size, a number of layers or a rate: without effect, they are a mistake.
_SIZES = ("depth", "layer", "block", "head", "dim", "width", "hidden", "mlp", "ratio", "dropout", "drop", "patch",
    "embed", "class", "latent")  # fmt: skip


def argument_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model again with one argument changed, and compare everything that can be observed."""
    build, arguments = tested.constructor or (None, {})
    if build is None:
        raise NotMeasured("needs a class or function that can be called with other arguments")
    base = _signature(tested, build, arguments)
    if base is None:
        raise NotMeasured("the model could not be built a second time")
    without: list[str] = []
    tried = 0
    for name, value in _values(build, arguments).items():
        seen = [_signature(tested, build, arguments | {name: other}) for other in _others(value)]
        seen = [signature for signature in seen if signature is not None]
        tried += bool(seen)
        if seen and all(signature == base for signature in seen):
            without.append(name)
    if not tried:
        raise NotMeasured("no argument could be changed by itself")
    sizes = [name for name in without if any(part in name.lower() for part in _SIZES)]
    for names, level in ((sizes, None), ([name for name in without if name not in sizes], "note")):
        if names:
            yield finding(
                "argument-without-effect",
                f"{plural(len(names), 'constructor argument')} of {tried} tried, {quoted(names)},"
                " changed nothing: the same parameters, initial values and operations, in training and in eval mode.",
                level=level,  # type: ignore[arg-type]
            )


def _values(build: Callable[..., nn.Module], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are numbers, given or by default."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return {}
    values = {p.name: arguments.get(p.name, p.default) for p in parameters if p.kind is not p.VAR_KEYWORD}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _others(value: bool | float) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1, value // 2] if value > 1 else [value + 1]
    return [0.5 * value, value + 0.25] if value else [0.25, 0.5]


def _signature(tested: ModelUnderTest, build: Callable[..., nn.Module], arguments: dict[str, Any]) -> Any:
    """Return parameters, initial values and operations (training, eval) of a new model; None if it does not run."""
    if tested.is_late:
        raise NotMeasured("there was no time to build the model with other arguments")
    try:
        seed_everything(tested.seed)
        model = build(**arguments).to(tested.device)
        values = [(name, tuple(p.shape), float(p.detach().double().sum())) for name, p in model.named_parameters()]
        operations = []
        for training in (True, False):
            recording = record_forward(model.train(training), tested.images[: tested.num_recorded],
                                       unregistered_tensors(model))  # fmt: skip
            operations += [_operation(node) for node in recording.nodes]
        return values, operations
    except NotMeasured:
        raise
    except Exception:
        return None


def _operation(node: Node) -> tuple[Any, ...]:
    numbers = tuple(value for value in node.arguments if isinstance(value, int | float | str | list | tuple)
                    and not isinstance(value, Tensor))  # fmt: skip
    return node.op, tuple(node.tensor.shape), str([n for n in numbers if not _has_tensor(n)])


def _has_tensor(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Tensor) or _has_tensor(item) for item in value)
