"""A run as Python users hold it: the folder (`vitreous.runs.Run`) with its model, curves, evaluation, predictions."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitreous import runs
from vitreous.data.arrays import as_source
from vitreous.data.image_inputs import as_images
from vitreous.evaluation.prediction import Evaluation, evaluate_run, predict_images
from vitreous.evaluation.predictions import Predictions
from vitreous.export.hub import Pushed, push_run
from vitreous.models.summary import count_parameters_of
from vitreous.reports.formats import magnitude, percent, percent_decimals, plural, seconds
from vitreous.reports.notebook import data_frame, html_card, html_figure
from vitreous.runs.history import History, draw_history


class Run(runs.Run):
    """A run: `.accuracy`, `.history`, `.model`, `.predict(images)`, `.evaluate()`, `.push(folder)`, and its folder."""

    @classmethod
    def of(cls, run: runs.Run | Path | str | None) -> Run:
        """Return a run, or the run in a folder, as one of these; None means the bundled ViT."""
        if isinstance(run, cls):
            return run
        opened = run if isinstance(run, runs.Run) else runs.open_run(run)
        return cls(opened.path, opened.record)

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, in eval mode; loaded once."""
        return self.load_model()

    @property
    def accuracy(self) -> float:
        """The share of the test images that the trained model predicts correctly."""
        return self.test_results.accuracy

    @property
    def history(self) -> History:
        return History.from_metrics(self.metrics())

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation on the test images of the run's own data; computed once."""
        return self.evaluate()

    @property
    def confusion(self) -> np.ndarray:
        """(classes, classes) counts of the test images: row = label, column = prediction."""
        return self.evaluation.confusion

    def evaluate(self, split: str = "test", *, data: Any = None, batch_size: int | None = None) -> Evaluation:
        """Evaluate on a split of the run's data, or of other data, as in `vitreous.evaluate`."""
        return evaluate_run(self, split, batch_size, None if data is None else as_source(data))

    def predict(self, images: Any) -> Predictions:
        """Predict images, as in `vitreous.predict`."""
        return Predictions(predict_images(self, as_images(images, self.preprocessing.channels)))

    def push(self, folder: Path | str, *, license: str | None = None) -> Pushed:
        """Write a repository folder for the Hugging Face Hub: model card, weights, preprocessor, and this run."""
        return push_run(self, Path(folder), license=license)

    def to_pandas(self) -> Any:
        """Return a data frame of one row: name, data, results. `run.history.to_pandas()` has the curves."""
        test = self.record.results.test
        facts = {
            "run": str(self.path),
            "name": self.config.name,
            "data": self.record.data.name,
            "seed": self.config.seed,
        }
        return data_frame({key: [value] for key, value in {**facts, **(test.model_dump() if test else {})}.items()})

    def __repr__(self) -> str:
        test = self.record.results.test
        result: str = self.record.status
        if test is not None:
            accuracy = percent(test.accuracy, percent_decimals(test.count))
            result = f"{accuracy} of {plural(test.count, 'test image')} correct"
        return f"Run({str(self.path)!r}: {self.config.name} on {self.record.data.name or 'unknown data'}, {result})"

    def _repr_html_(self) -> str:
        test, data = self.record.results.test, self.record.data
        counts = ", ".join(f"{count:,} {split}" for split, count in data.images.items() if count)
        facts = {"folder": self.path, "data": f"{data.name}: {counts}" if counts else data.name or "not known"}
        facts |= {"model": f"{self.config.model.kind}, {magnitude(count_parameters_of(self.config.model))} parameters"}
        if test is not None:
            decimals = percent_decimals(test.count)
            facts["test accuracy"] = f"{percent(test.accuracy, decimals)} ({test.correct:,} of {test.count:,})"
            facts["training"] = seconds(test.train_seconds)
        else:
            facts["status"] = self.record.status
        history = self.history
        figure = html_figure(draw_history(history)) if history.train or history.val else ""
        return html_card(self.config.name, facts, figure)
