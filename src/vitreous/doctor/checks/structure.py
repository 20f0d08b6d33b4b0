"""Is the model built as intended, of separate blocks?"""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.doctor.attention_ops import layer_op
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node


def block_reused(tested: ModelUnderTest) -> Iterator[Finding]:
    """Linear layers applied to something that was computed with the same layer."""
    graph = tested.graph
    uses: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if (linear := layer_op(node)) is not None:
            uses.setdefault(linear.weight, []).append(node)
    if not uses:
        raise NotMeasured("no linear layer was observed")
    chains = {name: _chain(graph, nodes) for name, nodes in uses.items() if len(nodes) > 1}
    reused = {name: length for name, length in chains.items() if length > 1}
    if len(reused) >= 2:  # one layer alone (a shared projection) is no block
        name, times = max(reused.items(), key=lambda item: item[1])
        yield finding(
            "block-reused",
            f"the same {len(reused)} of {len(uses)} linear layers, among them `{name}`, are applied {times} times one"
            " after the other: the depth has no parameters of its own.",
            module=uses[name][0].module,
        )


def _chain(graph: Graph, nodes: list[Node]) -> int:
    """Return how many of these nodes depend on each other, one after the other."""
    length, last = 1, nodes[0]
    for node in nodes[1:]:
        if graph.depends(node, last):
            length, last = length + 1, node
    return length
