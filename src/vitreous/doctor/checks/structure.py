"""Is the model built as intended: separate blocks, arguments that have an effect?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from vitreous.doctor.attention_ops import layer_op
from vitreous.doctor.constructors import constructor_values, with_value
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.doctor.recording import Node, record_forward
from vitreous.reports.formats import plural


def block_reused(tested: ModelUnderTest) -> Iterator[Finding]:
    """Linear layers applied to something that was computed with the same layer."""
    graph = tested.graph
    uses: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if (linear := layer_op(node)) is not None:
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


# --- constructor arguments -----------------------------------------------------------------------------------

#: Arguments that set a size, a number of layers or a rate: without effect, they are a mistake.
_SIZES = ("depth", "layer", "block", "head", "dim", "width", "hidden", "mlp", "ratio", "dropout", "drop", "patch",
    "embed", "class", "latent", "ff", "d_model", "embd")  # fmt: skip


def argument_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model again with one argument changed, and compare everything that can be observed."""
    if tested.constructor is None:
        raise NotMeasured("needs a class or function that can be called with other arguments")
    build, arguments = tested.constructor
    base = _signature(tested, build, arguments)
    if base is None:
        raise NotMeasured("the model could not be built a second time")
    without: list[str] = []
    tried = 0
    for name, value in constructor_values(tested.constructor).items():
        others = [with_value(tested.constructor, name, other) for other in _others(value)]
        seen = [_signature(tested, build, changed) for changed in others]
        tried += any(signature is not None for signature in seen)
        if all(signature == base for signature in seen):  # a value that does not run has an effect
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
        model = tested.adapted(build(**arguments)).to(tested.device)
        values = [(name, tuple(p.shape), float(p.detach().double().sum())) for name, p in model.named_parameters()]
        operations = []
        for training in (True, False):
            recording = record_forward(model.train(training), tested.images[: tested.num_recorded].clone(),
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
