"""Is what comes out what a loss function expects, and the same each time?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from vitreous.doctor.findings import Finding
from vitreous.doctor.inputs import kind_of, listed, log_probabilities, moved_probability, percent
from vitreous.doctor.observe import DROPOUT, Calm, linear_feeding, linear_op
from vitreous.doctor.subject import Patient, seed_everything


def not_finite(patient: Patient) -> Iterator[Finding]:
    """NaN or infinity in the answer to ordinary inputs."""
    with patient.borrowed() as model:
        answers = patient.answers(model, patient.batch)
    share = float((~torch.isfinite(answers)).float().mean())
    if share:
        yield Finding(
            "answers-not-finite", "broken",
            f"{percent(share)} of the outputs for {len(patient.batch)} images are NaN or infinite.",
            "No loss, no gradient and no prediction can be had from them.",
            "Look for a division by zero, a logarithm of zero, a softmax over a fully masked row, or diverged weights.",
        )  # fmt: skip


def probabilities(patient: Patient) -> Iterator[Finding]:
    """Rows that are probabilities already; or, under random parameters, all within (0, 1): a sigmoid."""
    with patient.borrowed(stirred=True) as model:
        answers = patient.answers(model, patient.batch)
    sums = answers.sum(1)
    squashed = bool((answers > 0).all() and (answers < 1).all()) and answers.numel() >= 64
    if patient.output_kind == "probabilities" or (squashed and patient.output_kind == "logits"):
        what = (
            f"every row sums to 1 (within {float((sums - 1).abs().max()):.0e})"
            if patient.output_kind == "probabilities"
            else "every output lies between 0 and 1, whatever the parameters"
        )
        yield Finding(
            "probabilities-not-logits", "broken",
            f"the model returns probabilities where logits are expected: for {len(answers)} images, {what}.",
            "nn.CrossEntropyLoss applies softmax itself. Applied twice, the loss cannot fall below"
            " ln(e + C − 1) − 1 (1.46 for 10 classes), and gradients are small: training looks stuck.",
            "Return the last linear layer's output; take softmax only to show probabilities.",
        )  # fmt: skip


def log_probabilities_returned(patient: Patient) -> Iterator[Finding]:
    with patient.borrowed() as model:
        answers = patient.answers(model, patient.batch)
    if patient.output_kind == "log-probabilities" and kind_of(answers) == "log-probabilities":
        yield Finding(
            "log-probabilities", "warning",
            f"the model returns log-probabilities, not logits: for {len(answers)} images all outputs are at most 0 and"
            f" their exponentials sum to 1 (within {float((answers.exp().sum(1) - 1).abs().max()):.0e}).",
            "It wants nn.NLLLoss. nn.CrossEntropyLoss gives the same value at needless cost; but whatever takes the"
            " output for logits (temperature, ensembles of logits, exports, a second loss) is given something else.",
            "Drop log_softmax from forward and train with nn.CrossEntropyLoss.",
        )  # fmt: skip


def linear_after_linear(patient: Patient) -> Iterator[Finding]:
    """A linear layer's output that enters another linear layer through views only, as it happened in a forward pass."""
    pairs: dict[tuple[str, str], tuple[int, int, int]] = {}
    for node in patient.recording.nodes:
        second = linear_op(node)
        first = linear_feeding(second.data) if second is not None else None
        if second is not None and first is not None:
            pairs[first.weight, second.weight] = (first.in_features, first.out_features, second.out_features)
    for level in ("warning", "note"):
        # through a narrow middle (LoRA, factorised layers) two linear layers save parameters: that may be meant
        chosen = {names: w for names, w in pairs.items() if (w[1] < min(w[0], w[2])) == (level == "note")}
        if not chosen:
            continue
        (first_name, second_name), (into, middle, out) = next(iter(chosen.items()))
        more = f", and {len(chosen) - 1} more pair{'s' * (len(chosen) > 2)}" if len(chosen) > 1 else ""
        yield Finding(
            "linear-after-linear", "warning" if level == "warning" else "note",
            f"`{_layer(first_name)}` ({into} → {middle}) feeds `{_layer(second_name)}` ({middle} → {out}) with nothing"
            f" between{more}: {into * middle + middle * out:,} weights do the work of one layer's {into * out:,}.",
            "Two linear layers in a row are one linear layer: they cost more and can do no more.",
            "Put a nonlinearity (GELU, ReLU, tanh) between them, or make them one.",
        )  # fmt: skip


def _layer(weight: str) -> str:
    return weight.removesuffix(".weight").removesuffix("_weight") or weight


def dropout_in_eval(patient: Patient) -> Iterator[Finding]:
    """Dropout masks drawn although the model is in eval mode."""
    drawn = [node for node in patient.recording.nodes if node.op in DROPOUT]
    if drawn:
        places = sorted({node.module or "forward" for node in drawn})
        moved, _ = _moved_by_chance(patient, nullcontext())
        yield Finding(
            "dropout-in-eval", "broken",
            f"dropout is active in eval mode: {len(drawn)} mask{'s' * (len(drawn) > 1)} a forward pass (in"
            f" {listed(places)}); asked twice, up to {percent(moved)} of the probability moves.",
            "Predictions change at random and are worse than the model can do.",
            "F.dropout(x, p, training=self.training) or an nn.Dropout module; F.dropout alone is always on.",
        )  # fmt: skip


def not_deterministic(patient: Patient) -> Iterator[Finding]:
    """Two answers to the same batch, dropout aside: random numbers drawn in forward, or a memory of earlier calls."""
    moved, same_seed = _moved_by_chance(patient, Calm(only_dropout=True))
    if moved > 1e-6 or same_seed > 1e-6:
        yield Finding(
            "nondeterministic-eval", "broken",
            f"in eval mode the same images get another answer when asked again: up to {percent(max(moved, same_seed))}"
            f" of the probability moves{', even from the same random seed' if same_seed > 1e-6 else ''}.",
            "Nothing measured on this model can be repeated, and no two of its predictions agree.",
            "Take random numbers (torch.randn in forward, noise, random crops) out of eval mode: `if self.training:`;"
            " a token drawn in forward belongs in __init__ as an nn.Parameter.",
        )  # fmt: skip


def _moved_by_chance(patient: Patient, dice: AbstractContextManager) -> tuple[float, float]:
    """How far answers move between two random seeds, and between two calls from the same seed; on stirred weights."""
    answers = []
    with patient.borrowed(stirred=True) as model:
        for seed in (patient.seed, patient.seed + 1, patient.seed + 1):
            seed_everything(seed)
            answers.append(log_probabilities(patient.answers(model, patient.batch, dice=dice), patient.output_kind))
    first, second, again = answers
    return float(moved_probability(first, second).max()), float(moved_probability(second, again).max())
