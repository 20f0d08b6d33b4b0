"""The cookie of a person who signed in with the token.

It holds the time until which it is valid and a signature of that time (HMAC-SHA256, keyed with the token): all workers
accept it, none keeps a list, and a new token ends every session. No script can read it (HttpOnly), and no page of
another site makes a browser send it (SameSite=Strict).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

SESSION_SECONDS = 7 * 24 * 3600


class Sessions:
    """Cookies that stand for a token."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time):
        self._key, self._clock = token.encode(), clock
        self.name = f"vitreous-{self._sign('name')[:8]}"  # cookies are shared by all ports of a host

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, f"vitreous {text}".encode(), hashlib.sha256).hexdigest()

    def cookie(self, *, secure: bool) -> str:
        """Return the value of a Set-Cookie header."""
        until = int(self._clock()) + SESSION_SECONDS
        flags = f"Max-Age={SESSION_SECONDS}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
        return f"{self.name}={until}.{self._sign(f'until {until}')}; {flags}"

    def accepts(self, header: bytes) -> bool:
        """Return whether a Cookie header has a valid session."""
        for pair in header.decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            until, _, signature = value.partition(".")
            if name != self.name or not (until.isascii() and until.isdigit() and len(until) <= 12):
                continue
            is_signed = hmac.compare_digest(signature.encode("latin-1"), self._sign(f"until {until}").encode())
            if is_signed and int(until) > self._clock():
                return True
        return False
