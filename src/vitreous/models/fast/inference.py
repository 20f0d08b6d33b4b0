"""Logits without gradients, by the shortest way: what `predict`, `evaluate` and validation use.

`ViT.forward` is written to be read and looked into: every step is a module with a name, which hooks can reach. When
only the answer is wanted, torch can compute a whole encoder layer in one call; the numbers are the same (a test
compares them over the variants), small batches no longer wait for Python, and large ones save a few copies and go
through the blocks in parts that stay in the cache, one half of the images on each of two threads.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.hardware import SplitBatch
from vitreous.models.vit import Block, ViT, patchify

_MANY_TOKENS = 800  # in a batch, all images together; below it a call costs more than the work it saves
_CACHED_TOKENS = 3200  # 64 images of 50 tokens: 8 % faster than 256 at once (docs/log.md); fewer wait for Python again
_halves = cache(SplitBatch)  # by the number of threads


def answer(model: nn.Module, images: Tensor) -> Tensor:
    """`model(images)`, for a model in eval mode where no gradient is wanted."""
    if not _is_plain(model) or torch.is_grad_enabled() or images.device.type != "cpu":
        return model(images)
    assert isinstance(model, ViT)
    threads = torch.get_num_threads()
    if threads % 2 == 0 and len(images) * model.config.num_tokens >= 2 * _CACHED_TOKENS:
        # as fast as all cores on every operation, and up to 1.4 times as fast while the machine is noisy (docs/log.md)
        return torch.cat(_halves(threads).both(partial(_answer_in_parts, model, _CACHED_TOKENS // 2), images))
    return _answer_in_parts(model, _CACHED_TOKENS, images)


@torch.inference_mode()  # which each thread must be told
def _answer_in_parts(model: ViT, tokens: int, images: Tensor) -> Tensor:
    x = _embed(model, images)
    parts = max(1, round(x.shape[0] * x.shape[1] / tokens))
    return torch.cat([_answer_tokens(model, part) for part in x.chunk(parts)])


def _answer_tokens(model: ViT, x: Tensor) -> Tensor:
    for block in model.blocks[:-1]:
        x = _encoder_layer(x, block)
    # the head reads the class token alone, and the block can compute its row alone: worth a few more calls from here on
    if model.cls_token is not None and x.shape[0] * x.shape[1] >= _MANY_TOKENS:
        x = model.blocks[-1](x, first_only=True)
    else:
        x = _encoder_layer(x, model.blocks[-1])
    return model.classify(x)


def _embed(model: ViT, images: Tensor) -> Tensor:
    """`model.embed(images)`; one image's patches are cut and multiplied in a third of its convolution's time."""
    if model.stem is not None or len(images) != 1:
        return model.embed(images)
    projection = model.patch_embed.proj
    patches = patchify(model._fit(images), model.patch_embed.patch_size)
    x = F.linear(patches, projection.weight.flatten(1), projection.bias)
    return model.with_class_token_and_positions(x)


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
