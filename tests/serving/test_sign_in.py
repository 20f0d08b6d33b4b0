"""People sign in with the token: the form, the cookie that stands for it, and tries that are limited."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from vitreous.serving import sessions, sign_in
from vitreous.serving.responses import Problem
from vitreous.serving.security import Gate
from vitreous.serving.sessions import SESSION_SECONDS, Sessions
from vitreous.serving.sign_in import MOST_ADDRESSES, MOST_TRIES, Tries

TOKEN = "correct-horse-battery-staple"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FORM = {**BROWSER, "content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1:8000"}


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    made = make_client(gate=Gate(TOKEN, loopback_only=False))
    made.follow_redirects = False
    return made


def send(client: TestClient, token: str, path: str = "/", **more: Any) -> Any:
    body = urllib.parse.urlencode({"token": token})
    return client.post(path, content=body, headers={**FORM, **more})


def test_a_person_signs_in(client: TestClient) -> None:
    form = client.get("/", headers=BROWSER)
    assert (form.status_code, form.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'name="token"' in form.text
    assert "www-authenticate" not in form.headers  # or the browser would ask itself
    assert form.headers["cache-control"] == "no-store"
    assert "form-action 'self'" in form.headers["content-security-policy"]
    assert "script-src" not in form.headers["content-security-policy"]
    assert form.headers["referrer-policy"] == "same-origin"
    assert "http-equiv" not in form.text
    assert "action=" not in form.text  # the form is sent where it is shown, so that an address's fragment survives

    signed_in = send(client, TOKEN)
    assert (signed_in.status_code, signed_in.headers["location"], signed_in.content) == (303, "./", b"")
    cookie = signed_in.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(cookie.split("; "))
    assert "Secure" not in cookie  # this connection is not encrypted
    assert TOKEN not in cookie
    for path in ("/", "/v1/models", "/docs", "/metrics"):
        opened = client.get(path, headers=BROWSER)
        assert opened.status_code == 200
        assert 'name="token"' not in opened.text
    assert send(client, TOKEN, "/docs").headers["location"] == "./docs"
    client.cookies.clear()
    assert client.get("/v1/models").status_code == 401


def test_behind_a_proxy_that_encrypts_the_cookie_is_secure(client: TestClient) -> None:
    response = send(client, TOKEN, origin="https://vit.example", host="vit.example")
    assert response.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    "body",
    [b"", b"token=", b"token=guess", TOKEN.encode(), f"token={TOKEN}&token={TOKEN}".encode(), b"token=%ff%fe",
     f"tok\x00en={TOKEN}".encode(), "token=é".encode(), b"a=1&b=2&c=3&d=4&token=" + TOKEN.encode(),
     f"token={TOKEN}x".encode(), f"token={TOKEN[:-1]}".encode(), b"%" * 4000, b"token=" + b"a" * 4000],
)  # fmt: skip
def test_a_wrong_form_opens_nothing(client: TestClient, body: bytes) -> None:
    response = client.post("/", content=body, headers=FORM)
    assert response.status_code == 200
    assert "That is not the token." in response.text
    assert "set-cookie" not in response.headers
    assert TOKEN not in response.text


def test_what_is_no_form_is_refused_in_json(client: TestClient) -> None:
    assert client.post("/", content=b"token=" + b"a" * 5000, headers=FORM).status_code == 413
    assert client.post("/", json={"token": TOKEN}).status_code == 401
    for path in ("/v1/predict", "/v1/look", "/nothing", "/%2fevil.example", "/docs/../x"):
        response = send(client, TOKEN, path)
        assert response.status_code == 401, path
        assert response.headers["content-type"] == "application/problem+json"
        assert "set-cookie" not in response.headers
    for headers in ({}, {"accept": "application/json"}, {**BROWSER, "authorization": "Bearer wrong"}):
        assert client.get("/", headers=headers).headers["content-type"] == "application/problem+json"
    fetched = client.get("/v1/models", headers={"sec-fetch-mode": "cors", "sec-fetch-site": "same-origin"})
    assert "Basic" not in fetched.headers["www-authenticate"]  # or the browser opens its own window over the page


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:3000"])
def test_other_sites_cannot_sign_a_person_in(client: TestClient, origin: str) -> None:
    response = send(client, TOKEN, origin=origin)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_a_link_of_another_site_reloads_once(client: TestClient) -> None:
    """The browser keeps a strict cookie back when it follows the link, and sends it when the page itself reloads."""
    navigation = {**BROWSER, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert 'http-equiv="refresh"' in client.get("/", headers={**navigation, "sec-fetch-site": "cross-site"}).text
    assert "http-equiv" not in client.get("/", headers={**navigation, "sec-fetch-site": "same-origin"}).text


def test_tries_are_limited(client: TestClient) -> None:
    for _ in range(MOST_TRIES):
        assert "That is not the token." in send(client, "wrong").text
    for token in ("wrong", TOKEN):  # the right one as well, or there would be nothing to gain from waiting
        response = send(client, token)
        assert response.status_code == 429
        assert 0 < int(response.headers["retry-after"]) <= 60
        assert "Too many wrong tokens" in response.text
        assert "set-cookie" not in response.headers
    assert client.get("/v1/models", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_tries_by_address() -> None:
    now = [0.0]
    tries = Tries(lambda: now[0])
    for i in range(MOST_TRIES):
        tries.count(f"2001:db8::{i}")
    with pytest.raises(Problem, match="too many"):
        tries.check("2001:db8::ffff")  # the same network
    tries.check("2001:db8:1::1")
    tries.check("192.0.2.1")
    now[0] = 61.0
    tries.check("2001:db8::1")
    for i in range(2 * MOST_ADDRESSES):
        tries.count(f"198.51.{i // 256}.{i % 256}")
    assert len(tries._failures) == MOST_ADDRESSES


def test_sessions_end_and_cannot_be_forged() -> None:
    now = [1_000_000.0]
    own = Sessions(TOKEN, lambda: now[0])
    pair = own.cookie(secure=False).partition(";")[0]
    name, _, value = pair.partition("=")
    until, _, signature = value.partition(".")
    assert own.accepts(pair.encode())
    assert own.accepts(f"theme=dark; {pair}; a=b".encode())
    values = [
        f"{int(until) + 1}.{signature}",
        f"{until}.",
        f"{until}.{signature[:-1]}",
        f"{until}.{signature}0",
        f"{'9' * 400}.{signature}",
        f"²{until}.{signature}",
        f"-1.{signature}",
        "",
    ]
    forged = [*(f"{name}={wrong}" for wrong in values), f"x={value}", name, "", "=;=;="]
    for header in forged:
        assert not own.accepts(header.encode("latin-1", "replace")), header
    assert not Sessions(TOKEN + "2", lambda: now[0]).accepts(pair.encode())  # a new token ends every session
    now[0] += SESSION_SECONDS
    assert not own.accepts(pair.encode())


def test_comparisons_are_constant_time(monkeypatch: pytest.MonkeyPatch, client: TestClient) -> None:
    seen = []

    def compare(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return False

    for module in (sessions, sign_in):
        monkeypatch.setattr(module.hmac, "compare_digest", compare)
    send(client, "guess")
    assert (b"guess", TOKEN.encode()) in seen
    own = Sessions(TOKEN)
    own.accepts(f"{own.name}=1.abc".encode())
    assert seen[-1][0] == b"abc"
