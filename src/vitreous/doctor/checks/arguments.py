"""Do the constructor's arguments do what their names say? The model is built again with other values."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.doctor.attention_ops import attention_ops
from vitreous.doctor.constructors import constructor_values, with_values
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.doctor.recording import Node, Recorder, record_forward
from vitreous.reports.formats import plural

#: Arguments that set a size, a number of layers or a rate: without effect, they are a mistake.
_SIZES = ("depth", "layer", "block", "head", "dim", "width", "hidden", "mlp", "ratio", "dropout", "drop", "patch",
    "embed", "class", "latent", "ff", "d_model", "embd")  # fmt: skip
_DEPTHS = ("depth", "layer", "block", "encoders", "num_trans", "n_trans")
_WIDTHS = ("dim", "width", "hidden", "mlp", "embed", "embd", "emb_", "latent", "ff", "d_model")
_COUNTS = ("num_patch", "n_patch", "patches", "seq", "token", "num_pos", "max_len", "position")  # set by other sizes
_LARGEST_SIDE = 128


@dataclass(frozen=True, eq=False)
class _Built:
    """A new model, or why it cannot be built or run."""

    values: tuple[tuple[str, tuple[int, ...], float], ...] = ()  # the parameters: name, shape, sum
    operations: tuple[Any, ...] = ()  # in training and in eval mode
    used: frozenset[str] = frozenset()  # the parameters that an operation reads
    layers: int = 0  # of attention over tokens
    error: str = ""
    is_stated: bool = False  # the model's own check refuses the values


def argument_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model again with one argument changed, and compare everything that can be observed."""
    base, values = _base(tested), _numbers(tested)
    without: list[str] = []
    tried = 0
    for name, value in values.items():
        seen = [_built(tested, {name: other}) for other in _others(value)]
        tried += any(not one.error for one in seen)
        if all(not one.error and _same(base, one) for one in seen):  # a value that does not run has an effect
            without.append(name)
    if not tried:
        raise NotMeasured("no argument could be changed by itself")
    sizes = [name for name in without if _mentions(name, _SIZES)]
    for names, level in ((sizes, None), ([name for name in without if name not in sizes], "note")):
        if names:
            yield finding(
                "argument-without-effect",
                f"{plural(len(names), 'constructor argument')} of {tried} tried, {quoted(names)},"
                " changed nothing: the same parameters in use, initial values and operations, in training and in eval"
                " mode.",
                level=level,  # type: ignore[arg-type]
            )


def argument_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model with other sizes: where every other value breaks a shape, the code has it fixed somewhere."""
    _base(tested)
    failed: dict[str, str] = {}
    tried = 0
    for name, attempts in _attempts(tested):
        reasons = [one.error for changes, shape in attempts if not (one := _built(tested, changes, shape)).is_stated]
        if not reasons:
            continue
        tried += 1
        if all(reasons):
            changes, shape = attempts[0]
            with_images = "" if shape is None else f" and images of {' × '.join(map(str, shape))}"
            failed.setdefault(name, f"with `{name}={changes[name]}`{with_images}: {reasons[0]}")
    if not tried:
        raise NotMeasured("no argument is a size that could be changed")
    if failed:
        yield finding(
            "argument-fails",
            f"{plural(len(failed), 'constructor argument')} of {tried} tried, {quoted(list(failed))}, cannot be given"
            f" another value. For example, {next(iter(failed.values()))}.",
        )


def depth_miscounted(tested: ModelUnderTest) -> Iterator[Finding]:
    """With one more layer asked for, there must be one more, and as many as were asked for."""
    base, values = _base(tested), _numbers(tested)
    depths = {name: value for name, value in values.items() if _is_depth(name, value)}
    if len(depths) != 1 or not base.layers:
        raise NotMeasured("needs one argument that is a number of layers, and attention over tokens")
    [(name, depth)] = depths.items()
    more = _built(tested, {name: depth + 1})
    if more.error or more.layers != base.layers + 1:
        raise NotMeasured(f"`{name}` does not count the layers of attention")
    if abs(base.layers - depth) == 1:
        yield finding(
            "depth-miscounted",
            f"`{name}={depth}` builds {plural(base.layers, 'layer')} of attention, `{name}={depth + 1}` {more.layers}.",
        )


# --- which values are tried ----------------------------------------------------------------------------------------

_Attempt = tuple[dict[str, Any], tuple[int, ...] | None]  # changed arguments, the images' shape if it changes too


def _others(value: bool | float) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1, value // 2] if value > 1 else [value + 1]
    return [0.5 * value, value + 0.25] if value else [0.25, 0.5]


def _attempts(tested: ModelUnderTest) -> Iterator[tuple[str, list[_Attempt]]]:
    """Yield an argument and what it may be changed to, other arguments with it; it must be possible in one way."""
    values = constructor_values(tested.constructor)
    numbers = {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    for name, value in values.items():
        if isinstance(value, bool) or _mentions(name, _COUNTS):
            continue
        if "drop" in name.lower() and not isinstance(value, tuple) and 0 <= value < 1:
            yield name, [({name: 0.0}, None)]
            yield name, [({name: 0.3}, None)]
        elif _is_depth(name, value):
            yield name, [({name: value + 1}, None), ({name: 2 * value}, None)]
        elif _is_heads(name, value):
            widths = [other for other in numbers if "head" in other.lower() and _mentions(other, ("dim", "size"))]
            ways = [{name: other} for other in (2 * value, value // 2, 1) if other not in (0, value)]
            ways += [{name: 2 * value, width: numbers[width] // 2} for width in widths]
            yield name, [(way, None) for way in ways]
        elif "class" in name.lower() and isinstance(value, int) and value == tested.num_classes:
            yield name, [({name: value + 1}, None)]
        elif _is_width(name, value):
            yield name, [(way, None) for way in _other_widths(name, numbers, tested.shape)]
        elif spatial := _other_images(name, value, numbers, tested.shape):
            yield name, spatial


def _other_widths(name: str, numbers: Mapping[str, int], shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Alone, with the widths that have the same value, with all widths, or with the patch that is one token."""
    value = numbers[name]
    widths = {other: size for other, size in numbers.items() if _is_width(other, size)}
    same = [other for other, size in widths.items() if size == value]
    ways: list[dict[str, Any]] = [{name: value // 2}, {name: 2 * value}]
    ways += [dict.fromkeys(same, size) for size in (value // 2, 2 * value) if len(same) > 1]
    if len(widths) > 1:
        ways += [{other: size // 2 for other, size in widths.items()}, {other: 2 * s for other, s in widths.items()}]
    for patch, side in numbers.items():
        if "patch" in patch.lower() and shape[0] * side * side == value:
            ways.append({patch: side // 2, name: shape[0] * (side // 2) ** 2})
    return ways


def _other_images(name: str, value: Any, numbers: Mapping[str, int], shape: tuple[int, ...]) -> list[_Attempt]:
    """Other patches, other image sizes and other channels, with images to match and any number of patches."""
    channels, height, width = shape
    lower = name.lower()
    attempts: list[_Attempt] = []
    counts = {other: size for other, size in numbers.items() if _mentions(other, _COUNTS)}
    if isinstance(value, tuple) and value[-3:] == shape:  # (1, 28, 28)
        return _resized(name, shape, counts, lambda factor: (*value[:-2], int(height * factor), int(width * factor)))
    sides = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(side, int) for side in sides):
        return []
    if "patch" in lower and all(1 < side < height for side in sides) and len(sides) <= 2:
        for factor in (0.5, 2):
            other = tuple(int(side * factor) for side in sides)
            if all(side > 1 and height % side == 0 and width % side == 0 for side in other):
                changed = other if isinstance(value, tuple) else other[0]
                attempts += [({name: changed} | more, None) for more in _with_counts(counts, factor**-2)]
                # a token is a patch's pixels as they are: its width follows the patch
                pixels = channels * sides[0] ** 2
                flat = {width: int(pixels * factor**2) for width, size in numbers.items() if size == pixels}
                attempts += [({name: changed} | flat, None)] if flat else []
    elif "chan" in lower and value == channels:
        other_channels = 3 if channels == 1 else 1
        attempts.append(({name: other_channels}, (other_channels, height, width)))
    elif _mentions(lower, ("image", "img", "input_size", "resolution")) and set(sides) <= {height, width}:

        def resize(factor: float) -> Any:
            other = tuple(int(side * factor) for side in sides)
            return other if isinstance(value, tuple) else other[0]

        return _resized(name, shape, counts, resize)
    return attempts


def _resized(name: str, shape: tuple[int, ...], counts: Mapping[str, int], value: Any) -> list[_Attempt]:
    channels, height, width = shape
    factors = [factor for factor in (2, 0.5) if factor * max(height, width) <= _LARGEST_SIDE or factor < 1]
    return [
        ({name: value(factor)} | more, (channels, int(height * factor), int(width * factor)))
        for factor in factors
        for more in _with_counts(counts, factor**2)
    ]


def _with_counts(counts: Mapping[str, int], factor: float) -> list[dict[str, int]]:
    """Return the numbers of tokens to match; with a class token among them or without."""
    if not counts:
        return [{}]
    scaled = {name: int(size * factor) for name, size in counts.items()}
    return [{}, scaled, {name: int((size - 1) * factor) + 1 for name, size in counts.items()}]


def _is_depth(name: str, value: Any) -> bool:
    others = ("dim", "size", "drop", "norm", "scale", "width", "hidden", "mlp", "head", "channel", "init", "out", "per")
    return type(value) is int and value >= 1 and _mentions(name, _DEPTHS) and not _mentions(name, others)


def _is_heads(name: str, value: Any) -> bool:
    others = ("dim", "size", "hidden", "drop", "width", "mlp", "layer", "class", "out")
    return type(value) is int and value >= 1 and "head" in name.lower() and not _mentions(name, others)


def _is_width(name: str, value: Any) -> bool:
    others = ("patch", "drop", "ratio", "layers", "mult", "factor", "head", "out", "in_", "channel", "num_", "n_")
    is_counted = _mentions(name.lower().replace("n_emb", "emb"), others)
    return type(value) is int and value >= 8 and _mentions(name, _WIDTHS) and not is_counted


def _mentions(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.lower() for part in parts)


# --- building --------------------------------------------------------------------------------------------------------


def _numbers(tested: ModelUnderTest) -> dict[str, Any]:
    return {
        name: value for name, value in constructor_values(tested.constructor).items() if not isinstance(value, tuple)
    }


def _base(tested: ModelUnderTest) -> _Built:
    if tested.constructor is None:
        raise NotMeasured("needs a class or function that can be called with other arguments")
    base = _built(tested, {})
    if base.error:
        raise NotMeasured("the model could not be built a second time")
    return base


def _same(base: _Built, other: _Built) -> bool:
    """Whether nothing differs, or nothing but parameters that no operation reads."""
    if base.operations != other.operations:
        return False
    if base.values == other.values:
        return True
    used = [{(name, shape) for name, shape, _ in one.values if name in one.used} for one in (base, other)]
    unused = [{(name, shape) for name, shape, _ in one.values if name not in one.used} for one in (base, other)]
    return used[0] == used[1] and unused[0] != unused[1]  # the same random numbers then go to other parameters


def _built(tested: ModelUnderTest, changes: Mapping[str, Any], shape: tuple[int, ...] | None = None) -> _Built:
    """Build the model with some arguments changed and run it; every result is kept."""
    known: dict[str, _Built] = tested.results.setdefault("built with other arguments", {})
    key = repr((sorted(changes.items()), shape))
    if key not in known:
        if tested.is_late:
            raise NotMeasured("there was no time to build the model with other arguments")
        known[key] = _build(tested, changes, shape)
    return known[key]


def _build(tested: ModelUnderTest, changes: Mapping[str, Any], shape: tuple[int, ...] | None) -> _Built:
    assert tested.constructor is not None
    build, _ = tested.constructor
    images = tested.images[: tested.num_recorded].clone()
    if shape is not None:
        images = torch.randn(len(images), *shape, generator=tested.generator(23)).to(tested.device)
    is_built = False
    try:
        seed_everything(tested.seed)
        model = tested.adapted(build(**with_values(tested.constructor, changes))).to(tested.device)
        is_built = True
        values = tuple((name, tuple(p.shape), float(p.detach().double().sum())) for name, p in model.named_parameters())
        recordings = [
            record_forward(model.train(training), images.clone(), unregistered_tensors(model))
            for training in (True, False)
        ]
    except NotMeasured:
        raise
    except Exception as error:
        return _Built(error=_described(error), is_stated=_is_stated(error, is_built))
    operations = tuple(_operation(node) for recording in recordings for node in recording.nodes)
    used = frozenset(parent.name for node in recordings[0].nodes for parent in node.parents if parent.name)
    return _Built(values, operations, used, _num_layers(recordings[1]))


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
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return f"{message} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else message


def _is_stated(error: Exception, is_built: bool) -> bool:
    """Whether the model itself refuses the value, as `assert dim % heads == 0` does."""
    if not is_built:
        return isinstance(error, ValueError | AssertionError | NotImplementedError)
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and bool(frames) and not _is_library(frames[-1].filename)


def _is_library(file: str) -> bool:
    return "site-packages" in file or "vitreous" in Path(file).parts or file.startswith("<")


def _operation(node: Node) -> tuple[Any, ...]:
    numbers = tuple(value for value in node.arguments if isinstance(value, int | float | str | list | tuple)
                    and not isinstance(value, Tensor))  # fmt: skip
    return node.op, tuple(node.tensor.shape), str([n for n in numbers if not _has_tensor(n)])


def _has_tensor(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Tensor) or _has_tensor(item) for item in value)
