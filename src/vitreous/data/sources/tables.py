"""Parquet files, and the Arrow folders of Hugging Face's `datasets`: a column of encoded images and one of labels.

Read with pyarrow alone, a few rows at a time. The images are appended to one spool file, and listed by their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vitreous.data.array_names import SPLIT_NAMES
from vitreous.data.items import Listing
from vitreous.data.sources.columns import Row, find_column, require_column, to_listing, to_split
from vitreous.data.splits import SplitName
from vitreous.downloads.files import read_plain
from vitreous.errors import DataError, quoted, require_packages
from vitreous.reports.formats import join
from vitreous.reports.progress import counting

_MOST_SHRINKING = 8  # times; PNG and JPEG files hardly shrink, BMP and TIFF files some
ROWS_AT_A_TIME = 64
BUFFER_BYTES = 2**18  # of a column: by default pyarrow reads a whole row group, often a whole file, into memory
ARROW_MARKERS = ("dataset_dict.json", "state.json")  # of DatasetDict.save_to_disk and Dataset.save_to_disk


@dataclass(frozen=True)
class _Columns:
    image: str
    label: str
    split: str | None
    class_names: tuple[str, ...] | None


def arrow_files(folder: Path) -> list[tuple[SplitName, Path]]:
    """Return the .arrow files of a folder that `save_to_disk` wrote, each with its split."""
    if not (folder / "dataset_dict.json").is_file():
        return [("train", file) for file in _arrow_files_of(folder)]
    found: list[tuple[SplitName, Path]] = []
    for name in _read_json(folder / "dataset_dict.json").get("splits", []):
        split = SPLIT_NAMES.get(str(name).lower())
        if split is None:
            raise DataError(f"{folder} has the split {quoted(name)}; expected train, validation and test: rename it")
        found += [(split, file) for file in _arrow_files_of(folder / str(name))]
    return found


def _arrow_files_of(folder: Path) -> list[Path]:
    state = _read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} stores a selection of rows; save it again after dataset.flatten_indices()")
    names = [str(entry.get("filename")) for entry in state.get("_data_files", []) if isinstance(entry, dict)]
    files = [folder / Path(name).name for name in names]  # never another folder
    if not files:
        raise DataError(f"{folder / 'state.json'} names no data files; save the data set again with save_to_disk")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); save the data set again with save_to_disk") from None
    return value if isinstance(value, dict) else {}


def list_tables(source: str, files: Sequence[tuple[SplitName, Path]], spool: Path) -> Listing:
    """List the images of parquet and Arrow files, after writing their bytes to the file `spool`."""
    require_packages("pyarrow", extra="parquet", needed_for="reading parquet and Arrow files")
    notes: list[str] = []
    rows: list[Row] = []
    class_names: tuple[str, ...] | None = None
    with spool.open("wb") as stream, counting(f"unpacking {source}", None) as update:
        for number, (split, file) in enumerate(files):
            columns, batches = _open_table(file)
            if number and columns.class_names != class_names:
                raise DataError(f"{source}: {files[0][1].name} and {file.name} name different classes; make them equal")
            class_names = columns.class_names
            for row in _read_rows(file, split, columns, batches, stream):
                rows.append(row)
                update(len(rows))
    labelled = _without_unlabelled(rows, notes)
    return to_listing(source, labelled, notes, class_names)


def _open_table(path: Path) -> tuple[_Columns, Iterator[Any]]:
    """Return the columns of a table, and its record batches, none of them read yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix.lower() == ".parquet":
            table = pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
            columns = _find_columns(path, table.schema_arrow)
            names = [name for name in (columns.image, columns.label, columns.split) if name]
            _check_unpacked_size(path, table.metadata, names)
            return columns, _guarded(path, table.iter_batches(ROWS_AT_A_TIME, columns=names, use_threads=False))
        reader = pa.ipc.open_stream(pa.memory_map(str(path)))
        return _find_columns(path, reader.schema), _guarded(path, iter(reader))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _check_unpacked_size(path: Path, metadata: Any, names: Sequence[str]) -> None:
    """Refuse columns that unpack to many times their size: encoded images hardly shrink, so these are none."""
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            packed, unpacked = column.total_compressed_size, column.total_uncompressed_size
            if column.path_in_schema.split(".")[0] in names and unpacked > max(2**26, _MOST_SHRINKING * packed):
                raise DataError(
                    f"{path}: the column {column.path_in_schema!r} unpacks from {packed / 1e6:.0f} to"
                    f" {unpacked / 1e6:.0f} MB, which images do not; is it the right file?"
                )


def _guarded(path: Path, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from batches
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())
    return DataError(f"{path} cannot be read ({reason:.200}); is the file complete?")


def _find_columns(path: Path, schema: Any) -> _Columns:
    """Choose the columns by Hugging Face's features where the file has them, by type and by name elsewhere."""
    import pyarrow as pa

    features = _features(schema)
    names = [str(name) for name in schema.names]

    def holds_images(name: str) -> bool:
        kind = schema.field(name).type
        if pa.types.is_struct(kind):
            return any(field.name in ("bytes", "path") for field in kind)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    images = [name for name in names if features.get(name, {}).get("_type") == "Image"]
    images = images or [name for name in names if holds_images(name)]
    if len(images) > 1 and find_column(images, "path") is None:
        raise DataError(f"{path.name} has the image columns {join(map(repr, images))}; name the one to use 'image'")
    image = (find_column(images, "path") or images[0]) if images else require_column(names, "path", path.name)
    others = [name for name in names if name != image]
    labels = [name for name in others if features.get(name, {}).get("_type") == "ClassLabel"]
    label = find_column(labels or others, "label")
    if label is None:
        label = labels[0] if len(labels) == 1 else require_column(labels or names, "label", path.name)
    class_names = features.get(label, {}).get("names")
    return _Columns(
        image,
        label,
        find_column(others, "split"),
        tuple(map(str, class_names)) if isinstance(class_names, list) else None,
    )


def _features(schema: Any) -> Mapping[str, dict[str, Any]]:
    """Return Hugging Face's description of the columns, which a table carries as JSON."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: feature for name, feature in found.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _read_rows(
    path: Path, split: SplitName, columns: _Columns, batches: Iterator[Any], stream: IO[bytes]
) -> Iterator[Row]:
    number = 0
    for batch in batches:
        images = batch.column(batch.schema.get_field_index(columns.image)).to_pylist()
        labels = batch.column(batch.schema.get_field_index(columns.label)).to_pylist()
        splits = batch.column(batch.schema.get_field_index(columns.split)).to_pylist() if columns.split else None
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            where = f"{path.name}, row {number}"
            chosen = to_split(str(splits[index]), where) if splits is not None else split
            yield _read_row(where, image, _label_text(where, columns.label, label), chosen, stream)
            number += 1


def _read_row(where: str, image: Any, label: str, split: SplitName, stream: IO[bytes]) -> Row:
    fields = image if isinstance(image, dict) else {"bytes": image}
    data, file = fields.get("bytes"), fields.get("path")
    if isinstance(data, str) or (data is None and file):  # a changed file would not change this one
        raise DataError(
            f"{where} has the path {quoted(data or file)} instead of an image; embed the images, or list the files in a"
            " CSV file of paths and labels"
        )
    if not isinstance(data, bytes):
        raise DataError(f"{where} has no image; fill it in, or remove the row")
    offset = stream.tell()
    stream.write(data)
    return Row(where, where, stream.name, label, split, offset, len(data))


def _label_text(where: str, column: str, label: Any) -> str:
    if label is None:
        return ""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, str | int):
        raise DataError(f"{where} has {quoted(label)} as its {column}; expected text or an integer")
    return str(label).strip()


def _without_unlabelled(rows: list[Row], notes: list[str]) -> list[Row]:
    """Leave out splits without any label: Hugging Face marks a test set whose labels are secret by −1."""
    labelled = {row.split for row in rows if row.label not in ("", "-1")}
    secret = sorted({row.split for row in rows} - labelled)
    if secret and labelled:
        notes.append(f"the {join(secret)} split has no labels and is left out")
        return [row for row in rows if row.split in labelled]
    return rows
