"""Does the constructor's dropout reach the MLPs? Measured on models that are built with another rate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from vitreous.doctor.attention_ops import layer_op
from vitreous.doctor.constructors import constructor_values, with_values
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import seed_everything
from vitreous.reports.formats import plural

#: Names of an argument that concerns all of the model; attn_drop, pos_drop or drop_path concern a part of it.
_PLAIN = r"p|p_?drop|drop(out)?(_?(rate|prob|probability|ratio|p))?"
_RATE = 0.37  # nobody's default


def not_passed_on(tested: ModelUnderTest) -> Iterator[Finding]:
    """Build the model with another dropout: in MLPs that have a dropout layer, its rate must change as well."""
    names = [
        name
        for name, value in constructor_values(tested.constructor).items()
        if isinstance(value, int | float) and 0 <= value < 1 and re.fullmatch(_PLAIN, name.rpartition(".")[2].lower())
    ]
    if not names or tested.constructor is None:
        raise NotMeasured("the constructor has no argument for dropout")
    own = _rates(tested.model)
    others = _rates(_rebuilt(tested, dict.fromkeys(names, _RATE)))
    if own.keys() != others.keys():
        raise NotMeasured("with another dropout the model has other layers")
    passed = [name for name, rate in others.items() if rate == _RATE != own[name]]
    called = _called(tested, own)
    left_out = [name for name, rate in others.items() if rate == own[name] == 0 and name in called]
    left_out = [name for name in left_out if _is_in_mlp(tested, name)]
    if passed and left_out:
        yield finding(
            "dropout-not-passed-on",
            f"with {' and '.join(f'`{name}={_RATE}`' for name in names)}, {plural(len(passed), 'dropout layer')} of"
            f" {len(own)} ({quoted(passed)}) {'has' if len(passed) == 1 else 'have'} that rate, but"
            f" {plural(len(left_out), 'layer')} in the MLPs ({quoted(left_out)}) still"
            f" {'has' if len(left_out) == 1 else 'have'} 0, whatever is asked for.",
            module=left_out[0].rpartition(".")[0],
        )


def _rates(model: nn.Module) -> dict[str, float]:
    return {name: module.p for name, module in model.named_modules() if isinstance(module, _DropoutNd)}


def _rebuilt(tested: ModelUnderTest, changes: dict[str, Any]) -> nn.Module:
    assert tested.constructor is not None
    seed_everything(tested.seed)
    try:
        return tested.constructor[0](**with_values(tested.constructor, changes))
    except Exception as error:
        raise NotMeasured(f"the model cannot be built with another dropout: {type(error).__name__}") from error


def _called(tested: ModelUnderTest, names: dict[str, float]) -> set[str]:
    """Return those of the dropout layers that a forward pass in training mode calls."""
    called: set[str] = set()
    with tested.borrowed(training=True) as model:
        hooks = [
            model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.add(name))
            for name in names
        ]
        try:
            tested.outputs(model, tested.images[: tested.num_recorded])
        finally:
            for hook in hooks:
                hook.remove()
    return called


def _is_in_mlp(tested: ModelUnderTest, name: str) -> bool:
    """Whether the module that has this layer runs linear layers only: two at least, of which each reads tokens."""
    owner = name.rpartition(".")[0]
    if not owner:
        return False
    nodes = [node for node in tested.recording.nodes if node.module == owner or node.module.startswith(f"{owner}.")]
    layers = {layer.weight: layer for node in nodes if (layer := layer_op(node)) is not None}
    are_tokens = all(
        layer.output.tensor.numel() > tested.num_recorded * layer.out_features for layer in layers.values()
    )
    attends = any(node.op in ("_softmax", "_safe_softmax", "bmm", "baddbmm") and all(
        parent.from_input for parent in node.parents) for node in nodes)  # fmt: skip
    return len(layers) == 2 and are_tokens and not attends
