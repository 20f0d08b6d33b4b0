"""`compare` of runs: only on the same test images, whatever their size, and with a warning if they were trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.cli.compare import compare as compare_command
from vitreous.comparison.from_runs import load_test_data, training_notes
from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError, RunError
from vitreous.models import build
from vitreous.runs import Resolved, Run
from vitreous.runs import TestResults as Measured
from vitreous.studies.compare import compare

MODEL = ViTConfig(dim=16, depth=1, num_heads=2, mlp_dim=24, num_classes=2, image_size=(12, 12), patch_size=(4, 4))
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 12, 12), np.uint8)
LABELS = np.arange(40) // 20
TEST_IMAGES = RANDOM.integers(0, 256, (10, 12, 12), np.uint8)
TEST = {"test_images": TEST_IMAGES, "test_labels": np.arange(10) // 5}

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(name: str, data: Path, threads: int = 1, **settings: object) -> Run:
        config = Config(name=name, model=MODEL, data=DataConfig(name=str(data), **settings))  # type: ignore[arg-type]
        dataset = load_dataset(config.data)
        model = MODEL.replace(image_size=dataset.image_size, num_classes=dataset.num_classes)
        config = config.replace(model=model)
        resolved = Resolved(batch_size=4, steps=1, steps_per_epoch=1, threads=threads, hardware="a CPU, 64 cores")
        run = Run.create(tmp_path / name, config, dataset, Preprocessing.for_dataset(dataset), resolved)
        count = len(dataset.test)
        measured = Measured(
            accuracy=0.5, correct=count // 2, count=count, nll=1, calibration_error=0, train_seconds=1,
            images_per_second=1,
        )  # fmt: skip
        run.finish(build(model), measured)
        return run

    return make


def test_equal_labels_do_not_hide_other_test_images(make_run: MakeRun, tmp_path: Path) -> None:
    """One file, and so one checksum; by another split_seed other images are held out, with the same labels."""
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    runs = [make_run(f"split-{seed}", tmp_path / "data.npz", split_seed=seed, val_fraction=0) for seed in (0, 1)]
    tests = [load_dataset(run.config.data).test for run in runs]
    assert tests[0].labels.tolist() == tests[1].labels.tolist()
    common = len(
        {image.tobytes() for image in tests[0].images.numpy()} & {i.tobytes() for i in tests[1].images.numpy()}
    )
    assert 0 < common < 8
    with pytest.raises(RunError) as caught:
        compare(runs, out=tmp_path / "report", progress=False)
    assert str(caught.value) == (
        f"{runs[0].path} and {runs[1].path} do not have the same test images in the same order (8 and 8, {common} in"
        f" both; {runs[0].path} was trained on {8 - common} of the other's; {runs[1].path} was trained on {8 - common}"
        " of the other's): models are compared on the same test images, so train one again with the other's data and"
        " data.split_seed"
    )
    assert not (tmp_path / "report").exists()
    for run in runs:  # runs of older versions have no checksum of the test split in their record
        run.record = run.record.replace(data=run.record.data.model_copy(update={"test_sha256": None}))
    with pytest.raises(RunError, match="do not have the same test images"):
        load_test_data(runs)


def test_data_that_changed_since_a_later_run_was_trained(make_run: MakeRun, tmp_path: Path) -> None:
    """Two copies of a file; the second gets other images under the same labels after its run was trained."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "data.npz", images=IMAGES, labels=LABELS)
    runs = [make_run(f"run-{folder}", tmp_path / folder / "data.npz") for folder in ("a", "b")]
    assert len({dataset.test.sha256 for dataset in load_test_data(runs)}) == 1
    np.savez(tmp_path / "b" / "data.npz", images=255 - IMAGES, labels=LABELS)
    with pytest.raises(DataError, match="run-b' was trained"):
        compare(runs, out=tmp_path / "report", progress=False)


def test_a_later_run_on_the_same_file_is_checked_too(make_run: MakeRun, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    old = make_run("old", tmp_path / "data.npz")
    np.savez(tmp_path / "data.npz", images=255 - IMAGES, labels=LABELS)
    with pytest.raises(DataError, match="old' was trained"):
        load_test_data([make_run("new", tmp_path / "data.npz"), old])


def test_the_same_images_at_another_size_are_the_same(make_run: MakeRun, tmp_path: Path) -> None:
    for index, pixels in enumerate(IMAGES):
        file = tmp_path / "folder" / "ab"[index // 20] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    for data in (tmp_path / "folder", tmp_path / "data.npz"):
        stem = data.name
        runs = [
            make_run(f"{stem}-own", data), make_run(f"{stem}-8", data, image_size=(8, 8)),
            make_run(f"{stem}-colour", data, channels=3),
        ]  # fmt: skip
        datasets = load_test_data(runs)
        assert [dataset.test.images.shape[1:] for dataset in datasets[1:]] == [(1, 8, 8), (3, *datasets[0].image_size)]
        assert len({dataset.test.sha256 for dataset in datasets}) == 1
        assert training_notes(runs, datasets) == ([], [])


def test_test_images_in_the_training_set_are_a_warning_everywhere(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run was trained on more images, three of which are test images of both."""
    np.savez(tmp_path / "less.npz", images=IMAGES, labels=LABELS, **TEST)
    more = np.concatenate([IMAGES, TEST_IMAGES[[1, 2, 7]]])
    np.savez(tmp_path / "more.npz", images=more, labels=np.concatenate([LABELS, [0, 0, 1]]), **TEST)
    runs = [
        make_run("vit-a", tmp_path / "less.npz", val_fraction=0, threads=2),
        make_run("vit-b", tmp_path / "more.npz", val_fraction=0, threads=3, image_size=(8, 8)),
    ]
    compare_command([str(run.path) for run in runs], out=tmp_path / "report")
    results = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    (warning,) = results["warnings"]
    assert warning == (
        "Some of the 10 test images were trained on, pixel for pixel: vit-b on 3; accuracy on them means nothing:"
        " remove them from the training images, and train again."
    )
    html = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert warning in html
    assert warning in capsys.readouterr().out
    where = f"vit-a on '{tmp_path}/less.npz' (40 images) and vit-b on '{tmp_path}/more.npz' (43 images)"
    assert f"trained on different images: {where}" in results["notes"]
    # threads and machine are those of the trainings, not of this process
    assert results["hardware"]["threads"] == "2 (vit-a) and 3 (vit-b)"
    assert results["hardware"]["trained on"] == "a CPU, 64 cores"
    assert "<dt>threads</dt><dd>2 (vit-a) and 3 (vit-b)</dd>" in html
    assert [model["seeds"][0]["threads"] for model in results["models"]] == [2, 3]


def test_runs_without_test_images_among_their_training_images_have_no_warning(
    make_run: MakeRun, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS, **TEST)
    runs = [make_run(name, tmp_path / "data.npz") for name in ("a", "b")]
    assert training_notes(runs, load_test_data(runs)) == ([], [])


def test_another_order_or_other_labels_are_not_the_same_test_set(make_run: MakeRun, tmp_path: Path) -> None:
    order = [1, 0, *range(2, 10)]  # the labels stay: 0 for the first five images
    changes = {
        "same": TEST,
        "order": {**TEST, "test_images": TEST_IMAGES[order]},
        "labels": {**TEST, "test_labels": 1 - TEST["test_labels"]},
    }
    for name, test in changes.items():
        np.savez(tmp_path / f"{name}.npz", images=IMAGES, labels=LABELS, **test)
    first, *others = (make_run(name, tmp_path / f"{name}.npz") for name in changes)
    for other in others:
        with pytest.raises(RunError, match=r"in the same order \(10 and 10, 10 in both\)"):
            load_test_data([first, other])
