"""Responses of the API: JSON, or an RFC 9457 problem document whose detail is one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from vitreous.serving.compression import GZIP, LEAST_COMPRESSED, accepts_gzip, compressed

Headers = tuple[tuple[bytes, bytes], ...]
JSON, PROBLEM, TEXT = b"application/json", b"application/problem+json", b"text/plain; version=0.0.4; charset=utf-8"
TENSORS = b"application/x-safetensors"


class ApiResponse(Response):
    """A response with its headers as bytes: cheaper to build than with Starlette's own constructor."""

    def __init__(self, body: bytes, status_code: int = 200, content_type: bytes = JSON, headers: Headers = ()):
        self.body, self.status_code, self.background = body, status_code, None
        length = str(len(body)).encode()
        self.raw_headers = [
            (b"content-type", content_type), (b"content-length", length), (b"cache-control", b"no-store"), *headers
        ]  # fmt: skip


def compressible(
    body: bytes, request_headers: dict[bytes, bytes], content_type: bytes = JSON, level: int = 6
) -> ApiResponse:
    """Return a response that is compressed if it is worth it and the client can read it."""
    if len(body) >= LEAST_COMPRESSED and accepts_gzip(request_headers):
        return ApiResponse(compressed(body, level), content_type=content_type, headers=GZIP)
    return ApiResponse(body, content_type=content_type)


class Problem(Exception):
    """Raised anywhere while a request is handled; becomes its response."""

    def __init__(self, status: int, detail: str, headers: Headers = (), **more: Any):
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more

    def response(self) -> ApiResponse:
        document = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = orjson.dumps(document | {"detail": self.detail, **self.more})
        return ApiResponse(body, self.status, PROBLEM, self.headers)


def busy(status: int, detail: str) -> Problem:
    return Problem(status, detail, ((b"retry-after", b"1"),))  # seconds


@dataclass(frozen=True)
class ImageProblem:
    """One unreadable image of a request; the others are still predicted."""

    name: str
    detail: str
