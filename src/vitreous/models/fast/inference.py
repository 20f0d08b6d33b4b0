"""Logits without gradients: what `predict`, `evaluate` and validation use.

`ViT.forward` is written to be read and hooked into. When only the logits are wanted, torch can compute a whole encoder
layer in one call. Small batches then wait less for Python; large ones save copies, go through the blocks in parts that
stay in the cache, and are split between two threads.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.fast.split_batch import SplitBatch
from vitreous.models.fast.vit import FastViT
from vitreous.models.input import check_input
from vitreous.models.vit import Block, patchify

_MANY_TOKENS = 800  # of all images together; below it a call costs more than the work it saves
_CACHED_TOKENS = 3200  # 64 images of 50 tokens: 8 % faster than 256 at once (docs/log.md); fewer wait for Python again
_split_batch = cache(SplitBatch)  # by the number of threads


def infer(model: nn.Module, images: Tensor) -> Tensor:
    """Return `model(images)`, for a model in eval mode where no gradient is wanted."""
    if not _has_torch_layers(model) or torch.is_grad_enabled() or images.device.type != "cpu":
        return model(images)
    assert isinstance(model, FastViT)
    check_input(images, model.config)
    threads = torch.get_num_threads()
    if threads % 2 == 0 and len(images) * model.config.num_tokens >= 2 * _CACHED_TOKENS:
        # as fast as all cores on every operation, and up to 1.4 times as fast on a noisy machine (docs/log.md)
        return torch.cat(_split_batch(threads).run(partial(_infer_in_parts, model, _CACHED_TOKENS // 2), images))
    return _infer_in_parts(model, _CACHED_TOKENS, images)


@torch.inference_mode()  # a setting of each thread
def _infer_in_parts(model: FastViT, tokens: int, images: Tensor) -> Tensor:
    x = _embed(model, images)
    parts = max(1, round(x.shape[0] * x.shape[1] / tokens))
    return torch.cat([_infer_tokens(model, part) for part in x.chunk(parts)])


def _infer_tokens(model: FastViT, x: Tensor) -> Tensor:
    for block in model.blocks[:-1]:
        x = _encoder_layer(x, block)
    if model.reads_first_token and x.shape[0] * x.shape[1] >= _MANY_TOKENS:
        return model.classify(model.blocks[-1](x, first_only=True))
    return model.classify(_encoder_layer(x, model.blocks[-1]))


def _embed(model: FastViT, images: Tensor) -> Tensor:
    """Return `model.embed(images)`; for one image, patchify and a product take a third of the convolution's time."""
    if model.stem is not None or len(images) != 1:
        return model.embed(images)
    projection = model.patch_embed.proj
    patches = patchify(model.fit(images), model.patch_embed.patch_size)
    return model.add_class_token_and_positions(F.linear(patches, projection.weight.flatten(1), projection.bias))


def _has_torch_layers(model: nn.Module) -> bool:
    """Return whether torch's encoder layer is this model's: erf GELU, biased qkv, positions added to the tokens."""
    if not isinstance(model, FastViT) or model.training:
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
