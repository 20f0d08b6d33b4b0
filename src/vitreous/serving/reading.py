"""From a request's body to images ready for a model: bounded in bytes, pixels, count and time at every step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vitreous.data import images
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.serving.contract import PredictRequest
from vitreous.serving.limits import Limits
from vitreous.serving.multipart import boundary_of, parse_multipart
from vitreous.serving.responses import ImageProblem, Problem, busy

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
        self._check_head(headers)
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
                    self._check_size(size)
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

    def _check_head(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Problem(415, "compressed bodies are not accepted; send the body uncompressed")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit():
            raise Problem(400, "Content-Length is not a number")
        self._check_size(int(declared) if len(declared) < 20 else 10**20)

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise Problem(413, f"the body is larger than the limit of {self._limits.body_bytes} bytes")
        if self.total_bytes > self._limits.bodies_bytes:
            raise busy(503, "the server has no memory left for another body; try again")


def parse_predict(body: bytes, content_type: bytes, query: bytes, limits: Limits) -> tuple[str | None, list[Upload]]:
    """Return the requested model id (None: the first model) and the images of a multipart or JSON body."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"multipart/form-data":
        model, uploads = _from_multipart(body, content_type, limits)
    elif media_type == b"application/json":
        model, uploads = _from_json(body)
    else:
        raise Problem(415, "send multipart/form-data with files as `image`, or application/json with `pixels`")
    if not uploads:
        raise Problem(422, "the request has no image: send files in the field `image`, or JSON with `pixels`")
    if len(uploads) > limits.most_images:
        raise Problem(422, f"the request has {len(uploads)} images; send at most {limits.most_images} at a time")
    if query:
        model = urllib.parse.parse_qs(query.decode("latin-1")).get("model", [model])[0]
    return model, uploads


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


def _from_json(body: bytes) -> tuple[str | None, list[Upload]]:
    request = PredictRequest.parse(body)
    levels = _levels(request.pixels)
    if levels.ndim == 2:
        levels = levels[None]
    return request.model, [Upload(f"image {number}", one) for number, one in enumerate(levels, start=1)]


def _levels(pixels: Any) -> np.ndarray:
    """Return nested lists of numbers from 0 to 255 as uint8 (H, W), (B, H, W) or (B, H, W, 3)."""
    levels: np.ndarray = np.empty(0)
    if isinstance(pixels, list):
        with contextlib.suppress(ValueError, TypeError, OverflowError):  # rows of unequal length, or not numbers
            levels = np.asarray(pixels)
    has_shape = levels.ndim in (2, 3) or (levels.ndim == 4 and levels.shape[3] == 3)
    if not has_shape or levels.size == 0 or levels.dtype.kind not in "iuf" or levels.min() < 0 or levels.max() > 255:
        raise Problem(422, f"`pixels` must be {PredictRequest.model_fields['pixels'].description}")
    return np.rint(levels).astype(np.uint8)


def is_small(uploads: list[Upload], body: bytes, limits: Limits) -> bool:
    """Whether decoding takes less time than waking a thread."""
    if len(body) > limits.small_body_bytes or len(uploads) > 4:
        return False
    return all(upload.declared_pixels <= limits.small_pixels for upload in uploads)


def prepare(upload: Upload, preprocessing: Preprocessing, limits: Limits) -> PreparedImage | ImageProblem:
    name, pixels = upload.name, upload.declared_pixels
    if pixels > limits.most_pixels:
        return ImageProblem(name, f"{name} declares {pixels} pixels; the limit is {limits.most_pixels}")
    try:
        with _DECODING_HEAVY if pixels > limits.heavy_pixels else contextlib.nullcontext():
            prepared = preprocessing.prepare(upload.content, name=name)
    except DataError as error:
        return ImageProblem(name, str(error))
    return PreparedImage(name, prepared.pixels, prepared.notes)
