"""scikit-learn estimators: its own checks, its tools, images of every shape and scale, and pickles that are runs."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import vitreous
from vitreous import CnnClassifier, VitClassifier

QUICK = {"train.min_steps_per_epoch": 4, "train.checkpoint_seconds": 1000, "train.threads": 1}
TINY_VIT = {"dim": 16, "depth": 1, "num_heads": 1, "mlp_dim": 16, "lr": 0.02, "epochs": 10, "settings": QUICK}
TINY_CNN = {
    "conv_channels": (8, 16), "hidden": 32, "lr": 0.02, "epochs": 10,
    "settings": {**QUICK, "model.conv_dropout": 0, "model.hidden_dropout": 0},
}  # fmt: skip


def tiny_vit(**changes) -> VitClassifier:
    return VitClassifier(**{**TINY_VIT, "random_state": 0, **changes})


def tiny_cnn(**changes) -> CnnClassifier:
    return CnnClassifier(**{**TINY_CNN, "random_state": 0, **changes})


def squares(count=40, shape=(8, 8), seed=0):
    """Noise, with a bright square in every second image."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = generator.integers(0, 60, (count, *shape), dtype=np.uint8)
    images[labels == 1, 2:6, 2:6] += 180
    return images, labels


#: check → why it does not apply
NOT_APPLICABLE = {
    "check_array_api_input": "scikit-learn skips it itself: its array API is off unless SCIPY_ARRAY_API is set",
}


@pytest.mark.parametrize("estimator", [tiny_vit(image_shape="pad"), tiny_cnn(image_shape="pad")], ids=["vit", "cnn"])
def test_scikit_learn_s_own_checks(estimator):
    """With image_shape="pad", because the checks pass tables of 1 to 20 columns, which are no square images."""
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] != "passed"}
    assert failed.keys() == NOT_APPLICABLE.keys(), failed
    assert sum(result["status"] == "passed" for result in results) >= 50


@pytest.fixture(scope="module")
def fitted():
    return tiny_vit().fit(*squares())


def test_it_learns(fitted):
    images, labels = squares(seed=1)
    assert fitted.score(images, labels) > 0.9
    probabilities = fitted.predict_proba(images)
    assert probabilities.shape == (40, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (fitted.predict(images) == probabilities.argmax(axis=1)).all()


def test_digits():
    """Values from 0 to 16, flat: as scikit-learn's examples have them."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    classifier = tiny_cnn(epochs=10).fit(X_train, y_train)
    assert classifier.image_shape_ == (1, 8, 8)
    assert classifier.scale_ == (0, 16)
    assert classifier.score(X_test, y_test) > 0.9


def test_it_is_a_run_of_the_one_loop(fitted):
    run = fitted.run_
    assert run.is_done
    assert run.record.data.images == {"train": 40, "val": 0, "test": 0}
    assert len(run.history.train["loss"]) >= 1
    images, _ = squares(5)
    inputs = run.preprocessing.to_input(torch.from_numpy(images[:, None]))
    with torch.inference_mode():
        np.testing.assert_allclose(fitted.predict_proba(images), run.model(inputs).softmax(1), atol=1e-5)
    assert next(run.model.parameters()).dtype == torch.float32


def test_validation_images_calibrate():
    classifier = tiny_vit(validation_fraction=0.25).fit(*squares(80))
    assert classifier.run_.record.data.images == {"train": 60, "val": 20, "test": 0}
    assert classifier.run_.record.calibration is not None


# --- images ------------------------------------------------------------------------------------------------


def test_every_shape_of_the_same_images(fitted):
    images, _ = squares(6, seed=3)
    expected = fitted.predict_proba(images)
    for same in (images[..., None], images[:, None], images.reshape(6, 64), torch.from_numpy(images)):
        # products may round differently where memory is aligned differently
        np.testing.assert_allclose(fitted.predict_proba(same), expected, rtol=1e-5)


def test_colour_images_first_last_and_flat_are_the_same():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (30, 6, 9, 3), dtype=np.uint8)
    labels = np.arange(30) % 3
    last = tiny_vit(epochs=1).fit(images, labels)
    assert last.image_shape_ == (3, 6, 9)
    first = tiny_vit(epochs=1).fit(images.transpose(0, 3, 1, 2), labels)
    flat = tiny_vit(epochs=1, image_shape=(6, 9, 3)).fit(images.reshape(30, -1), labels)
    for other, X in ((first, images.transpose(0, 3, 1, 2)), (flat, images.reshape(30, -1))):
        np.testing.assert_array_equal(other.predict_proba(X), last.predict_proba(images))


@pytest.mark.parametrize(
    "scale",
    [
        lambda x: x.astype(float),
        lambda x: x / 255,
        lambda x: x.astype(int) * 257,
        lambda x: x.astype(np.float32) * 1e-6,
    ],
)
def test_any_range_of_numbers(scale):
    """Of 0 to the maximum, which is 255 here, so that all of them are the same images."""
    images, labels = squares()
    images[0, 0, 0] = 255
    expected = tiny_vit(epochs=1).fit(images, labels).predict_proba(images)
    scaled = tiny_vit(epochs=1).fit(scale(images), labels)
    np.testing.assert_allclose(scaled.predict_proba(scale(images)), expected, atol=1e-12)
    darker = scale(images) / 2  # the scale is the training images', not its own
    assert np.abs(scaled.predict_proba(darker) - expected).max() > 1e-6


def test_negative_numbers_and_numbers_out_of_range():
    images, labels = squares()
    X = images / 127.5 - 1
    classifier = tiny_vit().fit(X, labels)
    assert classifier.scale_[0] == pytest.approx(X.min())
    assert classifier.score(X, labels) > 0.9
    clipped = np.clip(X * 10, X.min(), X.max())
    np.testing.assert_array_equal(classifier.predict_proba(X * 10), classifier.predict_proba(clipped))


@pytest.mark.parametrize(
    ("parameters", "shape", "message"),
    [
        ({}, (60,), r"X has 60 features, which is no square image; give image_shape=\(height, width\)"),
        ({"image_shape": (6, 9)}, (60,), r"image_shape=\(6, 9\) does not describe the 60 features"),
        ({"image_shape": (6, 5, 2)}, (60,), r"does not describe the 60 features"),
        ({}, (5, 5, 4), r"X has entries of shape \(5, 5, 4\); expected images"),
        ({}, (2, 2, 2, 2), r"X has entries of shape \(2, 2, 2, 2\)"),
    ],
)
def test_shapes_that_are_no_images(parameters, shape, message):
    with pytest.raises(ValueError, match=message) as caught:
        tiny_vit(**parameters).fit(np.zeros((10, *shape)), np.arange(10) % 2)
    assert isinstance(caught.value, vitreous.VitreousError)


def test_other_images_than_it_was_trained_on_are_refused(fitted):
    with pytest.raises(ValueError, match=r"X has entries of shape \(9, 9\), and this VitClassifier was trained on"):
        fitted.predict(np.zeros((2, 9, 9), dtype=np.uint8))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="needs at least two classes, and y has one class: 7"):
        tiny_vit().fit(squares()[0], np.full(40, 7))


def test_an_unknown_setting_is_refused():
    with pytest.raises(vitreous.VitreousError, match=r"train has no setting 'lrr'; did you mean lr\?"):
        tiny_vit(settings={"train.lrr": 1}).fit(*squares())


@pytest.mark.parametrize("names", [["cat", "dog"], [-3, 10], [True, False], [0.0, 2.0]])
def test_labels_of_any_type(names):
    images, labels = squares()
    y = np.array(names)[labels]
    classifier = tiny_vit().fit(images, y)
    assert classifier.classes_.tolist() == sorted(names)
    assert classifier.classes_.dtype == y.dtype
    predicted = classifier.predict(images)
    assert (predicted == y).mean() > 0.9
    assert predicted.dtype == y.dtype


# --- scikit-learn's tools ------------------------------------------------------------------------------------------


def test_the_same_random_state_gives_the_same_model(fitted):
    images, labels = squares()
    state = torch.get_rng_state()
    again, other = tiny_vit().fit(images, labels), tiny_vit(random_state=1).fit(images, labels)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(again.predict_proba(images), fitted.predict_proba(images))
    assert (other.predict_proba(images) != fitted.predict_proba(images)).any()
    generator = tiny_vit(random_state=np.random.RandomState(0))
    assert generator.fit(images, labels).run_.config.seed == fitted.run_.config.seed


def test_clone_takes_the_parameters_alone(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        again.predict(squares()[0])
    assert again.set_params(depth=3).depth == 3


def test_pipeline():
    images, labels = squares()
    flatten = FunctionTransformer(lambda X: X.reshape(len(X), -1))
    pipeline = make_pipeline(flatten, MinMaxScaler(), tiny_vit()).fit(images, labels)
    assert pipeline.score(images, labels) > 0.9


def test_cross_validation_in_two_processes():
    images, labels = squares(60)
    scores = cross_val_score(tiny_vit(), images, labels, cv=3, n_jobs=2)
    assert scores.mean() > 0.9
    alone = cross_val_score(tiny_vit(), images, labels, cv=3)
    np.testing.assert_allclose(scores, alone)


def test_grid_search():
    images, labels = squares()
    search = GridSearchCV(tiny_vit(epochs=5), {"depth": [1, 2], "lr": [0.02]}, cv=2).fit(images, labels)
    assert set(search.best_params_) == {"depth", "lr"}
    assert search.best_estimator_.run_.config.model.depth == search.best_params_["depth"]


# --- pickles and folders ----------------------------------------------------------------------------------------


def test_a_pickle_is_the_run(fitted):
    images, _ = squares()
    content = pickle.dumps(fitted)
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.predict_proba(images), fitted.predict_proba(images))
    assert again.run_.record == fitted.run_.record
    assert again.run_.path != fitted.run_.path
    assert again.run_.history == fitted.run_.history
    np.testing.assert_array_equal(copy.deepcopy(fitted).predict_proba(images), fitted.predict_proba(images))


def test_a_pickle_names_no_code_but_the_estimator_and_numpy(fitted):
    found = set()

    class Recorder(pickle.Unpickler):
        def find_class(self, module, name):
            found.add((module.split(".")[0], name))
            return super().find_class(module, name)

    Recorder(io.BytesIO(pickle.dumps(fitted))).load()
    assert ("vitreous", "VitClassifier") in found
    assert {module for module, _ in found} == {"vitreous", "numpy"}


def test_a_pickle_before_fit():
    assert pickle.loads(pickle.dumps(tiny_vit(depth=5))).depth == 5


def test_a_damaged_pickle_is_refused(fitted):
    state = fitted.__getstate__()
    weights = state["run_files"]["model.safetensors"]
    state["run_files"] = {**state["run_files"], "model.safetensors": weights[:-1] + b"x"}
    damaged = tiny_vit()
    damaged.__setstate__(state)
    with pytest.raises(vitreous.VitreousError, match="is not the file that was written"):
        damaged.predict(squares()[0])


def test_temporary_folders_go_with_the_estimator():
    classifier = tiny_vit(epochs=1).fit(*squares())
    folders = [classifier.run_.path]
    again = pickle.loads(pickle.dumps(classifier))
    folders.append(again.run_.path)
    assert all(folder.is_dir() for folder in folders)
    del classifier, again
    gc.collect()
    assert not any(folder.exists() for folder in folders)


def test_a_named_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    images, labels = squares()
    classifier = tiny_vit(out=tmp_path / "run").fit(images, labels)
    expected = classifier.predict_proba(images)
    del classifier
    gc.collect()
    run = vitreous.Run.open(tmp_path / "run")
    assert run.evaluate("train").count == 40  # its data are kept, too
    np.testing.assert_allclose(run.predict(images).probabilities, expected, atol=1e-5)
    with pytest.raises(vitreous.VitreousError, match="exists already"):
        tiny_vit(out=tmp_path / "run").fit(images, labels)


def test_verbose_shows_progress(capsys):
    tiny_vit(epochs=1, verbose=True).fit(*squares())
    assert "of training" in capsys.readouterr().err
    tiny_vit(epochs=1).fit(*squares())
    assert capsys.readouterr().err == ""
