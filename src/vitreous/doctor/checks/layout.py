"""Do tokens stay tokens: patches of neighbouring pixels, split into heads and merged again without being mixed up?

Every element gets a label, which is followed through the operations that only move elements. A measurement is None
where they cannot be followed, "" where they are in order, and a description otherwise.
Shapes: B images, N tokens, D width, G groups (images × heads) of S positions, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.attention_ops import AttentionOp, Unnormalised, attention_ops, layer_op, linear_op
from vitreous.doctor.constructors import constructor_values
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import FUSED_NORMS, Carried, Graph, origin
from vitreous.doctor.guessing import kind_of
from vitreous.doctor.model_io import is_image
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node, unscaled


def patches_scrambled(tested: ModelUnderTest) -> Iterator[Finding]:
    """Each token must be made from one rectangle of pixels, the same in every channel."""
    if not is_image(tested.shape):
        raise NotMeasured("the input is already split into patches")
    measured = [_pixels_of_tokens(tested), _embedding_to_tokens(tested), _tokens_to_maps(tested)]
    if not any(text is not None for text in measured):
        raise NotMeasured("the pixels of a token could not be followed")
    for text in measured:
        if text:
            yield finding("patches-scrambled", text)
            return


def heads_scrambled(tested: ModelUnderTest) -> Iterator[Finding]:
    """Splitting the width into heads, and merging the heads, must keep the tokens apart."""
    measured = False
    if not tested.summed_weights:
        tested.attention  # noqa: B018  raises where there is no attention at all
    for op in _first_and_last(attention_ops(tested.recording)):
        for text in (*(_split(tested.graph, *operand) for operand in _operands(op)), _merge(tested, op)):
            measured = measured or text is not None
            if text:
                yield finding("heads-scrambled", f"in `{op.module or 'forward'}`, {text}.", module=op.module)
                return
    for weights in tested.summed_weights[:1]:  # the values meet no weights, but queries and keys were split as well
        product, operands = weights.scores.product, (weights.scores.query_operand, weights.scores.key_operand)
        for what, operand, is_key in zip(("queries", "keys"), operands, (False, True), strict=True):
            text = _split(tested.graph, what, operand, product, is_key)
            measured = measured or text is not None
            if text:
                module = weights.softmax.result.module
                yield finding("heads-scrambled", f"in `{module or 'forward'}`, {text}.", module=module)
                return
    if not measured:
        raise NotMeasured("the elements of queries, keys and values could not be followed")


def _first_and_last(ops: list[AttentionOp]) -> list[AttentionOp]:
    """Blocks are built alike, so two of them are enough."""
    usable = [op for op in ops if op.weights.shape[-1] > 2]
    return usable[:1] + usable[1:][-1:]


# --- pixels to tokens ----------------------------------------------------------------------------------------


def _pixels_of_tokens(tested: ModelUnderTest) -> str | None:
    """Number the pixels, and read the numbers where a linear layer or a norm first computes with them."""
    channels, height, width = tested.shape
    count = channels * height * width
    numbered = torch.arange(count, dtype=torch.float32).view(1, channels, height, width) / count
    recording = tested.record(numbered.repeat(tested.num_recorded, 1, 1, 1).to(tested.device), randomised=True)
    node = next((node for node in recording.nodes if node.from_input and _features_of(node) is not None), None)
    if node is None or (data := _features_of(node)) is None or tested.num_recorded * count % data.tensor.shape[-1]:
        return None
    rows = data.tensor.reshape(-1, data.tensor.shape[-1]).double().cpu() * count
    rows = rows[: len(rows) // tested.num_recorded]
    numbers = rows.round().long()
    if len(rows) < 4 or rows.shape[1] < 4 or float((rows - numbers).abs().max()) > 0.1:
        return None  # one token for the whole image, or not pixels any more
    if int(numbers.min()) < 0 or int(numbers.max()) >= count or any(len(row.unique()) < len(row) for row in numbers):
        return None  # padding, or overlapping copies
    bad = [row for row in numbers if not _is_patch(row, channels, height, width)]
    if not bad:
        return _strips(tested, numbers[0])
    y, x = bad[0] // width % height, bad[0] % width
    return (
        f"{len(bad)} of {len(numbers)} tokens are not made from one patch of the image: the first of them has"
        f" {len(bad[0])} values from {len((bad[0] // (height * width)).unique())} of {channels} channels, spread over"
        f" {int(y.max() - y.min()) + 1}×{int(x.max() - x.min()) + 1} pixels."
    )


def _strips(tested: ModelUnderTest, numbers: Tensor) -> str:
    """Describe tokens that are strips of pixels where the constructor asks for square patches of the same size."""
    height, width = tested.shape[1:]
    y, x = numbers // width % height, numbers % width
    tall, wide = int(y.max() - y.min()) + 1, int(x.max() - x.min()) + 1
    values = [value for name, value in constructor_values(tested.constructor).items() if kind_of(name) == "patch"]
    stated = [value if isinstance(value, tuple) else (value, value) for value in values]
    if tall == wide or tall * wide not in map(math.prod, stated) or height % tall:
        return ""
    side = round((tall * wide) ** 0.5)
    return (
        f"each token is made from {tall}×{wide} pixels, not from a patch of {side}×{side}: the pixels were taken in the"
        " order of the memory."
    )


def _is_patch(numbers: Tensor, channels: int, height: int, width: int) -> bool:
    """Whether these pixels are one full rectangle, the same in every channel that occurs."""
    areas = [numbers[numbers // (height * width) == channel] % (height * width) for channel in
             (numbers // (height * width)).unique()]  # fmt: skip
    if len(areas) == 1 < channels and not _is_square(areas[0], width):
        return False  # several patches of one channel: tokens per channel are made from square patches
    return all(_is_rectangle(area, width) and torch.equal(area.sort().values, areas[0].sort().values) for area in areas)


def _is_rectangle(positions: Tensor, width: int) -> bool:
    y, x = positions // width, positions % width
    return int((y.max() - y.min() + 1) * (x.max() - x.min() + 1)) == len(positions.unique())


def _is_square(positions: Tensor, width: int) -> bool:
    y, x = positions // width, positions % width
    return int(y.max() - y.min()) == int(x.max() - x.min())


def _embedding_to_tokens(tested: ModelUnderTest) -> str | None:
    """Follow the output of the patch embedding to the linear layer that sums over the features of a token."""
    before = [node for node in tested.graph.nodes if node.from_input]
    if tested.has_attention:
        first = tested.attention[0].scores or tested.attention[0]
        before = [node for node in before if tested.graph.depends(first.product, node)]
    convolutions = [node for node in before if node.op == "convolution" and node.tensor.ndim == 4]
    embedding = convolutions[-1] if convolutions else next((node for node in before if linear_op(node)), None)
    if embedding is None:
        return None
    shape = embedding.tensor.shape
    if embedding.op == "convolution":
        per_image, width = shape[2] * shape[3], shape[3]
        labels = torch.arange(len(embedding.tensor) * per_image).view(-1, 1, *shape[2:]).expand(shape)
        features = shape[1]
    else:
        per_image, width, features = 0, 0, shape[-1]
        labels = torch.arange(shape[:-1].numel()).view(*shape[:-1], 1).expand(shape)
    if features < 2 or len(labels.unique()) <= tested.num_recorded * 2:
        return None
    for carried in tested.graph.follow(embedding, labels):
        rows = _rows_of_features(carried)
        if rows is None or (tested.has_attention and carried.consumer.op in FUSED_NORMS):
            continue  # where attention is, the axes of a norm are measured by its own check
        if not tested.has_attention and (rows.shape[1] != features or len(rows) == len(embedding.tensor) * features):
            continue  # a layer that mixes tokens on purpose, as in an MLP-Mixer
        mixed = [row for row in rows if not _is_one_place(row[row >= 0], features, per_image, width)]
        if not mixed:
            return ""
        places = len(mixed[0][mixed[0] >= 0].unique())
        return (
            f"{len(mixed)} of {len(rows)} tokens are not made from one patch: between the patch embedding (`"
            f"{embedding.module}`, output {tuple(shape)}) and `{carried.consumer.module}` (input"
            f" {tuple(carried.node.tensor.shape)}), one token gets its features from {places} different places."
        )
    return None


def _tokens_to_maps(tested: ModelUnderTest) -> str | None:
    """Follow the features of tokens that become a map again, for a convolution: a channel must be one feature."""
    measured = None
    for node in tested.graph.nodes:
        if node.op != "convolution" or node.tensor.ndim != 4 or not node.from_input:
            continue
        data = node.parents[0]
        source = _layer_output(data) or origin(data)  # a layer's output, or the stream
        num_images, channels, height, width = data.tensor.shape
        if source.op == "convolution" or source.tensor.shape[-1] != channels or source.tensor.ndim not in (2, 3):
            continue
        if source.tensor.shape[-2] == channels or min(channels, height * width) < 4:
            continue
        labels = torch.arange(channels).expand(source.tensor.shape)
        planes = _arrival(tested.graph.follow(source, labels), node, data)
        if planes is None:
            continue
        planes = planes.reshape(num_images * channels, height * width)
        measured = ""
        mixed = max(len(plane[plane >= 0].unique()) for plane in planes[:channels])
        if mixed > 1:
            return (
                f"tokens are not put back where they were: between `{source.module}` (output"
                f" {tuple(source.tensor.shape)}) and the convolution `{node.module}` (input"
                f" {tuple(data.tensor.shape)}), one channel of the map gets {mixed} different features of the tokens."
            )
    return measured


def _is_one_place(labels: Tensor, features: int, per_image: int, width: int) -> bool:
    """Whether all labels are the same place, or whole neighbouring places were joined (patch merging)."""
    places, counts = labels.unique(return_counts=True)
    if len(places) <= 1:
        return True
    is_joined = bool((counts == features).all()) and len({int(place) // per_image for place in places} if per_image
                                                         else {0, 1}) == 1  # fmt: skip
    return is_joined and _is_rectangle(places % per_image, width)


def _features_of(node: Node) -> Node | None:
    """Return the operand that this operation treats as rows of features; None for other operations."""
    if (linear := linear_op(node)) is not None:
        return linear.data
    if node.op in ("native_layer_norm", "_fused_rms_norm"):
        return node.parents[0]
    if node.op in ("mean", "var", "std", "var_mean") and len(node.arguments) > 1:
        axes, ndim = node.arguments[1], node.parents[0].tensor.ndim
        if isinstance(axes, list | tuple) and [axis % ndim for axis in axes if isinstance(axis, int)] == [ndim - 1]:
            return node.parents[0]
    return None


def _rows_of_features(carried: Carried) -> Tensor | None:
    """Return the labels as rows (tokens, features) where a layer or a norm reads them as such."""
    layer = layer_op(carried.consumer)
    labels = carried.labels
    if layer is not None and layer.data is carried.node:
        labels = labels.mT if carried.consumer.op == "convolution" else labels
    elif _features_of(carried.consumer) is not carried.node:
        return None
    return labels.reshape(-1, labels.shape[-1]).long()


# --- tokens to heads and back --------------------------------------------------------------------------------


def _operands(op: AttentionOp) -> Iterator[tuple[str, Node, Node, bool]]:
    """Yield name, operand (G, S, K), the product it enters, and whether the operand is transposed."""
    if op.scores:
        yield "queries", op.scores.query_operand, op.scores.product, False
        yield "keys", op.scores.key_operand, op.scores.product, True
    yield "values", op.value_operand, op.product, op.is_transposed


def is_between_channels(graph: Graph, op: AttentionOp) -> bool:
    """Whether this attention compares channels over all tokens (XCiT, DaViT) instead of tokens."""
    groups = (_tokens_of_group(graph, operand, product, flip) for _, operand, product, flip in _operands(op))
    return any(group is not None and min(group.shape) > 1 and bool((group == group[:1]).all()) for group in groups)


def compares_tokens(graph: Graph, product: Node) -> bool:
    """Whether both operands of this product have one token per row (S, K), so that it sums over features."""
    for operand, flip in zip(product.parents[-2:], (False, True), strict=True):
        group = _tokens_of_group(graph, operand, product, flip)
        if group is None or min(group.shape) < 2 or not bool((group == group[:, :1]).all()):
            return False
    return True


def weighs_tokens(graph: Graph, op: Unnormalised) -> bool:
    """Whether what these scores weigh has one token per row (S, K), so that they are weights of tokens."""
    operand = next(parent for parent in op.product.parents if parent is not op.operand)
    group = _tokens_of_group(graph, operand, op.product, op.operand is op.product.parents[1])
    return group is not None and min(group.shape) > 1 and bool((group == group[:, :1]).all())


def _tokens_of_group(graph: Graph, operand: Node, product: Node, is_transposed: bool) -> Tensor | None:
    """Return the token (a label) of each element of the first group (S, K); None if it cannot be followed."""
    source = _layer_output(operand)
    if source is None:
        return None
    shape = source.tensor.shape
    if source.op == "convolution":
        labels = torch.arange(shape[0] * shape[2:].numel()).view(shape[0], 1, *shape[2:]).expand(shape)
    else:
        rows = _tokens_of_rows(graph, source)
        labels = torch.arange(shape[:-1].numel()) if rows is None else rows
        labels = labels.view(*shape[:-1], 1).expand(shape)
    carried = _arrival(graph.follow(source, labels), product, operand)
    if carried is None:
        return None
    positions = carried.mT if is_transposed else carried
    return positions.reshape(-1, *positions.shape[-2:])[0].long()


def _tokens_of_rows(graph: Graph, output: Node) -> Tensor | None:
    """Return the token that each row of a linear layer's input comes from; None where it is not one each.

    Heads may be split before the layer, which then has several rows per token.
    """
    layer = linear_op(output)
    if layer is None:
        return None
    base = origin(layer.data)
    shape = base.tensor.shape
    if len(shape) != 3 or id(base) not in {id(node) for node in graph.nodes}:
        return None
    labels = torch.arange(shape[0] * shape[1]).view(*shape[:2], 1).expand(shape)
    rows = _arrival(graph.follow(base, labels), output, layer.data)
    if rows is None or not bool((rows == rows[..., :1]).all()) or rows.shape[:-1] != output.tensor.shape[:-1]:
        return None
    return rows[..., 0].flatten().long()


def _split(graph: Graph, what: str, operand: Node, product: Node, is_transposed: bool) -> str | None:
    group = _tokens_of_group(graph, operand, product, is_transposed)
    if group is None or min(group.shape) < 2:
        return None
    if bool((group == group[:1]).all()):  # attention between channels
        return ""
    own = group[:, 0]
    repeats = int(own[own >= 0].unique(return_counts=True)[1].max()) if bool((own >= 0).any()) else 1
    if bool((group == group[:, :1]).all()) and repeats == 1:
        return ""
    mixed = max(len(row.unique()) for row in group)
    return (
        f"splitting the {what} into heads mixes the tokens: one head has {repeats} positions with parts of the same"
        " token" if repeats > 1 else f"splitting the {what} into heads mixes the tokens: one position of a head has"
        f" parts of {mixed} tokens"
    )  # fmt: skip


def _merge(tested: ModelUnderTest, op: AttentionOp) -> str | None:
    shape = op.product.tensor.shape  # (G, Q, K), or (G, K, Q)
    if len(shape) != 3 or is_between_channels(tested.graph, op):
        return None
    queries, width = (shape[2], shape[1]) if op.is_transposed else (shape[1], shape[2])
    if queries < 2 or width < 2:
        return None
    labels = torch.arange(shape[0] * queries).view(shape[0], queries, 1).expand(-1, -1, width)
    for carried in tested.graph.follow(op.product, labels.mT if op.is_transposed else labels):
        rows = _rows_of_features(carried)
        if carried.consumer.op in FUSED_NORMS:
            continue
        if rows is None and carried.consumer.op == "add":  # a skip connection, with no layer before it
            rows = carried.labels.reshape(-1, carried.labels.shape[-1]).long()
        if rows is None:
            continue
        for row in rows[:64]:
            own, counts = row[row >= 0].unique(return_counts=True)
            groups, per_group = (own // queries).unique(return_counts=True)
            is_token = len(rows) == tested.num_recorded * queries  # not all tokens of an image side by side
            if len(own) and int(per_group.max()) > 1 and (is_token or bool((counts == width).all())):
                return (
                    f"merging the heads mixes the tokens: one row of the result has {int(per_group.max())} tokens of"
                    f" {len(groups)} of the heads; it should have the same token of every head"
                )
        return ""
    return None


def _arrival(steps: Iterator[Carried], product: Node, operand: Node) -> Tensor | None:
    return next((step.labels for step in steps if step.consumer is product and step.node is operand), None)


def _layer_output(node: Node) -> Node | None:
    """Walk back through views, scaling and a bias to the output of a linear layer or a convolution."""
    for _ in range(4):
        node = origin(unscaled(node)[0])
        if linear_op(node) is not None or node.op == "convolution":
            return node
        if node.op in FUSED_NORMS and node.result == 0:  # on queries and keys
            node = node.parents[0]
            continue
        data = [parent for parent in node.parents if parent.from_input]
        if node.op != "add" or len(data) != 1:
            return None
        node = data[0]
    return None
