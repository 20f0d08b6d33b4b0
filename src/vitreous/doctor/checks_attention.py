"""Is attention what its equation says: softmax over the keys of q·k / √(head width), neither collapsed nor blown up?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import number, percent
from vitreous.doctor.observe import AttentionOp
from vitreous.doctor.subject import Patient

#: exp(−87.3) = 1.2e-38: below, float32 has only denormal numbers, then zero.
UNDERFLOW = 87.3
#: A logit this far below the row's largest is a mask, not a score.
MASKED = 1e4


def scale(patient: Patient) -> Iterator[Finding]:
    """The factor between q·k and the logits, read off the operations, against 1/√(head width)."""
    measured, wrong = 0, []
    for op in patient.attention:
        if op.scale is None or op.head_dim is None or _normalised(op):
            continue  # a learned temperature, or unit vectors, which need none
        measured += 1
        # 5 %: every mistake seen (no scale, the whole width, the number of tokens) is off by more, rounding by far less
        if abs(op.scale * op.head_dim**0.5 - 1) > 0.05:
            wrong.append(op)
    if not measured:
        raise NotMeasured("no product of queries and keys with a fixed scale was observed")
    if wrong:
        op = wrong[0]
        assert op.scale is not None
        assert op.head_dim is not None
        right = op.head_dim**-0.5
        unscaled = abs(op.scale - 1) < 1e-6
        as_if = "there were no scaling at all" if unscaled else f"heads were {number(op.scale**-2)} wide"
        yield Finding(
            "attention-scale", "warning",
            f"in {len(wrong)} of {measured} attentions, first `{op.module}`, q·k is multiplied by {number(op.scale)};"
            f" heads are {op.head_dim} wide, so it should be 1/√{op.head_dim} = {number(right)} (as it is, it is as if"
            f" {as_if}).",
            "The scale keeps logits at a spread of about 1 whatever the width: too large and softmax saturates, too"
            " small and attention cannot focus.",
            "Divide by the square root of one head's width, q.shape[-1] ** 0.5 after the heads are split, not of the"
            " model's.",
        )  # fmt: skip


def softmax_axis(patient: Patient) -> Iterator[Finding]:
    """Each query's weights, as they enter the product with the values, must sum to 1."""
    wrong = [op for op in patient.attention if not _rows_sum_to_one(op)]
    if wrong:
        op = wrong[0]
        sums = op.weights.sum(-1)
        yield Finding(
            "softmax-axis", "broken",
            f"in {len(wrong)} of {len(patient.attention)} attentions, first `{op.module}`, softmax runs over axis"
            f" {op.softmax_dim} of a {tuple(op.logits.shape)} tensor, yet the product with the values sums over"
            f" another: a token's weights sum to between {number(float(sums.min()))} and {number(float(sums.max()))}"
            " instead of 1.",
            "The weights no longer share one token's attention among the others; tokens, heads or images compete"
            " instead.",
            "softmax(dim=-1) on logits of shape (batch, head, query, key).",
        )  # fmt: skip


def blown_up(patient: Patient) -> Iterator[Finding]:
    """Logits so far apart that softmax underflows."""
    worst: tuple[float, float, AttentionOp] | None = None
    for op in patient.attention:
        gaps = _gaps(op)
        if not gaps.numel():
            continue
        share = float((gaps > UNDERFLOW).float().mean())
        if worst is None or share > worst[0]:
            worst = share, float(gaps.max()), op
    # one weight in a thousand: 12 % of denormals made attention ten times slower, a stray one costs nothing
    if worst is not None and worst[0] > 1e-3:
        share, gap, op = worst
        yield Finding(
            "attention-blown-up", "broken",
            f"attention logits have blown up: in `{op.module}` they lie up to {number(gap)} apart, and"
            f" {percent(share)} of the weights fall below e^−{UNDERFLOW:.0f}, where float32 has only denormals and"
            " zero.",
            "Softmax is saturated, so no gradient passes through it; and CPUs handle denormal numbers in microcode,"
            " which makes attention up to ten times slower.",
            "Smaller query and key weights: the usual initialisation, weight decay on them, a lower learning rate, or a"
            " LayerNorm on queries and keys. torch.set_flush_denormal(True) at start-up fixes the speed.",
        )  # fmt: skip


def collapsed(patient: Patient) -> Iterator[Finding]:
    """All heads of an attention put everything on one token."""
    ops = [op for op in patient.attention if op.query is not None and op.weights.shape[-1] > 2 and _rows_sum_to_one(op)]
    if not ops:
        raise NotMeasured("no attention over three or more tokens with weights that sum to 1 was observed")
    if next(blown_up(patient), None) is not None:
        raise NotMeasured("the logits have blown up, which includes this")
    entropies = [(_relative_entropy(op.weights), op) for op in ops]
    low = [(entropy, op) for entropy, op in entropies if entropy < 0.02]
    # three ViTs trained on MNIST had layers of 0.39 to 0.95: single heads are sharp, a whole layer is not
    if low:
        entropy, op = min(low, key=lambda pair: pair[0])
        yield Finding(
            "attention-collapsed", "warning",
            f"attention has collapsed in {len(low)} of {len(ops)} attentions: in `{op.module}` the mean entropy is"
            f" {percent(entropy)} of what even attention has; the largest weight is"
            f" {number(float(op.weights.amax(-1).mean()))} on average.",
            "Every token looks at one other and nothing else: softmax passes hardly any gradient, and the layer can"
            " hardly learn to look elsewhere.",
            "Check the initialisation of queries and keys and their scale; a LayerNorm on queries and keys keeps it"
            " from happening.",
        )  # fmt: skip


def _rows_sum_to_one(op: AttentionOp) -> bool:
    return bool(((op.weights.sum(-1) - 1).abs() < 1e-3).all())


def _gaps(op: AttentionOp) -> Tensor:
    logits = op.logits.float()
    gaps = logits.amax(op.softmax_dim, keepdim=True) - logits
    return gaps[torch.isfinite(gaps) & (gaps < MASKED)]


def _relative_entropy(weights: Tensor) -> float:
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    return float(entropy) / math.log(weights.shape[-1])


def _normalised(op: AttentionOp) -> bool:
    """Whether all queries have one length, and all keys: normalised on purpose (cosine attention, QK-norm)."""
    assert op.query is not None
    assert op.key is not None
    for lengths in (op.query.norm(dim=-1), op.key.norm(dim=-2)):
        if lengths.numel() < 4 or float(lengths.std()) > 1e-3 * float(lengths.mean()):
            return False
    return True
