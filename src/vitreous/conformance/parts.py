"""A model taken apart for measuring: what makes its tokens, its blocks one at a time, what reads the last tokens.

Everything is a float64 copy with random parameters: the copy keeps the wiring and loses every value behind which a
wrong wiring could hide (zero biases, unit norms, a zero head). The model that is asked about is never touched.
Blocks are copied one at a time, so that a large model costs little more memory than one of its blocks.

Shapes: B images, T tokens, D width, M width of the MLP, k heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, ModelConfig, ViTConfig
from vitreous.models.article import PATCH
from vitreous.models.vit import patchify


@dataclass(frozen=True)
class BlockParts:
    """One encoder layer: a way to run it, and the parameters that an independent computation needs."""

    run: Callable[[Tensor], tuple[Tensor, Tensor]]  # z → z′, z of the next layer
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    qkv: tuple[Tensor, Tensor | None]  # (3D, D), (3D,)
    proj: tuple[Tensor, Tensor]  # (D, D), (D,)
    num_heads: int
    mlp: Callable[[Tensor], Tensor]
    fc1: nn.Linear
    fc2: nn.Linear


@dataclass(frozen=True)
class Parts:
    """What surrounds the blocks. `classify` reads the last layer's tokens; `head` only the vector y that it makes."""

    embed: Callable[[Tensor], Tensor]
    blank_tokens: Callable[[], Tensor]  # z_0 where the patches are cut from zeros, behind any conv stem
    embed_parameters: list[nn.Parameter]
    class_token: Tensor | None
    class_token_learns: bool  # in the model itself: here everything does
    classify: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    head_layers: list[tuple[Tensor, Tensor]]  # weights and biases of its linear layers, first to last
    final_norm: nn.LayerNorm | None
    blocks: Callable[[], Iterator[BlockParts]]
    depth: int
    patch_size: tuple[int, int]
    grid: tuple[int, int]


def take_apart(model: nn.Module, config: ModelConfig) -> Parts | None:
    """The parts of a transformer; None for a model that has none (the CNNs)."""
    if isinstance(config, ViTConfig):
        return _vit_parts(model, config)
    if isinstance(config, ArticleDesignConfig):
        return _design_parts(model)
    if isinstance(config, ArticleViTConfig):
        return _post_vit_parts(model)
    return None


@torch.no_grad()
def randomised(module: nn.Module) -> Any:
    """A float64 copy on the CPU whose every parameter is random, of a size that keeps activations near 1."""
    module = copy.deepcopy(module).cpu().double().eval().requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm)}
    for parameter in module.parameters():
        scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 and len(parameter) > 1 else 0.5
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        parameter.copy_(values + (id(parameter) in norms))
    return module


def _without(model: nn.Module, blocks: nn.ModuleList) -> Any:
    """A randomised copy of a model in which nothing stands for its blocks."""
    memo: dict[int, Any] = {id(block): nn.Identity() for block in blocks}
    return randomised(copy.deepcopy(model, memo))


# --- the ViT -----------------------------------------------------------------------------------------------


def _vit_parts(model: Any, config: ViTConfig) -> Parts:
    shell = _without(model, model.blocks)
    bare = copy.deepcopy(shell)
    bare.norm, bare.stem = nn.Identity(), None
    blank = torch.zeros(1, bare.patch_embed.proj.in_channels, *config.fitted_size, dtype=torch.float64)
    embedding = [
        p for name, p in bare.named_parameters() if not name.startswith(("head.", "pre_logits.", "pool_score."))
    ]

    def head(y: Tensor) -> Tensor:
        return bare.classify(y[:, None].expand(-1, config.num_tokens, -1))  # the same vector everywhere: any pooling

    learns = model.cls_token is not None and model.cls_token.requires_grad
    layers = [(layer.weight, layer.bias) for layer in (bare.pre_logits, bare.head) if layer is not None]
    return Parts(
        shell.embed, lambda: bare.embed(blank), embedding, shell.cls_token, learns, shell.classify, head, layers,
        shell.norm, lambda: map(_vit_block, model.blocks), len(model.blocks), config.patch_size, config.grid,
    )  # fmt: skip


def _vit_block(original: nn.Module) -> BlockParts:
    block = randomised(original)
    attention = block.attn

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        taps: dict[str, Tensor] = {}
        return (block(z, taps), taps["middle"])[::-1]

    return BlockParts(
        run, block.norm1, block.norm2, (attention.qkv.weight, attention.qkv.bias),
        (attention.proj.weight, attention.proj.bias), attention.num_heads, block.mlp, block.mlp.fc1, block.mlp.fc2,
    )  # fmt: skip


# --- the posts' transformers ----------------------------------------------------------------------------------

_BLANK = torch.zeros(1, 1, 28, 28, dtype=torch.float64)


def _design_parts(model: Any) -> Parts:
    shell = _without(model, model.blocks)
    tokens: list[Tensor] = []
    bare = copy.deepcopy(shell)
    bare.blocks[0].register_forward_hook(lambda _module, inputs, _output: tokens.append(inputs[0]))

    def embed(images: Tensor) -> Tensor:
        bare(images)
        return tokens.pop()

    def head(y: Tensor) -> Tensor:
        return shell.classifier(y)  # the log-softmax after it is the posts' own, not a layer

    def classify(z: Tensor) -> Tensor:
        return shell.classifier(shell.norm(z[:, 0]))

    layers = [(shell.classifier.weight, shell.classifier.bias)]
    return Parts(
        embed, lambda: embed(_BLANK), list(bare.parameters()), bare.class_token,
        model.class_token.requires_grad, classify, head, layers, shell.norm,
        lambda: map(_design_block, model.blocks), len(model.blocks), (PATCH, PATCH), (4, 4),
    )  # fmt: skip


def _design_block(original: nn.Module) -> BlockParts:
    block = randomised(original)
    middles: list[Tensor] = []
    block.norm2.register_forward_pre_hook(lambda _module, inputs: middles.append(inputs[0]))

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        after = block(z)
        return middles.pop(), after

    attention = block.attention
    return BlockParts(
        run, block.norm1, block.norm2, (attention.in_proj_weight, attention.in_proj_bias),
        (attention.out_proj.weight, attention.out_proj.bias), attention.num_heads, block.mlp, block.mlp[0],
        block.mlp[2],
    )  # fmt: skip


def _post_vit_parts(model: Any) -> Parts:
    inner = model.model
    shell = _without(inner, inner.encoder.layers)
    tokens: list[Tensor] = []
    shell.encoder = nn.Identity()
    shell.encoder.register_forward_hook(lambda _module, inputs, _output: tokens.append(inputs[0]))

    def embed(images: Tensor) -> Tensor:
        shell(patchify(images, (PATCH, PATCH)).unflatten(2, (PATCH, PATCH)))
        return tokens.pop()

    def blank_tokens() -> Tensor:
        """Before the normalisation across tokens, which makes every token depend on every position."""
        looked_up: list[Tensor] = []
        hook = shell.position_embedding.register_forward_hook(lambda _module, _in, output: looked_up.append(output))
        embed(_BLANK)
        hook.remove()
        return (looked_up[0] + shell.patch_projection.bias)[None]

    def head(y: Tensor) -> Tensor:
        return shell.linear3(torch.tanh(shell.linear2(shell.linear1(y))))

    embedding = [*shell.patch_projection.parameters(), *shell.position_embedding.parameters()]
    layers = [(layer.weight, layer.bias) for layer in (shell.linear1, shell.linear2, shell.linear3)]
    return Parts(
        embed, blank_tokens, embedding, shell.class_token, False, lambda z: head(z[:, 0]), head, layers, None,
        lambda: map(_post_vit_block, inner.encoder.layers), len(inner.encoder.layers), (PATCH, PATCH), (4, 4),
    )  # fmt: skip


def _post_vit_block(original: nn.Module) -> BlockParts:
    layer = randomised(original)
    middles: list[Tensor] = []
    layer.norm1.register_forward_hook(lambda _module, _inputs, output: middles.append(output))  # norms come after

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():  # torch's fused inference path would pass the hook by
            after = layer(z)
        return middles.pop().detach(), after.detach()

    attention = layer.self_attn
    return BlockParts(
        run, layer.norm1, layer.norm2, (attention.in_proj_weight, attention.in_proj_bias),
        (attention.out_proj.weight, attention.out_proj.bias), attention.num_heads,
        lambda x: layer.linear2(layer.activation(layer.linear1(x))), layer.linear1, layer.linear2,
    )  # fmt: skip
