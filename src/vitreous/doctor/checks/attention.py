"""Does attention follow its equation: softmax over the keys of q·k / √(head width), neither collapsed nor blown up?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitreous.doctor.attention_ops import (
    AttentionOp,
    ScoreProduct,
    attention_ops,
    linear_feeding,
    softmax_of,
    unnormalised_attention,
)
from vitreous.doctor.checks.batch import between_channels
from vitreous.doctor.checks.layout import compares_tokens, is_between_channels, weighs_tokens
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node, unscaled
from vitreous.reports.formats import number, percent, plural

#: exp(−87.3) = 1.2e-38: below, float32 has only denormal numbers, then zero.
UNDERFLOW = 87.3
#: A logit this far below the row's largest is a mask, not a score.
MASKED = 1e4


def scale(tested: ModelUnderTest) -> Iterator[Finding]:
    """Compare the factor between q·k and the logits with 1/√(head width)."""
    ops = attention_ops(tested.recording) if tested.summed_weights else tested.attention
    products = [(op.module, op.scores) for op in ops if op.scores]
    products += [(weights.softmax.result.module, weights.scores) for weights in tested.summed_weights]
    measured = [
        (module, scores.scale, scores.query.shape[-1])
        for module, scores in products
        if not math.isnan(scores.scale) and not _needs_no_scale(scores)
    ]
    if not measured:
        raise NotMeasured("no product of queries and keys with a fixed scale was observed")
    # 5 %: every mistake seen (no scale, the whole width, the number of tokens) is further off, rounding far less
    wrong = [found for found in measured if abs(found[1] * found[2] ** 0.5 - 1) > 0.05]
    same = [op for op in ops if wrong and op.module == wrong[0][0]]
    if same and all(is_between_channels(tested.graph, op) for op in same):
        raise NotMeasured("attention compares channels, for which there is no usual scale")
    after = [op for op in ops if abs(op.weight_factor - 1) > 1e-3]  # not where it is learned: NaN
    if after:
        yield finding(
            "attention-scale",
            f"in {len(after)} of {len(ops)} attentions, first `{after[0].module or 'forward'}`, the"
            f" weights are multiplied by {number(after[0].weight_factor)} after the softmax, so that those of a token"
            " sum to that instead of 1; the scale belongs before the softmax.",
            module=after[0].module,
        )
    elif wrong:
        module, factor, head_dim = wrong[0]
        effect = "no scaling at all" if abs(factor - 1) < 1e-6 else f"a head width of {number(factor**-2)}"
        yield finding(
            "attention-scale",
            f"in {len(wrong)} of {len(measured)} attentions, first `{module or 'forward'}`, q·k is multiplied"
            f" by {number(factor)}, which corresponds to {effect}; the head width is {head_dim}, so it should be"
            f" 1/√{head_dim} = {number(head_dim**-0.5)}.",
            module=module,
        )


def softmax_axis(tested: ModelUnderTest) -> Iterator[Finding]:
    """Each query's weights, as they enter the product with the values, must sum to 1."""
    if between_channels(tested):
        raise NotMeasured("attention compares channels instead of tokens, which includes this")
    wrong = [op for op in tested.attention if not _rows_sum_to_one(op)]
    # sums below 1 alone: part of the softmax was dropped on purpose (a sink, an extra token)
    wrong = [op for op in wrong if float(op.weights.sum(-1).max()) > 1 + 1e-3]
    if wrong:
        op, sums = wrong[0], wrong[0].weights.sum(-1)
        yield finding(
            "softmax-axis",
            f"in {len(wrong)} of {len(tested.attention)} attentions, first `{op.module or 'forward'}`, softmax runs"
            f" over axis {op.softmax_dim} of a {tuple(op.logits.shape)} tensor, but the product with the values sums"
            f" over another: the weights of a token sum to between {number(float(sums.min()))} and"
            f" {number(float(sums.max()))} instead of 1.",
            module=op.module,
        )


def softmax_repeated(tested: ModelUnderTest) -> Iterator[Finding]:
    """The logits must not be weights already."""
    twice = [op for op in tested.attention if softmax_of(op.logits_node) is not None]
    if twice:
        op = twice[0]
        yield finding(
            "softmax-repeated",
            f"in {len(twice)} of {len(tested.attention)} attentions, first `{op.module or 'forward'}`, softmax is"
            f" applied to the result of a softmax: the weights of {op.weights.shape[-1]} tokens lie between"
            f" {number(float(op.weights.min()))} and {number(float(op.weights.max()))}.",
            module=op.module,
        )


def projections_shared(tested: ModelUnderTest) -> Iterator[Finding]:
    """Queries, keys and values must be different projections: with random parameters no two of them are equal."""
    recording = tested.record(tested.images[: tested.num_recorded], randomised=True)
    ops = [op for op in attention_ops(recording) if op.scores and min(op.values.shape[1:]) > 1]
    if not ops:
        raise NotMeasured("no attention with queries and keys was observed")
    for names in (("queries", "keys"), ("keys", "values"), ("queries", "values")):
        shared = [op for op in ops if _is_parallel(*(_projected(op)[name] for name in names))]
        if shared:
            everything = all(_is_parallel(_projected(op)["keys"], _projected(op)["values"]) for op in shared)
            what = "queries, keys and values" if names[0] == "queries" and everything else f"{names[0]} and {names[1]}"
            yield finding(
                "projections-shared",
                f"in {len(shared)} of {len(ops)} attentions, first `{shared[0].module or 'forward'}`, {what} are the"
                " same numbers (all parameters randomised): one projection takes the place of several, or there is"
                " none.",
                module=shared[0].module,
            )
            return


def heads_share_weights(tested: ModelUnderTest) -> Iterator[Finding]:
    """Every head must have projections of its own: not one matrix that each head applies to its slice of the token."""
    ops = [op for op in tested.attention if op.scores is not None]
    repeated = [node for node in tested.graph.nodes if _has_one_head_twice(tested, node, ops)]
    if repeated:
        node, heads = repeated[0], repeated[0].parents
        yield finding(
            "heads-share-weights",
            f"in {len(repeated)} of {len(ops)} attentions, first `{node.module or 'forward'}`, {len(heads)} heads are"
            f" put side by side of which only {len({id(head) for head in heads})} are different: the same layers"
            " computed the others.",
            module=node.module,
        )
        return
    shared = []
    for op in ops:
        assert op.scores is not None
        layer = linear_feeding(unscaled(op.scores.query_operand)[0])
        if layer is None or layer.in_features != op.scores.query.shape[-1]:
            continue
        whole = origin(layer.data)
        num_heads, rest = divmod(whole.tensor.shape[-1], layer.in_features)
        # a slice per head, a view of one token; as many rows as there are heads and tokens
        rows = layer.data.tensor.numel() // layer.in_features
        if num_heads > 1 and not rest and rows == num_heads * (whole.tensor.numel() // whole.tensor.shape[-1]):
            shared.append((op, layer, num_heads))
    if not ops:
        raise NotMeasured("no attention with queries and keys was observed")
    if shared:
        op, layer, num_heads = shared[0]
        yield finding(
            "heads-share-weights",
            f"in {len(shared)} of {len(ops)} attentions, first `{op.module or 'forward'}`, the {num_heads} heads have"
            f" one projection of {layer.in_features} → {layer.out_features} in common (`{layer.weight}`), which each"
            f" applies to its own {layer.in_features} of the token's {num_heads * layer.in_features} features.",
            module=op.module,
        )


def _has_one_head_twice(tested: ModelUnderTest, node: Node, ops: list[AttentionOp]) -> bool:
    """Whether this puts the outputs of heads side by side, of which two are one (recordings merge equal results)."""
    if node.op not in ("cat", "stack") or len({id(parent) for parent in node.parents}) == len(node.parents):
        return False
    first = node.parents[0]
    return any(first.tensor.numel() == op.product.tensor.numel() and tested.graph.depends(first, op.product)
               for op in ops)  # fmt: skip


def _projected(op: AttentionOp) -> dict[str, Tensor]:
    assert op.scores is not None
    return {"queries": op.scores.query, "keys": op.scores.key.mT, "values": op.values}


def _is_parallel(one: Tensor, two: Tensor) -> bool:
    """Whether the tensors are equal up to a factor, such as the scale of attention."""
    if one.shape != two.shape or not bool(one.any()):
        return False
    return bool(torch.allclose(one / one.norm(), two / two.norm(), rtol=1e-3, atol=1e-7))


def softmax_missing(tested: ModelUnderTest) -> Iterator[Finding]:
    """Scores of tokens with tokens must become weights that sum to 1 before they are multiplied with the values."""
    found = [
        op
        for op in unnormalised_attention(tested.recording)
        if compares_tokens(tested.graph, op.scores) or weighs_tokens(tested.graph, op)
    ]
    if not found:
        tested.attention  # noqa: B018  raises where there is no attention at all
        return
    plain = [op for op in found if not op.activations or "exp" in op.activations]  # exp is half a softmax
    op = (plain or found)[0]
    sums = op.operand.tensor.flatten(0, -2).sum(-1)
    after = f" (after {op.activations[0]})" if op.activations else ""
    yield finding(
        "softmax-missing",
        f"in {len(plain or found)} attentions, first `{op.module or 'forward'}`, the scores q·k{after} are multiplied"
        f" with the values without a softmax: the weights of a token sum to between {number(float(sums.min()))} and"
        f" {number(float(sums.max()))} instead of 1.",
        level=None if plain else "note",  # other activations are used on purpose
        module=op.module,
    )


def weights_summed(tested: ModelUnderTest) -> Iterator[Finding]:
    """The weights of a token must meet the values one by one: summed first, they are 1, whatever the scores."""
    summed = [weights.total for weights in tested.summed_weights]
    if summed:
        yield finding(
            "attention-summed",
            f"in {plural(len(summed), 'attention')}, first `{summed[0].module or 'forward'}`, the weights of a token"
            " are summed before they are multiplied with the values: the sum is always 1, so every token gets the sum"
            " of all values, and queries and keys have no effect.",
            module=summed[0].module,
        )


def masked_tokens(tested: ModelUnderTest) -> Iterator[Finding]:
    """Tokens on which no query of any attention puts any weight."""
    ops = [op for op in tested.attention if op.scores and op.weights.shape[-1] > 2 and _rows_sum_to_one(op)]
    if not ops:
        raise NotMeasured("no attention over three or more tokens with weights that sum to 1 was observed")
    unseen = [(op.weights == 0).all(dim=-2).all(dim=0) for op in ops]
    if len({len(row) for row in unseen}) > 1 or any(bool(row.all()) for row in unseen):
        return
    never = torch.stack(unseen).all(0)
    if bool(never.any()) and next(blown_up(tested), None) is None:
        where = never.nonzero().flatten().tolist()
        yield finding(
            "tokens-masked",
            f"in all {len(ops)} attentions, {len(where)} of {len(never)} tokens (first: number {where[0]}) get weight 0"
            " from every token of every image: a mask hides them.",
            module=ops[0].module,
        )


def causal(tested: ModelUnderTest) -> Iterator[Finding]:
    """No weight on later tokens, or none on earlier ones."""
    ops = [op for op in tested.attention if op.weights.shape[-1] == op.weights.shape[-2] > 2 and _rows_sum_to_one(op)]
    if not ops:
        raise NotMeasured("no attention of three or more tokens to each other was observed")
    for direction, one_sided in (("later", torch.triu), ("earlier", torch.tril)):
        masked = [op for op in ops if _is_masked(op.weights, one_sided)]
        if masked:
            yield finding(
                "causal-mask",
                f"in {len(masked)} of {len(ops)} attentions, first `{masked[0].module or 'forward'}`, all"
                f" {masked[0].weights.shape[-1]} tokens have weight 0 on {direction} ones: the mask of a language"
                " model.",
                module=masked[0].module,
            )
            return


def _is_masked(weights: Tensor, one_sided: Callable[[Tensor, int], Tensor]) -> bool:
    """Whether all weights on one side of the diagonal are exactly 0, and those on the other side are not."""
    sign = 1 if one_sided is torch.triu else -1
    side, other = one_sided(weights, sign), weights.mT.contiguous()
    return bool((side == 0).all()) and bool((one_sided(other, sign).count_nonzero() > 0.5 * other.shape[0]).all())


def blown_up(tested: ModelUnderTest) -> Iterator[Finding]:
    """Logits so far apart that softmax underflows."""
    worst_share, worst_gap, module = 0.0, 0.0, ""
    for op in tested.attention:
        is_last = op.softmax_dim == op.logits.ndim - 1
        unmasked = op.unmasked.reshape(op.logits.shape) if op.unmasked.numel() == op.logits.numel() else op.logits
        logits = (op.unmasked if is_last else unmasked).float()  # masks and biases (Swin's −100) are no scores
        gaps = logits.amax(-1 if is_last else op.softmax_dim, keepdim=True) - logits
        gaps = gaps[torch.isfinite(gaps) & (gaps < MASKED)]
        share = float((gaps > UNDERFLOW).float().mean())  # NaN without scores, which is not larger
        if share > worst_share:
            worst_share, worst_gap, module = share, float(gaps.max()), op.module
    # 12 % of denormals made attention ten times slower, a single one costs nothing; healthy post-norm models with
    # large embeddings start with up to 0.1 % in their first layer
    if worst_share > 1e-2:
        yield finding(
            "attention-blown-up",
            f"attention logits have blown up: in `{module or 'forward'}` they differ by up to {number(worst_gap)}, and"
            f" {percent(worst_share)} of the weights are below e^−{UNDERFLOW:.0f}, where float32 has only denormals"
            " and zero.",
            module=module,
        )


def collapsed(tested: ModelUnderTest) -> Iterator[Finding]:
    """All heads of an attention put their whole weight on one token."""
    ops = [op for op in tested.attention if op.scores and op.weights.shape[-1] > 2 and _rows_sum_to_one(op)]
    if not ops:
        raise NotMeasured("no attention over three or more tokens with weights that sum to 1 was observed")
    if next(blown_up(tested), None) is not None:
        raise NotMeasured("the logits have blown up, which includes this")
    # three ViTs trained on MNIST had layers of 0.39 to 0.95: single heads are sharp, a whole layer is not
    low = [(entropy, op) for op in ops if (entropy := _relative_entropy(op.weights)) < 0.02]
    if low:
        entropy, op = min(low, key=lambda pair: pair[0])
        yield finding(
            "attention-collapsed",
            f"attention has collapsed in {len(low)} of {len(ops)} attentions: in `{op.module or 'forward'}` the mean"
            f" entropy is {percent(entropy)} of that of uniform attention; the mean largest weight is"
            f" {number(float(op.weights.amax(-1).mean()))}.",
            module=op.module,
        )


def _needs_no_scale(scores: ScoreProduct) -> bool:
    """Whether queries and keys are normalised to a length, and to less than √width each: logits are bounded then."""
    if not scores.is_normalised:
        return False
    largest = float(scores.query.norm(dim=-1).mean() * scores.key.norm(dim=-2).mean())  # includes the scale of q or k
    return largest * abs(scores.scale_after) < 0.9 * scores.query.shape[-1]


def _rows_sum_to_one(op: AttentionOp) -> bool:
    return not bool(((op.weights.sum(-1) / op.weight_factor - 1).abs() >= 1e-3).any())  # a learned factor: NaN


def _relative_entropy(weights: Tensor) -> float:
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    return float(entropy) / math.log(weights.shape[-1])
