"""Does each image get its own answer, and do the tokens of one image meet?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import moved_probability, percent, regions
from vitreous.doctor.observe import attention_ops
from vitreous.doctor.subject import BATCH, Patient

#: Share of the probability that may move between two ways of asking. Float32 kernels chosen by batch size moved
#: 2e-7 in healthy models; the post's ViT moves 0.005 fresh and 0.9 trained. The bound sits between.
SAME_ANSWER = 1e-4


def batch_dependence(patient: Patient) -> Iterator[Finding]:
    """The same images in one batch, one by one, and in another order."""
    patient.require_repeatable()
    batch, single = patient.images[:BATCH], patient.batch
    if len(batch) < 2:
        raise NotMeasured("it takes at least two images")
    worst, how, company = 0.0, "", len(batch)
    for stirred in (False, True):
        with patient.borrowed(stirred=stirred) as model:
            together = patient.log_probabilities(model, batch)
            alone = torch.cat([patient.log_probabilities(model, image[None]) for image in single])
            order = torch.randperm(company, generator=patient.generator(1)).to(patient.device)
            permuted = patient.log_probabilities(model, batch[order])[order.argsort()]
        for other, way in (
            (alone, f"alone and in a batch of {company}"),
            (permuted, f"in a batch of {company} and in the same batch reordered"),
        ):
            moved = float(moved_probability(together[: len(other)], other).max())
            # a fresh head answers (almost) everything alike: there the randomised model shows it better
            if moved > max(worst, SAME_ANSWER):
                worst, how = moved, way + (" (all parameters randomised)" if stirred else "")
    if how:
        yield Finding(
            "batch-dependence", "broken",
            f"the same image gets another answer in other company: {how}, up to {percent(worst)} of its probability"
            " moves to other classes.",
            "A prediction must depend on the image alone. Here accuracy changes with the batch size and the order of"
            " the test set, and a single image cannot be classified reliably.",
            "Find the operation that runs over the batch axis. nn.TransformerEncoderLayer and nn.MultiheadAttention"
            " read (sequence, batch, feature) unless batch_first=True; norms and softmax want dim=-1, not dim=0.",
        )  # fmt: skip


def tokens_never_attend(patient: Patient) -> Iterator[Finding]:
    """Change one image, then one region of it, and see which positions of each attention carry the change.

    An attention sums over S positions in each of G groups. If no group ever holds two different tokens of one image,
    those tokens never attend to each other, whatever else is mixed.
    """
    ops = [op for op in patient.attention if op.query is not None] or patient.attention
    kept = [i for i, op in enumerate(patient.attention) if op in ops]
    images = patient.images[: patient.watched].clone()
    other = patient.made_up(len(images), offset=2)
    base = _values(patient, images)
    by_image = [_values(patient, _with_changed(images, other, index, None)) for index in range(len(images))]
    by_region = [_values(patient, _with_changed(images, other, 0, region)) for region in regions(patient.shape)]
    if len({len(values) for values in [base, *by_image, *by_region]}) != 1 or len(base) != len(patient.attention):
        raise NotMeasured("the model does not carry out the same attentions for every image")

    verdicts = {kept_index: _meeting(base, by_image, by_region, kept_index) for kept_index in kept}
    decided = {index: verdict for index, verdict in verdicts.items() if verdict is not None}
    if not decided:
        raise NotMeasured("every position of every attention already depends on the whole input, so tokens look alike")
    if _self_only([op.weights for op in ops]):
        decided = dict.fromkeys(decided, "each token puts its whole weight on itself")
    if "" in decided.values():  # somewhere, tokens meet
        return
    index = next(iter(decided))
    yield Finding(
        "tokens-never-attend", "broken",
        f"tokens of one image never attend to each other: in `{patient.attention[index].module}`, given"
        f" {len(images)} images, {decided[index]}.",
        "Attention is how the parts of an image come together. Without it the class token sees nothing of the patches,"
        " or only what leaks past the attention, and the model is no transformer over the image.",
        "Print the shape that enters the attention: the axis before the last must be the tokens."
        " nn.TransformerEncoderLayer and nn.MultiheadAttention need batch_first=True for (batch, token, feature);"
        " hand-written heads need .transpose(1, 2) to (batch, head, token, feature) before q @ k.mT.",
    )  # fmt: skip


def _with_changed(images: Tensor, other: Tensor, index: int, region: tuple[slice, ...] | None) -> Tensor:
    changed = images.clone()
    changed[index][region or ...] = other[index][region or ...]
    return changed


def _values(patient: Patient, images: Tensor) -> list[Tensor]:
    return [op.values for op in attention_ops(patient.watch(images, stirred=True))]


def _meeting(base: list[Tensor], by_image: list[list[Tensor]], by_region: list[list[Tensor]], index: int) -> str | None:
    """ "" if two tokens of the first image stand in one group, a description if none do, None if it cannot be told."""
    values = base[index]  # (G, S, K)
    groups, positions = values.shape[:2]
    if any(run[index].shape != values.shape for run in [*by_image, *by_region]):
        return None
    size = values.abs().max()
    changes = torch.stack([(run[index] - values).abs().amax(-1) for run in by_image])  # (images, G, S)
    owned = changes > 1e-5 * size  # float noise is 1e-7 of the size, a changed image moves its tokens by its order
    if not bool((owned.sum(0) == 1).any()):
        return None
    if positions == 1:
        return f"each of its {groups} groups holds a single position"
    parts = torch.stack([(run[index] - values).abs().amax(-1) for run in by_region])  # (regions, G, S)
    # a token belongs to the regions that move it most; norms over the whole image move all tokens a little
    regions_of = parts > 0.05 * parts.amax(dim=(1, 2), keepdim=True).clamp(min=1e-5 * float(size))
    bits = 2 ** torch.arange(len(parts), device=parts.device)
    signature = (regions_of.int() * bits[:, None, None]).sum(0)  # (G, S): which regions, as one number
    eligible = ~owned[1:].any(0)  # not another image's: the first image's own tokens, or constant ones (class token)
    most = 0
    for group in owned[0].any(-1).nonzero().flatten().tolist():
        own = signature[group][eligible[group]]
        if len(own.unique()) > 1:
            return ""
        most = max(most, len(own))
    if most <= 1:
        return f"the {positions} positions that attend to each other are one from each image of the batch"
    if len(signature[owned[0]].unique()) > 1:
        return f"the {positions} positions that attend to each other are parts of one and the same token (its heads?)"
    return None


def _self_only(weights: list[Tensor]) -> bool:
    """Square attentions whose weights off the diagonal are all nothing: a mask that lets each token see itself only."""
    square = [w for w in weights if w.shape[-1] == w.shape[-2] > 1]
    if not square or len(square) < len(weights):
        return False
    return all(float((w - torch.diag_embed(w.diagonal(dim1=-2, dim2=-1))).abs().max()) < 1e-6 for w in square)
