"""`vitreous export`: write ONNX, a page or a Hugging Face repository, by `vitreous.export` and `vitreous.serving`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from typer import Option

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def export(
    to: Annotated[str, Option("--to", help="onnx (a file), page (a static site) or hub (Hugging Face repository).")],
    out: Annotated[Path, Option("--out", "-o", help="The file or folder to write.")],
    runs: Annotated[list[Path] | None, Option("--run", help="A run folder; page: repeatable.")] = None,
    lean: Annotated[bool, Option("--lean", help="onnx: logits and probabilities, no intermediates.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one checked ONNX file, the page with the model in the browser, or a repository for the Hugging Face Hub."""
    from vitreous.export.hub import push_run
    from vitreous.export.onnx_files import export_onnx
    from vitreous.runs import Run, open_run
    from vitreous.serving.static_page import export_page

    if to in ("onnx", "hub") and runs is not None and len(runs) > 1:
        raise ConfigError(f"--to {to} takes one --run, not {len(runs)}")
    if to == "hub":
        pushed = push_run(open_run(runs[0] if runs else None), out)
        print_result(
            f"{pushed.folder}: {', '.join(pushed.files)}",
            *(f"  {note}" for note in pushed.notes),
            f"upload it with: {pushed.upload_command}",
            value={**dataclasses.asdict(pushed), "folder": str(pushed.folder), "upload_command": pushed.upload_command},
            as_json=as_json,
        )
    elif to == "onnx":
        made = export_onnx(open_run(runs[0] if runs else None), out, full=not lean)
        parity, images = made.parity, f"{made.parity.images} {made.parity.image_source}"
        print_result(
            f"{made.path}: {made.bytes:,} bytes; inputs {', '.join(made.inputs)}; outputs {', '.join(made.outputs)}",
            f"  the same predictions on {images} in a fresh process, logits within {parity.max_difference:.1e}",
            value={**dataclasses.asdict(made), "path": str(made.path)},
            as_json=as_json,
        )
    elif to == "page":
        page = export_page([Run.open(run) for run in runs or ("bundled:vit", "bundled:cnn")], out)
        size = f"{len(page.files)} files, {page.bytes / 1e6:.1f} MB"
        print_result(
            f"{page.folder}: {size}; serve it from any static host, as in",
            f"  python -m http.server --bind 127.0.0.1 --directory {page.folder}",
            value={"folder": str(page.folder), "files": [str(file) for file in page.files], "bytes": page.bytes},
            as_json=as_json,
        )
    else:
        raise ConfigError(f"--to {to!r}: choose onnx, page or hub")
