"""Does every pixel count, and does it matter where it is?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import is_image, moved_probability, percent
from vitreous.doctor.subject import Patient


def without_influence(patient: Patient) -> Iterator[Finding]:
    """Pixels inside the image (or whole patches) that no answer depends on."""
    dead = dead_inputs(patient)
    if is_image(patient.shape):
        bottom, right = _border(dead)
        dead = dead.clone()
        dead[dead.shape[0] - bottom :] = False
        dead[:, dead.shape[1] - right :] = False
    if not dead.any() or _still_matters(patient, dead):
        return
    if is_image(patient.shape):
        rows, columns = dead.any(1).nonzero().flatten(), dead.any(0).nonzero().flatten()
        what = (
            f"{int(dead.sum())} of {dead.numel()} pixels ({percent(float(dead.float().mean()))}), all within rows"
            f" {int(rows[0])}–{int(rows[-1])} and columns {int(columns[0])}–{int(columns[-1])}"
        )
    else:
        what = f"{int(dead.sum())} of {dead.numel()} patches (first: number {int(dead.nonzero()[0])})"
    yield Finding(
        "patches-without-influence", "broken",
        f"{what}, cannot influence the answer: their gradient is exactly 0 for {len(patient.batch)} images, and other"
        " values there change nothing (all parameters randomised).",
        "What the model cannot see it cannot learn from; a token that nobody reads is computed for nothing.",
        "Follow these patches through the model: a slice that drops them (x[:, 1:] where there is no class token), a"
        " mask, or an output read from one token before any attention has mixed the others into it.",
    )  # fmt: skip


def border_cut_off(patient: Patient) -> Iterator[Finding]:
    """Rows at the bottom or columns at the right that never enter."""
    if not is_image(patient.shape):
        raise NotMeasured("the input is patches, cut before the model sees them")
    dead = dead_inputs(patient)
    height, width = dead.shape
    bottom, right = _border(dead)
    if dead.all() or not (bottom or right):
        return
    border = torch.zeros_like(dead)
    border[height - bottom :] = True
    border[:, width - right :] = True
    if _still_matters(patient, border):
        return
    lost = " and ".join(
        f"the last {count} {axis}{'s' * (count > 1)}" for count, axis in ((bottom, "row"), (right, "column")) if count
    )
    yield Finding(
        "border-cut-off", "warning",
        f"{lost} of the {height}×{width} image ({percent(float(border.float().mean()))} of its pixels) never reach the"
        " answer: their gradient is exactly 0, and other values there change nothing.",
        "The patch size does not divide the image, and what is left over is cut off without a word.",
        "Choose a patch size that divides the image, or pad or resize the image to the next multiple"
        " (vitreous: --set model.fit=pad or model.fit=resize).",
    )  # fmt: skip


def order_ignored(patient: Patient) -> Iterator[Finding]:
    """Cut the image into blocks, shuffle the blocks: a model that knows positions answers otherwise."""
    patient.require_repeatable()
    batch = patient.batch[:16]
    with patient.borrowed(stirred=True) as model:
        answers = patient.log_probabilities(model, batch)
        # how far apart two different images' answers are: the yardstick for "otherwise"
        apart = float(moved_probability(answers, answers.roll(1, 0)).mean())
        if len(batch) < 2 or apart < 1e-4:
            raise NotMeasured("the answers hardly depend on the image, so its order cannot show")
        for block in _block_sizes(patient):
            shuffled = _shuffle(batch, block, patient.generator(3))
            moved = float(moved_probability(answers, patient.log_probabilities(model, shuffled)).max())
            # healthy: as far as between two images (0.3 to 3 of it); order-blind: float noise, 1e-5 of it
            if moved < 1e-3 * apart:
                what = f"the {block}×{block} blocks of an image" if block else "the patches"
                yield Finding(
                    "patch-order-ignored", "warning",
                    f"the order of the patches does not matter: with {what} shuffled, {percent(moved)} of the"
                    f" probability moves, against {percent(apart)} between two images (all parameters randomised).",
                    "Attention treats its tokens as a set. Without positions the model sees a bag of patches, and"
                    " shapes larger than a patch are lost.",
                    "Add a learned (or sine-cosine) vector of its own to each token, before the first block. One vector"
                    " added to all tokens encodes no order.",
                )  # fmt: skip
                return


def dead_inputs(patient: Patient) -> Tensor:
    """Pixels (H, W) or patches (N,) whose gradient is exactly 0 in every image, for a random reading of answers."""
    with patient.borrowed(stirred=True) as model:
        images = patient.batch.clone().requires_grad_()
        answers = patient.answers(model, images, grad=True)
        if not answers.requires_grad:
            raise NotMeasured("no gradient reaches the input")
        reading = torch.randn(answers.shape, generator=patient.generator(4)).to(answers.device)
        (gradient,) = torch.autograd.grad((answers * reading).sum(), images, allow_unused=True)
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        raise NotMeasured("no finite gradient reaches the input")
    if is_image(patient.shape):
        return (gradient == 0).all(dim=(0, 1))
    return (gradient == 0).flatten(2).all(-1).all(0) if gradient.ndim > 2 else (gradient == 0).all(0)


def _border(dead: Tensor) -> tuple[int, int]:
    """How many whole rows at the bottom and columns at the right are dead."""
    rows, columns = dead.all(1).flip(0), dead.all(0).flip(0)
    return int(rows.cumprod(0).sum()), int(columns.cumprod(0).sum())


def _still_matters(patient: Patient, dead: Tensor) -> bool:
    """Whether other values there change the answer after all: a step without gradient (rounding, detach) hides it."""
    patient.require_repeatable()
    batch, other = patient.batch, patient.made_up(len(patient.batch), offset=5)
    mask = dead if is_image(patient.shape) else dead.view(-1, *[1] * (len(patient.shape) - 1))
    with patient.borrowed(stirred=True) as model:
        before = patient.log_probabilities(model, batch)
        after = patient.log_probabilities(model, torch.where(mask, other, batch))
    return float(moved_probability(before, after).max()) > 1e-6


def _block_sizes(patient: Patient) -> list[int]:
    """Which blocks to shuffle; 0 stands for the patches of an input that is patches already.

    The model's own patch size is not known here. A model blind to the order of P×P patches is blind to that of every
    larger block whose side is a multiple of P, so all sides are tried; of large images only those that divide them.
    """
    if not is_image(patient.shape):
        if len(patient.shape) < 2 or patient.shape[0] < 2:
            raise NotMeasured("the input has no patches to reorder")
        return [0]
    height, width = patient.shape[1:]
    short = min(height, width)
    sides = range(1, short // 2 + 1)
    return [side for side in sides if short <= 64 or (height % side == 0 and width % side == 0 and side >= 4)]


def _shuffle(images: Tensor, block: int, generator: torch.Generator) -> Tensor:
    if not block:
        return images[:, _no_stone_unturned(images.shape[1], generator).to(images.device)]
    rows, columns = images.shape[2] // block, images.shape[3] // block
    inner = images[:, :, : rows * block, : columns * block]  # what is left over stays where it is
    blocks = inner.unflatten(3, (columns, block)).unflatten(2, (rows, block)).transpose(3, 4).flatten(2, 3)
    blocks = blocks[:, :, _no_stone_unturned(rows * columns, generator).to(images.device)]
    shuffled = images.clone()
    shuffled[:, :, : rows * block, : columns * block] = (
        blocks.unflatten(2, (rows, columns)).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    )
    return shuffled


def _no_stone_unturned(count: int, generator: torch.Generator) -> Tensor:
    """A random order in which nothing stays in its place: one cycle through all. Of few blocks, a plain shuffle may."""
    cycle = torch.randperm(count, generator=generator)
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(1)
    return order
