"""Training in the tab: the digits it gets, that it learns, that the mistake stops it, and its page in a browser."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.export import training_digits as module
from vitreous.export.training_digits import training_digits
from vitreous.serving.pages import PAGE, page_files

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect
NODE = shutil.which("node")
THREE = [(0.3, 0.25), (0.55, 0.18), (0.68, 0.3), (0.5, 0.47), (0.7, 0.62), (0.6, 0.82), (0.3, 0.8)]
LEARN = """
import { readFileSync } from "node:fs";
const [folder, path] = process.argv.slice(1);
const { Trainer } = await import(`${folder}/trainer.js`);
const { side, count, train } = { side: 28, count: 120, train: 100 };
const rows = readFileSync(path); // (class, digit, side²)
const start = (label, i) => (label * count + i) * side * side;
const digit = (label, i) => new Uint8Array(rows.subarray(start(label, i), start(label, i + 1)));
const take = (from, each) => Array.from({ length: each * 10 }, (_, i) => digit(i % 10, from + Math.floor(i / 10)));
const labels = (each) => Uint8Array.from({ length: each * 10 }, (_, i) => i % 10);
const [validation, validationLabels] = [take(train, 20), labels(20)];
const digits = { train: take(0, train), trainLabels: labels(train), validation, validationLabels };
const learn = (broken, steps) => {
  const trainer = new Trainer(digits, { patch: 7, broken, seed: 1 });
  for (let i = 0; i < steps; i++) trainer.step(0.003);
  const glances = trainer.glance(validation.slice(0, 20));
  const best = glances.map(({ probabilities }) => probabilities.indexOf(Math.max(...probabilities)));
  return { loss: trainer.loss, accuracy: trainer.validate(), different: new Set(best).size };
};
console.log(JSON.stringify({ healthy: learn(false, 350), broken: learn(true, 60) }));
"""


@pytest.fixture(scope="module")
def digits() -> dict[str, bytes]:
    """The files as they are made where MNIST is not in the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "describe", lambda name: type("Description", (), {"cached": False}))
        return training_digits()


def test_the_digits_are_one_small_picture_with_a_row_per_class(digits: dict[str, bytes]) -> None:
    about = json.loads(digits["digits.json"])
    picture = np.array(Image.open(io.BytesIO(digits["digits.png"])).convert("L"))
    count = about["train"] + about["validation"]
    assert len(digits["digits.png"]) <= 200_000
    assert picture.shape == (10 * 28, count * 28)
    assert "CC BY" in about["credit"]
    tiles = picture.reshape(10, 28, count, 28).transpose(0, 2, 1, 3)
    assert len({tile.tobytes() for tile in tiles.reshape(-1, 28, 28)}) == 10 * count  # none is in both parts
    # a row is one class: nearest class means, from the training digits, are right for most of the others
    means = tiles[:, : about["train"]].mean(axis=1).reshape(10, -1)
    others = tiles[:, about["train"] :].reshape(10, -1, 28 * 28)
    nearest = ((others[:, :, None] - means) ** 2).sum(axis=-1).argmin(axis=-1)
    assert (nearest == np.arange(10)[:, None]).mean() > 0.8


@pytest.mark.skipif(NODE is None, reason="the page's arithmetic is run by node: `apt-get install nodejs`")
def test_it_learns_and_over_the_batch_it_does_not(digits: dict[str, bytes], tmp_path: Path) -> None:
    picture = np.array(Image.open(io.BytesIO(digits["digits.png"])).convert("L"))
    tiles = picture.reshape(10, 28, 120, 28).transpose(0, 2, 1, 3)
    (tmp_path / "digits.bin").write_bytes(tiles.astype(np.uint8).tobytes())
    folder = (PAGE / "train").as_uri()
    command = [str(NODE), "--input-type=module", "--eval", LEARN, folder, str(tmp_path / "digits.bin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["healthy"]["accuracy"] >= 0.6
    assert found["healthy"]["loss"] < 1.5
    assert found["broken"]["accuracy"] == pytest.approx(0.1)
    assert found["broken"]["different"] == 1  # the same prediction for every digit
    assert found["broken"]["loss"] == pytest.approx(np.log(10), abs=0.1)


@pytest.fixture(scope="module")
def train_site(digits: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, host: Any) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("train-site")
    for name, content in {**page_files(), **{f"train/{name}": content for name, content in digits.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with host(folder) as address:
        yield address + "train.html"


@pytest.fixture
def open_training(browser: Any, train_site: str) -> Iterator[Callable[..., Any]]:
    faults: list[str] = []
    opened: list[Any] = []

    def opener(**options: Any) -> Any:
        page = browser.new_page(**options)
        opened.append(page)
        page.set_default_timeout(30_000)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(train_site)
        page.locator("html[data-training]").wait_for(state="attached")
        return page

    yield opener
    for page in opened:
        page.close()
    assert faults == []


def wait_for_steps(page: Any, steps: int) -> None:
    for _ in range(600):  # a minute; the content security policy forbids wait_for_function
        if int(page.locator("html").get_attribute("data-steps")) >= steps:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the training has not made {steps} steps in a minute")


def test_start_pause_break_and_start_again(open_training: Any) -> None:
    page = open_training(viewport={"width": 1280, "height": 1000})
    expect(page.locator("#figure-accuracy")).to_have_text("–")
    page.locator("#run").click()
    wait_for_steps(page, 150)
    loss = float(page.locator("#figure-loss").inner_text())
    assert loss < 2.25
    page.locator("#run").click()
    expect(page.locator("#run")).to_have_text("Go on")
    expect(page.locator("#status")).to_have_text(re.compile(r"Paused after \d+ s: [\d.]+ % of the validation digits"))
    texts = page.locator(".watched p").all_inner_texts()
    assert len({re.search(r"as (\d)", text)[1] for text in texts}) > 1
    page.locator("#broken").click()
    expect(page.locator("#broken")).to_have_attribute("aria-checked", "true")
    expect(page.locator("#figure-accuracy")).to_have_text("10.0 %")
    texts = page.locator(".watched p").all_inner_texts()
    assert len({re.search(r"as (\d .*)\)", text)[1] for text in texts}) == 1  # frozen: also the probability
    page.locator("#broken").click()
    page.locator("#patch button").nth(2).click()  # another model: not trained
    expect(page.locator("#figure-loss")).to_have_text("–")
    page.locator("#run").click()
    wait_for_steps(page, 5)
    expect(page.locator("#intro")).to_contain_text("1\u2009000 digits")


def test_own_digits_join_and_are_predicted(open_training: Any) -> None:
    page = open_training(viewport={"width": 1280, "height": 1000})
    page.locator("#labels button").nth(3).click()
    expect(page.locator("#own-note")).to_have_text("There is nothing on the sheet yet.")
    sheet = page.locator("#pad").bounding_box()
    places = [(sheet["x"] + x * sheet["width"], sheet["y"] + y * sheet["height"]) for x, y in THREE]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()
    expect(page.locator(".class-row .value").first).to_have_text("10.0 %")  # untrained: all classes are as likely
    page.locator("#labels button").nth(3).click()
    assert page.locator(".own").count() == 1
    page.locator("#run").click()
    wait_for_steps(page, 200)  # 6,400 images, of which one in 51 is this one
    expect(page.locator(".best-class")).to_have_text("3")
    page.locator(".own").click()
    assert page.locator(".own").count() == 0


def test_narrow_and_by_keyboard(open_training: Any) -> None:
    page = open_training(viewport={"width": 390, "height": 844}, reduced_motion="reduce", color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert {"theme", "run", "reset", "patch", "rate", "broken", "pad", "labels"} <= reached
    assert page.evaluate("getComputedStyle(document.querySelector('.class-row .fill')).transitionDuration") == "0s"
