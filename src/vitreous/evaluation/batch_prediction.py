"""Predict any number of image files: decoded in other processes while the model runs, one result after another."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from vitreous.data.decoding import Decoded
from vitreous.data.image_files import ImageFile
from vitreous.data.items import Item
from vitreous.data.workers import decode
from vitreous.evaluation.prediction import Prediction, Predictor, to_predictions
from vitreous.hardware import prepare
from vitreous.runs import Run

BATCH_BYTES = 2**24  # of pixels in a batch: 111 images of 224×224×3


@dataclass(frozen=True, slots=True)
class PredictedFile:
    """The prediction for one image file, or the sentence that says why there is none."""

    file: ImageFile
    prediction: Prediction | None
    error: str | None = None


def predict_stream(
    run: Run, files: Iterable[ImageFile | str | Path], *, batch_size: int | None = None
) -> Iterator[PredictedFile]:
    """Yield a result for each image file, in their order; memory does not grow with their number."""
    prepare()
    predictor, target = Predictor(run), run.preprocessing.target
    fitting = max(1, BATCH_BYTES // (run.preprocessing.channels * math.prod(run.preprocessing.image_size)))
    size = batch_size or min(run.config.train.eval_batch_size, fitting)
    waiting: deque[ImageFile] = deque()  # in the order in which the results come back

    def items() -> Iterator[Item]:
        for file in files:
            one = file if isinstance(file, ImageFile) else ImageFile(str(file), str(file))
            waiting.append(one)
            yield Item(one.name, one.path, label=0)

    with contextlib.closing(_one_ahead(decode(items(), target), size)) as batches:
        for batch in batches:
            yield from _predict_batch(predictor, [waiting.popleft() for _ in batch], batch)


def _one_ahead(results: Iterator[Decoded], size: int) -> Generator[list[Decoded]]:
    """Yield batches; the next one is collected while the caller works on the last, so that decoding goes on."""

    def collect() -> list[Decoded]:
        return list(itertools.islice(results, size))

    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(collect)
        while batch := coming.result():
            coming = thread.submit(collect)
            yield batch


def _predict_batch(predictor: Predictor, files: list[ImageFile], batch: list[Decoded]) -> Iterator[PredictedFile]:
    readable = [one.pixels for one in batch if one.pixels is not None]
    predictions: Iterator[Prediction] = iter(())
    if readable:
        pixels = np.stack(readable)
        notes = [(*one.notes, *one.changes) for one in batch if one.pixels is not None]
        predictions = iter(to_predictions(predictor, torch.from_numpy(pixels), notes))
    for file, one in zip(files, batch, strict=True):
        yield PredictedFile(file, next(predictions) if one.pixels is not None else None, one.error)


@dataclass
class Tally:
    """Counts over many predictions: of classes, of what was done to the images, and of what failed."""

    predicted: int = 0
    failed: int = 0
    unlike: int | None = None  # None: the run does not measure it
    classes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)  # the first few

    MOST_ERRORS = 10
    MOST_NOTES = 200  # kinds; sizes of photographs differ without end

    @property
    def count(self) -> int:
        return self.predicted + self.failed

    def add(self, result: PredictedFile) -> None:
        if result.prediction is None:
            self.failed += 1
            if len(self.errors) < self.MOST_ERRORS:
                self.errors.append(result.error or "")
            return
        self.predicted += 1
        self.classes[result.prediction.label] += 1
        if result.prediction.unlike is not None:
            self.unlike = (self.unlike or 0) + result.prediction.unlike
        for note in result.prediction.notes:
            if note in self.notes or len(self.notes) < self.MOST_NOTES:
                self.notes[note] += 1
