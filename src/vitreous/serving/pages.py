"""The page's files, read once when the server starts: an address is looked up among them, never on the disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from fastapi.responses import Response

from vitreous.serving.static_page import page_files

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> PageFile:
        return cls(content, _TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def response(self, seen: str | None) -> Response:
        headers = {"etag": self.etag, "cache-control": "no-cache"}  # kept, and asked about each time
        if seen == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def page_responses() -> dict[str, PageFile]:
    return {name: PageFile.of(path.read_bytes(), PurePosixPath(name).suffix) for name, path in page_files().items()}
