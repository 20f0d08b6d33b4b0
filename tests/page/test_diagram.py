"""The diagram: its numbers and their arithmetic are the model's; one goes in and out; heads are named by measuring."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from vitreous.models import ViT
from vitreous.runs import Run

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect

SAMPLE = """async (index) => { const { samples } = await (await fetch("v1/samples")).json();
return [...atob(samples[index].pixels)].map((c) => c.charCodeAt(0)); }"""


def _number(words: str) -> float:
    return float(words.replace("−", "-").removesuffix(" %"))


def _taps(page: Any, run: Run) -> tuple[ViT, dict[str, torch.Tensor]]:
    vit = run.load_model().eval()
    assert isinstance(vit, ViT)
    taps: dict[str, torch.Tensor] = {}
    image = torch.tensor(page.evaluate(SAMPLE, 3), dtype=torch.uint8).view(1, 1, 28, 28)
    with torch.inference_mode():
        vit(run.preprocessing.to_input(image), taps)
        taps["patches"] = vit.patch_embed(run.preprocessing.to_input(image))
        for i, block in enumerate(vit.blocks):
            z = taps["tokens"] if i == 0 else taps[f"blocks.{i - 1}.output"]
            taps[f"blocks.{i}.normed"] = block.norm1(z)
            taps[f"blocks.{i}.hidden"] = block.mlp.fc1(block.norm2(taps[f"blocks.{i}.middle"]))
            taps[f"blocks.{i}.active"] = block.mlp.act(taps[f"blocks.{i}.hidden"])
            taps[f"blocks.{i}.mlp"] = block.mlp.fc2(taps[f"blocks.{i}.active"])
            taps[f"blocks.{i}.attended"] = taps[f"blocks.{i}.middle"] - z
    return vit, taps


def test_the_arithmetic_of_every_box(open_page: Any, served_site: str, runs: list[Run]) -> None:
    """The last sum of each node ends in the model's number, and nothing is missing."""
    tab = open_page(served_site, "#test=3&layer=2&from=5&node=tokens&at=8")
    page = tab.page
    _, taps = _taps(page, runs[0])
    token, at = 6, 7  # patch 5, behind the class token
    head, width = divmod(at, taps["blocks.1.q"].shape[-1])
    expected = {
        "tokens": taps["tokens"][0, token, at],
        "embedded": taps["patches"][0, token - 1, at],
        "logits": taps["logits"][0, at],
        "final": taps["normed"][0, token, at],
        **{name: taps[f"blocks.1.{name}"][0, head, token, width] for name in ("q", "k", "v", "heads")},
        **{
            name: taps[f"blocks.1.{name}"][0, token, at]
            for name in ("normed", "middle", "hidden", "active", "mlp", "output", "attended")
        },
    }
    for node, value in expected.items():
        page.evaluate("(fragment) => { location.hash = fragment; }", f"test=3&layer=2&from=5&node={node}&at={at + 1}")
        tab.wait_until_idle()
        results = page.locator(".sum .result").all_inner_texts()
        assert _number(results[-1]) == pytest.approx(float(value), abs=0.006), node
        assert "NaN" not in page.locator("#arithmetic").inner_text()
        assert "undefined" not in page.locator("#arithmetic").inner_text()
        assert page.locator("#arithmetic math").count() == len(results)
    page.evaluate("(fragment) => { location.hash = fragment; }", f"test=3&node=probabilities&at={at + 1}")
    tab.wait_until_idle()
    assert page.locator(".sum .result").last.inner_text() == tab.probabilities()[at]


def test_zooming_in_and_out(open_page: Any, site: str) -> None:
    tab = open_page(site)
    page = tab.page
    crumbs = page.locator("#crumbs button")
    assert crumbs.all_inner_texts() == ["Whole model"]
    page.locator(".layer-name").nth(0).click()
    assert crumbs.all_inner_texts() == ["Whole model", "Layer 1"]
    assert page.locator(".layer-view .strip.matrix").count() == 13
    page.locator(".layer-view .thumb").nth(1).click()
    page.locator(".layer-view .thumb").nth(1).click()  # a second time: open it
    assert crumbs.all_inner_texts() == ["Whole model", "Layer 1", "Head 2"]
    page.locator(".head-view .square").click(position={"x": 30, "y": 40})
    tab.wait_until_idle()
    assert crumbs.all_inner_texts() == ["Whole model", "Layer 1", "Head 2", "One attention weight"]
    assert page.locator(".sum .result").count() == 4
    state = tab.state()
    assert (state["zoom"], state["layer"], state["head"]) == ("head", "1", "2")
    assert "key" in state
    again = open_page(site, "#" + page.url.partition("#")[2])
    assert again.page.locator("#crumbs button").all_inner_texts() == crumbs.all_inner_texts()
    for left in (3, 2, 1):
        page.keyboard.press("Escape")
        assert crumbs.count() == left
    assert page.locator(".wall").is_visible()


def test_a_number_by_pointer_and_keyboard(open_page: Any, served_site: str) -> None:
    tab = open_page(served_site, "#test=3&from=5")
    page = tab.page
    strip = page.locator(".layer .strip[data-node=q]").last
    strip.hover(position={"x": 20, "y": 6})
    expect(page.locator(".tip")).to_have_text(re.compile(r"^number \d+: −?\d+\.\d\d$"))
    strip.focus()
    page.keyboard.press("ArrowRight")
    named = strip.get_attribute("aria-label")
    assert re.search(r"Query q, layer 2: number \d+: −?\d", named)
    page.keyboard.press("Enter")
    tab.wait_until_idle()
    assert tab.state()["node"] == "q"
    assert page.locator(".sum .result").last.inner_text() == named.rpartition(" ")[2]
    assert strip.evaluate("(strip) => strip.classList.contains('open')")


def test_heads_are_named_by_their_attention(open_page: Any, served_site: str) -> None:
    """Attention made by hand has the name that the rule gives it."""
    names, neighbours, spread = open_page(served_site).page.evaluate(
        """async (site) => {
          const { measureHeads } = await import(site + "behaviours.js");
          const model = (await (await fetch("v1/models")).json()).models[0];
          const [rows, columns] = model.grid, patches = rows * columns, tokens = patches + 1;
          const pixels = new Uint8Array(784);
          pixels.fill(255, 28 * 3, 28 * 4);  // ink in the first row of patches only
          const measured = (weight) => {
            const data = new Float32Array(tokens * tokens);
            for (let q = 0; q < tokens; q++) {
              const row = Array.from({ length: tokens }, (_, k) => weight(q - 1, k - 1));
              const total = row.reduce((sum, value) => sum + value, 0);
              row.forEach((value, k) => (data[q * tokens + k] = value / total));
            }
            const one = { ...model, depth: 1, num_heads: 1 };
            return measureHeads({ data, shape: [1, 1, tokens, tokens] }, pixels, one, undefined)[0][0];
          };
          const place = (patch) => [Math.floor(patch / columns), patch % columns];
          const near = (one, other) => Math.max(...place(one).map((at, i) => Math.abs(at - place(other)[i]))) === 1;
          const found = [
            measured((q, k) => Number(q === k) + 1e-6),
            measured((q, k) => (q >= 0 && k >= 0 && near(q, k) ? 1 : 1e-6)),
            measured((q, k) => (k < 0 ? 1 : 1e-6)),
            measured((q, k) => (k >= 0 && k < columns ? 1 : 1e-6)),
            measured((q, k) => (k >= columns ? 1 : 1e-6)),
            measured(() => 1),
          ];
          return [found.map(({ name }) => name), found[1].share, found[5].tokens];
        }""",
        served_site,
    )
    assert names == ["itself", "neighbours", "class", "ink", "blank", "spread"]
    assert neighbours == pytest.approx(1, abs=1e-4)
    assert spread == pytest.approx(17, abs=1e-3)


def test_clear_really_clears(open_page: Any, site: str) -> None:
    tab = open_page(site, "#test=3")
    page = tab.page
    painted = """() => {
      const scratch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      return [...document.querySelectorAll(".thumb canvas, .strip canvas")].filter((canvas) => {
        scratch.clearRect(0, 0, 300, 150);
        scratch.drawImage(canvas, 0, 0);
        return scratch.getImageData(0, 0, 28, 28).data.some(Boolean);
      }).length;
    }"""
    assert page.evaluate(painted) > 20
    expect(page.locator("#announcement")).not_to_have_text("")
    page.locator("#clear").click()
    tab.wait_until_idle()
    assert page.evaluate(painted) == 0
    for place in ("#speed", "#announcement", "#lens-caption", ".layer .read >> nth=0", ".behaviour >> nth=0"):
        expect(page.locator(place)).to_have_text("")
    page.wait_for_timeout(1000)  # an announcement that was due
    expect(page.locator("#announcement")).to_have_text("")


def test_the_pulse_is_short_and_not_for_everyone(open_page: Any, served_site: str) -> None:
    longest = """() => new Promise((resolve) => {
      document.addEventListener("vitreous:predicted", () => resolve(Math.max(0, ...document.querySelector("#diagram")
        .getAnimations({ subtree: true }).filter((one) => one.constructor === Animation)
        .map((one) => one.effect.getComputedTiming().endTime))), { once: true });
      document.querySelectorAll(".sample")[5].click();
    })"""
    moving = open_page(served_site, reduced_motion="no-preference").page.evaluate(longest)
    assert 100 < moving <= 400
    assert open_page(served_site, reduced_motion="reduce").page.evaluate(longest) == 0


def test_a_model_without_weights_says_so(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#test=2&vit=stem")
    page = tab.page
    expect(page.locator("#diagram-note")).to_contain_text("tokens come about in another way")
    assert page.locator(".strip:not(.empty)").count() == 0
    assert page.locator(".thumb canvas").first.evaluate("(canvas) => canvas.width") == 28  # its attention is shown
    page.locator("#open-arithmetic").click()
    tab.wait_until_idle()
    assert page.locator(".sum .result").count() == 4  # from the engine's q, k and v
    page.locator("#vit").select_option("padded")
    tab.wait_until_idle()
    expect(page.locator("#diagram-note")).to_have_text("")
    assert page.locator(".strip:not(.empty)").count() > 10


def test_the_wall_on_wide_screens(open_page: Any, bundled_site: str) -> None:
    """Six layers of four heads, and the mean: at least 100 pixels each."""
    for width in (1440, 1920):
        page = open_page(bundled_site, width=width, height=900).page
        assert page.locator(".thumb").count() == 6 * 5
        assert page.locator(".thumb").first.bounding_box()["width"] >= 100
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_drawing_during_the_tour_on_a_phone(open_page: Any, served_site: str) -> None:
    tab = open_page(served_site, width=390, height=844, has_touch=True, is_mobile=True)
    page = tab.page
    page.locator("#start-tour").tap()
    for _ in range(7):
        tab.wait_until_idle(300)
        sheet, words = page.locator("#pad").bounding_box(), page.locator("article.shown .words").bounding_box()
        assert sheet["y"] >= 0
        assert sheet["y"] + sheet["height"] <= words["y"]
        assert page.evaluate("document.elementFromPoint(80, 80).id") == "pad"
        page.locator("#tour-next").tap()
    assert page.locator("#tour").is_hidden()
