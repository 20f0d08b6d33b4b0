"""`look` at runs: two stand side by side only where they answer about one picture, in the same classes."""

from __future__ import annotations

import dataclasses

import pytest

from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.inspection.from_run import _check_same_question, look_at_run
from vitreous.inspection.query import LookError
from vitreous.models import build
from vitreous.runs import Run

MODEL = ViTConfig(dim=16, depth=1, num_heads=2, mlp_dim=24, zero_head=False)


@pytest.fixture
def make_run(tmp_path):
    def make(name: str, **changes) -> Run:
        config = Config(name=name, model=MODEL, data=DataConfig(name="digits"))
        dataset = dataclasses.replace(load_dataset(config.data), **changes)
        run = Run.create(tmp_path / name, config, dataset, Preprocessing.for_dataset(dataset))
        run.finish(build(MODEL), {})
        return run

    return make


def test_other_classes_are_not_laid_beside(make_run, tmp_path) -> None:
    letters = make_run("letters", class_names=tuple("abcdefghij"))
    for image in (None, tmp_path / "drawing.png"):
        with pytest.raises(LookError, match="same classes side by side"):
            look_at_run(make_run(f"digits-{image is None}"), image, against=letters, out=tmp_path / "look")
    assert not (tmp_path / "look").exists()


def test_other_test_images_are_not_laid_beside(make_run, tmp_path) -> None:
    digits, others = make_run("digits"), make_run("others", checksums={"digits": "of other files"})
    with pytest.raises(LookError, match="their test images differ; name an image file"):
        look_at_run(digits, against=others, out=tmp_path / "look")
    _check_same_question(digits, others, tmp_path / "drawing.png")  # one file is one picture
    _check_same_question(digits, make_run("digits-again"), None)


def test_without_a_head_and_a_patch(make_run, tmp_path) -> None:
    run, other = make_run("digits"), make_run("other")
    whole = look_at_run(run, out=tmp_path / "whole")
    less = look_at_run(run, without_heads=[(0, 1)], without_patches=[5], against=other, out=tmp_path / "less")
    assert "does without" not in whole.report.read_text()
    said = "digits does without head 2 of layer 1, patch 5 (row 2, column 2); other is whole"
    assert said in less.report.read_text()
    assert abs(less.examination.logits - whole.examination.logits).max() > 1e-4
    assert less.against is not None
    assert less.against.patch_effects.ravel()[5] != 0


def test_a_cnn_has_nothing_to_do_without(make_run, tmp_path) -> None:
    with pytest.raises(LookError, match="only a ViT has heads and patches"):
        look_at_run(Run.open("box:cnn"), without_patches=[1], out=tmp_path / "look")
    assert not (tmp_path / "look").exists()
