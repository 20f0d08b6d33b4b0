"""Limits on sizes, counts, queues and times, each with a clear response."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import struct
import threading
import time
import tracemalloc
import weakref
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from vitreous.data.preprocessing import Prepared, Preprocessing
from vitreous.serving import look
from vitreous.serving.contract import LookRequest
from vitreous.serving.engine import Engine, make_engine
from vitreous.serving.limits import Limits
from vitreous.serving.pool import Abandoned, Pool
from vitreous.serving.reading import parse_predict
from vitreous.serving.responses import Problem

Make = Callable[..., TestClient]
BLANK = base64.b64encode(bytes(28 * 28)).decode()


def test_body_size(make_client: Make) -> None:
    client = make_client(body_bytes=1000)
    declared = client.post("/v1/predict", files={"image": bytes(2000)})
    assert declared.status_code == 413
    assert "1000" in declared.json()["detail"]

    def chunks() -> Any:
        for _ in range(3):
            yield bytes(500)

    assert client.post("/v1/predict", content=chunks()).status_code == 413  # chunked: no length declared
    assert client.post("/v1/look", content=bytes(2000), headers={"content-type": "application/json"}).status_code == 413
    nonsense = client.post("/v1/predict", content=b"", headers={"content-length": "many"})
    assert nonsense.status_code == 400


def test_json_bodies_are_smaller(make_client: Make, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    client = make_client(json_bytes=1000)
    response = client.post("/v1/predict", json={"pixels": digits[0].tolist()})
    assert response.status_code == 413
    assert "limit of 1000 bytes for JSON; send images as files" in response.json()["detail"]
    assert client.post("/v1/predict", files=[("image", png(digits[0]))] * 4).status_code == 200


def test_all_bodies_together(make_client: Make, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    client = make_client(bodies_bytes=100)
    response = client.post("/v1/predict", files={"image": png(digits[0])})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "vitreous_body_bytes 0" in client.get("/metrics").text


def test_image_count(make_client: Make, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    client = make_client(most_images=3)
    files = [("image", png(digits[0]))]
    assert client.post("/v1/predict", files=files * 3).status_code == 200
    assert client.post("/v1/predict", files=files * 4).status_code == 422
    assert client.post("/v1/predict", files=files * 9).status_code == 422
    assert client.post("/v1/predict", json={"pixels": [[[9, 0]]] * 4}).status_code == 422


def bomb(side: int) -> bytes:
    """A PNG of side × side one-bit pixels, a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((side // 8 + 1) * min(side, 2000)), 9)
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_pixel_count(client: TestClient) -> None:
    start = time.perf_counter()
    response = client.post("/v1/predict", files={"image": ("bomb.png", bomb(50_000))})
    assert time.perf_counter() - start < 2
    assert response.status_code == 422
    assert "2500000000 pixels" in response.json()["detail"]


@pytest.mark.parametrize("pixels", [[[0]] * 16_385, [[0] * 20_000]])
def test_a_side_in_json(client: TestClient, pixels: list[list[int]]) -> None:
    response = client.post("/v1/predict", json={"pixels": pixels})
    assert response.status_code == 422
    assert "rows or columns; the limit is 16384" in response.json()["detail"]


def test_a_side_in_a_file(client: TestClient, png: Callable[..., bytes]) -> None:
    response = client.post("/v1/predict", files={"image": ("long.png", png(np.eye(1, 500_000, dtype=np.uint8)))})
    assert response.status_code == 422
    assert "long.png is 1×500000 pixels; the limit is 16,384 along each side" in response.json()["detail"]


@pytest.mark.parametrize(
    "pixels",
    [
        [["x" * 20_000, *[0] * 2000]],  # an array of texts would give each element the space of the longest: 160 MB
        [[[0, 0]]] * 20_000,  # images, counted before they are built
        [[]] * 20_000,
    ],
    ids=["text", "images", "empty"],
)
def test_memory_of_a_json_body(pixels: list[Any]) -> None:
    """At most 40 times the body, as `Limits.json_bytes` is based on."""
    body = json.dumps({"pixels": pixels}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(Problem):
            parse_predict(body, b"application/json", b"", Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(body)


def test_slow_responses_are_504(make_client: Make, monkeypatch: pytest.MonkeyPatch, digits: np.ndarray) -> None:
    client = make_client(response_seconds=0.2)

    async def never(self: Engine, pixels: np.ndarray) -> np.ndarray:
        await asyncio.sleep(60)
        return pixels

    monkeypatch.setattr(Engine, "predict", never)
    response = client.post("/v1/predict", json={"pixels": digits[0].tolist()})
    assert response.status_code == 504
    monkeypatch.setattr("vitreous.serving.look.look", lambda *_: time.sleep(1))
    assert client.post("/v1/look", json={"pixels": BLANK}).status_code == 504


def test_too_many_looks(make_client: Make) -> None:
    client = make_client(looks=0)
    response = client.post("/v1/look", json={})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"


def test_a_slow_upload_does_not_block_other_looks(make_client: Make) -> None:
    service: Any = make_client(looks=1).app.service
    headers = {b"content-type": b"application/json"}
    body = json.dumps({"pixels": BLANK}).encode()

    async def dripping() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.request", "body": b"", "more_body": True}

    async def at_once() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def both() -> int:
        slow = [asyncio.create_task(service.look(headers, dripping)) for _ in range(3)]
        await asyncio.sleep(0.01)
        response = await service.look(headers, at_once)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return response.status_code

    assert asyncio.run(both()) == 200


def test_too_many_large_decodes(make_client: Make, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    client = make_client(decodes=0)
    large = png(np.kron(digits[0], np.ones((12, 12), np.uint8)))
    assert client.post("/v1/predict", files={"image": large}).status_code == 429
    assert client.post("/v1/predict", files={"image": png(digits[0])}).status_code == 200


# --- requests that nobody waits for any more --------------------------------------------------------------------------


class SlowPreparation:
    """Replaces `Preprocessing.prepare`: counts the images, and blocks until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.images, self.has_started, self.may_end = 0, threading.Event(), threading.Event()
        monkeypatch.setattr(Preprocessing, "prepare", self)

    def __call__(self, content: bytes, name: str) -> Prepared:
        self.images += 1
        self.has_started.set()
        assert self.may_end.wait(10)
        return Prepared(np.zeros((1, 28, 28), np.uint8), ())

    def finish(self, service: Any) -> None:
        self.may_end.set()
        service._decoding._executor.shutdown(wait=True)


def test_decoding_stops_after_a_timeout(
    make_client: Make, monkeypatch: pytest.MonkeyPatch, digits: np.ndarray, png: Callable[..., bytes]
) -> None:
    client = make_client(response_seconds=0.1)
    preparation = SlowPreparation(monkeypatch)
    response = client.post("/v1/predict", files=[("image", png(digits[0]))] * 8)
    assert response.status_code == 504
    preparation.finish(client.app.service)
    assert preparation.images == 1


def test_decoding_stops_when_the_client_leaves(
    make_client: Make, monkeypatch: pytest.MonkeyPatch, digits: np.ndarray, png: Callable[..., bytes]
) -> None:
    service: Any = make_client().app.service
    preparation = SlowPreparation(monkeypatch)
    part = b'--B\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + png(digits[0]) + b"\r\n"
    messages = [{"type": "http.request", "body": part * 8 + b"--B--", "more_body": False}]
    headers = {b"content-type": b"multipart/form-data; boundary=B"}

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.to_thread(preparation.has_started.wait, 10)
        return {"type": "http.disconnect"}

    with pytest.raises(Problem, match="closed the connection"):
        asyncio.run(asyncio.wait_for(service.predict(headers, b"", receive), 5))
    preparation.finish(service)
    assert preparation.images == 1


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    class Body:
        pass

    async def cancel() -> None:
        pool, may_end, ran = Pool(1, 8, "tests"), threading.Event(), []
        first = asyncio.create_task(pool.run(may_end.wait, 10))
        body = Body()
        is_there = weakref.ref(body)
        second = asyncio.create_task(pool.run(ran.append, body))
        del body
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        del second
        await asyncio.sleep(0)
        gc.collect()  # the exception refers to the frames, which refer to the exception
        assert is_there() is None  # while the first still runs
        may_end.set()
        assert await first
        assert not ran
        assert await pool.run(lambda: 7) == 7  # the thread is free again
        pool.stop()

    asyncio.run(cancel())


def test_looking_stops_when_nobody_waits(client: TestClient) -> None:
    service: Any = client.app.service
    model = service.find("tiny-vit")
    request = LookRequest(pixels=BLANK, want=["patch_removal"])

    def check() -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        look.look(model, look.check_request(request, model, service.limits), check)


def test_a_response_too_large(make_client: Make) -> None:
    client = make_client(look_numbers=100)
    response = client.post("/v1/look", json={"pixels": BLANK, "want": ["attention"]})
    assert response.status_code == 422
    assert "at most 100" in response.json()["detail"]


# --- engines ---------------------------------------------------------------------------------------------------------


class Session:
    """Sums pixels, fails for an image that starts with 13, and records the sizes of its batches."""

    def __init__(self, seconds: float = 0.0):
        self.batches: list[int] = []
        self.seconds = seconds

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="probabilities")]

    def run(self, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        pixels = feeds["pixels"] * 255
        self.batches.append(len(pixels))
        time.sleep(self.seconds)
        if (np.rint(pixels[:, 0, 0, 0]) == 13).any():
            raise RuntimeError("an image that fails")
        return [np.rint(pixels.sum(axis=(1, 2, 3)))[:, None]]


def image(value: int, count: int = 1) -> np.ndarray:
    return np.full((count, 1, 1, 1), value, np.uint8)


@pytest.fixture(params=[False, True], ids=["loop", "thread"])
def new_engine(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    def make(session: Session, batch_images: int = 16, **limits: Any) -> Engine:
        return Engine(session, Limits(**limits), batch_images, lambda count: None, in_thread=request.param)

    return make


def test_requests_share_batches_and_get_their_own_results(new_engine: Callable[..., Engine]) -> None:
    session = Session(0.01)

    async def predict() -> list[np.ndarray]:
        engine = new_engine(session)
        results = await asyncio.gather(*(engine.predict(image(value, 1 + value % 3)) for value in range(14, 64)))
        assert engine.waiting == 0
        return results

    for value, response in zip(range(14, 64), asyncio.run(predict()), strict=True):
        assert response.tolist() == [[value]] * (1 + value % 3)
    assert max(session.batches) <= 16
    assert len(session.batches) < 25  # 100 images in 50 requests


def test_a_failing_image_fails_alone(new_engine: Callable[..., Engine]) -> None:
    async def predict() -> list[Any]:
        engine = new_engine(Session())
        values = (1, 13, 2, 3)
        results = await asyncio.gather(*(engine.predict(image(value)) for value in values), return_exceptions=True)
        again = await engine.predict(image(9))
        return [*results, again]

    first, failed, *others = asyncio.run(predict())
    assert isinstance(failed, RuntimeError)
    assert [response.tolist() for response in (first, *others)] == [[[1]], [[2]], [[3]], [[9]]]


def test_a_full_queue_responds_429_and_recovers(new_engine: Callable[..., Engine]) -> None:
    async def predict() -> None:
        engine = new_engine(Session(0.001), batch_images=4, queue_images=10)
        results = await asyncio.gather(*(engine.predict(image(1)) for _ in range(15)), return_exceptions=True)
        refused = [response for response in results if isinstance(response, Problem)]
        assert [problem.status for problem in refused] == [429] * 5
        assert refused[0].headers == ((b"retry-after", b"1"),)
        assert (await engine.predict(image(1))).tolist() == [[1]]
        assert engine.waiting == 0

    asyncio.run(predict())


def test_a_cancelled_request_is_not_computed(new_engine: Callable[..., Engine]) -> None:
    session = Session(0.05)

    async def predict() -> None:
        engine = new_engine(session, batch_images=1)
        first = asyncio.create_task(engine.predict(image(1)))
        second = asyncio.create_task(engine.predict(image(2)))
        await asyncio.sleep(0)
        second.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert engine.waiting == 0

    asyncio.run(predict())
    assert len(session.batches) <= 1


def test_a_cancelled_request_stops_between_batches() -> None:
    class Waiting(Session):
        has_started, may_end = threading.Event(), threading.Event()

        def run(self, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            self.has_started.set()
            assert self.may_end.wait(10)
            return super().run(names, feeds)

    session = Waiting()

    async def predict() -> None:
        engine = Engine(session, Limits(), 2, lambda count: None, in_thread=True)
        request = asyncio.create_task(engine.predict(image(1, 8)))
        await asyncio.to_thread(session.has_started.wait, 10)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        session.may_end.set()
        assert (await engine.predict(image(2))).tolist() == [[2]]

    asyncio.run(predict())
    assert session.batches == [2, 1]


def test_a_model_that_mixes_its_batch_gets_one_image_at_a_time() -> None:
    session = Session()
    engine = make_engine(session, (1, 1, 1), Limits(batch_images=1), lambda count: None)
    session.batches.clear()
    assert engine._run(image(5, 3)).tolist() == [[5]] * 3
    assert session.batches == [1, 1, 1]


def test_a_slow_model_gets_a_thread() -> None:
    assert make_engine(Session(0.01), (1, 1, 1), Limits(), lambda count: None).in_thread
