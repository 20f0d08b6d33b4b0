"""Predictions of many files: the same as of each alone, in order; and tables that are complete, or named partial."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data import workers
from vitreous.data.image_files import ImageFile, find_images
from vitreous.errors import ConfigError, MissingExtraError
from vitreous.evaluation.batch_prediction import PredictedFile, Tally, predict_stream
from vitreous.evaluation.prediction import predict_images
from vitreous.evaluation.prediction_files import Layout, check_output, writing
from vitreous.runs import Run, open_run


@pytest.fixture(scope="module")
def run() -> Run:
    return open_run("bundled:cnn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred drawings of several sizes and kinds; two of the files are no images, and one is blank."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("drawings")
    for index in range(100):
        side = (28, 40, 64)[index % 3]
        drawing = np.full((side, side), 255 * (index % 2), np.uint8)
        top, left = rng.integers(2, side // 2, 2)
        drawing[top : top + side // 3, left : left + side // 6] = 255 - 255 * (index % 2)
        colour = np.stack([drawing] * 3, axis=2) if index % 5 == 0 else drawing
        Image.fromarray(colour).save(folder / f"{index:03}.png")
    (folder / "017.png").write_bytes(b"no image")
    (folder / "050.png").write_bytes(b"")
    Image.fromarray(np.full((28, 28), 7, np.uint8)).save(folder / "051.png")
    return folder


def test_the_same_predictions_as_one_at_a_time(run: Run, folder: Path) -> None:
    """Decoded in other processes (there are more than `workers.FEWEST`), in batches that the bad files interrupt."""
    assert workers.FEWEST < 100
    results = list(predict_stream(run, find_images([folder]), batch_size=16))
    assert [Path(result.file.path).name for result in results] == [f"{index:03}.png" for index in range(100)]
    good = [result for result in results if result.prediction is not None]
    alone = predict_images(run, [result.file.path for result in good])
    for result, expected in zip(good, alone, strict=True):
        found = result.prediction
        assert found is not None
        assert (found.label, found.notes, found.unlike) == (expected.label, expected.notes, expected.unlike)
        assert np.array_equal(found.pixels, expected.pixels), "byte for byte"
        assert found.probability == pytest.approx(expected.probability, abs=1e-5)
        assert found.novelty == pytest.approx(expected.novelty, rel=1e-3)
        assert list(found.probabilities.values()) == pytest.approx(list(expected.probabilities.values()), abs=1e-5)
    errors = {Path(result.file.path).name: result.error for result in results if result.error}
    assert set(errors) == {"017.png", "050.png", "051.png"}
    assert "is empty" in errors["050.png"]
    assert "looks blank" in errors["051.png"]


def test_files_are_listed_only_as_far_as_they_are_needed(run: Run, folder: Path) -> None:
    """Memory does not grow with the number of files: an endless list can be predicted."""
    listed = 0

    def endless() -> Iterator[str]:
        nonlocal listed
        while True:
            listed += 1
            yield str(folder / "001.png")

    results = predict_stream(run, endless(), batch_size=32)
    assert len(list(itertools.islice(results, 200))) == 200
    results.close()  # type: ignore[attr-defined]
    assert listed < 200 + 2 * 32 + workers.CHUNK * (3 * workers.MOST_WORKERS + 4)


def test_a_tally_counts_and_stays_small(run: Run, folder: Path) -> None:
    tally = Tally()
    for result in predict_stream(run, find_images([folder])):
        tally.add(result)
    assert (tally.predicted, tally.failed, tally.count) == (97, 3, 100)
    assert sum(tally.classes.values()) == 97
    assert tally.notes["dark on light: inverted to light on dark"] == sum(index % 2 for index in range(100)) - 2
    prediction = next(predict_stream(run, [folder / "001.png"])).prediction
    assert prediction is not None
    for number in range(1000):
        named = ImageFile(f"{number}.png", "")
        tally.add(PredictedFile(named, None, f"{number}.png is empty"))
    assert len(tally.errors) == Tally.MOST_ERRORS


# --- tables ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(run: Run, folder: Path) -> list[PredictedFile]:
    files = [
        ImageFile(name, str(folder / name), {"label": "seven, or so", "id": str(number)})
        for number, name in enumerate(("000.png", "017.png", "001.png"))
    ]
    return list(predict_stream(run, files))


def write(path: Path, results: list[PredictedFile], run: Run, top: int | None = None) -> Path:
    with writing(path, Layout(run.class_names, ("label", "id"), has_novelty=True, top=top)) as file:
        file.write(results[:2])
        file.write(results[2:])
    return path


def test_csv(results: list[PredictedFile], run: Run, tmp_path: Path) -> None:
    with write(tmp_path / "new" / "p.csv", results, run).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = ["image", "label", "probability", "novelty", "unlike", "error"]
    assert list(rows[0]) == [*own, "given_label", "id", *(f"p_{name}" for name in run.class_names)]
    first, prediction = rows[0], results[0].prediction
    assert prediction is not None
    assert (first["image"], first["label"], first["error"]) == ("000.png", prediction.label, "")
    assert first["unlike"] == ("true" if prediction.unlike else "false")
    assert first["given_label"] == "seven, or so"
    for name, probability in prediction.probabilities.items():
        assert float(first[f"p_{name}"]) == pytest.approx(probability, rel=1e-6)
    bad = rows[1]
    assert "is not a PNG" in bad.pop("error")
    assert {key: value for key, value in bad.items() if value} == {
        "image": "017.png", "given_label": "seven, or so", "id": "1",
    }  # fmt: skip


def test_the_most_probable_classes_alone(results: list[PredictedFile], run: Run, tmp_path: Path) -> None:
    with write(tmp_path / "p.csv", results, run, top=3).open(newline="") as stream:
        first = next(csv.DictReader(stream))
    prediction = results[0].prediction
    assert prediction is not None
    ranked = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
    assert (first["label"], first["label_2"], first["label_3"]) == tuple(name for name, _ in ranked[:3])
    assert float(first["probability_3"]) == pytest.approx(ranked[2][1], rel=1e-6)
    assert "label_4" not in first
    assert "p_0" not in first


def test_jsonl(results: list[PredictedFile], run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", results, run, top=2)
    first, bad, _ = (json.loads(line) for line in path.read_text().splitlines())
    prediction = results[0].prediction
    assert prediction is not None
    assert first["novelty"] == prediction.novelty
    assert first["unlike"] is prediction.unlike
    assert list(first["probabilities"].items()) == prediction.most_probable(2)
    assert first["given_label"] == "seven, or so"
    assert (bad["label"], bad["image"]) == (None, "017.png")
    assert "is not a PNG" in bad["error"]


def test_parquet(results: list[PredictedFile], run: Run, tmp_path: Path, monkeypatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("vitreous.evaluation.prediction_files._ROWS_AT_ONCE", 2)
    table = parquet.read_table(write(tmp_path / "p.parquet", results, run))
    assert table.num_rows == 3
    assert {str(table.schema.field(name).type) for name in ("probability", "novelty", "p_0", "p_9")} == {"float"}
    assert str(table.schema.field("unlike").type) == "bool"
    first, bad, _ = table.to_pylist()
    prediction = results[0].prediction
    assert prediction is not None
    assert first["p_3"] == pytest.approx(prediction.probabilities["3"], rel=1e-6)
    assert first["id"] == "0"
    assert (bad["label"], bad["unlike"], bad["p_3"]) == (None, None, None)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_error_leaves_the_older_file_and_a_stop_keeps_the_rows(results, run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p.{suffix}"
    path.write_text("older")
    layout = Layout(run.class_names, (), has_novelty=True, top=1)
    with pytest.raises(RuntimeError, match="broken"), writing(path, layout) as file:  # noqa: PT012
        file.write(results)
        raise RuntimeError("broken")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    with pytest.raises(KeyboardInterrupt), writing(path, layout) as file:  # noqa: PT012
        file.write(results)
        assert file.keep_partial() == tmp_path / f"p.partial.{suffix}"
        raise KeyboardInterrupt
    assert path.read_text() == "older"
    partial = tmp_path / f"p.partial.{suffix}"
    if suffix == "parquet":
        assert pytest.importorskip("pyarrow.parquet").read_table(partial).num_rows == 3
    else:
        assert len(partial.read_text().splitlines()) == 3 + (suffix == "csv")
    assert len(list(tmp_path.iterdir())) == 2


def test_outputs_that_are_refused_before_anything_is_predicted(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "list.csv").write_text("path\nx.png\n")
    (tmp_path / "folder.csv").mkdir()
    for name, sentence in {
        "p.txt": "ends in .csv, .jsonl, .parquet",
        "folder.csv": "is a folder; name a file in it",
        "list.csv": "is also the list of images",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            check_output(tmp_path / name, [tmp_path / "list.csv"])
    check_output(tmp_path / "p.csv", [tmp_path / "list.csv"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        check_output(tmp_path / "p.parquet")
