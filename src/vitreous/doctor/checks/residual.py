"""Is each branch a residual one: x + f(norm(x)), with the skip from the stream itself, once, and a norm that fits?

Works on the sums of a recording: in x + f(x), one operand (the skip) is an ancestor of the other (the branch).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vitreous.doctor.attention_ops import AttentionOp, layer_op, linear_feeding, linear_op
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import FUSED_NORMS, NORMS, Graph, origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import is_statistic, norms_of
from vitreous.doctor.recording import Node
from vitreous.reports.formats import plural

#: A block has two to four branches; a skip connection around a whole stack of blocks is no mistake.
_LEVELS = 4
_NORM_ARITHMETIC = frozenset(["sub", "mul", "div", "pow"])


@dataclass(frozen=True, eq=False)
class Residual:
    """One sum of a skip and a branch."""

    total: Node
    skip: Node
    branch: Node
    kind: str  # attention, MLP, token MLP
    has_norm: bool  # somewhere in the branch

    @property
    def module(self) -> str:
        return self.total.module


def skip_normalised(tested: ModelUnderTest) -> Iterator[Finding]:
    """The skip must carry the stream, not its normalised copy."""
    graph, sums = tested.graph, _sums(tested)
    swapped = [pair for node in graph.nodes if (pair := _swapped(graph, node)) is not None]
    if swapped:
        total, norm = swapped[0]
        yield finding(
            "skip-normalised",
            f"in {plural(len(swapped), 'sum')}, first in `{total.module}`, a branch reads the stream as it is while the"
            f" skip connection carries the output of the norm `{norm.module}`: the two are swapped.",
            module=total.module,
        )
        return
    found = residuals(tested)
    if not found:
        raise NotMeasured("no residual connection was observed")
    mixing = "attention" if tested.has_attention else "token MLP"
    kinds = {kind: [residual for residual in found if residual.kind == kind] for kind in (mixing, "MLP")}
    open_end = _features_leave_unnormalised(graph, sums)
    for kind, those in kinds.items():
        normed = [residual for residual in those if norms_of(residual.skip)]
        if normed and len(normed) < len(those) and (odd := _normalised_by_mistake(found, those, normed)):
            yield finding(
                "skip-normalised",
                f"in {len(odd)} of {_branches(len(those), kind)}, first in `{odd[0].module or 'forward'}`, the skip"
                f" connection starts after the norm `{odd[0].skip.module or 'forward'}`; in the others it carries the"
                " stream itself.",
                module=odd[0].module,
            )
            return
        if not normed or len(normed) < len(those):
            continue
        # A post-norm model looks the same in the middle: x = norm(x + f(x)). There the norm belongs to the block
        # before, the last sum is normalised, and no branch begins with a norm.
        own = [residual for residual in normed if _parent(residual.skip.module) == residual.module != ""]
        others = kinds["MLP" if kind == mixing else mixing]
        others_pre_norm = bool(others) and all(other.has_norm and not norms_of(other.skip) for other in others)
        if others_pre_norm or (kind == mixing and (len(own) == len(normed) or open_end)):
            first = normed[0]
            yield finding(
                "skip-normalised",
                f"in {len(normed)} of {_branches(len(those), kind)}, first in `{first.module or 'forward'}`,"
                f" the skip connection starts after the norm `{first.skip.module or 'forward'}`: the stream itself is"
                " dropped, and each block passes on normalised tokens only.",
                # around the MLP alone: so are the blocks of the published CCT and ViT-Lite
                level="note" if kind == "MLP" else None,
                module=first.module,
            )
            return


def _normalised_by_mistake(found: list[Residual], those: list[Residual], normed: list[Residual]) -> list[Residual]:
    """Return the skips that carry a normalised sum while all other branches of the model are pre-norm.

    The first branch may follow a norm of the embedding, and a stage may begin with one.
    """
    others = [residual for residual in found if residual not in normed]
    if len(normed) > 1 and len(normed) >= len(those) - len(normed):
        return []
    if not all(other.has_norm for other in others if other.kind in ("attention", "MLP")):
        return []
    totals = {id(residual.total) for residual in found}
    return [one for one in normed if id(_unnormalised(one.skip)) in totals]


def mlp_misses_attention(tested: ModelUnderTest) -> Iterator[Finding]:
    """In x₁ = x + attention(x), x₂ = x₁ + MLP(…), the MLP must read x₁."""
    graph = tested.graph
    inner = {id(residual.total): residual for residual in residuals(tested) if residual.kind == "attention"}
    if not inner:
        raise NotMeasured("no residual connection around attention was observed")
    beside, behind = "the block's input", "what attention returns, without the stream"
    past: dict[str, list[Node]] = {beside: [], behind: []}
    for total in _sums(tested):
        one, two = (origin(parent) for parent in total.parents)
        for stream, branch in ((one, two), (two, one)):
            residual = inner.get(id(stream))
            if residual is None or graph.depends(branch, stream) or not graph.depends(branch, residual.skip):
                continue
            from_attention = graph.depends(branch, residual.branch)
            start = residual.branch if from_attention else residual.skip
            nodes = graph.between(start, branch)[1:]
            is_mlp = sum(layer_op(node) is not None for node in nodes) >= 2
            if is_mlp and (from_attention or _is_accident(tested, residual, nodes)):
                past[behind if from_attention else beside].append(total)
    for what, totals in past.items():
        if totals:
            yield finding(
                "mlp-misses-attention",
                f"in {plural(len(totals), 'block')}, first `{totals[0].module or 'forward'}`, the MLP reads {what},"
                " instead of the stream after attention.",
                module=totals[0].module,
            )
            return


def _is_accident(tested: ModelUnderTest, residual: Residual, branch: list[Node]) -> bool:
    """Whether an MLP beside attention looks like a slip: it has a norm of its own, and nothing is called parallel."""
    norms = [{id(node) for node in nodes if node.op in FUSED_NORMS or norms_of(node)}
             for nodes in (tested.graph.between(residual.skip, residual.branch)[1:], branch)]  # fmt: skip
    attends = {id(op.product) for op in tested.attention} & {id(node) for node in branch}
    names = [type(module).__name__.lower() for module in tested.model.modules()]
    deliberate = any("parallel" in name and "dataparallel" not in name for name in names)
    return not attends and not deliberate and bool(norms[1] - norms[0])


def branch_not_normalised(tested: ModelUnderTest) -> Iterator[Finding]:
    """Attention (or MLP) that reads the raw stream, with no norm before, inside or after it."""
    found = residuals(tested)
    if not found:
        raise NotMeasured("no residual connection was observed")
    if any(_swapped(tested.graph, node) for node in tested.graph.nodes):
        raise NotMeasured("the norm is on the skip connection instead, which includes this")
    bare = [residual for residual in found if _is_bare(tested.graph, residual)]
    bare += [residual for residual in found if residual not in bare and _is_bare_before_the_last_norm(found, residual)]
    if not bare:
        return
    kinds = Counter(residual.kind for residual in found)
    for kind in ("attention", "token MLP", "MLP"):
        those = [residual for residual in bare if residual.kind == kind]
        normed = [residual for residual in found if residual.kind == kind and residual.has_norm]
        others_normed = kinds[kind] < len(found) and all(r.has_norm for r in found if r.kind != kind)
        # the first block may follow a norm of the embedding or of a stage, the last one be followed by the final norm
        if those and (
            len(those) >= kinds[kind] - 1 or len(those) + len(normed) == kinds[kind] or (not normed and others_normed)
        ):
            everywhere = not any(residual.has_norm or residual.skip.op in NORMS for residual in found)
            yield finding(
                "branch-not-normalised",
                f"{len(those)} of {_branches(kinds[kind], kind)} read the stream without a norm, first in"
                f" `{those[0].module or 'forward'}`"
                + (": no branch of the model has one." if everywhere else ", where other branches have one."),
                level="note" if everywhere else None,
                module=those[0].module,
            )
            return


def skip_missing(tested: ModelUnderTest) -> Iterator[Finding]:
    """No attention and no MLP over tokens may be on every path from the image to the output."""
    if around := _skips_that_start_early(tested):
        first = around[0]
        yield finding(
            "skip-missing",
            f"in {plural(len(around), 'block')}, first `{first.module or 'forward'}`, the skip connection around the"
            " MLP starts before the attention: what attention adds reaches the next block only through the MLP.",
            module=first.module,
        )
        return
    graph = tested.graph
    layers_of_attention = [
        (start, ops) for start, ops in (stages(tested) if tested.has_attention else [])
        if ops[0].weights.shape[-1] == ops[0].weights.shape[-2] > 1
    ]  # fmt: skip
    regions = []  # what each attention computes, up to the next one over the same tokens
    for (start, ops), (end, _) in itertools.pairwise([*layers_of_attention, (graph.output, [])]):
        if end is not None and start is not None and (end is graph.output or start.tensor.shape == end.tensor.shape):
            regions.append((ops, graph.between(ops[-1].product, end)))
    if not regions and not residuals(tested):
        raise NotMeasured("neither attention over tokens nor residual connections were observed")
    missing: dict[str, list[str]] = {"attention": [], "MLP": []}
    for ops, region in regions:
        joined = ops[0].product if len(ops) == 1 else next((node for node in region if node.op == "cat"), None)
        if joined is not None and id(joined) in graph.unavoidable:
            missing["attention"].append(ops[0].module)
    for region in [region for _, region in regions] or [graph.nodes]:
        pair = next(_unavoidable_mlps(tested, region), None)
        missing["MLP"] += [pair] if pair is not None else []
    total = len(regions) or len(missing["MLP"])
    for what, modules in missing.items():
        if modules:
            yield finding(
                "skip-missing",
                f"around {len(modules)} of {_branches(total, what)} (first: `{modules[0] or 'forward'}`) there is no"
                f" skip connection: every path from the image to the output passes through the {what}.",
                module=modules[0],
            )
            return
    blocks = list(_blocks_without_skip(tested, layers_of_attention))
    if blocks:
        yield finding(
            "skip-missing",
            f"in {plural(len(blocks), 'block')} (first at `{blocks[0] or 'forward'}`) no path leads past the layers:"
            " attention and MLP replace the stream instead of adding to it.",
            module=blocks[0],
        )


def _unavoidable_mlps(tested: ModelUnderTest, region: list[Node]) -> Iterator[str]:
    """Yield the modules of two layers, D → H → D for every token, that every path passes."""
    layers = [layer for node in region if (layer := layer_op(node))]
    for two in layers:
        if id(two.output) not in tested.graph.unavoidable:
            continue
        if two.output.tensor.numel() <= tested.num_recorded * two.out_features:  # behind the pooling
            continue
        for one in layers:
            is_mlp = one.in_features == two.out_features and one.out_features in (two.in_features, 2 * two.in_features)
            if is_mlp and one is not two and tested.graph.depends(two.output, one.output):
                yield two.output.module
                return


def _blocks_without_skip(tested: ModelUnderTest, stages: list[tuple[Node, list[AttentionOp]]]) -> Iterator[str]:
    """Yield the modules of attentions past which nothing leads to the next one without passing a layer.

    What leads past must include the attention before: a skip from the embedding leaves out the blocks in between.
    """
    graph = tested.graph
    for number, (start, ops) in enumerate(stages):
        product = ops[0].product
        behind = [end for end, _ in stages[number + 1 :] if graph.depends(end, product)]  # others run in parallel
        is_read = graph.output is None or graph.depends(graph.output, product)
        # a branch that is computed and thrown away is another fault
        if not behind or not is_read or behind[0].tensor.shape != start.tensor.shape:
            continue
        before = [
            those[0].product for first, those in stages[:number]
            if graph.depends(start, those[0].product) and first.tensor.shape == start.tensor.shape
        ]  # fmt: skip
        if not _leads_past(graph, product, behind[0], before[-1] if before else None):
            yield ops[0].module


def _leads_past(graph: Graph, product: Node, end: Node, since: Node | None) -> bool:
    """Whether something between `since` and the product reaches `end` by sums, norms and moves alone."""
    waiting, seen = [end], {id(end)}
    while waiting:
        node = waiting.pop()
        if node.op in ("mm", "bmm", "addmm", "baddbmm", "convolution", "_softmax"):
            continue
        if graph.depends(product, node):
            if since is None or graph.depends(node, since):
                return True
            continue
        parents = [parent for parent in node.parents if parent.from_input and id(parent) not in seen]
        seen |= {id(parent) for parent in parents}
        waiting += parents
    return False


def _skips_that_start_early(tested: ModelUnderTest) -> list[Residual]:
    """Return sums x + mlp(x + attention(x)), whose skip leaves out what attention has added."""
    found = residuals(tested)
    early = []
    for outer in found:
        for inner in found:
            if inner is outer or inner.skip is not outer.skip or inner.kind != "attention":
                continue
            behind = tested.graph.between(inner.total, outer.branch) if tested.graph.depends(
                outer.branch, inner.total) else []  # fmt: skip
            others = any(other.total in behind[1:] for other in found)
            if not others and sum(layer_op(node) is not None for node in behind) >= 2:
                early.append(outer)
    return early


def branch_doubled(tested: ModelUnderTest) -> Iterator[Finding]:
    """Write the stream as a sum: no term may occur twice."""
    sums = _sums(tested)
    if not sums:
        raise NotMeasured("no residual connection was observed")
    doubled = [node for node in sums if _has_duplicate(list(_terms(node, _LEVELS)))]
    if doubled:
        node = doubled[0]
        yield finding(
            "branch-doubled",
            f"in {plural(len(doubled), 'sum')}, first in `{node.module or 'forward'}`, the same tensor is added twice:"
            " a skip connection inside and outside of a block, or a branch that is added to itself.",
            module=node.module,
        )


# --- the sums of a recording ---------------------------------------------------------------------------------


def _sums(tested: ModelUnderTest) -> list[Node]:
    """Return the additions of two activations of the same shape, with tokens and features."""
    return [
        node
        for node in tested.graph.nodes
        if node.op == "add"
        and len(node.parents) == 2
        and all(parent.from_input and parent.tensor.shape == node.tensor.shape for parent in node.parents)
        and node.tensor.ndim >= 2
    ]


def residuals(tested: ModelUnderTest) -> list[Residual]:
    """Return the residual connections around attention and MLPs, in order."""
    graph = tested.graph
    attention = tested.attention if tested.has_attention else []
    found = []
    for total in _sums(tested):
        one, two = (origin(parent) for parent in total.parents)
        if graph.depends(two, one) and one is not two:
            skip, branch = one, two
        elif graph.depends(one, two) and one is not two:
            skip, branch = two, one
        else:
            continue
        nodes = graph.between(skip, branch)[1:]
        ids = {id(node) for node in nodes}
        inside = [op for op in attention if id(op.product) in ids]
        has_attention = bool(inside) or any(id(weights.total) in ids for weights in tested.summed_weights)
        if has_attention or sum(layer_op(node) is not None for node in nodes) >= 2:
            has_norm = any(node.op in NORMS and not _is_on_scores(graph, node, inside) for node in nodes)
            kind = "attention" if has_attention else _mlp_kind(total, nodes)
            found.append(Residual(total, skip, branch, kind, has_norm))
    return found


def _is_on_scores(graph: Graph, norm: Node, inside: list[AttentionOp]) -> bool:
    """Whether this norm belongs to queries or keys alone: the values are not normalised by it."""
    return any(
        op.scores is not None and graph.depends(op.scores.product, norm) and not graph.depends(op.value_operand, norm)
        for op in inside
    )


def _mlp_kind(total: Node, nodes: list[Node]) -> str:
    """Return "token MLP" where the first layer sums over the tokens, as in an MLP-Mixer."""
    first = next(layer for node in nodes if (layer := layer_op(node)))
    is_convolved = first.output.op == "convolution"
    return "MLP" if is_convolved or first.in_features == total.tensor.shape[-1] else "token MLP"


def _swapped(graph: Graph, total: Node) -> tuple[Node, Node] | None:
    """Return the sum and its norm if it is f(x) + norm(x), where f does not read the norm."""
    if total.op != "add" or len(total.parents) != 2 or total.parents[0].tensor.shape != total.parents[1].tensor.shape:
        return None
    if not all(parent.from_input for parent in total.parents):
        return None
    one, two = (origin(parent) for parent in total.parents)
    for norm, branch in ((one, two), (two, one)):
        if norm.op not in FUSED_NORMS or norm is branch or graph.depends(branch, norm):
            continue
        stream = origin(norm.parents[0])
        if not stream.from_input or not graph.depends(branch, stream) or branch is stream:
            continue
        nodes = graph.between(stream, branch)[1:]
        layers = any(node.op == "convolution" or linear_op(node) for node in nodes)  # 1×1 convolutions are linear
        if layers and not any(node.op in NORMS for node in nodes):
            return total, norm
    return None


def _is_bare(graph: Graph, residual: Residual) -> bool:
    if residual.has_norm or residual.skip.op in NORMS or residual.skip.op not in ("add", "cat"):
        return False
    if norms_of(residual.skip):  # a hand-written one ends with its offset
        return False
    return not all(_leads_to_norm(graph, child) for child in graph.children.get(id(residual.total), []))


def _is_bare_before_the_last_norm(found: list[Residual], residual: Residual) -> bool:
    """Whether the only branch of its kind has no norm, in a model whose other branches begin with one.

    The norm behind the last block makes this one look like a post-norm branch.
    """
    others = [other for other in found if other is not residual]
    is_only = bool(others) and all(other.kind != residual.kind for other in others)
    pre_norm = all(other.has_norm and not norms_of(other.skip) for other in others)
    return is_only and pre_norm and not residual.has_norm and residual.skip.op in ("add", "cat")


def _leads_to_norm(graph: Graph, node: Node) -> bool:
    """Whether this is a norm, or arithmetic of a hand-written one: x − mean, x², x · rsqrt(…)."""
    while node.op not in NORMS and (node.op == "native_dropout" or origin(node) is not node):
        children = graph.children.get(id(node), [])
        if len(children) != 1:
            return False
        node = children[0]
    if node.op in _NORM_ARITHMETIC:
        partners = [parent for parent in node.parents if parent.from_input]
        return node.op == "pow" or any(is_statistic(partner) for partner in partners)
    return node.op in NORMS


def _features_leave_unnormalised(graph: Graph, sums: list[Node]) -> bool:
    """Whether nothing normalises the last sum before the output."""
    if not sums or graph.output is None or not graph.depends(graph.output, sums[-1]):
        return False
    return not any(node.op in NORMS for node in graph.between(sums[-1], graph.output))


def _branches(count: int, kind: str) -> str:
    return plural(count, f"{kind} branch", f"{kind} branches")


def _parent(module: str) -> str:
    return module.rpartition(".")[0]


def _unnormalised(norm: Node) -> Node:
    """Return what a norm was computed from."""
    return origin(next(parent for parent in norms_of(norm)[-1].node.parents if parent.from_input))


def _has_duplicate(terms: list[Node]) -> bool:
    """Whether a term occurs twice, or once as it is and once normalised."""
    present = {id(term) for term in terms}
    return len(present) < len(terms) or any(id(_unnormalised(term)) in present for term in terms if norms_of(term))


def _terms(node: Node, depth: int) -> Iterator[Node]:
    """Flatten a sum of sums: the terms of x + (x + f) are x, x and f."""
    for parent in node.parents:
        inner = origin(parent)
        if inner.op == "add" and depth and len(inner.parents) == 2 and all(p.from_input for p in inner.parents):
            yield inner
            yield from _terms(inner, depth - 1)
        else:
            yield inner


def stages(tested: ModelUnderTest) -> list[tuple[Node, list[AttentionOp]]]:
    """Return what each layer of attention reads, with its attentions (one, or one per head)."""
    found: list[tuple[Node, list[AttentionOp]]] = []
    for op in tested.attention:
        if op.scores is None:
            continue
        key = _source(op.scores.key_operand)
        if key is None or key is not _source(op.scores.query_operand):
            continue
        if found and found[-1][0] is key:
            found[-1][1].append(op)
        else:
            found.append((key, [op]))
    return found


def _source(node: Node, steps: int = 12) -> Node | None:
    """Walk back from queries or keys to the input of the linear layer that they come from."""
    node = origin(node)
    if (linear := layer_op(node)) is not None:
        while (before := linear_feeding(linear.data)) is not None:  # projected twice
            linear = before
        return origin(linear.data)
    data = [parent for parent in node.parents if parent.from_input]
    sources = {id(source): source for parent in data if steps and (source := _source(parent, steps - 1)) is not None}
    return next(iter(sources.values())) if len(sources) == 1 else None
