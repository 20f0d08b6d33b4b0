"""Our whole ViT against timm's, torchvision's and Hugging Face's: logits, and gradients by every parameter.

Each peer's weights are converted to our names by a linear map of tensors (renaming, joining q, k and v), so the same
map converts its gradients. Every parameter is random; float64 keeps the comparison tight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.config.presets import preset
from vitreous.models import build, count_parameters

Randomise = Callable[..., nn.Module]
Tensors = Mapping[str, Tensor]

#: 17 tokens (spelled-out attention) and 65 tokens with heads of width 8 (the fused kernel).
PATCH_SIZES = [8, 4]


def _config(patch_size: int, **changes: object) -> ViTConfig:
    return ViTConfig(
        image_size=32, channels=3, num_classes=11, patch_size=patch_size, dim=24, depth=3, num_heads=3, mlp_dim=40
    ).replace(**changes)


def _same_outputs_and_gradients(ours: nn.Module, theirs: nn.Module, to_ours: Callable[[Tensors], Tensors]) -> None:
    ours.load_state_dict(to_ours({name: p.detach() for name, p in theirs.named_parameters()}))  # strict
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    direction = torch.randn(2, 11, dtype=torch.float64)
    input_gradients, logits = [], []
    for model in (ours, theirs):
        copy = images.clone().requires_grad_()
        output = model(copy)
        output = getattr(output, "logits", output)  # Hugging Face wraps its logits
        (output * direction).sum().backward()
        logits.append(output.detach())
        input_gradients.append(copy.grad)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(input_gradients[0], input_gradients[1], rtol=1e-8, atol=1e-9)
    expected = to_ours({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-8, atol=1e-9, msg=name)


# --- timm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch_size", PATCH_SIZES)
def test_equals_timm(patch_size: int, timm: ModuleType, randomise: Randomise) -> None:
    theirs = timm.VisionTransformer(
        img_size=32, patch_size=patch_size, num_classes=11, embed_dim=24, depth=3, num_heads=3, mlp_ratio=40 / 24
    )
    ours = build(_config(patch_size)).double().eval()
    _same_outputs_and_gradients(ours, randomise(theirs.double().eval()), lambda tensors: tensors)


def test_mean_pooling_equals_timm(timm: ModuleType, randomise: Randomise) -> None:
    theirs = timm.VisionTransformer(
        img_size=32, patch_size=8, num_classes=11, embed_dim=24, depth=3, num_heads=3, mlp_ratio=40 / 24,
        global_pool="avg", class_token=False, fc_norm=False,
    )  # fmt: skip
    ours = build(_config(8, pool="mean")).double().eval()
    _same_outputs_and_gradients(ours, randomise(theirs.double().eval()), lambda tensors: tensors)


# --- torchvision ---------------------------------------------------------------------------------------------

_TORCHVISION_NAMES = [
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.3\.", ".mlp.fc2."),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.pre_logits\.", "pre_logits."),
    (r"^heads\.head\.", "head."),
]


def _renamed(name: str, rules: list[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _from_torchvision(tensors: Tensors) -> Tensors:
    return {_renamed(name, _TORCHVISION_NAMES): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("patch_size", PATCH_SIZES)
@pytest.mark.parametrize("head_hidden", [None, 13], ids=["linear head", "mlp head"])
def test_equals_torchvision(
    patch_size: int, head_hidden: int | None, torchvision_vit: ModuleType, randomise: Randomise
) -> None:
    theirs = torchvision_vit.VisionTransformer(
        image_size=32, patch_size=patch_size, num_layers=3, num_heads=3, hidden_dim=24, mlp_dim=40, num_classes=11,
        representation_size=head_hidden,
    )  # fmt: skip
    head = {"head": "mlp", "head_hidden": head_hidden} if head_hidden else {}
    ours = build(_config(patch_size, **head)).double().eval()
    _same_outputs_and_gradients(ours, randomise(theirs.double().eval()), _from_torchvision)


# --- Hugging Face --------------------------------------------------------------------------------------------

_HUGGING_FACE_NAMES = [
    (r"^vit\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layers\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
]


def _from_hugging_face(tensors: Tensors) -> Tensors:
    ours = {_renamed(name, _HUGGING_FACE_NAMES): tensor for name, tensor in tensors.items()}
    for name in [name for name in ours if ".attention.q_proj." in name]:
        parts = [ours.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        ours[name.replace(".attention.q_proj.", ".attn.qkv.")] = torch.cat(parts)
    return ours


@pytest.mark.parametrize("patch_size", PATCH_SIZES)
@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_equals_hugging_face(patch_size: int, gelu: str, transformers_vit: ModuleType, randomise: Randomise) -> None:
    config = transformers_vit.ViTConfig(
        image_size=32, patch_size=patch_size, num_hidden_layers=3, num_attention_heads=3, hidden_size=24,
        intermediate_size=40, num_labels=11, hidden_act={"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[gelu],
    )  # fmt: skip
    theirs = transformers_vit.ViTForImageClassification(config)
    ours = build(_config(patch_size, norm_eps=config.layer_norm_eps, gelu=gelu)).double().eval()
    _same_outputs_and_gradients(ours, randomise(theirs.double().eval()), _from_hugging_face)


# --- parameter counts, nothing allocated -----------------------------------------------------------------------


def _count_on_meta(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return count_parameters(make())


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("vit-b16", "vit_b_16"), ("vit-b32", "vit_b_32"), ("vit-l16", "vit_l_16"), ("vit-l32", "vit_l_32")],
)
def test_parameters_equal_torchvision(name: str, theirs: str, torchvision_vit: ModuleType) -> None:
    expected = _count_on_meta(getattr(torchvision_vit, theirs))
    assert _count_on_meta(lambda: build(preset(name).model)) == expected


def test_huge_parameters_equal_torchvision(torchvision_vit: ModuleType) -> None:
    # torchvision's builder is for 224 pixels but its published weights are not, so the geometry is given here
    theirs = _count_on_meta(
        lambda: torchvision_vit.VisionTransformer(
            image_size=224, patch_size=14, num_layers=32, num_heads=16, hidden_dim=1280, mlp_dim=5120
        )
    )
    assert _count_on_meta(lambda: build(preset("vit-h14").model)) == theirs


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("vit-ti16", "vit_tiny_patch16_224"), ("vit-s16", "vit_small_patch16_224"), ("vit-b16", "vit_base_patch16_224")],
)
def test_parameters_equal_timm(name: str, theirs: str, timm: ModuleType) -> None:
    assert _count_on_meta(lambda: build(preset(name).model)) == _count_on_meta(getattr(timm, theirs))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit-b16", 86_567_656), ("vit-l16", 304_326_632), ("vit-l32", 306_535_400), ("vit-h14", 632_045_800)],
)
def test_parameters_are_those_of_the_equations(name: str, parameters: int) -> None:
    assert _count_on_meta(lambda: build(preset(name).model)) == parameters
