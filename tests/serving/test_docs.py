"""/docs and /openapi.json have examples, and their responses are what the models give."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from vitreous.runs import Run
from vitreous.serving.examples import as_text, run_examples, shortened
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import load_models
from vitreous.serving.service import Service

COMMANDS = re.compile(r'<pre class="command">(.*?)</pre>\s*<pre>(.*?)</pre>', re.DOTALL)


def test_examples_are_the_responses_of_this_server(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    picture = client.get("/example.png")
    assert picture.headers["content-type"] == "image/png"
    example = paths["/v1/predict"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
    assert example == client.post("/v1/predict", files={"image": ("example.png", picture.content)}).json()
    look = paths["/v1/look"]["post"]
    request = look["requestBody"]["content"]["application/json"]["example"]
    found = client.post("/v1/look", json=request)
    assert found.status_code == 200
    assert look["responses"]["200"]["content"]["application/json"]["example"] == found.json()
    assert {"probabilities", "rollout"} <= found.json().keys()
    for path in ("/v1/models", "/healthz", "/readyz"):
        example = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["example"]
        assert example == client.get(path).json()
    assert "application/x-safetensors" in look["responses"]["200"]["content"]


def test_the_page_shows_commands_and_their_output(client: TestClient) -> None:
    page = client.get("/docs").text
    shown = {html.unescape(command): html.unescape(output) for command, output in COMMANDS.findall(page)}
    assert len(shown) == 6
    predicted = next(output for command, output in shown.items() if "-F image=@example.png" in command)
    picture = client.get("/example.png").content
    expected = client.post("/v1/predict", files={"image": ("example.png", picture)}).json()
    assert predicted == as_text(shortened(expected))
    assert f'"label": "{expected["predictions"][0]["label"]}"' in predicted
    assert all("http://127.0.0.1:8000/" in command for command in shown)
    assert "safetensors" in page


def test_a_busy_server_shows_no_examples_and_tries_again(
    make_client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()
    with monkeypatch.context() as patch:
        patch.setattr(client.app.service._looking, "_most", 0)
        assert not COMMANDS.findall(client.get("/docs").text)
    assert COMMANDS.findall(client.get("/docs").text)


def test_shortened() -> None:
    value = {"a": list(range(9)), "b": "x" * 99, "c": {"d": [[1, 2], [3]]}, "e": None}
    text = as_text(shortened(value))
    assert '"a": [0, 1, 2, 3, …]' in text
    assert f'"b": "{"x" * 48}…"' in text
    assert '"d": [\n      [1, 2],\n      [3]\n    ]' in text
    assert as_text(shortened({str(i): i for i in range(30)})).endswith('"19": 19,\n  …\n}')


def test_the_bundled_model_recognises_its_example() -> None:
    """The picture is a seven, and the page says so."""

    async def examples() -> dict[Any, Any]:
        models = load_models([Run.open("bundled:vit")], Limits(), Metrics(), show_paths=False)
        return await run_examples(Service(models, Limits(), Metrics()))

    predicted = asyncio.run(examples())[("/v1/predict", "post")].response["predictions"][0]
    assert predicted["label"] == "7"
