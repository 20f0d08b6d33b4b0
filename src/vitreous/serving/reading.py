"""From a request's body to images ready for a model: bounded in bytes, pixels, count and time at every step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from vitreous.data import images
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.serving.contract import PredictRequest
from vitreous.serving.limits import Limits
from vitreous.serving.multipart import boundary_of, parse_multipart
from vitreous.serving.responses import JSON, ImageProblem, Problem, busy

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
_DECODING_HEAVY = threading.Lock()


@dataclass(frozen=True)
class Upload:
    """One image as it was sent: the bytes of a file, or an array of grey or colour levels."""

    name: str
    content: bytes | np.ndarray

    @cached_property
    def declared_pixels(self) -> int:
        """As the header declares them; 0 for what is not an image, which decoding then rejects."""
        if isinstance(self.content, np.ndarray):
            height, width = self.content.shape[:2]
        else:
            height, width = images.declared_extent(self.content)
        return width * height


@dataclass(frozen=True)
class PreparedImage:
    name: str
    pixels: np.ndarray  # uint8 (C, height, width)
    notes: tuple[str, ...]


class BodyReader:
    """Reads bodies within one budget for all of them, which counts the bytes received, not the bytes declared."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self.total_bytes = 0

    async def read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return a complete body; it counts towards the budget until it is given to `release`."""
        most = self._check_head(headers)
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "the client closed the connection before its body was complete")
                    chunks.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    size += len(chunks[-1])
                    self.total_bytes += len(chunks[-1])
                    self._check_size(size, most)
        except BaseException as error:
            self.total_bytes -= size
            if isinstance(error, TimeoutError):
                detail = f"the body did not arrive within {self._limits.body_seconds:g} s"
                # close the connection, too: nothing else is read from a client this slow
                raise Problem(408, detail, ((b"connection", b"close"),)) from None
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self, body: bytes) -> None:
        self.total_bytes -= len(body)

    def _check_head(self, headers: dict[bytes, bytes]) -> int:
        """Return how many bytes the body may have."""
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Problem(415, "compressed bodies are not accepted; send the body uncompressed")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit():
            raise Problem(400, "Content-Length is not a number")
        most = self._limits.body_bytes
        if _media_type(headers.get(b"content-type", b"")) == JSON:
            most = min(most, self._limits.json_bytes)
        self._check_size(int(declared) if len(declared) < 20 else 10**20, most)
        return most

    def _check_size(self, size: int, most: int) -> None:
        if size > most:
            files = "" if most == self._limits.body_bytes else " for JSON; send images as files to /v1/predict"
            raise Problem(413, f"the body is larger than the limit of {most} bytes{files}")
        if self.total_bytes > self._limits.bodies_bytes:
            raise busy(503, "the server has no memory left for another body; try again")


def parse_predict(body: bytes, content_type: bytes, query: bytes, limits: Limits) -> tuple[str | None, list[Upload]]:
    """Return the requested model id (None: the first model) and the images of a multipart or JSON body."""
    media_type = _media_type(content_type)
    if media_type == b"multipart/form-data":
        model, uploads = _from_multipart(body, content_type, limits)
    elif media_type == JSON:
        model, uploads = _from_json(body, limits)
    else:
        raise Problem(415, "send multipart/form-data with files as `image`, or application/json with `pixels`")
    if not uploads:
        raise Problem(422, "the request has no image: send files in the field `image`, or JSON with `pixels`")
    _check_count(len(uploads), limits)
    if query:
        model = urllib.parse.parse_qs(query.decode("latin-1")).get("model", [model])[0]
    return model, uploads


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def _check_count(images: int, limits: Limits) -> None:
    if images > limits.most_images:
        raise Problem(422, f"the request has {images} images; send at most {limits.most_images} at a time")


def _from_multipart(body: bytes, content_type: bytes, limits: Limits) -> tuple[str | None, list[Upload]]:
    model: str | None = None
    uploads: list[Upload] = []
    for part in parse_multipart(body, boundary_of(content_type), limits.most_images + 1):
        if part.field == "image":
            uploads.append(Upload(part.file_name or f"image {len(uploads) + 1}", part.data))
        elif part.field == "model":
            model = part.data.decode("utf-8", "replace")
        else:
            raise Problem(422, f"unknown field {part.field!r}; send files as `image` and, optionally, `model`")
    return model, uploads


def _from_json(body: bytes, limits: Limits) -> tuple[str | None, list[Upload]]:
    request = PredictRequest.parse(body)
    levels = _levels(request.pixels, limits)
    if levels.ndim == 2:
        levels = levels[None]
    return request.model, [Upload(f"image {number}", one) for number, one in enumerate(levels, start=1)]


def _levels(pixels: Any, limits: Limits) -> np.ndarray:
    """Return nested lists of numbers from 0 to 255 as uint8 (H, W), (B, H, W) or (B, H, W, 3)."""
    shape, first = [], pixels
    while isinstance(first, list) and first:
        shape.append(len(first))
        first = first[0]
    if len(shape) > 2:
        _check_count(shape[0], limits)
    has_shape = len(shape) in (2, 3) or (len(shape) == 4 and shape[3] == 3)
    if has_shape and max(shape) > images.MAX_SIDE:
        raise Problem(422, f"`pixels` has {max(shape)} rows or columns; the limit is {images.MAX_SIDE}")
    flat = pixels if has_shape else []
    for size in shape[1:]:
        is_regular = set(map(type, flat)) == {list} and set(map(len, flat)) == {size}
        flat = list(chain.from_iterable(flat)) if is_regular else []
    # numpy itself would give every number the space of the longest text among them
    levels = np.array(flat, np.float64) if set(map(type, flat)) <= {int, float} else np.empty(0)
    if levels.size == 0 or levels.min() < 0 or levels.max() > 255:
        raise Problem(422, f"`pixels` must be {PredictRequest.model_fields['pixels'].description}")
    return np.rint(levels).astype(np.uint8).reshape(shape)


def is_small(uploads: list[Upload], limits: Limits) -> bool:
    """Whether decoding takes less time than waking a thread."""
    return len(uploads) <= 4 and sum(upload.declared_pixels for upload in uploads) <= limits.small_pixels


def prepare(
    upload: Upload, preprocessing: Preprocessing, limits: Limits, check: Callable[[], None]
) -> PreparedImage | ImageProblem:
    """Prepare one image, after `check`, which raises an exception when nobody waits for it any more."""
    name, pixels = upload.name, upload.declared_pixels
    if pixels > limits.most_pixels:
        return ImageProblem(name, f"{name} declares {pixels} pixels; the limit is {limits.most_pixels}")
    try:
        with _DECODING_HEAVY if pixels > limits.heavy_pixels else contextlib.nullcontext():
            check()
            prepared = preprocessing.prepare(upload.content, name=name)
    except DataError as error:
        return ImageProblem(name, str(error))
    return PreparedImage(name, prepared.pixels, prepared.notes)
