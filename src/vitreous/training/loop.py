"""`fit(config)` trains a run: from scratch, resumed, or on many processes, by one loop.

Everything random is a function of the configuration's seed, the epoch and the image, or comes from torch's generator,
whose state checkpoints save: a run killed at any step and resumed ends with the same bits.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import hardware
from vitreous.config import Config
from vitreous.data.datasets import Dataset, Split
from vitreous.data.sampler import BatchSampler
from vitreous.errors import RunError, VitreousError, require_packages
from vitreous.evaluation import calibration
from vitreous.evaluation.prediction import Evaluation, Reduce, compute_logits, compute_outputs
from vitreous.models.representations import representation_names
from vitreous.runs import CONFIG, Fitted, ResumePoint, Run, TestResults
from vitreous.training import distributed
from vitreous.training.progress import Progress, make_progress
from vitreous.training.restart import run_to_restart
from vitreous.training.setup import open_or_create
from vitreous.training.step import Stepper, Weights


class TrainingInterrupted(VitreousError):
    """Ctrl-C or SIGTERM: everything up to here is saved."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def fit(
    config: Config,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    tensorboard: bool = False,
) -> Run:
    """Train `config` into the run folder `out` (default: runs/DATA-NAME).

    With `resume`, `out` is an unfinished run: it keeps its own configuration and goes on where it stopped. So does a
    job that torchrun restarts (`run_to_restart`).
    """
    with distributed.group(config.train.timeout_seconds) as group:
        if not resume and (begun := group.broadcast(run_to_restart(config, out) if group.is_main else None)):
            out, resume = begun, True
        tensorboard = tensorboard and group.is_main
        if tensorboard:
            require_packages("tensorboard", extra="tensorboard", needed_for="--tensorboard")
        with open_or_create(config, out, resume, device, group) as (run, dataset, weights):
            if run.is_done:
                return run
            trainer = Trainer(run, dataset, group, weights)
            title = f"{run.config.name} on {dataset.name}"
            shown = make_progress(title) if progress and group.is_main else Progress()
            board = _summary_writer(run.path / "tensorboard") if tensorboard else None
            try:
                with shown:
                    trainer.train(shown, board)
            finally:
                if board is not None:
                    board.close()
    return Run.open(run.path)


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

    def __init__(self, run: Run, dataset: Dataset, group: distributed.Group, weights: Weights | None = None):
        self.run, self.dataset, self.group = run, dataset, group
        self.config, self.resolved = run.config, run.resolved
        if group.world_size != self.resolved.world_size:
            raise RunError(
                f"{str(run.path)!r} was started with {self.resolved.world_size} processes, not {group.world_size}:"
                f" resume with --processes {self.resolved.world_size}, or torchrun"
            )
        group.announce(run.path)
        hardware.prepare(self.resolved.threads)
        self.stepper = Stepper(self.config, dataset, run.preprocessing, self.resolved, group, weights)
        self.sampler = BatchSampler(
            len(dataset.train), self.resolved.batch_size, self.config.seed, group.rank, group.world_size
        )
        self.window = _Window()
        self.elapsed_before = 0.0  # seconds that earlier processes trained
        self.started = time.perf_counter()
        self.checkpointed = time.perf_counter()

    @property
    def elapsed_seconds(self) -> float:
        return self.elapsed_before + time.perf_counter() - self.started

    def train(self, progress: Progress, board: Any) -> None:
        total = self.resolved.steps
        self.window = _Window()
        start = self._restore()
        self.started = self.checkpointed = time.perf_counter()
        with _signals() as signals:
            for step, epoch, indices in self.sampler.steps(start, total):
                loss, num_correct = self._guarded_step(step, epoch, indices)
                done = step + 1
                self.window.add(loss, num_correct, len(indices))
                if done % self.config.train.log_every == 0 or done == total:
                    self._log_window(done, progress, board)
                if done % self.sampler.steps_per_epoch == 0 or done == total:
                    self._validate(done, progress, board)
                overdue = time.perf_counter() - self.checkpointed >= self.config.train.checkpoint_seconds
                stop, due = self.group.any(signals.received is not None, overdue)
                if stop or (done < total and due):
                    self._save(done)
                if stop:
                    raise TrainingInterrupted(
                        f"stopped at step {done} of {total} and saved; go on with: {self.group.resume_command}",
                        signals.received or signal.SIGTERM,
                    )
        self._finish(progress)

    def _guarded_step(self, step: int, epoch: int, indices: Tensor) -> tuple[float, int]:
        try:
            return self.stepper.step(step, epoch, indices)
        except FloatingPointError as error:
            raise RunError(
                f"the loss became {error} at step {step} (learning rate {self.stepper.lr:.3g}), so"
                f" {str(self.run.path)!r} cannot go on: train a new run with a lower train.lr, or train.clip_norm=1"
            ) from None

    def _log_window(self, done: int, progress: Progress, board: Any) -> None:
        loss_sum, num_correct, images = self.group.sum([self.window.loss, self.window.num_correct, self.window.images])
        loss, accuracy = loss_sum / images, num_correct / images
        rate = images / (time.perf_counter() - self.window.started)
        self.window = _Window()
        if self.group.is_main:
            self.run.log(
                event="train", step=done, epoch=done / self.sampler.steps_per_epoch, loss=loss, accuracy=accuracy,
                lr=self.stepper.lr, images_per_second=rate, elapsed_seconds=self.elapsed_seconds,
            )  # fmt: skip
        progress.step(done, self.resolved.steps, loss, accuracy, rate)
        if board is not None:
            for name, value in (("loss", loss), ("accuracy", accuracy), ("lr", self.stepper.lr)):
                board.add_scalar(f"train/{name}", value, done)

    def _validate(self, done: int, progress: Progress, board: Any) -> None:
        if not len(self.dataset.val):
            return
        evaluation = self._evaluate(self.dataset.val)
        if not self.group.is_main:
            return
        self.run.log(
            event="val", step=done, epoch=done / self.sampler.steps_per_epoch, loss=evaluation.nll,
            accuracy=evaluation.accuracy, elapsed_seconds=self.elapsed_seconds,
        )  # fmt: skip
        progress.log(
            f"epoch {done / self.sampler.steps_per_epoch:g}: validation accuracy {evaluation.accuracy:.2%},"
            f" loss {evaluation.nll:.4f}, {self.elapsed_seconds:.0f} s"
        )
        if board is not None:
            board.add_scalar("val/loss", evaluation.nll, done)
            board.add_scalar("val/accuracy", evaluation.accuracy, done)

    def _evaluate(self, split: Split) -> Evaluation:
        """Evaluate on all processes: each takes its own share of the images."""
        share = split
        if self.group.world_size > 1:
            share = split.take(np.array_split(np.arange(len(split)), self.group.world_size)[self.group.rank])
        logits = compute_logits(
            self.stepper.kept_model, share, self.stepper.preprocessing, self.config.train.eval_batch_size
        )
        return Evaluation(self.group.gather(logits).numpy(), split.labels.numpy())

    # --- saving and restoring ------------------------------------------------------------------------------

    def _save(self, done: int) -> None:
        generators = {"generators": self.group.gather(torch.get_rng_state()[None])}  # one row per rank
        if self.stepper.device.type == "cuda":
            generators["cuda_generators"] = self.group.gather(torch.cuda.get_rng_state()[None])
        window = self.group.sum([self.window.loss, self.window.num_correct, self.window.images])
        if self.group.is_main:
            tensors = {f"model.{name}": value for name, value in self.stepper.model.state_dict().items()}
            if self.stepper.averaged is not None:
                kept = self.stepper.averaged.averaged.state_dict()
                tensors |= {f"averaged.{name}": value for name, value in kept.items()}
            tensors |= self._optimizer_tensors()
            tensors |= generators
            # two names may share one tensor; safetensors wants each stored once
            copies = {name: value.clone() for name, value in tensors.items()}
            facts = {
                "elapsed_seconds": self.elapsed_seconds,
                "window": window,
                "window_seconds": time.perf_counter() - self.window.started,
            }
            self.run.save_resume_point(ResumePoint(done, copies, facts))
        self.group.barrier()  # no rank goes on, or ends the job, before rank 0 has saved
        self.checkpointed = time.perf_counter()

    def _restore(self) -> int:
        """Return the step to go on from: 0 for a new run."""
        point = self.run.rewind() if self.group.is_main else None
        self.group.barrier()  # rank 0 truncates metrics.jsonl, then all read
        if not self.group.is_main:
            point = self.run.resume_point()
        if point is None:
            return 0
        try:
            self._restore_tensors(point.tensors)
        except (RuntimeError, LookupError):
            raise RunError(
                f"the checkpoint of step {point.step} in {str(self.run.path)!r} does not fit the model in {CONFIG}:"
                " undo the edit, or train a new run"
            ) from None
        self.elapsed_before = point.facts["elapsed_seconds"]
        if self.group.is_main:  # rank 0 goes on with the sums of all ranks
            self.window = _Window(*point.facts["window"])
        self.window.started = time.perf_counter() - point.facts["window_seconds"]
        return point.step

    def _restore_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.stepper.model.load_state_dict(_with_prefix(tensors, "model."))
        if self.stepper.averaged is not None:
            self.stepper.averaged.averaged.load_state_dict(_with_prefix(tensors, "averaged."))
        self._restore_optimizers(tensors)
        torch.set_rng_state(tensors["generators"][self.group.rank].clone())
        if self.stepper.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda_generators"][self.group.rank].clone())

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the optimizers' tensors, named optimizer.NUMBER.PARAMETER.KEY."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.stepper.model.named_parameters()}
        return {
            f"optimizer.{number}.{names[parameter]}.{key}": torch.as_tensor(value)
            for number, optimizer in enumerate(self.stepper.optimizers)
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
            if value is not None
        }

    def _restore_optimizers(self, tensors: dict[str, Tensor]) -> None:
        parameters = dict(self.stepper.model.named_parameters())
        for number, optimizer in enumerate(self.stepper.optimizers):
            for path, value in _with_prefix(tensors, f"optimizer.{number}.").items():
                name, _, key = path.rpartition(".")
                optimizer.state[parameters[name]][key] = value.to(self.stepper.device)

    def _finish(self, progress: Progress) -> None:
        """Calibrate the kept weights, evaluate them on the test set, which is read here only, and finish the run."""
        train_seconds = self.elapsed_seconds
        fitted = self._calibrate()
        temperature = 1.0 if fitted is None else fitted[0].temperature
        test = replace(self._evaluate(self.dataset.test), temperature=temperature)
        if self.group.is_main:
            steps = self.resolved.steps
            images_per_second = steps * self.resolved.batch_size / train_seconds
            self.run.log(
                event="test", step=steps, epoch=steps / self.sampler.steps_per_epoch, loss=test.raw_nll,
                accuracy=test.accuracy, elapsed_seconds=train_seconds,
            )  # fmt: skip
            results = TestResults(**test.summary(), train_seconds=train_seconds, images_per_second=images_per_second)
            self.run.finish(self.stepper.kept_model, results, fitted)
            if fitted is None:
                progress.log("there are no validation images: the probabilities are not calibrated (temperature 1)")
            else:
                progress.log("; ".join([calibration.in_words(fitted[0]), *fitted[0].notes]))
            progress.log(
                f"test accuracy {test.accuracy:.2%} ({test.correct} of {test.count}), {train_seconds:.0f} s of training"
            )
        self.group.barrier()

    def _calibrate(self) -> Fitted | None:
        """Fit temperature and novelty; all processes compute their share of the outputs, and get the same result."""
        if not len(self.dataset.val):
            return None
        names = representation_names(self.stepper.kept_model)
        return calibration.fit_calibration(self._compute, self.dataset, names)

    def _compute(self, split: Split, reduce: Reduce) -> tuple[Tensor, ...]:
        """Compute outputs on all processes, as `_evaluate` does."""
        share = split.images.tensor_split(self.group.world_size)[self.group.rank]
        batch_size = self.config.train.eval_batch_size
        found = compute_outputs(self.stepper.kept_model, share, self.stepper.preprocessing, reduce, batch_size)
        return tuple(self.group.gather(values) for values in found)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@dataclass
class _Signals:
    received: int | None = None


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    """Turn the first Ctrl-C or SIGTERM into a flag that the loop checks between steps; a second one is immediate."""
    state = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def receive(number: int, _frame: object) -> None:
        state.received = number
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield state
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _summary_writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
