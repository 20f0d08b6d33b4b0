"""`vitreous mistakes`: the hardest images of a split; and the notes of `data show` on a folder."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous.cli
from vitreous.comparison.mistakes import find_mistakes, write_mistakes
from vitreous.config import DataConfig, override
from vitreous.config.presets import preset
from vitreous.data.checks import balance_notes, class_counts, duplicate_notes
from vitreous.data.datasets import load_dataset
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.prediction import evaluate_run
from vitreous.runs import Run
from vitreous.training.loop import fit

NAMES = ("<b>left", "right & more")


def picture(kind: int, random: np.random.Generator) -> np.ndarray:
    """A bright bar on the left or on the right, on noise."""
    pixels = random.integers(0, 60, (28, 28), dtype=np.uint8)
    pixels[:, slice(2, 10) if kind == 0 else slice(18, 26)] = 255
    return pixels


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """48 and 24 training images of two classes, 10 test images of each; one test label is wrong, one image is in
    train and test, and one has both labels."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part, counts in (("train", (48, 24)), ("test", (10, 10))):
        for kind, (name, count) in enumerate(zip(NAMES, counts, strict=True)):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(picture(kind, random)).save(root / part / name / f"{number:03}.png")
    Image.fromarray(picture(1, random)).save(root / "test" / NAMES[0] / "wrong.png")
    seen = (root / "train" / NAMES[0] / "000.png").read_bytes()
    (root / "test" / NAMES[0] / "seen.png").write_bytes(seen)
    (root / "train" / NAMES[1] / "both.png").write_bytes(seen)
    return root


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Run:
    settings = [
        f"data.name={json.dumps(str(folder))}", "model.depth=1", "model.dim=32", "train.epochs=25",
        "train.batch_size=16", "train.threads=1", "train.log_every=1000", "data.val_fraction=0",
    ]  # fmt: skip
    return fit(override(preset("vit"), settings), tmp_path_factory.mktemp("run") / "photos-vit", progress=False)


@pytest.fixture(scope="module")
def found(run):
    return find_mistakes(run, most=6)


def test_first_image_has_the_highest_loss_and_is_the_wrong_label(run, found):
    evaluation = evaluate_run(run)
    logits = evaluation.logits.astype(np.float64)
    logs = logits - logits.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    losses = -logs[np.arange(len(logs)), evaluation.labels]
    assert found.worst[0].index == losses.argmax()
    assert [image.loss for image in found.worst] == pytest.approx(sorted(losses, reverse=True)[:6], rel=1e-5)
    assert found.worst[0].path == f"test/{NAMES[0]}/wrong.png"
    assert found.worst[0].label == NAMES[0]
    assert found.worst[0].own.label == NAMES[1]
    stored = Image.open(Path(run.config.data.name) / found.worst[0].path)
    assert np.array_equal(found.worst[0].pixels[0], np.asarray(stored))


def test_classes_and_confusions_add_up(run, found):
    evaluation = evaluate_run(run)
    assert (found.correct, found.count) == (evaluation.correct, evaluation.count)
    assert [one.count for one in found.classes] == [12, 10]
    wrong = sum(times for *_, times in found.confusions)
    assert wrong == found.count - found.correct
    assert found.classes[0].taken_for == (NAMES[1], found.classes[0].count - found.classes[0].correct)


def test_duplicates_of_training_images_are_reported(found, run):
    assert found.duplicates == 1
    everything = find_mistakes(run, most=100)
    duplicates = {image.path: image.duplicate for image in everything.worst if image.duplicate}
    assert duplicates == {f"test/{NAMES[0]}/seen.png": f"train/{NAMES[0]}/000.png ({NAMES[0]})"}
    assert find_mistakes(run, "train", 3).duplicates == 0  # not searched for within the training set
    assert any("trained on" in note for note in find_mistakes(run, "train", 3).notes)


def test_the_wrong_label_is_a_likely_error(found, tmp_path):
    assert found.suspects is not None
    paths = [found.paths[index] for index in found.suspects.found.indices]
    assert paths[0] == f"test/{NAMES[0]}/wrong.png"
    assert found.suspects.images[0].own.label == NAMES[1]
    assert "held out" in found.suspects.method
    page = write_mistakes(found, tmp_path / "out").read_text(encoding="utf-8")
    assert "Likely label errors" in page
    with (tmp_path / "out" / "label-errors.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == paths
    assert (rows[0]["label"], rows[0]["suggested"]) == NAMES


def test_the_training_split_is_judged_out_of_fold(run):
    found = find_mistakes(run, "train", 3)
    assert found.suspects is not None
    assert "out-of-fold" in found.suspects.method
    assert "trained on these labels" in found.suspects.method
    suspects = [found.paths[index] for index in found.suspects.found.indices]
    assert f"train/{NAMES[1]}/both.png" in suspects
    # the same picture under another label, in its split and in the test split
    pairs = {(first.path, second.path) for first, second, _ in found.near.pairs}
    assert pairs == {
        (f"train/{NAMES[0]}/000.png", f"train/{NAMES[1]}/both.png"),
        (f"train/{NAMES[1]}/both.png", f"test/{NAMES[0]}/seen.png"),
    }


def test_metrics_are_those_of_evaluate(run, found):
    evaluation = evaluate_run(run)
    for name in ("macro_f1", "balanced_accuracy", "calibration_error", "raw_calibration_error"):
        assert getattr(found, name) == pytest.approx(getattr(evaluation, name), rel=1e-5)
        assert found.as_dict()[name] == getattr(found, name)
    assert [one.f1 for one in found.class_metrics] == [one.f1 for one in evaluation.per_class]


def test_files_agree(found, tmp_path):
    page = write_mistakes(found, tmp_path / "out").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "http" not in page.replace("http-equiv", "")
    assert "<b>left" not in page
    assert "test/&lt;b&gt;left/wrong.png" in page
    stored = json.loads((tmp_path / "out" / "gallery.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(found.as_dict()))
    with (tmp_path / "out" / "by-loss.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found.count
    assert rows[0]["path"] == found.worst[0].path
    losses = [float(row["loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    with Image.open(tmp_path / "out" / "figures" / "worst.png") as drawn:
        assert drawn.size[0] > 500


def test_changed_data_are_refused(run, folder):
    added = folder / "test" / NAMES[1] / "new.png"
    Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(added)
    try:
        with pytest.raises(DataError, match="changed since"):
            find_mistakes(run)
    finally:
        added.unlink()
    find_mistakes(run)


@pytest.mark.parametrize(
    ("split", "most", "error", "sentence"),
    [("dev", 5, DataError, "no split 'dev'"), ("val", 5, DataError, "is empty"), ("test", 0, ConfigError, "most=0")],
)
def test_user_errors_are_one_sentence(run, split, most, error, sentence):
    with pytest.raises(error, match=sentence):
        find_mistakes(run, split, most)


def test_balanced_data_without_duplicates_have_no_notes():
    dataset = load_dataset(DataConfig(name="digits"))
    assert duplicate_notes(dataset) == []
    assert balance_notes(dataset) == []
    assert sum(sum(counts) for _, *counts in class_counts(dataset)) == 1797


# --- notes of `data show` ---------------------------------------------------------------------------------------


def test_notes_on_a_folder(folder):
    dataset = load_dataset(DataConfig(name=str(folder), val_fraction=0))
    assert class_counts(dataset) == [(NAMES[0], 48, 0, 12), (NAMES[1], 25, 0, 10)]
    notes = duplicate_notes(dataset)
    assert f"same picture: train/{NAMES[0]}/000.png (in train) and test/{NAMES[0]}/seen.png (in test)" in notes
    assert any("both.png" in line and "labels differ" in line for line in notes)
    assert len(notes) == 2
    assert not any("imbalanced" in note for note in balance_notes(dataset))  # below a factor of two


def test_imbalance_and_few_images(tmp_path):
    random = np.random.default_rng(1)
    labels = np.repeat([0, 1], [60, 10])
    np.savez(tmp_path / "few.npz", images=random.integers(0, 255, (70, 8, 8), dtype=np.uint8), labels=labels)
    notes = balance_notes(load_dataset(DataConfig(name=str(tmp_path / "few.npz"))))
    assert notes[0].startswith("imbalanced: '0' has 6.1 times the training images of '1' (43 and 7)")
    assert notes[1].startswith("fewer than 20 training images of '1'")


def test_many_duplicates_are_counted_not_listed(tmp_path):
    images = np.arange(12, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    both = np.concatenate([images, images])
    np.savez(
        tmp_path / "duplicates.npz",
        images=both,
        labels=np.arange(24) % 2,
        test_images=images,
        test_labels=np.zeros(12, int),
    )
    dataset = load_dataset(DataConfig(name=str(tmp_path / "duplicates.npz"), val_fraction=0))
    notes = duplicate_notes(dataset)
    assert len(notes) == 9
    assert notes[-1] == "… 4 more"


def test_command_line(run, folder, tmp_path, capsys, monkeypatch):
    def vitreous_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, arguments)])
        code = 0
        try:
            vitreous.cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, _ = vitreous_command("mistakes", "--run", run.path, "-o", tmp_path / "m")
    assert code == 0
    assert "wrong.png: labelled <b>left, predicted right & more" in out
    assert (tmp_path / "m" / "gallery.html").is_file()
    code, out, _ = vitreous_command("mistakes", "--run", run.path, "-o", tmp_path / "m", "--json", "--most", "2")
    assert len(json.loads(out)["worst"]) == 2
    code, out, _ = vitreous_command("data", "show", folder, "-o", tmp_path / "sheet.png")
    assert code == 0
    assert "28×28×1, 2 classes" in out
    assert re.search(r"<b>left +43 \+ 5 \+ 12", out)
    assert "seen.png (in test)" in out
    code, _, err = vitreous_command("mistakes", "--run", tmp_path / "nowhere")
    assert code == 2
    assert "no run folder" in err
