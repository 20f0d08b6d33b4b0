"""`look` at runs: two stand side by side only where they answer about one picture, in the same classes."""

from __future__ import annotations

import dataclasses

import pytest

from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.internals.asking import LookError
from vitreous.internals.from_run import _check_same_question, look_at_run
from vitreous.models import build
from vitreous.preprocess import Preprocessing
from vitreous.runs import Run

MODEL = ViTConfig(dim=16, depth=1, num_heads=2, mlp_dim=24)


@pytest.fixture
def make_run(tmp_path):
    def make(name: str, **changes) -> Run:
        config = Config(name=name, model=MODEL, data=DataConfig(name="digits"))
        dataset = dataclasses.replace(load_dataset(config.data), **changes)
        run = Run.create(tmp_path / name, config, dataset, Preprocessing.for_dataset(dataset), {})
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
