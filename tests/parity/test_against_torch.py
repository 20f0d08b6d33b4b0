"""Our attention and block against torch's own, outputs and gradients, with every parameter randomised.

Shapes: B images, N tokens, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.models.fast.attention import fused_attention_is_faster
from vitreous.models.fast.vit import FastAttention as Attention
from vitreous.models.fast.vit import FastBlock as Block

Randomise = Callable[..., nn.Module]
GEOMETRIES = {"spelled out": 7, "fused": 4}  # patch sizes on 28×28: 17 tokens and 50 tokens


def _config(patch_size: int) -> ViTConfig:
    return ViTConfig(patch_size=patch_size, dim=24, num_heads=3, mlp_dim=40)


def test_the_geometries_cover_both_paths() -> None:
    paths = {name: fused_attention_is_faster(c.num_tokens, c.head_dim) for name, c in _geometries()}
    assert paths == {"spelled out": False, "fused": True}


def _geometries() -> list[tuple[str, ViTConfig]]:
    return [(name, _config(patch_size)) for name, patch_size in GEOMETRIES.items()]


def _tokens(config: ViTConfig) -> Tensor:
    return torch.randn(3, config.num_tokens, config.dim, dtype=torch.float64, requires_grad=True)


def _output_and_gradients(run: Callable[[Tensor], Tensor], tokens: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    """Return the output and the gradients of a random projection of it, by the tokens and by every parameter."""
    output = run(tokens)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=output.dtype)
    return output, *torch.autograd.grad((output * direction).sum(), [tokens, *model.parameters()])


def _attention_pair(config: ViTConfig, randomise: Randomise) -> tuple[nn.Module, nn.MultiheadAttention]:
    """Return our attention and torch's with the same random parameters."""
    ours = randomise(Attention(config).double())
    theirs = nn.MultiheadAttention(config.dim, config.num_heads, batch_first=True).double()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    return ours, theirs


@pytest.mark.parametrize("patch_size", GEOMETRIES.values(), ids=GEOMETRIES)
def test_attention_equals_multihead_attention(patch_size: int, randomise: Randomise) -> None:
    config = _config(patch_size)
    ours, theirs = _attention_pair(config, randomise)
    tokens = _tokens(config)
    got = _output_and_gradients(ours, tokens, ours)
    expected = _output_and_gradients(lambda x: theirs(x, x, x, need_weights=False)[0], tokens, theirs)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("patch_size", GEOMETRIES.values(), ids=GEOMETRIES)
def test_attention_weights_equal_those_of_multihead_attention(patch_size: int, randomise: Randomise) -> None:
    config = _config(patch_size)
    ours, theirs = _attention_pair(config, randomise)
    tokens, taps = _tokens(config), {}
    ours(tokens, taps)
    expected = theirs(tokens, tokens, tokens, need_weights=True, average_attn_weights=False)[1]
    torch.testing.assert_close(taps["attention"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("patch_size", GEOMETRIES.values(), ids=GEOMETRIES)
def test_block_equals_pre_norm_encoder_layer(patch_size: int, randomise: Randomise) -> None:
    config = _config(patch_size)
    ours = randomise(Block(config, drop_path=0.0).double())
    theirs = nn.TransformerEncoderLayer(
        config.dim, config.num_heads, config.mlp_dim, dropout=0.0, activation="gelu", layer_norm_eps=config.norm_eps,
        batch_first=True, norm_first=True,
    ).double()  # fmt: skip
    names = {
        "self_attn.in_proj_weight": "attn.qkv.weight", "self_attn.in_proj_bias": "attn.qkv.bias",
        "self_attn.out_proj.weight": "attn.proj.weight", "self_attn.out_proj.bias": "attn.proj.bias",
        "linear1.weight": "mlp.fc1.weight", "linear1.bias": "mlp.fc1.bias",
        "linear2.weight": "mlp.fc2.weight", "linear2.bias": "mlp.fc2.bias",
    }  # fmt: skip
    renamed = {name: names.get(name, name) for name in theirs.state_dict()}
    theirs.load_state_dict({name: ours.state_dict()[renamed[name]] for name in theirs.state_dict()})

    tokens = _tokens(config)
    got = _output_and_gradients(ours, tokens, ours)
    expected = _output_and_gradients(theirs, tokens, theirs)
    torch.testing.assert_close(got[:2], expected[:2], rtol=1e-9, atol=1e-9)
    our_gradients = dict(zip(dict(ours.named_parameters()), got[2:], strict=True))
    for name, gradient in zip(dict(theirs.named_parameters()), expected[2:], strict=True):
        torch.testing.assert_close(our_gradients[renamed[name]], gradient, rtol=1e-9, atol=1e-9, msg=name)
