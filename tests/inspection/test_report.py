"""The report: self-contained, accessible, safe with any class name; its files and its arrays."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.config import Config
from vitreous.errors import VitreousError
from vitreous.inspection import wording
from vitreous.inspection.report import ARRAYS, write_look
from vitreous.inspection.subject import ModelInput

NAMES = ["a <b>bold</b> name", "$5 & more", "三"]


@pytest.fixture
def look_at(image_for):
    def look(out: Path, model, against=None, survey_images=None, **options):
        size = (model.config.channels, *model.config.image_size)
        pixels = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
        models = [
            ModelInput(each, Config(name=name, model=each.config), image_for(each), survey_images)
            for each, name in ((model, "first"), (against, "second"))
            if each is not None
        ]
        return write_look(out, *models, **{"image_pixels": pixels, "class_names": NAMES, "label": 1, **options})

    return look


class Page(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.elements if each == tag]


def check_page(text: str) -> Page:
    page = Page(text)
    assert not page.all("script")
    for tag, attributes in page.elements:  # nothing is fetched
        for name in ("src", "href"):
            if attributes.get(name):
                assert attributes[name].startswith(("data:", "#")), (tag, attributes[name])
    assert all("alt" in attributes for attributes in page.all("img"))
    for attributes in page.all("svg"):
        assert attributes.get("aria-label") or attributes.get("aria-hidden")
    identities = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(identities) == len(set(identities))
    assert "<b>bold</b> name" not in text
    assert "nan" not in re.sub(r'"data:[^"]*"', "", text).lower().split()
    return page


@pytest.mark.parametrize("variant", ["mean", "not square, colour", "conv stem", "one patch", "many patches"])
def test_the_page(tiny_vit, look_at, tmp_path, variant: str) -> None:
    model = tiny_vit(variant)
    look = look_at(tmp_path, model)
    text = look.report.read_text(encoding="utf-8")
    page = check_page(text)
    radios = [each for each in page.all("input") if each["type"] == "radio"]
    # beyond 64 patches, a view per patch would make the page many megabytes: only the most important patch remains
    assert len(radios) == 1 + (model.config.num_patches if model.config.num_patches <= 64 else 1)
    assert look.summary in html.unescape(text)


def test_files_and_arrays(tiny_vit, look_at, tmp_path, image_for) -> None:
    model = tiny_vit()
    survey_images = torch.stack([image_for(model, seed) for seed in range(4)])
    look = look_at(tmp_path / "deep" / "er", model, survey_images=survey_images, notes=["a note"])
    assert "a note" in look.report.read_text(encoding="utf-8")
    drawn = {path.name for path in look.figures}
    for name in ("maps", "heads", "heads-from-patch", "logit-lens", "head-effects", "judgement", "depth", "filters"):
        assert {f"{name}.png", f"{name}.svg"} <= drawn
    for path in look.figures:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert min(picture.size) > 100
        else:
            assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    with np.load(look.arrays) as arrays:
        for name in arrays.files:
            assert is_documented(name), name
        np.testing.assert_array_equal(arrays["attention"], look.examination.attention.weights)
        np.testing.assert_array_equal(arrays["survey.patch_norms"], look.survey.patch_norms)
    assert "attention.from_readout" in (tmp_path / "deep" / "er" / "README.txt").read_text(encoding="utf-8")


def is_documented(name: str) -> bool:
    listed = [part for names in ARRAYS for part in names.split(", ")]
    patterns = [part.replace(".", r"\.").replace("MAP", "[a-z-]+") for part in listed]
    endings = tuple(part.lstrip("._") for part in listed if part[0] in "._")
    return any(re.fullmatch(pattern, name) for pattern in patterns) or name.endswith(endings)


def test_two_models_side_by_side(tiny_vit, tiny_cnn, look_at, tmp_path) -> None:
    vit, cnn = tiny_vit(image_size=(12, 8)), tiny_cnn()
    look = look_at(tmp_path, cnn, against=vit)
    text = look.report.read_text(encoding="utf-8")
    check_page(text)
    assert "The ViT" in text
    assert "The CNN" in text
    # the CNN uses the patches of the ViT as cells, though it comes first
    assert look.examination.cells.grid == look.against.cells.grid == vit.config.grid
    with np.load(look.arrays) as arrays:
        assert "against.maps.occlusion.cells" in arrays.files


def test_two_vits_of_different_geometry(tiny_vit, look_at, tmp_path) -> None:
    look = look_at(tmp_path, tiny_vit(), against=tiny_vit("conv stem"))
    text = look.report.read_text(encoding="utf-8")
    check_page(text)
    assert "first" in text
    assert "second" in text
    assert look.examination.cells.grid != look.against.cells.grid


def test_the_page_opens_with_the_chosen_patch(tiny_vit, look_at, tmp_path) -> None:
    page = check_page(look_at(tmp_path, tiny_vit(), patch=2, target=0).report.read_text(encoding="utf-8"))
    assert [each["id"] for each in page.all("input") if "checked" in each] == ["vit-patch-2"]


def test_the_cnn_has_no_heads(tiny_cnn, look_at, tmp_path) -> None:
    look = look_at(tmp_path, tiny_cnn())
    text = look.report.read_text(encoding="utf-8")
    check_page(text)
    assert "Grad-CAM" in text
    assert "Where each head looks" not in text
    assert look.survey is None


def test_the_page_is_reproducible(tiny_cnn, look_at, tmp_path) -> None:
    pages = [look_at(tmp_path / name, tiny_cnn()).report.read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": ["one", "two"]}, "2 class names"),
        ({"label": 7}, "label=7"),
        ({"image_pixels": np.zeros((1, 8, 8))}, "uint8"),
    ],
)
def test_errors(tiny_vit, look_at, tmp_path, options, message) -> None:
    with pytest.raises(VitreousError, match=message):
        look_at(tmp_path, tiny_vit(), **options)


def test_an_unwritable_folder(tiny_vit, look_at, tmp_path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(VitreousError, match="cannot write the report"):
        look_at(tmp_path / "taken", tiny_vit())


def test_odds() -> None:
    assert wording.odds(1.0) == "odds ÷ 10"
    assert wording.odds(-2.3) == "odds × 200"
    assert wording.odds(0.0) == "odds unchanged"
    assert wording.odds(40) == "odds ÷ 10^40"
