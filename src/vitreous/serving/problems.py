"""What a request gets when it does not get what it asked for: RFC 9457 problem+json, one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

JSON, PROBLEM, TEXT = b"application/json", b"application/problem+json", b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Problem(Exception):
    """Raised anywhere in a request's handling; becomes the answer."""

    def __init__(self, status: int, detail: str, headers: tuple[tuple[bytes, bytes], ...] = (), **more: Any):
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more

    def answer(self) -> Answer:
        body = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return Answer(self.status, orjson.dumps(body | {"detail": self.detail, **self.more}), PROBLEM, self.headers)


def busy(status: int, detail: str, retry_seconds: int) -> Problem:
    return Problem(status, detail, ((b"retry-after", str(retry_seconds).encode()),))


@dataclass(frozen=True)
class ImageProblem(Exception):
    """One image of a request that cannot be answered; its neighbours can."""

    name: str
    detail: str
    more: dict[str, Any] = field(default_factory=dict)
