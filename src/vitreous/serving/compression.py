"""Compressed bodies: gzip, which every browser and HTTP library reads, from Python's own library."""

from __future__ import annotations

import gzip

LEAST_COMPRESSED = 1024  # bytes: below it, headers outweigh what compression saves
GZIP: tuple[tuple[bytes, bytes], ...] = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
VARY: tuple[tuple[bytes, bytes], ...] = ((b"vary", b"accept-encoding"),)


def compressed(content: bytes, level: int = 9) -> bytes:
    """Return the content in gzip's format, the same bytes each time."""
    return gzip.compress(content, level, mtime=0)


def accepts_gzip(headers: dict[bytes, bytes]) -> bool:
    """Return whether a request's Accept-Encoding allows gzip (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in headers.get(b"accept-encoding", b"").decode("latin-1").split(","):
        coding, _, parameter = part.partition(";")
        name, _, weight = parameter.strip().partition("=")
        try:
            weights[coding.strip().lower()] = float(weight) if name.strip().lower() == "q" else 1.0
        except ValueError:  # not a number: nothing is compressed for it
            weights[coding.strip().lower()] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0
