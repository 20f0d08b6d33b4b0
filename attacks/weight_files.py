"""Hostile files of weights and arrays, as functions that return their bytes."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

CANARY = "canary"
FOUR = bytes(16)
Make = Callable[[], bytes]


class RunsCode:
    """Unpickled in full, this makes a folder."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (CANARY,)


class RunsCodeWhenBuilt:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"__import__('os').mkdir({CANARY!r})",)


# --- safetensors ---------------------------------------------------------------------------------------------------


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(shape: list[Any], begin: int, end: int, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_files() -> dict[str, Make]:
    good = {"a": _entry([4], 0, 16)}
    twice = b'{"a": ' + json.dumps(_entry([4], 0, 16)).encode() + b', "a": '
    files: dict[str, tuple[object, bytes, int | None]] = {
        "a header of 2⁶³ bytes": (good, FOUR, 2**63),
        "a header of 2⁶⁴-1 bytes": ({}, b"", 2**64 - 1),
        "a header past the end": (good, FOUR, 10_000),
        "overlapping tensors": ({"a": _entry([4], 0, 16), "b": _entry([2], 8, 16)}, FOUR, None),
        "the same bytes twice": ({"a": _entry([4], 0, 16), "b": _entry([4], 0, 16)}, FOUR, None),
        "a hole": ({"a": _entry([1], 0, 4), "b": _entry([2], 8, 16)}, FOUR, None),
        "bytes left over": ({"a": _entry([2], 0, 8)}, FOUR, None),
        "past the end": ({"a": _entry([8], 0, 32)}, FOUR, None),
        "far past the end": ({"a": _entry([2**40], 0, 2**42)}, FOUR, None),
        "a shape of another size": ({"a": _entry([5], 0, 16)}, FOUR, None),
        "a shape that overflows": ({"a": _entry([2**62, 4, 2**62], 0, 16)}, FOUR, None),
        "a shape that wraps to the size": ({"a": _entry([2**62 + 1, 4], 0, 16)}, FOUR, None),
        "a negative shape": ({"a": _entry([-2, -2], 0, 16)}, FOUR, None),
        "empty with a side of 2⁶²": ({"a": _entry([0, 2**62], 0, 0)}, b"", None),
        "a thousand axes": ({"a": _entry([1] * 1000, 0, 4)}, bytes(4), None),
        "backward offsets": ({"a": _entry([4], 16, 0)}, FOUR, None),
        "an unknown type": ({"a": _entry([4], 0, 16, "F33")}, FOUR, None),
        "a type that is a list": ({"a": _entry([4], 0, 16, ["F32"])}, FOUR, None),
        "an entry that is a number": ({"a": 3}, FOUR, None),
        "a header that is a list": ([1, 2], b"", None),
        "nested for ever": (b"[" * 100_000, b"", None),
        "not UTF-8": (b'{"\xff\xfe": 1}', b"", None),
        "one name, two shapes": (twice + json.dumps(_entry([2, 2], 0, 16)).encode() + b"}", FOUR, None),
        "one name under two escapes": (twice.replace(b'"a"', b'"\\u0061"', 1) + b'{"dtype":"F32","shape":[4],'
                                       b'"data_offsets":[0,16]}}', FOUR, None),
        "a number of 5,000 digits": (b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0], "x": '
                                     + b"9" * 5000 + b"}}", b"", None),
        "names with line ends and control codes": ({"a\nb\x1b[31m\0": _entry([4], 0, 16)}, FOUR, None),
        "not a number everywhere": ({"patch_embed.proj.weight": _entry([4], 0, 16)}, b"\xff" * 16, None),
    }  # fmt: skip
    small: dict[str, Make] = {name: partial(safetensors, *file) for name, file in files.items()}
    return small | {
        "200,000 tensors": lambda: safetensors({str(i): _entry([0], 0, 0) for i in range(200_000)}),
        "a name of 10 MB": lambda: safetensors({"x" * 10_000_000: _entry([4], 0, 16)}, FOUR),
        "metadata of 10 MB": lambda: safetensors({"__metadata__": {"vitreous": "[" * 10_000_000}, **good}, FOUR),
    }


# --- npz and zip ---------------------------------------------------------------------------------------------------


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    raw = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(raw) % 65536) + raw + data


def described(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def npz(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, contents in entries:
            archive.writestr(f"{name}.npy", contents)
    return buffer.getvalue()


def understated(whole: bytes, size: int) -> bytes:
    """Declare `size` bytes, in both directories of the zip, for its only entry."""
    raw = bytearray(whole)
    central = raw.rindex(b"PK\x01\x02")
    raw[central + 24 : central + 28] = raw[22:26] = struct.pack("<I", size)
    return bytes(raw)


def npz_files() -> dict[str, Make]:
    headers = {
        "a shape of 10¹⁹": described("(999999999999, 9999999)"),
        "a negative shape": described("(-1, -4)"),
        "empty with a huge side": described("(0, 99999999999999)"),
        "objects": described("(2,)", "'|O'"),
        "records of objects": described("(1,)", "[('a', '<f4'), ('b', '|O')]"),
        "text": described("(1,)", "'<U4'"),
        "code in the header": f"__import__('os').mkdir({CANARY!r})",
        "nested for ever": "(" * 50_000,
        "a header of 60,000 bytes": described("(4,)") + " " * 60_000,
        "missing keys": "{'descr': '<f4'}",
        "a shape of 5,000 digits": described(f"({'9' * 5000},)"),
        "a type of 2³¹ bytes": described("(1,)", "'|V2147483647'"),
        "a date": described("(2,)", "'<M8[ns]'"),
    }
    # as weights (Google's first tensor) and as images of a data set
    cases: dict[str, Make] = {
        name: partial(npz, ("embedding/kernel", npy(header, FOUR)), ("images", npy(header, FOUR)),
                      ("labels", npy(described("(4,)", "'<i4'"), FOUR)))
        for name, header in headers.items()
    }  # fmt: skip
    zeros = npy(described("(16777216,)"), bytes(2**26))
    return cases | {
        "version 9 of the format": lambda: npz(("images", npy(described("(4,)"), FOUR, b"\x09\x00"))),
        "a bomb: 1 GB in 5 MB": lambda: npz(*((f"a{i}", zeros) for i in range(16)), method=zipfile.ZIP_DEFLATED),
        "64 MB declared as 128 bytes": lambda: understated(
            npz(("images", npy(described("(4,)"), bytes(2**26))), method=zipfile.ZIP_DEFLATED), 128
        ),
        "16 bytes declared as 4 GB": lambda: understated(
            npz(("images", npy(described("(1073741792,)"), FOUR)), method=zipfile.ZIP_DEFLATED), 2**32 - 1
        ),
        "packed with LZMA": lambda: npz(("images", npy(described("(4,)"), FOUR)), method=zipfile.ZIP_LZMA),
        "names that leave the folder": lambda: npz(("../../images", npy(described("(4,)"), FOUR))),
        "a name twice": lambda: npz(("images", npy(described("(4,)"), FOUR)), ("images", npy(described("(2,)"), FOUR))),
        "a pickle named npz": lambda: pickle.dumps(RunsCode()),
        "only the end of a zip": lambda: b"PK\x05\x06" + bytes(18),
    }


# --- data sets that are valid files of wrong content ---------------------------------------------------------------


def data_sets() -> dict[str, dict[str, np.ndarray]]:
    images = np.zeros((20, 8, 8), np.uint8)
    labels = np.arange(20) % 2
    return {
        "no labels": {"images": images},
        "fewer labels than images": {"images": images, "labels": labels[:7]},
        "one class": {"images": images, "labels": labels * 0},
        "a class of its own for every image": {"images": images, "labels": np.arange(20)},
        "floating labels": {"images": images, "labels": labels.astype(float)},
        "labels of 64 bits": {"images": images, "labels": labels.astype(np.uint64) + np.uint64(2**63)},
        "NaN": {"images": np.full((20, 8, 8), np.nan, np.float32), "labels": labels},
        "infinity": {"images": np.full((20, 8, 8), np.inf), "labels": labels},
        "levels above 1": {"images": np.full((20, 8, 8), 77.0), "labels": labels},
        "five axes": {"images": np.zeros((20, 1, 8, 8, 1), np.uint8), "labels": labels},
        "two channels": {"images": np.zeros((20, 8, 8, 2), np.uint8), "labels": labels},
        "no pixels": {"images": np.zeros((20, 0, 8), np.uint8), "labels": labels},
        "no images": {"images": images[:0], "labels": labels[:0]},
        "images of 1×100,000": {"images": np.zeros((20, 1, 100_000), np.uint8), "labels": labels},
        "complex numbers": {"images": images.astype(complex), "labels": labels},
        "class names with control codes": {
            "images": images, "labels": labels, "class_names": np.array(["a\x1b[31m\n", "\u202eb"]),
        },
        "class names that are not enough": {"images": images, "labels": labels, "class_names": np.array(["a"])},
        "test images of another size": {
            "images": images, "labels": labels, "test_images": np.zeros((4, 9, 9), np.uint8), "test_labels": labels[:4],
        },
    }  # fmt: skip


# --- pickles -------------------------------------------------------------------------------------------------------


def pickles() -> dict[str, Make]:
    import torch

    def saved(value: object, **options: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(value, buffer, **options)
        return buffer.getvalue()

    def packed() -> bytes:
        target = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(saved({"x": torch.zeros(2**25)}))) as plain,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            for entry in plain.infolist():
                archive.writestr(entry.filename, plain.read(entry))
        return target.getvalue()

    nested: list[Any] = [torch.zeros(2)]
    for _ in range(6):
        nested = [nested] * 100
    loop: list[Any] = [torch.zeros(2)]
    loop.append(loop)
    state = {"cls_token": torch.zeros(1, 1, 4)}
    return {
        "a call, in a zip": lambda: saved({**state, "x": RunsCode()}),
        "a call, in the old format": lambda: saved({**state, "x": RunsCode()}, _use_new_zipfile_serialization=False),
        "a call, bare": lambda: pickle.dumps({"model": RunsCode()}),
        "a call of eval, bare": lambda: pickle.dumps(RunsCodeWhenBuilt()),
        "a whole module": lambda: saved(torch.nn.Linear(2, 2)),
        "a tensor that expands to 32 GB": lambda: saved({"x": torch.ones(1).expand(2**33)}),
        "a compressed bomb": packed,
        "10¹² ways to one tensor": lambda: saved({"x": nested}),
        "a list that holds itself": lambda: saved({"x": loop}),
        "a sparse tensor": lambda: saved({"x": torch.zeros(3, 3).to_sparse()}),
        "no tensors": lambda: saved({"epoch": 3}),
        "nested for ever": lambda: b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "a string of 4 GB": lambda: b"\x80\x04\x8d" + struct.pack("<Q", 2**32) + b"x.",
        "noise": lambda: np.random.default_rng(0).bytes(2000),
        "empty": lambda: b"",
    }


LISTED: dict[str, tuple[str, Callable[[], dict[str, Make]]]] = {
    "safetensors headers": ("model.safetensors", safetensors_files),
    "npz headers and zip directories": ("model.npz", npz_files),
    "pickles": ("model.pth", pickles),
}
CONFIGS = {
    "nested for ever": b"[" * 200_000,
    "a list": b"[1]",
    "not UTF-8": b"\xff\xfe{",
    "truncated": b'{"model_type": "vi',
    "17 MB": b'{"a": "' + b"x" * (17 * 2**20) + b'"}',
    "a number of 10,000 digits": b'{"model_type": "vit", "num_attention_heads": ' + b"9" * 10_000 + b"}",
    "absurd numbers": b'{"model_type": "vit", "num_attention_heads": -3, "hidden_act": ["gelu"], "layer_norm_eps": 0,'
    b' "image_size": 1e308, "id2label": {"x": 1}}',
}
