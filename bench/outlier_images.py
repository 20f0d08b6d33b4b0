"""Images that a model was not trained on, for bench/novelty.py: rendered letters, scribbles, smileys, noise.

All are drawn here from a seed, as uint8 (H, W) pictures, dark on light as a person would draw them, and then go through
the preprocessing of the model under test like any user's image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError

SIDE = 140  # of a drawn picture; the preprocessing shrinks it
#: Without letters that look like a digit in some font or at some angle: b g i l o q s z B D G I O Q S Z.
LETTERS = "acdefhjkmnprtuvwxyACEFHJKLMNPRTUVWXY"
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono-Oblique.ttf")
Picture = Callable[[np.random.Generator], np.ndarray]


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def letter(random: np.random.Generator) -> np.ndarray:
    """Return one letter in a random font and size, turned by at most 15°."""
    picture = Image.new("L", (SIDE, SIDE), 255)
    font = _font(str(random.choice(FONTS)), int(random.integers(60, 110)))
    ImageDraw.Draw(picture).text((SIDE / 2, SIDE / 2), str(random.choice(list(LETTERS))), 0, font, anchor="mm")
    return np.asarray(picture.rotate(float(random.uniform(-15, 15)), Image.Resampling.BICUBIC, fillcolor=255))


def scribble(random: np.random.Generator) -> np.ndarray:
    """Return one to four smooth strokes through random points."""
    picture = Image.new("L", (SIDE, SIDE), 255)
    draw = ImageDraw.Draw(picture)
    for _ in range(int(random.integers(1, 5))):
        corners = random.uniform(15, SIDE - 15, (int(random.integers(3, 7)), 2))
        path = _smooth(corners)
        width = int(random.integers(6, 14))
        draw.line([tuple(point) for point in path], 0, width, joint="curve")
    return np.asarray(picture)


def smiley(random: np.random.Generator) -> np.ndarray:
    """Return a circle with two eyes and a mouth."""
    picture = Image.new("L", (SIDE, SIDE), 255)
    draw = ImageDraw.Draw(picture)
    width, radius = int(random.integers(5, 12)), float(random.uniform(40, 60))
    x, y = random.uniform(radius + 5, SIDE - radius - 5, 2)
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=0, width=width)
    for side in (-1, 1):
        eye, dot = (x + side * 0.38 * radius, y - 0.28 * radius), random.uniform(3, 7)
        draw.ellipse((eye[0] - dot, eye[1] - dot, eye[0] + dot, eye[1] + dot), fill=0)
    mouth = random.uniform(0.45, 0.65) * radius
    draw.arc((x - mouth, y - mouth, x + mouth, y + mouth), 20, 160, fill=0, width=width)
    return np.asarray(picture)


def _smooth(corners: np.ndarray, steps: int = 12) -> np.ndarray:
    """Return a Catmull-Rom curve through the corners."""
    ends = np.concatenate([2 * corners[:1] - corners[1:2], corners, 2 * corners[-1:] - corners[-2:-1]])
    t = np.linspace(0, 1, steps)[:, None]
    parts = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(ends, ends[1:], ends[2:], ends[3:], strict=False)
    ]
    return np.concatenate(parts)


def drawn(picture: Picture, count: int, preprocessing: Preprocessing, seed: int = 0) -> Tensor:
    """Return `count` pictures as the model's input, uint8 (count, C, H, W)."""
    random = np.random.default_rng(seed)

    def prepared() -> Iterator[np.ndarray]:
        while True:
            try:
                yield preprocessing.prepare(picture(random)).pixels
            except DataError:  # a picture without any stroke
                continue

    source = prepared()
    return torch.from_numpy(np.stack([next(source) for _ in range(count)]))


def noise(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Return pixels that are independent and uniform, uint8 (count, C, H, W)."""
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
