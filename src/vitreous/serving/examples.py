"""Example requests for /docs and the OpenAPI document, with the responses that this server's own models give.

Nothing here is written by hand but the requests: each is handled by the service, as if a client had sent it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from PIL import Image

from vitreous.export.catalog import BUNDLED_SAMPLES, BUNDLED_SHAPE
from vitreous.serving.models import ServedModel, input_shape
from vitreous.serving.reading import Message
from vitreous.serving.responses import JSON, ApiResponse
from vitreous.serving.service import Service

_SHOWN_LABEL = "7"
_FORM = b"multipart/form-data; boundary=example"


@dataclass(frozen=True)
class Example:
    request: dict[str, Any] | None  # as JSON; None: a GET, or files
    response: Any


Operation = tuple[str, str]  # path, method


def picture_for(model: ServedModel) -> np.ndarray:
    """Return the picture of the examples, uint8 (H, W): a bundled digit, or a gradient for a model of other images."""
    if model.run.preprocessing.resize == "mnist":
        samples = json.loads(BUNDLED_SAMPLES.read_text(encoding="utf-8"))["samples"]
        chosen = next(sample for sample in samples if sample["label"] == _SHOWN_LABEL)
        return np.frombuffer(base64.b64decode(chosen["pixels"]), np.uint8).reshape(BUNDLED_SHAPE[1:])
    return np.add.outer(np.arange(8) * 16, np.arange(8) * 16).astype(np.uint8)


def encoded(picture: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


async def run_examples(service: Service) -> dict[Operation, Example]:
    """Return an example of each operation that has more to show than a status."""
    model = service.find(None)
    picture = picture_for(model)
    boundary = _FORM.partition(b"=")[2]
    head = b'--%b\r\nContent-Disposition: form-data; name="image"; filename="example.png"\r\n\r\n' % boundary
    file = head + encoded(picture) + b"\r\n--%b--\r\n" % boundary
    predicted = await _sent(lambda headers, receive: service.predict(headers, b"", receive), file, _FORM)
    look = _look_request(model, picture)
    looked = await _sent(service.look, orjson.dumps(look), JSON)
    return {
        ("/v1/predict", "post"): Example(None, predicted),
        ("/v1/look", "post"): Example(look, looked),
        ("/v1/models", "get"): Example(None, orjson.loads(service.models_json)),
        ("/v1/samples", "get"): Example(None, orjson.loads(await service.samples(None))),
        ("/healthz", "get"): Example(None, {"status": "alive"}),
        ("/readyz", "get"): Example(None, orjson.loads(service.readiness())),
    }


def _look_request(model: ServedModel, picture: np.ndarray) -> dict[str, Any]:
    channels, height, width = input_shape(model.run)
    resized = np.asarray(Image.fromarray(picture).resize((width, height)))
    pixels = np.broadcast_to(resized, (channels, height, width))
    want = ["probabilities", "novelty", "rollout"] if model.vit is not None else ["probabilities", "novelty"]
    return {"model": model.id, "pixels": base64.b64encode(pixels.tobytes()).decode(), "want": want}


Handler = Callable[[dict[bytes, bytes], Any], Awaitable[ApiResponse]]


async def _sent(handle: Handler, body: bytes, content_type: bytes) -> Any:
    """Let the service handle a body as if it had arrived over HTTP."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # the client neither sends more nor leaves
        return messages.pop()

    headers = {b"content-type": content_type, b"content-length": str(len(body)).encode()}
    return orjson.loads((await handle(headers, receive)).body)


# --- in few lines ----------------------------------------------------------------------------------------------------

_MOST_ITEMS, _MOST_CHARACTERS, _MOST_KEYS = 4, 48, 20
_MORE = "…"


def shortened(value: Any) -> Any:
    """Return a JSON value with long lists, texts and objects truncated, which an ellipsis shows."""
    if isinstance(value, dict):
        items = list(value.items())
        kept = {key: shortened(item) for key, item in items[:_MOST_KEYS]}
        return kept | ({_MORE: _MORE} if len(items) > _MOST_KEYS else {})
    if isinstance(value, list):
        return [shortened(item) for item in value[:_MOST_ITEMS]] + ([_MORE] if len(value) > _MOST_ITEMS else [])
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return value[:_MOST_CHARACTERS] + _MORE
    return value


def as_text(value: Any, indent: int = 0) -> str:
    """Return a shortened JSON value as text: lists of plain values in one line."""
    space = " " * (indent + 2)
    if isinstance(value, dict) and value:
        lines = [f"{space}{_plain(key)}: {as_text(item, indent + 2)}" for key, item in value.items() if key != _MORE]
        lines += [f"{space}{_MORE}"] * (_MORE in value)
        return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(space + as_text(item, indent + 2) for item in value) + f"\n{' ' * indent}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return _plain(value)


def _plain(value: Any) -> str:
    return _MORE if value == _MORE else json.dumps(value, ensure_ascii=False)
