"""Hostile image files, as functions that return their bytes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

GRADIENT = np.linspace(0, 255, 30 * 24).reshape(30, 24).astype(np.uint8)
COLOURS = np.stack([GRADIENT, GRADIENT[::-1], GRADIENT[:, ::-1]], axis=2)


Make = Callable[[], bytes]


# --- building blocks -----------------------------------------------------------------------------------------------


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png(width: int, height: int, *extra: bytes, depth: int = 8, colour: int = 0, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + body + chunk(b"IEND", b"")


def striped_png(width: int, height: int, mode: str) -> bytes:
    """A valid PNG with a bright bar in its middle third; it compresses to almost nothing."""
    channels = len(mode)
    row = np.zeros((width, channels), np.uint8)
    row[width // 3 : max(2 * width // 3, width // 3 + 1)] = 255
    dark, bright = b"\0" + bytes(width * channels), b"\0" + row.tobytes()
    packer = zlib.compressobj(1)
    parts = [packer.compress(bright if height // 3 <= i <= 2 * height // 3 else dark) for i in range(height)]
    colour = {"L": 0, "RGB": 2, "LA": 4, "RGBA": 6}[mode]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    body = chunk(b"IDAT", b"".join([*parts, packer.flush()]))
    return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


def jpeg_of_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated: every copy is a pass over the whole image."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    whole = encode(Image.fromarray(noise).resize((side, side)), "JPEG", progressive=True, quality=30)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * scans + b"\xff\xd9"


def turned(orientation: Any) -> bytes:
    image = Image.fromarray(GRADIENT)
    exif = image.getexif()
    exif[0x0112] = orientation
    return encode(image, "PNG", exif=exif)


def _exif_png(raw: bytes) -> bytes:
    return png(24, 30, chunk(b"eXIf", raw), pixels=b"".join(b"\0" + row.tobytes() for row in GRADIENT))


# --- the files -----------------------------------------------------------------------------------------------------


def bombs() -> dict[str, Make]:
    return {
        "50,000×50,000 in one bit": lambda: png(50_000, 50_000, depth=1, pixels=bytes(1000)),
        "2³¹-1 on each side": lambda: png(2**31 - 1, 2**31 - 1),
        "7,000×7,000, allowed": lambda: striped_png(7_000, 7_000, "L"),
        "4,000×4,000 RGBA, allowed": lambda: striped_png(4_000, 4_000, "RGBA"),
        "text that unpacks to 200 MB": lambda: png(
            4, 4, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(200_000_000))), pixels=bytes(20)
        ),
        "a colour profile that unpacks to 200 MB": lambda: png(
            4, 4, chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(200_000_000))), pixels=bytes(20)
        ),
        "pixels that unpack to 300 MB for 4×4": lambda: png(4, 4, pixels=bytes(300_000_000)),
        "a JPEG of 65,535×65,535": lambda: encode(Image.fromarray(GRADIENT), "JPEG").replace(
            b"\x00\x1e\x00\x18", b"\xff\xff\xff\xff", 1
        ),
        "a WebP of 16,384×16,384": lambda: b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2 + bytes(20),
        "a BMP of 60,000×60,000": lambda: b"BM" + bytes(12) + struct.pack("<Iii", 40, 60_000, -60_000) + bytes(40),
        "a GIF of 65,535×65,535": lambda: b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + bytes(50),
        "a GIF whose first frame is 12,000×12,000": lambda: gif_frame(12_000),
        "a TIFF of 60,000×60,000": lambda: tiff_header({256: 60_000, 257: 60_000, 258: 8, 259: 1, 262: 1, 273: (1, 8)}),
        "a TIFF of four million strips": lambda: (
            tiff_header({256: 8, 257: 8, 258: 8, 259: 1, 273: (4_000_000, 200)}) + bytes(16_000_000)
        ),
        "a TIFF in tiles of 60,000×60,000": lambda: tiff_header(
            {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 322: 60_000, 323: 60_000, 324: 8, 325: 9}
        ),
        "a TIFF of 300,000 pages": lambda: tiff_pages(300_000),
    }


def gif_frame(side: int) -> bytes:
    screen, frame = struct.pack("<HHBBB", 4, 4, 0, 0, 0), struct.pack("<HHHHB", 0, 0, side, side, 0)
    return b"GIF89a" + screen + b"," + frame + b"\x02\x02\x4c\x01\0;"


def tiff_header(tags: dict[int, int | tuple[int, int]]) -> bytes:
    """Return a TIFF's header and first directory: 32-bit values, or (count, offset) of many."""
    pairs = {tag: value if isinstance(value, tuple) else (1, value) for tag, value in tags.items()}
    entries = [struct.pack("<HHII", tag, 4, *pairs[tag]) for tag in sorted(pairs)]
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + bytes(500)


def tiff_pages(count: int) -> bytes:
    """Return a valid TIFF that is followed by empty directories, each of which names the next."""
    first = bytearray(encode(Image.fromarray(GRADIENT), "TIFF"))
    start = struct.unpack("<I", first[4:8])[0]
    entries = struct.unpack("<H", first[start : start + 2])[0]
    successor, end = start + 2 + 12 * entries, len(first)
    first[successor : successor + 4] = struct.pack("<I", end)
    return bytes(first) + b"".join(struct.pack("<HI", 0, end + 6 * (page + 1)) for page in range(count))


def sides() -> dict[str, Make]:
    sides = [(500_000, 1), (1, 500_000), (4_000_000, 1), (1, 4_000_000), (49_000_000, 1), (225, 1), (1, 225), (1, 1)]
    sides += [(200_000, 2), (3, 100_000), (2_000_000, 24), (65_535, 3)]
    return {
        f"{width:,}×{height:,} {mode}": partial(striped_png, width, height, mode)
        for width, height in sides
        for mode in (("L", "RGBA") if width * height < 10_000_000 else ("L",))
    } | {
        "a JPEG of 65,500×1": lambda: encode(Image.new("L", (65_500, 1), 80), "JPEG"),
        "a WebP of 16,383×1": lambda: encode(Image.new("RGB", (16_383, 1), (9, 99, 200)), "WEBP"),
        "a BMP of 1×500,000": lambda: encode(Image.new("L", (1, 500_000), 80), "BMP"),
    }  # fmt: skip


def headers() -> dict[str, Make]:
    rows = b"".join(b"\0" + row.tobytes() for row in GRADIENT)
    bmp = encode(Image.fromarray(GRADIENT), "BMP")

    def patched_bmp(offset: int, value: int) -> bytes:
        return bmp[:offset] + struct.pack("<i", value) + bmp[offset + 4 :]

    def interlaced() -> bytes:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 30, 8, 0, 0, 0, 1))
        return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(5))) + chunk(b"IEND", b"")

    return {
        "more rows than data": lambda: png(24, 3000, pixels=rows),
        "wider than the data": lambda: png(2400, 30, pixels=rows),
        "no data at all": lambda: png(24, 30),
        "two headers": lambda: png(24, 30, chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 0, 0, 0, 0)), pixels=rows),
        "a palette is missing": lambda: png(24, 30, colour=3, pixels=rows),
        "colour type 5": lambda: png(24, 30, colour=5, pixels=rows),
        "three bits per pixel": lambda: png(24, 30, depth=3, pixels=rows),
        "interlaced, truncated": interlaced,
        "a chunk of 2³¹ bytes": lambda: png(24, 30, struct.pack(">I", 2**31) + b"tEXt", pixels=rows),
        "zero columns": lambda: png(0, 4),
        "zero rows": lambda: png(4, 0),
        "BMP: negative width": lambda: patched_bmp(18, -24),
        "BMP: no width": lambda: patched_bmp(18, 0),
        "BMP: the smallest height": lambda: patched_bmp(22, -(2**31)),
        "BMP: a palette of 2³¹-1": lambda: patched_bmp(46, 2**31 - 1),
        "BMP: pixels beyond the end": lambda: patched_bmp(10, 10**9),
        "BMP: 64 bits per pixel": lambda: bmp[:28] + struct.pack("<H", 64) + bmp[30:],
        "BMP: run-length coded": lambda: bmp[:28] + struct.pack("<HI", 8, 1) + bmp[34:],
        "empty": lambda: b"",
        "only a signature": lambda: b"\x89PNG\r\n\x1a\n",
    }


def chunks() -> dict[str, Make]:
    rows = b"".join(b"\0" + row.tobytes() for row in GRADIENT)
    text = chunk(b"tEXt", b"Comment\0" + b"x" * 100)

    def wrong(kind: bytes) -> bytes:
        whole = bytearray(png(24, 30, text, pixels=rows))
        place = whole.index(kind)
        length = struct.unpack(">I", whole[place - 4 : place])[0]
        whole[place + 4 + length] ^= 0x40
        return bytes(whole)

    cases: dict[str, Make] = {f"wrong CRC of {kind.decode()}": partial(wrong, kind)
                              for kind in (b"IHDR", b"IDAT", b"IEND", b"tEXt")}  # fmt: skip
    return cases | {
        "a text of 20 MB": lambda: png(24, 30, chunk(b"tEXt", b"k\0" + b"x" * 20_000_000), pixels=rows),
        "200,000 texts": lambda: png(24, 30, chunk(b"tEXt", b"k\0x") * 200_000, pixels=rows),
        "200,000 unknown chunks": lambda: png(24, 30, chunk(b"abCd", b"") * 200_000, pixels=rows),
        "an animation of 10,000 frames": lambda: png(
            24, 30, chunk(b"acTL", struct.pack(">II", 10_000, 0)),
            chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 24, 30, 0, 0, 1, 1, 0, 0)), pixels=rows,
        ),
        "an animated WebP": lambda: encode(
            Image.new("RGB", (8, 8)), "WEBP", save_all=True,
            append_images=[Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in range(1, 40)],
        ),
        "a JPEG of 5,000 scans": lambda: jpeg_of_scans(64, 5000),
        "a JPEG of 80 scans, 3,000×3,000": lambda: jpeg_of_scans(3000, 80),
        "a JPEG of 95 scans, 6,000×6,000": lambda: jpeg_of_scans(6000, 95),
    }  # fmt: skip


def metadata() -> dict[str, Make]:
    loop = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 1) + bytes(12) + struct.pack(">I", 8)
    many = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 65535) + bytes(100)
    huge = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">HHHII", 1, 0x0112, 4, 2**31, 26) + bytes(8)
    return {
        **{f"EXIF orientation {value!r}": partial(turned, value) for value in (0, 9, 65535, (6, 6))},
        "an EXIF directory that is its own successor": lambda: _exif_png(loop),
        "an EXIF directory of 65,535 entries": lambda: _exif_png(many),
        "an EXIF entry of 2³¹ values": lambda: _exif_png(huge),
        "an EXIF block of noise": lambda: _exif_png(bytes(range(256)) * 40),
    }


def polyglots() -> dict[str, Make]:
    image = encode(Image.fromarray(GRADIENT), "PNG")
    return {
        "a PNG, then a zip": lambda: image + b"PK\x03\x04" + bytes(100),
        "a PNG, then another": lambda: image + encode(Image.fromarray(COLOURS), "PNG"),
        "a PNG, then 20 MB of zeros": lambda: image + bytes(20_000_000),
        "a JPEG, then a script": lambda: encode(Image.fromarray(GRADIENT), "JPEG") + b"<script>alert(1)</script>",
        "a PDF, then a PNG": lambda: b"%PDF-1.7\n" + image,
        "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n",
        "PSD": lambda: b"8BPS\0\1" + bytes(100),
        "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "a pickle": lambda: b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.",
        "noise": lambda: np.random.default_rng(0).bytes(5000),
    }


def correct() -> dict[str, tuple[Make, np.ndarray]]:
    """Odd but valid files, and the pixels they must decode to."""
    gray, colours = Image.fromarray(GRADIENT), Image.fromarray(COLOURS)
    palette = colours.quantize(16)
    bits = Image.fromarray(GRADIENT > 100)
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    transparent = np.dstack([COLOURS, np.zeros_like(GRADIENT)])
    turns: dict[str, tuple[Make, np.ndarray]] = {
        f"EXIF orientation {value}": (partial(turned, value), np.ascontiguousarray(pixels))
        for value, pixels in {
            1: GRADIENT, 2: GRADIENT[:, ::-1], 3: GRADIENT[::-1, ::-1], 4: GRADIENT[::-1], 5: GRADIENT.T,
            6: np.rot90(GRADIENT, -1), 7: GRADIENT[::-1, ::-1].T, 8: np.rot90(GRADIENT),
        }.items()
    }  # fmt: skip
    return turns | {
        "gray": (lambda: encode(gray, "PNG"), GRADIENT),
        "colours": (lambda: encode(colours, "BMP"), COLOURS),
        "one bit": (lambda: encode(bits, "PNG"), (GRADIENT > 100) * np.uint8(255)),
        "palette": (lambda: encode(palette, "PNG"), np.asarray(palette.convert("RGB"))),
        "16 bits": (lambda: encode(Image.fromarray(GRADIENT.astype(np.uint16) * 257), "PNG"), GRADIENT),
        "GIF": (lambda: encode(gray, "GIF"), GRADIENT),
        "TIFF, LZW": (lambda: encode(colours, "TIFF", compression="tiff_lzw"), COLOURS),
        "TIFF of 16 bits": (lambda: encode(Image.fromarray(GRADIENT.astype(np.uint16) * 257), "TIFF"), GRADIENT),
        "WebP, lossless": (lambda: encode(colours, "WEBP", lossless=True), COLOURS),
        "transparent": (lambda: encode(Image.fromarray(transparent), "PNG"), np.full_like(GRADIENT, 255)),
        "CMYK": (lambda: encode(cmyk, "JPEG", quality=100), np.full((8, 8, 3), (255, 0, 0), np.uint8)),
        "two images in one (MPO)": (
            lambda: encode(Image.new("RGB", (8, 8), (200, 0, 0)), "MPO", save_all=True,
                           append_images=[Image.new("RGB", (8, 8), (10, 0, 0))]),
            np.full((8, 8, 3), (200, 0, 0), np.uint8),
        ),
    }  # fmt: skip


LISTED: dict[str, Callable[[], dict[str, Make]]] = {
    "decompression bombs": bombs,
    "extreme sides": sides,
    "lying headers": headers,
    "chunks, scans, frames": chunks,
    "damaged metadata": metadata,
    "other formats and polyglots": polyglots,
}
