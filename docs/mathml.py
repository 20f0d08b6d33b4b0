"""Sphinx: set mathematics as MathML, by docutils' own converter. Browsers draw it without a script, and offline."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging


def _write(writer: Any, node: nodes.Element, block: bool) -> None:
    try:
        # the prime is raised already: as part of the name it is as large as TeX draws it
        tex = re.sub(r"(\\mathbf\{\w\})\^\{\\prime\}", r"{\1\\prime}", node.astext())
        written = tex2mathml(tex, as_block=block)
    except MathError as error:  # a warning fails the build
        logging.getLogger(__name__).warning("cannot set %r: %s", node.astext(), error, location=node)
        raise nodes.SkipNode from error
    written = written.replace("<mo>′</mo>", "<mi>′</mi>")  # part of a name: no space of an operator
    writer.body.append(f'<div class="equation" tabindex="0">{written}</div>' if block else written)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    inline = (lambda writer, node: _write(writer, node, block=False), None)
    app.add_html_math_renderer("mathml", inline, (lambda writer, node: _write(writer, node, block=True), None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
