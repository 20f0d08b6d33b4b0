"""Image files: every supported kind is decoded correctly, and bombs are refused before they are decoded."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch.nn import functional as F

from vitreous.data.fitting import fit_image, luma, to_channels
from vitreous.data.images import convert, declared_extent, decode_image, from_pillow, image_extent
from vitreous.errors import DataError

GRADIENT = np.linspace(0, 255, 12 * 8).reshape(12, 8).astype(np.uint8)
COLOURS = np.stack([GRADIENT, GRADIENT[::-1], GRADIENT[:, ::-1]], axis=2)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, depth: int = 8, colour: int = 0, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + body + chunk(b"IEND", b"")


def tiff(tags: dict[int, int | tuple[int, int]], order: str = "<") -> bytes:
    """Return the header of a TIFF: 32-bit values, or (count, offset) of many."""
    entries = [
        struct.pack(f"{order}HHII", tag, 4, *(value if isinstance(value, tuple) else (1, value)))
        for tag, value in sorted(tags.items())
    ]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    return head + b"".join(entries) + bytes(4) + bytes(500)


# --- honest files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_lossless_formats_come_back_exactly(kind: str) -> None:
    np.testing.assert_array_equal(decode_image(encode(Image.fromarray(GRADIENT), kind)).pixels[:, :, 0], GRADIENT)
    np.testing.assert_array_equal(decode_image(encode(Image.fromarray(COLOURS), kind)).pixels, COLOURS)


def test_webp_and_jpeg() -> None:
    webp = encode(Image.fromarray(COLOURS), "WEBP", lossless=True)
    np.testing.assert_array_equal(decode_image(webp).pixels, COLOURS)
    smooth = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    for options in ({"quality": 95}, {"quality": 95, "progressive": True}):
        jpeg = decode_image(encode(Image.fromarray(smooth), "JPEG", **options)).pixels
        assert np.abs(jpeg.astype(int) - smooth).max() <= 4
    lossy = encode(Image.fromarray(smooth), "WEBP", quality=90)
    assert np.abs(decode_image(lossy).pixels.astype(int) - smooth).max() <= 8


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_tiff(compression: str | None) -> None:
    options = {"compression": compression} if compression else {}
    for pixels in (GRADIENT, COLOURS):
        found = decode_image(encode(Image.fromarray(pixels), "TIFF", **options)).pixels
        assert np.abs(found.astype(int) - np.atleast_3d(pixels)).max() <= (40 if compression == "jpeg" else 0)


def test_deep_turned_and_many_paged_tiffs(tmp_path: Path) -> None:
    deep = decode_image(encode(Image.fromarray(GRADIENT.astype(np.uint16) * 257), "TIFF"))
    np.testing.assert_array_equal(deep.pixels[..., 0], GRADIENT)
    assert deep.notes == ("16 bits per pixel reduced to 8",)
    pages = [Image.fromarray(GRADIENT), Image.fromarray(255 - GRADIENT)]
    several = decode_image(encode(pages[0], "TIFF", save_all=True, append_images=pages[1:]))
    np.testing.assert_array_equal(several.pixels[..., 0], GRADIENT)
    assert several.notes == ("only the first page of a TIFF of several is read",)
    (tmp_path / "turned.tif").write_bytes(encode(Image.fromarray(GRADIENT), "TIFF", tiffinfo={274: 6}))
    assert image_extent(tmp_path / "turned.tif") == (8, 12)
    np.testing.assert_array_equal(decode_image(tmp_path / "turned.tif").pixels[..., 0], np.rot90(GRADIENT, -1))


def test_the_first_frame_of_a_gif() -> None:
    frames = [Image.new("RGB", (8, 6), (shade, 0, 0)) for shade in (250, 100, 10)]
    animated = decode_image(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert animated.pixels[..., 0].tolist() == [[250] * 8] * 6
    assert animated.notes == ("only the first frame of an animated GIF is read",)
    still = decode_image(encode(Image.fromarray(GRADIENT), "GIF"))
    assert still.notes == ()
    np.testing.assert_array_equal(still.pixels[..., 0], GRADIENT)


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_jpeg_is_decoded_at_a_fraction_of_its_size(turn: int) -> None:
    """At least twice the target, turned or not; and the picture is the same."""
    smooth = np.add.outer(np.arange(400), np.arange(800)).astype(float)
    pixels = (smooth / smooth.max() * 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encode(Image.fromarray(pixels), "JPEG", exif=exif)
    target = (40, 80) if turn < 5 else (80, 40)
    whole, part = decode_image(data), decode_image(data, target=target)
    assert whole.extent == part.extent == whole.pixels.shape[:2]
    assert part.pixels.shape[:2] == tuple(side // 4 for side in whole.pixels.shape[:2])
    assert whole.digest == part.digest
    shrunk = [fit_image(image.pixels, target, "stretch").astype(int) for image in (whole, part)]
    assert np.abs(shrunk[0] - shrunk[1]).max() <= 2
    assert decode_image(data, target=(300, 700)).pixels.shape == whole.pixels.shape


def test_digests_are_of_pixels_but_of_the_bytes_of_jpegs() -> None:
    image = Image.fromarray(COLOURS)
    same = {decode_image(encode(image, kind)).digest for kind in ("PNG", "BMP", "TIFF")}
    assert len(same) == 1
    gray = Image.fromarray(GRADIENT)
    assert decode_image(encode(gray, "PNG")).digest == decode_image(encode(gray.convert("RGB"), "PNG")).digest
    jpeg = encode(image, "JPEG")
    assert decode_image(jpeg).digest != decode_image(jpeg + b"\0").digest


def test_a_jpeg_named_png_is_read_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(encode(Image.fromarray(GRADIENT), "JPEG"))
    assert decode_image(tmp_path / "photo.png").pixels.shape == (12, 8, 1)


def test_one_bit_palette_and_sixteen_bits() -> None:
    bits = GRADIENT > 100
    np.testing.assert_array_equal(decode_image(encode(Image.fromarray(bits), "PNG")).pixels[:, :, 0], bits * 255)
    palette = Image.fromarray(COLOURS).quantize(16)
    np.testing.assert_array_equal(decode_image(encode(palette, "PNG")).pixels, np.asarray(palette.convert("RGB")))
    deep = GRADIENT.astype(np.uint16) * 257
    decoded = decode_image(encode(Image.fromarray(deep), "PNG"))
    np.testing.assert_array_equal(decoded.pixels[:, :, 0], GRADIENT)
    assert decoded.notes == ("16 bits per pixel reduced to 8",)


def test_a_cmyk_jpeg_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = decode_image(encode(cmyk, "JPEG")).pixels[4, 4]
    assert red > 200
    assert green < 60
    assert blue < 60


def test_exif_orientation_is_obeyed(tmp_path: Path) -> None:
    image = Image.fromarray(GRADIENT)
    exif = image.getexif()
    exif[0x0112] = 6  # lying on its side: to be turned by a quarter, clockwise
    path = tmp_path / "turned.png"
    image.save(path, exif=exif)
    assert image_extent(path) == (8, 12)
    np.testing.assert_array_equal(decode_image(path).pixels[:, :, 0], np.rot90(GRADIENT, -1))


def test_transparency_is_laid_over_white_or_a_contrasting_backdrop() -> None:
    def drawn(shade: int) -> bytes:
        rgba = np.zeros((6, 6, 4), np.uint8)
        rgba[2:4, 2:4] = (shade, shade, shade, 255)
        return encode(Image.fromarray(rgba), "PNG")

    black = decode_image(drawn(0), backdrop="contrast")
    assert black.pixels[0, 0, 0] == 255
    assert black.notes == ("transparent parts laid over white",)
    white = decode_image(drawn(255), backdrop="contrast")
    assert (white.pixels[0, 0, 0], white.pixels[2, 2, 0]) == (0, 255)
    assert white.notes == ("transparent parts laid over black",)
    assert decode_image(drawn(255)).pixels.min() == 255  # in data sets always over white


def test_half_transparent_mixes() -> None:
    half = Image.new("RGBA", (1, 1), (0, 0, 255, 128))
    assert from_pillow(half).pixels[0, 0].tolist() == [127, 127, 255]


# --- files that are not what they should be ----------------------------------------------------------------------

BOMBS = {
    "50,000×50,000 in one bit": png(50_000, 50_000, depth=1, pixels=bytes(1000)),
    "a zTXt bomb": png(4, 4, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80_000_000))), pixels=bytes(20)),
    "an APNG of 10,000 frames": png(
        4, 4, chunk(b"acTL", struct.pack(">II", 10_000, 0)),
        chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 4, 4, 0, 0, 1, 1, 0, 0)), pixels=bytes(20),
    ),
    "a large JPEG": encode(Image.fromarray(GRADIENT), "JPEG").replace(b"\x00\x0c\x00\x08", b"\xff\xff\xff\xff", 1),
    "a large WebP": b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2 + bytes(20),
    "a large BMP": b"BM" + bytes(12) + struct.pack("<Iii", 40, 60_000, -60_000) + bytes(40),
    "a JPEG of 5,000 scans": encode(Image.fromarray(GRADIENT), "JPEG") + b"\xff\xda" * 5000,
    "PSD": b"8BPS\0\1" + bytes(100),
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n",
    "a GIF of nothing": b"GIF89a" + bytes(50),
    "a large GIF": b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0) + bytes(50),
    "a GIF whose frame is larger than its screen": (
        b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0, 0, 0) + b"!\xfe\x03abc\0"
        + b"," + struct.pack("<HHHHB", 0, 0, 10_000, 10_000, 0) + b"\x02\x02\x4c\x01\0;"
    ),
    "a TIFF of nothing": b"II*\0" + bytes(50),
    "a large TIFF": tiff({256: 50_000, 257: 50_000, 258: 8, 259: 1, 262: 1, 273: 8, 278: 50_000, 279: 1}),
    "a TIFF of a million strips": tiff({256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: (1_000_000, 8), 278: 1}),
    "a TIFF in huge tiles": tiff({256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 322: 60_000, 323: 60_000, 324: 8, 325: 9}),
    "a TIFF with JPEG 2000 inside": tiff({256: 8, 257: 8, 258: 8, 259: 34712, 262: 1, 273: 8, 278: 8, 279: 9}),
    "a TIFF of floats": tiff({256: 8, 257: 8, 258: 32, 259: 1, 262: 1, 273: 8, 278: 8, 279: 256, 339: 3}),
    "BigTIFF": b"II+\0\x08\0\0\0" + bytes(50),
    "nothing": b"",
    "zero pixels": png(0, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_and_other_formats_are_refused_at_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(BOMBS[name])
    start = time.process_time()  # of this process: others may keep the cores busy
    with pytest.raises(DataError, match=r"image\.png"):
        decode_image(path)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize("side", [8_000, 10_000, 14_000])  # below, within and above the range in which Pillow warns
def test_large_images_are_refused_without_a_warning(side: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(DataError, match=f"the image declares {side**2:,} pixels; the limit is 50,000,000"):
            decode_image(png(side, side))
        assert declared_extent(png(side, side)) == (side, side)
    assert not caught


@pytest.mark.parametrize(("width", "height"), [(500_000, 1), (1, 16_385)])
def test_a_long_side_is_refused_before_decoding(width: int, height: int, tmp_path: Path) -> None:
    expected = f"is {height}×{width} pixels; the limit is 16,384 along each side: crop or shrink it"
    with pytest.raises(DataError, match=expected):
        decode_image(png(width, height))
    (tmp_path / "long.png").write_bytes(png(width, height))
    with pytest.raises(DataError, match=expected):
        image_extent(tmp_path / "long.png")


def test_the_longest_side_is_read() -> None:
    assert decode_image(png(16_384, 1, pixels=bytes(16_385))).pixels.shape == (1, 16_384, 1)


def test_decoding_leaves_the_filters_of_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads share them: two decodes at once would restore each other's."""
    during, read_header = [], PngImageFile._open

    def spy(image: PngImageFile) -> None:
        during.append(list(warnings.filters))
        read_header(image)

    monkeypatch.setattr(PngImageFile, "_open", spy)
    assert declared_extent(png(10_000, 10_000)) == (10_000, 10_000)
    assert during == [list(warnings.filters)]


def test_an_animated_webp_is_refused() -> None:
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 100, 200)]
    animated = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match="animation of 3 frames"):
        decode_image(animated)


def test_a_camera_jpeg_with_a_second_image_inside() -> None:
    first, second = (Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (200, 10))
    both = encode(first, "MPO", save_all=True, append_images=[second])
    assert decode_image(both).pixels[..., 0].mean() == pytest.approx(200, abs=3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_truncated_files_are_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    whole = encode(Image.fromarray(noise), kind)
    for percent in range(0, 99, 3):
        with pytest.raises(DataError, match="the image"):
            decode_image(whole[: len(whole) * percent // 100])


@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"]))
def test_flipped_bytes_give_an_image_or_a_data_error(data: st.DataObject, kind: str) -> None:
    whole = bytearray(encode(Image.fromarray(COLOURS), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        assert decode_image(bytes(whole)).pixels.dtype == np.uint8


MAGIC = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF....WEBP", b"BM", b"GIF89a", b"II*\0", b"MM\0*"]


@given(st.binary(max_size=100), st.sampled_from(MAGIC))
def test_random_bytes_after_a_valid_magic_number(rest: bytes, magic: bytes) -> None:
    with pytest.raises(DataError):
        decode_image(magic + rest)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.png"):
        decode_image(tmp_path / "none.png")
    with pytest.raises(DataError, match="is a folder"):
        decode_image(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        decode_image("a\0b.png")
    with pytest.raises(DataError, match="up to 10 bytes"):
        decode_image(encode(Image.fromarray(GRADIENT), "PNG"), max_bytes=10)


# --- the conversions every image goes through --------------------------------------------------------------------


def test_gray_is_pillows_gray() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(colours).convert("L"))
    np.testing.assert_array_equal(luma(colours), expected)
    red, green, blue = (colours[..., channel].astype(np.int64) for channel in range(3))
    np.testing.assert_array_equal((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16, expected)
    np.testing.assert_array_equal(to_channels(colours, 1)[..., 0], expected)
    np.testing.assert_array_equal(to_channels(to_channels(colours, 1), 3)[..., 2], expected)
    assert to_channels(colours, 3) is colours


def test_batches_are_resized_as_torch_does_and_antialiased() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 1, 40, 60), dtype=np.uint8))
    theirs = F.interpolate(images.float(), size=(13, 17), mode="bilinear", antialias=True)
    assert (convert(images, (13, 17), 1).float() - theirs).abs().max() <= 1.01  # Pillow rounds twice
    assert convert(images, (40, 60), 1) is images
    stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(16).expand(1, 1, 32, 32)
    inner = convert(stripes, (8, 8), 1)[..., 1:-1, 1:-1]
    assert (inner.float() - 127.5).abs().max() < 1
