"""The model under test, built again with other arguments: whether it runs, and what can be observed of it."""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor.attention_ops import attention_ops
from vitreous.doctor.checks.outputs import dropout_rate
from vitreous.doctor.constructor_calls import ConstructorCall, Replacements, own_classes, recorded_calls
from vitreous.doctor.constructors import with_values
from vitreous.doctor.findings import MissingModule, NotMeasured
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.doctor.recording import Node, Recorder, record_forward
from vitreous.doctor.tracebacks import is_library, own_line

#: Names of rates of dropout that are not for attention, paths or the embedding alone.
PLAIN_DROPOUT = r"(drop(out)?|p)(_?(p|prob|rate))?|d_?rate|p_?drop(out)?"


@dataclass(frozen=True, eq=False)
class Built:
    """A new model, or why it cannot be built or run."""

    values: tuple[tuple[str, tuple[int, ...], float], ...] = ()  # the parameters: name, shape, sum
    operations: tuple[Any, ...] = ()  # in training and in eval mode
    on_images: tuple[Any, ...] = ()  # those of them that depend on the images
    used: frozenset[str] = frozenset()  # the parameters that an operation reads
    layers: int = 0  # of attention over tokens
    dropout: tuple[tuple[str, float], ...] = ()  # in training mode: the module that drops values, and its rate
    default_dropout: tuple[str, ...] = ()  # where a module's own default decides on dropout
    calls: tuple[ConstructorCall, ...] = ()  # of the constructors of the model's own layers
    error: str = ""
    is_excused: bool = False  # no fault: the model's own check refuses the values, or it returns something else


def built_as_given(tested: ModelUnderTest) -> Built:
    if tested.constructor is None:
        raise NotMeasured("needs a class or function that can be called with other arguments")
    base = built_with(tested, {})
    if base.error:
        raise NotMeasured("the model could not be built a second time")
    return base


def is_same(base: Built, other: Built, shaping: bool) -> bool:
    """Whether nothing differs, or nothing but parameters that no operation reads.

    Where the argument decides on shapes (`shaping`), the operations tell: other initial values come from other random
    numbers, and a table of which the same rows are read may have another length.
    """
    if shaping and base.on_images:
        return base.on_images == other.on_images
    if base.operations != other.operations:
        return False
    if base.values == other.values:
        return True
    used = [{(name, shape) for name, shape, _ in one.values if name in one.used} for one in (base, other)]
    unused = [{(name, shape) for name, shape, _ in one.values if name not in one.used} for one in (base, other)]
    return used[0] == used[1] and unused[0] != unused[1]  # the same random numbers then go to other parameters


def built_with(
    tested: ModelUnderTest,
    changes: Mapping[str, Any],
    shape: tuple[int, ...] | None = None,
    replacements: Replacements | None = None,
) -> Built:
    """Build the model with some arguments changed, its own or those of its layers, and run it; the result is kept."""
    known: dict[str, Built] = tested.results.setdefault("built with other arguments", {})
    key = repr((sorted(changes.items()), shape, replacements))
    if key not in known:
        if tested.is_late:
            raise NotMeasured("there was no time to build the model with other arguments")
        known[key] = _build(tested, changes, shape, replacements)
    return known[key]


def _build(
    tested: ModelUnderTest,
    changes: Mapping[str, Any],
    shape: tuple[int, ...] | None,
    replacements: Replacements | None,
) -> Built:
    assert tested.constructor is not None
    build, _ = tested.constructor
    images = tested.images[: tested.num_recorded].clone()
    if shape is not None:
        images = torch.randn(len(images), *shape, generator=tested.generator(23)).to(tested.device)
    is_built = False
    try:
        seed_everything(tested.seed)
        with recorded_calls(own_classes(tested.model), replacements) as calls:
            model = build(**with_values(tested.constructor, changes))
        model = tested.adapted(model).to(tested.device)
        is_built = True
        values = tuple((name, tuple(p.shape), float(p.detach().double().sum())) for name, p in model.named_parameters())
        recordings = [
            record_forward(model.train(training), images.clone(), unregistered_tensors(model))
            for training in (True, False)
        ]
    except (NotMeasured, MissingModule) as error:  # no classifier any more, or a library that is not installed here
        return Built(error=str(error), is_excused=True)
    except Exception as error:
        if is_built and _lacks_an_input(error, model):
            return Built(values)
        return Built(error=_described(error), is_excused=_is_refusal(error, is_built))
    nodes = [node for recording in recordings for node in recording.nodes]
    operations = tuple(map(_operation, nodes))
    on_images = tuple(done for done, node in zip(operations, nodes, strict=True) if node.from_input)
    used = frozenset(parent.name for node in recordings[0].nodes for parent in node.parents if parent.name)
    rates = {node.module: rate for node in recordings[0].nodes if (rate := dropout_rate(node))}
    return Built(
        values,
        operations,
        on_images,
        used,
        layers=_num_layers(recordings[1]),
        dropout=tuple(rates.items()),
        default_dropout=tuple(_default_dropout(model, rates)),
        calls=tuple(calls),
    )


def _default_dropout(model: nn.Module, rates: Mapping[str, float]) -> Iterator[str]:
    """Yield the modules that drop values in training at a rate that is the default of an argument of their class."""
    for module, rate in rates.items():
        parts = module.split(".")
        for count in range(len(parts), 0, -1):
            owner = type(model.get_submodule(".".join(parts[:count])))
            parameters = inspect.signature(owner).parameters.items()
            defaults = [p.default for name, p in parameters if re.fullmatch(PLAIN_DROPOUT, name.lower())]
            floats = [default for default in defaults if isinstance(default, float)]
            if owner is not nn.Dropout and any(math.isclose(default, rate) for default in floats):
                yield f"`{module}` ({owner.__name__})"
                break


def _num_layers(recording: Recorder) -> int:
    """Return how many attentions over the same tokens depend on each other, one after the other."""
    graph, last, count = Graph(recording), None, 0
    for op in attention_ops(recording):
        if op.weights.shape[-1] == op.weights.shape[-2] > 1 and (last is None or graph.depends(op.product, last)):
            last, count = op.product, count + 1
    return count


def _described(error: Exception) -> str:
    """Return the error in one line, with the last line of the model's own file."""
    message = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    return f"{message} ({line})" if (line := own_line(error)) else message


def _lacks_an_input(error: Exception, model: nn.Module) -> bool:
    """Whether forward computes with an optional input that it is not given here."""
    _, *others = inspect.signature(model.forward).parameters.values()
    return isinstance(error, TypeError) and "NoneType" in str(error) and any(one.default is None for one in others)


def _is_refusal(error: Exception, is_built: bool) -> bool:
    """Whether the model itself refuses the value, as `assert dim % heads == 0` does."""
    if not is_built:
        return isinstance(error, ValueError | AssertionError | NotImplementedError)
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and bool(frames) and not is_library(frames[-1].filename)


def _operation(node: Node) -> tuple[Any, ...]:
    numbers = tuple(value for value in node.arguments if isinstance(value, int | float | str | list | tuple)
                    and not isinstance(value, Tensor))  # fmt: skip
    return node.op, tuple(node.tensor.shape), str([n for n in numbers if not _has_tensor(n)])


def _has_tensor(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Tensor) or _has_tensor(item) for item in value)
