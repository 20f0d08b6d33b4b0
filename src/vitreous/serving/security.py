"""Access control, and the security headers of every response."""

from __future__ import annotations

import base64
import contextlib
import functools
import hmac
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.errors import ConfigError
from vitreous.serving.responses import Problem

SHORTEST_TOKEN = 16
OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for health checks; they reveal nothing else

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
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {str(path)!r}: {error}") from None
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
            f"--host {host} lets others reach this server: add --token-file FILE (clients send its token as a bearer"
            " token, browsers ask for it as a password), or --no-auth to let anyone in"
        )


@dataclass(frozen=True)
class Gate:
    """Decides which requests are served.

    `loopback_only` refuses other host names: a foreign page could point its own name at this machine (DNS rebinding).
    """

    token: str | None = field(default=None, repr=False)
    loopback_only: bool = True

    def check(self, path: str, host: bytes, authorization: bytes) -> None:
        if self.loopback_only and not is_loopback(_without_port(host)):
            raise Problem(421, "this server is for this machine only; use the address localhost or 127.0.0.1")
        if self.token is None or path in OPEN_PATHS:
            return
        if not hmac.compare_digest(_credential(authorization), self.token.encode()):
            challenges = ((b"www-authenticate", b'Basic realm="vitreous", charset="UTF-8"'),
                          (b"www-authenticate", b'Bearer realm="vitreous"'))  # fmt: skip
            raise Problem(401, "a token is required: send it as `Authorization: Bearer TOKEN`", challenges)


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
