"""Images in JavaScript become the model's input as in Python: to the byte, but for a decoder's rounding."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.data.fitting import fit_image, to_channels
from vitreous.data.preprocessing import Preprocessing

FITS = ("stretch", "crop", "letterbox")
FIT_ALL = """async ([cases, site]) => {
  const { fitImage } = await import(site + "fitting.js");
  const { fromBase64, toBase64 } = await import(site + "codec.js");
  return cases.map(({ image, preprocessing }) => {
    return toBase64(fitImage({ ...image, values: fromBase64(image.values) }, preprocessing).values);
  });
}"""
READ_ALL = """async ([cases, site]) => {
  const { readPicture } = await import(site + "picture-files.js");
  const { fromBase64, toBase64 } = await import(site + "codec.js");
  const found = [];
  for (const { file, preprocessing } of cases) {
    const { image, extent } = await readPicture(new Blob([fromBase64(file)]), preprocessing);
    found.push({ values: toBase64(image.values), extent });
  }
  return found;
}"""


def _encoded(values: np.ndarray | bytes) -> str:
    return base64.b64encode(values if isinstance(values, bytes) else values.tobytes()).decode()


def _decoded(text: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape)


def _photograph(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return a smooth image with edges and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    image = np.stack([255 * y, 200 * x + 30, 255 * (x - y) ** 2], axis=2)
    image[(x - 0.6) ** 2 + (y - 0.4) ** 2 < 0.05] = (250, 220, 30)
    return np.clip(image + rng.normal(0, 5, image.shape), 0, 255).astype(np.uint8)


def test_any_size_and_fit_to_the_byte(open_page: Any, mixed_site: str) -> None:
    rng = np.random.default_rng(0)
    cases, expected = [], []
    sizes = [
        *rng.integers(1, 60, (60, 4)),
        *rng.integers(1, 260, (30, 4)),
        (1, 900, 9, 9),
        (700, 3, 20, 50),
        (5, 5, 64, 2),
    ]
    for i, (height, width, *size) in enumerate(np.array(sizes).tolist()):
        channels, wanted = (int(count) for count in rng.choice((1, 3), 2))
        pixels = rng.integers(0, 256, (height, width, channels)).astype(np.uint8)
        image = {"values": _encoded(pixels.transpose(2, 0, 1)), "channels": channels, "height": height, "width": width}
        cases.append({"image": image, "preprocessing": {"image_size": size, "channels": wanted, "fit": FITS[i % 3]}})
        expected.append(to_channels(fit_image(pixels, tuple(size), FITS[i % 3]), wanted).transpose(2, 0, 1))
    found = open_page(mixed_site).page.evaluate(FIT_ALL, [cases, mixed_site])
    for case, text, wanted in zip(cases, found, expected, strict=True):
        np.testing.assert_array_equal(_decoded(text, wanted.shape), wanted, err_msg=str(case["preprocessing"]))


def _files() -> dict[str, tuple[bytes, float]]:
    """Return files, and the mean difference in levels that each may have."""
    photograph = Image.fromarray(_photograph(150, 230))
    small = Image.fromarray(_photograph(60, 90))
    translucent = photograph.convert("RGBA")
    translucent.putalpha(Image.fromarray((np.mgrid[0:255:150j, 0:1:230j][0]).astype(np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    saved: dict[str, tuple[Image.Image, dict[str, Any], float]] = {
        "PNG": (photograph, {"format": "PNG"}, 0),
        "gray PNG": (photograph.convert("L"), {"format": "PNG"}, 0),
        "palette PNG": (photograph.quantize(32), {"format": "PNG"}, 0),
        "BMP": (photograph, {"format": "BMP"}, 0),
        "GIF": (photograph.quantize(32), {"format": "GIF"}, 0),
        "lossless WebP": (photograph, {"format": "WebP", "lossless": True}, 0),
        "translucent PNG": (translucent, {"format": "PNG"}, 0.3),  # the browser rounds where it mixes with white
        "JPEG": (small, {"format": "JPEG", "quality": 90}, 0.3),
        "turned JPEG": (small, {"format": "JPEG", "quality": 90, "exif": exif}, 0.3),
        # decoded at a fraction of its size by the library, whole by the browser
        "large JPEG": (Image.fromarray(_photograph(900, 1300)), {"format": "JPEG", "quality": 90}, 1.0),
    }
    files = {}
    for name, (image, options, tolerance) in saved.items():
        buffer = io.BytesIO()
        image.save(buffer, **options)
        files[name] = (buffer.getvalue(), tolerance)
    return files


@pytest.mark.parametrize("channels", [1, 3])
def test_files_as_the_library_reads_them(open_page: Any, mixed_site: str, channels: int) -> None:
    cases, expected, names = [], [], []
    for name, (data, tolerance) in _files().items():
        for fit in FITS:
            statistics = {"mean": (0.5,) * channels, "std": (0.5,) * channels}
            preprocessing = Preprocessing(
                image_size=(32, 48), channels=channels, resize="bilinear", polarity="as-is", fit=fit, **statistics
            )
            cases.append({"file": _encoded(data), "preprocessing": preprocessing.model_dump(mode="json")})
            expected.append((preprocessing.prepare(data).pixels, tolerance))
            names.append(f"{name}, {fit}")
    found = open_page(mixed_site).page.evaluate(READ_ALL, [cases, mixed_site])
    for name, one, (wanted, tolerance) in zip(names, found, expected, strict=True):
        difference = np.abs(_decoded(one["values"], wanted.shape).astype(int) - wanted)
        print(f"{name}: at most {difference.max()}, on average {difference.mean():.3f}")
        assert difference.mean() <= tolerance, name
        assert difference.max() <= (0 if tolerance == 0 else 1 if tolerance < 1 else 24), name
        extents = {"turned JPEG": [90, 60], "JPEG": [60, 90], "large JPEG": [900, 1300]}
        assert one["extent"] == extents.get(name.partition(",")[0], [150, 230])
