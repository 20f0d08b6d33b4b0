"""Starting a server: what it imports, where its models come from, what it prints and when."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from vitreous.config import ArticleViTConfig, CNNConfig
from vitreous.errors import RunError
from vitreous.export.graph import describe
from vitreous.models import build
from vitreous.runs import BUNDLED, Run
from vitreous.serving import models, server
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics

# A server in one process: first what the parent does, then a worker that predicts a drawn digit and shows the page.
_START = """
import io, sys
import numpy as np
from PIL import Image
from starlette.testclient import TestClient
from vitreous.serving import server
loaders = []
server._run_granian = lambda loader, *settings: loaders.append(loader)
server.serve_runs(port=0)
drawn = np.full((140, 140, 3), 255, np.uint8)
drawn[20:120, 60:80] = 0
stream = io.BytesIO()
Image.fromarray(drawn).save(stream, "PNG")
with TestClient(loaders[0](), base_url="http://127.0.0.1") as client:
    for path in ("/readyz", "/", "/v1/models", "/v1/samples", "/docs", "/metrics"):
        assert client.get(path).status_code == 200, path
    for model in ("vit", "cnn"):
        predicted = client.post(f"/v1/predict?model={model}", files={"image": stream.getvalue()})
        assert predicted.json()["predictions"][0]["label"] == "1", predicted.text
    wants = ["probabilities", "attention", "lens", "qkv", "rollout", "patch_removal"]  # all but relevance
    pixels = client.get("/v1/samples").json()["samples"][0]["pixels"]
    assert client.post("/v1/look", json={"pixels": pixels, "want": wants}).status_code == 200
heavy = {"torch", "sklearn", "onnx", "matplotlib", "scipy"} & {name.partition(".")[0] for name in sys.modules}
assert not heavy, heavy
if sys.platform == "linux":  # in kB; rusage would count the memory of the process that started this one
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    assert int(peak.split()[1]) < 300_000, peak
"""


def test_a_bundled_model_is_served_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch takes seconds of CPU time and 200 MB; with an empty cache, nothing is exported either."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache").exists()


def test_an_export_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is not in the cache is exported in a child process; its error is raised in this one."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    shutil.copy(BUNDLED / "vit" / "config.json", tmp_path / "mine")
    with pytest.raises(RunError, match=r"is missing model\.safetensors"):
        server._export_missing([Run.open(tmp_path / "mine")])
    assert "exporting mine to ONNX, the first time only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "printed"),
    [
        ("127.0.0.1", "serving on http://127.0.0.1:8123/ (the API: http://127.0.0.1:8123/docs);"),
        ("::1", "serving on http://[::1]:8123/ (the API: http://[::1]:8123/docs);"),
        (
            "0.0.0.0",
            "serving on http://127.0.0.1:8123/ (the API: http://127.0.0.1:8123/docs; from other machines: http://",
        ),
        ("::", "serving on http://[::1]:8123/ (the API: http://[::1]:8123/docs; from other machines: http://"),
        ("example.org", "serving on http://example.org:8123/ (the API: http://example.org:8123/docs);"),
    ],
)
def test_the_printed_address_can_be_opened(
    host: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = iter([False, False, True])
    monkeypatch.setattr(server, "_is_ready", lambda *_: next(tries))
    server._announce(host, 8123, threading.Event())
    assert capsys.readouterr().out.startswith(printed)
    assert next(tries, None) is None  # it was printed when the server was ready, not before


def test_a_server_that_stops_before_it_is_ready_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = threading.Event()
    stopped.set()
    server._announce("127.0.0.1", server._resolve("127.0.0.1", 0)[1], stopped)  # nothing listens there
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("host", "asked", "workers"), [("LocalHost", None, 1), ("0.0.0.0", None, 2), ("127.0.0.1", 3, 3), ("0.0.0.0", 1, 1)]
)
def test_one_worker_on_loopback(
    runs: list[Run], host: str, asked: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(server, "_run_granian", lambda loader, *settings: started.extend(settings))
    monkeypatch.setattr(server, "available_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # and restored after the test
    server.serve_runs(runs, host=host, port=0, no_auth=True, workers=asked)
    assert started[0] == ("127.0.0.1" if host == "LocalHost" else host)  # granian takes no names
    assert started[1] > 0  # the port that was free
    assert started[2] == workers
    assert os.environ["OMP_NUM_THREADS"] == "1"  # which the workers inherit


class FastSession:
    """In place of a session of ONNX Runtime, whose graph takes seconds to export."""

    def __init__(self, metadata: dict[str, Any]):
        self.custom_metadata_map = {key: json.dumps(value) for key, value in metadata.items()}

    def get_modelmeta(self) -> FastSession:
        return self

    def get_outputs(self) -> list[Any]:
        return []

    def run(self, *_: Any) -> None:
        pass


def test_the_articles_vit_gets_one_image_at_a_time(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention mixes the images of a batch, so a batch would change the predictions."""
    served = []
    for config in (ArticleViTConfig(dim=16), CNNConfig(conv_channels=(4, 8), hidden=16)):
        record = runs[0].record
        served.append(Run(runs[0].path, record.replace(config=record.config.replace(model=config))))
    sessions = iter([FastSession(describe(run, build(run.config.model), {})) for run in served])
    monkeypatch.setattr(models, "onnx_for_serving", lambda run, kind: b"")
    monkeypatch.setattr(models, "open_session", lambda graph: next(sessions))
    loaded = models.load_models(served, Limits(batch_images=16), Metrics(), show_paths=False)
    assert [model.engine.batch_images for model in loaded.values()] == [1, 16]
