"""Parts of a ViT that are not in the paper's equations: a conv stem, fixed sine-cosine positions, CLIP's GELU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StemBlock(nn.Module):
    """x + GELU(conv(LN(x))), a 3×3 convolution that keeps the size.

    Each pixel's channels are normalised on their own, so a token still sees only what is near it.
    """

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        # channels last in memory, as LayerNorm reads them: a tenth less time per step of `fashion-best`
        x = x.contiguous(memory_format=torch.channels_last)
        normed = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out: Tensor = x + self.act(self.conv(normed))
        return out


class ConvStem(nn.Sequential):
    """3×3 convolutions that compute the features from which patches are taken; each stage has stride 2."""

    def __init__(self, channels: int, stem_channels: tuple[int, ...], depth: int):
        layers: list[nn.Module] = []
        for width in stem_channels:
            layers += [nn.Conv2d(channels, width, kernel_size=3, stride=2, padding=1), nn.GELU()]
            layers += [StemBlock(width) for _ in range(depth - 1)]
            channels = width
        super().__init__(*layers)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for layer in self:
            x = layer(x)
        if x.requires_grad and not torch.compiler.is_compiling():
            # where blank patches are skipped, the gradient comes in another layout, in which a GELU's backward takes
            # six times as long: a training step of `mnist-best` is 9 % faster (docs/log.md)
            x.register_hook(_channels_last)
        return x


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class QuickGELU(nn.Module):
    """x σ(1.702 x), the approximation of GELU that OpenAI's CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def sincos_2d(rows: int, columns: int, dim: int) -> Tensor:
    """Return fixed positions (1, rows·columns, dim): a quarter each for sin and cos of the column and of the row."""
    frequencies = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    row = torch.arange(rows, dtype=torch.float64).repeat_interleave(columns)[:, None] * frequencies
    column = torch.arange(columns, dtype=torch.float64).repeat(rows)[:, None] * frequencies
    return torch.cat([column.sin(), column.cos(), row.sin(), row.cos()], dim=1).float()[None]
