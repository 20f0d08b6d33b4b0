"""The public names: typed, lazy, and the same object the second time they are asked for."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = ["model.depth=1", "train.epochs=2", "train.threads=1"]
    return vitreous.fit(
        "vit", data="digits", out=tmp_path_factory.mktemp("api") / "run", settings=settings, progress=False
    )


def test_every_public_name_twice():
    """Importing a submodule sets an attribute on the package, which may shadow a lazy name on the second look."""
    for name in vitreous.__all__:
        first = getattr(vitreous, name)
        assert getattr(vitreous, name) is first
        assert not hasattr(first, "__path__"), f"{name} is a module"
    assert set(vitreous.__all__) <= set(dir(vitreous))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        vitreous.fitt  # noqa: B018


def test_importing_vitreous_does_not_import_torch():
    script = "import sys, vitreous; assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_package_is_typed():
    assert (Path(vitreous.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("times", [1, 2])
def test_create(times):
    model = vitreous.create("vit", depth=2, num_classes=3)
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 3)


@pytest.mark.parametrize("times", [1, 2])
def test_evaluate_load_predict(run, times):
    evaluation = vitreous.evaluate(run)
    assert evaluation.accuracy == run.test_results.accuracy
    assert vitreous.evaluate(run.path, split="val").count == run.record.data.images["val"]
    model = vitreous.load(run.path)
    assert not model.training
    pixels = np.zeros((28, 28), dtype=np.uint8)
    pixels[5:23, 13:16] = 255
    one, two = vitreous.predict([pixels, pixels], run=run)
    assert one.label == two.label
    assert vitreous.predict(pixels, run=run)[0].probabilities == pytest.approx(one.probabilities)


@pytest.mark.parametrize("times", [1, 2])
def test_fit_and_compare(run, times, tmp_path):
    other = vitreous.fit(
        "cnn", data="digits", out=tmp_path / "cnn", settings=["train.epochs=0.3", "train.threads=1"], progress=False
    )
    result = vitreous.compare(run, other.path, out=tmp_path / "report")
    assert result.report.exists()
    assert [model.name for model in result.models] == ["vit", "cnn"]


# --- data, settings and callbacks ---------------------------------------------------------------------------


def pixels_and_labels(count=60):
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = generator.integers(0, 80, (count, 8, 8), dtype=np.uint8)
    images[labels == 1, 2:6, 2:6] += 150  # a bright square
    return images, labels


TINY = {"depth": 1, "dim": 16, "patch_size": 4, "epochs": 6, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def square_run(tmp_path_factory):
    return vitreous.fit("vit", data=pixels_and_labels(), out=tmp_path_factory.mktemp("api") / "square", **TINY)


def test_arrays_and_keywords(square_run):
    assert square_run.config.model.depth == 1
    assert square_run.config.model.patch_size == (4, 4)
    assert square_run.preprocessing.image_size == (8, 8)
    assert square_run.accuracy == square_run.test_results.accuracy > 0.9


def test_keywords_train_as_settings_do(square_run, tmp_path):
    texts = ["model.depth=1", "model.dim=16", "model.patch_size=4", "train.epochs=6", "train.threads=1"]
    same = vitreous.fit("vit", data=pixels_and_labels(), out=tmp_path / "run", settings=texts, progress=False)
    assert [line["loss"] for line in same.metrics()] == [line["loss"] for line in square_run.metrics()]


def test_a_model_configuration_trains(tmp_path):
    config = vitreous.ViTConfig(depth=1, dim=16, patch_size=4, mlp_dim=16)
    run = vitreous.fit(config, data=pixels_and_labels(), out=tmp_path / "run", epochs=1, progress=False)
    assert run.config.model == config.replace(image_size=8, num_classes=2)


def test_the_data_choose_what_is_not_named(tmp_path):
    run = vitreous.fit(data=pixels_and_labels(), out=tmp_path / "run", depth=1, epochs=1, progress=False)
    assert run.config.name == "auto"
    assert run.config.reasons
    assert (run.config.model.depth, run.config.train.epochs) == (1, 1)


def test_a_stopped_training_goes_on(square_run, tmp_path):
    class Stop(vitreous.Callback):
        def on_validation(self, metrics):
            raise KeyboardInterrupt

    given = {"out": tmp_path / "run", "checkpoint_seconds": 0, "callbacks": [Stop()], **TINY}
    with pytest.raises(KeyboardInterrupt):
        vitreous.fit("vit", data=pixels_and_labels(), **given)
    resumed = vitreous.fit(out=tmp_path / "run", resume=True, progress=False)
    losses = [[line["loss"] for line in run.metrics()] for run in (square_run, resumed)]
    assert losses[0] == losses[1]


def test_evaluate_on_other_arrays(square_run):
    images, labels = pixels_and_labels(200)
    evaluation = vitreous.evaluate(square_run, data={"train": (images[:4], labels[:4]), "test": (images, labels)})
    assert evaluation.count == 200
    assert evaluation.accuracy > 0.9
    assert evaluation.confusion.sum(axis=1).tolist() == [100, 100]


# --- predictions ------------------------------------------------------------------------------------------------


def test_predict_takes_arrays_and_tensors_alike(square_run):
    images, labels = pixels_and_labels(10)
    expected = square_run.evaluate("test").class_names
    for given in (images, torch.from_numpy(images), torch.from_numpy(images)[:, None] / 255, list(images)):
        predictions = vitreous.predict(given, square_run)
        assert predictions.labels == [expected[label] for label in labels]
    probabilities = vitreous.predict(images, square_run).probabilities
    assert probabilities.shape == (10, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    inputs = square_run.preprocessing.to_input(torch.from_numpy(images[:, None]))
    with torch.inference_mode():
        direct = (square_run.model(inputs) / square_run.temperature).softmax(1)
    np.testing.assert_allclose(probabilities, direct, atol=1e-5)


def test_one_image_is_a_list_of_one(square_run):
    predictions = vitreous.predict(pixels_and_labels()[0][1], square_run)
    assert len(predictions) == 1
    assert isinstance(predictions, list)
    assert predictions[0].label == "1"
    assert vitreous.predict([], square_run) == []


# --- results: reprs, curves, data frames --------------------------------------------------------------------------


def test_the_model_of_a_run_is_loaded_once(square_run):
    assert square_run.model is square_run.model
    assert not square_run.model.training


def test_history_is_metrics_by_column(square_run):
    lines = square_run.metrics()
    history = square_run.history
    for event, part in (("train", history.train), ("val", history.val)):
        of_event = [line for line in lines if line["event"] == event]
        assert part["loss"] == [line["loss"] for line in of_event]
        assert part["step"] == [line["step"] for line in of_event]
    frame = history.to_pandas()
    assert len(frame) == len(lines) - 1  # the test set's line is `run.test_results`
    assert frame[frame.split == "val"].accuracy.tolist() == history.val["accuracy"]


def test_confusion(square_run):
    counts = square_run.confusion
    assert counts.sum() == square_run.test_results.count
    assert np.trace(counts) == square_run.test_results.correct


def test_data_frames(square_run):
    images, _ = pixels_and_labels(3)
    frame = vitreous.predict(images, square_run).to_pandas()
    assert frame.label.tolist() == ["0", "1", "0"]
    assert frame[["p(0)", "p(1)"]].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert len(vitreous.predict([], square_run).to_pandas()) == 0
    evaluated = square_run.evaluate().to_pandas()
    assert evaluated.correct.mean() == square_run.accuracy
    assert ((evaluated.label == evaluated.prediction) == evaluated.correct).all()
    assert square_run.to_pandas().accuracy.item() == square_run.accuracy
    assert len(vitreous.predict(images, square_run)[0].to_pandas()) == 2


def test_pandas_is_asked_for(square_run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(vitreous.VitreousError, match=r"to_pandas\(\) needs the package 'pandas'.*\[pandas\]"):
        square_run.to_pandas()


def test_reprs_are_short_and_html_needs_nothing_else(square_run, run, tmp_path):
    images, _ = pixels_and_labels(3)
    look = vitreous.look(images[1], square_run, out=tmp_path / "look")
    other = vitreous.fit("cnn", data="digits", out=tmp_path / "cnn", epochs=0.1, threads=1, progress=False)
    comparison = vitreous.compare(run, other, out=tmp_path / "report")
    assert comparison.to_pandas().accuracy.tolist() == [run.accuracy, other.accuracy]
    assert look.to_pandas()["name"].tolist() == [score.name for score in look.examination.faithfulness.scores]
    predictions = square_run.predict(images)
    shown = [square_run, square_run.history, square_run.evaluate(), predictions, predictions[0], look, comparison]
    for result in shown:
        assert 10 < len(repr(result)) < 250, repr(result)
        assert "\n" not in repr(result)
        html = result._repr_html_()
        assert len(html) < 200_000
        assert not re.findall(r"(?:src|href)=[\"'](?!data:)", html)
        assert "<script" not in html
    assert all("data:image/" in result._repr_html_() for result in shown)


def test_names_are_escaped_in_html(tmp_path):
    images, labels = pixels_and_labels()
    names = np.array(["<b>cat</b>", "dog & co"])
    run = vitreous.fit("vit", data=(images, names[labels]), out=tmp_path / "run", **{**TINY, "epochs": 1})
    for html in (run._repr_html_(), run.predict(images[:2])._repr_html_(), run.predict(images[0])[0]._repr_html_()):
        assert "<b>cat" not in html


def test_a_run_without_test_images(tmp_path):
    settings = {**TINY, "epochs": 1, "test_fraction": 0.0}
    run = vitreous.fit("vit", data=pixels_and_labels(), out=tmp_path / "run", **settings)
    assert run.record.data.images["test"] == 0
    assert run.record.data.images["train"] + run.record.data.images["val"] == 60
    assert "done" in repr(run)
    assert run._repr_html_()
    with pytest.raises(vitreous.VitreousError, match="has no test results"):
        run.accuracy  # noqa: B018
    with pytest.raises(vitreous.VitreousError, match=r"the test split of .* is empty; choose another with split=…"):
        run.evaluate()
    assert run.evaluate("val").count == run.record.data.images["val"]


def test_errors_are_one_family(tmp_path):
    with pytest.raises(vitreous.VitreousError):
        vitreous.load(tmp_path / "nowhere")
    with pytest.raises(vitreous.VitreousError):
        vitreous.preset("nothing")
