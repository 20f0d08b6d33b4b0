"""Do the constructor's arguments do what their names say? The model is built again with other values."""

from __future__ import annotations

import functools
import inspect
import math
import re
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor.attention_ops import attention_ops
from vitreous.doctor.checks.outputs import dropout_rate
from vitreous.doctor.constructors import constructor_arguments, constructor_values, takes_any_keyword, with_values
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.graph import Graph
from vitreous.doctor.guessing import kind_of
from vitreous.doctor.model_io import is_image
from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.doctor.recording import Node, Recorder, record_forward
from vitreous.doctor.tracebacks import is_library, own_line
from vitreous.reports.formats import join, plural

#: Arguments that set a size, a rate or a part of the architecture: without effect, they are a mistake.
_SIZES = ("depth", "layer", "block", "head", "dim", "width", "hidden", "mlp", "ratio", "dropout", "drop", "patch",
    "embed", "class", "latent", "ff", "d_model", "embd", "pre_norm", "norm_first", "bias")  # fmt: skip
_OTHER_OUTPUT = ("pretrain", "return", "output", "debug", "verbose", "download", "visual", "load")
#: Kinds of arguments that decide on the shapes of what is computed from the images.
_SHAPING = ("classes", "depth", "heads", "head_dim", "dim", "mlp", "ratio", "patch")
_PLAIN_DROPOUT = r"(drop(out)?|p)(_?(p|prob|rate))?"  # not one for attention, paths or the embedding alone
_LARGEST_SIDE = 128
_MOST_SPECIAL_TOKENS = 8  # class token, distillation token, registers


@dataclass(frozen=True, eq=False)
class _Built:
    """A new model, or why it cannot be built or run."""

    values: tuple[tuple[str, tuple[int, ...], float], ...] = ()  # the parameters: name, shape, sum
    operations: tuple[Any, ...] = ()  # in training and in eval mode
    on_images: tuple[Any, ...] = ()  # those of them that depend on the images
    used: frozenset[str] = frozenset()  # the parameters that an operation reads
    layers: int = 0  # of attention over tokens
    default_dropout: tuple[str, ...] = ()  # where a module's own default decides on dropout
    error: str = ""
    is_excused: bool = False  # no fault: the model's own check refuses the values, or it returns something else


def argument_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model again with one argument changed, and compare everything that can be observed."""
    base, values = _base(tested), _numbers(tested)
    without: list[str] = []
    tried = 0
    others = {name: _others(value) for name, value in values.items()} | _choices(tested)
    for name, changed in others.items():
        seen = [_built(tested, {name: other}) for other in changed]
        tried += any(not one.error for one in seen)
        shaping = name in values and _is_shaping(name)
        runs = [one for one in seen if not one.error]
        # a value that does not run has an effect; a patch size may have one on the table of positions alone
        if not runs or not (shaping or len(runs) == len(seen)) or not all(_same(base, one, shaping) for one in runs):
            continue
        # a number that is compared with another (the layer up to which …) may have an effect only when it is small
        small = _built(tested, {name: 1}) if type(values.get(name)) is int and values[name] > 3 else runs[0]
        if (shaping and small.error) or _same(base, small, shaping):
            without.append(name)
    if not tried:
        raise NotMeasured("no argument could be changed by itself")
    sizes = [name for name in without if name not in values or any(part in name.lower() for part in _SIZES)]
    for names, level in ((sizes, None), ([name for name in without if name not in sizes], "note")):
        if names:
            yield finding(
                "argument-without-effect",
                f"{plural(len(names), 'constructor argument')} of {tried} tried, {quoted(names)},"
                " changed nothing that the model computes: the same operations on the same shapes, in training and in"
                " eval mode.",
                level=level,  # type: ignore[arg-type]
            )
    if sizes:
        return
    inner = {
        name: one for name, other in _inner_keywords(tested).items() if not (one := _built(tested, {name: other})).error
    }
    if inner and all(_same(base, one, _is_shaping(name)) for name, one in inner.items()):
        names = list(inner)
        yield finding(
            "argument-without-effect",
            f"the constructor takes `**kwargs`, and none of {plural(len(names), 'argument')} of its layers given there,"
            f" {quoted(names)}, changed anything: they are not passed on.",
            level="note",  # some take any keyword on purpose, so that all models can be built alike
        )
    yield from _dropout_not_passed_on(tested)


def _dropout_not_passed_on(tested: ModelUnderTest) -> Iterator[Finding]:
    """With all dropout arguments at 0, no layer may drop anything because of its own default."""
    names = [name for name, value in _numbers(tested).items() if _is_dropout(name) and 0 <= value < 1]
    plain = [name for name in names if re.fullmatch(_PLAIN_DROPOUT, name.rpartition(".")[2].lower())]
    without = _built(tested, dict.fromkeys(names, 0.0)) if plain else _Built()
    if without.default_dropout:
        yield finding(
            "argument-without-effect",
            f"with {join(f'`{name}=0`' for name in names)}, dropout remains in"
            f" {plural(len(without.default_dropout), 'layer')}, first {without.default_dropout[0]}, at the default of"
            " its class: the argument is not passed on to it.",
        )


def argument_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model with other sizes: where every other value breaks a shape, the code has it fixed somewhere."""
    _base(tested)
    if not is_image(tested.shape):
        raise NotMeasured("the model does not take images")
    failed: dict[str, str] = {}
    tried = 0
    for name, attempts in _attempts(tested):
        built = [(changes, shape, _built(tested, changes, shape)) for changes, shape in attempts]
        tried_ways = [(changes, shape, one.error) for changes, shape, one in built if not one.is_excused]
        if not tried_ways:
            continue
        tried += 1
        if all(error for _, _, error in tried_ways):
            changes, shape, error = tried_ways[0]
            with_images = "" if shape is None else f" and images of {' × '.join(map(str, shape))}"
            given = join(f"`{changed}={value}`" for changed, value in changes.items())
            failed.setdefault(name, f"with {given}{with_images}: {error}")
    inner = {f"{name}={other}": _built(tested, {name: other}).error for name, other in _inner_keywords(tested).items()}
    refused = [given for given, error in inner.items() if "unexpected keyword" in error]
    if refused and all(inner.values()):
        tried += 1
        failed.setdefault("**kwargs", f"with `{refused[0]}`: {inner[refused[0]]}")
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
    depths = {name: value for name, value in _integers(values).items() if kind_of(name.rpartition(".")[2]) == "depth"}
    if len(depths) != 1 or not base.layers:
        raise NotMeasured("needs one argument that is a number of layers, and attention over tokens")
    [(name, depth)] = depths.items()
    more = _built(tested, {name: depth + 1})
    if more.layers == base.layers and (heads := _counts_layers(tested, base)):
        yield finding(
            "depth-miscounted",
            f"`{name}={depth}` does not set the number of layers, `{heads}` does: {base.layers} of attention for"
            f" `{heads}={values[heads]}`. The two are exchanged.",
        )
        return
    if more.error or more.layers != base.layers + 1:
        raise NotMeasured(f"`{name}` does not count the layers of attention")
    if abs(base.layers - depth) == 1:
        yield finding(
            "depth-miscounted",
            f"`{name}={depth}` builds {plural(base.layers, 'layer')} of attention, `{name}={depth + 1}` {more.layers}.",
        )


def _counts_layers(tested: ModelUnderTest, base: _Built) -> str:
    """Return the argument that is called a number of heads and is the number of layers; "" if there is none."""
    for name, heads in _integers(_by_kind(tested)["heads"]).items():
        if heads == base.layers and _built(tested, {name: 2 * heads}).layers == 2 * heads:
            return name
    return ""


# --- which values are tried ----------------------------------------------------------------------------------------

_Attempt = tuple[dict[str, Any], tuple[int, ...] | None]  # changed arguments, the images' shape if it changes too


def _others(value: bool | float) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1, value // 2] if value > 1 else [value + 1]
    return [0.5 * value, value + 0.25] if value else [0.25, 0.5]


def _choices(tested: ModelUnderTest) -> dict[str, list[Any]]:
    """Return other activations, norms and poolings for the arguments that choose one, by name."""
    found: dict[str, list[Any]] = {}
    for name, value in constructor_arguments(tested.constructor).items():
        last = name.rpartition(".")[2].lower()
        is_class = value is None or inspect.isclass(value)
        if re.fullmatch(r"(hidden_)?act(ivation)?(_?(layer|fn|func|function|type))?", last):
            classes: list[Any] = [nn.ReLU, nn.Tanh]
            if is_class:
                found[name] = classes
            elif isinstance(value, nn.Module):
                found[name] = [one() for one in classes]
            elif isinstance(value, str):
                found[name] = [one for one in ("gelu", "relu") if one != value.lower()]
        elif re.fullmatch(r"norm(_?(layer|class|type))?", last) and (is_class or isinstance(value, functools.partial)):
            found[name] = [nn.RMSNorm, functools.partial(nn.LayerNorm, elementwise_affine=False)]
        elif re.search(r"pool|classifier", last) and isinstance(value, str) and value.lower() in _POOLINGS:
            found[name] = [one for one in _POOLINGS if one != value.lower()]
    return found


_POOLINGS = ("cls", "token", "mean", "avg", "gap")


def _inner_keywords(tested: ModelUnderTest) -> dict[str, Any]:
    """Return another value for a few arguments that only inner layers have, where the constructor takes `**kwargs`."""
    if not takes_any_keyword(tested.constructor):
        return {}
    own = constructor_arguments(tested.constructor)
    found: dict[str, Any] = {}
    for module in tested.model.modules():
        if module is tested.model or type(module).__module__.startswith("torch."):
            continue
        for name, parameter in inspect.signature(type(module)).parameters.items():
            is_number = isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
            if is_number and name not in own and kind_of(name) in ("heads", "dropout", "mlp", "ratio", "head_dim"):
                found.setdefault(name, _others(parameter.default)[0])
    return dict(list(found.items())[:4])


def _attempts(tested: ModelUnderTest) -> Iterator[tuple[str, list[_Attempt]]]:
    """Yield an argument and what it may be changed to, other arguments with it; one of these ways must work."""
    kinds = _by_kind(tested)
    for name, value in kinds["dropout"].items():
        if _is_dropout(name) and not isinstance(value, tuple) and 0 <= value < 1:
            yield name, [({name: 0.0}, None)]
            yield name, [({name: 0.3}, None)]
    for name, value in kinds["classes"].items():
        if value == tested.num_classes:
            yield name, [({name: value + 1}, None)]
    for name, value in _integers(kinds["depth"]).items():
        yield name, [({name: value + 1}, None), ({name: 2 * value}, None)]
    for name, value in _integers(kinds["heads"]).items():
        ways = [{name: other} for other in (2 * value, value // 2, 1) if other not in (0, value)]
        ways += [{name: 2 * value, width: size // 2} for width, size in _integers(kinds["head_dim"]).items()]
        yield name, [(way, None) for way in ways]
    shapes = {size for parameter in tested.model.parameters() for size in parameter.shape}
    for kind in ("dim", "mlp"):
        for name, value in _integers(kinds[kind]).items():
            if value >= 8 and value in shapes:  # otherwise it is another size
                yield name, [(way, None) for way in _other_widths(name, kinds, tested.shape)]
    yield from _optional_widths(tested, kinds)
    if kinds["patch"]:
        yield (
            next(iter(kinds["patch"])),
            [attempt for factor in (0.5, 2) for attempt in _other_patches(kinds, tested, factor)],
        )
    for name, value in constructor_values(tested.constructor).items():
        if isinstance(value, bool) and not any(part in name.lower() for part in _OTHER_OUTPUT):
            grey = (3 if tested.shape[0] == 1 else 1, *tested.shape[1:])  # the flag may be the number of channels
            yield name, [({name: not value}, None), ({name: not value}, grey)]
    if kinds["image"] or kinds["shape"]:
        name = next(iter([*kinds["image"], *kinds["shape"]]))
        factors = [factor for factor in (2, 0.5) if factor * max(tested.shape[1:]) <= _LARGEST_SIDE]
        yield name, [attempt for factor in factors for attempt in _other_images(kinds, tested.shape, factor)]
        if all(isinstance(value, tuple) for value in kinds["image"].values()):  # pairs: not only squares
            yield name, [attempt for factor in factors for attempt in _other_images(kinds, tested.shape, factor, 1)]
    if kinds["channels"] or kinds["shape"]:
        yield next(iter([*kinds["channels"], *kinds["shape"]])), _other_channels(kinds, tested.shape)


_Kinds = Mapping[str, Mapping[str, Any]]


def _optional_widths(tested: ModelUnderTest, kinds: _Kinds) -> Iterator[tuple[str, list[_Attempt]]]:
    """Yield the widths that are None by default; only an error about shapes shows that the argument was a width."""
    width = max(_integers(kinds["dim"]).values(), default=0)
    for name, value in constructor_arguments(tested.constructor).items():
        last = name.rpartition(".")[2].lower()
        if value is not None or width < 8 or not re.search(r"dim|hidden|width|representation|latent|d_model", last):
            continue
        if kind_of(last) in ("dim", "mlp", "head_dim"):
            ways = [{name: width // 2}, {name: 2 * width}]
            if all(_built(tested, way).error.startswith("RuntimeError") for way in ways):
                yield name, [(way, None) for way in ways]


def _by_kind(tested: ModelUnderTest) -> _Kinds:
    """Return kind → arguments of this kind, without those whose value cannot be what their name suggests."""
    _, height, width = tested.shape
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in constructor_values(tested.constructor).items():
        found[kind_of(name.rpartition(".")[2])][name] = value
    sides = [number for value in found["patch"].values() for number in _numbers_in(value)]
    if not all(type(side) is int and side > 1 and height % side == 0 and width % side == 0 for side in sides):
        found["patch"] = {}
    elif sides and tested.has_attention:  # "patches" may be their number
        tokens = tested.attention[0].weights.shape[-1]
        if not 0 <= tokens - (height // sides[0]) * (width // sides[-1]) <= _MOST_SPECIAL_TOKENS:
            found["patch"] = {}
    if not all(number in (height, width) for value in found["image"].values() for number in _numbers_in(value)):
        found["image"] = {}
    found["shape"] = {
        name: value for name, value in found["shape"].items() if tuple(_numbers_in(value)[-3:]) == tested.shape
    }
    found["channels"] = {name: value for name, value in found["channels"].items() if value == tested.shape[0]}
    return found


def _numbers_in(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _integers(values: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in values.items() if type(value) is int and value >= 1}


def _scaled(values: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {
        name: tuple(int(number * factor) for number in value) if isinstance(value, tuple) else int(value * factor)
        for name, value in values.items()
    }


def _other_widths(name: str, kinds: _Kinds, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Alone, with the widths of the same value, with all widths, or with the patch whose pixels are one token."""
    every = {width: size for kind in ("dim", "mlp", "head_dim") for width, size in _integers(kinds[kind]).items()}
    value = every[name]
    same = {width: size for width, size in every.items() if size == value}
    ways = [_scaled(group, factor) for group in ({name: value}, same, every) for factor in (0.5, 2)]
    if name in _pixels_of_a_patch(kinds, shape):
        ways.append(_scaled(kinds["patch"], 0.5) | _scaled({name: value}, 0.25))
    return ways


def _other_patches(kinds: _Kinds, tested: ModelUnderTest, factor: float) -> list[_Attempt]:
    """All sides of a patch together; the numbers of tokens and of pixels in a patch follow."""
    patch, (_, height, width) = _scaled(kinds["patch"], factor), tested.shape
    sides = [number for value in patch.values() for number in _numbers_in(value)]
    if not all(side > 1 and height % side == 0 and width % side == 0 for side in sides):
        return []
    flat = _pixels_of_a_patch(kinds, tested.shape)
    ways = [patch | _scaled(kinds["patch_dim"], factor**2), patch | _scaled(flat, factor**2)]
    return [(way | counts, None) for way in ways for counts in _token_counts(kinds, factor**-2)]


def _other_images(kinds: _Kinds, shape: tuple[int, ...], factor: float, wider: float | None = None) -> list[_Attempt]:
    """Height and width times `factor`, or the width times `wider`."""
    channels, height, width = shape
    wider = factor if wider is None else wider
    resized = (channels, int(height * factor), int(width * wider))
    shapes = {name: (*value[:-3], *resized) for name, value in kinds["shape"].items()}
    sizes = {
        name: resized[1:] if isinstance(value, tuple) else int(value * factor) for name, value in kinds["image"].items()
    }
    return [(sizes | shapes | counts, resized) for counts in _token_counts(kinds, factor * wider)]


def _other_channels(kinds: _Kinds, shape: tuple[int, ...]) -> list[_Attempt]:
    channels = 3 if shape[0] == 1 else 1
    other = (channels, *shape[1:])
    changes: dict[str, Any] = dict.fromkeys(kinds["channels"], channels)
    changes |= {name: (*value[:-3], *other) for name, value in kinds["shape"].items()}
    changes |= _scaled(kinds["patch_dim"], channels / shape[0])
    flat = _scaled(_pixels_of_a_patch(kinds, shape), channels / shape[0])
    return [(changes, other), (changes | flat, other)]


def _pixels_of_a_patch(kinds: _Kinds, shape: tuple[int, ...]) -> dict[str, int]:
    """Return the widths that are the number of pixels in a patch: a token may be its pixels as they are."""
    sides = [number for value in kinds["patch"].values() for number in _numbers_in(value)]
    pixels = shape[0] * sides[0] * sides[-1] if sides else 0
    return {
        name: size for kind in ("dim", "patch_dim") for name, size in _integers(kinds[kind]).items() if size == pixels
    }


def _token_counts(kinds: _Kinds, factor: float) -> list[dict[str, int]]:
    """Return the numbers of tokens to match, with a class token among them or without; or as they are."""
    counts = _integers(kinds["tokens"])
    if not counts:
        return [{}]
    return [{}, _scaled(counts, factor), {name: int((size - 1) * factor) + 1 for name, size in counts.items()}]


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


def _is_dropout(name: str) -> bool:
    return kind_of(name.rpartition(".")[2]) == "dropout" and "drop" in name.lower()


def _is_shaping(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return kind_of(last) in _SHAPING and "init" not in last and "scale" not in last


def _same(base: _Built, other: _Built, shaping: bool) -> bool:
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
    except NotMeasured as error:  # it returns something else: no classifier any more, but no failure
        return _Built(error=str(error), is_excused=True)
    except Exception as error:
        if is_built and _lacks_an_input(error, model):
            return _Built(values)
        return _Built(error=_described(error), is_excused=_is_refusal(error, is_built))
    nodes = [node for recording in recordings for node in recording.nodes]
    operations = tuple(map(_operation, nodes))
    on_images = tuple(done for done, node in zip(operations, nodes, strict=True) if node.from_input)
    used = frozenset(parent.name for node in recordings[0].nodes for parent in node.parents if parent.name)
    dropout = tuple(_default_dropout(model, recordings[0]))
    return _Built(values, operations, on_images, used, _num_layers(recordings[1]), dropout)


def _default_dropout(model: nn.Module, recording: Recorder) -> Iterator[str]:
    """Yield the modules that drop values in training at a rate that is the default of an argument of their class."""
    rates = {node.module: rate for node in recording.nodes if (rate := dropout_rate(node))}
    for module, rate in rates.items():
        parts = module.split(".")
        for count in range(len(parts), 0, -1):
            owner = type(model.get_submodule(".".join(parts[:count])))
            parameters = inspect.signature(owner).parameters.items()
            defaults = [p.default for name, p in parameters if re.fullmatch(_PLAIN_DROPOUT, name.lower())]
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
