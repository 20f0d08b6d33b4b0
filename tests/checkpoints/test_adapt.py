"""Weights fitted to other images, patches, channels and classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from vitreous.checkpoints import (
    Checkpoint,
    adapt,
    load_model,
    resize_positions,
    save_model,
    take_architecture,
)
from vitreous.checkpoints.adapt import change_channels, resize_patch_kernel
from vitreous.errors import CheckpointError
from vitreous.models.vit import ViT

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

# --- the patch kernel --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [((16, 16), (4, 4)), ((16, 16), (7, 7)), ((4, 4), (6, 6)), ((6, 4), (3, 8))])
def test_patch_resize_equals_timms(timm, old, new):
    from timm.layers import resample_patch_embed

    kernel = torch.randn(5, 3, *old)
    theirs = resample_patch_embed(kernel, list(new), interpolation="bilinear", antialias=True)
    torch.testing.assert_close(resize_patch_kernel(kernel, new), theirs, rtol=1e-4, atol=1e-5)


def test_growing_patches_gives_the_same_tokens():
    kernel, patches = torch.randn(5, 3, 4, 4), torch.randn(9, 3, 4, 4)
    larger = F.interpolate(patches, size=(7, 7), mode="bilinear", antialias=True)
    before = torch.einsum("ncij,dcij->nd", patches, kernel)
    after = torch.einsum("ncij,dcij->nd", larger, resize_patch_kernel(kernel, (7, 7)))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_shrinking_patches_keeps_the_scale_of_the_tokens():
    """Smooth patches lose little and give nearly the same token; plain resizing is 16 times too small."""
    coarse = torch.randn(64, 3, 4, 4)
    patches = F.interpolate(coarse, size=(16, 16), mode="bilinear")
    smaller = F.interpolate(patches, size=(4, 4), mode="bilinear", antialias=True)
    kernel = F.interpolate(torch.randn(5, 3, 4, 4), size=(16, 16), mode="bilinear")
    before = torch.einsum("ncij,dcij->nd", patches, kernel)
    after = torch.einsum("ncij,dcij->nd", smaller, resize_patch_kernel(kernel, (4, 4)))
    plain = torch.einsum("ncij,dcij->nd", smaller, F.interpolate(kernel, size=(4, 4), mode="bilinear", antialias=True))
    assert (after - before).norm() < 0.25 * before.norm()
    assert (plain - before).norm() > 0.9 * before.norm()


# --- channels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "std"), [IMAGENET, ((0.5,) * 3, (0.5,) * 3)])
def test_one_channel_is_the_same_model_for_gray_images(mean, std):
    kernel, bias, gray = torch.randn(5, 3, 4, 4), torch.randn(5), torch.rand(6, 1, 4, 4)
    three = (gray - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    weight, shifted, gray_mean, gray_std = change_channels(kernel, bias, 1, mean, std)
    one = (gray - gray_mean[0]) / gray_std[0]
    torch.testing.assert_close(F.conv2d(one, weight, shifted), F.conv2d(three, kernel, bias), rtol=1e-4, atol=1e-4)
    if mean == (0.5,) * 3:  # normalised alike: the plain sum
        torch.testing.assert_close(weight, kernel.sum(dim=1, keepdim=True))


def test_unknown_normalisation_is_the_plain_sum():
    kernel, bias = torch.randn(5, 3, 4, 4), torch.randn(5)
    weight, same, mean, std = change_channels(kernel, bias, 1, None, None)
    assert torch.equal(weight, kernel.sum(dim=1, keepdim=True))
    assert torch.equal(same, bias)
    assert mean is std is None


def test_three_channels_from_one():
    kernel, bias, gray = torch.randn(5, 1, 4, 4), torch.randn(5), torch.randn(6, 1, 4, 4)
    weight, _, mean, _ = change_channels(kernel, bias, 3, (0.1,), (0.3,))
    three = F.conv2d(gray.expand(-1, 3, -1, -1), weight)
    torch.testing.assert_close(three, F.conv2d(gray, kernel), rtol=1e-4, atol=1e-5)
    assert mean == (0.1, 0.1, 0.1)
    with pytest.raises(CheckpointError, match="weights for 1 input channels cannot be fitted to 4"):
        change_channels(kernel, bias, 4, None, None)


# --- the whole ---------------------------------------------------------------------------------------------


@pytest.fixture
def published(tiny):
    """As if from a file: 48 × 48 RGB images in 16 × 16 patches, with ImageNet's normalisation."""
    model = tiny(image_size=48, patch_size=16)
    return replace(Checkpoint.of_model(model, *IMAGENET), position_rule="google")


def test_everything_at_once(published):
    config = published.config.replace(image_size=(28, 20), patch_size=4, channels=1, num_classes=10)
    adapted = adapt(published, config)
    ViT(config).load_state_dict(adapted.tensors, strict=True)
    assert adapted.changes == [
        "input channels 3 → 1: the kernel of patch_embed.proj summed over the channels, the same model for gray images",
        "patches 16×16 → 4×4 pixels: pseudo-inverse resize of the kernel (FlexiViT), which maps a resized patch to the"
        " same token",
        "positions 3×3 → 7×5 patches: bilinear, corner-aligned, as Google's code does",
        "a new classifier for 10 classes, starting at zero: in place of the one for 7",
    ]
    expected = resize_positions(published.tensors["pos_embed"], (3, 3), (7, 5), True, "google")
    assert torch.equal(adapted.tensors["pos_embed"], expected)
    assert not adapted.tensors["head.weight"].any()
    assert len(adapted.mean) == len(adapted.std) == 1
    untouched = {name for name in adapted.tensors if name.startswith("blocks")}
    assert all(torch.equal(adapted.tensors[name], published.tensors[name]) for name in untouched)


def test_nothing_to_do_changes_nothing(published):
    adapted = adapt(published, published.config)
    assert adapted.changes == []
    assert all(torch.equal(adapted.tensors[name], published.tensors[name]) for name in published.tensors)


def test_a_new_head_can_be_asked_for(published):
    adapted = adapt(published, published.config, new_head=True)
    assert adapted.changes == ["a new classifier for 7 classes, starting at zero: in place of the one for 7"]


def test_the_mlp_head_is_dropped(tiny):
    checkpoint = Checkpoint.of_model(tiny(head="mlp", head_hidden=20))
    adapted = adapt(checkpoint, checkpoint.config.replace(head="linear", head_hidden=None))
    assert "the pre-training MLP head is dropped, as the paper does in fine-tuning" in adapted.changes
    assert adapted.tensors["head.weight"].shape == (7, 32)
    with pytest.raises(CheckpointError, match="no MLP head of that width"):
        adapt(Checkpoint.of_model(tiny()), checkpoint.config)


def test_another_architecture_is_refused_and_can_be_taken_over(published):
    config = published.config.replace(dim=64, gelu="tanh", norm_eps=1e-5, dropout=0.1, num_classes=3)
    with pytest.raises(
        CheckpointError, match="dim is 32 in the weights and 64 in the configuration; norm_eps is 1e-06"
    ):
        adapt(published, config)
    taken = take_architecture(published, config)
    assert (taken.dim, taken.gelu, taken.norm_eps) == (32, "erf", 1e-6)
    assert (taken.dropout, taken.num_classes) == (0.1, 3)
    adapt(published, taken)


def test_positions_that_cannot_be_resized_are_refused(tiny):
    checkpoint = Checkpoint.of_model(tiny(positions="learned-2d"))
    adapt(checkpoint, checkpoint.config.replace(num_classes=3))
    with pytest.raises(CheckpointError, match="pos_embed_row"):
        adapt(checkpoint, checkpoint.config.replace(image_size=30))


def test_a_wanted_size_is_never_taken_for_the_trained_one(tiny, tmp_path):
    """8 × 2 patches are as many as 4 × 4: the positions must be resized all the same."""
    model = tiny()
    save_model(model, tmp_path / "tv.safetensors", "torchvision")
    ours, _ = load_model(tmp_path / "tv.safetensors", image_size=(48, 12))
    expected = resize_positions(model.pos_embed.detach(), (4, 4), (8, 2), True, "torchvision")
    assert torch.equal(ours.pos_embed.detach(), expected)


def test_load_model_at_another_size(tiny, tmp_path, timm):
    """The origin's own model, resized by the origin's own function, gives the same logits."""
    model = tiny()
    save_model(model, tmp_path / "timm", "timm", mean=(0.5,) * 3, std=(0.5,) * 3)
    from timm import create_model

    theirs = create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    theirs.set_input_size(img_size=(36, 18))
    ours, checkpoint = load_model(tmp_path / "timm", image_size=(36, 18))
    images = torch.randn(2, 3, 36, 18)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    assert checkpoint.notes[-1] == "positions 4×4 → 6×3 patches: bicubic, antialiased, as timm does"
    with pytest.raises(CheckpointError, match=r"cannot be fitted: .*does not divide"):
        load_model(tmp_path / "timm", image_size=25)
