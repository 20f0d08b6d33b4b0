"""The normalisation in JavaScript gives the same bytes as data/digit_normalisation.py, and both match golden vectors.

`python tests/page/test_normalise.py` writes new vectors: only when the rule itself changes on purpose.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.data import digit_normalisation

GOLDEN = Path(__file__).with_name("golden_strokes.json")
STEPS = ("ink", "scaled", "centred")
IN_BROWSER = """async ([cases, site]) => {
  const { normalise } = await import(site + "normalise.js");
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const plain = (gray) => gray && { height: gray.height, width: gray.width, values: [...gray.values] };
  return cases.map(({ pixels, height, width }) => {
    const found = normalise({ values: bytes(pixels), height, width });
    if (found === null) return null;
    const { inverted, ready, ink, scaled, centred } = found;
    return { inverted, ready, ink: plain(ink), scaled: plain(scaled), centred: plain(centred) };
  });
}"""


def golden_pictures() -> dict[str, np.ndarray]:
    """One picture per branch of the rule."""
    rng = np.random.default_rng(0)
    seven = np.zeros((224, 224), np.uint8)
    seven[60:70, 40:140] = 255
    for step in range(90):
        seven[70 + step, 130 - step // 2 : 142 - step // 2] = 230
    paper = 250 - (seven.astype(int) * 4) // 5
    noisy = np.clip(paper + rng.integers(-6, 7, paper.shape), 0, 255).astype(np.uint8)
    mnist_like = np.zeros((28, 28), np.uint8)
    mnist_like[5:22, 12:16] = 200
    bright = np.full((28, 28), 90, np.uint8)
    bright[8:20, 9:18] = 255
    return {
        "a seven on the sheet": seven,
        "dark on light, with grain": noisy,
        "larger than 224, shrunk first": np.kron(noisy[::2, ::2], np.ones((3, 3), np.uint8))[:300, :],
        "28×28 and ready": mnist_like,
        "28×28, inverted, ready": 255 - mnist_like,
        "28×28 on a bright ground": bright,
        "blank": np.full((40, 50), 128, np.uint8),
        "almost blank": np.pad(np.full((4, 4), 159, np.uint8), 20, constant_values=128),
        "one pixel": np.pad(np.array([[255]], np.uint8), 30),
        "a wide thin line": np.pad(np.full((2, 150), 255, np.uint8), ((60, 60), (5, 5))),
        "a tall thin line at the edge": np.pad(np.full((200, 3), 180, np.uint8), ((0, 0), (0, 90))),
        "all mass in a corner": np.pad(np.full((30, 30), 255, np.uint8), ((0, 100), (0, 120))),
        "tiny": np.array([[0, 255], [0, 0]], np.uint8),
    }


def case_of(name: str, picture: np.ndarray) -> dict[str, Any]:
    found = digit_normalisation.normalise(picture)
    packed = base64.b64encode(zlib.compress(picture.tobytes(), 9)).decode()
    case: dict[str, Any] = {"name": name, "height": picture.shape[0], "width": picture.shape[1], "pixels": packed}
    if found is None:
        return case | {"blank": True}
    case |= {"inverted": found.inverted, "ready": found.ready}
    for step in STEPS:
        values = getattr(found, step)
        case[step] = (
            None
            if values is None
            else {"shape": list(values.shape), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}
        )
    return case


@pytest.fixture(scope="module")
def golden() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def _picture(case: dict[str, Any]) -> np.ndarray:
    raw = zlib.decompress(base64.b64decode(case["pixels"]))
    return np.frombuffer(raw, np.uint8).reshape(case["height"], case["width"])


def test_python_matches_the_golden_vectors(golden: list[dict[str, Any]]) -> None:
    assert [case["name"] for case in golden] == list(golden_pictures())
    for case in golden:
        found = case_of(case["name"], _picture(case))
        assert found | {"pixels": case["pixels"]} == case  # the compressed bytes may differ between versions of zlib


def test_javascript_matches_the_golden_vectors(open_page: Any, served_site: str, golden: list[dict[str, Any]]) -> None:
    pictures = [_picture(case) for case in golden]
    for case, found in zip(golden, _normalised(open_page, served_site, pictures), strict=True):
        _same(case["name"], found, digit_normalisation.normalise(_picture(case)))


def test_javascript_agrees_on_random_pictures(open_page: Any, served_site: str) -> None:
    rng = np.random.default_rng(7)
    pictures = []
    large = [(1, 3000), (2500, 2), (230, 500), (600, 410)]  # shrunk to 224 first
    for height, width in [*rng.integers(1, 90, (60, 2)), *large]:
        background, ink = rng.integers(0, 256, 2)
        picture = np.full((height, width), background, np.uint8)
        top, left = rng.integers(0, height), rng.integers(0, width)
        picture[top : top + rng.integers(1, 40), left : left + rng.integers(1, 40)] = ink
        noise = rng.integers(-12, 13, picture.shape) * rng.integers(0, 2)
        pictures.append(np.clip(picture.astype(int) + noise, 0, 255).astype(np.uint8))
    for i, found in enumerate(_normalised(open_page, served_site, pictures)):
        _same(f"picture {i}", found, digit_normalisation.normalise(pictures[i]))


def test_the_pen_suits_the_size_of_the_drawing(open_page: Any, served_site: str) -> None:
    """A small drawing becomes the same digit as a large one; with one pen for all it would be a blot."""
    found = open_page(served_site).page.evaluate(
        """async (site) => {
          const { penRadius, rasterise } = await import(site + "raster.js");
          const { normalise } = await import(site + "normalise.js");
          const seven = (side) => [[[10, 10], [10 + side / 2, 10], [10 + side / 4, 10 + side]]];
          const inked = (gray) => gray.values.filter((value) => value > 127).length;
          return {
            radii: [0, 40, 100, 200].map((side) => penRadius(seven(side))),
            none: penRadius([]),
            ink: [40, 100, 200].map((side) => inked(normalise(rasterise(seven(side))).centred)),
          };
        }""",
        served_site,
    )
    assert found["radii"] == pytest.approx([2, 2.4, 6, 12])
    assert found["none"] == 2
    assert max(found["ink"]) <= 1.15 * min(found["ink"])


def _normalised(open_page: Any, site: str, pictures: list[np.ndarray]) -> list[dict[str, Any] | None]:
    cases = [
        {"pixels": base64.b64encode(picture.tobytes()).decode(), "height": picture.shape[0], "width": picture.shape[1]}
        for picture in pictures
    ]
    return open_page(site).page.evaluate(IN_BROWSER, [cases, site])


def _same(name: str, found: dict[str, Any] | None, expected: digit_normalisation.NormalisedDigit | None) -> None:
    assert (found is None) == (expected is None), name
    if found is None or expected is None:
        return
    assert (found["inverted"], found["ready"]) == (expected.inverted, expected.ready), name
    for step in STEPS:
        wanted, had = getattr(expected, step), found[step]
        assert (had is None) == (wanted is None), (name, step)
        if wanted is not None:
            assert (had["height"], had["width"]) == wanted.shape, (name, step)
            assert had["values"] == wanted.ravel().tolist(), (name, step)


if __name__ == "__main__":
    cases = [case_of(name, picture) for name, picture in golden_pictures().items()]
    GOLDEN.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{GOLDEN}: {len(cases)} cases, {GOLDEN.stat().st_size} bytes")
