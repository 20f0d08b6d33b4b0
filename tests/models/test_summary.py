"""`shapes`: parameters, FLOPs and shapes equal those of the model that is built, for every kind."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.config import ArticleCNNConfig, ArticleDesignConfig, ArticleViTConfig, CNNConfig, ModelConfig, ViTConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.models import ViT, build, count_parameters
from vitreous.models.shapes_table import shapes_table
from vitreous.models.summary import as_json, count_flops, count_parameters_of, shapes

SMALL = ViTConfig(image_size=12, patch_size=4, channels=2, num_classes=5, dim=16, depth=2, num_heads=2, mlp_dim=24)
VARIANTS: dict[str, ModelConfig] = {
    "vit": SMALL,
    "mean": SMALL.replace(pool="mean"),
    "seq": SMALL.replace(pool="seq"),
    "no positions": SMALL.replace(positions="none"),
    "registers": SMALL.replace(registers=2),
    "registers, mean": SMALL.replace(registers=2, pool="mean"),
    "registers, seq": SMALL.replace(registers=1, pool="seq"),
    "norm after the mean": SMALL.replace(pool="mean", norm_after_pool=True),
    "CLIP": SMALL.replace(pre_norm=True, gelu="quick"),
    "learned-2d": SMALL.replace(positions="learned-2d"),
    "sincos-2d": SMALL.replace(positions="sincos-2d"),
    "relative": SMALL.replace(positions="relative"),
    "relative, mean": SMALL.replace(positions="relative", pool="mean"),
    "stem": SMALL.replace(stem_channels=(3, 6), patch_size=1),
    "deep stem": SMALL.replace(stem_channels=(3, 6), stem_depth=2, patch_size=1),
    "stem, padded": SMALL.replace(stem_channels=(3,), image_size=(11, 13), patch_size=4, fit="pad"),
    "mlp head": SMALL.replace(head="mlp"),
    "mlp head, narrow": SMALL.replace(head="mlp", head_hidden=7),
    "not square": SMALL.replace(image_size=(8, 12), patch_size=(4, 2)),
    "padded": SMALL.replace(image_size=(11, 10), fit="pad"),
    "resized": SMALL.replace(image_size=(11, 10), fit="resize"),
    "no qkv bias": SMALL.replace(qkv_bias=False),
    "many tokens": SMALL.replace(image_size=24, num_heads=4),  # attention is fused here
    "cnn": CNNConfig(),
    "cnn, other size": CNNConfig(image_size=(9, 20), channels=3, conv_channels=(3, 5), hidden=8, num_classes=4),
    "post-cnn": ArticleCNNConfig(),
    "post-vit": ArticleViTConfig(dim=32, num_heads=2),
    "post-vit, fixed": ArticleViTConfig(
        dim=32, num_heads=2, fixes=("attention", "normalisation", "class-token", "pre-norm", "head")
    ),
    "post-design": ArticleDesignConfig(),
    "post-design, fixed": ArticleDesignConfig(positions="per-index", residual="paper", depth=3),
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def _built(config: ModelConfig, device: str = "cpu") -> nn.Module:
    with torch.device(device):
        return build(config).eval()


def _measured_flops(model: nn.Module, config: ModelConfig, device: str = "cpu") -> int:
    images = torch.zeros(1, config.channels, *config.image_size, device=device)
    # the fused CPU kernel is invisible to the counter: the same products, spelled out, are not
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        # the readable model computes every token of every block, as the paper writes it, but for skipped patches; the
        # last block of the fast one computes only the token that the head reads
        with torch.device(device):
            readable = ViT(config) if isinstance(config, ViTConfig) else model
        readable(images)
    return counter.get_total_flops()


def test_the_fast_path_skips_what_the_head_does_not_read() -> None:
    config = VARIANTS["vit"]
    model, images = _built(config), torch.zeros(1, config.channels, *config.image_size)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images)
    assert counter.get_total_flops() < 0.95 * count_flops(config)


@every_variant
def test_totals_are_those_of_the_model(config: ModelConfig) -> None:
    model = _built(config)
    assert count_parameters_of(config) == count_parameters(model)
    assert count_flops(config) == _measured_flops(model, config)


@pytest.mark.parametrize("name", PRESETS)
def test_totals_of_every_preset(name: str) -> None:
    """At full size, ViT-H/14 too: on the meta device nothing is allocated."""
    config = preset(name).model
    device = "cpu" if config.kind == "post-vit" else "meta"  # the article's class token does not follow a device
    model = _built(config, device)
    assert count_parameters_of(config) == count_parameters(model)
    assert count_flops(config) == _measured_flops(model, config, device)


@every_variant
def test_every_step_counts_the_parameters_it_owns(config: ModelConfig) -> None:
    """Each parameter belongs to exactly one step, and the step's count is that of its parameters."""
    unclaimed = dict(_built(config).named_parameters())
    for step in shapes(config):
        owned = 0
        for owner in step.owns:
            pattern = re.compile(re.escape(owner).replace(r"\*", r"\d+") + r"(\..*)?$")
            names = [name for name in unclaimed if pattern.match(name)]
            assert names, f"{owner} of step {step.name!r} is not a parameter of the model"
            owned += sum(unclaimed.pop(name).numel() for name in names)
        assert owned == step.parameters, step.name
    assert not unclaimed


@pytest.mark.parametrize("name", [name for name, config in VARIANTS.items() if config.kind == "vit"])
def test_shapes_are_those_of_the_taps(name: str) -> None:
    config = VARIANTS[name]
    taps: dict[str, torch.Tensor] = {}
    _built(config)(torch.randn(3, config.channels, *config.image_size), taps)
    steps = [step for step in shapes(config) if step.tap]
    assert len(steps) == 7
    for step in steps:
        expected = tuple(3 if size == "B" else size for size in step.shape)
        assert tuple(taps[step.tap.replace("*", "0")].shape) == expected, step.name


@every_variant
def test_the_last_shape_is_the_models(config: ModelConfig) -> None:
    output = _built(config)(torch.randn(2, config.channels, *config.image_size))
    assert shapes(config)[-1].shape == ("B", *output.shape[1:])
    assert shapes(config)[0].shape == ("B", config.channels, *config.image_size)


def test_the_articles_geometry_reads_as_in_the_spec() -> None:
    steps = {step.symbol: step for step in shapes(preset("vit").model)}
    assert steps["x_p"].shape == ("B", 16, 49)
    assert steps["x_p E"].numbers == "16 × 49 → 64"
    assert steps["x_p E"].equation == "Eq. 1"
    assert steps["[x_class; x_p E]"].shape == ("B", 17, 64)
    assert steps["A = softmax(q kᵀ / √D_h)"].equation == "Eq. 6"
    assert {"z′ = MSA(LN(z)) + z", "z = MLP(LN(z′)) + z′", "y = LN(z_L⁰)"} <= steps.keys()


def test_published_figures() -> None:
    assert count_parameters_of(preset("vit-b16").model) == 86_567_656
    assert count_flops(preset("vit-b16").model) == 35_127_656_448  # 17.6 billion multiply-adds, as others report
    assert {step.symbol: step.shape for step in shapes(preset("post-cnn").model)}["ReLU(x W_1)"] == ("B", 128)


def test_blocks_are_listed_once_and_counted_for_all() -> None:
    one, four = (shapes(SMALL.replace(depth=depth)) for depth in (1, 4))
    assert len(one) == len(four)
    for a, b in zip(one, four, strict=True):
        assert b.times in (1, 4)
        assert (b.parameters, b.flops) == (a.parameters * b.times, a.flops * b.times)


@every_variant
def test_table_and_json(config: ModelConfig) -> None:
    values = json.loads(json.dumps(as_json(config)))
    assert values["parameters"] == sum(step["parameters"] for step in values["steps"])
    assert values["flops"] == sum(step["flops"] for step in values["steps"]) == count_flops(config)
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(shapes_table(config, title="a title"))
    text = console.export_text()
    for step in shapes(config):
        assert step.name in text
        assert step.symbol in text  # brackets too: they are not markup
    assert f"{count_parameters_of(config):,}" in text
