"""The patch kernel fitted to another patch size, or to another number of input channels.

Shapes: D width, C channels, p × p the old patch, q × q the new one; a kernel is (D, C, p, p).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import CheckpointError


def resize_patch_kernel(kernel: Tensor, new_size: tuple[int, int]) -> Tensor:
    """Resize by pseudo-inverse (FlexiViT, Beyer et al. 2023, Section 3.4): a resized patch gives the same token.

    With R the linear map that resizes a p × p patch x to q × q, the new kernel is w' = (Rᵀ)⁺ w, the least-squares
    solution of ⟨R x, w'⟩ = ⟨x, w⟩ for all x: exact when the patch grows, optimal when it shrinks. Resizing the kernel
    like an image instead (plain bilinear) scales the tokens by about (q / p)².
    R is bilinear and antialiased, because small images are usually averaged down from larger ones. It is separable, so
    two small pseudo-inverses suffice: W' = (R_row⁺)ᵀ W R_column⁺.
    """
    if tuple(kernel.shape[-2:]) == tuple(new_size):
        return kernel
    rows, columns = (
        torch.linalg.pinv(_resize_matrix(old, new)) for old, new in zip(kernel.shape[-2:], new_size, strict=True)
    )  # (p, q) each
    return (rows.T @ kernel.double() @ columns).to(kernel.dtype)


def _resize_matrix(old: int, new: int) -> Tensor:
    """Return R for one axis, (new, old): the resized unit vectors."""
    units = torch.eye(old, dtype=torch.float64)[None, None]
    return F.interpolate(units, size=(new, old), mode="bilinear", antialias=True)[0, 0]


Numbers = tuple[float, ...]


def change_channels(
    kernel: Tensor, bias: Tensor, channels: int, mean: Numbers | None, std: Numbers | None
) -> tuple[Tensor, Tensor, Numbers | None, Numbers | None]:
    """Convert a first convolution from 3 channels to 1 or 1 to 3; return kernel, bias, and the input's mean and std.

    3 → 1: three equal channels give Σ_c w_c · x, so the sum over the channels is the same model for gray images.
    Channels that were normalised differently ((g - m_c) / s_c, as ImageNet's) get one mean m and deviation s:
    w = Σ_c w_c s / s_c, and the difference of the means goes into the bias, Σ w_c (m - m_c) / s_c.
    1 → 3: a third of the kernel per channel, the same model for images whose channels are equal.
    """
    old = kernel.shape[1]
    if channels == old:
        return kernel, bias, mean, std
    if (old, channels) == (1, 3):
        return kernel.expand(-1, 3, -1, -1) / 3, bias, mean and mean * 3, std and std * 3
    if channels != 1:
        raise CheckpointError(
            f"weights for {old} input channels cannot be fitted to {channels}; only 3 → 1 and 1 → 3 can"
        )
    if mean is None or std is None or len(mean) != old or len(std) != old:
        return kernel.sum(dim=1, keepdim=True), bias, None, None
    gray_mean, gray_std = sum(mean) / old, sum(std) / old
    means, stds = torch.tensor([mean, std], dtype=torch.float64)
    per_channel = kernel.double()
    shift = (per_channel.sum(dim=(2, 3)) * (gray_mean - means) / stds).sum(dim=1)  # (D,)
    gray = (per_channel * (gray_std / stds)[:, None, None]).sum(dim=1, keepdim=True)
    return gray.to(kernel.dtype), (bias.double() + shift).to(bias.dtype), (gray_mean,), (gray_std,)
