"""Who may ask, and the headers that every answer bears."""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import ConfigError
from vitreous.serving.problems import Problem

SHORTEST_TOKEN = 16
OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for whatever watches the server; they tell nothing else

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
            ' `python -c "import secrets; print(secrets.token_urlsafe(32))"` makes a good one'
        )
    return token


def check_exposure(host: str, token: str | None, no_auth: bool) -> None:
    """Another host than loopback is open to others: that takes a token, or the word that none is wanted."""
    if not is_loopback(host) and token is None and not no_auth:
        raise ConfigError(
            f"--host {host} lets others reach this server: give --token-file FILE (they send its token as a bearer"
            " token, or a browser asks for it as a password), or --no-auth to let anyone in"
        )


@dataclass(frozen=True)
class Gate:
    """Lets requests in. `loopback_only` refuses other host names: a foreign page could have its name point here."""

    token: str | None = None
    loopback_only: bool = True

    def check(self, path: str, host: bytes, authorization: bytes) -> None:
        if self.loopback_only and not is_loopback(_without_port(host)):
            raise Problem(421, "this server listens on this machine only; ask for it as localhost or 127.0.0.1")
        if self.token is None or path in OPEN_PATHS:
            return
        if not hmac.compare_digest(_credential(authorization), self.token.encode()):
            challenges = ((b"www-authenticate", b'Basic realm="vitreous", charset="UTF-8"'),
                          (b"www-authenticate", b'Bearer realm="vitreous"'))  # fmt: skip
            raise Problem(401, "a token is needed: send it as `Authorization: Bearer TOKEN`", challenges)


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1")
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else text


def _credential(authorization: bytes) -> bytes:
    """What was sent as a bearer token, or as the password of a browser's own prompt (whatever the user's name)."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            pass
    return b""
