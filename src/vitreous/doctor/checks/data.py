"""Are the images and labels what the model expects?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.model_io import is_channels_last
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.reports.formats import number, percent


def _given_images(tested: ModelUnderTest) -> Tensor:
    if tested.given_images is None:
        raise NotMeasured("no images were given")
    return tested.given_images


def wrong_range(tested: ModelUnderTest) -> Iterator[Finding]:
    """Raw bytes, NaN or infinity, or one constant value."""
    images = _given_images(tested)
    values = images.float()
    low, high = float(values.min()), float(values.max())
    if not bool(torch.isfinite(values).all()):
        what = f"{percent(float((~torch.isfinite(values)).float().mean()))} of the pixels are NaN or infinite"
    elif low == high:
        what = f"every pixel of every image is {number(high)}"
    elif not images.is_floating_point() or float(values.abs().max()) > 16:
        # normalised images stay below about 5; 16 tolerates outliers and is far below 255
        what = f"pixels range from {number(low)} to {number(high)} ({str(images.dtype).removeprefix('torch.')})"
    else:
        return
    yield finding("inputs-wrong-range", f"the inputs are out of range: {what}.")


def not_normalised(tested: ModelUnderTest) -> Iterator[Finding]:
    images = _given_images(tested)
    if next(wrong_range(tested), None) is not None:
        raise NotMeasured("the inputs are out of range, which includes this")
    low, high, mean, std = (float(value) for value in (images.min(), images.max(), images.mean(), images.std()))
    # [0, 1] is what ToTensor returns; otherwise mean 0 ± 3 and a standard deviation of 0.05 to 5 count as normalised
    if (low >= 0 and high <= 1) or abs(mean) > 3 or not 0.05 <= std <= 5:
        yield finding(
            "inputs-not-normalised",
            f"the inputs are not normalised: they range from {number(low)} to {number(high)} with mean {number(mean)}"
            f" and standard deviation {number(std)}, where about 0 and 1 are expected.",
        )


def channel_order(tested: ModelUnderTest) -> Iterator[Finding]:
    """Channels last; or, for a trained model with labels, reversed colours."""
    images = _given_images(tested)
    if is_channels_last(tuple(images.shape)):
        yield finding("inputs-channel-order", f"the images have the shape {tuple(images.shape)}: channels last.")
        return
    if images.ndim != 4 or images.shape[1] != 3:
        return
    if tested.fresh is not False or tested.given_labels is None:
        raise NotMeasured("channels come first; telling RGB from BGR takes a trained model and labels")
    with tested.borrowed() as model:
        as_given, reversed_ = (
            int((tested.log_probabilities(model, x).argmax(1) == tested.labels).sum())
            for x in (tested.images, tested.images.flip(1))
        )
    if reversed_ - as_given > 3 * len(tested.images) ** 0.5 / 2:  # at least three standard errors
        yield finding(
            "inputs-channel-order",
            f"with the colours reversed, {reversed_} of {len(tested.images)} predictions are correct, as given"
            f" {as_given}.",
        )


def labels_out_of_range(tested: ModelUnderTest) -> Iterator[Finding]:
    labels, classes = tested.given_labels, tested.num_classes
    if labels is None:
        raise NotMeasured("no labels were given")
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        what = f"labels are fractions (the first: {number(float(labels.flatten()[0]))}), not class indices"
    elif labels.ndim != 1:
        what = f"labels have the shape {tuple(labels.shape)}, not one class index per image"
    elif int(labels.min()) < 0 or int(labels.max()) >= classes:
        outside = int(((labels < 0) | (labels >= classes)).sum())
        what = (
            f"{outside} of {len(labels)} labels are outside 0…{classes - 1}, the model's {classes} classes (they range"
            f" from {int(labels.min())} to {int(labels.max())})"
        )
    else:
        return
    yield finding("labels-out-of-range", f"{what}.")


def train_test_overlap(tested: ModelUnderTest) -> Iterator[Finding]:
    """Test images that are byte-for-byte duplicates of training images."""
    train, test = tested.given_images, tested.test_images
    if train is None or test is None:
        raise NotMeasured("training images and test images are needed")
    if train.shape[1:] != test.shape[1:]:
        raise NotMeasured(f"training images of shape {tuple(train.shape[1:])}, test images of {tuple(test.shape[1:])}")
    seen = {image.tobytes() for image in train.float().cpu().numpy()}
    common = sum(image.tobytes() in seen for image in test.float().cpu().numpy())
    if common:
        share = common / len(test)
        yield finding(
            "train-test-overlap",
            f"{common} of {len(test)} test images ({percent(share)}) are duplicates of some of the {len(train)}"
            " training images.",
            # many public data sets have a few duplicates, which do not change the accuracy visibly
            level="warning" if share > 0.001 else "note",
        )
