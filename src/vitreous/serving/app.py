"""The HTTP application: FastAPI for the addresses and the OpenAPI document, behind one gate that every request passes.

POST /v1/predict takes a shorter way (`Front`): the same handler, without a framework between it and the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import vitreous
from vitreous.serving import contract, docs, security
from vitreous.serving.metrics import SAVE_SECONDS, Metrics
from vitreous.serving.pages import PageFile, page_responses
from vitreous.serving.problems import Answer, Problem
from vitreous.serving.reading import Receive, Scope
from vitreous.serving.service import Service

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_log = logging.getLogger("vitreous.serving")


def create_app(service: Service, gate: security.Gate, address: str = "http://127.0.0.1:8000") -> Front:
    """The whole application, as ASGI; `address` is what its own /docs tells."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        saving = asyncio.create_task(_save_metrics(service.metrics))
        yield
        saving.cancel()
        service.stop()

    app = FastAPI(
        title="vitreous",
        version=vitreous.__version__,
        description="A Vision Transformer you can see through.",
        docs_url=None,  # FastAPI's own fetch scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_api(app, service)
    _add_pages(app, address)
    app.add_exception_handler(HTTPException, _framework_problem)
    app.add_exception_handler(Problem, _our_problem)
    return Front(app, service, gate)


async def _save_metrics(metrics: Metrics) -> None:
    """For the other workers; alone there is nobody to keep them for."""
    while metrics.folder is not None:
        metrics.save()
        await asyncio.sleep(SAVE_SECONDS)


def _add_api(app: FastAPI, service: Service) -> None:
    busy, sent = (429, 503, 504), (400, 408, 413, 415, 422)

    @app.post(
        "/v1/predict",
        summary="What is in these images?",
        openapi_extra=contract.PREDICT_REQUEST,
        responses=contract.answers(contract.PREDICTIONS, "One entry an image, in order; one that cannot be read has"
                                   " an `error` and does its neighbours no harm.") | contract.problems(*sent, *busy),
        response_class=Response,
    )  # fmt: skip
    async def predict(request: Request) -> Response:
        return _response(await service.predict(request.scope, dict(request.scope["headers"]), request.receive))

    @app.post(
        "/v1/look",
        summary="What happens inside a model?",
        openapi_extra=contract.LOOK_REQUEST,
        responses=contract.answers(contract.LOOKED, "Maps as arrays.") | contract.problems(*sent, *busy),
        response_class=Response,
    )
    async def look(request: Request) -> Response:
        return _response(await service.look(dict(request.scope["headers"]), request.receive))

    def add(path: str, summary: str, answer: Callable[[], Answer], schema: dict[str, Any], *statuses: int) -> None:
        async def endpoint() -> Response:
            return _response(answer())

        responses = contract.answers(schema, summary) | contract.problems(*statuses)
        app.add_api_route(path, endpoint, summary=summary, responses=responses, response_class=Response)

    add("/v1/models", "The models there are.", service.list_models, contract.MODELS)
    add("/v1/samples", "Test images to begin with.", service.samples, contract.SAMPLES)
    add("/healthz", "Whether the server lives.", service.health, contract.STATUS)
    add("/readyz", "Whether it can answer now.", service.readiness, contract.STATUS, 503)

    @app.get("/metrics", summary="Numbers in Prometheus' text format.", response_class=Response,
             responses={200: {"content": {"text/plain": {}}}, **contract.problems()})  # fmt: skip
    async def metrics() -> Response:
        return _response(service.telemetry())


def _add_pages(app: FastAPI, address: str) -> None:
    files = page_responses()
    files["docs"] = PageFile.of(docs.render(app.openapi(), address).encode(), ".html")
    files["docs.css"] = PageFile.of(docs.STYLE.encode(), ".css")
    files["engine.json"] = PageFile.of(b'{"engine": "http"}', ".json")

    def add(path: str, file: PageFile) -> None:
        async def endpoint(request: Request) -> Response:
            return file.response(request.headers.get("if-none-match"))

        app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)  # Starlette adds HEAD

    for name, file in files.items():
        add(f"/{name}", file)
    if "index.html" in files:
        add("/", files["index.html"])


def _response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = _headers(answer)
    return response


def _headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]


async def _framework_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    details = {404: "there is nothing at this address; /docs lists what there is", 405: "this address does not take"
               " this method; /docs says which it takes"}  # fmt: skip
    headers = tuple((name.encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _response(Problem(error.status_code, details.get(error.status_code, str(error.detail)), headers).answer())


async def _our_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(error.answer())


class Front:
    """Every request's way in: the gate, the short way for /v1/predict, and the headers and counts of every answer."""

    def __init__(self, app: FastAPI, service: Service, gate: security.Gate):
        self.app, self.service, self.gate = app, service, gate
        self._routes = {getattr(route, "path", "") for route in app.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, path = time.perf_counter(), scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sent_status = 0

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal sent_status
            if message["type"] == "http.response.start":
                sent_status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *security.HEADERS]}
            await send(message)

        try:
            self.gate.check(path, headers.get(b"host", b""), headers.get(b"authorization", b""))
            if path == "/v1/predict" and scope["method"] == "POST":
                answer = await self.service.predict(scope, headers, receive)
                sent_status = await _send(answer, send)
            else:
                await self.app(scope, receive, send_guarded)
        except Problem as problem:
            sent_status = await _send(problem.answer(), send)
        except Exception:
            _log.exception("a request to %s failed", path if path in self._routes else "an unknown address")
            if not sent_status:
                sent_status = await _send(
                    Problem(500, "this is a fault of the server's, and was logged").answer(), send
                )
        finally:
            metrics = self.service.metrics
            # unknown addresses count as one: a label a visitor can choose would be an unbounded memory
            metrics.requests[path if path in self._routes else "other", sent_status] += 1
            metrics.seconds.observe(time.perf_counter() - start)


async def _send(answer: Answer, send: Send) -> int:
    headers = [*_headers(answer), *security.HEADERS]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
    return answer.status
