"""The attention and linear layers found in a recording.

Shapes: G groups (images × heads) of Q queries and S keys, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vitreous.doctor.graph import origin
from vitreous.doctor.recording import Node, Recorder, unscaled, without_views


@dataclass(frozen=True, eq=False)
class ScoreProduct:
    """The product q·k of queries (G, Q, K) and keys (G, K, S) from which the logits are computed."""

    product: Node
    query_operand: Node
    key_operand: Node
    key_node: Node  # without scaling and views
    scale: float  # the factor between q·k and the logits, as the layers compute q and k; NaN if learned
    scale_after: float  # the part of it that is applied to the product

    @property
    def query(self) -> Tensor:
        return self.query_operand.tensor

    @property
    def key(self) -> Tensor:
        return self.key_operand.tensor

    @property
    def is_normalised(self) -> bool:
        """Whether all queries have the same length, and all keys: on purpose (cosine attention, QK-norm)."""
        lengths = self.query.norm(dim=-1), self.key.norm(dim=-2)
        return all(length.numel() >= 4 and float(length.std()) <= 1e-3 * float(length.mean()) for length in lengths)


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionOp:
    """One attention: weights (G, Q, S) times values (G, S, K)."""

    module: str
    product: Node  # weights times values
    value_operand: Node
    is_transposed: bool  # the product is values (G, K, S) times weights (G, S, Q)
    weights: Tensor
    weight_factor: float  # the factor between the softmax and the weights, 1 in the paper; NaN if learned
    values: Tensor
    logits_node: Node
    logits: Tensor  # the input of the softmax
    unmasked: Tensor  # the same before masks and biases were added
    softmax_dim: int
    scores: ScoreProduct | None  # None if the logits are not computed from a product q·k


@dataclass(frozen=True, eq=False)
class Softmax:
    """A softmax: torch's, or exp(x) / sum(exp(x)) written by hand."""

    result: Node
    logits: Node
    dim: int


def attention_ops(recorder: Recorder) -> list[AttentionOp]:
    """Return every softmax whose result is multiplied with other activations (unlike a softmax over the classes)."""
    found: list[AttentionOp] = []
    seen: set[int] = set()
    for node in recorder.nodes:
        if node.op not in ("mm", "bmm") or not all(parent.from_input for parent in node.parents):
            continue
        for position, operand in enumerate(node.parents):
            softmax, factor = softmax_of(operand), _undropped(operand)[1]
            if softmax is None or id(softmax.result) in seen:
                continue
            seen.add(id(softmax.result))
            weights, values = operand.tensor, node.parents[1 - position].tensor
            if position == 1:  # values @ weights: transpose both, so that the summed axis is S
                weights, values = weights.mT, values.mT
            if weights.ndim == 2:
                weights, values = weights[None], values[None]
            logits = softmax.logits
            found.append(
                AttentionOp(
                    module=softmax.result.module,
                    product=node,
                    value_operand=node.parents[1 - position],
                    is_transposed=position == 1,
                    weights=weights,
                    weight_factor=factor,
                    values=values,
                    logits_node=logits,
                    logits=logits.tensor,
                    unmasked=_without_masks(logits).tensor,
                    softmax_dim=softmax.dim,
                    scores=score_product(logits),
                )
            )
    return found


@dataclass(frozen=True, eq=False)
class SummedWeights:
    """Weights of tokens that are summed before they meet the values, so that each sum is 1."""

    total: Node  # the sums
    softmax: Softmax
    scores: ScoreProduct


def summed_weights(recorder: Recorder, ops: list[AttentionOp]) -> list[SummedWeights]:
    """Return the softmaxes over q·k whose weights are summed, apart from those of `ops`."""
    used = {id(op.logits_node) for op in ops}
    found = []
    for node in recorder.nodes:
        softmax = softmax_of(node.parents[0]) if node.op == "sum" and node.from_input and node.parents else None
        if softmax is None or id(softmax.logits) in used or (scores := score_product(softmax.logits)) is None:
            continue
        sums = node.tensor.detach().float()
        typical = float(sums.mean())  # 1, or what the weights were multiplied by afterwards
        if float((sums - typical).abs().max()) < 1e-3 * typical and node.parents[0].tensor.numel() > sums.numel():
            found.append(SummedWeights(node, softmax, scores))
    return found


def softmax_of(node: Node) -> Softmax | None:
    """Return the softmax whose result this is, with views, dropout and scaling at most in between."""
    return _softmax(_undropped(node)[0])


def _undropped(node: Node) -> tuple[Node, float]:
    """Walk back through views, dropout and scaling; return the node reached and the product of the factors."""
    factor = 1.0
    while True:
        inner, scale = unscaled(origin(node))
        factor *= scale
        if inner is node:
            return node, factor
        node = inner


def _softmax(node: Node) -> Softmax | None:
    if node.op in ("_softmax", "_safe_softmax"):
        return Softmax(node, node.parents[0], node.arguments[1] % node.tensor.ndim)
    if node.op not in ("div", "mul") or len(node.parents) != 2:
        return None
    full = [parent for parent in node.parents if parent.tensor.shape == node.tensor.shape]
    sums = [parent for parent in node.parents if parent.tensor.shape != node.tensor.shape]
    if len(full) != 1 or len(sums) != 1 or not sums[0].from_input:
        return None
    exponential, total = origin(full[0]), origin(sums[0])
    while total.op in ("add", "clamp", "clamp_min", "reciprocal") and total.parents:  # ε against a division by 0
        total = origin(next((parent for parent in total.parents if parent.from_input), total.parents[0]))
    if total.op != "sum" or origin(total.parents[0]) is not exponential:
        return None
    axes = [axis for axis in range(node.tensor.ndim) if sums[0].tensor.shape[axis] != node.tensor.shape[axis]]
    if len(axes) != 1 or sums[0].tensor.ndim != node.tensor.ndim:
        return None
    if exponential.op != "exp":  # another function that is normalised: its values take the place of the logits
        return Softmax(node, exponential, axes[0])
    return Softmax(node, _before_shift(exponential.parents[0]), axes[0])


def _before_shift(node: Node) -> Node:
    """Return x for x − max(x)."""
    inner = without_views(node)
    if inner.op == "sub" and len(inner.parents) == 2 and origin(inner.parents[1]).op in ("amax", "max"):
        return inner.parents[0]
    return node


#: What may lie between the scores and their use as weights: scaling, biases, masks and activations.
_ON_SCORES = frozenset(["mul", "div", "add", "sub", "masked_fill", "where", "tril", "triu", "clamp", "nan_to_num",
    "index_put"])  # fmt: skip
_ACTIVATIONS = frozenset(["relu", "sigmoid", "tanh", "gelu", "silu", "elu", "softplus", "exp", "pow", "leaky_relu",
    "clamp_min", "hardtanh", "threshold", "abs", "square"])  # fmt: skip


@dataclass(frozen=True, eq=False)
class Unnormalised:
    """Scores q·k that are multiplied with the values, with no softmax between."""

    scores: Node  # the product q·k
    product: Node  # weights times values
    operand: Node  # the weights
    activations: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.product.module


def unnormalised_attention(recorder: Recorder) -> list[Unnormalised]:
    """Return the products of activations with scores that were computed from activations, and not normalised since.

    What contracts the tokens first, as linear attention q·(kᵀ·v) does, is among them; the caller tells them apart.
    """
    readers: dict[int, list[Node]] = {}
    for node in recorder.nodes:
        for parent in node.parents:
            readers.setdefault(id(parent), []).append(node)
    found = []
    for node in recorder.nodes:
        if node.op not in ("mm", "bmm") or not all(parent.from_input for parent in node.parents):
            continue
        for operand in node.parents:
            walked, activations = [operand], []
            inner = origin(operand)
            for _ in range(12):
                walked.append(inner)
                shifted = _before_shift(inner)  # exp(x − max(x)), without the division
                data = [parent for parent in inner.parents if parent.from_input] if shifted is inner else [shifted]
                if inner.op not in _ON_SCORES | _ACTIVATIONS or len(data) != 1:
                    break
                activations += [inner.op] if inner.op in _ACTIVATIONS else []
                inner = origin(data[0])
            is_product = inner.op in ("mm", "bmm", "baddbmm") and all(p.from_input for p in inner.parents[-2:])
            sums = [
                child for one in walked for child in readers.get(id(one), [])
                if child.op == "sum" or (child.op == "_softmax" and _is_read(child, readers, recorder.output))
            ]  # fmt: skip
            if is_product and not sums:  # a sum may divide the result afterwards
                found.append(Unnormalised(inner, node, operand, tuple(activations)))
    return found


def _is_read(node: Node, readers: dict[int, list[Node]], output: Node | None) -> bool:
    """Whether the output depends on this node."""
    waiting, seen = [node], {id(node)}
    while waiting:
        node = waiting.pop()
        if node is output:
            return True
        waiting += [child for child in readers.get(id(node), []) if id(child) not in seen]
        seen |= {id(child) for child in readers.get(id(node), [])}
    return False


def _without_masks(node: Node) -> Node:
    """Walk back from the softmax's input through views and through what is added without depending on the image."""
    while True:
        inner = without_views(node)
        data = [parent for parent in inner.parents if parent.from_input]
        if inner.op not in ("add", "sub", "masked_fill", "where", "index_put") or len(data) != 1:
            return inner if inner.tensor.shape[-1] == node.tensor.shape[-1] else node
        node = data[0]


def score_product(node: Node, scale: float = 1.0, depth: int = 0) -> ScoreProduct | None:
    """Walk from the softmax's input back to the product q·k, past scaling, biases and masks."""
    node, factor = unscaled(node)
    scale *= factor
    if node.op in ("mm", "bmm", "baddbmm"):
        query, key = node.parents[-2:]
        if not (query.from_input and key.from_input):
            return None  # a product with a parameter is a linear layer
        (_, query_factor), (key_node, key_factor) = unscaled(query), unscaled(key)
        before = query_factor * key_factor * float(node.options.get("alpha", 1))
        return ScoreProduct(node, query, key, key_node, scale * before, scale)
    if node.op in ("add", "sub", "masked_fill", "where", "clamp", "nan_to_num", "index_put") and depth < 8:
        for parent in node.parents:
            if parent.from_input and (found := score_product(parent, scale, depth + 1)) is not None:
                return found
    return None


@dataclass(frozen=True, eq=False)
class LinearOp:
    """One application of a linear layer: a product of data with a parameter."""

    weight: str
    in_features: int
    out_features: int
    data: Node
    output: Node


def linear_op(node: Node) -> LinearOp | None:
    if node.op not in ("mm", "bmm", "baddbmm", "addmm"):
        return None
    data, matrix = node.parents[-2:]
    leaf = without_views(matrix)
    # the layers in a plain list are no parameters of the model, and layers all the same
    is_weight = leaf.kind == "parameter" or (leaf.kind == "plain" and isinstance(leaf.tensor, nn.Parameter))
    if not data.from_input or matrix.from_input or not is_weight:
        return None
    in_features, out_features = matrix.tensor.shape[-2:]
    return LinearOp(leaf.name, in_features, out_features, data, node)


def layer_op(node: Node) -> LinearOp | None:
    """Return a linear layer, or a 1-D convolution of kernel 1, which is one with the features in the middle."""
    if node.op != "convolution" or node.tensor.ndim != 3 or not node.parents[0].from_input:
        return linear_op(node)
    weight = node.parents[1]
    if weight.from_input or weight.tensor.shape[-1] != 1 or node.arguments[8] != 1:
        return None
    out_features, in_features = weight.tensor.shape[:2]
    return LinearOp(without_views(weight).name, in_features, out_features, node.parents[0], node)


def linear_feeding(node: Node) -> LinearOp | None:
    """Return the linear layer whose output `node` is, with only views (and the layer's own bias) in between.

    Of a sum of two such outputs, which is linear too, the first.
    """
    node = without_views(node)
    if node.op == "add" and len(node.parents) == 2 and all(parent.from_input for parent in node.parents):
        layers = [layer_op(without_views(parent)) for parent in node.parents]
        return layers[0] if all(layers) else None
    if node.op == "add":
        leaves = [without_views(parent) for parent in node.parents]
        data = [parent for parent in node.parents if parent.from_input]
        if sum(leaf.kind == "parameter" and leaf.tensor.ndim == 1 for leaf in leaves) != 1 or len(data) != 1:
            return None
        node = without_views(data[0])
    return layer_op(node) or patch_layer(node)


def patch_layer(node: Node) -> LinearOp | None:
    """Return a convolution whose patches do not overlap, which is a linear layer on patches."""
    if node.op != "convolution" or not node.from_input:
        return None
    _, weight, _, stride, padding, dilation, transposed, _, groups = node.arguments
    if list(weight.shape[2:]) != list(stride) or any(padding) or set(dilation) != {1} or transposed or groups != 1:
        return None
    name = without_views(node.parents[1]).name
    return LinearOp(name, weight[0].numel(), weight.shape[0], node.parents[0], node)
