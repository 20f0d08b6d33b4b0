"""/docs: the OpenAPI document as a plain page, made here: no script, and nothing fetched from another host."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment

STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d8d8d8, #444); --quiet: light-dark(#555, #aaa); }
:root { --accent: light-dark(#0b6e66, #5cc5ba); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; font-size: 1.1rem; border-top: 1px solid var(--line); padding-top: 1rem; }
code, pre { font: 0.9em/1.45 ui-monospace, monospace; }
pre { overflow: auto; padding: 0.75rem 1rem; border: 1px solid var(--line); border-radius: 6px; max-height: 24rem; }
.method { color: var(--accent); }
.quiet, td:first-child { color: var(--quiet); }
td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""

_PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}: the API</title><link rel="stylesheet" href="docs.css"></head><body>
<h1>{{ title }} {{ version }}: the API</h1>
<p>The same for programs: <a href="openapi.json">openapi.json</a>. Errors are <code>application/problem+json</code> with
a sentence in <code>detail</code>. For example:</p>
<pre>curl -F image=@seven.png {{ address }}/v1/predict</pre>
{% for operation in operations %}
<h2 id="{{ operation.anchor }}">
<code><span class="method">{{ operation.method }}</span> {{ operation.path }}</code></h2>
<p>{{ operation.summary }}</p>
{% for parameter in operation.parameters %}
<p><code>?{{ parameter.name }}=</code> {{ parameter.schema.description }}</p>
{% endfor %}
{% for kind, schema in operation.bodies %}
<p class="quiet">Send <code>{{ kind }}</code>:</p><pre>{{ schema }}</pre>
{% endfor %}
<table>
{% for status, description in operation.responses %}
<tr><td>{{ status }}</td><td>{{ description }}</td></tr>
{% endfor %}
</table>
{% for schema in operation.answers %}<p class="quiet">Answer:</p><pre>{{ schema }}</pre>{% endfor %}
{% endfor %}
</body></html>
""")


def render(openapi: dict[str, Any], address: str) -> str:
    """`address`: the server's own, for the example."""
    operations = [
        _operation(path, method, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    info = openapi["info"]
    return _PAGE.render(title=info["title"], version=info["version"], address=address, operations=operations)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    bodies = operation.get("requestBody", {}).get("content", {})
    good = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    return {
        "path": path,
        "method": method.upper(),
        "anchor": f"{method}-{path.strip('/').replace('/', '-')}",
        "summary": operation.get("summary", ""),
        "parameters": operation.get("parameters", []),
        "bodies": [(kind, _pretty(content.get("schema", {}))) for kind, content in bodies.items()],
        "responses": [(status, one.get("description", "")) for status, one in operation["responses"].items()],
        "answers": [_pretty(good)] if good else [],
    }


def _pretty(schema: Any) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False)
