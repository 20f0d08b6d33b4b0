"""`vitreous data list|fetch|verify|show|clean`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from vitreous.cli.options import FitOption, JsonOption, SkipCorruptOption
from vitreous.cli.output import print_result

app = Typer(help="Fetch, check and show data sets.", no_args_is_help=True)
NameArgument = Annotated[str, Argument(help="A name from `vitreous data list`.")]


@app.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """List the data sets known by name, and whether they are cached."""
    import dataclasses

    from rich.table import Table

    from vitreous.data.datasets import DATASETS, describe
    from vitreous.data.prepared import copies_folder, list_copies

    rows = [describe(name) for name in DATASETS]
    table = Table("name", "title", "images", "size", "classes", "cached", "licence", box=None, header_style="bold")
    for row in rows:
        images, (height, width) = f"{row.train_images:,} + {row.test_images:,}", row.image_size
        size, cached = f"{height}×{width}×{row.channels}", "yes" if row.cached else "no"
        table.add_row(row.name, row.title, images, size, str(row.num_classes), cached, row.licence)
    also = "Also: a folder with one sub-folder per class (or train/, val/, test/ above them), or a FILE.npz."
    if copies := list_copies():
        megabytes = sum(copy.bytes for copy in copies) / 1e6
        also += f"\nPrepared copies of folders: {len(copies)}, {megabytes:,.0f} MB in {copies_folder()}."
    print_result(table, also, value=[dataclasses.asdict(row) for row in rows], as_json=as_json)


@app.command()
def fetch(name: NameArgument) -> None:
    """Download a data set into the cache, verified by SHA-256."""
    from vitreous.data import datasets

    folder = datasets.fetch(name)
    print(f"{name}: {folder}" if folder else f"{name} comes with scikit-learn; nothing to fetch")


@app.command()
def verify(name: NameArgument) -> None:
    """Hash every cached file of a data set again; exit code 1 if one is missing or corrupt."""
    from vitreous.data import datasets

    statuses = datasets.verify(name)
    for file, status in statuses.items():
        print(f"{status:8} {file}")
    if not statuses:
        print(f"{name} comes with scikit-learn; nothing to verify")
    if any(status != "ok" for status in statuses.values()):
        raise Exit(1)


@app.command()
def show(
    name: Annotated[str, Argument(help="A data set's name, a folder or a FILE.npz.")],
    out: Annotated[Path | None, Option("--out", "-o", help="The PNG to write; default: NAME-sheet.png.")] = None,
    fit: FitOption = None,
    skip_corrupt: SkipCorruptOption = False,
) -> None:
    """Print class balance, sizes and duplicate images, and draw a labelled contact sheet (PNG)."""
    from rich.cells import cell_len

    from vitreous.config import DataConfig, build_config
    from vitreous.data.checks import balance_notes, class_counts, duplicate_notes
    from vitreous.data.contact_sheet import contact_sheet
    from vitreous.data.datasets import load_dataset

    dataset = load_dataset(build_config(DataConfig, {"name": name, "fit": fit, "skip_corrupt": skip_corrupt}))
    path = out or Path(f"{Path(name).stem}-sheet.png")
    contact_sheet(dataset, path)
    sizes = f"{len(dataset.train):,} training, {len(dataset.val):,} validation, {len(dataset.test):,} test images"
    height, width = dataset.image_size
    print(f"{name}: {sizes} of {height}×{width}×{dataset.channels}, {dataset.num_classes} classes")
    widest = max(map(cell_len, dataset.class_names))  # a Chinese letter takes two columns
    for class_name, *counts in class_counts(dataset):
        print(f"  {class_name}{' ' * (widest - cell_len(class_name))}  {' + '.join(f'{count:,}' for count in counts)}")
    for line in (*balance_notes(dataset), *dataset.notes, *duplicate_notes(dataset)):
        print(f"  {line}")
    print(path)


@app.command()
def clean() -> None:
    """Remove the prepared copies of folders from the cache; they are made again when they are needed."""
    from vitreous.data.prepared import remove_all

    count, size = remove_all()
    print(f"{count} prepared {'copy' if count == 1 else 'copies'} removed, {size / 1e6:,.0f} MB")
