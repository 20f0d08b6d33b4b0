"""The record of a run, config.json: typed, versioned, migrated from older formats, and with a checksum of its content.

The checksum covers every key, also those that other tools added, whatever their order and the white space. A record
without one is accepted: runs of vitreous 0.1 have none, and removing it is how an edit is accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import vitreous
from vitreous.config import Config, build_config
from vitreous.data.preprocessing import Preprocessing
from vitreous.downloads.files import read_plain
from vitreous.errors import RunError

FORMAT = 2  # 1: vitreous 0.1
CONFIG = "config.json"
CHECKSUM = "checksum"
MOST_SKIPPED_NAMES = 100


class _Stored(BaseModel):
    """A part of config.json; keys that other tools added to it are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class DataRecord(_Stored):
    """The data a run was trained on."""

    name: str  # "": a converted checkpoint, whose data are not known
    class_names: tuple[str, ...]
    images: dict[str, int] = {}  # per split
    checksums: dict[str, str] = {}
    test_sha256: str | None = None  # of the test split's images and labels; None: not recorded by older versions
    notes: tuple[str, ...] = ()
    skipped: int = 0  # files left out because they cannot be read (data.skip_corrupt)
    skipped_names: tuple[str, ...] = ()  # the first of them


class Resolved(_Stored):
    """What the configuration left open and the data or the machine decided."""

    device: str = "cpu"
    threads: int = 1
    world_size: int = 1  # processes, of the last start
    #: (first step, processes) of every start on another number of processes; (): the same throughout
    world_sizes: tuple[tuple[int, int], ...] = ()
    batch_size: int  # over all processes
    steps: int  # planned; early stopping may end the training before
    steps_per_epoch: int
    validate_every: int | None = None  # steps; None: an epoch, in runs of older versions
    class_weights: tuple[float, ...] | None = None  # of the loss, by class; None: all equal
    compile: bool = False
    precision: str | None = None  # that train.precision="auto" came to; None: as the configuration says
    teacher: dict[str, str] | None = None  # which weights distil, so that a resumed training has the same ones
    hardware: str = ""
    seconds_per_step: float | None = None  # measured, where a number of seconds became a number of steps
    starting_weights: tuple[str, ...] = ()  # what was done to fit them to the data


class TestResults(_Stored):
    """Measured once, on the test split, with the weights that were kept."""

    accuracy: float
    correct: int
    count: int
    nll: float  # this and the next with the temperature in `calibration`, if there is one
    calibration_error: float
    raw_nll: float | None = None  # without it; None: not recorded by older versions, which had no temperature
    raw_calibration_error: float | None = None
    train_seconds: float
    images_per_second: float


class Results(_Stored):
    test: TestResults | None = None  # None: a converted checkpoint
    stopped_at_step: int | None = None  # by early stopping; None: trained as planned
    best_step: int | None = None  # whose weights were kept (train.keep="best"); None: the last step's


class WeightsRecord(_Stored):
    sha256: str | None = None


class NoveltyRecord(_Stored):
    """How "unlike the training images" is measured; the statistics are in a file of their own."""

    file: str
    sha256: str
    representations: tuple[str, ...]  # that distances are measured in
    train_images: int  # whose means and covariance these are
    val_images: int  # which set the threshold
    share: float = Field(gt=0, lt=1)  # of images like the training ones, about, that exceed the threshold


class Calibration(_Stored):
    """Fitted on the validation split, for the weights that were kept: probabilities = softmax(logits / temperature)."""

    temperature: float = Field(gt=0, allow_inf_nan=False)
    data: str  # whose validation split
    images: int
    nll: float
    raw_nll: float  # with temperature 1
    calibration_error: float
    raw_calibration_error: float
    novelty: NoveltyRecord | None = None
    notes: tuple[str, ...] = ()


class RunRecord(_Stored):
    """Everything in config.json."""

    format: int = FORMAT
    vitreous: str
    created: str
    status: Literal["training", "done"]
    config: Config
    preprocessing: Preprocessing
    data: DataRecord
    resolved: Resolved | None  # None: a converted checkpoint
    versions: dict[str, str] = {}
    results: Results = Results()
    weights: WeightsRecord = WeightsRecord()
    calibration: Calibration | None = None  # None: an older run, or one without validation images
    provenance: dict[str, str] | None = None  # of a bundled model: command and commit

    def replace(self, **changes: Any) -> RunRecord:
        return self.model_copy(update=changes)


def parse_json(data: bytes) -> Any:
    """Return what UTF-8 JSON holds; a ValueError for anything else."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def content_checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def record_text(record: RunRecord) -> str:
    """Return the content of config.json; its checksum comes first, so that removing that line leaves valid JSON."""
    content = record.model_dump(mode="json")
    content = {CHECKSUM: content_checksum(content), **content}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_record(file: Path) -> RunRecord:
    try:
        record = parse_json(read_plain(file))
    except FileNotFoundError:
        raise RunError(f"{str(file.parent)!r} is not a run folder: it has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{str(file)!r} cannot be read ({error}); it is damaged: restore it, or train again") from None
    if not is_record(record):
        raise RunError(f"{str(file)!r} is not a vitreous run's configuration; train again, or name another run")
    if record["format"] > FORMAT:
        raise RunError(
            f"{str(file)!r} has format {record['format']}, made by vitreous {record.get('vitreous', '?')}; this is"
            f" {vitreous.__version__}, which reads up to {FORMAT}: pip install -U vitreous"
        )
    checksum = record.pop(CHECKSUM, None)
    if checksum is not None and checksum != content_checksum(record):
        raise RunError(
            f"{str(file)!r} was edited or damaged after it was written (its content does not have its checksum):"
            f' restore it, or, to accept it as it is, remove its line "{CHECKSUM}"'
        )
    missing = [name for name, field in RunRecord.model_fields.items() if field.is_required() and name not in record]
    if missing:
        raise RunError(f"{str(file)!r} lacks {', '.join(missing)}; it was edited by hand: train again")
    # the two parts a person edits are checked first, for messages that name the setting alone
    config, preprocessing = _migrated(record)
    record["config"] = build_config(Config, config, source=str(file))
    record["preprocessing"] = build_config(Preprocessing, preprocessing, source=str(file))
    return build_config(RunRecord, record, source=str(file))


def is_record(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("format"), int) and "vitreous" in record


def _migrated(record: dict[str, Any]) -> tuple[Any, Any]:
    """Return the configuration and the preprocessing of a record of any format, in today's fields."""
    config, preprocessing = record["config"], record["preprocessing"]
    if record["format"] == 1 and isinstance(config, dict) and isinstance(preprocessing, dict):
        preprocessing = {key: value for key, value in preprocessing.items() if key != "range"}  # it was always 0 to 1
        if isinstance(model := config.get("model"), dict):
            renamed = {"mends": "fixes"}  # vocabulary: ok
            without_effect = {"patch_embed"}  # "conv" and "linear" were the same arithmetic
            model = {renamed.get(key, key): value for key, value in model.items() if key not in without_effect}
            config = {**config, "model": model}
        record["format"] = FORMAT
        record["resolved"] = record["resolved"] or None
    return config, preprocessing
