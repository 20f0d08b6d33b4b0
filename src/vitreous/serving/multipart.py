"""multipart/form-data (RFC 7578) of a body that is already here whole and bounded: a few searches, no copies but one.

Why not a streaming parser: bodies are small and bounded (limits.py), and this costs a tenth of the time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitreous.serving.problems import Problem

LONGEST_HEAD = 4096  # bytes of one part's headers
LONGEST_BOUNDARY = 70  # RFC 2046
LONGEST_NAME = 120

_BOUNDARY = re.compile(rb'(?i)[;\s]boundary=(?:"([^"\r\n]{1,70})"|([^\s;",]{1,70}))')
_DISPOSITION = re.compile(rb"(?i)(?:^|\r\n)content-disposition:[ \t]*form-data[ \t]*;([^\r\n]*)")
_FIELD = re.compile(rb'(?i)(?:^|[;\s])name=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_FILE_NAME = re.compile(rb'(?i)(?:^|[;\s])filename=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


@dataclass(frozen=True)
class Part:
    field: str
    file_name: str | None
    data: bytes


def boundary_of(content_type: bytes) -> bytes:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise Problem(400, "the multipart body has no boundary of 1 to 70 characters in its Content-Type")
    return found[1] or found[2]


def parse_multipart(body: bytes, boundary: bytes, most_parts: int) -> list[Part]:
    """The parts in order; a body that is cut short, malformed or of too many parts is a Problem."""
    opening, dashes = b"--" + boundary, b"\r\n--" + boundary
    if body.startswith(opening):
        at = len(opening)
    else:  # a preamble is allowed and ignored
        start = body.find(dashes)
        if start < 0:
            raise Problem(400, "the multipart body does not hold the boundary that its Content-Type names")
        at = start + len(dashes)
    parts: list[Part] = []
    while body[at : at + 2] != b"--":
        head_end = body.find(b"\r\n\r\n", at, at + LONGEST_HEAD)
        if body[at : at + 2] != b"\r\n" or head_end < 0:
            raise Problem(400, "a part of the multipart body has no headers, or more than 4096 bytes of them")
        end = body.find(dashes, head_end + 2)
        if end < 0:
            raise Problem(400, "the multipart body is cut short: its closing boundary is missing")
        if len(parts) == most_parts:
            raise Problem(422, f"the request holds more than {most_parts} parts; send fewer images at a time")
        parts.append(_part(body[at:head_end], body[head_end + 4 : end]))
        at = end + len(dashes)
    return parts


def _part(head: bytes, data: bytes) -> Part:
    disposition = _DISPOSITION.search(head)
    named = _FIELD.search(disposition[1]) if disposition else None
    if disposition is None or named is None:
        raise Problem(400, "a part of the multipart body has no name in its Content-Disposition")
    file = _FILE_NAME.search(disposition[1])
    return Part(_text(named), _text(file) if file else None, data)


def _text(found: re.Match[bytes]) -> str:
    raw = found[1] if found[1] is not None else found[2]
    text = raw.decode("utf-8", "replace")[:LONGEST_NAME]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
