"""From a study to its runs: every arm at every point with every seed, as a configuration with a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.config import Config, configure
from vitreous.errors import ConfigError
from vitreous.models.summary import count_flops
from vitreous.studies.compare import applies
from vitreous.studies.definition import Arm, GridStudy, Value


@dataclass(frozen=True)
class Job:
    """One run to train, or to find trained, and how to evaluate it."""

    arm: str
    point: Value | None
    seed: int
    config: Config
    path: Path
    batch_sizes: tuple[int, ...]  # in which the test images are evaluated; the first is the training's own

    @property
    def label(self) -> str:
        parts = [self.arm, *([] if self.point is None else [str(self.point)]), f"seed {self.seed}"]
        return ", ".join(parts)

    @property
    def work(self) -> float:
        """About the FLOPs of the training: with it the time that is left is estimated."""
        try:
            flops = count_flops(self.config.model)
        except ConfigError:  # a patch that does not divide the default size; the data may have another
            flops = 2_000_000
        train = self.config.train
        if train.budget_seconds is not None:
            return train.budget_seconds * 2e10
        per_class = self.config.data.train_per_class
        steps = train.epochs * max(
            train.min_steps_per_epoch, (10 * per_class if per_class else 54_000) / train.batch_size
        )
        return 3 * (flops + 1_000_000) * train.batch_size * steps + 2e10  # 1 s for loading and evaluating


def quickly(study: GridStudy) -> GridStudy:
    """Return the study as `--quick` runs it: fewer seeds, points and arms; its settings come last."""
    quick, points = study.quick, study.points
    arms = tuple(arm for arm in study.arms if not quick.arms or arm.name in quick.arms)
    if points is not None and quick.values:
        places = [points.values.index(value) for value in quick.values]
        points = points.model_copy(
            update={
                field: tuple(getattr(points, field)[place] for place in places) if getattr(points, field) else ()
                for field in ("values", "names", "positions")
            }
        )
    left = {arm.name for arm in arms}
    verdict = []
    for check in study.verdict:
        at = tuple(value for value in check.at if points is not None and value in points.values)
        gone = (check.at and not at) or (
            check.against_at is not None and points and check.against_at not in points.values
        )
        if check.arm in left and (check.against is None or check.against in left) and not gone:
            verdict.append(check.model_copy(update={"at": at}))
    return study.model_copy(update={"seeds": quick.seeds, "arms": arms, "points": points, "verdict": tuple(verdict)})


def make_jobs(
    study: GridStudy, folder: Path, *, quick: bool = False, data: str | None = None, settings: Sequence[str] = ()
) -> list[Job]:
    """Return every run of the study, the first seed of all arms before the second.

    Settings apply in this order: the study's, the arm's, the point's, the seed's, those of `--quick`, then `settings`.
    The study's, the quick ones and the last are for the models that have them.
    """
    jobs = []
    points: Sequence[Value | None] = study.points.values if study.points else [None]
    for setting in settings:
        if not any(applies(configure(arm.preset or study.preset), setting) for arm in study.arms):
            configure(study.preset, settings=[setting])  # raises an error that names the setting
    for seed in range(study.seeds):
        for point in points:
            for arm in study.arms:
                if arm.same_runs is None:
                    base = configure(arm.preset or study.preset, data=data or study.data)
                    own = _settings(study, arm, point, seed, base, quick)
                    own += [one for one in settings if applies(base, one)]
                    jobs.append(_job(study, arm, point, seed, folder, base, own))
    _check_folders(jobs)
    return jobs


def _settings(study: GridStudy, arm: Arm, point: Value | None, seed: int, base: Config, quick: bool) -> list[str]:
    # one thread each: several runs at once are faster than one run on several threads (docs/log.md)
    settings = ["train.threads=1", *(one for one in study.settings if applies(base, one)), *arm.settings]
    if study.points is not None:
        settings += [setting.replace("{}", str(point)) for setting in study.points.settings]
    settings += [setting.replace("{}", str(seed)) for setting in study.seed_settings]
    if quick:
        settings += [*(one for one in study.quick.settings if applies(base, one)), *arm.quick]
    return settings


def _job(
    study: GridStudy, arm: Arm, point: Value | None, seed: int, folder: Path, base: Config, settings: Sequence[str]
) -> Job:
    name = _slug(arm.name) if point is None else f"{_slug(arm.name)}-{_slug(str(point))}"
    config = configure(base, settings=settings, seed=seed).replace(name=f"{study.name}-{name}")
    again = [other.eval_batch_size for other in study.arms if other.same_runs == arm.name and other.eval_batch_size]
    batch_sizes = (config.train.eval_batch_size, *again)
    return Job(arm.name, point, seed, config, folder / "runs" / f"{name}-seed{seed}", batch_sizes)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "arm"


def _check_folders(jobs: Sequence[Job]) -> None:
    """Raise where two runs would share a folder: names that differ in signs alone."""
    seen: dict[Path, Job] = {}
    for job in jobs:
        if (other := seen.setdefault(job.path, job)) is not job:
            raise ConfigError(
                f"the arms {other.label!r} and {job.label!r} would share the folder {job.path.name!r}: rename one"
            )
