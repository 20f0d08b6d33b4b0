"""A manifest: a CSV, TSV, JSON or JSONL file with the path, the label and optionally the split of each image."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitreous.data.array_names import SPLIT_NAMES
from vitreous.data.items import Listing
from vitreous.data.sources.columns import Row, find_column, read_class_names, require_column, to_listing, to_split
from vitreous.data.splits import SplitName
from vitreous.downloads.files import read_plain
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import join, plural

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
METADATA = ("metadata.csv", "metadata.jsonl")  # what Hugging Face's ImageFolder looks for in a folder of images
MAX_BYTES = 2**29  # several million rows
CHECKED_PATHS = 100  # to tell paths that start elsewhere from a few missing files
_DELIMITERS = (",", ";", "\t", "|")

Record = tuple[str, Mapping[str, str]]  # where it is, and its text by column


def list_manifest(path: Path, split: SplitName | None = None) -> Listing:
    """List the images of a manifest; paths are relative to its folder. `split`, if given, is that of every row."""
    notes: list[str] = []
    rows = read_rows(path, notes, split)
    return to_listing(path.name, rows, notes, read_class_names(path.parent))


def list_metadata(folder: Path) -> Listing:
    """List a folder with metadata.csv or metadata.jsonl, or with one in each of the splits' sub-folders."""
    notes: list[str] = []
    rows = [row for split, file in _metadata_files(folder) for row in read_rows(file, notes, split, folder)]
    return to_listing(str(folder), rows, notes, read_class_names(folder))


def has_metadata(folder: Path) -> bool:
    """Return whether `list_metadata` can list a folder: its metadata have labels, and are not captions, say."""
    return bool(_metadata_files(folder))


def _metadata_files(folder: Path) -> list[tuple[SplitName | None, Path]]:
    files: list[tuple[SplitName | None, Path]] = [(None, folder / name) for name in METADATA]
    for entry in sorted(folder.iterdir()):
        if entry.name.lower() in SPLIT_NAMES:
            files += [(SPLIT_NAMES[entry.name.lower()], entry / name) for name in METADATA]
    return [(split, file) for split, file in files if file.is_file() and has_labels(file)]


def has_labels(file: Path) -> bool:
    """Return whether the first row of a manifest has a path and a label."""
    columns = list(next(read_records(file, []), ("", {}))[1])
    return find_column(columns, "path") is not None and find_column(columns, "label") is not None


def read_rows(path: Path, notes: list[str], split: SplitName | None = None, root: Path | None = None) -> list[Row]:
    """Return the rows of a manifest, without those that repeat one; `root` is what their names are relative to."""
    folder, rows, columns = path.parent, list[Row](), list[str]()
    known: dict[tuple[str, SplitName], str] = {}
    for where, record in read_records(path, notes):
        if not columns:
            columns = list(record)
            path_column = require_column(columns, "path", path.name)
            label_column = require_column(columns, "label", path.name)
            split_column = None if split else find_column(columns, "split")
        text, label = record.get(path_column, "").strip(), record.get(label_column, "").strip()
        if split_column and split_column.strip().lower() == "fold" and record[split_column].strip().isdecimal():
            notes.append(f"the column {split_column!r} has numbers and not train, val or test: it is left out")
            split_column = None
        if not text:
            raise DataError(f"{path.name}: {where} has no path; fill it in, or remove the row")
        chosen = split or (to_split(record.get(split_column, ""), f"{path.name}: {where}") if split_column else "train")
        name, file = locate(folder, text, f"{path.name}: {where}")
        other = known.setdefault((file, chosen), label)
        if other != label:
            raise DataError(
                f"{path.name}: {where} gives {quoted(text)} the label {quoted(label)}, and an earlier one gives it"
                f" {quoted(other)}; expected one label per image"
            )
        if root is not None and root != folder:
            name = f"{folder.name}/{name}"
        rows.append(Row(where, name, file, label, chosen))
    unique = list({(row.path, row.split): row for row in rows}.values())
    if len(unique) < len(rows):
        notes.append(f"{plural(len(rows) - len(unique), 'row')} of {path.name} left out: repeated")
    _check_paths(path, unique)
    return unique


def locate(folder: Path, text: str, where: str) -> tuple[str, str]:
    """Return a row's path as written, and where the file is."""
    if re.match(r"[a-z][a-z0-9+.]+://", text, re.IGNORECASE):
        raise DataError(f"{where} has the web address {quoted(text)}; download the images, and list their files")
    if "\0" in text:
        raise DataError(f"{where} has a path with a null character; write it again")
    file = os.path.join(folder, os.path.expanduser(text))
    if os.sep == "/" and "\\" in text and not os.path.exists(file):  # written on Windows
        text = text.replace("\\", "/")
        file = os.path.join(folder, text)
    return text, file


def _check_paths(path: Path, rows: list[Row]) -> None:
    """Refuse a manifest of which most paths do not exist; a few missing files are listed when they are read."""
    sample = rows[:: max(1, len(rows) // CHECKED_PATHS)]
    missing = [row for row in sample if not os.path.exists(row.path)]
    if 2 * len(missing) > len(sample):
        share = "none of its paths exists" if len(missing) == len(sample) else "most of its paths do not exist"
        raise DataError(
            f"{path.name}: {share}, such as {quoted(missing[0].name)}, looked for in the folder of the manifest,"
            f" {quoted(str(path.parent))}; write paths relative to it, or move the manifest beside its images"
        )


# --- files → records ---------------------------------------------------------------------------------------------


def read_records(path: Path, notes: list[str]) -> Iterator[Record]:
    """Yield the rows of a file, whatever their columns are."""
    try:
        data = read_plain(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        kind = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "another encoding"
        raise DataError(f"{path.name} is not UTF-8 from line {line} on ({kind}?); save it as UTF-8") from None
    if not text.strip():
        raise DataError(f"{path.name} is empty; expected a row per image with its path and its label")
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _with_all_keys(_jsonl_records(path.name, text))
    return _with_all_keys(_json_records(path.name, text)) if suffix == ".json" else _csv_records(path, text, notes)


def _csv_records(path: Path, text: str, notes: list[str]) -> Iterator[Record]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            where = f"line {reader.line_num}"
            if header is None:
                header = [field.strip() for field in fields]
                if not _is_headless(path, header):
                    if len(set(header)) != len(header):
                        raise DataError(f"{path.name} has two columns of one name: {join(header, most=8)}; rename one")
                    continue
                header = ["path", "label", "split"][: len(header)]
                notes.append(f"{path.name} has no header: its columns read as {join(header)}")
            if len(fields) != len(header):
                raise DataError(
                    f"{path.name}: {where} has {len(fields)} fields and the header {len(header)}; quote fields that"
                    f" contain {quoted(delimiter)}"
                )
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"{path.name}: line {reader.line_num} is not as CSV is written ({error}); correct it") from None


def _delimiter(text: str) -> str:
    """Return what separates the fields of the first line: Excel writes semicolons where commas are decimal points."""
    line = next(line for line in text.splitlines() if line.strip())

    def count_fields(mark: str) -> int:
        try:
            return len(next(csv.reader([line], delimiter=mark)))
        except csv.Error:  # a field of more than 131,072 characters
            return 0

    return max(_DELIMITERS, key=lambda mark: (count_fields(mark), -_DELIMITERS.index(mark)))


def _is_headless(path: Path, first: list[str]) -> bool:
    """Return whether the first row is one of an image already: it starts with the path of a file."""
    if find_column(first, "path") and find_column(first, "label"):
        return False
    return len(first) in (2, 3) and "\0" not in first[0] and os.path.isfile(path.parent / os.path.expanduser(first[0]))


def _with_all_keys(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records that have the keys of all of them: a key that is missing in some has no text there."""
    found = list(records)
    keys = dict.fromkeys((key for _, record in found for key in record), "")
    # no copies: with a key of its own in each record, time would grow with the square of their number
    return ((where, ChainMap(dict(record), keys)) for where, record in found)


def _jsonl_records(name: str, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}: {where} is not JSON ({error}); expected one object per line") from None
            yield where, _record(name, where, record)


def _json_records(name: str, text: str) -> Iterator[Record]:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON ({error}); expected a list of objects with a path and a label") from None
    if not isinstance(records, list) or not records:
        raise DataError(f'{name} is no list of objects; expected [{{"path": …, "label": …}}, …]')
    for number, record in enumerate(records, start=1):
        yield f"entry {number}", _record(name, f"entry {number}", record)


def _record(name: str, where: str, record: Any) -> Mapping[str, str]:
    if not isinstance(record, dict):
        raise DataError(f'{name}: {where} is no object; expected one such as {{"path": "a.png", "label": "cat"}}')
    return {key: _text(name, where, key, value) for key, value in record.items()}


def _text(name: str, where: str, key: str, value: Any) -> str:
    """Return a value as text; one that is neither text nor an integer matters only where it is a path or a label."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"{name}: {where} has text that is not Unicode in {quoted(key)}; write it again") from None
        return value
    if value is None:
        return ""
    if not isinstance(value, int) and any(find_column([key], column) for column in ("path", "label", "split")):
        raise DataError(f"{name}: {where} has {quoted(value)} as its {key}; expected text or an integer")
    return str(value)
