"""/docs: the OpenAPI document as a plain page without scripts; FastAPI's own loads scripts from another host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitreous.reports.pages import page_environment

_HERE = Path(__file__).parent
STYLESHEET = _HERE / "docs.css"


def render(openapi: dict[str, Any], address: str) -> str:
    """Return the page; `address` is the server's own, for the example."""
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
            "response": _schemas_of(operation["responses"]["200"], schemas).get("application/json"),
        }
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    template = page_environment(_HERE).get_template("docs.html.jinja")
    return template.render(info=openapi["info"], address=address, operations=operations)


def _schemas_of(described: dict[str, Any], schemas: dict[str, Any]) -> dict[str, str]:
    """Return the schema of each media type of a request or response, as indented JSON."""
    return {
        media_type: json.dumps(_inline(content.get("schema", {}), schemas), indent=1, ensure_ascii=False)
        for media_type, content in described.get("content", {}).items()
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
