"""Small measuring instruments that several rows share.

Shapes: T tokens, D width, M width of the MLP.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.conformance.parts import BlockParts

TOLERANCE = 1e-7  # float64 copies: the same arithmetic agrees to about 1e-12, another arithmetic does not
NO_TOKENS = "a convolutional network: it has no tokens and no attention"


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the size of what is compared."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()


def equal(a: Tensor, b: Tensor) -> bool:
    return gap(a, b) < TOLERANCE


@torch.no_grad()
def probe_eps(norm: nn.LayerNorm) -> float:
    """ε of a LayerNorm, from what it makes of a nearly constant token: its output shrinks by √(σ² / (σ² + ε))."""
    D = norm.weight.shape[0]
    direction = torch.linspace(-1, 1, D, dtype=torch.float64)
    direction = direction / direction.square().mean().sqrt()  # mean 0, variance 1
    size = 1e-5
    output = (norm((size * direction)[None])[0] - norm.bias) / norm.weight
    shrunk = ((output * direction).mean() / direction.square().mean()).item()
    return size**2 * (1 / shrunk**2 - 1)


def layer_norm(z: Tensor, norm: nn.LayerNorm) -> Tensor:
    """LN(z) = γ (z − μ) / √(σ² + ε) + β, with the ε that the module is measured to use."""
    centred = z - z.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + probe_eps(norm)).sqrt()
    return scaled * norm.weight + norm.bias


@torch.no_grad()
def activation_of(block: BlockParts) -> Callable[[Tensor], Tensor]:
    """The MLP's activation as a function, read off its output: fc1 and fc2 are made to let values through unchanged."""
    layers = (block.fc1, block.fc2)
    saved = [copy.deepcopy(layer.state_dict()) for layer in layers]
    width = min(block.fc1.in_features, block.fc1.out_features)

    def activate(values: Tensor) -> Tensor:
        for layer in layers:
            layer.weight.copy_(torch.eye(*layer.weight.shape, dtype=torch.float64))
            layer.bias.zero_()
        flat = values.flatten()
        rows = F.pad(flat, (0, -len(flat) % width)).view(-1, width)
        out = block.mlp(F.pad(rows, (0, block.fc1.in_features - width)))[:, :width]
        for layer, state in zip(layers, saved, strict=True):
            layer.load_state_dict(state)
        return out.flatten()[: len(flat)].view_as(values)

    return activate
