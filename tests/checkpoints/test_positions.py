"""Each position rule equals its origin's own function."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import torch

from vitreous.checkpoints.positions import POSITION_RULES, resize_positions
from vitreous.errors import CheckpointError

GRIDS = [((7, 7), (12, 12)), ((7, 7), (3, 3)), ((7, 7), (4, 9)), ((4, 4), (1, 1)), ((1, 1), (3, 3))]
OBLONG = [((3, 8), (6, 5)), ((2, 5), (2, 7))]
DIM = 6


def embedding(grid: tuple[int, int], prefix: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(grid[0] * 31 + grid[1])
    return torch.randn(1, grid[0] * grid[1] + prefix, DIM, generator=generator)


@pytest.mark.parametrize(("old", "new"), GRIDS + OBLONG)
@pytest.mark.parametrize("prefix", [0, 1])
def test_google_rule_is_scipy_zoom(old, new, prefix):
    positions = embedding(old, prefix)
    grid = positions[0, prefix:].numpy().reshape(*old, DIM)
    zoomed = scipy.ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1).reshape(1, -1, DIM)
    ours = resize_positions(positions, old, new, bool(prefix), "google")
    torch.testing.assert_close(ours[:, :prefix], positions[:, :prefix], rtol=0, atol=0)
    np.testing.assert_allclose(ours[:, prefix:], zoomed, atol=2e-6)


@pytest.mark.parametrize(("old", "new"), GRIDS + OBLONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timm_rule_is_timms(timm, old, new, dtype):
    from timm.layers import resample_abs_pos_embed

    positions = embedding(old).to(dtype)
    theirs = resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=1)
    torch.testing.assert_close(resize_positions(positions, old, new, True, "timm"), theirs, rtol=0, atol=0)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_hugging_face_rule_is_its_own(transformers_vit, old, new):
    patch = 4
    config = transformers_vit.ViTConfig(
        hidden_size=DIM, num_attention_heads=1, image_size=old[0] * patch, patch_size=patch
    )
    module = transformers_vit.ViTEmbeddings(config)
    positions = embedding(old)
    module.position_embeddings.data.copy_(positions)
    tokens = torch.zeros(1, new[0] * new[1] + 1, DIM)
    theirs = module.interpolate_pos_encoding(tokens, new[0] * patch, new[1] * patch).detach()
    torch.testing.assert_close(resize_positions(positions, old, new, True, "hf"), theirs, rtol=0, atol=0)


@pytest.mark.parametrize(("old", "new"), [pair for pair in GRIDS if pair[1][0] == pair[1][1]])
def test_torchvision_rule_is_its_own(torchvision_vit, old, new):
    positions = embedding(old)
    function = torchvision_vit.interpolate_embeddings
    theirs = function(new[0] * 4, 4, {"encoder.pos_embedding": positions})["encoder.pos_embedding"]
    torch.testing.assert_close(resize_positions(positions, old, new, True, "torchvision"), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("rule", POSITION_RULES)
def test_same_grid_is_untouched_and_oblong_grids_work(rule):
    positions = embedding((3, 5))
    assert resize_positions(positions, (3, 5), (3, 5), True, rule) is positions
    assert resize_positions(positions, (3, 5), (6, 2), True, rule).shape == (1, 13, DIM)
    # the same number of patches in another shape is another grid
    assert not torch.equal(resize_positions(positions, (3, 5), (5, 3), True, rule), positions)


def test_mistakes_are_one_sentence():
    with pytest.raises(CheckpointError, match=r"does not fit a grid of 3×4"):
        resize_positions(embedding((3, 5)), (3, 4), (6, 6), True, "timm")
    with pytest.raises(CheckpointError, match="unknown position rule 'cubic'"):
        resize_positions(embedding((3, 5)), (3, 5), (6, 6), True, "cubic")
