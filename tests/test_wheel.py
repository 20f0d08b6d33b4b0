"""`python -m build` makes a wheel that installs into an empty environment and serves the bundled models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git tracks, so that nothing which only lies here gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if name.startswith(("src/", "README", "LICENSE", "pyproject")) and (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(folder / "source"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_everything_but_python_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for ending in ("bundled/vit/model.safetensors", "studies/order.toml", "studies/study.html.jinja", "py.typed",
                   "reports/vitreous.css", "serving/page/index.html", "conformance/paper.toml"):  # fmt: skip
        assert any(name.endswith(ending) for name in names), ending
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone; what it depends on is read from this one, to download nothing."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        wheel,
    ]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    own = Path(subprocess.run([sys.executable, "-c", "import torch; print(torch.__path__[0])"], capture_output=True,
                              text=True, check=True).stdout.strip()).parent  # fmt: skip
    (site / "dependencies.pth").write_text(f"{own}\n")  # behind the wheel's own files on the path
    return python


def test_it_runs_from_an_empty_folder(python, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    program = "import vitreous; print(vitreous.__file__); print(vitreous.load('bundled:vit').config.dim)"
    done = subprocess.run([python, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, dim = done.stdout.split()
    assert Path(where).is_relative_to(python.parents[1]), "the wheel's own copy, not this repository's"
    assert dim == "96"
    listing = [python, "-P", "-m", "vitreous", "study", "--list", "--json"]
    done = subprocess.run(listing, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "order" in [study["name"] for study in json.loads(done.stdout)], done.stderr


def test_it_serves_the_bundled_models(python, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    server = subprocess.Popen(
        [python, "-P", "-m", "vitreous", "serve", "--port", "0"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        address = _address(server)
        with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as response:
            listed = json.load(response)
        assert "vit" in json.dumps(listed)
        with urllib.request.urlopen(address, timeout=60) as response:
            assert "vitreous" in response.read().decode()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        server.stdout.close()


def _address(server: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        line = server.stdout.readline()
        assert line, f"the server ended with code {server.poll()}"
        for word in line.split():
            if word.startswith("http://127.0.0.1"):
                return word.rstrip("/.,;")
    raise AssertionError("no address within three minutes")
