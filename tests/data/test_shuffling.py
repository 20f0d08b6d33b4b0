"""Shuffled patches: the same pixels in another order, fixed or of its own for each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ConfigError, DataError
from vitreous.models.vit import patchify


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    random, file = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "noise.npz"
    images, labels = random.integers(0, 256, (60, 8, 12, 1), dtype=np.uint8), np.arange(60) % 3
    np.savez(file, images=images[:40], labels=labels[:40], test_images=images[40:], test_labels=labels[40:])
    return str(file)


def load(data: str, kind: str, **changes):
    return load_dataset(DataConfig(name=data, shuffle_patches=kind, shuffle_patch_size=4, val_fraction=0.2, **changes))


def orders(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return for each image which patch stands at each place, found by the pixels: (n, patches)."""
    old, new = (patchify(images.float(), (4, 4)) for images in (before, after))
    equal = (new[:, :, None] == old[:, None]).all(dim=-1)  # (n, places, patches)
    assert (equal.sum(dim=2) == 1).all(), "every place has exactly one of the image's own patches"
    return equal.int().argmax(dim=2)


@pytest.mark.parametrize("kind", ["fixed", "each"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_patches_are_permuted_whole(data, kind, split):
    plain, shuffled = load(data, "none"), load(data, kind)
    found = orders(getattr(plain, split).images, getattr(shuffled, split).images)
    assert (found.sort(dim=1).values == torch.arange(6)).all()
    assert (found != torch.arange(6)).any()
    assert (len(found.unique(dim=0)) == 1) == (kind == "fixed")
    assert torch.equal(getattr(plain, split).labels, getattr(shuffled, split).labels)


def test_fixed_order_is_the_same_in_all_splits_and_follows_the_split_seed(data):
    plain = load(data, "none")
    found = {
        seed: [orders(getattr(load(data, "none", split_seed=seed), split).images,
                      getattr(load(data, "fixed", split_seed=seed), split).images)[0]
               for split in ("train", "val", "test")]
        for seed in (0, 1)
    }  # fmt: skip
    assert all(torch.equal(found[0][0], other) for other in found[0][1:])
    assert not torch.equal(found[0][0], found[1][0])
    assert torch.equal(load(data, "each").test.images, load(data, "each").test.images)
    assert plain.test.sha256 == load(data, "each").test.sha256, "runs on both can be compared image by image"


def test_a_patch_that_does_not_divide_the_image_is_refused(data):
    with pytest.raises(ConfigError, match=r"data.shuffle_patch_size=5×5 does not divide the images of 8×12"):
        load_dataset(DataConfig(name=data, shuffle_patches="each", shuffle_patch_size=5))


def test_a_model_of_shuffled_images_refuses_any_other_image(data):
    dataset = load(data, "each")
    assert "patches of 4×4 pixels are shuffled (each image has an order of its own)" in dataset.notes
    with pytest.raises(DataError, match="shuffled patches"):
        Preprocessing.for_dataset(dataset).prepare(np.zeros((8, 12), np.uint8))
    Preprocessing.for_dataset(load(data, "none")).prepare(np.zeros((8, 12), np.uint8))


def test_runs_of_shuffled_images_are_not_exported(data, tmp_path: Path):
    from vitreous.config import override
    from vitreous.config.presets import preset
    from vitreous.errors import ExportError
    from vitreous.export.onnx_files import export_onnx
    from vitreous.training.loop import fit

    settings = ["model.patch_size=4", "model.depth=1", "train.epochs=0.1", "train.threads=1", f"data.name={data}"]
    config = override(preset("vit"), [*settings, "data.shuffle_patches=fixed", "data.shuffle_patch_size=4"])
    run = fit(config, tmp_path / "run", progress=False)
    with pytest.raises(ExportError, match="shuffled patches"):
        export_onnx(run, tmp_path / "model.onnx")
