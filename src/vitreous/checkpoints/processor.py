"""What transformers' image processor does otherwise than `vitreous predict`, for a model written in its layout."""

from __future__ import annotations

from vitreous.data.images import DRAFT
from vitreous.data.preprocessing import Preprocessing
from vitreous.reports.formats import by


def processor_limits(preprocessing: Preprocessing) -> list[str]:
    """Return what this preprocessing does and transformers' image processor does not."""
    size, digits = by(*preprocessing.image_size), preprocessing.resize == "mnist"
    same = f"images of {size} pixels" if not digits else "MNIST's own images, 28×28 and light on black,"
    limits = [
        f"{same} give the same probabilities as `vitreous predict`; where transformers' processor"
        " resizes, its pixels are within one of 255 levels of vitreous', and the probabilities differ by as little",
        f"vitreous decodes a JPEG of more than {2 * DRAFT} times {size} at a half of its size or less, which changes"
        " pixels by a few levels",
    ]
    limits.append(
        "vitreous lays transparent parts over black or white, whichever the picture contrasts with, and turns"
        " photographs upright by their EXIF tag; transformers' processor does neither"
    )
    if digits:
        limits.append(
            "vitreous inverts dark-on-light drawings, crops the digit, scales it to 20×20 and centres it by its mass"
            " in 28×28, as MNIST's digits are; transformers' processor does not: give it images that look like MNIST's"
        )
    if preprocessing.channels == 1:
        limits.append(
            "the model takes gray images, and transformers' processor does not convert colours: call"
            ' image.convert("L") first (vitreous does it after resizing, which rounds otherwise by up to one level)'
        )
    if preprocessing.fit != "stretch":
        limits.append(
            f"vitreous keeps the aspect ratio (fit={preprocessing.fit!r}); transformers' processor stretches every"
            f" image to {size}: crop or pad it first"
        )
    return limits
