"""`look` at runs: when two can be compared, what can be removed, and what happens when the data changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.inspection.from_run import SURVEY_IMAGES, look_at_run
from vitreous.inspection.query import LookError
from vitreous.models import build
from vitreous.runs import Run

MODEL = ViTConfig(dim=16, depth=1, num_heads=2, mlp_dim=24, zero_head=False)


@pytest.fixture
def make_run(tmp_path):
    def make(name: str, data: DataConfig | None = None, **changes) -> Run:
        config = Config(name=name, model=MODEL, data=data or DataConfig(name="digits"))
        dataset = dataclasses.replace(load_dataset(config.data), **changes)
        run = Run.create(tmp_path / name, config, dataset, Preprocessing.for_dataset(dataset))
        run.finish(build(MODEL), None)
        return run

    return make


@pytest.fixture
def drawing(tmp_path):
    pixels = np.zeros((28, 28), np.uint8)
    pixels[4:24, 12:16] = 255
    Image.fromarray(pixels).save(tmp_path / "one.png")
    return tmp_path / "one.png"


def test_models_with_other_classes_are_not_compared(make_run, tmp_path) -> None:
    letters = make_run("letters", class_names=tuple("abcdefghij"))
    for image in (None, tmp_path / "drawing.png"):
        with pytest.raises(LookError, match="compare only models with the same classes"):
            look_at_run(make_run(f"digits-{image is None}"), image, against=letters, out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


def test_other_test_images_are_not_compared(make_run, tmp_path) -> None:
    """The checksums of the file are equal, and the labels too: another split_seed holds out other images."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(60) // 6)
    data = DataConfig(name=str(tmp_path / "data.npz"))
    first, second = (make_run(f"split-{seed}", data.replace(split_seed=seed)) for seed in (0, 1))
    with pytest.raises(LookError, match=r"have different test images \(10 and 10\): name an image file for both"):
        look_at_run(first, against=second, out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


def test_changed_data_are_an_error_for_a_test_image(make_run, tmp_path) -> None:
    with pytest.raises(DataError, match="changed since"):
        look_at_run(make_run("changed", checksums={"digits": "of other files"}), test_index=0, out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


def test_changed_data_only_limit_the_survey_for_an_own_image(make_run, drawing, tmp_path) -> None:
    same, changed = make_run("same"), make_run("changed", checksums={"digits": "of other files"})
    with_survey = look_at_run(same, drawing, out=tmp_path / "with")
    assert with_survey.survey.images == SURVEY_IMAGES
    assert "surveyed on this image alone" not in with_survey.report.read_text()
    without = look_at_run(same, drawing, against=changed, out=tmp_path / "without")
    assert "changed was surveyed on this image alone, not on test images: the data" in without.report.read_text()
    assert look_at_run(changed, drawing, out=tmp_path / "alone").survey.images == 1


def test_missing_data_only_limit_the_survey_for_an_own_image(make_run, drawing, tmp_path) -> None:
    run = make_run("moved")
    config = run.config.model_copy(update={"data": DataConfig(name=str(tmp_path / "moved-away"))})
    run.record = run.record.replace(config=config)
    look = look_at_run(run, drawing, out=tmp_path / "look")
    assert look.survey.images == 1
    assert "surveyed on this image alone" in look.report.read_text()


def test_without_a_head_and_a_patch(make_run, tmp_path) -> None:
    run, other = make_run("digits"), make_run("other")
    complete = look_at_run(run, out=tmp_path / "complete")
    reduced = look_at_run(run, without_heads=[(0, 1)], without_patches=[5], against=other, out=tmp_path / "reduced")
    assert "digits without" not in complete.report.read_text()
    note = "digits without head 2 of layer 1 and patch 5 (row 2, column 2); other is complete"
    assert note in reduced.report.read_text()
    assert abs(reduced.examination.logits - complete.examination.logits).max() > 1e-4
    assert reduced.against is not None
    assert reduced.against.patch_effects.ravel()[5] != 0


def test_nothing_can_be_removed_from_a_cnn(tmp_path) -> None:
    with pytest.raises(LookError, match="only a ViT has heads and patches"):
        look_at_run(Run.open("bundled:cnn"), without_patches=[1], out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


def test_options_that_do_not_fit(make_run, drawing, tmp_path) -> None:
    run = make_run("digits")
    with pytest.raises(LookError, match="choose one"):
        look_at_run(run, drawing, test_index=1, out=tmp_path / "look")
    with pytest.raises(LookError, match="target='ten': the classes are 0, 1"):
        look_at_run(run, target="ten", out=tmp_path / "look")
    with pytest.raises(LookError, match="test_index=100000: the test set has images 0 to"):
        look_at_run(run, test_index=100_000, out=tmp_path / "look")
