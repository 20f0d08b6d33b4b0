"""The types of settings: numbers within the bounds that everything downstream can take, and names."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from vitreous.errors import quoted


def _as_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _without_null(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{quoted(text)} has a null byte, which no name can have")
    return text


def _as_folder(text: str) -> str:
    if text == ".." or any(separator in text for separator in (os.sep, os.altsep) if separator):
        raise ValueError(
            f"name={quoted(text)} becomes the name of a folder, so it cannot be a path; choose the folder with -o"
        )
    return text


def _as_tokens(value: Any) -> Any:
    if value in ("all", "auto") or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31):
        return value
    raise ValueError(f"model.tokens={quoted(value)}: choose all, auto or the number of patches to keep")


Positive = Annotated[int, Field(ge=1, lt=2**31)]  # the largest that torch, NumPy and ONNX all take
Count = Annotated[int, Field(ge=1, le=1000)]  # of layers, each of which is built
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Name = Annotated[str, AfterValidator(_without_null)]  # of a file, a folder or a run
FolderName = Annotated[Name, AfterValidator(_as_folder)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
#: (height, width); a single number means a square.
Size = Annotated[tuple[Positive, Positive], BeforeValidator(_as_pair)]
PixelValue = Annotated[int, Field(ge=0, le=255)]
#: "all", "auto" or a number
Tokens = Annotated[int | str, BeforeValidator(_as_tokens)]
