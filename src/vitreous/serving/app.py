"""The HTTP application: FastAPI routes and the OpenAPI document, behind one entry point that every request passes.

POST /v1/predict bypasses FastAPI: its routing would slow down the address that matters most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import vitreous
from vitreous.serving import contract, security, sign_in
from vitreous.serving.contract import POST_PROBLEMS
from vitreous.serving.docs import Documents
from vitreous.serving.made_files import MADE_FILES
from vitreous.serving.made_files import MEDIA_TYPES as MADE_TYPES
from vitreous.serving.pages import MEDIA_TYPES, page_files
from vitreous.serving.reading import Message, Receive
from vitreous.serving.responses import TEXT, ApiResponse, Problem, compressible
from vitreous.serving.service import Service
from vitreous.serving.sign_in import SignIn
from vitreous.serving.static_files import StaticFile

Scope = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
_log = logging.getLogger("vitreous.serving")
_DETAILS = {
    404: "there is nothing at this address; /docs lists the addresses",
    405: "this address does not accept this method; /docs lists the methods",
}


def create_app(service: Service, gate: security.Gate, address: str = "http://127.0.0.1:8000") -> Application:
    """Build the ASGI application; its own /docs shows `address`."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(service.metrics.refresh_gauges())
        yield
        refreshing.cancel()
        service.stop()

    app = FastAPI(
        title="vitreous",
        version=vitreous.__version__,
        description="A Vision Transformer you can see through.",
        openapi_url=None,  # docs.py adds examples
        docs_url=None,  # FastAPI's own load scripts from another host
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Response,
    )
    _add_api(app, service)
    _add_pages(app, Documents(app, service, address))
    _add_made_files(app, service)
    app.add_exception_handler(HTTPException, _to_problem)
    app.add_exception_handler(Problem, _to_problem)
    return Application(app, service, gate)


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/predict",
        summary="Classify images.",
        openapi_extra=contract.request_body(
            {"multipart/form-data": contract.PredictForm, "application/json": contract.PredictRequest}
        ),
        responses=contract.responses(
            contract.Predictions,
            "One entry per image, in order; an unreadable image has an `error` and does not affect the others.",
            *POST_PROBLEMS,
        ),
    )
    async def predict(model: Annotated[str | None, Query(description=contract.MODEL_ID)] = None) -> Response:
        raise AssertionError("only described here: `Application` calls the service")

    @app.post(
        "/v1/look",
        summary="Look inside a model: attention, logit lens and maps of one image.",
        openapi_extra=contract.request_body({"application/json": contract.LookRequest}),
        responses=contract.look_responses(),
    )
    async def look(request: Request) -> Response:
        return await service.look(dict(request.scope["headers"]), request.receive)

    def add(path: str, summary: str, body: Callable[[], bytes], model: type[BaseModel], *statuses: int) -> None:
        async def endpoint(request: Request) -> Response:
            return compressible(body(), dict(request.scope["headers"]))

        app.add_api_route(path, endpoint, summary=summary, responses=contract.responses(model, summary, *statuses))

    add("/v1/models", "List the models.", lambda: service.models_json, contract.Models)
    add("/healthz", "Report that the server is alive.", lambda: b'{"status":"alive"}', contract.Status)
    add("/readyz", "Report whether the server can predict now.", service.readiness, contract.Status, 503)

    summary = "Return test images of a model to start with."

    @app.get("/v1/samples", summary=summary, responses=contract.responses(contract.Samples, summary, 422, 429))
    async def samples(
        request: Request, model: Annotated[str | None, Query(description=contract.MODEL_ID)] = None
    ) -> Response:
        return compressible(await service.samples(model), dict(request.scope["headers"]))

    summary = "Return the weights of a ViT as safetensors, where /v1/models names this address."
    binary: contract.Responses = {200: {"description": "The file.", "content": {"application/octet-stream": {}}}}

    @app.get("/v1/weights", summary=summary, responses=binary | contract.problems(404, 422))
    async def weights(model: Annotated[str | None, Query(description=contract.MODEL_ID)] = None) -> Response:
        return service.weights(model)

    text: contract.Responses = {200: {"description": "Metrics.", "content": {"text/plain": {}}}}

    @app.get("/metrics", summary="Return metrics in Prometheus' text format.", responses=text | contract.problems())
    async def metrics() -> Response:
        return ApiResponse(service.metrics.text(), content_type=TEXT)


def _add_pages(app: FastAPI, documents: Documents) -> None:
    """Serve the page's files from memory: a request's path is looked up among their names, never on disk."""

    def add(path: str, file: Callable[[], Awaitable[StaticFile]]) -> None:
        async def endpoint(request: Request) -> Response:
            return (await file()).response(dict(request.scope["headers"]), request.headers.getlist("if-none-match"))

        app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)  # Starlette adds HEAD

    def add_file(path: str, content: bytes, media_type: str) -> None:
        file = StaticFile(content, media_type)

        async def ready() -> StaticFile:
            return file

        add(path, ready)

    for name, content in page_files().items():
        add_file(f"/{name}", content, MEDIA_TYPES[Path(name).suffix])
        if name == "index.html":
            add_file("/", content, "text/html")
    for stylesheet in ("docs.css", "sign-in.css"):
        add_file(f"/{stylesheet}", Path(__file__).with_name(stylesheet).read_bytes(), "text/css")
    add("/docs", documents.page)
    add("/openapi.json", documents.openapi)
    add("/example.png", documents.picture)


def _add_made_files(app: FastAPI, service: Service) -> None:
    def add(name: str) -> None:
        media_type = MADE_TYPES[Path(name).suffix].encode()

        async def endpoint(_: Request) -> Response:
            return ApiResponse(await service.made_file(name), content_type=media_type)

        app.add_route(f"/{name}", endpoint, methods=["GET"], include_in_schema=False)

    for name in MADE_FILES:
        add(name)


async def _to_problem(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        headers = tuple((name.encode(), value.encode()) for name, value in (error.headers or {}).items())
        error = Problem(error.status_code, _DETAILS.get(error.status_code, str(error.detail)), headers)
    assert isinstance(error, Problem)
    return error.response()


class Application:
    """The entry point of every request: checks access, adds the security headers, counts and times."""

    def __init__(self, app: FastAPI, service: Service, gate: security.Gate):
        self.app, self.service, self.gate = app, service, gate
        self._routes = {getattr(route, "path", "") for route in app.routes}
        self._sign_in: SignIn | None = None
        if gate.token is not None and gate.sessions is not None:
            self._sign_in = SignIn(gate.token, gate.sessions, service.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan
            return await self.app(scope, receive, send)
        start, path = time.perf_counter(), scope["path"]
        route = path if path in self._routes else "other"  # a label that clients can choose would grow without bound
        sent_status = 0

        async def send_guarded(message: Message) -> None:
            nonlocal sent_status
            if message["type"] == "http.response.start":
                sent_status = message["status"]
                own = list(message.get("headers", ()))
                names = {name for name, _ in own}  # the sign-in page has its own policy
                message["headers"] = [*own, *(header for header in security.HEADERS if header[0] not in names)]
            await send(message)

        try:
            respond = await self._respond(scope, receive)
            await respond(scope, receive, send_guarded)
        except Problem as problem:
            await problem.response()(scope, receive, send_guarded)
        except Exception:
            _log.exception("a request to %s failed", route)
            if not sent_status:
                fault = Problem(500, "the server failed and has logged the error")
                await fault.response()(scope, receive, send_guarded)
        finally:
            metrics = self.service.metrics
            metrics.requests(route, sent_status).inc()
            metrics.seconds.observe(time.perf_counter() - start)

    async def _respond(self, scope: Scope, receive: Receive) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """Return the response, or the application that makes it."""
        method, path = scope["method"], scope["path"]
        headers = security.single_headers(scope["headers"])
        self.gate.check_site(method, path, headers, scope["http_version"])
        if self._sign_in is not None and path in self._routes:
            if sign_in.is_form(method, path, headers):
                return await self._sign_in.submit(scope, headers, receive)
            if sign_in.wants_page(method, path, headers) and not self.gate.lets_in(path, headers):
                # a browser that follows a link of another site keeps the cookie back; it sends it when it reloads
                return self._sign_in.page(reload=headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"))
        self.gate.check_token(path, headers)
        if path == "/v1/predict" and method == "POST":
            return await self.service.predict(headers, scope["query_string"], receive)
        return self.app
