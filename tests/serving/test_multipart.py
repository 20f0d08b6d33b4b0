"""The multipart parser returns every part byte for byte; a malformed body is a Problem, never a crash."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.serving.multipart import boundary_of, parse_multipart
from vitreous.serving.responses import Problem

BOUNDARY = b"xYz"


def encode(parts: list[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for field, file_name, data in parts:
        name = f'; filename="{file_name}"' if file_name is not None else ""
        body += b"--xYz\r\n" + f'Content-Disposition: form-data; name="{field}"{name}\r\n'.encode()
        body += b"Content-Type: image/png\r\n\r\n" + data + b"\r\n"
    return body + b"--xYz--\r\n"


@given(st.lists(st.binary(max_size=300).filter(lambda data: b"\r\n--xYz" not in data), max_size=6))
@settings(max_examples=100)
def test_round_trip(contents: list[bytes]) -> None:
    body = encode([("image", f"{number}.png", data) for number, data in enumerate(contents)])
    parts = parse_multipart(body, BOUNDARY, 10)
    assert [(part.field, part.data) for part in parts] == [("image", data) for data in contents]


@given(
    st.binary(max_size=400) | st.binary(max_size=100).map(lambda noise: encode([("image", "a", noise)])[:-7] + noise)
)
@settings(max_examples=200)
def test_a_malformed_body_is_a_problem(body: bytes) -> None:
    with contextlib.suppress(Problem):
        parse_multipart(body, BOUNDARY, 10)


def test_names_are_cleaned() -> None:
    body = encode([("image", "../../etc/\x07pass\u202ewd", b"x")])
    (part,) = parse_multipart(body, BOUNDARY, 10)
    assert part.file_name == "../../etc/?pass?wd"  # only ever shown, never opened
    long = encode([("image", "a" * 3000, b"x")])
    assert len(parse_multipart(long, BOUNDARY, 10)[0].file_name or "") == 120


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'multipart/form-data; boundary="a b"; charset=utf-8', b"a b"),
        (b"multipart/form-data;BOUNDARY=--x-1", b"--x-1"),
    ],
)
def test_boundary(content_type: bytes, found: bytes) -> None:
    assert boundary_of(content_type) == found


@pytest.mark.parametrize("content_type", [b"multipart/form-data", b"multipart/form-data; boundary="])
def test_no_boundary(content_type: bytes) -> None:
    with pytest.raises(Problem, match="boundary"):
        boundary_of(content_type)


def test_too_many_parts_and_too_long_a_head() -> None:
    with pytest.raises(Problem, match="more than 2 parts"):
        parse_multipart(encode([("image", "a", b"")] * 3), BOUNDARY, 2)
    with pytest.raises(Problem, match="4096"):
        parse_multipart(encode([("image", "a" * 5000, b"")]), BOUNDARY, 2)
    with pytest.raises(Problem, match="truncated"):
        parse_multipart(encode([("image", "a", b"data")])[:-12], BOUNDARY, 2)
