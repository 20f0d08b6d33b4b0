"""What a study is: a TOML file that declares a claim, the runs that test it, and how the verdict is decided.

docs/studies.md explains the fields; the studies that come with the package are the TOML files of this folder.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vitreous.config.overrides import read_toml
from vitreous.config.presets import PRESETS
from vitreous.errors import ConfigError, quoted

_HERE = Path(__file__).parent
Text = Annotated[str, Field(min_length=1, max_length=1000)]
ShortText = Annotated[str, Field(min_length=1, max_length=60)]
Value = int | float | str  # of a point; never a bool, which TOML writes as true
MOST_ARMS = 12


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Arm(_Table):
    """One line of the figure, or one rung of the ladder: a preset with settings."""

    name: ShortText
    preset: str | None = None  # None: the study's
    settings: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()  # more settings for --quick, after all others
    #: another arm whose runs are evaluated again, in batches of `eval_batch_size`
    same_runs: str | None = None
    eval_batch_size: Annotated[int, Field(ge=1)] | None = None


class Points(_Table):
    """What varies along the horizontal axis: `{}` in a setting stands for the value."""

    label: ShortText
    values: Annotated[tuple[Value, ...], Field(min_length=2)]
    settings: Annotated[tuple[str, ...], Field(min_length=1)]
    names: tuple[str, ...] = ()  # of the values, where they are not shown as they are
    scale: Literal["words", "linear", "log"] = "words"
    positions: tuple[float, ...] = ()  # of the values on a linear or logarithmic axis, where they are not numbers

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field in ("names", "positions"):
            if getattr(self, field) and len(getattr(self, field)) != len(self.values):
                raise ValueError(f"points.{field} needs as many entries as points.values, {len(self.values)}")
        if self.scale != "words" and not self.positions and not all(isinstance(v, int | float) for v in self.values):
            raise ValueError(f"points.scale={self.scale!r} needs numbers as values, or points.positions")
        return self

    def name_of(self, value: Value) -> str:
        if self.names:
            return self.names[self.values.index(value)]
        return f"{value:,}" if isinstance(value, int | float) else value

    def position_of(self, value: Value) -> float:
        place = self.values.index(value)
        return float(place if self.scale == "words" else self.positions[place] if self.positions else value)


class Check(_Table):
    """A part of the claim that the runs can confirm or contradict: is `arm` better than `against`, as expected?"""

    claim: Text
    arm: str
    against: str | None = None  # None: the arm itself, at `against_at`
    at: tuple[Value, ...] = ()  # points; none: all
    against_at: Value | None = None  # None: the same point
    expect: Literal["better", "worse", "same", "best", "crossing"]
    margin: Annotated[float, Field(gt=0)] = 0.5  # percentage points within which two arms count as the same


class Quick(_Table):
    """What `--quick` changes, so that the study takes at most five minutes on two quiet cores."""

    how: Text  # in words
    seeds: Annotated[int, Field(ge=1)] = 2
    settings: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()  # of the points; none: all
    arms: tuple[str, ...] = ()  # none: all


class _Study(_Table):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
    title: Text
    claim: Text
    source: Text  # who claims it
    seeds: Annotated[int, Field(ge=1, le=100)] = 3
    note: str = ""  # what a reader of the figures must know


class GridStudy(_Study):
    """Arms × points × seeds of runs."""

    kind: Literal["grid"] = "grid"
    data: str | None = None  # None: the presets'
    preset: str = "vit"
    settings: tuple[str, ...] = ()  # for every run whose model has them
    seed_settings: tuple[str, ...] = ()  # `{}` stands for the seed
    arms: Annotated[tuple[Arm, ...], Field(min_length=1, max_length=MOST_ARMS)]
    points: Points | None = None
    verdict: Annotated[tuple[Check, ...], Field(min_length=1)]
    quick: Quick
    figures: tuple[Literal["position-similarity"], ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"two arms are called {twice[0]!r}: give each its own name")
        trained = [arm.name for arm in self.arms if arm.same_runs is None]
        for arm in self.arms:
            if arm.same_runs is not None:
                _require(arm.same_runs, trained, f"arm {arm.name!r}: same_runs")
            elif arm.eval_batch_size is not None:
                raise ValueError(
                    f"arm {arm.name!r}: eval_batch_size is for arms with same_runs; use train.eval_batch_size"
                )
            for preset in (arm.preset or self.preset,):
                _require(preset, list(PRESETS), "preset")
        for name in self.quick.arms:
            _require(name, names, "quick.arms")
        for check in self.verdict:
            self._check_check(check, names)
        values = self.points.values if self.points else ()
        for value in self.quick.values:
            _require(value, values, "quick.values")
        return self

    def _check_check(self, check: Check, names: Sequence[str]) -> None:
        values = self.points.values if self.points else ()
        for name in (check.arm, *([check.against] if check.against else [])):
            _require(name, names, "verdict")
        for value in (*check.at, *([] if check.against_at is None else [check.against_at])):
            _require(value, values, "verdict.at")
        if check.expect == "best":
            return
        if check.against is None and check.against_at is None:
            raise ValueError(
                f"verdict {check.claim!r}: name what {check.arm!r} is compared with: against, or against_at"
            )
        if check.expect == "crossing" and (self.points is None or check.against is None):
            raise ValueError(f"verdict {check.claim!r}: a crossing needs [points] and two arms")


class TransferSettings(_Table):
    """The arguments of `vitreous.studies.transfer.transfer`."""

    pretrain_on: str = "fashion-mnist"
    target: str = "mnist"
    per_class: tuple[int, ...] = (10, 100, 1000)
    preset: str = "vit"
    pretrain_epochs: float = 5.0
    epochs: float = 2.0
    fewest_steps: int = 1000
    lr_factors: tuple[float, ...] = (0.3, 1.0, 3.0)


class QuickTransfer(TransferSettings):
    how: Text
    seeds: Annotated[int, Field(ge=2)] = 2


class TransferStudy(_Study):
    """Pre-train, then train with and without it: `vitreous.studies.transfer`."""

    kind: Literal["transfer"]
    transfer: TransferSettings
    quick: QuickTransfer


def _require(name: Value, known: Sequence[Value], where: str) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(str(name), [str(one) for one in known], n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"{where}: there is no {name!r}; {hint}choose from {', '.join(map(str, known)) or 'none'}")


def bundled_studies() -> dict[str, Path]:
    """Return the studies that come with the package, by name."""
    return {path.stem: path for path in sorted(_HERE.glob("*.toml"))}


def load_study(name_or_file: str | Path) -> GridStudy | TransferStudy:
    """Return a study by its name, or read it from a TOML file of the user's."""
    known = bundled_studies()
    if str(name_or_file) in known:
        return _read(known[str(name_or_file)])
    path = Path(name_or_file)
    if path.suffix == ".toml":
        return _read(path)
    close = difflib.get_close_matches(str(name_or_file)[:100], known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"there is no study {quoted(str(name_or_file))}; {hint}choose from {', '.join(known)}, or name a file of your"
        " own, as in my-study.toml"
    )


def _read(path: Path) -> GridStudy | TransferStudy:
    values = read_toml(path)
    kind = values.get("kind", "grid")
    if kind not in ("grid", "transfer"):
        raise ConfigError(f"{path}: kind={quoted(kind)}: choose grid or transfer")
    return parse_study(TransferStudy if kind == "transfer" else GridStudy, values, str(path))


def parse_study(kind: type[Any], values: dict[str, Any], source: str) -> Any:
    """Validate a study; a mistake raises one sentence that names the file, the field and the value."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("int", "float", "str"))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{source}: a study has no field {where!r}; docs/studies.md lists them") from None
        if first["type"] == "missing":
            raise ConfigError(f"{source}: {where!r} is missing; docs/studies.md says what it is") from None
        if not where or first["type"] == "value_error":
            raise ConfigError(f"{source}: {message}") from None
        raise ConfigError(f"{source}: {where}={quoted(first['input'])}: {message[0].lower() + message[1:]}") from None
