"""The two models of every page: the faulty one has this finding and no other, the fixed one has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor import Diagnosis, diagnose
from vitreous.doctor.checks import fresh
from vitreous.doctor.curves import CURVE_CHECKS
from vitreous.doctor.examples import examples
from vitreous.doctor.findings import explanations
from vitreous.doctor.pages import explain
from vitreous.errors import VitreousError
from vitreous.testing import TinyBlock, TinyViT


def run(snippet: str, *, overfit: bool) -> Diagnosis:
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "Tensor": Tensor}
    names |= {"TinyBlock": TinyBlock, "TinyViT": TinyViT, "data": {}}
    with torch.no_grad() if "nn.init" in snippet else torch.enable_grad():
        exec(snippet, names)
        model_class, data = names["Model"], dict(names["data"])
        model = model_class()
    if not data:
        data["input_shape"] = (1, model_class.size, model_class.size)
    with pytest.MonkeyPatch.context() as patch:
        if not overfit:  # the slowest check, which has an example of its own
            patch.setattr(fresh, "OVERFIT_SECONDS", 0.0)
        return diagnose(model, **data, constructor=(model_class, {}), fresh=True)


@pytest.mark.parametrize("id", examples())
def test_the_faulty_model_has_this_finding_alone(id: str) -> None:
    diagnosis = run(examples()[id]["faulty"], overfit=id == "cannot-overfit")
    found = "\n".join(f"{found.id}: {found.measured}" for found in diagnosis.findings)
    assert diagnosis.ids() == {id, *examples()[id].get("also", ())}, found
    assert diagnosis.exit_code == (explanations()[id]["level"] != "note")
    for finding in diagnosis.findings:
        assert any(character.isdigit() for character in finding.measured), "a finding states the number measured"


@pytest.mark.parametrize("id", examples())
def test_the_fixed_model_has_none(id: str) -> None:
    diagnosis = run(examples()[id]["fixed"], overfit=id == "cannot-overfit")
    assert not diagnosis.findings, "\n".join(f"{found.id}: {found.measured}" for found in diagnosis.findings)


DOCS = Path(__file__).parents[2] / "docs/doctor"
CURVES = {*CURVE_CHECKS, "learning-rate-low"}


def test_every_finding_about_a_model_has_an_example() -> None:
    assert set(examples()) == set(explanations()) - CURVES


@pytest.mark.parametrize("id", explanations())
def test_the_pages_are_up_to_date(id: str) -> None:
    """`vitreous.doctor.pages.write_pages(Path("docs/doctor"))` brings them up to date."""
    assert (DOCS / f"{id}.md").read_text(encoding="utf-8") == explain(id)


def test_an_unknown_finding() -> None:
    with pytest.raises(VitreousError, match="did you mean skip-missing"):
        explain("skip-mising")


def test_the_overview_lists_every_finding() -> None:
    overview = DOCS.with_suffix(".md").read_text(encoding="utf-8")
    for id, known in explanations().items():
        assert f"| [{id}](doctor/{id}.md) | {known['level']} | {known['why']} |" in overview
