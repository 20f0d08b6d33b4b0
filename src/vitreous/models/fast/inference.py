"""Logits without gradients: what `predict`, `evaluate` and validation use.

`ViT.forward` is written to be read and hooked into. When only the logits are wanted, torch can compute a whole encoder
layer in one call, so that small batches wait less for Python. Large ones go through the blocks in parts that stay in
the cache, with fewer copies, and are split between two threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.hardware import one_thread
from vitreous.models.fast.split_batch import SplitBatch
from vitreous.models.fast.vit import FastViT
from vitreous.models.input import check_input
from vitreous.models.representations import Representations, middle_block, patches_of, represent
from vitreous.models.vit import Block, Taps, patchify

#: (logits, representations) of some images → tensors with one row per image
Reduce = Callable[[Tensor, Representations], tuple[Tensor, ...]]

_MANY_TOKENS = 800  # of all images together; below it a call costs more than the work it saves
_FEW_PRODUCTS = 4_000_000  # multiply-adds of a layer, for all images; one image of `mnist-plain` has 3.7 million
_CACHED_TOKENS = 3200  # 64 images of 50 tokens: 8 % faster than 256 at once (docs/log.md); fewer wait for Python again
_split_batch = cache(SplitBatch)  # by the number of threads


def infer(model: nn.Module, images: Tensor) -> Tensor:
    """Return `model(images)`, for a model in eval mode where no gradient is wanted."""
    if not _is_fast(model, images):
        return model(images)
    (logits,) = _infer_fast(model, images, None)
    return logits


def infer_outputs(model: nn.Module, images: Tensor, reduce: Reduce) -> tuple[Tensor, ...]:
    """Return what `reduce` makes of the logits, as `infer` returns them, and of the representations.

    It is called for parts of the batch, by several threads, while they are in the cache.
    """
    return _infer_fast(model, images, reduce) if _is_fast(model, images) else reduce(*represent(model, images))


def infer_and_represent(model: nn.Module, images: Tensor) -> tuple[Tensor, Representations]:
    """Return `represent(model, images)`: the logits as `infer` returns them, and the representations."""
    logits, *parts = infer_outputs(model, images, lambda logits, parts: (logits, *parts))
    return logits, tuple(parts)


def _is_fast(model: nn.Module, images: Tensor) -> TypeGuard[FastViT]:
    return _has_torch_layers(model) and not torch.is_grad_enabled() and images.device.type == "cpu"


def _infer_fast(model: FastViT, images: Tensor, reduce: Reduce | None) -> tuple[Tensor, ...]:
    """Return the logits, or what `reduce` makes of them and the representations."""
    check_input(images, model.config)
    threads = torch.get_num_threads()
    if threads % 2 == 0 and len(images) * model.config.kept_tokens >= 2 * _CACHED_TOKENS:
        # as fast as all cores on every operation, and up to 1.4 times as fast on a noisy machine (docs/log.md)
        half = partial(_infer_in_parts, model, _CACHED_TOKENS // 2, reduce)
        return _joined(_split_batch(threads).run(half, images))
    config = model.config
    products = len(images) * config.kept_tokens * config.dim * (4 * config.dim + 2 * config.mlp_dim)
    # a second thread has to be woken and waited for at every operation: two thirds of the time without it, an eighth
    # of it on a busy machine (docs/log.md)
    with one_thread() if products < _FEW_PRODUCTS else contextlib.nullcontext():
        return _infer_in_parts(model, _CACHED_TOKENS, reduce, images)


@torch.inference_mode()  # a setting of each thread
def _infer_in_parts(model: FastViT, tokens: int, reduce: Reduce | None, images: Tensor) -> tuple[Tensor, ...]:
    x = _embed(model, images)
    parts = max(1, round(x.shape[0] * x.shape[1] / tokens))
    return _joined([_infer_tokens(model, part, reduce) for part in x.chunk(parts)])


def _joined(pieces: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(map(torch.cat, zip(*pieces, strict=True)))


def _infer_tokens(model: FastViT, x: Tensor, reduce: Reduce | None) -> tuple[Tensor, ...]:
    middle, last = middle_block(model), model.config.depth - 1
    patches = x
    for index, block in enumerate(model.blocks):
        needs_patches = reduce is not None and index == middle
        if index == last and not needs_patches and model.reads_first_token and x[..., 0].numel() >= _MANY_TOKENS:
            x = block(x, first_only=True)
        else:
            x = _encoder_layer(x, block) if x[..., 0].numel() < _MANY_TOKENS else _layer_of_many(x, block)
        if needs_patches:
            patches = patches_of(model, x)
    if reduce is None:
        return (model.classify(x),)
    taps: Taps = {}
    logits = model.classify(x, taps=taps)
    return reduce(logits, (patches.mean(dim=1), patches, taps["pooled"]))


def _embed(model: FastViT, images: Tensor) -> Tensor:
    """Return `model.embed(images)`; for one image, patchify and a product take a third of the convolution's time."""
    config, projection = model.config, model.patch_embed.proj
    if model.stem is not None or len(images) != 1 or config.knows_background or config.embed_hidden:
        return model.embed(images)
    patches = patchify(model.fit(images), model.patch_embed.patch_size)
    return model.add_class_token_and_positions(F.linear(patches, projection.weight.flatten(1), projection.bias))


def _has_torch_layers(model: nn.Module) -> bool:
    """Return whether torch's encoder layer is this model's: erf GELU, biased qkv, positions added to the tokens."""
    if not isinstance(model, FastViT) or model.training:
        return False
    config = model.config
    return config.gelu == "erf" and config.qkv_bias and config.positions != "relative" and config.num_heads % 2 == 0


def _layer_of_many(x: Tensor, block: nn.Module) -> Tensor:
    """The same as `_encoder_layer`, in less memory: heads are views, GELU and sums are in place."""
    assert isinstance(block, Block)
    B, N, D = x.shape
    attn, mlp = block.attn, block.mlp
    q, k, v = attn.qkv(block.norm1(x)).view(B, N, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    heads = F.scaled_dot_product_attention(q, k, v)  # (B, H, N, K)
    x = attn.proj(heads.transpose(1, 2).reshape(B, N, D)).add_(x)
    return mlp.fc2(torch.ops.aten.gelu_(mlp.fc1(block.norm2(x)))).add_(x)


def _encoder_layer(x: Tensor, block: nn.Module) -> Tensor:
    """z' = MSA(LN(z)) + z; z = MLP(LN(z')) + z': the call that nn.TransformerEncoderLayer makes in eval mode."""
    assert isinstance(block, Block)
    qkv, proj, norm1, norm2, fc1, fc2 = _weights_and_biases(block)
    return torch._transformer_encoder_layer_fwd(
        x, x.shape[-1], block.attn.num_heads, *qkv, *proj, True, True, block.norm1.eps, *norm1, *norm2, *fc1, *fc2,
        None, None,
    )  # fmt: skip


def _weights_and_biases(block: Block) -> list[tuple[Any, Any]]:
    """Return weight and bias of qkv, proj, norm1, norm2, fc1 and fc2.

    Without `nn.Module`'s attributes, which take 15 of a layer's 99 µs for one small image (docs/log.md).
    """
    parts = block._modules
    attn, mlp = parts["attn"]._modules, parts["mlp"]._modules  # type: ignore[union-attr]
    layers = attn["qkv"], attn["proj"], parts["norm1"], parts["norm2"], mlp["fc1"], mlp["fc2"]
    try:
        return [(layer._parameters["weight"], layer._parameters["bias"]) for layer in layers]  # type: ignore[union-attr]
    except KeyError:  # pruned or parametrised: a weight is computed from other parameters
        return [(layer.weight, layer.bias) for layer in layers]  # type: ignore[union-attr]
