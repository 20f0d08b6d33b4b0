"""Does the prediction depend on the image alone, and do the tokens of one image attend to each other?

Shapes: G groups (images × heads) of S positions, K head width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.attention_ops import attention_ops
from vitreous.doctor.checks.layout import is_between_channels
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.model_io import finer_regions, max_moved, regions
from vitreous.doctor.model_under_test import BATCH_SIZE, ModelUnderTest
from vitreous.reports.formats import join, percent, plural

#: Share of the probability that may move between two equivalent computations. Float32 kernels chosen by batch size
#: moved 2e-7 in healthy models; the article's ViT moves 0.005 fresh and 0.9 trained.
SAME_PREDICTION = 1e-4
_MAYBE_NOISE = 1e-2  # a dependence below this is measured again in double precision


def batch_size(tested: ModelUnderTest) -> Iterator[Finding]:
    """Any number of images must do, one included."""
    if tested.is_unbatched:
        yield finding(
            "batch-size",
            f"the model runs on one image of shape {tested.shape} without a batch axis, but not on batches (2 images:"
            f" {tested.refusals[2]}).",
        )
        return
    failures, accepted = dict(tested.refusals), [tested.fixed_batch_size] if tested.fixed_batch_size else [2]
    if tested.fixed_batch_size or tested.refusals:
        failures = {size: error for size, error in failures.items() if size <= 8} or failures
    else:
        for size in (1, 3, BATCH_SIZE + 1):
            images = tested.images.repeat(2, *[1] * len(tested.shape))[:size]
            try:
                with tested.borrowed() as model:
                    rows = len(tested.outputs(model, images))
            except Exception as failed:
                failures[size] = f"{type(failed).__name__}: {failed}".splitlines()[0]
            else:
                if rows != size:
                    failures[size] = f"{rows} rows of outputs"
                else:
                    accepted.append(size)
    if failures:
        size, error = next(iter(failures.items()))
        yield finding(
            "batch-size",
            f"the model runs on batches of {join(map(str, accepted), most=4)} but not of"
            f" {join(map(str, failures), most=4)} ({plural(size, 'image')}: {error}).",
        )


def batch_dependence(tested: ModelUnderTest) -> Iterator[Finding]:
    """Compare the same images in one batch, one by one, and in another order."""
    tested.require_repeatable()
    batch = tested.images if tested.fixed_batch_size else tested.images[:BATCH_SIZE]
    if len(batch) < 2:
        raise NotMeasured("at least two images are needed")
    worst, how = _dependence(tested, batch, torch.float32)
    if how and worst < _MAYBE_NOISE and _is_noise(tested, batch):
        return
    if how:
        yield finding(
            "batch-dependence",
            f"the prediction for an image depends on the rest of its batch: {how}, up to {percent(worst)} of its"
            " probability moves to other classes.",
        )


def _is_noise(tested: ModelUnderTest, batch: Tensor) -> bool:
    """Whether the dependence vanishes in double precision; saturated attention enlarges float noise a thousandfold."""
    try:
        return not _dependence(tested, batch, torch.float64)[1]
    except Exception as error:
        raise NotMeasured("a small difference may be float noise, and the model does not run in float64") from error


def _dependence(tested: ModelUnderTest, batch: Tensor, dtype: torch.dtype) -> tuple[float, str]:
    """Return the most probability that moves with the rest of the batch, and in which comparison; "" for none."""
    worst, how = SAME_PREDICTION if dtype == torch.float32 else 1e-6, ""
    for randomised in (False, True):  # a fresh head gives all images (almost) the same logits
        with tested.borrowed(randomised=randomised) as borrowed:
            model = borrowed if dtype == torch.float32 else copy.deepcopy(borrowed).to(dtype)
            images = batch.to(dtype)
            together = tested.log_probabilities(model, images)
            each = images[:0] if tested.fixed_batch_size else images[: len(tested.batch)]
            alone = torch.cat([together[:0], *(tested.log_probabilities(model, image[None]) for image in each)])
            order = torch.randperm(len(batch), generator=tested.generator(1)).to(tested.device)
            permuted = tested.log_probabilities(model, images[order])[order.argsort()]
        for other, comparison in (
            (alone, f"alone and in a batch of {len(batch)}"),
            (permuted, f"in a batch of {len(batch)} and in the same batch reordered"),
        ):
            moved = max_moved(together[: len(other)], other) if len(other) else 0.0
            if math.isnan(moved) and bool(torch.isfinite(together).all()):  # as after a division by the batch's std
                moved = 1.0
            if moved > worst:
                worst, how = moved, comparison + (" (all parameters randomised)" if randomised else "")
    return worst, how


def tokens_never_attend(tested: ModelUnderTest) -> Iterator[Finding]:
    """Change one image, then one region of it, and find the positions of each attention that change.

    An attention sums over S positions in each of G groups. If no group ever contains two different tokens of one
    image, those tokens never attend to each other, whatever else is mixed.
    """
    ops = [op for op in tested.attention if op.scores] or tested.attention
    if between_channels(tested):
        op = ops[0]
        yield finding(
            "tokens-never-attend",
            f"in all {len(ops)} attentions, first `{op.module or 'forward'}`, the {op.weights.shape[-1]} positions that"
            " are compared are the channels of a head, each over all tokens: the axes of q·k are exchanged, unless"
            " attention between channels is intended.",
            level="warning",
            module=op.module,
        )
        return
    images = tested.images[: tested.num_recorded].clone()
    other = tested.synthetic_inputs(len(images), offset=2)

    def values(index: int | None = None, region: tuple[slice, ...] | None = None) -> list[Tensor]:
        changed = images.clone()
        if index is not None:
            changed[index][region or ...] = other[index][region or ...]
        return [op.values for op in attention_ops(tested.record(changed, randomised=True))]

    base = values()
    by_image = [values(index) for index in range(len(images))]
    by_region = [values(0, region) for region in regions(tested.shape)]
    if {len(run) for run in [base, *by_image, *by_region]} != {len(tested.attention)}:
        raise NotMeasured("the model does not carry out the same attentions for every image")

    reasons: dict[int, str] = {}  # attention → why no tokens meet there, "" if they do
    for i, op in enumerate(tested.attention):
        runs = [run[i] for run in by_image], [run[i] for run in by_region]
        reason = _why_separate(base[i], *runs) if op in ops else None
        if reason is not None:
            reasons[i] = reason
    if not reasons:
        raise NotMeasured("every position of every attention depends on the whole input: tokens look alike, or are one")
    if _self_only([op.weights for op in ops]):
        reasons = dict.fromkeys(reasons, "each token puts its whole weight on itself")
    if "" in reasons.values():
        return
    for finer in finer_regions(tested.shape) if _SAME_TOKEN in " ".join(reasons.values()) else ():
        by_region = [values(0, region) for region in finer]  # attention within windows smaller than a quadrant
        for i in reasons:
            if _why_separate(base[i], [run[i] for run in by_image], [run[i] for run in by_region]) == "":
                return
    first, reason = next(iter(reasons.items()))
    module = tested.attention[first].module
    yield finding(
        "tokens-never-attend",
        f"tokens of one image never attend to each other: in `{module or 'forward'}`, given {len(images)} images,"
        f" {reason}.",
        module=module,
    )


def between_channels(tested: ModelUnderTest) -> bool:
    """Whether all attention compares channels, and not on purpose: XCiT normalises queries and keys for it."""
    ops = [op for op in tested.attention if op.scores]
    return bool(ops) and all(
        is_between_channels(tested.graph, op) and not (op.scores and op.scores.is_normalised) for op in ops
    )


_SAME_TOKEN = "are parts of the same token"


def _why_separate(values: Tensor, by_image: list[Tensor], by_region: list[Tensor]) -> str | None:
    """Describe why no group contains two tokens of the first image; "" if one does, None if undecided."""
    groups, positions = values.shape[:2]  # (G, S, K)
    if any(run.shape != values.shape for run in [*by_image, *by_region]):
        return None
    size = values.abs().max()
    changes = torch.stack([(run - values).abs().amax(-1) for run in by_image])  # (images, G, S)
    owned = changes > 1e-5 * size  # float noise is 1e-7 of the size; a changed image changes its tokens by about 1
    if not bool((owned.sum(0) == 1).any()):
        return None
    parts = torch.stack([(run - values).abs().amax(-1) for run in by_region])  # (regions, G, S)
    if positions == 1:
        if bool((parts[:, owned[0]] > 1e-5 * size).all()):
            return None  # the whole image is one token
        return f"each of its {groups} groups holds a single position"
    # a token belongs to the regions that change it most; norms over the whole image change all tokens a little
    regions_of = parts > 0.05 * parts.amax(dim=(1, 2), keepdim=True).clamp(min=1e-5 * float(size))
    bits = 2 ** torch.arange(len(parts), device=parts.device)
    signature = (regions_of.int() * bits[:, None, None]).sum(0)  # (G, S): the set of regions as one number
    eligible = ~owned[1:].any(0)  # the first image's tokens, or constant ones (class token)
    most = 0
    for group in owned[0].any(-1).nonzero().flatten().tolist():
        own = signature[group][eligible[group]]
        if len(own.unique()) > 1:
            return ""
        most = max(most, len(own))
    if most <= 1:
        return f"the {positions} positions that attend to each other come from different images of the batch"
    if len(signature[owned[0]].unique()) > 1:
        return f"the {positions} positions that attend to each other {_SAME_TOKEN} (its heads?)"
    return None


def _self_only(weights: list[Tensor]) -> bool:
    """Whether all weights off the diagonal are zero: a mask that shows each token only itself."""
    return all(
        w.shape[-1] == w.shape[-2] > 1
        and float((w - torch.diag_embed(w.diagonal(dim1=-2, dim2=-1))).abs().max()) < 1e-6
        for w in weights
    )
