"""A transformer taken apart for measuring: its embedding, its blocks one at a time, and its head.

Everything is a float64 copy with random parameters: the copy keeps the wiring and loses every value that could hide
wrong wiring (zero biases, unit norms, a zero head). The original model is never modified. Blocks are copied one at a
time, so that a large model needs little more memory than one of its blocks.

Shapes: B images, T tokens, D width, M width of the MLP, k heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, ModelConfig, ViTConfig
from vitreous.models.article import PATCH
from vitreous.models.vit import patchify


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """One encoder layer: a function to run it, and the parameters that an independent computation needs."""

    run: Callable[[Tensor], tuple[Tensor, Tensor]]  # z → z′, z of the next layer
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    qkv: tuple[Tensor, Tensor | None]  # (3D, D), (3D,)
    proj: tuple[Tensor, Tensor]  # (D, D), (D,)
    num_heads: int
    mlp: Callable[[Tensor], Tensor]
    fc1: nn.Linear
    fc2: nn.Linear


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything around the blocks. `classify` reads the last layer's tokens, `head` only the vector y."""

    embed: Callable[[Tensor], Tensor]
    blank_tokens: Callable[[], Tensor]  # z_0 for patches of zeros, after any conv stem
    parameters: list[nn.Parameter]  # those of the embedding, among others
    class_token: Tensor | None
    class_token_learns: bool  # in the original model: in the copy every parameter does
    classify: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    head_layers: list[nn.Linear]
    final_norm: nn.LayerNorm | None
    originals: nn.ModuleList  # the encoder layers
    take_block: Callable[[nn.Module], BlockParts]
    patch_size: tuple[int, int] = (PATCH, PATCH)
    grid: tuple[int, int] = (4, 4)

    @cached_property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @cached_property
    def num_tokens(self) -> int:
        return self.blank_tokens().shape[1]

    @cached_property
    def width(self) -> int:
        return self.blank_tokens().shape[2]

    def blocks(self) -> Iterator[BlockParts]:
        return map(self.take_block, self.originals)


def has_tokens(config: ModelConfig) -> bool:
    """Whether the model is a transformer."""
    return isinstance(config, ViTConfig | ArticleDesignConfig | ArticleViTConfig)


def take_apart(model: nn.Module, config: ModelConfig) -> Parts:
    if isinstance(config, ViTConfig):
        return _vit_parts(model, config)
    return _design_parts(model) if isinstance(config, ArticleDesignConfig) else _article_vit_parts(model)


@torch.no_grad()
def randomised(module: nn.Module) -> Any:
    """Return a float64 copy on the CPU with random parameters of a size that keeps activations near 1."""
    module = copy.deepcopy(module).cpu().double().eval().requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm)}
    for parameter in module.parameters():
        scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 and len(parameter) > 1 else 0.5
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        parameter.copy_(values + (id(parameter) in norms))
    return module


def _without(model: nn.Module, blocks: nn.ModuleList) -> Any:
    """Return a randomised copy of a model with its blocks replaced by the identity."""
    memo: dict[int, Any] = {id(block): nn.Identity() for block in blocks}
    return randomised(copy.deepcopy(model, memo))


# --- the ViT -------------------------------------------------------------------------------------------------


def _vit_parts(model: Any, config: ViTConfig) -> Parts:
    shell = _without(model, model.blocks)
    bare = copy.deepcopy(shell)
    bare.norm, bare.stem = nn.Identity(), None
    blank = torch.zeros(1, bare.patch_embed.proj.in_channels, *config.fitted_size, dtype=torch.float64)
    if config.knows_background:
        blank = blank + bare.background
    return Parts(
        embed=partial(shell.embed, all_patches=True),  # blank ones would be skipped
        blank_tokens=lambda: bare.embed(blank, all_patches=True),
        parameters=list(bare.parameters()),
        class_token=shell.cls_token,
        class_token_learns=model.cls_token is not None and model.cls_token.requires_grad,
        classify=shell.classify,
        head=lambda y: bare.classify(y[:, None].expand(-1, config.num_tokens, -1)),  # equal tokens suit any pooling
        head_layers=[layer for layer in (bare.pre_logits, bare.head) if layer is not None],
        final_norm=shell.norm,
        originals=model.blocks,
        take_block=_vit_block,
        patch_size=config.patch_size,
        grid=config.grid,
    )


def _vit_block(original: nn.Module) -> BlockParts:
    block = randomised(original)

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        taps: dict[str, Tensor] = {}
        after = block(z, taps)
        return taps["middle"], after

    return BlockParts(
        run=run,
        norm1=block.norm1,
        norm2=block.norm2,
        qkv=(block.attn.qkv.weight, block.attn.qkv.bias),
        proj=(block.attn.proj.weight, block.attn.proj.bias),
        num_heads=block.attn.num_heads,
        mlp=block.mlp,
        fc1=block.mlp.fc1,
        fc2=block.mlp.fc2,
    )


# --- the article's transformers ------------------------------------------------------------------------------


def _torch_attention(attention: Any) -> dict[str, Any]:
    """Return the parts of an nn.MultiheadAttention."""
    return {
        "qkv": (attention.in_proj_weight, attention.in_proj_bias),
        "proj": (attention.out_proj.weight, attention.out_proj.bias),
        "num_heads": attention.num_heads,
    }


def _design_parts(model: Any) -> Parts:
    shell = _without(model, model.blocks)
    tokens: list[Tensor] = []
    shell.blocks[0].register_forward_hook(lambda _module, inputs, _output: tokens.append(inputs[0]))

    def embed(images: Tensor) -> Tensor:
        shell(images)
        return tokens.pop()

    return Parts(
        embed=embed,
        blank_tokens=lambda: embed(torch.zeros(1, 1, 28, 28, dtype=torch.float64)),
        parameters=list(shell.parameters()),
        class_token=shell.class_token,
        class_token_learns=model.class_token.requires_grad,
        classify=lambda z: shell.classifier(shell.norm(z[:, 0])),
        head=shell.classifier,  # without the log-softmax, which is not a layer
        head_layers=[shell.classifier],
        final_norm=shell.norm,
        originals=model.blocks,
        take_block=_design_block,
    )


def _design_block(original: nn.Module) -> BlockParts:
    block = randomised(original)
    middles: list[Tensor] = []
    block.norm2.register_forward_pre_hook(lambda _module, inputs: middles.append(inputs[0]))

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        after = block(z)
        return middles.pop(), after

    attention, mlp = _torch_attention(block.attention), block.mlp
    return BlockParts(run=run, norm1=block.norm1, norm2=block.norm2, **attention, mlp=mlp, fc1=mlp[0], fc2=mlp[2])


def _article_vit_parts(model: Any) -> Parts:
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
        return (shell.position_embedding(shell.position_indices) + shell.patch_projection.bias)[None]

    def head(y: Tensor) -> Tensor:
        return shell.linear3(torch.tanh(shell.linear2(shell.linear1(y))))

    return Parts(
        embed=embed,
        blank_tokens=blank_tokens,
        parameters=list(shell.parameters()),
        class_token=shell.class_token,
        class_token_learns=False,
        classify=lambda z: head(z[:, 0]),
        head=head,
        head_layers=[shell.linear1, shell.linear2, shell.linear3],
        final_norm=None,
        originals=inner.encoder.layers,
        take_block=_article_vit_block,
    )


def _article_vit_block(original: nn.Module) -> BlockParts:
    layer = randomised(original)
    middles: list[Tensor] = []
    layer.norm1.register_forward_hook(lambda _module, _inputs, output: middles.append(output))  # post-norm

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():  # torch's fused inference path would bypass the hook
            after = layer(z)
        return middles.pop().detach(), after.detach()

    return BlockParts(
        run=run,
        norm1=layer.norm1,
        norm2=layer.norm2,
        **_torch_attention(layer.self_attn),
        mlp=lambda x: layer.linear2(layer.activation(layer.linear1(x))),
        fc1=layer.linear1,
        fc2=layer.linear2,
    )
