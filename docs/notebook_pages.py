"""Write the notebooks as pages of the site, with the outputs that they store (`make docs` runs this; nothing is run).

The picture of a cell has the paragraph before it as its text alternative.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FOLDER = Path(__file__).parent / "reference" / "notebooks"


def page(path: Path) -> str:
    """Return a notebook as Markdown, and write its pictures beside it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts, above = [], path.stem
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            above = re.sub(r"[`*#\[\]]", "", source.strip().split("\n\n")[-1]).replace("\n", " ")
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_output(output, f"{path.stem}-{number}", above) for output in cell["outputs"]]
    first = f"Run it yourself: `notebooks/{path.name}`. What follows was stored when it was last run."
    title, *rest = parts
    heading, _, introduction = title.partition("\n")
    return "\n\n".join([heading, introduction.strip(), first, *rest]) + "\n"


def _output(output: dict[str, Any], name: str, alt: str) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return '```{raw} html\n<div class="output">' + "".join(data["text/html"]).replace("\n", " ") + "</div>\n```"
    if "image/png" in data:
        (FOLDER / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
        return f"```{{image}} {name}.png\n:alt: {alt}\n```"
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        (FOLDER / f"{path.stem}.md").write_text(page(path), encoding="utf-8")


if __name__ == "__main__":
    main()
