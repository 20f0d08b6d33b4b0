"""`run_study`: train what a study declares, decide its claim, and write the report, the table and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import hardware
from vitreous.errors import ConfigError, VitreousError
from vitreous.evaluation.metrics import LEVEL
from vitreous.reports.figures import DrawnFigure
from vitreous.reports.formats import join, plural
from vitreous.reports.pages import write_report
from vitreous.runs import Run, report_folder
from vitreous.studies.cells import Cells, collect_cells
from vitreous.studies.definition import GridStudy, TransferStudy, Value, load_study
from vitreous.studies.figures import arm_styles, draw_positions, draw_study
from vitreous.studies.grid import Evaluated, read_evaluated
from vitreous.studies.jobs import Job, make_jobs, quickly
from vitreous.studies.pool import train_all
from vitreous.studies.progress import make_grid_progress
from vitreous.studies.tables import Table, make_tables
from vitreous.studies.transfer import Transfer, transfer
from vitreous.studies.verdict import Verdict, decide, headline
from vitreous.training.loop import TrainingInterrupted
from vitreous.training.restart import same_training

_TEMPLATE = Path(__file__).with_name("study.html.jinja")
_WORDS = {
    "holds": "Holds", "contradicted": "Contradicted", "undecided": "Undecided", "mixed": "Mixed",
    "measured": "Measured",
}  # fmt: skip


@dataclass(frozen=True)
class StudyResult:
    """The findings, and the files they were written to."""

    study: GridStudy  # as it was run: quick, or with other seeds
    quick: bool
    data: str
    cells: Cells
    verdicts: tuple[Verdict, ...]
    tables: tuple[Table, ...]
    figures: tuple[DrawnFigure, ...]
    settings: tuple[str, ...]
    command: str
    hardware: str
    versions: dict[str, str]
    folder: Path

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def headline(self) -> str:
        """What holds and what does not, in short."""
        return headline(self.verdicts)

    @property
    def verdict(self) -> str:
        """Every verdict in a line, with its numbers."""
        return "\n".join(verdict.sentence for verdict in self.verdicts)

    @property
    def num_runs(self) -> int:
        return len({run.run for cell in self.cells.all for run in cell.runs})

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return {
            "study": self.name,
            "title": self.study.title,
            "claim": self.study.claim,
            "source": self.study.source,
            "headline": self.headline,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "level": LEVEL,
            "cells": [cell.as_dict() for cell in self.cells.all],
            "points": None if self.study.points is None else self.study.points.model_dump(mode="json"),
            "data": {"name": self.data, "test_images": self.cells.test_images},
            "seeds": self.study.seeds,
            "runs": self.num_runs,
            "quick": self.study.quick.how if self.quick else None,
            "settings": list(self.settings),
            "command": self.command,
            "hardware": self.hardware,
            "versions": self.versions,
        }

    def as_markdown(self) -> str:
        """Return the content of `table.md`."""
        parts = [
            f"**{table.title}** ({self.data}, {plural(self.cells.test_images, 'test image')})\n\n{table.as_markdown()}"
            for table in self.tables
        ]
        return "\n\n".join(parts) + "\n"


def run_study(
    name_or_file: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    out: Path | str | None = None,
    data: str | None = None,
    settings: Sequence[str] = (),
    jobs: int | None = None,
    device: str = "auto",
    progress: bool = True,
) -> StudyResult | Transfer:
    """Run a study by its name or TOML file; in the same folder it goes on where it stopped, and reuses what is done."""
    study = load_study(name_or_file)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least 1")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least 1")
    folder = report_folder(out or Path("runs") / f"study-{study.name}{'-quick' * quick}", Path())
    if isinstance(study, TransferStudy):
        if data is not None or jobs is not None:
            raise ConfigError(
                f"{study.name!r} is a transfer: its data are in [transfer], and it trains one run at a time"
            )
        return _run_transfer(study, quick, seeds, folder, settings, device, progress)
    shown = f"vitreous study {name_or_file}" + " --quick" * quick + "".join(f" --set {one}" for one in settings)
    shown += f" --data {data}" if data else ""
    study = quickly(study) if quick else study
    if seeds is not None and seeds != study.seeds:
        study, shown = study.model_copy(update={"seeds": seeds}), f"{shown} --seeds {seeds}"
    planned = make_jobs(study, folder, quick=quick, data=data, settings=settings)
    _train(study, planned, folder, jobs, device, progress)
    cells = collect_cells(study, _evaluations(study, planned))
    return _write(study, cells, folder, quick, planned[0], tuple(settings), shown)


def _train(
    study: GridStudy, planned: Sequence[Job], folder: Path, jobs: int | None, device: str, progress: bool
) -> None:
    left = [job for job in planned if not _is_evaluated(job)]
    try:
        with make_grid_progress(study.name, left, progress) as shown:
            if len(left) < len(planned):
                shown.log(f"{len(planned) - len(left)} of {plural(len(planned), 'run')} are done already")
            train_all(left, at_once=jobs, device=device, progress=shown)
    except TrainingInterrupted as stop:
        raise TrainingInterrupted(
            f"stopped and saved; the same command with -o {folder} goes on where it stopped", stop.signal_number
        ) from None


def _is_evaluated(job: Job) -> bool:
    """Return whether a run is finished and evaluated, with these very settings."""
    try:
        run = Run.open(job.path)
    except VitreousError:
        return False
    if not run.is_done or not same_training(run.config, job.config):
        return False
    return all(read_evaluated(run, batch_size) is not None for batch_size in job.batch_sizes)


def _evaluations(study: GridStudy, planned: Sequence[Job]) -> dict[tuple[str, Value | None], list[Evaluated]]:
    found: dict[tuple[str, Value | None], list[Evaluated]] = {}
    for job in planned:
        run = Run.open(job.path)
        for arm in study.arms:
            if job.arm == (arm.same_runs or arm.name):
                batch_size = arm.eval_batch_size or job.batch_sizes[0]
                evaluated = read_evaluated(run, batch_size)
                assert evaluated is not None, "it was written after the training"
                found.setdefault((arm.name, job.point), []).append(evaluated)
    return found


def _write(
    study: GridStudy, cells: Cells, folder: Path, quick: bool, first: Job, settings: tuple[str, ...], command: str
) -> StudyResult:
    styles = arm_styles(cells)
    drawn = draw_study(study, cells, styles)
    positions = draw_positions(study, cells) if "position-similarity" in study.figures else None
    machines = dict.fromkeys(run.hardware for cell in cells.all for run in cell.runs)
    result = StudyResult(
        study=study,
        quick=quick,
        data=first.config.data.name,
        cells=cells,
        verdicts=decide(study, cells),
        tables=make_tables(study, cells),
        figures=tuple(figure for figure in (drawn, positions) if figure),
        settings=settings,
        command=command,
        hardware=f"{join(machines)}, one thread per run",
        versions=hardware.versions(),
        folder=folder,
    )
    beside: dict[str, Any] = {"results.json": result.as_dict(), "table.md": result.as_markdown()}
    for figure in result.figures:
        beside |= {f"{figure.name}.svg": figure.svg, f"{figure.name}.png": figure.png}
    write_report(
        result.report, _TEMPLATE, title=study.title, description=result.headline, beside=beside, result=result,
        styles=styles, drawn=drawn, positions=positions, words=_WORDS,
    )  # fmt: skip
    return result


def _run_transfer(
    study: TransferStudy, quick: bool, seeds: int | None, folder: Path, settings: Sequence[str], device: str,
    progress: bool,
) -> Transfer:  # fmt: skip
    asked = study.quick if quick else study.transfer
    return transfer(
        asked.pretrain_on, asked.target, asked.per_class, seeds or (study.quick.seeds if quick else study.seeds),
        asked.preset, pretrain_epochs=asked.pretrain_epochs, epochs=asked.epochs, fewest_steps=asked.fewest_steps,
        lr_factors=asked.lr_factors, out=folder, settings=settings, device=device, progress=progress,
    )  # fmt: skip
