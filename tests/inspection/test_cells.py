"""Cells partition the image, and the cells of a ViT lie where its patches do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.config import ViTConfig
from vitreous.inspection.cells import patch_cells, plain_cells
from vitreous.models import ViT


def test_cells_partition_the_image(any_vit) -> None:
    cells = patch_cells(any_vit.config)
    assert cells.grid == any_vit.config.grid
    assert (cells.masks().sum(axis=0) == 1).all()
    assert (cells.masks().sum(axis=(1, 2)) > 0).all()
    image = np.random.default_rng(0).random(cells.image_size)
    assert cells.total(image).sum() == pytest.approx(image.sum())
    assert cells.total(image).ravel()[-1] == pytest.approx(image[cells.masks()[-1]].sum())


def test_a_patch_depends_on_its_own_cell(any_vit, image_for) -> None:
    """The pixels a patch's token depends on: exactly its cell's, or, where cells are approximate, around them."""
    cells, model = patch_cells(any_vit.config), any_vit
    image = image_for(model)[None].requires_grad_()
    tokens = model.embed(image)[0, model.config.num_prefix_tokens :]
    for patch, mask in enumerate(cells.masks()):
        (gradient,) = torch.autograd.grad(tokens[patch].square().sum(), image, retain_graph=True)
        touched = gradient[0].abs().sum(dim=0).numpy() > 0
        if cells.exact:
            assert (touched == mask).all()
        else:
            assert touched[mask].all()


def test_stem_cells_are_centred_on_what_their_token_sees(tiny_vit, image_for) -> None:
    model = tiny_vit("conv stem")
    cells = patch_cells(model.config)
    image = image_for(model)[None].requires_grad_()
    tokens = model.embed(image)[0, 1:]
    (gradient,) = torch.autograd.grad(tokens[5].square().sum(), image)  # an inner token: row 2, column 2 of 4 × 4
    rows = np.flatnonzero(gradient[0].abs().sum(dim=(0, 2)))
    assert (rows.min() + rows.max() + 1) / 2 == cells.centres[5, 0]
    assert not cells.exact
    assert "approximate" in cells.note


@pytest.mark.parametrize(("stem", "reach"), [({}, 7), ({"stem_depth": 2}, 19), ({"stem_channels": (4,)}, 3)])
def test_what_a_token_sees_through_a_stem(stem, reach) -> None:
    size = ViTConfig(image_size=64, stem_channels=(4, 4), patch_size=1, dim=8, depth=1, num_heads=1, mlp_dim=8)
    model = ViT(size.replace(**stem))
    image = torch.rand(1, 1, 64, 64, requires_grad=True)
    token = model.embed(image)[0, 1 + model.config.num_patches // 2 + model.config.grid[1] // 2]  # an inner one
    (gradient,) = torch.autograd.grad(token.square().sum(), image)
    rows = np.flatnonzero(gradient.abs().sum(dim=(0, 1, 3)))
    assert rows.max() - rows.min() + 1 == reach
    assert f"sees {reach} × {reach} pixels or more" in patch_cells(model.config).note


@pytest.mark.parametrize(
    ("size", "grid"), [((28, 28), (7, 7)), ((32, 32), (8, 8)), ((12, 8), (6, 8)), ((11, 6), (7, 6))]
)
def test_plain_cells(size: tuple[int, int], grid: tuple[int, int]) -> None:
    cells = plain_cells(size)
    assert cells.grid == grid
    assert (cells.masks().sum(axis=(1, 2)) > 0).all()


def test_padding_is_noted(tiny_vit) -> None:
    cells = patch_cells(tiny_vit("padded").config)
    assert cells.row_edges == (0, 4, 8, 10)
    assert cells.exact
    assert "zeros" in cells.note


def test_sub_pixels_and_scaling() -> None:
    cells = plain_cells((4, 4)).scaled_to((2, 6), "a note")
    assert (cells.image_size, cells.grid, cells.note) == ((2, 6), (4, 4), "a note")
    assert cells.of_pixels(density=2).tolist()[1] == [4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7]
