"""Measurements that several rows share.

Shapes: T tokens, D width, M width of the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.conformance.parts import BlockParts, Parts

TOLERANCE = 1e-7  # float64: the same arithmetic agrees to about 1e-12, a different one does not


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest value of `b`."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()


def equal(a: Tensor, b: Tensor) -> bool:
    return gap(a, b) < TOLERANCE


@torch.no_grad()
def measure_eps(norm: nn.LayerNorm) -> float:
    """Return ε of a LayerNorm, from its output for a nearly constant token, which shrinks by √(σ² / (σ² + ε))."""
    direction = torch.linspace(-1, 1, norm.weight.shape[0], dtype=torch.float64)  # (D,)
    direction = direction / direction.square().mean().sqrt()  # mean 0, variance 1
    size = 1e-5
    output = (norm((size * direction)[None])[0] - norm.bias) / norm.weight
    shrunk = (output * direction).mean().item()
    return size**2 * (1 / shrunk**2 - 1)


def layer_norm(z: Tensor, norm: nn.LayerNorm) -> Tensor:
    """LN(z) = γ (z − μ) / √(σ² + ε) + β, with the measured ε of the module."""
    return F.layer_norm(z, norm.weight.shape, norm.weight, norm.bias, eps=measure_eps(norm))


@torch.no_grad()
def activation(hidden: Tensor, block: BlockParts) -> Tensor:
    """Apply the MLP's activation to values (…, M): return what fc2 receives when fc1 returns them."""
    received: list[Tensor] = []
    hooks = (
        block.fc1.register_forward_hook(lambda *_: hidden),
        block.fc2.register_forward_pre_hook(lambda _module, inputs: received.append(inputs[0])),
    )
    block.mlp(noise(1, block.fc1.in_features))
    for hook in hooks:
        hook.remove()
    return received[0]


# --- positions -----------------------------------------------------------------------------------------------

POSITION_KINDS = {
    "learned": "1-D: a learned vector for each token",
    "learned-2d": "2-D: learned vectors for rows and for columns",
    "relative": "relative: attention logits depend on the offset of two tokens",
    "none": "none: a bag of patches",
    "fixed": "fixed, not learned (sine-cosine)",
    "one for all": "one learned vector, the same for every token: no order",
    "tied": "learned, but positions share parameters",
}


@torch.enable_grad()
def position_kind(parts: Parts) -> str:
    """Return how the model encodes positions, one of `POSITION_KINDS`, measured on the tokens of a blank image."""
    rows, columns = min(parts.grid[0], 2), min(parts.grid[1], 2)  # two rows of two patches show every kind
    tokens = parts.blank_tokens()[0, -parts.num_patches :].unflatten(0, parts.grid)  # (h, w, D)
    patches = tokens[:rows, :columns].flatten(0, 1)
    elements = [_dependencies(patch[[0, -1]].sum(), parts) for patch in patches]
    common = set.intersection(*elements)
    own = [found - common for found in elements]
    if len(patches) > 1 and all(own):
        pairs = [(i, j) for i in range(len(own)) for j in range(i)]
        shared = [bool(own[i] & own[j]) for i, j in pairs]
        in_line = [i // columns == j // columns or i % columns == j % columns for i, j in pairs]
        return "learned" if not any(shared) else "learned-2d" if shared == in_line else "tied"
    if not torch.allclose(patches, patches[:1].expand_as(patches)):
        return "tied" if _dependencies((patches[-1] - patches[0]).sum(), parts) else "fixed"
    if _order_matters_to_blocks(parts):
        return "relative"
    if len(common) <= 2:  # the projection's bias of the two features summed above; any more are a shared position
        return "none"
    return "learned" if len(patches) == 1 else "one for all"


def _dependencies(value: Tensor, parts: Parts) -> set[tuple[int, int]]:
    """Return the elements (parameter, index) of the parameters that `value` depends on."""
    gradients = torch.autograd.grad(value, parts.parameters, retain_graph=True, allow_unused=True)
    return {
        (number, index)
        for number, gradient in enumerate(gradients)
        if gradient is not None
        for index in gradient.flatten().nonzero().flatten().tolist()
    }


@torch.no_grad()
def _order_matters_to_blocks(parts: Parts) -> bool:
    """Whether a block is not equivariant to reversing its tokens, which takes relative positions."""
    z = noise(1, parts.num_tokens, parts.width)
    block = next(parts.blocks())
    return not equal(block.run(z.flip(1))[1], block.run(z)[1].flip(1))
