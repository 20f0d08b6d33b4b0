"""Rows about what tells tokens apart: the class token, the positions, and their fitting to another resolution.

Shapes: h × w the grid of patches, D width.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.conformance.parts import Parts
from vitreous.conformance.probes import NO_TOKENS, equal, noise
from vitreous.conformance.sheet import Row, Subject, differs, does_not_apply, item, same

Element = tuple[int, int]  # which parameter, which of its numbers


def token_count(subject: Subject) -> int:
    assert subject.parts is not None
    return subject.parts.blank_tokens().shape[1]


@item("class-token", "Class token", "a learned vector in front of the patches (z_0⁰ = x_class), as BERT's [class]")
def class_token(subject: Subject) -> Row:
    parts = subject.parts
    if parts is None:
        return does_not_apply(NO_TOKENS)
    z0 = parts.embed(noise(2, *subject.image_shape))
    if parts.class_token is None or z0.shape[1] != math.prod(parts.grid) + 1:
        return differs(f"none: {z0.shape[1]} tokens for {math.prod(parts.grid)} patches", "there is no class token")
    if not isinstance(parts.class_token, nn.Parameter):
        return differs("a fixed vector", "it is not a parameter: not trained, not saved")
    if not parts.class_token_learns:
        return differs("a fixed vector", "it is frozen: not trained")
    gradient = torch.autograd.grad(z0[:, 0].sum(), parts.class_token, allow_unused=True)[0]
    if gradient is None or not gradient.any():
        return differs("a parameter that does not reach the first token", "the first token does not learn")
    return same("a learned vector, first of the tokens")


# --- positions -----------------------------------------------------------------------------------------------

KINDS = {
    "learned": "1-D: a learned vector for each token",
    "learned-2d": "2-D: learned vectors for rows and for columns",
    "relative": "relative: attention logits depend on the offset of two tokens",
    "none": "none: a bag of patches",
    "fixed": "fixed, not learned (sine-cosine)",
    "one for all": "one learned vector, the same for every token: no order",
    "tied": "learned, but places share parameters",
}


def position_kind(subject: Subject) -> str:
    """How the model knows places, one of `KINDS`: read off its tokens where no pixel or feature says anything."""
    if "positions" not in subject.memo:
        subject.memo["positions"] = _measure_positions(subject)
    return subject.memo["positions"]


def _measure_positions(subject: Subject) -> str:
    parts = subject.parts
    assert parts is not None
    rows, columns = min(parts.grid[0], 2), min(parts.grid[1], 2)  # two rows of two patches show every kind
    tokens = parts.blank_tokens()[0]
    first = tokens.shape[0] - math.prod(parts.grid)
    patches = torch.stack([tokens[first + row * parts.grid[1] + col] for row in range(rows) for col in range(columns)])
    touched = [_touched(patch[[0, -1]], parts) for patch in patches]
    common = set.intersection(*touched)
    own = [elements - common for elements in touched]
    if len(patches) > 1 and all(own):
        return _kind_of_learned(own, columns)
    if not torch.allclose(patches, patches[:1].expand_as(patches)):
        return "tied" if _moves_with_parameters(patches, parts) else "fixed"
    if _order_matters_to_blocks(subject):
        return "relative"
    # the projection's bias touches the two features that were asked for; anything more is a position shared by all
    shared = len(common) > 2
    return ("learned" if len(patches) == 1 else "one for all") if shared else "none"


def _kind_of_learned(own: list[set[Element]], columns: int) -> str:
    pairs = [(i, j) for i in range(len(own)) for j in range(i)]
    shared = {(i, j): bool(own[i] & own[j]) for i, j in pairs}
    if not any(shared.values()):
        return "learned"
    in_line = {(i, j): i // columns == j // columns or i % columns == j % columns for i, j in pairs}
    return "learned-2d" if shared == in_line else "tied"


def _touched(values: Tensor, parts: Parts) -> set[Element]:
    """The parameter elements that these numbers depend on."""
    gradients = torch.autograd.grad(values.sum(), parts.embed_parameters, retain_graph=True, allow_unused=True)
    return {
        (number, element)
        for number, gradient in enumerate(gradients)
        if gradient is not None
        for element in gradient.flatten().nonzero().flatten().tolist()
    }


def _moves_with_parameters(patches: Tensor, parts: Parts) -> bool:
    difference = (patches[-1] - patches[0]).sum()
    gradients = torch.autograd.grad(difference, parts.embed_parameters, retain_graph=True, allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


@torch.no_grad()
def _order_matters_to_blocks(subject: Subject) -> bool:
    """Without relative positions, reversing the tokens and running a block may change places."""
    assert subject.parts is not None
    z = noise(1, token_count(subject), subject.width)
    block = next(subject.parts.blocks())
    return not equal(block.run(z.flip(1))[1], block.run(z)[1].flip(1))


@item("positions", "Positions", "learned 1-D embeddings, one a token, added once before the first layer")
def positions(subject: Subject) -> Row:
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    kind = position_kind(subject)
    return same(KINDS[kind]) if kind == "learned" else differs(KINDS[kind], "not the paper's default")


@item(
    "position-variants",
    "Appendix D.4",
    "tried: none, 1-D, 2-D (row and column, D/2 each), relative (1-D offsets, as a bias of the logits)",
    "whether the relative logits are scaled by 1/√D_h like the others, as here: the appendix does not say",
)
def position_variants(subject: Subject) -> Row:
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    kind = position_kind(subject)
    if kind in ("none", "learned", "learned-2d", "relative"):
        return same(KINDS[kind], "one of the appendix's; its positions anew in every layer are not built here")
    return differs(KINDS[kind], "not among the appendix's variants")


# --- another resolution --------------------------------------------------------------------------------------


@item(
    "interpolation",
    "New resolution",
    "pre-trained positions are interpolated in 2-D by their place in the image; the patch size stays"
    " (the authors' code: bilinear, corners on corners; the class token's position untouched)",
)
def interpolation(subject: Subject) -> Row:
    """Fit this model's positions to half as many rows again, by the package's rule and by the authors' own call."""
    config, model = subject.measured_config, subject.model
    if subject.parts is None or not isinstance(config, ViTConfig):
        return does_not_apply("this model takes one resolution only" if subject.parts else NO_TOKENS)
    if config.positions != "learned":
        return does_not_apply(f"positions are {config.positions}: there is no table of places to interpolate")
    from vitreous.checkpoints.positions import resize_positions

    table = model.get_parameter("pos_embed").detach().double().cpu()
    table = table + noise(*table.shape) * 0.02  # a fresh or trained table may be flat somewhere; this one is not
    (h, w), prefix = config.grid, config.num_tokens - config.num_patches
    grid = (h + (h + 1) // 2, w + 1)
    fitted = resize_positions(table, (h, w), grid, bool(prefix), "google")
    plane = table[0, prefix:].reshape(h, w, -1).numpy()
    zoomed = ndimage.zoom(plane, (grid[0] / h, grid[1] / w, 1), order=1)  # as vit_jax/checkpoint.py does
    expected = torch.cat([table[:, :prefix], torch.from_numpy(np.ascontiguousarray(zoomed)).flatten(0, 1)[None]], dim=1)
    here = f"{h}×{w} → {grid[0]}×{grid[1]} positions"
    if fitted.shape != expected.shape or (fitted - expected).abs().max() > 1e-5:
        return differs(here, "not what the authors' call (scipy.ndimage.zoom, order 1) gives for the same table")
    if prefix and not torch.equal(fitted[:, 0], table[:, 0]):
        return differs(here, "the class token's position is changed")
    return same(f"{here}, equal to scipy.ndimage.zoom(order=1), the class token's untouched")
