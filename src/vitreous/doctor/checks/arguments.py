"""Do the constructor's arguments do what their names say? The model is built again with other values."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def _dropout_not_passed_on(tested: ModelUnderTest) -> Iterator[Finding]:
    """With all dropout arguments at 0, no layer may drop anything because of its own default."""
    names = [name for name, value in numbers(tested).items() if is_dropout(name) and 0 <= value < 1]
    plain = [name for name in names if re.fullmatch(PLAIN_DROPOUT, name.rpartition(".")[2].lower())]
    without = built_with(tested, dict.fromkeys(names, 0.0)) if plain else Built()
    if without.default_dropout:
        yield finding(
            "argument-without-effect",
            f"with {join(f'`{name}=0`' for name in names)}, dropout remains in"
            f" {plural(len(without.default_dropout), 'layer')}, first {without.default_dropout[0]}, at the default of"
            " its class: the argument is not passed on to it.",
        )


def argument_fails(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model with other sizes: where every other value breaks a shape, the code has it fixed somewhere."""
    built_as_given(tested)
    if not is_image(tested.shape):
        raise NotMeasured("the model does not take images")
    failed: dict[str, str] = {}
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
