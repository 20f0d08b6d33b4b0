"""`vitreous convert`: change the layout of weights, by `vitreous.checkpoints`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result
from vitreous.errors import CheckpointError


def convert(
    source: Annotated[Path, Argument(help="A run, or a checkpoint of timm, Hugging Face, torchvision or Google.")],
    target: Annotated[Path, Argument(help="The file or folder to write.")],
    to: Annotated[str, Option("--to", help="timm, hf, torchvision, google, or vitreous (a run folder).")],
    num_heads: Annotated[int | None, Option(help="Needed where the file does not state it.", min=1)] = None,
    pool: Annotated[str | None, Option(help="cls or mean, where the file does not state it.")] = None,
    gelu: Annotated[str | None, Option(help="erf, tanh or quick, where the file does not state it.")] = None,
    norm_eps: Annotated[float | None, Option(help="LayerNorm's, where the file does not state it.")] = None,
    trained_size: Annotated[str | None, Option(help="HEIGHT,WIDTH, where the file does not state it.")] = None,
    image_size: Annotated[int | None, Option(help="Resize the positions to this image size.", min=1)] = None,
    patch_size: Annotated[int | None, Option(help="Resize the patch kernel to this size.", min=1)] = None,
    channels: Annotated[int | None, Option(help="Adapt the input to this many channels.", min=1)] = None,
    num_classes: Annotated[int | None, Option(help="Start a new classifier, at zero.", min=1)] = None,
    allow_partial: Annotated[bool, Option("--allow-partial", help="Load what fits; list the rest.")] = False,
    approximate: Annotated[bool, Option("--approximate", help="Accept another GELU or epsilon; noted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert weights from one library's layout to another's; every tensor is accounted for."""
    from vitreous.checkpoints import convert as conversion

    lines = conversion.convert(
        source, target, to, num_heads=num_heads, pool=pool, gelu=gelu, norm_eps=norm_eps,
        trained_size=_size(trained_size), image_size=image_size, patch_size=patch_size, channels=channels,
        num_classes=num_classes, allow_partial=allow_partial, approximate=approximate,
    )  # fmt: skip
    value = {"source": str(source), "target": str(target), "layout": to, "notes": [line.strip() for line in lines]}
    print_result(*lines, value=value, as_json=as_json)


def _size(text: str | None) -> tuple[int, int] | None:
    """Return "24,32" or "24" as (height, width)."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise CheckpointError(f"--trained-size {text!r}: expected HEIGHT,WIDTH in pixels, for instance 224,192")
    return int(parts[0]), int(parts[-1])
