"""`vitreous data list|fetch|verify|show|prepare|clean`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from vitreous.cli.options import FitOption, JsonOption, SkipCorruptOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError, quoted

app = Typer(help="Fetch, check and show data sets.", no_args_is_help=True)
NameArgument = Annotated[str, Argument(help="A name from `vitreous data list`.")]
VerifyArgument = Annotated[str, Argument(help="A name from `vitreous data list`, or a folder of `data prepare`.")]


@app.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """List the data sets known by name, and whether they are cached."""
    import dataclasses

    from rich.table import Column, Table

    from vitreous.data.datasets import DATASETS, describe
    from vitreous.data.prepared_cache import copies_folder, list_copies
    from vitreous.reports.tables import FirstThatFits

    rows = [describe(name) for name in DATASETS]
    wide = Table("name", "title", "images", "size", "classes", "state", "licence", box=None, header_style="bold")
    narrow = Table(Column("name", no_wrap=True), "title, licence", "images", "size", box=None, header_style="bold")
    for row in rows:
        images, (height, width) = f"{row.train_images:,} + {row.test_images:,}", row.image_size
        size, state = f"{height}×{width}×{row.channels}", "cached" if row.cached else "not cached"
        wide.add_row(row.name, row.title, images, size, str(row.num_classes), state, row.licence)
        narrow.add_row(row.name, f"{row.title}, {row.num_classes} classes; {row.licence}; {state}", images, size)
    also = (
        "Also: a folder with one sub-folder per class (or train/, val/, test/ above them), a manifest (.csv, .tsv,"
        " .jsonl), arrays (.npz, .npy), .parquet files, or .tar shards: docs/sources.md."
    )
    if copies := list_copies():
        total = sum(copy.bytes for copy in copies) / 1e6
        where = f"{len(copies)}, {total:,.0f} MB in {copies_folder()}"
        also += f"\nPrepared copies: {where}; `vitreous data clean` removes them."
    print_result(FirstThatFits(wide, narrow), also, value=[dataclasses.asdict(row) for row in rows], as_json=as_json)


@app.command()
def fetch(name: NameArgument, as_json: JsonOption = False) -> None:
    """Download a data set into the cache, verified by SHA-256."""
    from vitreous.data import datasets

    folder = datasets.fetch(name)
    line = f"{name}: {folder}" if folder else f"{name} comes with scikit-learn; nothing to fetch"
    print_result(line, value={"name": name, "folder": str(folder) if folder else None}, as_json=as_json)


@app.command()
def verify(name: VerifyArgument, as_json: JsonOption = False) -> None:
    """Hash every file of a cached data set or a prepared folder again; exit code 1 if one is missing or corrupt."""
    from vitreous.data import datasets

    statuses = datasets.verify(name)
    lines = [f"{status:8} {file}" for file, status in statuses.items()]
    none = f"{name} comes with scikit-learn; nothing to verify"
    print_result(*(lines or [none]), value={"name": name, "files": statuses}, as_json=as_json)
    if any(status != "ok" for status in statuses.values()):
        raise Exit(1)


@app.command()
def show(
    name: Annotated[str, Argument(help="A data set's name, a folder or a file of images and labels.")],
    out: Annotated[Path | None, Option("--out", "-o", help="The PNG to write; default: NAME-sheet.png.")] = None,
    fit: FitOption = None,
    skip_corrupt: SkipCorruptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print class balance, sizes and duplicate images, and draw a labelled contact sheet (PNG)."""
    from rich.cells import cell_len

    from vitreous.config import DataConfig, build_config
    from vitreous.data.checks import balance_notes, class_counts, duplicate_notes
    from vitreous.data.contact_sheet import contact_sheet
    from vitreous.data.datasets import load_dataset
    from vitreous.data.near_duplicates import near_duplicate_notes

    dataset = load_dataset(build_config(DataConfig, {"name": name, "fit": fit, "skip_corrupt": skip_corrupt}))
    path = out or Path(f"{Path(name).stem}-sheet.png")
    contact_sheet(dataset, path)
    sizes = f"{len(dataset.train):,} training, {len(dataset.val):,} validation, {len(dataset.test):,} test images"
    height, width = dataset.image_size
    counts = class_counts(dataset)
    widest = max(map(cell_len, dataset.class_names))  # a Chinese letter takes two columns
    notes = [*balance_notes(dataset), *dataset.notes, *duplicate_notes(dataset), *near_duplicate_notes(dataset)]
    lines = [
        f"{name}: {sizes} of {height}×{width}×{dataset.channels}, {dataset.num_classes} classes",
        *(
            f"  {label}{' ' * (widest - cell_len(label))}  {' + '.join(f'{count:,}' for count in each)}"
            for label, *each in counts
        ),
        *(f"  {note}" for note in notes),
    ]
    value = {
        "name": name,
        "image_size": [height, width],
        "channels": dataset.channels,
        "classes": [dict(zip(("name", "train", "val", "test"), row, strict=True)) for row in counts],
        "notes": notes,
        "sheet": str(path),
    }
    print_result(*lines, str(path), value=value, as_json=as_json)


@app.command()
def prepare(
    source: Annotated[str, Argument(help="A data set's name, a folder or a file of images and labels.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to write; `--data` takes it then.")],
    size: Annotated[
        str | None, Option("--size", help="Side in pixels, or HEIGHTxWIDTH; default: the images', at most 256.")
    ] = None,
    shards: Annotated[int | None, Option("--shards", help="Number of files; default: of at most 512 MB each.")] = None,
    fit: FitOption = None,
    skip_corrupt: SkipCorruptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decode a source once, to checksummed shards that trainings read from the disk; a second run goes on."""
    from vitreous.data.prepare_folder import prepare_folder
    from vitreous.reports.formats import by, plural

    result = prepare_folder(source, out, size=_parse_size(size), shards=shards, fit=fit, skip_corrupt=skip_corrupt)
    manifest = result.manifest
    count = sum(shard.images for shard in manifest.shards)
    total = sum(size for shard in manifest.shards for size in shard.bytes.values())
    kept = f" ({result.kept} of them were there already)" if result.kept else ""
    line = (
        f"{out}: {plural(count, 'image')} of {by(*manifest.size)}×{manifest.channels} in"
        f" {plural(len(manifest.shards), 'shard')}{kept}, {total / 1e6:,.1f} MB; train with --data {out}"
    )
    value = {
        "folder": str(out),
        "images": count,
        "image_size": list(manifest.size),
        "channels": manifest.channels,
        "shards": len(manifest.shards),
        "kept": result.kept,
        "bytes": total,
        "skipped": len(manifest.skipped),
        "notes": list(result.notes),
    }
    print_result(line, *(f"  {note}" for note in result.notes), value=value, as_json=as_json)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    """Return "256" or "192x256" as height and width."""
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and 1 <= int(side) <= 65_535 for side in sides):
        raise ConfigError(f"--size {quoted(text)}: expected pixels from 1 to 65535, such as 256, or 192x256")
    return int(sides[0]), int(sides[-1])


@app.command()
def clean(as_json: JsonOption = False) -> None:
    """Remove the prepared copies of folders from the cache; they are made again when they are needed."""
    from vitreous.data.prepared_cache import remove_all

    count, size = remove_all()
    text = f"{count} prepared {'copy' if count == 1 else 'copies'} removed, {size / 1e6:,.0f} MB"
    print_result(text, value={"copies": count, "bytes": size}, as_json=as_json)
