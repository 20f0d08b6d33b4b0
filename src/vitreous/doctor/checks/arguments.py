"""Do the constructor's arguments do what their names say? The model is built again with other values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from vitreous.doctor.constructor_calls import ConstructorCall
from vitreous.doctor.constructors import constructor_arguments
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.guessing import kind_of
from vitreous.doctor.model_io import is_image
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.other_arguments import (
    attempts,
    integers,
    is_dropout,
    numbers,
    other_choices,
    other_inner_keywords,
    other_layers,
    other_values,
    values_by_kind,
)
from vitreous.doctor.rebuilt import PLAIN_DROPOUT, Built, built_as_given, built_with, is_same
from vitreous.reports.formats import join, plural

#: Arguments that set a size, a rate or a part of the architecture: without effect, they are a mistake.
_SIZES = ("depth", "layer", "block", "head", "dim", "width", "hidden", "mlp", "ratio", "dropout", "drop", "patch",
    "embed", "class", "latent", "ff", "d_model", "embd", "pre_norm", "norm_first", "bias")  # fmt: skip
#: Kinds of arguments that decide on the shapes of what is computed from the images.
_SHAPING = ("classes", "depth", "heads", "head_dim", "dim", "mlp", "ratio", "patch")
_MOST_LAYER_ARGUMENTS = 8  # the time of a diagnosis is limited


def argument_without_effect(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model again with one argument changed, and compare everything that can be observed."""
    base, values = built_as_given(tested), numbers(tested)
    without: list[str] = []
    tried = 0
    others = {name: other_values(value) for name, value in values.items()} | other_choices(tested)
    for name, changed in others.items():
        seen = [built_with(tested, {name: other}) for other in changed]
        tried += any(not one.error for one in seen)
        shaping = name in values and _is_shaping(name)
        runs = [one for one in seen if not one.error]
        # a value that does not run has an effect; a patch size may have one on the table of positions alone
        if not runs or not (shaping or len(runs) == len(seen)) or not all(is_same(base, one, shaping) for one in runs):
            continue
        # a number that is compared with another (the layer up to which …) may have an effect only when it is small
        small = built_with(tested, {name: 1}) if type(values.get(name)) is int and values[name] > 3 else runs[0]
        if (shaping and small.error) or is_same(base, small, shaping):
            without.append(name)
    if not tried:
        raise NotMeasured("no argument could be changed by itself")
    without += [name for name in other_layers(tested) if _is_ignored(tested, base, name)]
    sizes = [name for name in without if name not in values or _must_have_effect(tested, base, name)]
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
        name: one
        for name, other in other_inner_keywords(tested).items()
        if not (one := built_with(tested, {name: other})).error
    }
    if inner and all(is_same(base, one, _is_shaping(name)) for name, one in inner.items()):
        names = list(inner)
        yield finding(
            "argument-without-effect",
            f"the constructor takes `**kwargs`, and none of {plural(len(names), 'argument')} of its layers given there,"
            f" {quoted(names)}, changed anything: they are not passed on.",
            level="note",  # some take any keyword on purpose, so that all models can be built alike
        )
    yield from _dropout_not_passed_on(tested)
    yield from _layer_arguments_without_effect(tested, base)


def _must_have_effect(tested: ModelUnderTest, base: Built, name: str) -> bool:
    if kind_of(name.rpartition(".")[2]) == "eps":  # some layer has an ε, and it is not given this one
        return any(
            kind_of(parameter) == "eps" and parameter not in call.given
            for call in base.calls
            if call.layer_class is not type(tested.model)
            for parameter in call.parameters
        )
    return any(part in name.lower() for part in _SIZES)


def _is_ignored(tested: ModelUnderTest, base: Built, name: str) -> bool:
    """Whether layers of the class that this argument holds are made, and none of them through the argument."""
    layer = constructor_arguments(tested.constructor)[name]
    other = type(layer.__name__, (layer,), {"__module__": layer.__module__})
    again = built_with(tested, {name: other})
    made = {call.layer_class for call in again.calls}
    return not again.error and layer in made and other not in made and is_same(base, again, False)


def _dropout_not_passed_on(tested: ModelUnderTest) -> Iterator[Finding]:
    """With all dropout arguments at 0, no layer may drop anything; with others, all must drop that can."""
    names = [name for name, value in numbers(tested).items() if is_dropout(name, value)]
    plain = [name for name in names if _is_plain_dropout(name)]
    if not plain:
        return
    without = built_with(tested, dict.fromkeys(names, 0.0))
    given = join(f"`{name}=0`" for name in names)
    if without.default_dropout:
        yield finding(
            "argument-without-effect",
            f"with {given}, dropout remains in"
            f" {plural(len(without.default_dropout), 'layer')}, first {without.default_dropout[0]}, at the default of"
            " its class: the argument is not passed on to it.",
        )
    elif without.dropout:
        module, rate = without.dropout[0]
        yield finding(
            "argument-without-effect",
            f"with {given}, dropout remains in {plural(len(without.dropout), 'place')}, first at a rate of {rate:g} in"
            f" `{module or 'forward'}`: it is written into the code.",
            level="note",  # a head may have a rate of its own on purpose
        )
    yield from _layers_without_dropout(tested, plain)


def _layers_without_dropout(tested: ModelUnderTest, names: list[str]) -> Iterator[Finding]:
    """Find layers of every block that keep a default of 0, though their constructor and their caller's have a rate."""
    base = built_as_given(tested)
    calls: dict[tuple[type[nn.Module], str], list[ConstructorCall]] = defaultdict(list)
    for call in base.calls:
        for name, parameter in call.parameters.items():
            if _is_plain_dropout(name) and parameter.default == 0 and is_dropout(name, parameter.default):
                calls[call.layer_class, name].append(call)
    dropped = built_with(tested, dict.fromkeys(names, 0.3))
    if not dropped.dropout or not base.layers:
        return
    for (layer, name), made in calls.items():
        is_forgotten = not any(name in call.given for call in made) and len(made) >= max(base.layers, 2)
        if not is_forgotten or is_same(base, built_with(tested, {}, replacements={(layer, name): 0.3}), False):
            continue
        caller = made[0].caller
        has_rate = caller is not None and any(
            _is_plain_dropout(rate) and is_dropout(rate, caller.numbers.get(rate)) for rate in caller.parameters
        )
        owner = caller.layer_class.__name__ if caller is not None and has_rate else ""
        # the caller may drop values of the layer's output itself
        if caller is not None and any(_owner(tested, module) is caller.layer_class for module, _ in dropped.dropout):
            continue
        yield finding(
            "argument-without-effect",
            f"`{name}` of {plural(len(made), f'`{layer.__name__}`')} keeps its default of 0 with any {quoted(names)}:"
            + (f" `{owner}` has a rate of dropout, and does not pass it on." if owner else " it is not passed on."),
            level=None if has_rate else "note",  # not to drop values in the blocks may be meant
        )


def _owner(tested: ModelUnderTest, module: str) -> type[nn.Module] | None:
    """Return the class of the innermost layer around this module that is no part of torch."""
    parts = module.split(".")
    for count in range(len(parts), -1, -1):
        try:
            layer = type(tested.model.get_submodule(".".join(parts[:count])))
        except AttributeError:  # only the model with the other rate has it
            continue
        if not layer.__module__.startswith("torch."):
            return layer
    return None


def _is_plain_dropout(name: str) -> bool:
    return re.fullmatch(PLAIN_DROPOUT, name.rpartition(".")[2].lower()) is not None


def _layer_arguments_without_effect(tested: ModelUnderTest, base: Built) -> Iterator[Finding]:
    """Change one argument of all layers of a class, and compare everything that can be observed."""
    counts: dict[tuple[type[nn.Module], str], int] = defaultdict(int)
    for call in base.calls:
        for name in call.given & set(call.numbers):
            if is_dropout(name, call.numbers[name]) and "path" not in name.lower() and call.caller is not None:
                counts[call.layer_class, name] += 1
    in_blocks = [key for key, count in counts.items() if count >= max(base.layers, 2) and base.layers]
    without = []
    for layer, name in in_blocks[:_MOST_LAYER_ARGUMENTS]:
        built = [built_with(tested, {}, replacements={(layer, name): rate}) for rate in (0.25, 0.5)]
        if all(not one.error and is_same(base, one, False) for one in built):
            without.append(f"`{name}` of `{layer.__name__}`")
    if without:
        yield finding(
            "argument-without-effect",
            f"{join(without, most=3)} {'is' if len(without) == 1 else 'are'} given, and changed nothing that the model"
            " computes: no value is dropped there.",
        )


def argument_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model with other sizes: where every other value breaks a shape, the code has it fixed somewhere."""
    built_as_given(tested)
    if not is_image(tested.shape):
        raise NotMeasured("the model does not take images")
    failed: dict[str, str] = {}
    together: dict[tuple[str, ...], str] = {}
    tried = 0
    for name, ways in attempts(tested):
        built = [(changes, shape, built_with(tested, changes, shape)) for changes, shape in ways]
        tried_ways = [(changes, shape, one.error) for changes, shape, one in built if not one.is_excused]
        if not tried_ways:
            continue
        tried += 1
        if all(error for _, _, error in tried_ways):
            changes, shape, error = tried_ways[0]
            with_images = "" if shape is None else f" and images of {' × '.join(map(str, shape))}"
            given = join(f"`{changed}={value}`" for changed, value in changes.items())
            failed.setdefault(name, f"with {given}{with_images}: {error}")
        elif equal := _only_together(name, tried_ways):
            error = next(error for changes, _, error in tried_ways if list(changes) == [name])
            together.setdefault(equal, f"`{name}` alone: {error}")
    inner = {
        f"{name}={other}": built_with(tested, {name: other}).error
        for name, other in other_inner_keywords(tested).items()
    }
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
    for names, text in together.items():
        yield finding(
            "argument-fails",
            f"{join(f'`{name}`' for name in names)} must be equal, which nothing checks. With another {text}.",
            level="note",
        )


def _only_together(name: str, tried_ways: Sequence[tuple[Mapping[str, Any], Any, str]]) -> tuple[str, ...]:
    """Return the widths that run with equal other values, and not with another value of this one alone."""
    if kind_of(name.rpartition(".")[2]) not in ("dim", "mlp"):
        return ()
    alone = [error for changes, _, error in tried_ways if list(changes) == [name]]
    equal = [tuple(sorted(changes)) for changes, _, error in tried_ways
             if name in changes and len(changes) > 1 and len(set(changes.values())) == 1 and not error]  # fmt: skip
    return equal[0] if alone and all(alone) and equal else ()


def depth_miscounted(tested: ModelUnderTest) -> Iterator[Finding]:
    """With one more layer asked for, there must be one more, and as many as were asked for."""
    base, values = built_as_given(tested), numbers(tested)
    depths = {name: value for name, value in integers(values).items() if kind_of(name.rpartition(".")[2]) == "depth"}
    if len(depths) != 1 or not base.layers:
        raise NotMeasured("needs one argument that is a number of layers, and attention over tokens")
    [(name, depth)] = depths.items()
    more = built_with(tested, {name: depth + 1})
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


def _counts_layers(tested: ModelUnderTest, base: Built) -> str:
    """Return the argument that is called a number of heads and is the number of layers; "" if there is none."""
    for name, heads in integers(values_by_kind(tested)["heads"]).items():
        if heads == base.layers and built_with(tested, {name: 2 * heads}).layers == 2 * heads:
            return name
    return ""


def _is_shaping(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return kind_of(last) in _SHAPING and "init" not in last and "scale" not in last
