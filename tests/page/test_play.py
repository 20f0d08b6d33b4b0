"""Things to try: the search for few patches, the broken ViT in JavaScript, and their parts of the page."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.doctor.findings import explanations
from vitreous.export.broken import FINDINGS, SHOWN, broken_files
from vitreous.models import build
from vitreous.runs import Run
from vitreous.serving.pages import PAGE

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect
NODE = shutil.which("node")
in_node = pytest.mark.skipif(NODE is None, reason="the page's arithmetic is run by node: `apt-get install nodejs`")
SEARCH = """
import { readFileSync } from "node:fs";
const [folder, path] = process.argv.slice(1);
const { findFewestPatches } = await import(`${folder}/play/search.js`);
const cases = JSON.parse(readFileSync(path, "utf8"));
const results = [];
for (const { weights, candidates } of cases) {
  // two classes: the first wins as long as the weights of what is left are positive in sum, pairs included
  const predict = async (removed) => {
    let sum = 0;
    const isLeft = (i) => !removed.includes(i);
    weights.forEach((row, i) => row.forEach((value, j) => (sum += isLeft(i) && isLeft(j) ? value : 0)));
    const share = 1 / (1 + Math.exp(-sum));
    return [share, 1 - share];
  };
  results.push(await findFewestPatches(candidates, predict));
}
console.log(JSON.stringify(results));
"""
BROKEN = """
import { readFileSync } from "node:fs";
const [folder, weights, cases] = process.argv.slice(1);
const { BrokenViT } = await import(`${folder}/play/broken-vit.js`);
const { readWeights } = await import(`${folder}/weights.js`);
const { about, images } = JSON.parse(readFileSync(cases, "utf8"));
const file = readFileSync(weights);
const model = new BrokenViT(readWeights(file.buffer.slice(file.byteOffset, file.byteOffset + file.length)), about);
const bytes = images.map((image) => Uint8Array.from(image));
console.log(JSON.stringify([[...model.predict(bytes)], ...bytes.map((one) => [...model.predict([one])])]));
"""


def node(script: str, *arguments: object) -> Any:
    command = [str(NODE), "--input-type=module", "--eval", script, PAGE.as_uri(), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@in_node
def test_the_search_finds_minimal_sets_and_proves_the_smallest(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cases = [{"weights": np.eye(9).tolist(), "candidates": list(range(8))}]  # cannot be changed
    for _ in range(30):
        weights = rng.normal(0.25, 1, (9, 9)) + np.eye(9)
        if weights.sum() > 0:
            cases.append({"weights": weights.tolist(), "candidates": [0, 1, 2, 3, 4, 6, 7, 8]})
    (tmp_path / "cases.json").write_text(json.dumps(cases))

    def changed(weights: np.ndarray, removed: tuple[int, ...]) -> bool:
        left = np.delete(np.delete(weights, removed, 0), removed, 1)
        return bool(left.sum() < 0)

    results = node(SEARCH, tmp_path / "cases.json")
    assert results[0]["found"] is None
    sizes = []
    for case, result in zip(cases, results, strict=True):
        weights, found = np.array(case["weights"]), result["found"]
        by_size = {size: list(itertools.combinations(case["candidates"], size)) for size in range(1, 8)}
        smallest = next((size for size, sets in by_size.items() if any(changed(weights, one) for one in sets)), None)
        if found is None:
            continue
        removed = tuple(found["removed"])
        sizes.append(len(removed))
        assert changed(weights, removed)
        assert (found["before"], found["after"]) == (0, 1)
        for patch in removed:  # none can be put back
            assert not changed(weights, tuple(one for one in removed if one != patch))
        assert found["smallest"]  # with eight patches, every smaller set is tried
        assert len(removed) == smallest
    assert len(set(sizes)) > 2


@in_node
def test_the_broken_vit_is_pytorchs_and_ignores_the_image(tmp_path: Path) -> None:
    files = broken_files()
    assert len(files["broken.safetensors"]) <= 300_000
    (tmp_path / "broken.safetensors").write_bytes(files["broken.safetensors"])
    images = torch.randint(0, 256, (5, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    cases = {"about": json.loads(files["broken.json"]), "images": images.flatten(1).tolist()}
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run = Run.open("bundled:broken")
    model = run.load_model().eval()
    with torch.inference_mode():
        expected = model(run.preprocessing.to_input(images))
        # a healthy model's predictions differ: the weights are not the reason
        healthy = build(run.config.model.replace(fixes=(*run.config.model.fixes, "attention")))
        healthy.load_state_dict(model.state_dict())
        moving = healthy.eval()(run.preprocessing.to_input(images))
    found = node(BROKEN, tmp_path / "broken.safetensors", tmp_path / "cases.json")
    together, *alone = (torch.tensor(logits).view(-1, 10).log_softmax(dim=1) for logits in found)
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cat(alone), expected, rtol=0, atol=1e-4)
    assert all(logits == found[1] for logits in found[2:])  # to the bit
    assert not torch.allclose(moving[0], moving[1], atol=1e-3)


def test_the_findings_are_the_doctors() -> None:
    """Their explanations are those of today; `python -m vitreous.export.bundle` measures and writes them again."""
    written = json.loads(FINDINGS.read_text(encoding="utf-8"))
    assert [one["id"] for one in written["findings"]] == list(SHOWN)
    for one in written["findings"]:
        explained = explanations()[one["id"]]
        assert (one["why"], one["fix"]) == (explained["why"], explained["fix"])
    stated = Run.open("bundled:broken").test_results
    batched, single = written["accuracy"]
    assert batched["share"] == pytest.approx(stated.accuracy, abs=1e-3)
    assert single["share"] == batched["share"] == 0.1135  # all of MNIST's test images that are a 1


def test_fool_it(open_page: Any, site: str) -> None:
    tab = open_page(site)
    before = tab.prediction("vit")
    part = tab.page.locator("#fool")
    part.get_by_role("button", name="Find them").click()
    result = part.locator(".result")
    expect(result).to_have_text(re.compile(r"instead of|cannot be fooled"), timeout=60_000)
    tab.wait_until_idle(300)
    text = result.inner_text()
    removed = tab.state().get("without", "").split(".")
    if "instead of" in text:
        assert tab.prediction("vit") != before
        named = len(re.findall(r"row \d", text))
        assert len(removed) == (named or int(re.search(r"the (\d+) patches that are hatched", text)[1]))
        assert f"instead of {before}." in text
        assert "The CNN, which sees these patches black," in text
        part.get_by_role("button", name="Put them back").click()
        tab.wait_until_idle()
        assert tab.prediction("vit") == before
    expect(part.get_by_role("button", name="Put them back")).to_be_hidden()


def test_move_a_patch_by_pointer_and_by_keyboard(open_page: Any, static_site: str) -> None:
    tab = open_page(static_site)
    cells = tab.page.locator("#move button[data-place]")
    cells.nth(5).scroll_into_view_if_needed()
    first, second = cells.nth(5).bounding_box(), cells.nth(0).bounding_box()
    tab.page.mouse.move(first["x"] + 5, first["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(second["x"] + 5, second["y"] + 5, steps=4)
    tab.page.mouse.up()
    expect(cells.nth(0)).to_have_attribute("aria-label", "Patch row 1, column 1, shows the patch of row 2, column 2")
    expect(tab.page.locator("#move .result")).to_have_text(re.compile(r".+: \d \([\d.<>]+ %\).* · .+: \d \("))
    cells.nth(0).press("Enter")
    cells.nth(0).press("ArrowRight")
    tab.page.keyboard.press("Enter")
    expect(cells.nth(1)).to_have_attribute("aria-label", "Patch row 1, column 2, shows the patch of row 2, column 2")
    tab.page.get_by_role("button", name="Put all back").click()
    expect(cells.nth(1)).to_have_attribute("aria-label", "Patch row 1, column 2")


def test_break_it(open_page: Any, site: str) -> None:
    tab = open_page(site)
    part = tab.page.locator("#break")
    requested: list[str] = []
    tab.page.on("request", lambda request: requested.append(request.url))
    tab.page.get_by_role("switch").click()
    newest = part.locator("td:nth-last-child(2)")  # of each row; then comes its probability
    expect(newest.last).to_have_text("1", timeout=60_000)
    probability = part.locator("tr.broken td.number").inner_text()
    assert any(url.endswith("play/broken.safetensors") for url in requested)  # only now
    expect(part.locator("code").first).to_have_text("image-ignored")
    assert part.locator(".findings ul").get_attribute("lang") == "en"  # the doctor's own words, in every language
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 1280
    for i in (4, 7):
        tab.page.locator(".sample").nth(i).click()
        tab.wait_until_idle()
        assert newest.all_inner_texts() == [tab.prediction("vit"), "1"]
    tab.draw([(0.3, 0.3), (0.7, 0.7)])
    assert part.locator("tr.broken td.number").inner_text() == probability
    assert {text for text in part.locator("tr.broken td:not(.number)").all_inner_texts() if text} == {"1"}
    sentence = re.fullmatch(r"(\d+) different inputs, one prediction: .*", part.locator("[role=status]").inner_text())
    assert sentence
    assert int(sentence[1]) > 3
    tab.page.get_by_role("switch").click()
    expect(part.locator(".broken-panel")).to_be_hidden()


def test_the_share_card(open_page: Any, static_site: str) -> None:
    tab = open_page(static_site)
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save the card").click()
    assert download.value.suggested_filename == "vitreous.png"
    card = Image.open(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert card.size == (1200, 630)
    assert len(card.convert("RGB").getcolors(1 << 20)) > 50
