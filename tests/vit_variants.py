"""ViTs as people write them: one model, whose parts come in several styles, healthy or with a fault planted."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Style:
    """Sizes, and how each part is written."""

    image: tuple[int, int, int] = (1, 12, 12)
    patch: tuple[int, int] = (4, 4)
    dim: int = 24
    heads: int = 2
    depth: int = 2
    classes: int = 10
    patches: str = "conv"
    attention: str = "fused"
    norm: str = "layer"
    order: str = "pre"
    positions: str = "learned"
    pool: str = "cls"
    output: str = "tensor"
    dropout: float = 0.0
    double: bool = False
    fault: str = ""

    @property
    def grid(self) -> tuple[int, int]:
        return self.image[1] // self.patch[0], self.image[2] // self.patch[1]

    @property
    def tokens(self) -> int:
        return math.prod(self.grid) + (self.pool == "cls")


CHOICES: dict[str, list[Any]] = {
    "image": [(1, 12, 12), (3, 12, 12), (4, 8, 8), (1, 8, 16), (3, 12, 8), (1, 4, 4)],
    "patch": [(4, 4), (2, 2), (4, 2), (8, 8)],
    "dim": [8, 24, 32],
    "heads": [1, 2, 4],
    "depth": [1, 2, 3],
    "classes": [2, 5, 10],
    "patches": ["conv", "unfold", "permute", "im2col", "loop", "stem"],
    "attention": ["fused", "separate", "einsum", "list", "sdpa", "mha", "conv1d", "transposed"],
    "norm": ["layer", "by-hand", "rms", "batch", "std"],
    "order": ["pre", "post", "residual-post", "parallel"],
    "positions": ["learned", "embedding", "sincos", "factorised", "per-patch"],
    "pool": ["cls", "mean", "max", "attention"],
    "output": ["tensor", "tuple", "dict", "object"],
    "dropout": [0.0, 0.1],
    "double": [False, True],
}


def random_style(seed: int) -> Style:
    """Return a style whose parts fit together."""
    draw = random.Random(seed)
    style = Style(**{name: draw.choice(values) for name, values in CHOICES.items()})
    (_, height, width), (ph, pw) = style.image, style.patch
    style = replace(style, patch=(math.gcd(height, ph), math.gcd(width, pw)))
    if style.patches == "loop" and math.prod(style.grid) > 16:
        style = replace(style, patches="permute")
    if style.order != "pre" and style.norm == "batch":  # batch statistics between blocks are another model
        style = replace(style, norm="layer")
    return style


# --- parts ---------------------------------------------------------------------------------------------------


class NormByHand(nn.Module):
    def __init__(self, dim: int, kind: str):
        super().__init__()
        self.gamma, self.beta, self.kind = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "std":
            return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.beta
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + 1e-6) * self.gamma + self.beta


class BatchNormOfFeatures(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class WrongAxis(nn.Module):
    def __init__(self, axes: tuple[int, ...]):
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(self.axes, keepdim=True)
        return centred / (x.var(self.axes, keepdim=True) + 1e-5).sqrt()


def make_norm(style: Style) -> nn.Module:
    if style.fault in ("norm over tokens", "norm over all"):
        return WrongAxis((1,) if style.fault == "norm over tokens" else (1, 2))
    if style.norm == "rms":
        return nn.RMSNorm(style.dim)
    if style.norm == "batch":
        return BatchNormOfFeatures(style.dim)
    return nn.LayerNorm(style.dim) if style.norm == "layer" else NormByHand(style.dim, style.norm)


class Patches(nn.Module):
    def __init__(self, style: Style):
        super().__init__()
        self.style = style
        channels, size = style.image[0], style.image[0] * math.prod(style.patch)
        if style.patches == "stem":
            self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.GELU())
            channels = 8
        is_conv = style.patches in ("conv", "stem")
        self.proj = nn.Conv2d(channels, style.dim, style.patch, style.patch) if is_conv else nn.Linear(size, style.dim)

    def forward(self, images: Tensor) -> Tensor:
        x = self.tokens(images)
        return x.mT.reshape(x.shape) if self.style.fault == "tokens reshaped" else x

    def tokens(self, images: Tensor) -> Tensor:
        B, C, H, W = images.shape
        ph, pw = self.style.patch
        kind = self.style.patches
        if kind in ("conv", "stem"):
            return self.proj(self.stem(images) if kind == "stem" else images).flatten(2).transpose(1, 2)
        if kind == "unfold":
            patches = images.unfold(2, ph, ph).unfold(3, pw, pw).permute(0, 2, 3, 1, 4, 5).reshape(B, -1, C * ph * pw)
        elif kind == "permute":
            patches = images.view(B, C, H // ph, ph, W // pw, pw).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        elif kind == "im2col":
            patches = F.unfold(images, self.style.patch, stride=self.style.patch).transpose(1, 2)
        else:
            rows = [images[:, :, y : y + ph, x : x + pw].flatten(1) for y in range(0, H, ph) for x in range(0, W, pw)]
            patches = torch.stack(rows, dim=1)
        return self.proj(patches)


class Attention(nn.Module):
    def __init__(self, style: Style):
        super().__init__()
        D, self.style, self.width = style.dim, style, style.dim // style.heads
        self.scaled_by = D if style.fault == "scale of the width" else self.width
        kind = style.attention
        if kind == "mha":
            self.mha = nn.MultiheadAttention(D, style.heads, style.dropout, batch_first=True)
            return
        self.drop = nn.Dropout(style.dropout)
        if kind in ("fused", "sdpa"):
            self.qkv = nn.Linear(D, 3 * D, bias=kind == "sdpa")
        elif kind == "list":
            self.each = nn.ModuleList(nn.Linear(D, 3 * self.width) for _ in range(style.heads))
        else:
            make = (lambda: nn.Conv1d(D, D, 1)) if kind == "conv1d" else (lambda: nn.Linear(D, D))
            self.q, self.k, self.v = make(), make(), make()
        self.out = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        H, K, kind = self.style.heads, self.width, self.style.attention
        if kind == "mha":
            return self.mha(x, x, x, need_weights=False)[0]
        if kind == "list":
            parts = [head(x).chunk(3, dim=-1) for head in self.each]
            return self.out(torch.cat([self.attend(q, k, v) for q, k, v in parts], dim=-1))
        if kind in ("fused", "sdpa"):
            q, k, v = self.qkv(x).reshape(B, N, 3, H, K).permute(2, 0, 3, 1, 4)
        elif kind == "conv1d":
            q, k, v = (layer(x.mT).view(B, H, K, N).mT for layer in (self.q, self.k, self.v))
        else:
            q, k, v = (layer(x).view(B, N, H, K).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if kind == "sdpa":
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop.p if self.training else 0.0)
        elif kind == "einsum":
            weights = (torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.scaled_by)).softmax(-1)
            return self.out(torch.einsum("bhij,bhjd->bihd", self.drop(weights), v).reshape(B, N, D))
        elif kind == "transposed":  # keys first, softmax over them, values @ weights
            weights = (k * self.scaled_by**-0.5 @ q.mT).softmax(dim=-2)
            return self.out((v.mT @ self.drop(weights)).permute(0, 3, 1, 2).reshape(B, N, D))
        else:
            x = self.attend(q, k, v)
        return self.out(
            x.reshape(B, N, D) if self.style.fault == "heads reshaped" else x.transpose(1, 2).reshape(B, N, D)
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-2, -1) / self.scaled_by**0.5
        if self.style.fault == "causal":
            logits = logits + torch.full(logits.shape[-2:], -math.inf, device=logits.device).triu(1)
        return self.drop(F.softmax(logits, dim=-2 if self.style.fault == "softmax over queries" else -1)) @ v


class Block(nn.Module):
    def __init__(self, style: Style):
        super().__init__()
        self.order, self.fault = style.order, style.fault
        self.norm1, self.norm2, self.attention = make_norm(style), make_norm(style), Attention(style)
        D = style.dim
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Dropout(style.dropout), nn.Linear(2 * D, D))
        if style.order == "parallel":
            self.norm2 = None

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "no skip":
            y = self.attention(self.norm1(x))
            return y + self.mlp(self.norm2(y))
        if self.fault == "skip from the norm":
            x = self.norm1(x)
            x = self.norm2(x + self.attention(x))
            return x + self.mlp(x)
        if self.fault == "doubled":
            x = x + (x + self.attention(self.norm1(x)))
            return x + self.mlp(self.norm2(x))
        if self.order == "post":
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        if self.order == "residual-post":
            x = x + self.norm1(self.attention(x))
            return x + self.norm2(self.mlp(x))
        if self.order == "parallel":
            y = self.norm1(x)
            return x + self.attention(y) + self.mlp(y)
        x = self.attention(self.norm1(x)) + x
        return self.mlp(self.norm2(x)) + x


class Variant(nn.Module):
    """A healthy ViT in this style."""

    def __init__(self, style: Style):
        super().__init__()
        self.style, D = style, style.dim
        self.patches = Patches(style)
        self.class_token = nn.Parameter(torch.zeros(1, 1, D)) if style.pool == "cls" else None
        self.make_positions()
        self.drop = nn.Dropout(style.dropout)
        self.blocks = nn.ModuleList(Block(style) for _ in range(style.depth))
        self.norm = nn.LayerNorm(D)
        self.score = nn.Linear(D, 1) if style.pool == "attention" else None
        self.head = nn.Linear(D, style.classes)
        if style.fault == "one block":
            self.blocks = nn.ModuleList([self.blocks[0]] * 3)
        if style.double:
            self.double()

    def make_positions(self) -> None:
        style, D = self.style, self.style.dim
        if style.positions == "none":
            return
        if style.positions == "embedding":
            self.positions = nn.Embedding(style.tokens, D)
        elif style.positions == "sincos":
            angles = torch.arange(style.tokens)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
            self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None])
        elif style.positions == "factorised":
            rows, columns = style.grid
            self.row = nn.Parameter(torch.randn(rows, 1, D) * 0.02)
            self.column = nn.Parameter(torch.randn(1, columns, D) * 0.02)
        else:
            count = style.tokens if style.positions == "learned" else math.prod(style.grid)
            self.positions = nn.Parameter(torch.randn(1, count, D) * 0.02)

    def embed(self, images: Tensor) -> Tensor:
        x, kind = self.patches(images), self.style.positions
        if kind == "factorised":
            x = x + (self.row + self.column).flatten(0, 1)
        elif kind == "per-patch":
            x = x + self.positions
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        if kind == "embedding":
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        elif kind in ("learned", "sincos"):
            x = x + (self.positions if kind == "learned" else self.table)
        return F.dropout(x, 0.2) if self.style.fault == "dropout in eval" else self.drop(x)

    def pooled(self, x: Tensor) -> Tensor:
        if self.style.pool == "cls":
            return x[:, 0]
        if self.score is not None:
            return (self.score(x).softmax(1).mT @ x).squeeze(1)
        return x.mean(1) if self.style.pool == "mean" else x.amax(1)

    def forward(self, images: Tensor) -> Any:
        x = self.embed(images.double() if self.style.double else images)
        for block in self.blocks:
            x = block(x)
        features = self.pooled(self.norm(x))
        logits = self.head(features)
        logits = logits.softmax(-1) if self.style.fault == "softmax" else logits
        logits = logits.relu() if self.style.fault == "relu" else logits
        if self.style.output == "tuple":
            return logits, x
        if self.style.output == "dict":
            return {"logits": logits, "features": features}
        return SimpleNamespace(logits=logits) if self.style.output == "object" else logits
