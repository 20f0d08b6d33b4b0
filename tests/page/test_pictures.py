"""Models of photographs on the page: open, paste, drop, photograph or choose an image; in colour and at any size."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.runs import Run

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect

WORDS = r"\b(digits?|strokes?|drawing|draw)\b"


@pytest.fixture(params=["served", "static"])
def photos_site(request: pytest.FixtureRequest) -> str:
    """The page of a model of photographs, behind both engines; the server has models of digits as well."""
    return request.getfixturevalue("mixed_site" if request.param == "served" else "static_photos_site")


def _photograph(height: int = 60, width: int = 90) -> np.ndarray:
    y, x = np.mgrid[0 : 255 : height * 1j, 0 : 255 : width * 1j]
    return np.stack([y, x, 255 - x], axis=2).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def _open(tab: Any, data: bytes, name: str = "photo.png") -> None:
    before = tab.page.locator("#steps-caption").inner_text()
    tab.page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    expect(tab.page.locator("#steps-caption")).not_to_have_text(before)
    tab.wait_until_idle()


def _probabilities(run: Run, image: bytes) -> list[str]:
    pixels = torch.from_numpy(run.preprocessing.prepare(image).pixels)[None]
    with torch.inference_mode():
        shares = run.load_model().eval()(run.preprocessing.to_input(pixels)).softmax(dim=1)[0].tolist()
    return [f"{100 * share:.1f} %" for share in shares]


def _close(shown: list[str], expected: list[str]) -> None:
    """Compare percentages; the browser's weights are float16, which can change the last digit."""
    numbers = [[float(text.removesuffix(" %")) for text in texts] for texts in (shown, expected)]
    np.testing.assert_allclose(*numbers, atol=0.101)


def _run(runs: list[Run], name: str) -> Run:
    return next(run for run in runs if run.path.name == name)


def test_an_image_is_read_as_in_the_library(open_page: Any, photos_site: str, mixed_runs: list[Run]) -> None:
    tab = open_page(photos_site, "#vit=photos")
    page = tab.page
    expect(page.locator("#invite")).to_have_text("Try your own.")
    assert page.locator("#pad").is_hidden()
    assert page.locator(".sample").all_inner_texts()[:3] == ["blue", "green", "red"]
    data = _png(_photograph())
    _open(tab, data)
    _close(tab.probabilities("vit"), _probabilities(_run(mixed_runs, "photos"), data))
    expect(page.locator("#steps-caption")).to_have_text(
        "The middle 60 × 60 of 60 × 90 pixels (height × width), resized to 32 × 32."
    )
    expect(page.locator("#invite")).to_have_text("")
    if photos_site.endswith("/") and page.locator(".prediction.cnn").count():
        assert tab.probabilities("cnn") == _probabilities(_run(mixed_runs, "photos-cnn"), data)
    assert page.locator(".cell").count() == 16
    for view in page.locator(".view").all():
        view.click()
        tab.wait_until_idle()
        assert page.locator("#map-caption").inner_text()
    page.locator("#undo").click()
    tab.wait_until_idle()
    assert tab.state()["test"] == "2"


def test_a_gray_and_wide_model(open_page: Any, mixed_site: str, mixed_runs: list[Run]) -> None:
    tab = open_page(mixed_site, "#vit=wide&view=patches")
    page = tab.page
    data = _png(_photograph(70, 70))
    _open(tab, data)
    assert tab.probabilities() == _probabilities(_run(mixed_runs, "wide"), data)
    expect(page.locator("#steps-caption")).to_have_text(
        "70 × 70 pixels, whole in 24 × 40, in gray; black at the sides fills the rest."
    )
    box = page.locator("#map").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(40 / 24, rel=0.02)
    shown = page.evaluate(
        """() => {
          const canvas = document.querySelector(".view[data-view=patches] canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const gray = data.every((value, i) => i % 4 === 3 || value === data[i - (i % 4)]);
          return { size: [canvas.height, canvas.width], gray };
        }"""
    )
    assert shown == {"size": [24, 40], "gray": True}


def test_a_tall_model_in_colour_of_three_classes(open_page: Any, tall_site: str, tall_run: Run) -> None:
    """Opened, pasted, dropped and chosen images reach it in its size and colours."""
    tab = open_page(tall_site, "#view=patches")
    page = tab.page
    assert page.locator(".bar.cnn, .bar.vit").count() == 3
    event = """([kind, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([Uint8Array.from(bytes)], "a.png", { type: "image/png" }));
      document.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, { clipboardData: data })
        : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    for kind, size in (("open", (70, 90)), ("paste", (200, 31)), ("drop", (64, 48))):
        data = _png(_photograph(*size))
        if kind == "open":
            _open(tab, data)
        else:
            page.evaluate(event, [kind, list(data)])
            expect(page.locator("#steps-caption")).to_contain_text(f"{size[0]} × {size[1]}")
            tab.wait_until_idle()
        _close(tab.probabilities(), _probabilities(tall_run, data))
        assert tab.state()["image"].startswith("3x64x48.")
    box = page.locator("#map").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(48 / 64, rel=0.02)
    page.locator(".sample").nth(1).click()
    tab.wait_until_idle()
    assert tab.state()["test"] == "1"
    assert tab.prediction() in ("red", "green", "blue")


def test_the_map_keeps_the_colours_of_a_plain_image(open_page: Any, mixed_site: str) -> None:
    """Under a map it is gray: colours there would be mistaken for the map's."""
    tab = open_page(mixed_site, "#vit=photos")
    pixel = """(view) => {
      const canvas = document.querySelector(`.view[data-view=${view}] canvas`);
      return [...canvas.getContext("2d").getImageData(2, 2, 1, 1).data];
    }"""
    flat = np.full((40, 40, 3), (200, 40, 90), np.uint8)
    _open(tab, _png(flat))
    assert tab.page.evaluate(pixel, "patches") == [200, 40, 90, 255]
    red, green, blue, _ = tab.page.evaluate(pixel, "patch_removal")
    assert abs(red - green) < 40 or abs(blue - green) < 40  # near white, gray or the scale's ends: not the image's pink


def test_paste_drop_and_what_is_no_image(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#vit=photos")
    page = tab.page
    page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(bytes)], "a.png", { type: "image/png" }));
          document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
        }""",
        list(_png(_photograph(40, 41))),
    )
    expect(page.locator("#steps-caption")).to_contain_text("40 × 41 pixels")
    drop = """([kind, bytes]) => {
      const data = new DataTransfer();
      if (bytes) data.items.add(new File([Uint8Array.from(bytes)], "b.png", { type: "image/png" }));
      else data.setData("text/plain", "a picture's address");
      const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector(".predictions").dispatchEvent(event); // anywhere
    }"""
    dropped = list(_png(_photograph(50, 52)))
    page.evaluate(drop, ["dragover", dropped])
    assert page.locator(".drop-hint").is_visible()
    page.evaluate(drop, ["drop", dropped])
    expect(page.locator("#steps-caption")).to_contain_text("50 × 52 pixels")
    assert page.locator(".drop-hint").is_hidden()
    page.evaluate(drop, ["drop", None])
    expect(page.locator("#draw-error")).to_contain_text("not a file")
    for data, sentence in (
        (b"no image", "not an image I can read"),
        (_png(np.zeros((1, 20_000), np.uint8)), "longer than 16,384 pixels along one side"),
    ):
        page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": data})
        expect(page.locator("#draw-error")).to_contain_text(sentence)
    expect(page.locator("#steps-caption")).to_contain_text("50 × 52 pixels")  # it stays
    page.locator(".sample").first.click()
    tab.wait_until_idle()
    expect(page.locator("#draw-error")).to_have_text("")


def test_a_photograph_is_taken(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#vit=photos", permissions=["camera"])
    page = tab.page
    page.locator("#take-photo").click()
    expect(page.locator("#capture")).to_be_focused()
    assert page.locator("#camera").is_visible()
    assert page.evaluate("document.querySelector('#camera').videoWidth") > 0
    page.keyboard.press("Escape")
    assert page.locator("#camera").is_hidden()
    expect(page.locator("#take-photo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#capture")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#steps-caption")).to_contain_text("The middle")
    tab.wait_until_idle()
    assert tab.state()["image"].startswith("3x32x32.")
    assert page.evaluate("document.querySelector('#camera').srcObject") is None  # the camera is off


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("NotAllowedError", "The camera is not allowed on this page"),
        ("NotFoundError", "No camera was found"),
        ("", "Browsers allow the camera only over https"),
    ],
)
def test_no_camera(open_page: Any, mixed_site: str, fault: str, sentence: str) -> None:
    page = open_page(mixed_site, "#vit=photos").page
    page.evaluate(
        """(fault) => {
          const mediaDevices = { getUserMedia: async () => { throw new DOMException("", fault); } };
          Object.defineProperty(navigator, "mediaDevices", { value: fault ? mediaDevices : undefined });
        }""",
        fault,
    )
    page.locator("#take-photo").click()
    expect(page.locator("#draw-error")).to_contain_text(sentence)
    assert page.locator("#open").is_visible()
    assert page.locator("#capture").is_hidden()


def test_a_phone_takes_the_photograph_itself(open_page: Any, mixed_site: str) -> None:
    """Without https a page has no camera, but a file chooser has."""
    tab = open_page(mixed_site, "#vit=photos", width=390, height=844, has_touch=True, is_mobile=True)
    page = tab.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    with page.expect_file_chooser() as chooser:
        page.locator("#take-photo").tap()
    assert chooser.value.element.get_attribute("capture") == "environment"
    chooser.value.set_files({"name": "photo.png", "mimeType": "image/png", "buffer": _png(_photograph())})
    expect(page.locator("#steps-caption")).to_contain_text("60 × 90 pixels")


def test_choosing_a_model_changes_the_input(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site)
    page = tab.page
    first = tab.probabilities()
    page.locator("#vit").select_option("photos")
    tab.wait_until_idle()
    assert page.locator("#pad").is_hidden()
    assert page.locator("#photo").is_visible()
    assert page.locator(".prediction .model").all_inner_texts() == ["photos", "photos-cnn"]
    _open(tab, _png(_photograph()))
    shares = tab.probabilities()
    page.locator("#vit").select_option("wide")  # the same image, at another size
    tab.wait_until_idle()
    expect(page.locator("#steps-caption")).to_contain_text("60 × 90 pixels")
    page.locator("#vit").select_option("coarse")
    tab.wait_until_idle()
    assert tab.probabilities() == first
    assert page.locator("#photo").is_hidden()
    page.locator("#vit").select_option("photos")
    tab.wait_until_idle()
    assert tab.probabilities() == shares


def test_the_link_holds_the_image_as_the_model_gets_it(open_page: Any, photos_site: str) -> None:
    tab = open_page(photos_site, "#vit=photos")
    _open(tab, _png(_photograph()))
    tab.page.get_by_label("Move it right by one pixel").click()
    tab.page.locator(".cell").nth(5).click()
    tab.wait_until_idle()
    fragment = tab.page.url.partition("#")[2]
    again = open_page(photos_site, f"#{fragment}")
    assert again.probabilities() == tab.probabilities()
    expect(again.page.locator("#steps-caption")).to_have_text("Already 32 × 32: used as it is.")
    for damaged in ("image=3x32x32.AAAA", "image=3x900x900.AA", "image=4x2x2.AA", "image="):
        again.page.evaluate("(fragment) => { location.hash = fragment; }", f"vit=photos&{damaged}")
        expect(again.page.locator("#notice")).to_contain_text("could not be read")
        again.wait_until_idle()
        assert again.page.locator(".prediction.vit .big").inner_text() in ("red", "green", "blue")


def test_a_large_image_is_not_in_the_link(open_page: Any, mixed_site: str) -> None:
    found = open_page(mixed_site).page.evaluate(
        """async (site) => {
          const { fromHash, initialState, toHash } = await import(site + "state.js");
          const state = { ...initialState(), picture: { kind: "file", file: new Blob() }, layer: 1 };
          const image = { values: new Uint8Array(3 * 65 * 65), channels: 3, height: 65, width: 65 };
          const hash = toHash(state, image);
          const { state: read, notice } = fromHash(hash);
          return { hash, kind: read.picture.kind, layer: read.layer, notice };
        }""",
        mixed_site,
    )
    assert found == {
        "hash": "image=none&layer=2",
        "kind": "sample",
        "layer": 1,
        "notice": "That image was too large for a link; here is a test image instead.",
    }


def test_the_command_gives_the_same_result(
    open_page: Any, mixed_site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = open_page(mixed_site, "#vit=photos")
    page = tab.page
    _open(tab, _png(_photograph()))
    page.get_by_label("Move it down by one pixel").click()
    page.locator(".cell").nth(6).click()
    tab.wait_until_idle()
    page.locator("#command").click()
    command = page.locator("#command-text").inner_text()
    assert command.startswith("vitreous look image.png --run ")
    with page.expect_download() as download:
        page.locator("#save-drawing").click()
    assert download.value.suggested_filename == "image.png"
    download.value.save_as(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True)
    shares = np.load("look-image/arrays.npz")["probabilities"].tolist()
    assert tab.probabilities() == [f"{100 * share:.1f} %" for share in shares]


def test_nothing_speaks_of_digits(open_page: Any, photos_site: str) -> None:
    tab = open_page(photos_site, "#vit=photos")
    page = tab.page
    page.locator("#command").click()
    page.locator("#mode-tour").click()
    for _ in range(7):
        text = page.evaluate("document.body.innerText.replace(document.querySelector('#engine-status').innerText, '')")
        assert not re.search(WORDS, text, re.IGNORECASE), re.search(WORDS, text, re.IGNORECASE)
        assert "undefined" not in text
        page.locator("#tour-next").click()
        tab.wait_until_idle()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, a, video, canvas:not([aria-hidden])")]
          .filter((e) => e.checkVisibility() && !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.title))
          .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_a_large_photograph_does_not_hold_up_the_page(open_page: Any, mixed_site: str) -> None:
    tab = open_page(mixed_site, "#vit=photos")
    page = tab.page
    buffer = io.BytesIO()
    Image.fromarray(_photograph(3000, 4000)).save(buffer, format="JPEG", quality=85)  # 12 megapixels
    page.evaluate(
        """() => {
          window.longest = 0;
          let last = performance.now();
          const tick = () => {
            const now = performance.now();
            window.longest = Math.max(window.longest, now - last);
            last = now;
            setTimeout(tick, 0);
          };
          tick();
        }"""
    )
    page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": buffer.getvalue()})
    expect(page.locator("#steps-caption")).to_contain_text("3000 × 4000 pixels")
    longest = page.evaluate("window.longest")
    print(f"the longest wait of the page: {longest:.0f} ms")
    assert longest < 300


def test_without_test_images_there_is_a_sentence(browser: Any, mixed_site: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    none = {"shape": [3, 32, 32], "samples": [], "note": "There are no test images here."}
    page.route("**/v1/samples*", lambda route: route.fulfill(json=none))
    page.goto(f"{mixed_site}#vit=photos")
    expect(page.locator("#samples-label")).to_have_text("There are no test images here.")
    expect(page.locator("#invite")).to_have_text("Open an image.")
    expect(page.locator("#map-caption")).to_have_text("There is no image yet.")
    expect(page.locator("#engine-error")).to_have_text("")
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": _png(_photograph())})
    expect(page.locator("#map-caption")).to_contain_text("attends most to")
    context.close()


def test_attention_that_is_too_much_to_send_is_left_out(browser: Any, mixed_site: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.extend(request.post_data_json["want"]) if request.method == "POST" else None
    )
    page.route(
        "**/engine-http.js",
        lambda route: route.fulfill(
            body=route.fetch().text().replace("4_000_000", "1_000"), content_type="text/javascript"
        ),
    )
    page.goto(f"{mixed_site}#vit=photos&view=attention&key=2")
    page.locator("#speed", has_text="ms").wait_for()
    expect(page.locator(".no-attention-note")).to_be_visible()
    page.locator("html[data-status=idle]").wait_for(state="attached")
    assert "attention" not in asked
    assert "qkv" not in asked
    assert page.locator(".view").first.inner_text() == "patches"
    assert page.locator("#map").get_attribute("data-view") == "patches"
    for place in ("#heads", "#from", "#open-arithmetic", "#arithmetic"):
        assert page.locator(place).is_hidden(), place
    context.close()
