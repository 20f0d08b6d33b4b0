"""Families of ViTs, saved by their own library with random weights: the same numbers, or refused by name."""

from __future__ import annotations

from pathlib import Path

import families
import pytest

from vitreous.inspection.query import LookError
from vitreous.models.vit import Attention

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", families.FAMILIES)
def test_family(name):
    row = families.measure_family(name)
    assert row.max_difference < TOLERANCE, row
    assert row.tensors.endswith("none left over"), row


@pytest.mark.parametrize(
    "name",
    [
        "timm folder, DINOv2 with registers", "timm folder, mean, fc_norm (timm's default)", "Hugging Face I-JEPA",
        "Hugging Face CLIP, vision tower", "Hugging Face SigLIP, classifier", "Hugging Face MAE, encoder",
    ],
)  # fmt: skip
def test_a_wrong_tap_is_refused_in_every_family(name, monkeypatch):
    """`families.measure` requires that the recorded attention reproduces the output, as `vitreous look` does."""
    compute = Attention.forward

    def record_other_weights(self, x, taps=None, head_mask=None, key_mask=None):
        output = compute(self, x, taps, head_mask, key_mask)
        if taps is not None:
            taps["attention"] = taps["attention"].roll(1, dims=-1)
        return output

    monkeypatch.setattr(Attention, "forward", record_other_weights)
    with pytest.raises(LookError, match="does not reproduce its prediction"):
        families.measure_family(name)


@pytest.mark.parametrize("name", families.OUT)
def test_ours_opened_by_the_peer(name):
    row = families.measure_family(name, families.OUT)
    assert row.max_difference < TOLERANCE, row
    assert row.tensors.endswith("none left over"), row


@pytest.mark.parametrize("name", families.REFUSED)
def test_what_is_not_lossless_is_refused_by_name(name):
    words = families.REFUSED[name][1]
    assert words in families.refusal(name)


def test_the_page_has_every_case():
    """`python bench/families.py --write docs/checkpoints.md` writes it."""
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    names = (*families.FAMILIES, *families.OUT, *families.REFUSED)
    assert [name for name in names if f"| {name} |" not in page] == []
