"""`auto`: what it chooses from the data, why, and that the user's own settings win."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitreous.config.presets import preset
from vitreous.errors import ConfigError
from vitreous.models.summary import count_flops
from vitreous.training import auto
from vitreous.training.auto import AutoRequest, Meaning, choose


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pilot and the model small enough for a test."""
    monkeypatch.setattr(auto, "PILOT_STEPS", 120)
    monkeypatch.setattr(auto, "TRAIN_FLOPS", 1e9)
    monkeypatch.setattr(auto, "FEWEST_STEPS", 20)


def arrows(folder: Path, turned: bool) -> str:
    """Write images of one bright triangle: by class it points left or right, or (`turned`) is large or small."""
    random = np.random.default_rng(0)
    labels = np.arange(500) % 2
    images = random.integers(0, 60, size=(500, 12, 12), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = random.integers(0, 4, size=2)
        triangle = np.tri(7, dtype=bool) & np.tri(7, dtype=bool)[::-1]  # its base is at the left
        if turned:
            triangle = np.rot90(triangle, random.integers(4))
            triangle = triangle if label else triangle[::2, ::2]
        elif label:
            triangle = triangle[:, ::-1]
        height, width = triangle.shape
        image[row : row + height, column : column + width][triangle] = 220
    path = folder / f"arrows-{turned}.npz"
    np.savez(path, images=images, labels=labels)
    return str(path)


SMALL_MODEL = ("model.dim=32", "model.num_heads=2", "model.mlp_dim=64", "model.depth=2", "model.stem_channels=[32]")


def test_mirrored_images_are_refused_where_the_direction_is_the_class(tmp_path: Path, quick: None) -> None:
    config = choose(AutoRequest(arrows(tmp_path, turned=False), SMALL_MODEL))
    assert not config.data.augment.flip
    assert config.data.augment.rotate < 45
    assert "never mirrored" in config.reasons[2]


def test_mirrored_and_turned_images_are_used_where_they_keep_their_class(tmp_path: Path, quick: None) -> None:
    config = choose(AutoRequest(arrows(tmp_path, turned=True), SMALL_MODEL))
    assert config.data.augment.flip
    assert config.data.augment.rotate == 180
    assert ", mirrored (a pilot:" in config.reasons[2]


def test_the_same_data_give_the_same_choice(tmp_path: Path, quick: None) -> None:
    request = AutoRequest(arrows(tmp_path, turned=False), SMALL_MODEL)
    assert choose(request) == choose(request)


def test_named_settings_win(quick: None) -> None:
    settings = ("train.epochs=3", "data.augment.flip=true", "model.depth=1", "data.train_per_class=20")
    config = choose(AutoRequest("digits", settings, seed=7))
    assert (config.train.epochs, config.model.depth, config.seed, config.name) == (3, 1, 7, "auto")
    assert config.data.augment.flip
    assert config.data.augment.shift > 0  # the rest is chosen


def test_every_set_gets_about_the_same_arithmetic() -> None:
    from vitreous.config import ViTConfig

    model = ViTConfig(patch_size=1, stem_channels=(48, 96), stem_depth=2, dim=96, num_heads=3, mlp_dim=192)
    for num_images in (3000, 10_000, 60_000):
        train = auto._train(model, num_images)
        flops = 3 * count_flops(model) * train.epochs * num_images
        assert 0.5 < flops / auto.TRAIN_FLOPS < 2
    tiny = auto._train(model, 50)
    assert tiny.batch_size == 32
    assert tiny.epochs == auto.MOST_EPOCHS


@pytest.mark.parametrize(
    ("accuracy", "mirrored", "informative", "keeps"),
    [(0.9, 0.85, True, True), (0.9, 0.5, True, False), (0.12, 0.12, False, True), (0.5, 0.4, True, True)],
)
def test_rule_for_mirrored_images(accuracy: float, mirrored: float, informative: bool, keeps: bool) -> None:
    meaning = Meaning(images=500, chance=0.1, accuracy=accuracy, mirrored=mirrored, turned=None)
    assert meaning.is_informative is informative
    assert meaning.keeps(meaning.mirrored) is keeps
    assert not meaning.keeps(meaning.turned)


def test_few_validation_images_decide_nothing() -> None:
    assert not Meaning(images=30, chance=0.1, accuracy=1.0, mirrored=0.1, turned=0.1).is_informative


def test_auto_is_no_preset_and_needs_data() -> None:
    with pytest.raises(ConfigError, match="chooses every setting from the data"):
        preset("auto")
    with pytest.raises(ConfigError, match="name some with"):
        choose(AutoRequest(""))
