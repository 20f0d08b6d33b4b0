"""`vitreous data list|fetch|verify|show`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result

app = Typer(help="Fetch, check and show data sets.", no_args_is_help=True)
NameArgument = Annotated[str, Argument(help="A name from `vitreous data list`.")]


@app.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """List the data sets known by name, and whether they are cached."""
    import dataclasses

    from rich.table import Table

    from vitreous.data.datasets import DATASETS, describe

    rows = [describe(name) for name in DATASETS]
    table = Table("name", "title", "images", "size", "classes", "cached", "licence", box=None, header_style="bold")
    for row in rows:
        images, (height, width) = f"{row.train_images:,} + {row.test_images:,}", row.image_size
        size, cached = f"{height}×{width}×{row.channels}", "yes" if row.cached else "no"
        table.add_row(row.name, row.title, images, size, str(row.num_classes), cached, row.licence)
    also = "Also: a folder with one sub-folder per class (or train/, val/, test/ above them), or a FILE.npz."
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
) -> None:
    """Print class balance, sizes and duplicate images, and draw a labelled contact sheet (PNG)."""
    from vitreous.config import DataConfig
    from vitreous.data.checks import balance_notes, class_counts, duplicate_notes
    from vitreous.data.contact_sheet import contact_sheet
    from vitreous.data.datasets import load_dataset
    from vitreous.data.near_duplicates import near_duplicate_notes

    dataset = load_dataset(DataConfig(name=name))
    path = out or Path(f"{Path(name).stem}-sheet.png")
    contact_sheet(dataset, path)
    sizes = f"{len(dataset.train):,} training, {len(dataset.val):,} validation, {len(dataset.test):,} test images"
    height, width = dataset.image_size
    print(f"{name}: {sizes} of {height}×{width}×{dataset.channels}, {dataset.num_classes} classes")
    widest = max(map(len, dataset.class_names))
    for class_name, *counts in class_counts(dataset):
        print(f"  {class_name:{widest}}  {' + '.join(f'{count:,}' for count in counts)}")
    notes = (*balance_notes(dataset), *dataset.notes, *duplicate_notes(dataset), *near_duplicate_notes(dataset))
    for line in notes:
        print(f"  {line}")
    print(path)
