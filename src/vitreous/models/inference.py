"""Logits without gradients, by the shortest way: what `predict`, `evaluate` and validation use.

`ViT.forward` is written to be read and looked into: every step is a module with a name, which hooks can reach. When
only the answer is wanted, torch can compute a whole encoder layer in one call; the numbers are the same (a test
compares them over the variants), small batches no longer wait for Python, and large ones save a few copies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.models.vit import Block, ViT


def answer(model: nn.Module, images: Tensor) -> Tensor:
    """`model(images)`, for a model in eval mode where no gradient is wanted."""
    if not _is_plain(model) or torch.is_grad_enabled() or images.device.type != "cpu":
        return model(images)
    assert isinstance(model, ViT)
    *lower, last = model.blocks
    x = model.embed(images)
    for block in lower:
        x = _encoder_layer(x, block)
    # of the last layer the head reads the class token's row alone, which the block itself knows to compute
    x = last(x, first_only=True) if model.cls_token is not None else _encoder_layer(x, last)
    return model.classify(x)


def _is_plain(model: nn.Module) -> bool:
    """Whether torch's encoder layer is this model's: erf GELU, biased qkv, positions added to the tokens."""
    if not isinstance(model, ViT) or model.training:
        return False
    config = model.config
    return config.gelu == "erf" and config.qkv_bias and config.positions != "relative" and config.num_heads % 2 == 0


def _encoder_layer(x: Tensor, block: nn.Module) -> Tensor:
    """z' = MSA(LN(z)) + z; z = MLP(LN(z')) + z': the call that nn.TransformerEncoderLayer makes in eval mode."""
    assert isinstance(block, Block)
    attn, mlp = block.attn, block.mlp
    return torch._transformer_encoder_layer_fwd(
        x, x.shape[-1], attn.num_heads, attn.qkv.weight, attn.qkv.bias, attn.proj.weight, attn.proj.bias,
        True, True, block.norm1.eps, block.norm1.weight, block.norm1.bias, block.norm2.weight, block.norm2.bias,
        mlp.fc1.weight, mlp.fc1.bias, mlp.fc2.weight, mlp.fc2.bias, None, None,
    )  # fmt: skip
