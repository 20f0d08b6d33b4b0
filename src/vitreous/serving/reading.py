"""A request's body → images ready for a model: bounded in bytes, pixels, count and time at every step."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from vitreous.data import images
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.serving.limits import Limits
from vitreous.serving.multipart import boundary_of, parse_multipart
from vitreous.serving.problems import ImageProblem, Problem, busy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
LONGEST_MODEL_ID = 200
_HEAVY = threading.Lock()


@dataclass(frozen=True)
class Given:
    """One image as it was sent: a file's bytes, or an array of gray or colour levels."""

    name: str
    content: bytes | np.ndarray


@dataclass(frozen=True)
class Ready:
    name: str
    pixels: np.ndarray  # uint8 (C, height, width)
    notes: tuple[str, ...]


# --- the body ----------------------------------------------------------------------------------------------------


class BodyReader:
    """Reads bodies, within a budget for all of them together: of bytes that came, not of bytes that were promised."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self.held_bytes = 0

    async def read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """A whole body; it counts as held until `release` is told that it is done with."""
        self._check_head(headers)
        deadline = asyncio.get_running_loop().time() + self._limits.body_seconds
        parts: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await self._next(receive, deadline)
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(parts[-1])
                self.held_bytes += len(parts[-1])
                self._check_size(size)
        except BaseException:
            self.release(size)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self, size: int) -> None:
        self.held_bytes -= size

    def _check_head(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Problem(415, "compressed bodies are not taken; send it as it is")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit():
            raise Problem(400, "Content-Length is not a number")
        self._check_size(int(declared) if len(declared) < 20 else 10**20)

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise Problem(
                413, f"the body has more than {self._limits.body_bytes} bytes, which is the most that is taken"
            )
        if self.held_bytes > self._limits.bodies_bytes:
            raise busy(503, "the server holds as many bodies as it can; try again", self._limits.retry_seconds)

    async def _next(self, receive: Receive, deadline: float) -> MutableMapping[str, Any]:
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            # the connection is closed, too: what else it may send is not waited for
            raise Problem(
                408, f"the body did not arrive within {self._limits.body_seconds:g} s", ((b"connection", b"close"),)
            ) from None
        if message["type"] == "http.disconnect":
            raise Problem(400, "the client closed the connection before its body was whole")
        return message


# --- what the body holds -----------------------------------------------------------------------------------------


def parse_predict(body: bytes, content_type: bytes, query: bytes, limits: Limits) -> tuple[str | None, list[Given]]:
    """The model asked for (None: the first) and the images, from multipart or JSON."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        model, given = _from_multipart(body, content_type, limits)
    elif kind == b"application/json":
        model, given = _from_json(body)
    else:
        raise Problem(
            415, "send multipart/form-data with files in the field `image`, or application/json with `pixels`"
        )
    if not given:
        raise Problem(422, "there is no image in the request: send files in the field `image`, or JSON `pixels`")
    if len(given) > limits.most_images:
        raise Problem(422, f"the request holds {len(given)} images; at most {limits.most_images} are taken at a time")
    if query:
        asked = urllib.parse.parse_qs(query.decode("latin-1"), max_num_fields=20).get("model") if query else None
        model = asked[0] if asked else model
    return model, given


def _from_multipart(body: bytes, content_type: bytes, limits: Limits) -> tuple[str | None, list[Given]]:
    model: str | None = None
    given: list[Given] = []
    for part in parse_multipart(body, boundary_of(content_type), limits.most_images + 1):
        if part.field == "image":
            given.append(Given(part.file_name or f"image {len(given) + 1}", part.data))
        elif part.field == "model":
            model = part.data[:LONGEST_MODEL_ID].decode("utf-8", "replace")
        else:
            raise Problem(422, f"there is no field {part.field!r}; send files as `image` and, if you like, `model`")
    return model, given


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)  # refuses NaN, and nesting beyond 1024
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {str(error)[:120]}") from None
    if not isinstance(document, dict):
        raise Problem(422, "the body must be a JSON object")
    return document


def _from_json(body: bytes) -> tuple[str | None, list[Given]]:
    document = parse_object(body)
    unknown = [key for key in document if key not in ("pixels", "model")]
    if unknown:
        raise Problem(422, f"there is no field {str(unknown[0])[:60]!r}; `pixels` and `model` are known")
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise Problem(422, "`model` must be the id of a model, as /v1/models lists them")
    levels = _levels(document.get("pixels"))
    if levels.ndim == 2:
        levels = levels[None]
    return model, [Given(f"image {number}", one) for number, one in enumerate(levels, start=1)]


def _levels(pixels: Any) -> np.ndarray:
    """uint8 (H, W), (n, H, W) or (n, H, W, 3) of nested lists of whole numbers 0–255."""
    expected = "`pixels` must be numbers 0 to 255: rows × columns, images × rows × columns, or … × 3 for colour"
    if not isinstance(pixels, list):
        raise Problem(422, expected)
    try:
        levels = np.asarray(pixels)
    except (ValueError, TypeError, OverflowError):  # rows of unequal length, or something that is no number
        raise Problem(422, expected) from None
    shaped = levels.ndim in (2, 3) or (levels.ndim == 4 and levels.shape[3] == 3)
    if not shaped or levels.size == 0 or levels.dtype.kind not in "iuf" or levels.min() < 0 or levels.max() > 255:
        raise Problem(422, expected)
    return np.rint(levels).astype(np.uint8)


# --- images for the model ----------------------------------------------------------------------------------------


def is_small(given: list[Given], body_bytes: int, limits: Limits) -> bool:
    """Whether all of it is decoded faster than a thread is woken."""
    if body_bytes > limits.small_body_bytes or len(given) > 4:
        return False
    return all(_declared_pixels(one.content) <= limits.small_pixels for one in given)


def prepare_all(given: list[Given], preprocessing: Preprocessing, limits: Limits) -> list[Ready | ImageProblem]:
    return [_prepare(one, preprocessing, limits) for one in given]


def _prepare(one: Given, preprocessing: Preprocessing, limits: Limits) -> Ready | ImageProblem:
    pixels = _declared_pixels(one.content)
    if pixels > limits.most_pixels:
        return ImageProblem(one.name, f"{one.name} declares {pixels} pixels; at most {limits.most_pixels} are taken")
    try:
        with _HEAVY if pixels > limits.heavy_pixels else contextlib.nullcontext():
            prepared = preprocessing.prepare(one.content, name=one.name)
    except DataError as error:
        return ImageProblem(one.name, str(error))
    return Ready(one.name, prepared.pixels.numpy(), prepared.notes)


def _declared_pixels(content: bytes | np.ndarray) -> int:
    """By the header alone; what is no image counts as none, and is refused when it is decoded."""
    if isinstance(content, np.ndarray):
        return int(content.shape[0] * content.shape[1])
    try:
        _, width, height = images.declared_extent(content)
    except (struct.error, IndexError):
        return 0
    return width * height
