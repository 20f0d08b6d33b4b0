"""A browser, two small models trained here, and the page behind both engines.

Everything is created once per session; under pytest-xdist all of these tests run in one worker (`page` group).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from vitreous.config import CNNConfig, Config, DataConfig, ModelConfig, ViTConfig, override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.models import build
from vitreous.runs import BUNDLED, Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "the page is tested in a browser, and none is installed: `apt-get install chromium`"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FAKE_CAMERA = ["--use-fake-device-for-media-stream"]
CSP = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'"
SERVE = """
import sys
from pathlib import Path
from vitreous.runs import BUNDLED, Run
from vitreous.serving.server import serve_runs
if __name__ == "__main__":
    serve_runs([Run.open(Path(path)) for path in sys.argv[2:]], port=int(sys.argv[1]))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("page"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Give all tests skipped for want of a browser one place, so that the summary has one line and not one for each."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NO_BROWSER in report.longrepr[2]:
        report.longrepr = (__file__, None, NO_BROWSER)
    return report


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright")
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(NO_BROWSER)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *FAKE_CAMERA])
        yield browser
        browser.close()


# --- models: they ask for the browser, so that nothing is trained where there is none ---------------------------------


@pytest.fixture(scope="session")
def runs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A ViT and a CNN trained for a few seconds on scikit-learn's digits: accurate on most drawings."""
    from vitreous.training.loop import fit

    folder = tmp_path_factory.mktemp("runs")
    settings = {"vit": ["model.depth=2", "train.epochs=20"], "cnn": ["train.epochs=0.4"]}
    made = []
    for name, changes in settings.items():
        common = ["data.name=digits", "train.threads=1", "train.batch_size=64"]
        common += ["data.augment.shift=2", "data.augment.rotate=10", "data.augment.scale=0.15"]  # handwriting varies
        config = override(preset(name), [*changes, *common])
        made.append(fit(config, folder / f"digits-{name}", device="cpu"))
    return made


@pytest.fixture(scope="session")
def mixed_runs(browser: Browser, tmp_path_factory: pytest.TempPathFactory, randomise: Any) -> list[Run]:
    """Untrained models of digits, one of them of another image size and one of other classes; then of photographs."""
    tiny: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "zero_head": False}
    cnn = CNNConfig(conv_channels=(4, 8), hidden=16)
    models: dict[str, ModelConfig] = {
        "coarse": ViTConfig(depth=2, num_heads=2, **tiny),
        "fine": ViTConfig(patch_size=4, depth=3, num_heads=4, **tiny),
        "stem": ViTConfig(stem_channels=(4, 4), patch_size=1, depth=1, num_heads=2, **tiny),
        "padded": ViTConfig(patch_size=16, fit="pad", pool="mean", depth=1, num_heads=2, **tiny),
        "large": ViTConfig(image_size=(32, 40), patch_size=8, depth=1, num_heads=2, **tiny),
        "digits-cnn": cnn,
        "letters-cnn": cnn,
        "photos": ViTConfig(image_size=(32, 32), channels=3, patch_size=8, depth=2, num_heads=2, num_classes=3, **tiny),
        "wide": ViTConfig(image_size=(24, 40), patch_size=8, depth=1, num_heads=2, num_classes=3, **tiny),
        "photos-cnn": cnn.replace(image_size=(32, 32), channels=3, num_classes=3),
    }
    fits = {"photos": "crop", "photos-cnn": "crop", "wide": "letterbox"}
    folder, made = tmp_path_factory.mktemp("mixed"), []
    _make_photographs(folder / "data")
    for name, model in models.items():
        source = str(folder / "data") if name in fits else "digits"
        data = DataConfig(name=source, image_size=model.image_size, channels=model.channels, fit=fits.get(name))
        config = Config(name=name, model=model, data=data)
        dataset = load_dataset(config.data)
        if name == "letters-cnn":
            dataset = dataclasses.replace(dataset, class_names=tuple("abcdefghij"))
        made.append(Run.create(folder / name, config, dataset, Preprocessing.for_dataset(dataset)))
        made[-1].finish(randomise(build(model)), None)
    return made


def _make_photographs(folder: Path) -> None:
    """Write twelve images of three colours, of 40×50 pixels."""
    rng = np.random.default_rng(3)
    for name, color in {"red": (200, 60, 50), "green": (50, 170, 80), "blue": (40, 80, 190)}.items():
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.clip(rng.normal(color, 25, (40, 50, 3)), 0, 255).astype(np.uint8)
            pixels[8:20, 4 * i : 4 * i + 9] = 255
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


# --- the page, behind both engines ------------------------------------------------------------------------------------


class _Static(http.server.SimpleHTTPRequestHandler):
    """A static host with the content security policy that the page supports."""

    protocol_version = "HTTP/1.1"
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", CSP)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def static_folder(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vitreous.serving.static_page import export_page

    return export_page(runs, tmp_path_factory.mktemp("site") / "page").folder


@pytest.fixture(scope="session")
def static_site(static_folder: Path) -> Iterator[str]:
    """The page with its models as files: the browser engine."""
    with hosting(static_folder) as address:
        yield address


@pytest.fixture(scope="session")
def static_photos_site(mixed_runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a model of photographs alone."""
    from vitreous.serving.static_page import export_page

    photos = [run for run in mixed_runs if run.path.name == "photos"]
    with hosting(export_page(photos, tmp_path_factory.mktemp("site") / "page").folder) as address:
        yield address


@pytest.fixture(scope="session")
def tall_run(browser: Any, mixed_runs: list[Run], tmp_path_factory: pytest.TempPathFactory, randomise: Any) -> Run:
    """A model of three classes that takes colour images of 64×48 pixels."""
    tiny: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "zero_head": False, "depth": 1, "num_heads": 2}
    model = ViTConfig(image_size=(64, 48), channels=3, patch_size=16, num_classes=3, **tiny)
    source = str(mixed_runs[0].path.parent / "data")
    config = Config(name="tall", model=model, data=DataConfig(name=source, image_size=(64, 48), channels=3, fit="crop"))
    dataset = load_dataset(config.data)
    run = Run.create(tmp_path_factory.mktemp("tall") / "tall", config, dataset, Preprocessing.for_dataset(dataset))
    run.finish(randomise(build(model)), None)
    return run


@pytest.fixture(scope="session", params=["served", "static"])
def tall_site(request: pytest.FixtureRequest, tall_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from vitreous.serving.static_page import export_page

    folder = tmp_path_factory.mktemp("tall-site")
    if request.param == "served":
        with serving([tall_run], folder / "log.txt") as address:
            yield address
    else:
        with hosting(export_page([tall_run], folder / "page").folder) as address:
            yield address


@contextlib.contextmanager
def hosting(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Static, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def host() -> Callable[[Path], contextlib.AbstractContextManager[str]]:
    """Host any folder."""
    return hosting


@pytest.fixture(scope="session")
def served_site(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`vitreous serve` on loopback: the HTTP engine."""
    with serving(runs, tmp_path_factory.mktemp("serve") / "log.txt") as address:
        yield address


@pytest.fixture(scope="session")
def bundled_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page as everybody sees it first: of the bundled models."""
    bundled = [Run.open(BUNDLED / name) for name in ("vit", "cnn")]
    with serving(bundled, tmp_path_factory.mktemp("serve") / "log.txt") as address:
        yield address


@pytest.fixture(scope="session")
def mixed_site(mixed_runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Models of different patches, sizes and classes, served together."""
    with serving(mixed_runs, tmp_path_factory.mktemp("serve") / "log.txt") as address:
        yield address


@contextlib.contextmanager
def serving(runs: list[Run], log: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        command = [sys.executable, "-c", SERVE, str(port), *(str(run.path) for run in runs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        address = f"http://127.0.0.1:{port}/"
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(address + "readyz", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the server did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
                time.sleep(0.2)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- one tab ----------------------------------------------------------------------------------------------------------


@dataclass
class Tab:
    """One tab of the page, and the errors it reported."""

    page: Page
    site: str
    faults: list[str] = field(default_factory=list)

    def prediction(self, kind: str = "vit") -> str:
        return self.page.locator(f".prediction.{kind} .big").inner_text()

    def probabilities(self, kind: str = "vit") -> list[str]:
        return self.page.locator(f".bar.{kind} .value").all_inner_texts()

    def wait_until_idle(self, delay: int = 60) -> None:
        """Wait for the newest drawing's prediction, its slower maps and the written address."""
        self.page.wait_for_timeout(delay)  # some work starts a moment later: reading a file, a changed address
        self.page.locator("html[data-status=idle]").wait_for(state="attached")

    def draw(self, *strokes: list[tuple[float, float]], steps: int = 8) -> None:
        """Draw strokes with the mouse, given in fractions of the sheet."""
        sheet = self.page.locator("#pad").bounding_box()
        assert sheet is not None
        for stroke in strokes:
            places = [(sheet["x"] + x * sheet["width"], sheet["y"] + y * sheet["height"]) for x, y in stroke]
            self.page.mouse.move(*places[0])
            self.page.mouse.down()
            for place in places[1:]:
                self.page.mouse.move(*place, steps=steps)
            self.page.mouse.up()
        self.wait_until_idle()

    def state(self) -> dict[str, str]:
        fragment = self.page.url.partition("#")[2]
        return dict(part.split("=", 1) for part in fragment.split("&") if "=" in part)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Open the page; afterwards check for console errors, uncaught errors and requests to other hosts."""
    tabs: list[Tab] = []

    def opener(site: str, fragment: str = "", width: int = 1280, height: int = 900, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(20_000)
        tab = Tab(context.new_page(), site)
        own = (re.sub(r"^(https?://[^/]+).*", r"\1", site), "blob:", "data:")

        def on_console(message: Any) -> None:
            if message.type in ("error", "warning"):
                tab.faults.append(message.text)

        def on_request(request: Any) -> None:
            if not request.url.startswith(own):
                tab.faults.append(f"request to another host: {request.url}")

        tab.page.on("console", on_console)
        tab.page.on("pageerror", lambda error: tab.faults.append(f"uncaught: {error}"))
        tab.page.on("request", on_request)
        tabs.append(tab)
        tab.page.goto(site + fragment)
        tab.page.locator("#speed", has_text="ms").wait_for()
        tab.wait_until_idle()
        return tab

    yield opener
    for tab in tabs:
        tab.page.context.close()
    assert not [fault for tab in tabs for fault in tab.faults]


@pytest.fixture(params=["served", "static"])
def site(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_site")
