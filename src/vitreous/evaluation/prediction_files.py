"""Predictions written to a CSV, JSONL or Parquet file, a batch at a time.

The file appears under its name when it is complete. One that was stopped appears as NAME.partial.SUFFIX, and an older
file of that name is left as it was.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from vitreous.downloads.files import replacing
from vitreous.errors import ConfigError, quoted, require_packages
from vitreous.evaluation.batch_prediction import PredictedFile

SUFFIXES = (".csv", ".jsonl", ".parquet")
_ROWS_AT_ONCE = 4096  # per group of rows in a Parquet file


class Layout:
    """The columns of a table: the image, what its row in the user's list had beside it, and the prediction."""

    def __init__(self, class_names: Sequence[str], given: Sequence[str], has_novelty: bool, top: int | None):
        self.class_names, self.given_names, self.has_novelty, self.top = class_names, given, has_novelty, top
        novelty = ["novelty", "unlike"] if has_novelty else []
        others = range(2, 1 + min(top or 0, len(class_names)))
        self.own = ["image", "label", "probability", *novelty, "error"]
        if top is None:
            self.more = [f"p_{name}" for name in class_names]
        else:
            self.more = [column for number in others for column in (f"label_{number}", f"probability_{number}")]
        taken = {*self.own, *self.more}
        self.given = [f"given_{name}" if name in taken else name for name in given]

    @property
    def columns(self) -> list[str]:
        return [*self.own, *self.given, *self.more]

    def values(self, result: PredictedFile) -> list[Any]:
        """Return one value per column; None where there is none."""
        given, found = [result.file.given.get(name) for name in self.given_names], result.prediction
        own: list[Any]
        if found is None:
            own = [result.file.name, *[None] * (len(self.own) - 2), result.error]
            return [*own, *given, *[None] * len(self.more)]
        novelty = [found.novelty, found.unlike] if self.has_novelty else []
        own = [result.file.name, found.label, found.probability, *novelty, None]
        if self.top is None:
            return [*own, *given, *found.probabilities.values()]
        return [*own, *given, *(value for pair in found.most_probable(self.top)[1:] for value in pair)]

    def record(self, result: PredictedFile) -> dict[str, Any]:
        """Return the same as an object, with the probabilities by class."""
        values = dict(zip(self.own, self.values(result)[: len(self.own)], strict=True))
        given = {shown: result.file.given.get(name) for shown, name in zip(self.given, self.given_names, strict=True)}
        if result.prediction is None:
            return {**values, **given}
        return {**values, "probabilities": dict(result.prediction.most_probable(self.top)), **given}


class Writer(Protocol):
    def write(self, results: Sequence[PredictedFile]) -> None: ...

    def finish(self) -> None: ...


@contextlib.contextmanager
def writing(path: Path, layout: Layout) -> Iterator[PredictionFile]:
    """Yield a file to which results are written; it appears under its name once the block has ended without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        file = PredictionFile(path, stream, _WRITERS[path.suffix.lower()](stream, layout))
        try:
            yield file
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                file.writer.finish()  # before its stream is closed
            raise
        file.writer.finish()


class PredictionFile:
    """A file of predictions that is being written."""

    def __init__(self, path: Path, stream: IO[bytes], writer: Writer):
        self.path, self.stream, self.writer = path, stream, writer

    def write(self, results: Sequence[PredictedFile]) -> None:
        self.writer.write(results)

    def keep_partial(self) -> Path:
        """Finish the file under another name, because not all images were predicted; the block must end by an error."""
        self.writer.finish()
        self.stream.flush()
        partial = self.path.with_name(f"{self.path.stem}.partial{self.path.suffix}")
        os.replace(self.stream.name, partial)
        return partial


def check_output(path: Path, inputs: Sequence[Path] = ()) -> None:
    """Refuse, before anything is predicted, a file that could not be written, or that is one of the inputs."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ConfigError(f"-o {quoted(str(path))} is a folder; name a file in it, as in {path / 'predictions.csv'}")
    if suffix not in SUFFIXES:
        raise ConfigError(f"-o {quoted(str(path))}: expected a file that ends in {', '.join(SUFFIXES)}")
    if any(path.exists() and os.path.exists(one) and os.path.samefile(path, one) for one in inputs):
        raise ConfigError(f"-o {quoted(str(path))} is also the list of images; name another file")
    if suffix == ".parquet":
        require_packages("pyarrow", extra="parquet", needed_for="writing Parquet")


# --- formats -----------------------------------------------------------------------------------------------------


class _Csv:
    def __init__(self, stream: IO[bytes], layout: Layout):
        self.stream, self.layout = stream, layout
        self._write_rows([layout.columns])

    def write(self, results: Sequence[PredictedFile]) -> None:
        self._write_rows([[_cell(value) for value in self.layout.values(result)] for result in results])

    def _write_rows(self, rows: list[list[Any]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.stream.write(text.getvalue().encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        pass


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.7g}"  # what float32 has
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


class _JsonLines:
    def __init__(self, stream: IO[bytes], layout: Layout):
        self.stream, self.layout = stream, layout

    def write(self, results: Sequence[PredictedFile]) -> None:
        lines = (json.dumps(self.layout.record(result), ensure_ascii=False) + "\n" for result in results)
        self.stream.write("".join(lines).encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        pass


class _Parquet:
    def __init__(self, stream: IO[bytes], layout: Layout):
        import pyarrow
        from pyarrow import parquet

        numbers = {"probability", "novelty"} | {name for name in layout.more if not name.startswith("label_")}
        text, real, flag = pyarrow.string(), pyarrow.float32(), pyarrow.bool_()
        kinds = [
            flag if name == "unlike" else real if name in numbers and name not in layout.given else text
            for name in layout.columns
        ]
        self.layout = layout
        self.schema = pyarrow.schema(list(zip(layout.columns, kinds, strict=True)))
        self.writer = parquet.ParquetWriter(stream, self.schema, compression="zstd")
        self.waiting: list[list[Any]] = []

    def write(self, results: Sequence[PredictedFile]) -> None:
        self.waiting += map(self.layout.values, results)
        if len(self.waiting) >= _ROWS_AT_ONCE:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow

        columns = zip(*self.waiting, strict=True) if self.waiting else [()] * len(self.schema)
        arrays = [pyarrow.array(list(values), kind) for values, kind in zip(columns, self.schema.types, strict=True)]
        self.writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self.schema))
        self.waiting = []

    def finish(self) -> None:
        if self.waiting:
            self._write_group()
        self.writer.close()


_WRITERS: dict[str, Any] = {".csv": _Csv, ".jsonl": _JsonLines, ".parquet": _Parquet}
