"""Random healthy ViTs have no finding; the same ones with a fault planted have exactly that one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from vit_variants import Style, Variant, random_style

from vitreous.doctor import diagnose

HEALTHY = range(12)


@pytest.mark.parametrize("seed", HEALTHY)
def test_healthy_variants_have_no_finding(seed: int, no_overfitting) -> None:
    style = random_style(seed)
    torch.manual_seed(seed)
    diagnosis = diagnose(Variant(style), input_shape=style.image, factory=lambda: Variant(style), seed=seed)
    found = [f"{found.level} {found.id}: {found.measured}" for found in diagnosis.findings]
    if style.tokens == 1:  # queries and keys cannot matter, which is noted
        assert diagnosis.ids() <= {"parameters-without-gradient"}, (style, found)
        assert not diagnosis.ids("warning", "broken"), (style, found)
    else:
        assert not found, style


# --- planted faults ------------------------------------------------------------------------------------------


BY_HAND = ["separate", "fused", "list"]
#: Finding, the fault, and the styles in which it is possible.
FAULTS: list[tuple[str, str, dict[str, list]]] = [
    ("attention-scale", "scale of the width", {"attention": [*BY_HAND, "einsum", "transposed"]}),
    ("softmax-axis", "softmax over queries", {"attention": BY_HAND}),
    ("causal-mask", "causal", {"attention": BY_HAND, "pool": ["mean", "max"]}),
    ("heads-scrambled", "heads reshaped", {"attention": ["separate", "fused", "sdpa", "conv1d"]}),
    ("patches-scrambled", "tokens reshaped", {"patches": ["conv", "unfold", "permute", "im2col"]}),
    ("patch-order-ignored", "", {"positions": ["none"], "patches": ["conv", "unfold", "permute", "im2col", "loop"]}),
    ("block-reused", "one block", {}),
    ("skip-missing", "no skip", {"order": ["pre"]}),
    ("skip-normalised", "skip from the norm", {"order": ["pre"], "norm": ["layer", "by-hand", "rms", "std"]}),
    ("branch-doubled", "doubled", {"order": ["pre"]}),
    ("probabilities-not-logits", "softmax", {}),
    ("activation-on-logits", "relu", {}),
    ("dropout-in-eval", "dropout in eval", {"dropout": [0.0]}),
    ("norm-axis", "norm over tokens", {"order": ["pre", "parallel"]}),
    ("norm-axis", "norm over all", {"order": ["pre", "parallel"]}),
]


def faulty_style(seed: int, fault: str, allowed: dict[str, list]) -> Style:
    """Return a style in which the fault can show: several tokens and heads, two blocks or more."""
    style = replace(random_style(seed), image=(3, 16, 16), patch=(4, 4), heads=2 + seed % 2 * 2, depth=2 + seed % 2)
    style = replace(style, dim=(16, 32)[seed % 2], fault=fault)
    chosen = {
        name: values[seed % len(values)] for name, values in allowed.items() if getattr(style, name) not in values
    }
    style = replace(style, **chosen)
    return replace(style, norm="layer") if style.order != "pre" and style.norm == "batch" else style


@pytest.mark.parametrize(("id", "fault", "allowed"), FAULTS, ids=[fault or id for id, fault, _ in FAULTS])
@pytest.mark.parametrize("seed", [1, 2])
def test_planted_faults_are_found(id: str, fault: str, allowed: dict[str, list], seed: int, no_overfitting) -> None:
    style = faulty_style(seed, fault, allowed)
    torch.manual_seed(seed)
    diagnosis = diagnose(Variant(style), input_shape=style.image, factory=lambda: Variant(style), fresh=True, seed=seed)
    found = [f"{found.level} {found.id}: {found.measured}" for found in diagnosis.findings]
    assert diagnosis.ids("warning", "broken") == {id}, (style, found)
