"""For test suites: `assert_healthy` keeps a model free of the doctor's findings.

    def test_my_vit() -> None:
        assert_healthy(MyViT(), input_shape=(3, 32, 32))

`TinyViT` is the small healthy model that the pages of docs/doctor break in one way each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor import Diagnosis, diagnose


def assert_healthy(model: nn.Module, *, ignore: Collection[str] = (), **arguments: Any) -> Diagnosis:
    """Raise an AssertionError that lists the findings, notes aside; `arguments` are those of `diagnose`.

    `ignore` names findings that are there on purpose (their ids).
    """
    diagnosis = diagnose(model, **arguments)
    found = [finding for finding in diagnosis.findings if finding.level != "note" and finding.id not in ignore]
    if found:
        lines = [f"{finding.level} {finding.id}: {finding.measured} Fix: {finding.fix}" for finding in found]
        raise AssertionError("\n".join([f"the doctor found {len(found)} in {type(model).__name__}:", *lines]))
    return diagnosis


class TinyBlock(nn.Module):
    """A pre-norm encoder block; every step is a method to override."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        B, N, D = x.shape
        return self.qkv(x).view(B, N, 3, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.proj(self.merge(self.weights(q, k) @ v))

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """12×12 images, 4×4 patches: nine patches and the class token; every step is a method to override."""

    dim, patch, size, depth = 24, 4, 12, 2
    block: type[nn.Module] = TinyBlock

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, self.dim, self.patch, self.patch)
        tokens = (self.size // self.patch) ** 2
        self.class_token = nn.Parameter(torch.randn(1, 1, self.dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, self.dim) * 0.02)
        self.blocks = nn.ModuleList(self.block(self.dim, 2) for _ in range(self.depth))
        self.norm = nn.LayerNorm(self.dim)
        self.head = nn.Linear(self.dim, 10)
        nn.init.zeros_(self.head.weight)

    def patchify(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).mT

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions

    def encode(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x[:, 0]))

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.encode(self.embed(images)))
