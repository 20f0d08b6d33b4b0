"""Change fields of valid configurations at random: the peer's numbers under the same change, or a refusal by name.

A peer may refuse what we accept (it is stricter about types, or about names that do not matter): then ours must be the
numbers of the unchanged model.
"""

from __future__ import annotations

import json
import random
from typing import Any

import families
import mutations
import pytest
import torch

from vitreous.errors import CheckpointError

CHANGES = 10  # per family, one to two seconds; while this was written, 50 to 400 of each were tried
TOLERANCE = 1e-5

#: Fields that a configuration does not have and that a peer, or a later version of it, may read.
NEW_FIELDS: dict[str, list[Any]] = {
    "head_dim": [8, 16], "is_causal": [True], "rope_theta": [100.0], "use_swiglu_ffn": [True], "qk_norm": [True, False],
    "is_decoder": [True, False], "global_pool": ["max", "avg", "token"], "norm_layer": ["rmsnorm", "layernorm"],
    "init_values": [0.1, None], "dynamic_img_size": [True], "act_layer": ["gelu_tanh", "relu", "quick_gelu", "gelu"],
    "fc_norm": [True, False], "class_token": [False], "reg_tokens": [2, 0], "pool_include_prefix": [True],
    "final_norm": [False], "pre_norm": [True], "no_embed_class": [True], "hidden_act": ["relu", "gelu_new"],
    "layer_norm_eps": [1e-3], "num_register_tokens": [0, 3], "attention_bias": [False], "proj_bias": [False],
    "drop_path_rate": [0.5], "output_attentions": [True], "vision_use_head": [False], "scale_attn_norm": [True],
}  # fmt: skip
WORDS = ["gelu", "gelu_new", "relu", "silu", "quick_gelu", "token", "avg", "max", "vit", "none", "", "learn"]
FAMILIES = (
    "ViTForImageClassification",
    "DeiTForImageClassification",
    "Dinov2Model",
    "CLIPVisionModel",
    "SiglipForImageClassification",
    "Dinov2WithRegistersModel",
    "timm",
)


def changed(value: Any, rng: random.Random) -> Any:
    """Return another value, mostly of the same type."""
    others: list[Any] = [None, "x", [], 3, [[]], {"a": []}, float("inf"), float("nan"), 10**400, True]
    if isinstance(value, bool):
        others += [not value] * 4
    elif isinstance(value, int):
        others += [0, 1, 2, value + 1, 2 * value, -value, float(value)]
    elif isinstance(value, float):
        others += [0.0, 10 * value, value / 10, 1e-3, -value]
    elif isinstance(value, str):
        others += rng.sample(WORDS, 6)
    elif isinstance(value, list):
        others += [value[:1], value * 2, value[::-1], [value], [{}]]
    elif isinstance(value, dict):
        others += [{}, dict(list(value.items())[:1])]
    return rng.choice(others)


def mutate(config: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the name of a field and the configuration with another value for it, without it, or with it."""
    result = json.loads(json.dumps(config))
    nested = [
        value
        for name, value in result.items()
        if isinstance(value, dict) and name in ("model_args", "pretrained_cfg", "vision_config")
    ]
    target = rng.choice([result, *nested])
    kind = rng.random()
    if kind < 0.35:
        name = rng.choice(list(NEW_FIELDS))
        target[name] = rng.choice(NEW_FIELDS[name])
    else:
        name = rng.choice(sorted(target))
        if kind < 0.45:
            del target[name]
        else:
            target[name] = changed(target[name], rng)
    return name, result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_peers_numbers_or_a_refusal(family, tmp_path, timm, transformers_vit):
    mutations.quiet()
    mutations.save_base(family, tmp_path)
    path, images = tmp_path / "config.json", families.images_for(families.TINY)
    config, rng = json.loads(path.read_text()), random.Random(family)
    accepted = refused = 0
    with torch.no_grad():
        plain = mutations.our_output(family, tmp_path, images)
        for _ in range(CHANGES):
            name, other = mutate(config, rng)
            path.write_text(json.dumps(other))
            try:
                ours = mutations.our_output(family, tmp_path, images)
            except CheckpointError:
                refused += 1
                continue
            theirs = mutations.peer_output(family, tmp_path, images)
            expected = plain if theirs is None else theirs
            assert ours.shape == expected.shape, (name, other)
            assert (ours - expected).abs().max() < TOLERANCE, (name, other)
            accepted += 1
    assert accepted
    assert refused


#: base, a field: bench/mutations.py tries every field of every base, the page has its counts
CHANGED = [("timm, CLIP", "architecture"), ("timm, mean and fc_norm", "fc_norm"), ("timm", "global_pool")]
CHANGED += [
    ("IJepaForImageClassification", "layer_norm_eps"),
    ("CLIPVisionModel", "hidden_act"),
    ("ViTModel", "pooler"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("base", "field"), CHANGED)
def test_every_value_of_a_field(base, field, timm, transformers_vit):
    mutations.quiet()
    found = {str(change): kind for change, kind, _ in mutations.outcomes(base, field)}
    assert len(found) > 1
    assert not {change: kind for change, kind in found.items() if kind.startswith(("WRONG", "CRASH"))}
