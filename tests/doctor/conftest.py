"""A small healthy ViT that the tests break in one way at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitreous.doctor import model_under_test
from vitreous.doctor.checks import fresh


class TinyBlock(nn.Module):
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
        return self.proj((self.weights(q, k) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """12×12 images, 4×4 patches: nine patches and the class token; every step is a method to override."""

    dim, patch, size, depth, block = 24, 4, 12, 2, TinyBlock

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


@pytest.fixture(autouse=True)
def _plenty_of_time(monkeypatch) -> None:
    """Lift the time limit of a minute, which a busy machine could exceed."""
    monkeypatch.setattr(model_under_test, "TIME_LIMIT_SECONDS", 600.0)
    monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 600.0)


@pytest.fixture
def no_overfitting(_plenty_of_time, monkeypatch) -> None:
    """Skip the slowest check: with the article's feed-forward layers of 3000, 200 steps take most of a minute."""
    monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def tiny_vit() -> type[TinyViT]:
    return TinyViT
