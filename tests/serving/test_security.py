"""Access control, reachable paths, and the headers of every response."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from vitreous.errors import ConfigError
from vitreous.serving import metrics, security
from vitreous.serving.pages import page_files
from vitreous.serving.responses import Problem
from vitreous.serving.security import Gate, check_exposure, read_token

TOKEN = "correct-horse-battery-staple"


@pytest.mark.parametrize("path", ["/", "/v1/models", "/docs", "/metrics", "/nothing", "/healthz", "/v1/predict"])
def test_every_response_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe-inline" not in headers["content-security-policy"]
    assert headers["permissions-policy"] == "camera=(self), microphone=(), geolocation=()"  # the page takes photographs


def test_no_page_names_another_host(client: TestClient) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert not [address for address in loaded if address.startswith(("http:", "https:", "//"))]
        assert "<style" not in page.text
        assert not re.search(r"<script(?![^>]*src=)", page.text)  # nothing inline: the policy forbids it


def test_page_files_are_served_and_revalidated(client: TestClient) -> None:
    for name in page_files():
        response = client.get(f"/{name}")
        assert response.status_code == 200, name
        again = client.get(f"/{name}", headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    etag = response.headers["etag"]
    for seen in (f"W/{etag}", f'"other", W/"more",{etag}', "*", f'"a, b" , {etag}'):
        again = client.get(f"/{name}", headers={"if-none-match": seen})
        assert (again.status_code, again.headers["etag"]) == (304, etag), seen
    assert client.get(f"/{name}", headers=[("if-none-match", '"x"'), ("if-none-match", etag)]).status_code == 304
    for seen in ('"other"', etag.strip('"'), f'"{etag[1:-2]}"', "**", '"*"'):
        assert client.get(f"/{name}", headers={"if-none-match": seen}).status_code == 200, seen
    assert '<meta name="vitreous-engine" content="http">' in client.get("/").text


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py", "/page/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/app.py", "/assets/../../app.py",
        "//etc/passwd", "/etc/passwd", "/%2fetc%2fpasswd", "/index.html/../../limits.py", "/.git/config",
        "/__init__.py", "/page/",
        "/index.html%00.js", "/C:%5cwindows", "/v1/models/../../etc/passwd",
    ],
)  # fmt: skip
def test_no_path_of_the_disk_is_reachable(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "root:" not in response.text


def test_other_methods_are_405(client: TestClient) -> None:
    for method, path in (("GET", "/v1/predict"), ("DELETE", "/v1/models"), ("PUT", "/"), ("POST", "/healthz")):
        response = client.request(method, path)
        assert response.status_code == 405
        assert response.json()["status"] == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:8000", 200), ("evil.example", 421), ("", 400),
     ("127.0.0.1.evil.example", 421), ("192.168.1.5:8000", 421), ("LOCALHOST:8000", 200), ("localhost.:8000", 200),
     ("LocalHost.", 200), ("localhost..", 421), ("localhost.evil.example", 421)],
)  # fmt: skip
def test_on_loopback_only_its_names_are_served(client: TestClient, host: str, status: int) -> None:
    """Otherwise a foreign page could point its own name at 127.0.0.1 and read the responses (DNS rebinding)."""
    assert client.get("/v1/models", headers={"host": host}).status_code == status


FOREIGN = "https://evil.example"
FETCH = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl
        ({"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin", **FETCH}, 200),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "http://LOCALHOST", "host": "localhost.:80"}, 200),
        ({"origin": "https://localhost", "host": "localhost:443"}, 200),  # a proxy decrypts
        ({"sec-fetch-site": "none", **NAVIGATION}, 200),
        ({"origin": FOREIGN}, 403),
        ({"origin": FOREIGN, "sec-fetch-site": "cross-site", **FETCH}, 403),
        ({"sec-fetch-site": "cross-site", **FETCH}, 403),
        ({"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site", **FETCH}, 403),  # another port
        ({"sec-fetch-site": "same-site", **FETCH}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://localhost:8000"}, 403),
        ({"origin": "http://127.0.0.1:8000.evil.example"}, 403),
        ({"origin": "http://127.0.0.1:80", "host": "127.0.0.1:443"}, 403),
        ({"origin": "null"}, 403),  # a file, or a sandboxed frame
        ({"origin": ""}, 403),
        ({"origin": "chrome-extension://127.0.0.1:8000"}, 403),
        ({"sec-fetch-site": "cross-site", **NAVIGATION}, 403),  # a form that is sent, or a link to the API
    ],
)
@pytest.mark.parametrize("exposed", [False, True])
def test_other_sites_cannot_use_the_api(
    clients: dict[bool, TestClient], exposed: bool, headers: dict[str, str], status: int
) -> None:
    """A `no-cors` fetch of a foreign page sends its images all the same, even if it cannot read the response."""
    client, sent = clients[exposed], {**headers, "authorization": f"Bearer {TOKEN}"}
    for response in (
        client.post("/v1/predict", json={"pixels": [[0, 255] * 14] * 28}, headers=sent),
        client.get("/v1/models", headers=sent),
    ):
        assert response.status_code == status, response.text
        if status == 403:
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["detail"].startswith("requests from pages of other sites are refused")


@pytest.fixture(scope="module")
def clients(client: TestClient, make_client: Callable[..., TestClient]) -> dict[bool, TestClient]:
    """On loopback, and as with `--host 0.0.0.0 --token-file`."""
    return {False: client, True: make_client(gate=Gate(TOKEN, loopback_only=False))}


def test_links_on_other_sites_open_the_page(client: TestClient) -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    for path in ("/", "/docs"):
        assert client.get(path, headers=foreign | NAVIGATION).status_code == 200
        # a frame, a script or an image in another page is not a link
        assert client.get(path, headers=foreign | NAVIGATION | {"sec-fetch-dest": "iframe"}).status_code == 403
        assert client.get(path, headers=foreign | FETCH).status_code == 403
        assert client.post(path, headers=foreign | NAVIGATION).status_code == 403
        assert client.get(path, headers=foreign | NAVIGATION | {"origin": FOREIGN}).status_code == 403


@pytest.mark.parametrize("name", ["host", "origin", "authorization", "content-length", "content-type"])
def test_headers_that_decide_come_once(client: TestClient, name: str) -> None:
    """A proxy may have decided by the other one."""
    value = {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}.get(name, "0")
    response = client.get("/v1/models", headers=[(name, value), (name, value)])
    assert response.status_code == 400
    assert response.json()["detail"] == f"the request has more than one {name.title()} header; send one"
    assert client.get("/v1/models", headers=[("accept", "a/b"), ("accept", "*/*")]).status_code == 200


def test_http_1_1_needs_a_host() -> None:
    with pytest.raises(Problem, match="no Host header") as refused:
        Gate().check("GET", "/healthz", {}, "1.1")
    assert refused.value.status == 400
    Gate().check("GET", "/healthz", {}, "1.0")


def test_a_token_opens(make_client: Callable[..., TestClient]) -> None:
    client = make_client(gate=Gate(TOKEN, loopback_only=False))
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    for good in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
        assert client.get("/v1/models", headers={"authorization": good}).status_code == 200
    wrong = base64.b64encode(b"anyone:guess").decode()
    bad_values = (
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Basic {wrong}",
        "Basic %%",
        "Bearer é",
    )
    for bad in bad_values:
        for path in ("/v1/models", "/", "/metrics", "/docs", "/openapi.json"):
            response = client.get(path, headers={"authorization": bad.encode("latin-1")})
            assert response.status_code == 401
            assert TOKEN not in response.text
        assert "Bearer" in response.headers["www-authenticate"]
    assert client.post("/v1/predict", files={"image": b"x"}).status_code == 401
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert client.get("/v1/models", headers={"host": "any.example", "authorization": f"Bearer {TOKEN}"}).is_success


def test_comparison_is_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(security.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or True)
    Gate(TOKEN).check("GET", "/", {b"host": b"localhost", b"authorization": b"Bearer x"})
    assert seen == [(b"x", TOKEN.encode())]


def test_exposure_needs_a_token_or_no_auth(tmp_path: Path) -> None:
    check_exposure("127.0.0.1", None, no_auth=False)
    check_exposure("::1", None, no_auth=False)
    check_exposure("LOCALHOST", None, no_auth=False)
    check_exposure("0.0.0.0", TOKEN, no_auth=False)
    check_exposure("0.0.0.0", None, no_auth=True)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigError, match="--token-file"):
            check_exposure(host, None, no_auth=False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for bad in ("short", "", "two words of a token that is long", "ümlaut-ümlaut-ümlaut"):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(ConfigError, match="at least 16"):
            read_token(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_token(tmp_path / "none")


def test_a_server_error_reveals_no_details(
    make_client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()

    def fault(*_: object) -> None:
        raise RuntimeError("secret details")

    monkeypatch.setattr("vitreous.serving.reading.parse_predict", fault)
    response = client.post("/v1/predict", files={"image": b"x"})
    assert response.status_code == 500
    assert response.json()["detail"] == "the server failed and has logged the error"
    assert 'status="500"} 1' in client.get("/metrics").text


def test_gauges_of_dead_workers_are_dropped(tmp_path: Path) -> None:
    alive, dead = (tmp_path / f"gauge_livesum_{pid}.db" for pid in (os.getpid(), 4_999_999))  # no pid is that large
    alive.touch()
    dead.touch()
    metrics._forget_dead_workers(tmp_path)
    assert (alive.exists(), dead.exists()) == (True, False)


def test_metrics_add_up(make_client: Callable[..., TestClient]) -> None:
    client = make_client()
    client.post("/v1/predict", json={"pixels": [[0, 255] * 14] * 28})
    client.get("/some/unknown/address")
    client.get("/another")
    text = client.get("/metrics").text
    assert 'vitreous_requests_total{route="/v1/predict",status="200"} 1' in text
    assert 'vitreous_requests_total{route="other",status="404"} 2' in text  # clients cannot create labels
    assert 'vitreous_images_total{model="tiny-vit",outcome="predicted"} 1' in text
    assert "vitreous_batch_images_count 1" in text
    assert "vitreous_waiting_images 0" in text
