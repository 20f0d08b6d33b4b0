"""The learning-rate finder: raise the rate from step to step until the loss diverges, and suggest one from the curve.

Smith, "Cyclical learning rates for training neural networks" (2017). The model is thrown away; no run is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.config import Config
from vitreous.data.sampler import BatchSampler
from vitreous.errors import ConfigError
from vitreous.training import distributed
from vitreous.training.setup import prepare
from vitreous.training.step import Stepper

Floats = NDArray[np.float64]

LOWEST, HIGHEST = 1e-6, 10.0  # learning rates between which to search
MOST_STEPS, FEWEST_STEPS = 140, 35  # twenty per decade, or five where steps are slow
SECONDS = 120.0  # at most, unless train.budget_seconds says otherwise


def sweep(config, device="auto", seconds=SECONDS, log=lambda line: None):
    config, dataset, preprocessing, resolved, weights = prepare(config, device, distributed.Group())
    stepper = Stepper(config, dataset, preprocessing, resolved, distributed.Group(), weights)
    sampler = BatchSampler(len(dataset.train), resolved.batch_size, config.seed)
    lrs, losses = [], []
    steps = MOST_STEPS
    for step, epoch, indices in sampler.steps(0, steps):
        lr = LOWEST * (HIGHEST/LOWEST) ** (step/(steps-1))
        try:
            loss, _ = stepper.step(step, epoch, indices, lr / config.train.lr)
        except FloatingPointError:
            break
        lrs.append(lr); losses.append(loss)
        if loss > 10*min(losses): break
    return lrs, losses
