"""The public names: typed, lazy, and the same object the second time they are asked for."""

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


def test_errors_are_one_family(tmp_path):
    with pytest.raises(vitreous.VitreousError):
        vitreous.load(tmp_path / "nowhere")
    with pytest.raises(vitreous.VitreousError):
        vitreous.preset("nothing")
