"""Models of different patches, sizes and classes on one page: it fits the chosen ones and never mixes results."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from vitreous.inspection.cells import patch_cells
from vitreous.runs import Run

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect

SLOW = """(model) => {
  const fetched = window.fetch;
  window.fetch = async (address, options) => {
    const response = await fetched(address, options);
    if (options?.body?.includes(`"model":"${model}"`)) await new Promise((resolve) => setTimeout(resolve, 500));
    return response;
  };
}"""
STROKE = [(0.5, 0.2), (0.4, 0.8)]


def _choose(tab: Any, ident: str) -> None:
    tab.page.locator("#vit").select_option(ident)
    tab.wait_until_idle()


def _shape(tab: Any) -> tuple[int, int, int]:
    page = tab.page
    counts = (page.locator(place).count() for place in (".cell", ".thumb", ".lens-table tbody tr"))
    return tuple(counts)  # type: ignore[return-value]


COARSE = (16, 2 * 3, 3)  # patches; layers × (heads and their mean); layers and the embedding
FINE = (49, 3 * 5, 4)


def test_choosing_a_vit_of_another_grid(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site)
    assert _shape(tab) == COARSE
    first = tab.probabilities()
    _choose(tab, "fine")
    assert _shape(tab) == FINE
    assert tab.probabilities() != first
    expect(tab.page.locator("#map-caption")).to_contain_text("attends most to")
    tab.page.locator(".cell").nth(48).click()
    tab.wait_until_idle()
    expect(tab.page.locator("#removed")).to_contain_text("row 7, column 7")
    _choose(tab, "coarse")
    assert _shape(tab) == COARSE
    assert tab.probabilities() == first  # no patch is removed: 48 belongs to the other grid


def test_an_address_with_a_vit_of_another_grid(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site)
    tab.page.evaluate("location.hash = 'test=2&vit=fine&view=patch_removal'")
    tab.wait_until_idle()
    assert _shape(tab) == FINE
    assert tab.probabilities() == open_page(mixed_site, "#test=2&vit=fine").probabilities()


def test_a_result_of_the_model_before_is_dropped(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site)
    tab.page.evaluate(SLOW, "coarse")
    tab.page.locator("#clear").click()
    tab.draw(STROKE)
    tab.page.locator(".sample").nth(3).click()  # requested from the coarse one, which takes half a second
    _choose(tab, "fine")
    assert _shape(tab) == FINE
    assert tab.probabilities() == open_page(mixed_site, "#test=3&vit=fine").probabilities()


def test_an_exception_does_not_block_the_next_request(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site)
    finished = tab.page.evaluate(
        """async (site) => {
          const { Latest } = await import(site + "latest.js");
          window.addEventListener("unhandledrejection", (event) => event.preventDefault());
          const finished = [];
          const latest = new Latest(async (input) => {
            await null;
            if (input < 2) throw new Error("failed");
            finished.push(input);
          });
          for (const input of [0, 1, 2]) {
            latest.request(input);
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
          latest.request(0);
          latest.request(3); // waits while the exception is thrown
          await new Promise((resolve) => setTimeout(resolve, 10));
          return finished;
        }""",
        mixed_site,
    )
    assert finished == [2, 3]


def test_a_newer_stroke_cancels_the_older_maps(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#vit=fine")
    tab.page.evaluate(
        """() => {
          window.signals = [];
          const fetched = window.fetch;
          window.fetch = async (address, options) => {
            if (options?.body?.includes('"want":["patch_removal"')) {
              window.signals.push(options.signal);
              await new Promise((resolve) => setTimeout(resolve, 400)); // still running at the next stroke
            }
            return fetched(address, options);
          };
        }"""
    )
    tab.page.locator(".sample").nth(3).click()
    tab.page.wait_for_function("() => window.signals.length === 1")
    tab.page.locator(".sample").nth(4).click()
    tab.page.wait_for_function("() => window.signals.length === 2")
    tab.wait_until_idle()
    assert tab.page.evaluate("window.signals.map((signal) => signal.aborted)") == [True, False]
    expect(tab.page.locator("#engine-error")).to_have_text("")


# --- models that do not fit next to each other ------------------------------------------------------------------------


def test_a_digit_at_another_size(open_page: Any, mixed_site: str, mixed_runs: list[Run]) -> None:
    """It is normalised as all digits are, and then resized: the page's input is the library's."""
    tab = open_page(mixed_site, "#vit=large&view=patches")
    page = tab.page
    options = ["coarse", "fine", "stem", "padded", "large", "photos", "wide", "letters-cnn"]
    assert page.locator("#vit option").all_inner_texts() == options
    assert page.locator(".cell").count() == 4 * 5
    assert page.locator(".sample").count() == 10
    expect(page.locator("#steps-caption")).to_contain_text("resized to 32 × 40")
    assert page.locator(".prediction").count() == 1
    expect(page.locator("#engine-status")).to_contain_text(
        "digits-cnn is not shown: it takes digits of 28 × 28 pixels."
    )
    page.locator("#clear").click()
    tab.draw(STROKE)
    with page.expect_download() as download:
        page.evaluate("document.querySelector('#save-drawing').click()")
    run = next(run for run in mixed_runs if run.path.name == "large")
    prepared = run.preprocessing.prepare(Path(download.value.path()).read_bytes())
    assert looked_at(page, mixed_site, "large") == prepared.pixels.ravel().tolist()


def looked_at(page: Any, site: str, model: str) -> list[int]:
    """Return the pixels that the page sends to a model."""
    with page.expect_request(lambda request: request.url == f"{site}v1/look") as sent:
        page.locator(f"#vit option[value={model}]").evaluate(
            "(option) => option.parentElement.dispatchEvent(new Event('change'))"
        )
    return list(base64.b64decode(sent.value.post_data_json["pixels"]))


def test_a_model_alone_has_no_attention(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#key=3&step=3")
    page = tab.page
    assert page.locator("#arithmetic").is_visible()
    _choose(tab, "letters-cnn")
    expect(page.locator("#map-caption")).to_contain_text("letters-cnn is not a ViT")
    assert page.locator(".prediction .model").all_inner_texts() == ["letters-cnn"]
    for place in ("#arithmetic", "#tour", "#start-tour", "#views", "#lens", "#shuffle"):
        assert page.locator(place).is_hidden(), place
    _choose(tab, "coarse")
    assert _shape(tab) == COARSE


def test_a_model_of_other_classes_is_not_compared(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#cnn=letters-cnn")
    page = tab.page
    assert page.locator(".prediction .model").all_inner_texts() == ["coarse", "digits-cnn"]
    assert page.locator("#cnn option").all_inner_texts() == ["digits-cnn"]
    expect(page.locator("#engine-status")).to_contain_text(
        "Not shown, because the classes differ from those of coarse: letters-cnn, photos-cnn."
    )


# --- the address ------------------------------------------------------------------------------------------------------


def test_the_last_layer_is_not_written(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#test=4")
    page = tab.page
    page.locator(".sample").nth(5).click()
    tab.wait_until_idle()
    assert tab.state() == {"test": "5"}
    expect(page.locator("#map-caption")).to_contain_text("of layer 2")
    _choose(tab, "fine")
    expect(page.locator("#map-caption")).to_contain_text("of layer 3")  # still the last
    page.locator(".thumb").nth(5).click()
    tab.wait_until_idle()
    assert tab.state() == {"test": "5", "vit": "fine", "layer": "2", "head": "1"}
    page.locator(".thumb").nth(10).click()
    tab.wait_until_idle()
    assert "layer" not in tab.state()


def test_patches_of_another_grid_are_ignored(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#vit=fine&from=9&without=3.4")
    tab.page.locator(".sample").nth(1).click()
    tab.wait_until_idle()
    written = tab.state()
    assert (written["grid"], written["from"], written["without"]) == ("7x7", "9", "3.4")
    fragment = tab.page.url.partition("#")[2].replace("vit=fine", "vit=coarse")
    other = open_page(mixed_site, f"#{fragment}").page
    expect(other.locator("#removed")).to_have_text("")
    expect(other.locator("#map-caption")).to_contain_text("From the class token")


# --- cells of unequal size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ident", "index"), [("stem", 2), ("padded", 3)])
def test_cells_lie_where_the_patches_do(
    open_page: Any, mixed_site: str, mixed_runs: list[Run], ident: str, index: int
) -> None:
    tab = open_page(mixed_site, f"#test=2&vit={ident}&view=patches")
    page = tab.page
    cells = patch_cells(mixed_runs[index].config.model)
    owner = cells.of_pixels()
    found = page.evaluate(
        """async ([site, ident]) => {
          const { patchOfPixels, blanked, shuffled } = await import(site + "vit-maths.js");
          const { models } = await (await fetch("v1/models")).json();
          const model = models.find(({ id }) => id === ident);
          const pixels = Uint8Array.from({ length: 784 }, (_, i) => 1 + (i % 255));
          const order = Array.from({ length: model.grid[0] * model.grid[1] }, (_, i) => i);
          return {
            owner: [...patchOfPixels(model)],
            left: [...blanked(pixels, model, [0])],
            same: [...shuffled(pixels, model, order)].every((value, i) => value === pixels[i]),
            turned: shuffled(pixels, model, order.toReversed()).every((value) => value > 0),
          };
        }""",
        [mixed_site, ident],
    )
    assert found["owner"] == owner.ravel().tolist()
    assert [value == 0 for value in found["left"]] == (owner == 0).ravel().tolist()
    assert found["same"]
    assert found["turned"]
    boxes = [page.locator(".cell").nth(i).bounding_box() for i in (0, cells.count - 1)]
    shares = [(owner[0] == i).sum() for i in (0, cells.grid[1] - 1)]
    assert boxes[0]["width"] / boxes[1]["width"] == pytest.approx(shares[0] / shares[1], rel=0.03)
    expect(page.locator("#map-caption")).to_contain_text(cells.note)
    assert "1 × 1 pixels" not in page.locator("#map-caption").inner_text()
    page.locator("#start-tour").click()
    words = page.locator("article.shown").inner_text()
    assert cells.note in words
    assert ("16 × 16 pixels" in words) == cells.exact
    assert "1 × 1" not in words


def test_rollout_reads_no_removed_patch(open_page: Any, mixed_site: str) -> None:
    """A mean includes only the remaining patches: the page's own rollout for three of four equals the server's."""
    ours, theirs = open_page(mixed_site).page.evaluate(
        """async (site) => {
          const { chooseEngine } = await import(site + "engine.js");
          const { rollout } = await import(site + "vit-maths.js");
          const engine = await chooseEngine();
          let model = null;
          await engine.start(() => {}, (list) => { model = list.find(({ id }) => id === "padded"); });
          const [pixels, tokenMask] = [Uint8Array.from({ length: 784 }, (_, i) => i % 256), [1, 1, 0, 1]];
          const found = await engine.look(model, { pixels, headMask: null, tokenMask, want: ["attention", "rollout"] });
          return [[...rollout(found.attention, model, tokenMask)], [...found.rollout]];
        }""",
        mixed_site,
    )
    assert ours == pytest.approx(theirs, abs=2e-5)
    assert ours[2] == 0
    assert sum(ours) == pytest.approx(1, abs=1e-4)


# --- accessibility and numbers ----------------------------------------------------------------------------------------


def test_screen_reader_texts(open_page: Any, mixed_site: str) -> None:
    page = open_page(mixed_site).page
    assert page.locator("[role=columnheader]").all_text_contents() == ["Class", "coarse", "digits-cnn"]
    pad = page.locator("#pad")
    assert pad.get_attribute("role") == "application"  # it handles the arrow keys itself
    assert "arrow keys" in page.locator(f"#{pad.get_attribute('aria-describedby')}").text_content()
    page.locator("#start-tour").click()
    status = page.locator("#tour-status[role=status]")
    expect(status).to_have_text("Step 1 of 7: Split into patches")
    page.locator("#tour-next").click()
    expect(status).to_have_text(re.compile("^Step 2 of 7: "))
    page.keyboard.press("Escape")
    expect(status).to_have_text("")


def test_the_key_keeps_its_outline_under_a_finger(open_page: Any, mixed_site: str) -> None:
    page = open_page(mixed_site, "#key=6", width=390, height=844, has_touch=True, is_mobile=True).page
    assert page.evaluate("matchMedia('(pointer: coarse)').matches")
    key = page.locator(".cell.key")
    key.hover()
    assert key.evaluate("(cell) => getComputedStyle(cell).boxShadow") != "none"


def test_percent_has_no_negative_zero(open_page: Any, mixed_site: str) -> None:
    texts = open_page(mixed_site).page.evaluate(
        """async (site) => {
          const { percent } = await import(site + "words.js");
          return [-1e-8, 0, 1e-8, 0.5, -0.25].map(percent);
        }""",
        mixed_site,
    )
    assert texts == ["0.0 %", "0.0 %", "<0.1 %", "50.0 %", "−25.0 %"]
