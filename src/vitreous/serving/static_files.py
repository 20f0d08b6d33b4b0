"""Files that are served from memory, compressed for clients that can read it, and revalidated by their checksum."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from starlette.responses import Response

from vitreous.serving.compression import LEAST_COMPRESSED, accepts_gzip, compressed


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    media_type: str

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def packed(self) -> bytes | None:
        """The content in gzip's format; None where that saves nothing."""
        if len(self.content) < LEAST_COMPRESSED:
            return None
        packed = compressed(self.content)
        return packed if len(packed) < len(self.content) else None

    def response(self, headers: dict[bytes, bytes], if_none_match: list[str]) -> Response:
        # each form has a tag of its own, as RFC 9110 (8.8.3) requires; all are cached, and revalidated each time
        body, etag, encoding = self.content, self.etag, {}
        if self.packed is not None and accepts_gzip(headers):
            body, etag, encoding = self.packed, f'{self.etag[:-1]}-gzip"', {"content-encoding": "gzip"}
        shared = {"etag": etag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if _matches(if_none_match, etag):
            return Response(status_code=304, headers=shared)
        return Response(body, media_type=self.media_type, headers={**shared, **encoding})


def _matches(if_none_match: list[str], etag: str) -> bool:
    """Compare weakly, as RFC 9110 (13.1.2) has it for If-None-Match: a list of tags, W/ or not, or `*`."""
    sent = ", ".join(if_none_match)
    return sent.strip() == "*" or etag in re.findall(r'"[^"]*"', sent)
