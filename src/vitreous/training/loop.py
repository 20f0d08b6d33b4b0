"""`fit(config)` trains a run: from scratch, resumed, or on many processes, by one loop.

Everything random is a function of the configuration's seed, the epoch and the image, or comes from torch's generator,
whose state checkpoints save: a run killed at any step and resumed ends with the same bits.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitreous import hardware
from vitreous.config import Config
from vitreous.data.datasets import Dataset, Split
from vitreous.data.sampler import BatchSampler
from vitreous.errors import RunError, VitreousError, for_reader
from vitreous.evaluation import blank, calibration
from vitreous.evaluation.prediction import Evaluation, Reduce, compute_logits, compute_outputs
from vitreous.models.representations import representation_names
from vitreous.runs import CONFIG, Fitted, ResumePoint, Run, TestResults, require_free
from vitreous.training import auto, checkpointing, distributed, plan
from vitreous.training.auto import AutoRequest
from vitreous.training.best import BestValidation, score
from vitreous.training.callbacks import Callback, Callbacks, as_callbacks
from vitreous.training.lost_ranks import is_loss
from vitreous.training.progress import Progress, make_progress
from vitreous.training.restart import is_restart, run_to_restart
from vitreous.training.setup import open_or_create
from vitreous.training.signals import deferred_signals
from vitreous.training.step import Stepper, Weights


class TrainingInterrupted(VitreousError):
    """Ctrl-C or SIGTERM: everything up to here is saved."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def fit(
    config: Config | AutoRequest,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    callbacks: Iterable[Callback | str] = (),
) -> Run:
    """Train `config`, or what the data suggest, into the run folder `out` (default: runs/DATA-NAME).

    With `resume`, `out` is an unfinished run: it keeps its own configuration and goes on where it stopped. So does a
    job that torchrun restarts (`run_to_restart`). `callbacks` are called with what is measured (`callbacks.py`).
    """
    active = Callbacks(as_callbacks(callbacks))
    with distributed.group(config.train.timeout_seconds, config.train.shard) as group:
        if isinstance(config, AutoRequest):
            config = _choose(config, out, group, progress)
        if not resume and group.any(is_restart())[0]:
            begun = group.broadcast(run_to_restart(config, out) if group.is_main else None)
            out, resume = begun or out, begun is not None
        with open_or_create(config, out, resume, device, group) as (run, dataset, weights):
            if run.is_done:
                return run
            trainer = Trainer(run, dataset, group, weights, active if group.is_main else None)
            title = f"{run.config.name} on {dataset.name}"
            shown = make_progress(title) if progress and group.is_main else Progress()
            with shown, trainer.callbacks.around(run):
                for line in run.config.reasons:
                    shown.log(line)
                trainer.train(shown)
    return Run.open(run.path)


def _choose(request: AutoRequest, out: Path | str | None, group: distributed.Group, progress: bool) -> Config:
    """Let rank 0 choose the configuration, unless the run could not be created afterwards."""

    def choose_on_main() -> Config:
        if out is not None:
            require_free(Path(out))
        with make_progress(f"{auto.NAME} on {request.data}") if progress else Progress() as shown:
            return auto.choose(request, shown.log)

    return group.from_main(choose_on_main)


@dataclass
class _Window:
    """Sums over this rank's images since the last line of metrics.jsonl."""

    loss: float = 0.0
    num_correct: float = 0
    images: float = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, loss: float, num_correct: int, images: int) -> None:
        self.loss += loss * images
        self.num_correct += num_correct
        self.images += images


class Trainer:
    """Train a run from where it is to its end."""

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        group: distributed.Group,
        weights: Weights | None = None,
        callbacks: Callbacks | None = None,
    ):
        self.run, self.dataset, self.group = run, dataset, group
        self.callbacks = callbacks or Callbacks()
        self.config, self.resolved = run.config, plan.for_processes(run, group)
        group.announce(run.path)
        hardware.prepare(self.resolved.threads)
        self.stepper = Stepper(self.config, dataset, run.preprocessing, self.resolved, group, weights)
        self.sampler = BatchSampler.of(
            dataset.train, self.resolved.batch_size, self.config.seed, group.rank, group.world_size
        )
        self.best = BestValidation(self.config.train)
        self.window = _Window()
        self.validate_every = self.resolved.validate_every or self.resolved.steps_per_epoch
        self.elapsed_before = 0.0  # seconds that earlier processes trained
        self.started = time.perf_counter()
        self.checkpointed = time.perf_counter()

    @property
    def elapsed_seconds(self) -> float:
        return self.elapsed_before + time.perf_counter() - self.started

    def _record(self, event: str, **metrics: Any) -> None:
        """Append a line to metrics.jsonl and pass it to the callbacks."""
        self.run.log(event=event, **metrics)
        self.callbacks.record(event, metrics)

    def train(self, progress: Progress) -> None:
        total = self.resolved.steps
        self.window = _Window()
        done = self._restore()
        self.started = self.checkpointed = time.perf_counter()
        if not done and (hint := plan.hint(self.config, self.resolved)):
            progress.log(for_reader(hint))
        if not done and self.resolved.precision == "bfloat16":
            progress.log(
                for_reader("training in bfloat16, much faster here than float32 (--set train.precision=float32)")
            )
        if not done and blank.skips(self.stepper.model):
            progress.log(blank.in_words(self.stepper.model, self.dataset.train, self.stepper.preprocessing))
        with deferred_signals() as signals:
            for step, epoch, indices in self.sampler.steps(done, done if self.best.is_exhausted else total):
                loss, num_correct = self._guarded_step(step, epoch, indices)
                done = step + 1
                self.window.add(loss, num_correct, len(indices))
                if done % self.config.train.log_every == 0 or done == total:
                    self._log_window(done, progress)
                if done % self.validate_every == 0 or done == total:
                    self._validate(done, progress)
                is_last = done == total or self.best.is_exhausted
                overdue = time.perf_counter() - self.checkpointed >= self.config.train.checkpoint_seconds
                stop, due = self.group.any(signals.received is not None, overdue)
                if stop or (due and not is_last):
                    self._save(done)
                if stop:
                    raise TrainingInterrupted(
                        f"stopped at step {done} of {total} and saved; go on with: {self.group.resume_command}",
                        signals.received or signal.SIGTERM,
                    )
                if is_last:
                    break
        self._finish(done, progress)

    def _guarded_step(self, step: int, epoch: int, indices: Tensor) -> tuple[float, int]:
        try:
            return self.stepper.step(step, epoch, indices)
        except FloatingPointError as error:
            raise RunError(
                f"the loss became {error} at step {step} (learning rate {self.stepper.lr(step):.3g}), so"
                f" {str(self.run.path)!r} cannot go on: train a new run with a lower train.lr, or train.clip_norm=1"
            ) from None

    def _log_window(self, done: int, progress: Progress) -> None:
        loss_sum, num_correct, images = self.group.sum([self.window.loss, self.window.num_correct, self.window.images])
        loss, accuracy = loss_sum / images, num_correct / images
        rate = images / (time.perf_counter() - self.window.started)
        self.window = _Window()
        if self.group.is_main:
            self._record(
                "train", step=done, epoch=done / self.resolved.steps_per_epoch, loss=loss, accuracy=accuracy,
                lr=self.stepper.lr(done - 1), images_per_second=rate, elapsed_seconds=self.elapsed_seconds,
            )  # fmt: skip
        progress.step(done, self.resolved.steps, loss, accuracy, rate)

    def _validate(self, done: int, progress: Progress) -> None:
        if not len(self.dataset.val):
            return
        evaluation = self._evaluate(self.dataset.val)
        if self.best.is_needed:  # rank 0 decides: another kind of CPU may round differently
            value = self.group.broadcast(score(evaluation, self.config.train, self.resolved.class_weights))
            self.best.update(done, value, self.stepper.kept_model)
        if not self.group.is_main:
            return
        self._record(
            "val", step=done, epoch=done / self.resolved.steps_per_epoch, loss=evaluation.nll,
            accuracy=evaluation.accuracy, elapsed_seconds=self.elapsed_seconds,
        )  # fmt: skip
        if self._is_logged(done):
            progress.log(
                f"epoch {round(done / self.resolved.steps_per_epoch, 2):g}: validation accuracy"
                f" {evaluation.accuracy:.2%}, loss {evaluation.nll:.4f}, {self.elapsed_seconds:.0f} s"
            )

    def _is_logged(self, done: int) -> bool:
        """Return whether this validation gets a line: all of them, or about forty of many. metrics.jsonl has all."""
        total = self.resolved.steps
        every = max(1, math.ceil(total / self.validate_every / 40))
        return done == total or done // self.validate_every % every == 0

    def _evaluate(self, split: Split) -> Evaluation:
        """Evaluate on all processes: each takes its own share of the images."""
        logits = compute_logits(
            self.stepper.kept_model, self._share(split), self.stepper.preprocessing, self.config.train.eval_batch_size
        )
        return Evaluation(self.group.gather(logits).numpy(), split.labels.numpy())

    # --- saving and restoring ------------------------------------------------------------------------------

    def _save(self, done: int) -> None:
        tensors = checkpointing.tensors_to_save(self.stepper, self.group)
        shards = checkpointing.write_shards(self.stepper, self.run, done, self.group)
        window = self.group.sum([self.window.loss, self.window.num_correct, self.window.images])
        if self.group.is_main:
            tensors |= {f"best.{name}": value for name, value in self.best.weights.items()}
            facts = {
                "elapsed_seconds": self.elapsed_seconds,
                "window": window,
                "window_seconds": time.perf_counter() - self.window.started,
                **self.best.facts(),
            }
            self.run.save_resume_point(ResumePoint(done, tensors, facts, shards))
        self.group.barrier()  # no rank goes on, or ends the job, before rank 0 has saved
        self.checkpointed = time.perf_counter()

    def _restore(self) -> int:
        """Return the step to go on from: 0 for a new run."""
        point = self.run.rewind() if self.group.is_main else None
        if self.group.is_main and self.resolved != self.run.resolved:
            self.resolved = plan.note_processes(self.run, self.resolved, point.step if point else 0)
        self.group.barrier()  # rank 0 truncates metrics.jsonl, then all read
        if not self.group.is_main:
            point = self.run.resume_point(check_shards=False)
        if point is None:
            return 0
        try:
            checkpointing.restore(self.stepper, point, self.run.shards_folder(point.step), self.group)
            weights = checkpointing.with_prefix(point.tensors, "best.")
            self.best.restore(point.facts, weights, self.stepper.kept_model)
        except (RuntimeError, LookupError) as error:
            if is_loss(error):
                raise
            raise RunError(
                f"the checkpoint of step {point.step} in {str(self.run.path)!r} does not fit the model in {CONFIG}:"
                " undo the edit, or train a new run"
            ) from None
        self.elapsed_before = point.facts["elapsed_seconds"]
        if self.group.is_main:  # rank 0 goes on with the sums of all ranks
            self.window = _Window(*point.facts["window"])
        self.window.started = time.perf_counter() - point.facts["window_seconds"]
        return point.step

    def _finish(self, done: int, progress: Progress) -> None:
        """Calibrate the kept weights, evaluate them on the test set, which is read here only, and finish the run."""
        if self.group.any(self.window.images > 0)[0]:  # stopped early, between two lines
            self._log_window(done, progress)
        train_seconds, total = self.elapsed_seconds, self.resolved.steps
        stopped_at_step = done if done < total else None
        best_step = self.best.load_into(self.stepper.kept_model)
        if stopped_at_step:
            progress.log(
                f"stopped at step {done} of {total}: no better validation {self.config.train.monitor} since step"
                f" {self.best.step or 0}"
            )
        if best_step:
            progress.log(f"kept the weights of step {best_step}, the best by validation {self.config.train.monitor}")
        fitted = self._calibrate()
        temperature = 1.0 if fitted is None else fitted[0].temperature
        results = None
        if len(self.dataset.test):
            test = replace(self._evaluate(self.dataset.test), temperature=temperature)
            rate = done * self.resolved.batch_size / train_seconds
            results = TestResults(**test.summary(), train_seconds=train_seconds, images_per_second=rate)
        if self.group.is_main:
            if results is not None:
                self._record(
                    "test", step=done, epoch=done / self.resolved.steps_per_epoch, loss=test.raw_nll,
                    accuracy=test.accuracy, elapsed_seconds=train_seconds,
                )  # fmt: skip
            self.run.finish(
                self.stepper.kept_model, results, fitted, stopped_at_step=stopped_at_step, best_step=best_step
            )
            if fitted is None:
                progress.log("there are no validation images: the probabilities are not calibrated (temperature 1)")
            else:
                progress.log("; ".join([calibration.in_words(fitted[0]), *fitted[0].notes]))
            progress.log(f"{_accuracy_in_words(results)}, {train_seconds:.0f} s of training")
        self.group.barrier()

    def _calibrate(self) -> Fitted | None:
        """Fit temperature and novelty; all processes compute their share of the outputs, and get the same result."""
        if not len(self.dataset.val):
            return None
        names = representation_names(self.stepper.kept_model)
        return calibration.fit_calibration(self._compute, self.dataset, names)

    def _share(self, split: Split) -> Split:
        if self.group.world_size == 1:
            return split
        return split.take(np.array_split(np.arange(len(split)), self.group.world_size)[self.group.rank])

    def _compute(self, split: Split, reduce: Reduce) -> tuple[Tensor, ...]:
        """Compute outputs on all processes, as `_evaluate` does."""
        share = self._share(split)
        batch_size = self.config.train.eval_batch_size
        found = compute_outputs(self.stepper.kept_model, share, self.stepper.preprocessing, reduce, batch_size)
        return tuple(self.group.gather(values) for values in found)


def _accuracy_in_words(test: TestResults | None) -> str:
    return f"test accuracy {test.accuracy:.2%} ({test.correct} of {test.count})" if test else "no test images"
