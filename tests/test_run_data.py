"""A run's data that changed since its training: one rule for every command that reads its images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.comparison.from_runs import load_test_data
from vitreous.comparison.mistakes import find_mistakes
from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.doctor import diagnose_target, plain_text
from vitreous.doctor import diagnosis as diagnosis_module
from vitreous.doctor.checks import CHECKS
from vitreous.errors import DataError
from vitreous.evaluation.prediction import evaluate_run
from vitreous.export.images import local_dataset
from vitreous.inspection.from_run import look_at_run
from vitreous.models import build
from vitreous.runs import Run, load_run_data, require_same_data
from vitreous.studies.grid import train_or_reuse
from vitreous.training.setup import fit_to_data

MODEL = ViTConfig(dim=16, depth=1, num_heads=2, mlp_dim=24, num_classes=2, image_size=(12, 12), patch_size=(4, 4))
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 12, 12), np.uint8)
LABELS = np.arange(40) // 20


@pytest.fixture
def run(tmp_path: Path) -> Run:
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    config = Config(name="run", model=MODEL, data=DataConfig(name=str(tmp_path / "data.npz"), split_seed=3))
    dataset = load_dataset(config.data)
    made = Run.create(tmp_path / "run", config, dataset, Preprocessing.for_dataset(dataset))
    made.finish(build(MODEL), None)
    return made


@pytest.fixture
def changed(run: Run) -> Run:
    """The labels, and so the places of the test images, are the same; the images are others."""
    np.savez(run.config.data.name, images=255 - IMAGES, labels=LABELS)
    return run


def respelled(run: Run) -> str:
    return os.path.relpath(run.config.data.name)


READERS: dict[str, Callable[[Run], object]] = {
    "evaluate": evaluate_run,
    "evaluate --data": lambda run: evaluate_run(run, data=run.config.data.name),
    "evaluate --data, written in another way": lambda run: evaluate_run(run, data=respelled(run)),
    "mistakes": find_mistakes,
    "look --test": lambda run: look_at_run(run, test_index=0, out=run.path / "look"),
    "compare": lambda run: load_test_data([run, run]),
    "compare, reusing a run": lambda run: train_or_reuse(run.config, run.path, "cpu", progress=False),
    "doctor --data": lambda run: diagnose_target(str(run.path), data=respelled(run)),
}


@pytest.mark.parametrize("reader", READERS)
def test_changed_data_are_refused_in_one_sentence(changed: Run, reader: str) -> None:
    with pytest.raises(DataError, match=r"data\.npz' changed since .* restore the data, or train a new run$"):
        READERS[reader](changed)
    assert not (changed.path / "look").exists()


def test_the_doctor_leaves_changed_data_out_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis_module, "CHECKS", {"train-test-overlap": CHECKS["train-test-overlap"]})
    before = diagnose_target(str(run.path))
    assert (before.notes, before.healthy) == ((), ("train-test-overlap",))
    np.savez(run.config.data.name, images=255 - IMAGES, labels=LABELS)
    diagnosis = diagnose_target(str(run.path))
    assert "examined on synthetic inputs, without its data: the data" in plain_text(diagnosis)
    assert "changed since" in diagnosis.as_json()["notes"][0]
    assert [one.id for one in diagnosis.not_measured] == ["train-test-overlap"]


def test_the_doctor_does_not_ignore_data_that_were_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        diagnose_target(str(run.path), data=str(tmp_path / "nothing.npz"))


def test_an_exported_model_is_not_shown_with_changed_images(run: Run) -> None:
    assert local_dataset(run) is not None
    np.savez(run.config.data.name, images=255 - IMAGES, labels=LABELS)
    assert local_dataset(run) is None


def test_renamed_classes_are_changed_data(run: Run) -> None:
    dataset = load_run_data(run)
    run.record = run.record.replace(data=run.record.data.model_copy(update={"class_names": ("cat", "dog")}))
    with pytest.raises(DataError, match="changed since"):
        require_same_data(run, dataset)


def test_the_record_has_the_test_split_and_older_records_do_without(run: Run) -> None:
    dataset = load_run_data(run)
    assert Run.open(run.path).record.data.test_sha256 == dataset.test.sha256
    other = load_dataset(run.config.data.replace(split_seed=4))
    assert (other.checksums, other.test.labels.tolist()) == (dataset.checksums, dataset.test.labels.tolist())
    with pytest.raises(DataError, match="changed since"):  # as if another version held out other images
        require_same_data(run, other)
    run.record = run.record.replace(data=run.record.data.model_copy(update={"test_sha256": None}))
    require_same_data(run, dataset)


def test_other_data_are_split_as_in_training(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "copy.npz", images=IMAGES, labels=LABELS)
    assert load_run_data(run, str(tmp_path / "copy.npz")).test.sha256 == run.record.data.test_sha256


# --- folders -----------------------------------------------------------------------------------------------------


def write_folder(root: Path, suffix: str) -> Path:
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for index in range(10):
            size = tuple(generator.integers(10, 20, 2))
            Image.fromarray(generator.integers(0, 256, size, np.uint8)).save(root / name / f"{index}{suffix}")
    return root


def trained_on(folder: Path, path: Path, **options: object) -> Run:
    config = Config(name="run", model=MODEL, data=DataConfig(name=str(folder), **options))  # type: ignore[arg-type]
    dataset = load_dataset(config.data, MODEL.divisor)
    made = Run.create(path, fit_to_data(config, dataset), dataset, Preprocessing.for_dataset(dataset))
    made.finish(build(made.config.model), None)
    return Run.open(path)


def test_a_run_has_its_own_size_and_fit(tmp_path: Path) -> None:
    """The size was the median rounded to the patch, which only training knew."""
    run = trained_on(write_folder(tmp_path / "images", ".png"), tmp_path / "run")
    assert (run.preprocessing.image_size, run.preprocessing.fit) == ((16, 12), "crop")
    assert run.config.data.image_size is None
    dataset = load_run_data(run)
    assert (dataset.image_size, dataset.fit) == ((16, 12), "crop")
    assert load_dataset(run.config.data).image_size != (16, 12)
    assert evaluate_run(run).count == len(dataset.test)


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", ".png")
    for index in range(120):
        (folder / "a" / f"bad {index:03}.png").write_bytes(b"")
    run = trained_on(folder, tmp_path / "run", skip_corrupt=True)
    assert run.record.data.skipped == 120
    assert run.record.data.skipped_names == tuple(f"a/bad {index:03}.png" for index in range(100))
    assert len(load_run_data(run).skipped) == 120


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_run_of_an_earlier_version(tmp_path: Path, suffix: str) -> None:
    """Its checksum is of pixels as that version resized them; the test images tell, unless they are JPEGs."""
    run = trained_on(write_folder(tmp_path / "images", suffix), tmp_path / "run")
    recorded: dict[str, object] = {"checksums": {"pixels and labels": "0" * 64}}
    if suffix == ".jpg":
        recorded["test_sha256"] = "0" * 64
    run.record = run.record.replace(data=run.record.data.model_copy(update=recorded))
    if suffix == ".png":
        assert evaluate_run(run).count == run.record.data.images["test"]
        (tmp_path / "images" / "a" / "0.png").unlink()
    with pytest.raises(DataError, match=r"was trained by an earlier version, which read the images .* in another way"):
        evaluate_run(run)
