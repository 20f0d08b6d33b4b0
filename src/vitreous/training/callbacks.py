"""Callbacks: objects that a training calls with what it measures, for loggers and your own code.

The rule: a callback that raises is left out from then on, with a warning that names it; the training goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vitreous.errors import ConfigError, quoted, require_packages
from vitreous.runs import Run


class Callback:
    """Override any of these. `metrics` are the lines of metrics.jsonl; only the main process calls them."""

    def on_start(self, run: Run) -> None:
        """Called before the first step, also of a resumed training; `run.config` is the whole configuration."""

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        """Called every `train.log_every` steps: step, epoch, loss, accuracy, lr, images_per_second, elapsed_seconds."""

    def on_validation(self, metrics: Mapping[str, Any]) -> None:
        """Called after every validation: step, epoch, loss, accuracy, elapsed_seconds."""

    def on_end(self, run: Run) -> None:
        """Called last, however the training ends; `run.is_done` tells whether it is complete."""


class Callbacks:
    """Call several callbacks; drop one that raises."""

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self.active = list(callbacks)

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        self._call("on_start", run)
        try:
            yield
        finally:
            self._call("on_end", run)

    def record(self, event: str, metrics: Mapping[str, Any]) -> None:
        """Pass on a line of metrics.jsonl; test results are read from the run at its end."""
        if method := {"train": "on_step", "val": "on_validation"}.get(event):
            self._call(method, dict(metrics))

    def _call(self, method: str, argument: Any) -> None:
        for callback in [*self.active]:
            try:
                getattr(callback, method)(argument)
            except Exception as error:
                self.active.remove(callback)
                where = traceback.extract_tb(error.__traceback__)[-1]
                warnings.warn(
                    f"the callback {type(callback).__name__} raised {type(error).__name__} in {method}"
                    f" ({where.filename}, line {where.lineno}): {error}; the training goes on without it",
                    RuntimeWarning,
                    stacklevel=2,
                )


# --- loggers -----------------------------------------------------------------------------------------------


class _Logger(Callback):
    """Log train/loss, train/accuracy, train/lr, val/…, and test/… at the end, by step."""

    _LOGGED = ("loss", "accuracy", "lr", "images_per_second")

    def write(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        self._write("train", metrics)

    def on_validation(self, metrics: Mapping[str, Any]) -> None:
        self._write("val", metrics)

    def on_end(self, run: Run) -> None:
        if run.is_done:
            test = run.test_results
            self.write({"test/loss": test.nll, "test/accuracy": test.accuracy}, run.steps_trained)

    def _write(self, split: str, metrics: Mapping[str, Any]) -> None:
        self.write({f"{split}/{name}": metrics[name] for name in self._LOGGED if name in metrics}, metrics["step"])


class TensorBoard(_Logger):
    """Write TensorBoard events into the run's folder `tensorboard/`."""

    def __init__(self) -> None:
        require_packages("tensorboard", extra="tensorboard", needed_for="logging to TensorBoard")

    def on_start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.path / "tensorboard"))

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def on_end(self, run: Run) -> None:
        super().on_end(run)
        self.writer.close()


class WandbStyle(_Logger):
    """Log through a module with `init(project, name, config)`, `log(values, step)` and `finish()`: wandb, trackio, …

    `module` is the module or its name; further arguments go to `init`: `WandbStyle("wandb", mode="offline")`.
    """

    def __init__(self, module: Any, project: str = "vitreous", **init_arguments: Any):
        if isinstance(module, str):
            if module in LOGGERS:
                require_packages(module, extra=module, needed_for=f"logging to {module}")
            try:
                module = importlib.import_module(module)
            except ImportError as error:
                raise ConfigError(f"cannot log to {quoted(module)} ({error}): install it, or name another") from None
        if missing := [name for name in ("init", "log", "finish") if not callable(getattr(module, name, None))]:
            raise ConfigError(
                f"{quoted(module)} has no {' and no '.join(missing)}: expected a module like wandb or trackio"
            )
        self.module, self.project, self.init_arguments = module, project, init_arguments

    def on_start(self, run: Run) -> None:
        config = run.config.model_dump(mode="json")
        self.module.init(**{"project": self.project, "name": run.path.name, "config": config, **self.init_arguments})

    def write(self, values: dict[str, float], step: int) -> None:
        self.module.log(values, step=step)

    def on_end(self, run: Run) -> None:
        super().on_end(run)
        self.module.finish()


LOGGERS = ("tensorboard", "wandb", "trackio")


def as_callbacks(values: Iterable[Callback | str]) -> list[Callback]:
    """Return callbacks as objects; a logger may be named: "tensorboard", "wandb", "trackio"."""
    return [_as_callback(value) for value in ([values] if isinstance(values, Callback | str) else values)]


def _as_callback(value: Callback | str) -> Callback:
    if isinstance(value, Callback):
        return value
    if value not in LOGGERS:
        raise ConfigError(
            f"{quoted(value)} is no logger: choose from {', '.join(LOGGERS)}, or pass an object of a subclass of"
            " vitreous.Callback"
        )
    return TensorBoard() if value == "tensorboard" else WandbStyle(value)
