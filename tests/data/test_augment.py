"""Augmentation, a pure function of seed, epoch and image index."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.config import AugmentConfig
from vitreous.data.augment import _crops, augment, crop_and_resize, uniforms
from vitreous.data.splitmix import splitmix64

EVERYTHING = AugmentConfig(shift=2, rotate=15, scale=0.1, shear=5, elastic=1.5, erase=0.2, flip=True, crop=0.4)


def images(count=32, channels=1, height=28, width=28):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


def test_augmentation_does_not_depend_on_the_batch():
    originals, indices = images(), torch.arange(100, 132)
    whole = augment(originals, indices, EVERYTHING, seed=3, epoch=5)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    parts = [augment(originals[part], indices[part], EVERYTHING, seed=3, epoch=5) for part in order.split(7)]
    torch.testing.assert_close(torch.cat(parts), whole[order], rtol=0, atol=1e-6)


def test_the_amounts_of_an_epoch_at_once_are_those_of_each_batch():
    originals, indices = images(), torch.arange(100, 132)
    for config in (EVERYTHING, AugmentConfig(shift=1.5, rotate=7), AugmentConfig(shift=3, flip=True)):
        alone = augment(originals, indices, config, seed=3, epoch=5)
        at_once = augment(originals, indices, config, seed=3, epoch=5, num_images=200)
        torch.testing.assert_close(at_once, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", [{"seed": 4}, {"epoch": 6}])
def test_augmentation_changes_with_seed_and_epoch(change):
    arguments = {"seed": 3, "epoch": 5}
    first = augment(images(), torch.arange(32), EVERYTHING, **arguments)
    second = augment(images(), torch.arange(32), EVERYTHING, **(arguments | change))
    assert (first - second).abs().mean() > 0.05


def test_the_default_changes_nothing():
    originals = images()
    assert augment(originals, torch.arange(32), AugmentConfig(), 0, 0) is originals


def test_splitmix64_is_the_published_generator():
    """The outputs of the reference implementation (https://prng.di.unimi.it/splitmix64.c) for the seed 0."""
    assert splitmix64(0, [1, 2]).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_uniforms_are_uniform_and_independent():
    numbers = uniforms(0, 0, torch.arange(20_000), 4)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert torch.allclose(numbers.mean(0), torch.full((4,), 0.5), atol=0.01)
    assert torch.allclose(numbers.var(0), torch.full((4,), 1 / 12), atol=0.003)
    correlation = torch.corrcoef(torch.cat([numbers, uniforms(0, 1, torch.arange(20_000), 4)], dim=1).T)
    assert (correlation - torch.eye(8)).abs().max() < 0.03


def test_shift_moves_by_at_most_the_configured_pixels():
    dot = torch.zeros(200, 1, 28, 28)
    dot[:, :, 14, 10] = 1
    moved = augment(dot, torch.arange(200), AugmentConfig(shift=3, rotate=1e-6), 0, 0)[:, 0]
    rows = (moved.sum(2) * torch.arange(28)).sum(1) - 14
    columns = (moved.sum(1) * torch.arange(28)).sum(1) - 10
    for offset in (rows, columns):
        assert offset.abs().max() <= 3 + 1e-4
        assert offset.abs().max() > 2.5
        assert offset.mean().abs() < 0.4


def test_a_shift_alone_is_by_whole_pixels_without_blur():
    dot = torch.zeros(500, 1, 28, 20)
    dot[:, :, 14, 10] = 1
    moved = augment(dot, torch.arange(500), AugmentConfig(shift=2.5, flip=True), 0, 0)[:, 0]
    torch.testing.assert_close(moved.amax(dim=(1, 2)), torch.ones(500), rtol=0, atol=1e-4)
    rows = moved.sum(2).argmax(1) - 14
    assert rows.unique(return_counts=True)[0].tolist() == [-2, -1, 0, 1, 2]
    assert rows.unique(return_counts=True)[1].min() > 70  # each as likely as the others
    # mirrored, the dot is at column 9 of 0 … 19
    assert moved.sum(1).argmax(1).unique().tolist() == [7, 8, 9, 10, 11, 12]


def test_a_shift_of_less_than_a_pixel_still_moves():
    originals = images()
    assert (augment(originals, torch.arange(32), AugmentConfig(shift=0.5), 0, 0) - originals).abs().max() > 0.1


def test_rotation_keeps_shapes_on_images_that_are_not_square():
    """A disc stays a disc: the angle is taken in pixels, not in units of each side."""
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(48.0), indexing="ij")
    disc = (((rows - 11.5) ** 2 + (columns - 23.5) ** 2) < 64).float().expand(50, 1, 24, 48)
    turned = augment(disc, torch.arange(50), AugmentConfig(rotate=45), 0, 0)
    assert (turned - disc).abs().mean() < 0.02


def test_an_image_is_mirrored_in_every_second_epoch():
    originals, indices = torch.rand(40, 1, 8, 8), torch.arange(40)
    epochs = [augment(originals, indices, AugmentConfig(flip=True), 3, epoch) for epoch in range(4)]
    for before, after in itertools.pairwise(epochs):
        torch.testing.assert_close(after, before.flip(-1))


def test_flip_mirrors_about_half_of_the_images():
    originals = images(200)
    flipped = augment(originals, torch.arange(200), AugmentConfig(flip=True), 0, 0)
    mirrored = ((flipped - originals.flip(-1)).abs().amax(dim=(1, 2, 3)) < 1e-5).sum()
    same = ((flipped - originals).abs().amax(dim=(1, 2, 3)) < 1e-5).sum()
    assert mirrored + same == 200
    assert 70 < mirrored < 130


def test_erase_blanks_a_square_of_that_share():
    blanked = augment(torch.ones(300, 1, 28, 28), torch.arange(300), AugmentConfig(erase=0.25), 0, 0)
    holes = (blanked == 0).flatten(1).sum(1)
    assert 100 < (holes > 0).sum() < 200
    assert holes.max() <= 8 * 8


def test_elastic_changes_the_images_within_bounds():
    originals = images(64)
    bent = augment(originals, torch.arange(64), AugmentConfig(elastic=2), 0, 0)
    assert bent.shape == originals.shape
    assert (bent - originals).abs().mean() > 0.02
    assert torch.isfinite(bent).all()


def test_crops_are_those_of_pillow():
    """Any place and size, enlarged and shrunk: bilinear with antialiasing."""
    pixels = np.random.default_rng(0).uniform(0, 1, (2, 40, 52)).astype(np.float32)
    crops = torch.tensor([[3, 5, 20.5, 30], [7.3, 2.1, 31.7, 49.9]])
    for size in ((16, 16), (48, 9), (31, 64)):
        ours = crop_and_resize(torch.from_numpy(pixels)[:, None], crops, size)[:, 0]
        for image, (top, left, height, width), found in zip(pixels, crops.tolist(), ours, strict=True):
            box = (left, top, left + width, top + height)
            theirs = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR, box=box)
            np.testing.assert_allclose(found, np.asarray(theirs), atol=2e-5)


def test_crops_have_their_share_of_the_area_and_stay_inside():
    random = uniforms(0, 0, torch.arange(2000), 4)
    top, left, height, width = _crops(random, 0.2, torch.Size((48, 64))).T
    shares = height * width / (48 * 64)
    assert 0.15 < shares.min() < 0.25
    assert 0.9 < shares.max() <= 1 + 1e-6
    assert min(top.min(), left.min()) >= 0
    assert (top + height).max() <= 48 + 1e-4
    assert (left + width).max() <= 64 + 1e-4
    assert 3 / 4 - 1e-4 <= (width / height).min() < 0.8
    assert (width / height).max() <= 4 / 3 + 1e-4


def test_crops_of_a_larger_image_have_the_size_of_the_model():
    originals = torch.rand(8, 3, 40, 40)
    cropped = augment(originals, torch.arange(8), AugmentConfig(crop=0.3, flip=True), 0, 0, (24, 20))
    assert cropped.shape == (8, 3, 24, 20)
    assert augment(originals, torch.arange(8), AugmentConfig(crop=0.3), 0, 0).shape == originals.shape
