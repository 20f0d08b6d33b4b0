"""Does every pixel count, and does its position matter?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.model_io import is_image, max_moved, total_variation
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.reports.formats import number, percent, plural


def image_ignored(tested: ModelUnderTest) -> Iterator[Finding]:
    """Different images must get different outputs."""
    changed, size = tested.change_by_other_images
    if tested.ignores_image:
        yield finding(
            "image-ignored",
            f"with all parameters randomised, {len(tested.batch)} other images change the outputs (up to"
            f" {number(size)}) by {changed:.0e}: the image does not reach the output.",
        )


def without_influence(tested: ModelUnderTest) -> Iterator[Finding]:
    """Pixels inside the image (or whole patches) that no output depends on."""
    _require_sight(tested)
    dead = _dead_inputs(tested)
    if is_image(tested.shape) and _is_remainder(tested, dead):
        dead = dead & ~_border(dead)[2]
    if not dead.any() or _still_matters(tested, dead):
        return
    if is_image(tested.shape):
        rows, columns = dead.any(1).nonzero().flatten(), dead.any(0).nonzero().flatten()
        what = (
            f"{int(dead.sum())} of {dead.numel()} pixels ({percent(float(dead.float().mean()))}), all within rows"
            f" {int(rows[0])}–{int(rows[-1])} and columns {int(columns[0])}–{int(columns[-1])}"
        )
    else:
        what = f"{int(dead.sum())} of {dead.numel()} patches (first: number {int(dead.nonzero()[0])})"
    yield finding(
        "patches-without-influence",
        f"{what}, cannot influence the output: their gradient is exactly 0 for {len(tested.batch)} images, and other"
        " values there change nothing (all parameters randomised).",
    )


def border_ignored(tested: ModelUnderTest) -> Iterator[Finding]:
    """Rows at the bottom or columns at the right that the model ignores."""
    if not is_image(tested.shape):
        raise NotMeasured("the input is already split into patches")
    _require_sight(tested)
    dead = _dead_inputs(tested)
    bottom, right, border = _border(dead)
    if not border.any() or not _is_remainder(tested, dead) or _still_matters(tested, border):
        return
    lost = [f"the last {plural(count, axis)}" for count, axis in ((bottom, "row"), (right, "column")) if count]
    yield finding(
        "border-ignored",
        f"{' and '.join(lost)} of the {dead.shape[0]}×{dead.shape[1]} image ({percent(float(border.float().mean()))} of"
        " its pixels) never reach the output: their gradient is exactly 0, and other values there change nothing.",
    )


def order_ignored(tested: ModelUnderTest) -> Iterator[Finding]:
    """Shuffle blocks of the image: the outputs of a model with positions change."""
    _require_sight(tested)
    batch = tested.batch if tested.fixed_batch_size else tested.batch[:8]
    with tested.borrowed(randomised=True) as model:
        original = tested.log_probabilities(model, batch)
        others = tested.log_probabilities(model, tested.synthetic_inputs(len(batch), offset=12))
        between_images = float(total_variation(original, others).mean())
        if between_images < 1e-4:
            raise NotMeasured("the outputs hardly depend on the image, so the order of its patches cannot matter")
        for block, is_first_fixed in itertools.product(_block_sizes(tested), (False, True)):
            shuffled = _shuffle(batch, block, is_first_fixed, tested.generator(3))
            if shuffled is None:
                continue
            moved = max_moved(original, tested.log_probabilities(model, shuffled))
            # healthy: as much as between two images (0.3 to 3 times); without positions: float noise, 1e-5 times
            if moved < 1e-3 * between_images:
                what = f"the {block}×{block} blocks of an image" if block else "the patches"
                but = " (the first one aside, whose token is read in place of a class token)" if is_first_fixed else ""
                yield finding(
                    "patch-order-ignored",
                    f"the order of the patches does not matter: with {what}{but} shuffled, {percent(moved)} of the"
                    f" probability moves, against {percent(between_images)} between two images (all parameters"
                    " randomised).",
                )
                return


def _require_sight(tested: ModelUnderTest) -> None:
    if tested.ignores_image:
        raise NotMeasured("the output does not depend on the image at all, which includes this")


def _is_remainder(tested: ModelUnderTest, dead: Tensor) -> bool:
    """Whether the ignored border is narrower than a patch: what is left when patches do not divide the image.

    The patch size is the stride of the first convolution; without one, a border of up to a quarter counts.
    """
    bottom, right, _ = _border(dead)
    strides = [node.arguments[3] for node in tested.recording.nodes if node.op == "convolution" and node.from_input]
    tall, wide = strides[0] if strides and len(strides[0]) == 2 and max(strides[0]) > 1 else (
        -(-dead.shape[0] // 4), -(-dead.shape[1] // 4))  # fmt: skip
    return bottom < tall and right < wide


def _dead_inputs(tested: ModelUnderTest) -> Tensor:
    """Return the mask of pixels (H, W) or patches (N,) whose gradient is exactly 0 in every image."""
    with tested.borrowed(randomised=True) as model:
        images = tested.batch.clone().requires_grad_()
        outputs = tested.outputs(model, images, grad=True)
        if not outputs.requires_grad:
            raise NotMeasured("no gradient reaches the input")
        (gradient,) = tested.gradients(outputs, [images], offset=4)
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        raise NotMeasured("no finite gradient reaches the input")
    if is_image(tested.shape):
        return (gradient == 0).all(dim=(0, 1))
    return (gradient == 0).reshape(*gradient.shape[:2], -1).all(-1).all(0)


def _border(dead: Tensor) -> tuple[int, int, Tensor]:
    """Return how many whole rows at the bottom and columns at the right are dead, and a mask of them."""
    rows, columns = dead.all(1).flip(0).cumprod(0).flip(0).bool(), dead.all(0).flip(0).cumprod(0).flip(0).bool()
    return int(rows.sum()), int(columns.sum()), rows[:, None] | columns


def _still_matters(tested: ModelUnderTest, dead: Tensor) -> bool:
    """Whether other values there change the output after all: a step without gradient (rounding, detach) hides it."""
    tested.require_repeatable()
    batch, other = tested.batch, tested.synthetic_inputs(len(tested.batch), offset=5)
    mask = dead if is_image(tested.shape) else dead.view(-1, *[1] * (len(tested.shape) - 1))
    with tested.borrowed(randomised=True) as model:
        before = tested.log_probabilities(model, batch)
        after = tested.log_probabilities(model, torch.where(mask, other, batch))
    return max_moved(before, after) > 1e-6


def _block_sizes(tested: ModelUnderTest) -> list[int]:
    """Return the sides of the blocks to shuffle; 0 stands for the patches of an input that is already patches.

    The model's patch size is unknown here. A model blind to the order of P×P patches is also blind to that of larger
    blocks whose side is a multiple of P, and every P has a multiple between a quarter and half of the image.
    """
    if not is_image(tested.shape):
        if len(tested.shape) < 2 or tested.shape[0] < 2:
            raise NotMeasured("the input has no patches to reorder")
        return [0]
    height, width = tested.shape[1:]
    short = min(height, width)
    sides = range(short // 4 + 1, short // 2 + 1)
    return [side for side in sides if short <= 64 or (height % side == 0 and width % side == 0)]


def _shuffle(images: Tensor, block: int, is_first_fixed: bool, generator: torch.Generator) -> Tensor | None:
    """Return the images with their blocks in another order; None where there are too few."""
    if not block:
        order = _order(images.shape[1], is_first_fixed, generator)
        return None if order is None else images[:, order.to(images.device)]
    height, width = images.shape[2] // block * block, images.shape[3] // block * block  # the remainder stays in place
    blocks = F.pixel_unshuffle(images[:, :, :height, :width], block)  # (B, C·block², rows, columns)
    order = _order(blocks[0, 0].numel(), is_first_fixed, generator)
    if order is None:
        return None
    shuffled = images.clone()
    moved = blocks.flatten(2)[:, :, order.to(images.device)].view_as(blocks)
    shuffled[:, :, :height, :width] = F.pixel_shuffle(moved, block)
    return shuffled


def _order(count: int, is_first_fixed: bool, generator: torch.Generator) -> Tensor | None:
    if not is_first_fixed:
        return _derangement(count, generator)
    if count < 3:
        return None
    return torch.cat([torch.zeros(1, dtype=torch.long), 1 + _derangement(count - 1, generator)])


def _derangement(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order without fixed points (one cycle); a plain shuffle of few blocks may change nothing."""
    cycle = torch.randperm(count, generator=generator)
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(1)
    return order
