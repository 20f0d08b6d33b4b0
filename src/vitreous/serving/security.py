"""Access control, and the security headers of every response."""

from __future__ import annotations

import base64
import contextlib
import functools
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.downloads.files import read_plain
from vitreous.errors import ConfigError, quoted
from vitreous.serving.responses import Problem
from vitreous.serving.sessions import Sessions

SHORTEST_TOKEN = 16
#: For health checks and for the look of the sign-in page, whose files are the same everywhere.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/vitreous.css", "/sign-in.css", "/icon.svg"})
#: Headers that are acted on here or by the application; with two values, a proxy may have acted on the other one.
SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"cookie", b"content-type", b"content-length", b"content-encoding",
     b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest")
)  # fmt: skip
Headers = dict[bytes, bytes]

CSP = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:; object-src 'none';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
)


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own, in any spelling: LOCALHOST, localhost., [::1]."""
    host = _canonical(host)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    try:
        token = read_plain(path).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the token file {quoted(str(path))}: {problem}") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {str(path)!r} must be one line of at least {SHORTEST_TOKEN} ASCII characters without spaces;"
            ' create one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    return token


def check_exposure(host: str, token: str | None, no_auth: bool) -> None:
    """Refuse a host that others can reach without a token, unless `no_auth` allows it explicitly."""
    if not is_loopback(host) and token is None and not no_auth:
        raise ConfigError(
            f"--host {host} lets others reach this server: add --token-file FILE (programs send its token as a bearer"
            " token, people sign in with it), or --no-auth to let anyone in"
        )


def single_headers(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers by name; refuse a request that has one of `SINGLE` twice."""
    by_name = dict(headers)
    if len(by_name) < len(headers):
        names = [name for name, _ in headers]
        twice = next((name for name in SINGLE if names.count(name) > 1), None)
        if twice is not None:
            raise Problem(400, f"the request has more than one {twice.decode().title()} header; send one")
    return by_name


@dataclass(frozen=True)
class Gate:
    """Decides which requests are served.

    `loopback_only` refuses other host names: a foreign page could point its own name at this machine (DNS rebinding).

    Requests that pages of other sites make are refused, even though those pages could not read the responses: a
    `no-cors` POST would still occupy the models. Browsers name the page's site in Sec-Fetch-Site and, for every POST,
    in Origin; programs such as curl send neither and are served. Another port of this machine is another origin.

    Following a link from another site to this page is allowed: the browser leaves the other page, the request is a GET,
    which changes nothing, and neither frames (`frame-ancestors`) nor openers (COOP) can reach into the opened page.
    Links to the API itself are refused: only programs have a use for it.
    """

    token: str | None = field(default=None, repr=False)
    loopback_only: bool = True

    @functools.cached_property
    def sessions(self) -> Sessions | None:
        return None if self.token is None else Sessions(self.token)

    def check(self, method: str, path: str, headers: Headers, http_version: str = "1.1") -> None:
        self.check_site(method, path, headers, http_version)
        self.check_token(path, headers)

    def check_site(self, method: str, path: str, headers: Headers, http_version: str = "1.1") -> None:
        """Refuse requests for other hosts, and those that pages of other sites make."""
        host = headers.get(b"host")
        if not host and http_version not in ("1.0", "1"):  # "1" is how granian writes it
            raise Problem(400, "the request has no Host header, which HTTP/1.1 requires")
        # HTTP/1.0 has no Host; no browser speaks it, so there is no foreign page to refuse
        if self.loopback_only and host and not is_loopback(_without_port(host)):
            raise Problem(421, "this server is for this machine only; use the address localhost or 127.0.0.1")
        if _is_foreign(headers) and not _opens_page(method, path, headers):
            raise Problem(
                403,
                "requests from pages of other sites are refused; use this server's own page (a proxy before it must"
                " pass on the Host header)",
            )

    def check_token(self, path: str, headers: Headers) -> None:
        if self.lets_in(path, headers):
            return
        challenges: tuple[tuple[bytes, bytes], ...] = ((b"www-authenticate", b'Bearer realm="vitreous"'),)
        if b"sec-fetch-mode" not in headers:  # a browser would open a window of its own over the page
            challenges = ((b"www-authenticate", b'Basic realm="vitreous", charset="UTF-8"'), *challenges)
        raise Problem(401, "a token is required: send it as `Authorization: Bearer TOKEN`", challenges)

    def lets_in(self, path: str, headers: Headers) -> bool:
        """Return whether a request may be served without a token, or has it, or a session that stands for it."""
        if self.token is None or self.sessions is None or path in OPEN_PATHS:
            return True
        if hmac.compare_digest(_credential(headers.get(b"authorization", b"")), self.token.encode()):
            return True
        return b"cookie" in headers and self.sessions.accepts(headers[b"cookie"])


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser says that the request comes from a page of another origin."""
    if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):  # none: typed, or a bookmark
        return True
    origin = headers.get(b"origin")
    if origin is None:
        return False
    scheme, _, authority = origin.decode("latin-1").partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)  # https: a proxy in front of this server decrypts
    if port is None:  # "null" (a file, a sandboxed frame), or a browser extension
        return True
    own = headers.get(b"host", b"").decode("latin-1")
    return _canonical(authority.removesuffix(port)) != _canonical(own.removesuffix(port))


def _opens_page(method: str, path: str, headers: Headers) -> bool:
    """Return whether the request is a plain navigation of the browser's window, other than to the API."""
    return (
        method in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and b"origin" not in headers
        and not path.startswith("/v1/")
    )


def _canonical(host: str) -> str:
    """Return a host, with or without a port, in lower case and without the root's dot."""
    return re.sub(r"\.(?=$|:\d+$)", "", host.lower())


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1")
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else text


def _credential(authorization: bytes) -> bytes:
    """Return the bearer token, or the password from a browser's prompt (with any user name)."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        with contextlib.suppress(ValueError):  # not base64
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
