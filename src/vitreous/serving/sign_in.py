"""The sign-in form for people who open the page of a server that needs a token.

The token goes from the form to the server once, in a body; it is in no address and in no cookie (sessions.py).
"""

from __future__ import annotations

import hmac
import ipaddress
import time
import urllib.parse
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.responses import Response

from vitreous.reports.pages import page_environment
from vitreous.serving.limits import Limits
from vitreous.serving.reading import BodyReader, Receive
from vitreous.serving.responses import Problem
from vitreous.serving.sessions import Sessions

_HERE = Path(__file__).parent
FORM = b"application/x-www-form-urlencoded"
MOST_BODY_BYTES = 4096
MOST_TRIES, TRIES_SECONDS, MOST_ADDRESSES = 10, 60.0, 1024
#: Nothing but this page's own stylesheet and icon, and a form that leads back here.
CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
Headers = dict[bytes, bytes]


class Tries:
    """How often each address was wrong of late; IPv6 addresses of one network (/64) count together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()  # the address that failed last is last

    def check(self, address: str) -> None:
        recent = self._failures.get(_network(address), deque())
        while recent and recent[0] <= self._clock() - TRIES_SECONDS:
            recent.popleft()
        if len(recent) >= MOST_TRIES:
            wait = max(1, round(recent[0] + TRIES_SECONDS - self._clock()))
            raise Problem(429, f"too many wrong tokens; try again in {wait} s", ((b"retry-after", str(wait).encode()),))

    def count(self, address: str) -> None:
        recent = self._failures.setdefault(_network(address), deque(maxlen=MOST_TRIES))
        recent.append(self._clock())
        self._failures.move_to_end(_network(address))
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network((address, 64 if ":" in address else 32), strict=False))
    except ValueError:  # no address: a socket file, a test client
        return address


class SignIn:
    """The page with the form, at whatever address was asked for, and what happens when it is sent."""

    def __init__(self, token: str, sessions: Sessions, limits: Limits):
        self._token, self._sessions, self._tries = token.encode(), sessions, Tries()
        self._bodies = BodyReader(replace(limits, body_bytes=MOST_BODY_BYTES, json_bytes=MOST_BODY_BYTES))
        self._template = page_environment(_HERE).get_template("sign-in.html.jinja")

    def page(self, error: str = "", status: int = 200, *, reload: bool = False, headers: Any = None) -> Response:
        """Return the form; `reload` asks the browser to come again, now from this site.

        Its status is 200, because browsers report a page with 401 as an error; programs get 401 (`wants_page`).
        """
        html = self._template.render(error=error, reload=reload)
        own = {
            "content-security-policy": CSP,
            # the browser states the form's origin only if it may; `no-referrer` would make it "null"
            "referrer-policy": "same-origin",
            "cache-control": "no-store",
        }
        return Response(html, status, {**own, **(headers or {})}, "text/html")

    async def submit(self, scope: dict[str, Any], headers: Headers, receive: Receive) -> Response:
        """Check the token that was sent; if it is right, set the cookie and lead back to the page."""
        address = (scope.get("client") or ("",))[0]
        try:
            self._tries.check(address)
        except Problem as problem:
            waiting = {name.decode(): value.decode() for name, value in problem.headers}
            return self.page(f"{problem.detail[0].upper()}{problem.detail[1:]}.", 429, headers=waiting)
        body = await self._bodies.read(headers, receive)
        self._bodies.release(body)
        if not hmac.compare_digest(_token_in(body), self._token):
            self._tries.count(address)
            return self.page("That is not the token.")
        secure = headers.get(b"origin", b"").startswith(b"https:")  # a proxy in front of this server encrypts
        # relative, for a proxy that serves this under another path; "./" or "./docs"
        leading = {"location": f"./{scope['path'].rpartition('/')[2]}", "cache-control": "no-store"}
        return Response(status_code=303, headers={**leading, "set-cookie": self._sessions.cookie(secure=secure)})


def _token_in(body: bytes) -> bytes:
    try:
        fields = urllib.parse.parse_qs(body.decode("ascii"), strict_parsing=True, max_num_fields=4)
    except ValueError:
        return b""
    values = fields.get("token", [])
    return values[0].strip().encode("utf-8", "replace") if len(values) == 1 else b""


def is_form(method: str, path: str, headers: Headers) -> bool:
    """Return whether a request sends the form, wherever it was shown."""
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return method == "POST" and not path.startswith("/v1/") and media_type == FORM


def wants_page(method: str, path: str, headers: Headers) -> bool:
    """Return whether a person's browser asks for a page; a program that sends a token gets a sentence in JSON."""
    return (
        method in ("GET", "HEAD")
        and not path.startswith("/v1/")
        and b"text/html" in headers.get(b"accept", b"").lower()
        and b"authorization" not in headers
    )
