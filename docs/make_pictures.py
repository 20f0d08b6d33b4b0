"""Take the README's pictures: the page with the bundled models, and the report of `vitreous look`.

python docs/make_pictures.py      # needs playwright and chromium; writes docs/pictures/*.png
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
VITREOUS = [sys.executable, "-m", "vitreous"]


def save(page: Page, name: str, height: int) -> None:
    """Write the top of the page as a PNG of 256 colours: a third of the bytes, and no difference to the eye."""
    path = PICTURES / name
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1440, "height": height})
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder) / "look"
        subprocess.run([*VITREOUS, "look", "--test", "4", "-o", str(report)], check=True)
        server = subprocess.Popen([*VITREOUS, "serve", "--port", str(port)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            while "serving on" not in server.stdout.readline():
                assert server.poll() is None, "the server ended"
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("html[data-status=idle]", timeout=120_000)
            page.wait_for_timeout(1000)  # the bars glide
            save(page, "page.png", 900)
            page.goto(next(report.glob("*.html")).as_uri())
            save(page, "look.png", 980)
            browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
