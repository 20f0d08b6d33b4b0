"""Which other values the arguments of a constructor may be given, by their names and present values."""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from vitreous.doctor.constructor_calls import own_classes
from vitreous.doctor.constructors import constructor_arguments, constructor_values, takes_any_keyword
from vitreous.doctor.guessing import kind_of
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.rebuilt import built_with

_OTHER_OUTPUT = ("pretrain", "return", "output", "debug", "verbose", "download", "visual", "load")
_DROPOUT = r"((att?n?|attention|proj|pos|emb(ed)?|mlp|ff|res(id)?)_)?p(_?(rate|prob))?|d_?rate"
_LARGEST_SIDE = 128
_MOST_SPECIAL_TOKENS = 8  # class token, distillation token, registers

Attempt = tuple[dict[str, Any], tuple[int, ...] | None]  # changed arguments, the images' shape if it changes too


def other_values(value: bool | float) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1, value // 2] if value > 1 else [value + 1]
    return [0.5 * value, value + 0.25] if value else [0.25, 0.5]


def other_choices(tested: ModelUnderTest) -> dict[str, list[Any]]:
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


def other_layers(tested: ModelUnderTest) -> list[str]:
    """Return the arguments that are a class of layers which the model has."""
    own = own_classes(tested.model)
    return [
        name
        for name, value in constructor_arguments(tested.constructor).items()
        if inspect.isclass(value)
        and value in own
        and re.search(r"embed|patch|block|mlp|ff|feed|att", name.rpartition(".")[2].lower())
    ]


def other_inner_keywords(tested: ModelUnderTest) -> dict[str, Any]:
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
                found.setdefault(name, other_values(parameter.default)[0])
    return dict(list(found.items())[:4])


def attempts(tested: ModelUnderTest) -> Iterator[tuple[str, list[Attempt]]]:
    """Yield an argument and what it may be changed to, other arguments with it; one of these ways must work."""
    kinds = values_by_kind(tested)
    for name, value in kinds["dropout"].items():
        if is_dropout(name, value):
            yield name, [({name: 0.0}, None)]
            yield name, [({name: 0.3}, None)]
    for name, value in kinds["classes"].items():
        if value == tested.num_classes:
            yield name, [({name: value + 1}, None)]
    for name, value in integers(kinds["depth"]).items():
        yield name, [({name: value + 1}, None), ({name: 2 * value}, None)]
    for name, value in integers(kinds["heads"]).items():
        ways = [{name: other} for other in (2 * value, value // 2, 1) if other not in (0, value)]
        ways += [{name: 2 * value, width: size // 2} for width, size in integers(kinds["head_dim"]).items()]
        yield name, [(way, None) for way in ways]
    for name, value in kinds["ratio"].items():
        is_width = re.search("mlp|ff|forward|hidden|expan", name.lower()) is not None  # not the share of the tokens
        if is_fraction(tested, name) and is_width and not isinstance(value, tuple) and value > 1:
            yield name, [({name: other}, None) for other in (float(2 * value), 1.5 * value)]
    shapes = {size for parameter in tested.model.parameters() for size in parameter.shape}
    for kind in ("dim", "mlp"):
        for name, value in integers(kinds[kind]).items():
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


def is_fraction(tested: ModelUnderTest, name: str) -> bool:
    """Whether the constructor says that this argument is a float: by its annotation, or by its default."""
    if tested.constructor is None:
        return False
    parameter = inspect.signature(tested.constructor[0]).parameters.get(name)
    if parameter is None:
        return False
    return parameter.annotation in (float, "float") or isinstance(parameter.default, float)


_Kinds = Mapping[str, Mapping[str, Any]]


def _optional_widths(tested: ModelUnderTest, kinds: _Kinds) -> Iterator[tuple[str, list[Attempt]]]:
    """Yield the widths that are None by default; only an error about shapes shows that the argument was a width."""
    width = max(integers(kinds["dim"]).values(), default=0)
    for name, value in constructor_arguments(tested.constructor).items():
        last = name.rpartition(".")[2].lower()
        if value is not None or width < 8 or not re.search(r"dim|hidden|width|representation|latent|d_model", last):
            continue
        if kind_of(last) in ("dim", "mlp", "head_dim"):
            ways = [{name: width // 2}, {name: 2 * width}]
            if all(built_with(tested, way).error.startswith("RuntimeError") for way in ways):
                yield name, [(way, None) for way in ways]


def values_by_kind(tested: ModelUnderTest) -> _Kinds:
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


def integers(values: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in values.items() if type(value) is int and value >= 1}


def _scaled(values: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {
        name: tuple(int(number * factor) for number in value) if isinstance(value, tuple) else int(value * factor)
        for name, value in values.items()
    }


def _other_widths(name: str, kinds: _Kinds, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Alone, with the widths of the same value, with all widths, or with the patch whose pixels are one token."""
    every = {width: size for kind in ("dim", "mlp", "head_dim") for width, size in integers(kinds[kind]).items()}
    value = every[name]
    same = {width: size for width, size in every.items() if size == value}
    ways = [_scaled(group, factor) for group in ({name: value}, same, every) for factor in (0.5, 2)]
    if name in _pixels_of_a_patch(kinds, shape):
        ways.append(_scaled(kinds["patch"], 0.5) | _scaled({name: value}, 0.25))
    return ways


def _other_patches(kinds: _Kinds, tested: ModelUnderTest, factor: float) -> list[Attempt]:
    """All sides of a patch together; the numbers of tokens and of pixels in a patch follow."""
    patch, (_, height, width) = _scaled(kinds["patch"], factor), tested.shape
    sides = [number for value in patch.values() for number in _numbers_in(value)]
    if not all(side > 1 and height % side == 0 and width % side == 0 for side in sides):
        return []
    flat = _pixels_of_a_patch(kinds, tested.shape)
    ways = [patch | _scaled(kinds["patch_dim"], factor**2), patch | _scaled(flat, factor**2)]
    return [(way | counts, None) for way in ways for counts in _token_counts(kinds, factor**-2)]


def _other_images(kinds: _Kinds, shape: tuple[int, ...], factor: float, wider: float | None = None) -> list[Attempt]:
    """Height and width times `factor`, or the width times `wider`."""
    channels, height, width = shape
    wider = factor if wider is None else wider
    resized = (channels, int(height * factor), int(width * wider))
    shapes = {name: (*value[:-3], *resized) for name, value in kinds["shape"].items()}
    sizes = {
        name: resized[1:] if isinstance(value, tuple) else int(value * factor) for name, value in kinds["image"].items()
    }
    return [(sizes | shapes | counts, resized) for counts in _token_counts(kinds, factor * wider)]


def _other_channels(kinds: _Kinds, shape: tuple[int, ...]) -> list[Attempt]:
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
        name: size for kind in ("dim", "patch_dim") for name, size in integers(kinds[kind]).items() if size == pixels
    }


def _token_counts(kinds: _Kinds, factor: float) -> list[dict[str, int]]:
    """Return the numbers of tokens to match, with a class token among them or without; or as they are."""
    counts = integers(kinds["tokens"])
    if not counts:
        return [{}]
    return [{}, _scaled(counts, factor), {name: int((size - 1) * factor) + 1 for name, size in counts.items()}]


def numbers(tested: ModelUnderTest) -> dict[str, Any]:
    return {
        name: value for name, value in constructor_values(tested.constructor).items() if not isinstance(value, tuple)
    }


def is_dropout(name: str, value: Any) -> bool:
    """Whether this is a rate of dropout: not a learning rate, nor the side p of a patch."""
    last = name.rpartition(".")[2].lower()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        return False
    return "drop" in last or (isinstance(value, float) and re.fullmatch(_DROPOUT, last) is not None)
