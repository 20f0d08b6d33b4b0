"""Does every pixel count, and does its position matter?"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor.attention_ops import linear_op, patch_layer
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
            f"with all parameters randomised, {plural(len(tested.batch), 'other image')} change the outputs (up to"
            f" {number(size)}) by {f'{changed:.0e}' if changed else 'nothing'}: the image does not reach the output.",
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


def channels_ignored(tested: ModelUnderTest) -> Iterator[Finding]:
    """Channels that no output depends on."""
    _require_sight(tested)
    if not is_image(tested.shape) or tested.shape[0] < 2:
        return  # no colours
    unused = [int(channel) for channel in (_gradient(tested) == 0).all(dim=(0, 2, 3)).nonzero()]
    if not unused:
        return
    tested.require_repeatable(randomised=True)
    changed = tested.batch.clone()
    changed[:, unused] = tested.synthetic_inputs(len(changed), offset=5)[:, unused]
    with tested.borrowed(randomised=True) as model:
        moved = max_moved(tested.log_probabilities(model, tested.batch), tested.log_probabilities(model, changed))
    if moved <= 1e-6:
        yield finding(
            "channels-ignored",
            f"{len(unused)} of {tested.shape[0]} channels (number {', '.join(map(str, unused))}, from 0) cannot"
            " influence the output: their gradient is exactly 0, and other values there change nothing.",
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
            if moved < 1e-3 * between_images and _is_same_in_double(tested, model, batch, shuffled):
                what = f"the {block}×{block} blocks of an image" if block else "the patches"
                but = " (the first one aside, whose token is read in place of a class token)" if is_first_fixed else ""
                inside = _moved_inside(tested, model, batch, block)
                windows = inside >= 1e-3 * between_images
                yield finding(
                    "patch-order-ignored",
                    f"the order of {what if windows else 'the patches'} does not matter: with"
                    f" {'them' if windows else what}{but} shuffled, {percent(moved)} of the probability moves, against"
                    f" {percent(between_images)} between two images (all parameters randomised)"
                    + (f"; the order of the patches inside them does, {percent(inside)}." if windows else "."),
                )
                return
    if (alike := _exchangeable_patches(tested)) is not None and 4 * alike[0] >= alike[1]:
        yield finding(
            "patch-order-ignored",
            f"{alike[0]} of {alike[1]} patches have no place of their own: with one patch of an otherwise uniform image"
            " changed, the output is the same wherever among them it is (all parameters randomised).",
        )


def _moved_inside(tested: ModelUnderTest, model: nn.Module, images: Tensor, block: int) -> float:
    """Return the probability that shuffling the patches of the blocks moves; 0 where their side is unknown."""
    side = _side_of_first_layer(tested) if block else None
    if side is None or block % side or block == side:
        return 0.0
    shuffled = _shuffle(images, side, False, tested.generator(3))
    if shuffled is None:
        return 0.0
    original = tested.log_probabilities(model, images)
    return max_moved(original, tested.log_probabilities(model, shuffled))


def _is_same_in_double(tested: ModelUnderTest, model: nn.Module, images: Tensor, others: Tensor) -> bool:
    """Whether the outputs agree in double precision as well; positions may have a small effect."""
    try:
        double = copy.deepcopy(model).double()
        outputs = [tested.outputs(double, some.double()) for some in (images, others)]
    except Exception:  # not every model runs in double precision
        return True
    if any(output.dtype != torch.float64 for output in outputs):
        return True
    return float((outputs[0] - outputs[1]).abs().max()) < 1e-9 * float(outputs[0].abs().max())


def _exchangeable_patches(tested: ModelUnderTest) -> tuple[int, int] | None:
    """Return how many patches could change places with another one, and their number.

    A uniform image in which one patch is different shows each place by itself. Only for attention over all patches:
    convolutions and windows see the same surroundings in many places. Places that are mirror images of each other are
    alike for every distance, and positions may consist of distances (2-D ALiBi).
    """
    side = _patch_side(tested)
    if side is None or bool(_dead_inputs(tested).any()):  # patches without influence are all alike
        return None
    channels, height, width = tested.shape
    rows, columns = height // side, width // side
    patch, other = torch.randn(2, channels, side, side, generator=tested.generator(16)).to(tested.device)
    images = patch.tile(rows, columns).expand(rows * columns, -1, -1, -1).clone()
    for i in range(rows * columns):
        y, x = i // columns * side, i % columns * side
        images[i, :, y : y + side, x : x + side] = other
    with tested.borrowed(randomised=True) as model:
        outputs = torch.cat([tested.outputs(model, some) for some in images.split(64)])
    distance = torch.cdist(outputs.double(), outputs.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distance[_mirrored(rows, columns).to(distance.device)] = torch.inf
    if not bool(distance.isfinite().any()):
        return None
    typical = float(distance[distance.isfinite()].median())
    if typical <= 1e-5 * float(outputs.abs().max()):  # float noise
        return None
    return int((distance.amin(1) < 1e-3 * typical).sum()), len(images)


def _mirrored(rows: int, columns: int) -> Tensor:
    """Return which places of a grid are the same one, or mirror images of each other, (rows·columns, rows·columns)."""
    grid = torch.arange(rows * columns).view(rows, columns)
    grids = [grid, grid.T] if rows == columns else [grid]
    images = [one.flip(axes).flatten() for one in grids for axes in ((), (0,), (1,), (0, 1))]
    same = torch.zeros(rows * columns, rows * columns, dtype=torch.bool)
    for image in images:
        same[grid.flatten(), image] = True
    return same


def _patch_side(tested: ModelUnderTest) -> int | None:
    """Return the side of the patches where all attention is between all of them; None where it is not known."""
    if not is_image(tested.shape) or tested.fixed_batch_size or tested.is_slow or not tested.has_attention:
        return None
    _, height, width = tested.shape
    convolutions = [node for node in tested.recording.nodes if node.op == "convolution" and node.tensor.ndim == 4]
    tokens = {op.weights.shape[-1] for op in tested.attention if op.scores is not None}
    side = _side_of_first_layer(tested)
    if len(convolutions) > 1 or side is None or len(tokens) != 1:
        return None
    count = height // side * (width // side)
    return side if 4 <= count <= 256 and 0 <= next(iter(tokens)) - count <= 8 else None


def _side_of_first_layer(tested: ModelUnderTest) -> int | None:
    """Return the side of the square patches that the first linear layer reads; None where it reads something else."""
    channels, height, width = tested.shape
    layers = [layer for node in tested.recording.nodes if (layer := patch_layer(node) or linear_op(node)) is not None]
    side = round((layers[0].in_features / channels) ** 0.5) if layers else 0
    if not side or side**2 * channels != layers[0].in_features or height % side or width % side:
        return None
    return side


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
    gradient = _gradient(tested)
    if is_image(tested.shape):
        return (gradient == 0).all(dim=(0, 1))
    return (gradient == 0).reshape(*gradient.shape[:2], -1).all(-1).all(0)


def _gradient(tested: ModelUnderTest) -> Tensor:
    """Return the gradient of the outputs with respect to the images."""
    with tested.borrowed(randomised=True) as model:
        images = tested.batch.clone().requires_grad_()
        outputs = tested.outputs(model, images, grad=True)
        if not outputs.requires_grad:
            raise NotMeasured("no gradient reaches the input")
        (gradient,) = tested.gradients(outputs, [images], offset=4)
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        raise NotMeasured("no finite gradient reaches the input")
    return gradient


def _border(dead: Tensor) -> tuple[int, int, Tensor]:
    """Return how many whole rows at the bottom and columns at the right are dead, and a mask of them."""
    rows, columns = dead.all(1).flip(0).cumprod(0).flip(0).bool(), dead.all(0).flip(0).cumprod(0).flip(0).bool()
    return int(rows.sum()), int(columns.sum()), rows[:, None] | columns


def _still_matters(tested: ModelUnderTest, dead: Tensor) -> bool:
    """Whether other values there change the output after all: a step without gradient (rounding, detach) hides it."""
    tested.require_repeatable(randomised=True)
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
