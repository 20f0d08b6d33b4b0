"""Are the images and labels what the model expects?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import number, percent
from vitreous.doctor.subject import Patient, channels_last


def _given(patient: Patient) -> Tensor:
    if patient.given_images is None:
        raise NotMeasured("no images were given")
    return patient.given_images


def inputs_range(patient: Patient) -> Iterator[Finding]:
    """Raw bytes, numbers that are no numbers, or nothing but one value."""
    images = _given(patient)
    values = images.float()
    if not bool(torch.isfinite(values).all()):
        share = float((~torch.isfinite(values)).float().mean())
        what = f"{percent(share)} of the pixels are NaN or infinite"
    elif float(values.max()) == float(values.min()):
        what = f"every pixel of every image is {number(float(values.max()))}"
    elif not images.is_floating_point() or float(values.abs().max()) > 16:
        # normalised images stay below about 5; 16 leaves room for odd ones and is far below 255
        low, high = number(float(values.min())), number(float(values.max()))
        what = f"pixels run from {low} to {high} ({str(images.dtype).removeprefix('torch.')})"
    else:
        return
    yield Finding(
        "inputs-wrong-range", "broken",
        f"the inputs are out of range: {what}.",
        "Inputs a hundred times too large saturate attention and make the first steps explode; a model trained on"
        " normalised images answers nonsense.",
        "images.float() / 255, then (x − mean) / std with the mean and standard deviation of the training set"
        " (MNIST: 0.1307, 0.3081).",
    )  # fmt: skip


def inputs_not_normalised(patient: Patient) -> Iterator[Finding]:
    images = _given(patient)
    if next(inputs_range(patient), None) is not None:
        raise NotMeasured("the inputs are out of range, which includes this")
    low, high, mean, std = (float(value) for value in (images.min(), images.max(), images.mean(), images.std()))
    # [0, 1] is what ToTensor leaves; otherwise mean 0 ± 3 and a spread of 0.05 to 5 is taken as normalised somehow
    if (low >= 0 and high <= 1) or abs(mean) > 3 or not 0.05 <= std <= 5:
        yield Finding(
            "inputs-not-normalised", "warning",
            f"the inputs are not normalised: they run from {number(low)} to {number(high)} with mean {number(mean)} and"
            f" standard deviation {number(std)}, where about 0 and 1 are expected.",
            "The usual initialisations and learning rates assume inputs of mean 0 and spread 1; a pre-trained model"
            " expects exactly the numbers it was trained with.",
            "(x − mean) / std with the mean and standard deviation of the training set (MNIST: 0.1307, 0.3081).",
        )  # fmt: skip


def channel_order(patient: Patient) -> Iterator[Finding]:
    """Channels last; or, for a trained model with labels, colours in reverse."""
    images = _given(patient)
    if channels_last(tuple(images.shape)):
        yield Finding(
            "inputs-channel-order", "broken",
            f"the images come as {tuple(images.shape)}: channels last.",
            "PyTorch's models read (batch, channel, height, width); a height taken for channels fails, or worse, does"
            " not.",
            "images.permute(0, 3, 1, 2)",
        )  # fmt: skip
        return
    if images.ndim != 4 or images.shape[1] != 3:
        return
    if patient.fresh is not False or patient.given_labels is None:
        raise NotMeasured("channels come first; whether they are RGB or BGR only a trained model and labels can tell")
    correct = []
    with patient.borrowed() as model:
        for x in (patient.images, patient.images.flip(1)):
            correct.append(float((patient.log_probabilities(model, x).argmax(1) == patient.labels).float().sum()))
    as_given, reversed_ = correct
    if reversed_ - as_given > 3 * max(len(patient.images), 1) ** 0.5 / 2:  # three standard errors at worst
        yield Finding(
            "inputs-channel-order", "broken",
            f"with the colours reversed, {reversed_:.0f} of {len(patient.images)} images are right, as given"
            f" {as_given:.0f}.",
            "The model was trained on RGB and is given BGR (OpenCV's order), or the other way round.",
            "images.flip(1), or cv2.cvtColor(image, cv2.COLOR_BGR2RGB) where they are read.",
        )  # fmt: skip


def labels_out_of_range(patient: Patient) -> Iterator[Finding]:
    labels = patient.given_labels
    if labels is None:
        raise NotMeasured("no labels were given")
    classes = patient.num_classes
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        what = f"labels are fractions (the first: {number(float(labels.flatten()[0]))}), not class numbers"
    elif labels.ndim != 1:
        what = f"labels have the shape {tuple(labels.shape)}, not one class number an image"
    elif int(labels.min()) < 0 or int(labels.max()) >= classes:
        outside = int(((labels < 0) | (labels >= classes)).sum())
        what = (
            f"{outside} of {len(labels)} labels lie outside 0…{classes - 1}, the model's {classes} classes (they run"
            f" from {int(labels.min())} to {int(labels.max())})"
        )
    else:
        return
    yield Finding(
        "labels-out-of-range", "broken",
        f"{what}.",
        "Cross-entropy fails on such a label, or on a GPU reads beyond its memory.",
        "Number the classes from 0 (labels − 1 if they start at 1), or give the model as many outputs as there are"
        " classes.",
    )  # fmt: skip


def train_test_overlap(patient: Patient) -> Iterator[Finding]:
    """Images of the test set that stand, byte for byte, among the training images."""
    if patient.given_images is None or patient.test_images is None:
        raise NotMeasured("it takes training images and test images")
    train, test = patient.given_images, patient.test_images
    if train.shape[1:] != test.shape[1:]:
        raise NotMeasured(f"training images of shape {tuple(train.shape[1:])}, test images of {tuple(test.shape[1:])}")
    known = {image.tobytes() for image in train.float().cpu().numpy()}
    common = sum(image.tobytes() in known for image in test.float().cpu().numpy())
    if common:
        share = common / len(test)
        yield Finding(
            # a stray double is in many public data sets and moves no accuracy that anybody prints
            "train-test-overlap", "warning" if share > 0.001 else "note",
            f"{common} of {len(test)} test images ({percent(share)}) also stand among the {len(train)} training"
            " images.",
            "The model has seen their answers, so the test accuracy is too good by up to that share.",
            "Split first, then augment or copy; drop the doubles from the training set.",
        )  # fmt: skip
