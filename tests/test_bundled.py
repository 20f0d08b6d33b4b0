"""The bundled models reach the accuracy in their records, measured again on the MNIST test set."""

import pytest

from vitreous.data.datasets import load_dataset
from vitreous.errors import DataError
from vitreous.evaluation.prediction import evaluate_run
from vitreous.runs import BUNDLED, Run, open_run

LARGEST_BYTES = 5_000_000


@pytest.fixture(scope="module", params=["vit", "cnn"])
def run(request) -> Run:
    return Run.open(BUNDLED / request.param)


def test_the_stated_figure_is_found_again(run):
    try:
        load_dataset(run.config.data)
    except DataError as error:
        pytest.skip(f"MNIST cannot be had here: {error}")
    stated = run.test_results
    found = evaluate_run(run)
    assert found.count == 10_000
    assert found.correct == stated.correct
    assert found.nll == pytest.approx(stated.nll, rel=1e-4)
    assert found.accuracy >= 0.99


def test_each_is_small_and_has_its_provenance(run):
    assert (run.path / "model.safetensors").stat().st_size <= LARGEST_BYTES
    provenance = run.record.provenance
    assert provenance["command"].startswith("vitreous train")
    assert len(provenance["commit"]) == 40
    assert run.record.data.checksums
    assert run.class_names == tuple("0123456789")


def test_no_run_named_means_the_vit():
    assert open_run(None).path == BUNDLED / "vit"
    assert open_run(None).config.model.kind == "vit"
