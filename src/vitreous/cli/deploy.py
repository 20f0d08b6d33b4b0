"""Use a model elsewhere: `vitreous convert`, `vitreous export` and `vitreous serve`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitreous.errors import ConfigError


def convert(
    source: Annotated[Path, Argument(help="A run, or a checkpoint of timm, Hugging Face, torchvision or Google.")],
    target: Annotated[Path, Argument(help="The file or folder to write.")],
    to: Annotated[str, Option("--to", help="timm, hf, torchvision, google, or vitreous (a run folder).")],
    num_heads: Annotated[int | None, Option(help="Needed where the file does not state it.", min=1)] = None,
    image_size: Annotated[int | None, Option(help="Resize the positions to this image size.", min=1)] = None,
    patch_size: Annotated[int | None, Option(help="Resize the patch kernel to this size.", min=1)] = None,
    channels: Annotated[int | None, Option(help="Adapt the input to this many channels.", min=1)] = None,
    allow_partial: Annotated[bool, Option("--allow-partial", help="Load what fits; list the rest.")] = False,
    approximate: Annotated[bool, Option("--approximate", help="Accept another GELU or epsilon; noted.")] = False,
) -> None:
    """Convert weights from one library's layout to another's; every tensor is accounted for."""
    from vitreous.checkpoints import convert as conversion

    lines = conversion.convert(
        source, target, to, num_heads=num_heads, image_size=image_size, patch_size=patch_size, channels=channels,
        allow_partial=allow_partial, approximate=approximate,
    )  # fmt: skip
    print("\n".join(lines))


def export(
    to: Annotated[str, Option("--to", help="onnx (one file) or page (a folder for any static host).")],
    out: Annotated[Path, Option("--out", "-o", help="The file or folder to write.")],
    runs: Annotated[list[Path] | None, Option("--run", help="A run folder; page: repeatable.")] = None,
    lean: Annotated[bool, Option("--lean", help="onnx: logits and probabilities, no intermediates.")] = False,
) -> None:
    """Write one checked ONNX file, or the drawing page with the model in the browser."""
    from vitreous.export import export_onnx
    from vitreous.runs import Run, open_run
    from vitreous.serving.static_page import export_page

    if to == "onnx":
        if runs is not None and len(runs) > 1:
            raise ConfigError(f"--to onnx takes one --run, not {len(runs)}")
        made = export_onnx(open_run(runs[0] if runs else None), out, full=not lean)
        print(f"{made.path}: {made.bytes:,} bytes; inputs {', '.join(made.inputs)}; outputs {', '.join(made.outputs)}")
        parity, images = made.parity, f"{made.parity.images} {made.parity.image_source}"
        print(f"  the same predictions on {images} in a fresh process, logits within {parity.max_difference:.1e}")
    elif to == "page":
        page = export_page([Run.open(run) for run in runs or ("bundled:vit", "bundled:cnn")], out)
        size = f"{len(page.files)} files, {page.bytes / 1e6:.1f} MB"
        print(f"{page.folder}: {size}; serve it from any static host, as in")
        print(f"  python -m http.server --bind 127.0.0.1 --directory {page.folder}")
    else:
        raise ConfigError(f"--to {to!r}: choose onnx or page")


def serve(
    runs: Annotated[list[Path] | None, Option("--run", help="Repeatable; default: the bundled models.")] = None,
    host: Annotated[str, Option(help="Other than loopback: needs --token-file or --no-auth.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535)] = 8000,
    token_file: Annotated[Path | None, Option(help="A file with the bearer token clients must send.")] = None,
    no_auth: Annotated[bool, Option("--no-auth", help="Serve another host without a token.")] = False,
    workers: Annotated[int | None, Option(help="Processes; default: one per core, at most two.", min=1)] = None,
) -> None:
    """Draw a digit and see the model think: the page and an HTTP API."""
    from vitreous.runs import Run
    from vitreous.serving.server import serve_runs

    opened = [Run.open(run) for run in runs or []]
    serve_runs(opened, host=host, port=port, token_file=token_file, no_auth=no_auth, workers=workers)
