"""Hostile HTTP requests, as functions that return their bytes, and the statuses that are right for them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from attacks.image_files import encode, striped_png

_BOUNDARY = b"attack"


def multipart(*files: bytes, field: bytes = b"image", name: bytes = b"d.png") -> bytes:
    head = b'Content-Disposition: form-data; name="' + field + b'"; filename="' + name + b'"\r\n\r\n'
    parts = [b"--" + _BOUNDARY + b"\r\n" + head + file + b"\r\n" for file in files]
    return b"".join(parts) + b"--" + _BOUNDARY + b"--\r\n"


_TENSORS = b"Accept: application/x-safetensors\r\nAccept-Encoding: gzip\r\n"
_URL_ENCODED = b"application/x-www-form-urlencoded"
FORM = b"multipart/form-data; boundary=" + _BOUNDARY
JSON = b"application/json"


def request(
    body: bytes = b"", *, path: bytes = b"/v1/predict", method: bytes = b"POST", kind: bytes = FORM,
    host: bytes | None = b"localhost", length: bytes | None = None, extra: bytes = b"",
) -> bytes:  # fmt: skip
    head = method + b" " + path + b" HTTP/1.1\r\n"
    if host is not None:
        head += b"Host: " + host + b"\r\n"
    if method == b"POST":
        head += b"Content-Type: " + kind + b"\r\n"
        head += b"Content-Length: " + (str(len(body)).encode() if length is None else length) + b"\r\n"
    return head + extra + b"\r\n" + body


def as_json(pixels: Any) -> bytes:
    return json.dumps({"pixels": pixels}).encode()


# --- hostile ones ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    raw: Callable[[], bytes]
    statuses: frozenset[int]  # 0: closed without a response


def _of(raw: Callable[[], bytes], *statuses: int) -> Attack:
    return Attack(raw, frozenset(statuses))


def bodies() -> dict[str, Attack]:
    row = b"0," * 3_999_999 + b"0"
    column = b"[0]," * 3_999_999 + b"[0]"
    return {
        "a PNG of 500,000×1": _of(lambda: request(multipart(striped_png(500_000, 1, "L"))), 200, 422),
        "a PNG of 1×500,000": _of(lambda: request(multipart(striped_png(1, 500_000, "L"))), 200, 422),
        "a PNG of 4,000,000×1": _of(lambda: request(multipart(striped_png(4_000_000, 1, "L"))), 200, 422),
        "a PNG of 50,000×50,000": _of(lambda: request(multipart(_huge_png())), 422),
        "4,000,000×1 pixels in JSON": _of(lambda: request(b'{"pixels": [[' + row + b"]]}", kind=JSON), 200, 413, 422),
        "1×4,000,000 pixels in JSON": _of(lambda: request(b'{"pixels": [' + column + b"]}", kind=JSON), 200, 413, 422),
        "2,000,000 images of one pixel": _of(
            lambda: request(b'{"pixels": [' + b"[[0]]," * 1_999_999 + b"[[0]]]}", kind=JSON), 413, 422
        ),
        "64 files": _of(lambda: request(multipart(*[digit_png()] * 64)), 200),
        "65 files": _of(lambda: request(multipart(*[digit_png()] * 65)), 422),
        "64 files of 2,000×2,000": _of(lambda: request(multipart(*[striped_png(2000, 2000, "L")] * 64)), 200, 422, 504),
        "10,000 fields": _of(lambda: request(multipart(*[b"x"] * 10_000)), 400, 422),
        "JSON nested 100,000 deep": _of(lambda: request(b'{"pixels": ' + b"[" * 100_000, kind=JSON), 400),
        "JSON nested 900 deep": _of(lambda: request(b'{"pixels": ' + b"[" * 900 + b"]" * 900 + b"}", kind=JSON), 422),
        "a number of 1,000,000 digits": _of(
            lambda: request(b'{"pixels": [[' + b"9" * 1_000_000 + b"]]}", kind=JSON), 400, 422
        ),
        "1e308 and -1e308": _of(lambda: request(as_json([[1e308, -1e308]]), kind=JSON), 422),
        "NaN": _of(lambda: request(b'{"pixels": [[NaN]]}', kind=JSON), 400),
        "rows of unequal length": _of(lambda: request(as_json([[1, 2], [3]]), kind=JSON), 422),
        "objects for numbers": _of(lambda: request(as_json([[{}]]), kind=JSON), 422),
        "strings for numbers": _of(lambda: request(as_json([["9"]]), kind=JSON), 422),
        "no images": _of(lambda: request(as_json([]), kind=JSON), 422),
        "a million unknown fields": _of(
            lambda: request(b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}", kind=JSON), 413, 422
        ),
        "not JSON": _of(lambda: request(b"\xff\xfe{", kind=JSON), 400),
        "an empty body": _of(lambda: request(b"", kind=JSON), 400),
        "an empty form": _of(lambda: request(b""), 400, 422),
        "a form without an end": _of(lambda: request(multipart(digit_png())[:-20]), 200, 400, 422),
        "a boundary of 10,000 bytes": _of(
            lambda: request(b"x", kind=b"multipart/form-data; boundary=" + b"b" * 10_000), 400, 422
        ),
        "no boundary": _of(lambda: request(multipart(digit_png()), kind=b"multipart/form-data"), 400, 415, 422),
        "a file name with paths and codes": _of(
            lambda: request(multipart(digit_png(), name=b"../../etc/pass\x1b[31mwd\x00")), 200, 400, 422
        ),
        "an unknown media type": _of(lambda: request(b"x", kind=b"text/xml"), 415),
        "look: everything at once": _of(
            lambda: request(b'{"pixels": [[0]], "want": ["relevance", "relevance"], "patch_mask": [1]}', kind=JSON,
                            path=b"/v1/look"), 200, 422
        ),
        "look, binary: pixels of another size": _of(
            lambda: request(b'{"pixels": "AAAA", "want": ["attention", "qkv"]}', path=b"/v1/look", kind=JSON,
                            extra=_TENSORS), 422
        ),
        "look, binary: not JSON": _of(
            lambda: request(b"\x00" * 4096, path=b"/v1/look", kind=JSON, extra=_TENSORS), 400
        ),
        "look, binary: a file in that format": _of(
            lambda: request(b"\xff" * 8 + b"{}", path=b"/v1/look", kind=b"application/x-safetensors", extra=_TENSORS),
            415,
        ),
        "look, binary: a mask of 1,000,000": _of(
            lambda: request(b'{"pixels": "", "token_mask": [' + b"1," * 999_999 + b"1]}", path=b"/v1/look", kind=JSON,
                            extra=_TENSORS), 413, 422
        ),
        "a sign-in form where none is needed": _of(lambda: request(b"token=x", path=b"/", kind=_URL_ENCODED), 405),
        "a sign-in form of 8 MB": _of(
            lambda: request(b"token=" + b"%41" * 2_666_666, path=b"/", kind=_URL_ENCODED), 0, 405, 413
        ),
        "a sign-in form to the API": _of(lambda: request(b"token=x", path=b"/v1/look", kind=_URL_ENCODED), 415),
        "look: a long list of wants": _of(
            lambda: request(b'{"pixels": [[0]], "want": [' + b'"lens",' * 1_000_000 + b'"lens"]}', path=b"/v1/look",
                            kind=JSON), 200, 413, 422
        ),
    }  # fmt: skip


def heads() -> dict[str, Attack]:
    good = multipart(digit_png())
    sites = {"cross-site": b"Sec-Fetch-Site: cross-site\r\n", "Origin of another site": b"Origin: http://evil.example\r\n",
             "Origin null": b"Origin: null\r\n", "Origin of another port": b"Origin: http://localhost:1\r\n",
             "Origin like ours": b"Origin: http://localhost.evil.example\r\n"}  # fmt: skip
    hosts = {"another host": b"evil.example", "a host that begins like ours": b"localhost.evil.example",
             "a host with a user": b"localhost@evil.example", "an empty host": b"", "a numeric host": b"2130706433",
             "a host of 5,000 bytes": b"a" * 5000, "a host that is not ASCII": b"\xff\xfe"}  # fmt: skip
    refused = {name: _of(partial(request, good, extra=extra), 403, 421) for name, extra in sites.items()}
    refused |= {name: _of(partial(request, good, host=host), 0, 400, 421) for name, host in hosts.items()}
    paths = [b"/../../../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"//etc/passwd", b"/..\\..\\x", b"/%00",
             b"/page/../../config.json", b"/" + b"a" * 20_000, b"/\xff", b"*"]  # fmt: skip
    refused |= {
        f"the path {path[:40]!r}": _of(partial(request, path=path, method=b"GET"), 0, 400, 404, 405, 414, 421, 431)
        for path in paths
    }  # fmt: skip
    methods = (b"PUT", b"DELETE", b"TRACE", b"CONNECT", b"PATCH", b"OPTIONS", b"FROBNICATE", b"post")
    refused |= {
        f"the method {method.decode()}": _of(partial(request, method=method), 0, 400, 404, 405, 501)
        for method in methods
    }
    lengths = {
        "10¹²": b"1000000000000",
        "-5": b"-5",
        "1e3": b"1e3",
        "+5": b"+5",
        "20 digits": b"9" * 20,
        "0x10": b"0x10",
    }
    refused |= {
        f"a Content-Length of {name}": _of(partial(request, b"", length=value), 0, 400, 413)
        for name, value in lengths.items()
    }
    two = b"Content-Length: 3\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return refused | {
        "two hosts": _of(lambda: request(good, extra=b"Host: evil.example\r\n"), 400, 421),
        "two hosts, ours last": _of(
            lambda: request(good, host=b"evil.example", extra=b"Host: localhost\r\n"), 400, 421
        ),
        "LOCALHOST": _of(lambda: request(good, host=b"LOCALHOST:80"), 200),
        "no host": _of(lambda: request(good, host=None), 400, 421),
        "two lengths": _of(lambda: request(b"abc", extra=two), 0, 400, 422),
        "two lengths that differ": _of(lambda: request(b"abcdef", extra=two), 0, 400),
        "a length and chunks": _of(lambda: request(good, extra=chunked), 0, 400, 422),
        "a head of 500 kB": _of(lambda: request(good, extra=b"X: " + b"a" * 500_000 + b"\r\n"), 0, 400, 431),
        "5,000 headers": _of(lambda: request(good, extra=b"X: a\r\n" * 5000), 0, 400, 431),
        "a folded header": _of(lambda: request(good, extra=b"X: a\r\n b\r\n"), 0, 200, 400),
        "a header without a name": _of(lambda: request(good, extra=b": a\r\n"), 0, 400),
        "a space before the colon": _of(lambda: request(good, extra=b"X : a\r\n"), 0, 400),
        "a null byte": _of(lambda: request(good, extra=b"X: a\0b\r\n"), 0, 200, 400),
        "compressed": _of(lambda: request(good, extra=b"Content-Encoding: gzip\r\n"), 415),
        "an Accept of 30,000 bytes": _of(lambda: request(good, extra=b"Accept: " + b"a/b;q=1," * 3750 + b"\r\n"), 200),
        "an Accept-Encoding of 30,000 bytes": _of(
            lambda: request(good, extra=b"Accept-Encoding: " + b"gzip;q=x," * 3333 + b"\r\n"), 200
        ),
        "a session that nobody signed": _of(
            lambda: request(good, extra=b"Cookie: vitreous-00000000=9999999999." + b"0" * 64 + b"\r\n"), 200
        ),
        "two cookies": _of(lambda: request(good, extra=b"Cookie: a=b\r\nCookie: c=d\r\n"), 400),
        "expects a unicorn": _of(lambda: request(good, extra=b"Expect: unicorn\r\n"), 0, 200, 400, 417),
        "an upgrade to h2c": _of(
            lambda: request(good, extra=b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"), 0, 200, 400
        ),
        "HTTP/2 without asking": _of(lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 400, 505),
        "HTTP/9.9": _of(lambda: b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 0, 400, 505),
        "TLS": _of(lambda: b"\x16\x03\x01\x02\x00\x01" + bytes(500), 0, 400),
        "a chunk of 2⁶⁴ bytes": _of(lambda: head + chunked + b"\r\nffffffffffffffff0\r\nx\r\n0\r\n\r\n", 0, 400, 413),
        "a chunk that is no number": _of(lambda: head + chunked + b"\r\nzz\r\nx\r\n0\r\n\r\n", 0, 400),
        "chunks with 100 kB of extensions": _of(
            lambda: head + chunked + b"\r\n1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n", 0, 400, 413, 431
        ),
        "chunks of 40 MB": _of(
            lambda: head + chunked + b"\r\n" + (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 640 + b"0\r\n\r\n", 0, 413
        ),
        "pipelined: twenty requests": _of(lambda: request(good) * 20, 200),
        "smuggled: a request in a body": _of(
            lambda: request(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", kind=JSON, length=b"0"), 400
        ),
        "a query of 20,000 bytes": _of(
            lambda: request(good, path=b"/v1/predict?model=" + b"x" * 20_000), 0, 400, 414, 422, 431
        ),
        "an unknown model": _of(lambda: request(good, path=b"/v1/predict?model=../../x"), 422),
    }  # fmt: skip


def _huge_png() -> bytes:
    whole = bytearray(striped_png(5, 5, "L"))
    whole[16:24] = struct.pack(">II", 50_000, 50_000)
    whole[29:33] = struct.pack(">I", zlib.crc32(bytes(whole[12:29])))
    return bytes(whole)


def digit_png() -> bytes:
    """A good image: a stroke."""
    digit = np.zeros((28, 28), np.uint8)
    digit[4:24, 13:16] = 255
    return encode(Image.fromarray(digit), "PNG")


LISTED: dict[str, Callable[[], dict[str, Attack]]] = {"bodies": bodies, "heads, hosts, origins, paths": heads}
