"""No findings on healthy models: the presets, other libraries' ViTs, and torch's own encoder used correctly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.doctor import Diagnosis, diagnose
from vitreous.doctor.checks import fresh
from vitreous.models import build

SMALL = ["vit", "vit-p4", "vit-hybrid", "cnn"]
LARGE = [name for name in PRESETS if name not in SMALL and isinstance(preset(name).model, ViTConfig)]

#: Checks that are not measured without data, or without a constructor that takes arguments.
NEEDS_DATA = {
    "inputs-wrong-range", "inputs-not-normalised", "inputs-channel-order", "labels-out-of-range", "train-test-overlap",
    "argument-without-effect", "argument-fails", "depth-miscounted",
}  # fmt: skip


def assert_healthy(diagnosis: Diagnosis, unmeasured: set[str] = frozenset()) -> None:
    assert not diagnosis.findings, "\n".join(f"{found.id}: {found.measured}" for found in diagnosis.findings)
    left_out = {item.id: item.reason for item in diagnosis.not_measured if item.id not in NEEDS_DATA}
    assert set(left_out) == set(unmeasured), left_out
    assert diagnosis.exit_code == 0


#: Checks that need attention, tokens or residual branches.
TRANSFORMER = {
    "tokens-never-attend", "attention-scale", "softmax-axis", "causal-mask", "attention-blown-up",
    "attention-collapsed", "heads-scrambled", "patches-scrambled", "norm-axis", "norm-shared",
    "class-token-untrained", "class-token-not-read", "skip-missing", "skip-normalised", "mlp-misses-attention",
    "branch-not-normalised", "branch-doubled", "activations-with-depth", "gradients-with-depth",
    "positions-repeated", "positions-unused", "softmax-missing", "tokens-masked", "weights-too-large",
    "softmax-repeated", "projections-shared", "pooled-over-features", "norm-epsilon", "norm-repeated",
    "skip-multiplied", "branch-activation", "projection-missing", "final-norm-missing", "heads-share-weights",
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_presets(name: str, monkeypatch) -> None:
    config = preset(name).model
    expected = TRANSFORMER if name == "cnn" else set()
    if name == "vit-p4":  # the slowest to overfit, which the other cases cover
        monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 0.0)
        expected = {"cannot-overfit"}
    assert_healthy(diagnose(build(config), factory=lambda: build(config), fresh=True), expected)


def small(name: str) -> ViTConfig:
    """Return a preset's model at depth 2 and dim 64; vit-ti16 is small enough."""
    config = preset(name).model
    if name == "vit-ti16":
        return config
    return config.replace(depth=2, dim=64, num_heads=2, mlp_dim=128)


def test_a_large_preset(no_overfitting) -> None:
    """All checks but overfitting, which takes most of a minute at 224 pixels: see `test_large_presets`."""
    config = small("vit-b32")
    assert_healthy(diagnose(build(config), factory=lambda: build(config), fresh=True), {"cannot-overfit"})


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_presets(name: str) -> None:
    config = small(name)
    diagnosis = diagnose(build(config), factory=lambda: build(config), fresh=True)
    assert not diagnosis.findings
    # time may run out, pixels that a convolutional stem mixes cannot be followed, and of 49 positions some may not be
    # chosen in these images
    absent = {"cannot-overfit", "patches-scrambled"} | ({"positions-unused"} if config.tokens != "all" else set())
    assert {item.id for item in diagnosis.not_measured} <= NEEDS_DATA | absent


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "mean", "positions": "sincos-2d"}, {"pool": "seq", "positions": "relative"},
        {"head": "mlp", "positions": "learned-2d", "zero_head": False, "num_classes": 2},
        {"image_size": 30, "fit": "pad"}, {"image_size": 30, "fit": "resize", "dropout": 0.1},
        {"image_size": (28, 20), "patch_size": (7, 5), "depth": 6, "drop_path": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_variants(changes: dict) -> None:
    config = ViTConfig(**{"dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64, **changes})
    absent = {"class-token-untrained"} if config.pool != "cls" else set()
    absent |= {"positions-repeated", "positions-unused"} if config.positions == "relative" else set()
    assert_healthy(diagnose(build(config), seed=3), absent)


def test_timm(timm) -> None:
    plain = timm.VisionTransformer(
        img_size=28, patch_size=7, in_chans=1, num_classes=10, embed_dim=48, depth=2, num_heads=3
    )
    assert_healthy(diagnose(plain))
    modern = timm.VisionTransformer(
        img_size=32, patch_size=8, num_classes=10, embed_dim=48, depth=2, num_heads=3, global_pool="avg",
        init_values=1e-5, class_token=False, qk_norm=True, drop_path_rate=0.2,
    )  # fmt: skip
    # normalised queries need no scale
    assert_healthy(diagnose(modern), {"class-token-untrained", "attention-scale"})


def test_timm_swin_with_one_block_per_stage(timm) -> None:
    """No window is shifted, so windows never meet; the tokens of a window do."""
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"img_size": 32, "patch_size": 2, "embed_dim": 24, "num_heads": (2, 4), "window_size": 4, "num_classes": 10}
    assert diagnose(SwinTransformer(depths=(1, 1), **sizes)).ids() == {"patch-order-ignored"}


def test_timm_convit_keeps_a_table_that_forward_makes(timm) -> None:
    from timm.models.convit import ConVit

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 10}
    diagnosis = diagnose(ConVit(local_up_to_layer=2, **sizes))
    assert diagnosis.ids() == diagnosis.ids("note") == {"unregistered-tensors"}


def test_torchvision(torchvision_vit) -> None:
    model = torchvision_vit.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10, dropout=0.1
    )
    assert_healthy(diagnose(model))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hugging_face(transformers_vit, attention: str) -> None:
    config = transformers_vit.ViTConfig(
        image_size=28, patch_size=7, num_channels=1, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=96, num_labels=10, attn_implementation=attention,
    )  # fmt: skip
    assert_healthy(diagnose(transformers_vit.ViTForImageClassification(config)))


class EncoderViT(nn.Module):
    """Torch's own encoder with batch_first=True, for patches (B, 16, 7, 7)."""

    def __init__(self, norm_first: bool):
        super().__init__()
        self.project = nn.Linear(49, 32)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(32) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False, norm=norm)
        self.head = nn.Linear(32, 10)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.project(patches.flatten(2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder_on_patches(norm_first: bool) -> None:
    diagnosis = diagnose(EncoderViT(norm_first), input_shape=(16, 7, 7), factory=lambda: EncoderViT(norm_first))
    assert_healthy(diagnosis, {"border-ignored", "patches-scrambled"})


@pytest.mark.parametrize("seed", range(3))
def test_no_false_alarm_by_chance(tiny_vit, seed: int) -> None:
    torch.manual_seed(seed)
    assert_healthy(diagnose(tiny_vit(), factory=tiny_vit, input_shape=(1, 12, 12), seed=seed))


def test_a_trained_model_is_not_fresh(tiny_vit, randomise) -> None:
    diagnosis = diagnose(randomise(tiny_vit()), input_shape=(1, 12, 12))
    unmeasured = {item.id: item.reason for item in diagnosis.not_measured}
    assert not diagnosis.findings
    assert "trained already" in unmeasured["first-loss"]
    assert "trained already" in unmeasured["cannot-overfit"]


def test_positions_of_tokens_that_a_model_chooses():
    """Of 49 rows, 32 images may read all but one: which are read depends on the images, so none is unused."""
    torch.manual_seed(0)
    diagnosis = diagnose(build(preset("mnist-best").model), seed=0)
    assert "positions-unused" not in {found.id for found in diagnosis.findings}
