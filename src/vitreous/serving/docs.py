"""/docs and /openapi.json: the contract with examples, as a page and as a document for programs.

The page has no scripts; FastAPI's own loads some from another host.

The examples run when one of the two is first opened: this server's own models give the responses.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI

from vitreous.reports.pages import page_environment
from vitreous.serving.examples import (
    Example,
    Operation,
    as_text,
    encoded,
    picture_for,
    run_examples,
    shortened,
)
from vitreous.serving.responses import Problem
from vitreous.serving.service import Service
from vitreous.serving.static_files import StaticFile

_HERE = Path(__file__).parent
_log = logging.getLogger("vitreous.serving")
MOST_EXAMPLE_BYTES = 16_384  # of one example in openapi.json; a longer one is truncated


class Documents:
    """Made on request, then kept; where the server is too busy for the examples, made without them and not kept."""

    def __init__(self, app: FastAPI, service: Service, address: str):
        self._app, self._service, self._address = app, service, address
        self._lock = asyncio.Lock()
        self._files: tuple[StaticFile, StaticFile] | None = None
        self._picture: StaticFile | None = None

    async def page(self) -> StaticFile:
        return (await self._made())[0]

    async def openapi(self) -> StaticFile:
        return (await self._made())[1]

    async def picture(self) -> StaticFile:
        """Return the picture that the examples send, for people who want to try them."""
        self._picture = self._picture or StaticFile(encoded(picture_for(self._service.find(None))), "image/png")
        return self._picture

    async def _made(self) -> tuple[StaticFile, StaticFile]:
        async with self._lock:
            if self._files is not None:
                return self._files
            examples: dict[Operation, Example] = {}
            try:
                examples = await run_examples(self._service)
            except Problem as problem:
                _log.warning("/docs has no examples this time: %s", problem.detail)
            openapi = with_examples(self._app.openapi(), examples)
            page = StaticFile(render(openapi, self._address, examples).encode(), "text/html")
            made = page, StaticFile(orjson.dumps(openapi), "application/json")
            self._files = made if examples else None
            return made


def with_examples(openapi: dict[str, Any], examples: dict[Operation, Example]) -> dict[str, Any]:
    """Return the OpenAPI document with an example of each request and response."""
    document = copy.deepcopy(openapi)
    for (path, method), example in examples.items():
        operation = document["paths"][path][method]
        operation["responses"]["200"]["content"]["application/json"]["example"] = _bounded(example.response)
        if example.request is not None:
            operation["requestBody"]["content"]["application/json"]["example"] = _bounded(example.request)
    return document


def _bounded(value: Any) -> Any:
    return value if len(orjson.dumps(value)) <= MOST_EXAMPLE_BYTES else shortened(value)


def render(openapi: dict[str, Any], address: str, examples: dict[Operation, Example]) -> str:
    """Return the page; `address` is the server's own, for the commands."""
    schemas = openapi["components"]["schemas"]
    operations = [
        {
            "path": path,
            "method": method.upper(),
            "anchor": f"{method}-{path.strip('/').replace('/', '-')}",
            "summary": operation["summary"],
            "parameters": operation.get("parameters", []),
            "request": _schemas_of(operation.get("requestBody", {}), schemas),
            "responses": [(status, response["description"]) for status, response in operation["responses"].items()],
            "response": _schemas_of(operation["responses"]["200"], schemas),
            "example": _shown(path, method, address, examples.get((path, method))),
        }
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    template = page_environment(_HERE).get_template("docs.html.jinja")
    return template.render(info=openapi["info"], operations=operations, has_examples=bool(examples))


def _shown(path: str, method: str, address: str, example: Example | None) -> dict[str, str] | None:
    """Return an example as a command and its output, both shortened."""
    if example is None:
        return None
    options = "" if method == "get" else "-F image=@example.png "
    if example.request is not None:
        body = json.dumps(shortened(example.request), ensure_ascii=False)
        options = f"-H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)} \\\n  "
    return {"command": f"curl {options}{address}{path}", "response": as_text(shortened(example.response))}


def _schemas_of(described: dict[str, Any], schemas: dict[str, Any]) -> dict[str, str]:
    """Return the schema of each media type of a request or response, as indented JSON."""
    return {
        media_type: json.dumps(_inline(content.get("schema", {}), schemas), indent=1, ensure_ascii=False)
        for media_type, content in described.get("content", {}).items()
        if content.get("schema")
    }


def _inline(schema: Any, schemas: dict[str, Any]) -> Any:
    """Replace references by what they refer to, and drop the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [_inline(one, schemas) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    return {key: _inline(value, schemas) for key, value in schema.items() if key != "title"}
