"""Rows about the class token, the positions, and their interpolation to another resolution.

Shapes: h × w the grid of patches, D width.
"""

from __future__ import annotations

import torch
from scipy import ndimage
from torch import nn

from vitreous.config import ViTConfig
from vitreous.conformance.measurements import POSITION_KINDS, noise
from vitreous.conformance.rows import Measurement, Subject, differs, does_not_apply, same
from vitreous.reports.formats import by


def class_token(subject: Subject) -> Measurement:
    parts = subject.parts
    z0 = parts.embed(noise(2, *subject.image_shape))
    if parts.class_token is None or z0.shape[1] != parts.num_patches + 1:
        return differs(f"none: {z0.shape[1]} tokens for {parts.num_patches} patches", "there is no class token")
    if not isinstance(parts.class_token, nn.Parameter):
        return differs("a fixed vector", "it is not a parameter: not trained, not saved")
    if not parts.class_token_learns:
        return differs("a fixed vector", "it is frozen: not trained")
    gradient = torch.autograd.grad(z0[:, 0].sum(), parts.class_token, allow_unused=True)[0]
    if gradient is None or not gradient.any():
        return differs("a parameter that does not reach the first token", "the first token does not learn")
    return same("a learned vector, first of the tokens")


def positions(subject: Subject) -> Measurement:
    here = POSITION_KINDS[subject.position_kind]
    return same(here) if subject.position_kind == "learned" else differs(here, "not the paper's default")


def position_variants(subject: Subject) -> Measurement:
    here = POSITION_KINDS[subject.position_kind]
    if subject.position_kind in ("none", "learned", "learned-2d", "relative"):
        return same(here, "one of the appendix's; adding positions in every layer is not implemented here")
    return differs(here, "not among the appendix's variants")


def interpolation(subject: Subject) -> Measurement:
    """Resize this model's positions to half as many rows again, by the package's rule and by the authors' own call."""
    config, model = subject.measured_config, subject.model
    if not isinstance(config, ViTConfig):
        return does_not_apply("this model accepts one resolution only")
    if config.positions != "learned":
        return does_not_apply(f"positions are {config.positions}: there is no table to interpolate")
    from vitreous.checkpoints.positions import resize_positions

    table = model.get_parameter("pos_embed").detach().double().cpu()
    table = table + noise(*table.shape) * 0.02  # a fresh or trained table may be constant somewhere
    (h, w), prefix = config.grid, int(config.has_class_token)
    grid = (h + (h + 1) // 2, w + 1)
    resized = resize_positions(table, (h, w), grid, bool(prefix), "google")
    plane = table[0, prefix:].reshape(h, w, -1).numpy()
    zoomed = ndimage.zoom(plane, (grid[0] / h, grid[1] / w, 1), order=1)  # as vit_jax/checkpoint.py does
    expected = torch.cat([table[:, :prefix], torch.from_numpy(zoomed).flatten(0, 1)[None]], dim=1)
    here = f"{by(h, w)} → {by(*grid)} positions"
    if resized.shape != expected.shape or (resized - expected).abs().max() > 1e-5:
        return differs(here, "not what the authors' call (scipy.ndimage.zoom, order 1) gives for the same table")
    if prefix and not torch.equal(resized[:, 0], table[:, 0]):
        return differs(here, "the class token's position is changed")
    return same(f"{here}, equal to scipy.ndimage.zoom(order=1), the class token's untouched")
