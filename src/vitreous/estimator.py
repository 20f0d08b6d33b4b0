"""scikit-learn estimators: `VitClassifier` and `CnnClassifier` train a run by `vitreous.fit` and predict with it.

Images X are (n, H, W), (n, H, W, C), (n, C, H, W) with C of 1 or 3, or flat rows (n, features): a square number of
features is an image of that side; for any other shape, give `image_shape`. uint8 means levels from 0 to 255. Numbers of
any other type are scaled by the training images: 0, or their minimum if that is negative, becomes level 0, and their
maximum level 255; when predicting, the same scale holds and what lies outside it is clipped.
"""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vitreous.api import fit
from vitreous.api_run import Run
from vitreous.data.arrays import as_source
from vitreous.data.images import convert
from vitreous.errors import VitreousError
from vitreous.reports.formats import by

_CHANNELS = (1, 3)
_TOKENS_PER_SIDE = 4  # of the default patch size
_BATCH = 500
ImageShape = tuple[int, ...] | Literal["pad"] | None


class EstimatorError(VitreousError, ValueError):
    """Input that an estimator cannot take; a ValueError, as scikit-learn expects."""


class _RunClassifier(ClassifierMixin, BaseEstimator):
    """What both estimators share; `_model_settings` names the parameters that are the model's."""

    _preset: str
    _model_settings: tuple[str, ...]
    _smallest_side = 1

    # --- scikit-learn's methods ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Train on images X with labels y, all of them; `validation_fraction` holds some out to calibrate with."""
        X, y = validate_data(self, X, y, ensure_2d=_num_axes(X) < 3, allow_nd=True)
        self.n_features_in_ = math.prod(X.shape[1:])
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        name = type(self).__name__
        if len(self.classes_) < 2:
            raise EstimatorError(f"{name} needs at least two classes, and y has one class: {self.classes_[0]}")
        self.image_shape_ = self._image_shape(X.shape[1:])
        self.scale_ = (0.0, 255.0) if X.dtype == np.uint8 else (min(0.0, float(X.min())), float(X.max()))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        images = self._pixels(X)  # (n, C, H, W)
        with torch.random.fork_rng(), tempfile.TemporaryDirectory(prefix="vitreous-data-") as folder:
            source = self._keep(images, labels, Path(folder))
            out = tempfile.mkdtemp(prefix="vitreous-run-") if self.out is None else self.out
            if self.out is None:
                _remove_with(self, out)
            self.run_ = fit(
                self._preset,
                data=source,
                out=out,
                seed=seed,
                progress=bool(self.verbose),
                **self._configuration(images),
            )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted class of every image, as y had them."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities (n, classes), in the order of `classes_`; calibrated with `validation_fraction`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, ensure_2d=_num_axes(X) < 3, allow_nd=True)
        if self._image_shape(X.shape[1:]) != self.image_shape_:
            raise EstimatorError(
                f"X has entries of shape {X.shape[1:]}, and this {type(self).__name__} was trained on images of"
                f" {by(*self.image_shape_)} (channels, height, width)"
            )
        # in double precision, the probabilities of an image do not depend on the others in its batch
        model, preprocessing = copy.deepcopy(self.run_.model).double(), self.run_.preprocessing
        logits = []
        with torch.inference_mode():
            for batch in torch.from_numpy(self._pixels(X)).split(_BATCH):
                sized = convert(batch, preprocessing.image_size, preprocessing.channels)
                logits.append(model(preprocessing.to_input(sized).double()))
            return (torch.cat(logits) / self.run_.temperature).softmax(dim=1).numpy()

    # --- images --------------------------------------------------------------------------------------------

    def _image_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (C, H, W) for one entry of X."""
        if len(shape) == 3 and shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
            return shape[0], shape[1], shape[2]
        if len(shape) == 3 and shape[2] in _CHANNELS:
            return shape[2], shape[0], shape[1]
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        if len(shape) != 1:
            raise EstimatorError(
                f"X has entries of shape {shape}; expected images (H, W), (H, W, C) or (C, H, W), with C of 1 or 3, or"
                " flat rows"
            )
        features, given = shape[0], self.image_shape
        side = math.isqrt(features - 1) + 1
        if given == "pad" or (given is None and side * side == features):
            return 1, side, side
        if given is None:
            raise EstimatorError(
                f"X has {features} features, which is no square image; give image_shape=(height, width) or (height,"
                " width, channels), or image_shape='pad' to fill up the next square with zeros"
            )
        if math.prod(given) != features or len(given) not in (2, 3) or (*given, 1)[2] not in _CHANNELS:
            raise EstimatorError(
                f"image_shape={given!r} does not describe the {features} features of X; expected (height, width) or"
                " (height, width, channels), whose product is that number"
            )
        return (*given, 1)[2], given[0], given[1]

    def _pixels(self, X: np.ndarray) -> np.ndarray:
        """Return X as uint8 (n, C, H, W); images below the smallest size get a border at the right and the bottom."""
        (channels, height, width), (low, high) = self.image_shape_, self.scale_
        if X.ndim == 2:
            missing = channels * height * width - X.shape[1]
            X = np.pad(X, ((0, 0), (0, missing)), constant_values=low) if missing else X
            X = X.reshape(-1, height, width, channels)
        if X.ndim == 3:
            X = X[..., None]
        if X.shape[1:] == (height, width, channels):
            X = X.transpose(0, 3, 1, 2)
        if X.dtype != np.uint8:
            X = np.rint((np.clip(X, low, high) - low) * (255 / ((high - low) or 1))).astype(np.uint8)
        border = [(0, max(0, self._smallest_side - side)) for side in (height, width)]
        return np.pad(X, ((0, 0), (0, 0), *border)) if any(map(any, border)) else np.ascontiguousarray(X)

    # --- training ------------------------------------------------------------------------------------------

    def _keep(self, images: np.ndarray, labels: np.ndarray, folder: Path) -> str:
        """Return the name of the data: a file that is removed after the training, or with `out` a lasting copy."""
        names = [str(name) for name in self.classes_]
        if len(set(names)) < len(names):  # 1 and "1"
            names = [f"{name} ({index})" for index, name in enumerate(names)]
        arrays: dict[str, Any] = {"images": images, "labels": labels, "class_names": np.array(names)}
        if self.out is not None:
            return as_source(arrays)
        np.savez(folder / "data.npz", **arrays)
        return str(folder / "data.npz")

    def _configuration(self, images: np.ndarray) -> dict[str, Any]:
        """Return the arguments of `vitreous.fit`; a parameter that is None is the preset's."""
        model = {name: getattr(self, name) for name in self._model_settings if getattr(self, name) is not None}
        train = {name: getattr(self, name) for name in ("lr", "batch_size") if getattr(self, name) is not None}
        # without validation images to calibrate with, probabilities of smoothed labels would be too low
        smoothing = {} if self.validation_fraction else {"label_smoothing": 0.0}
        augment = dict.fromkeys(("shift", "rotate", "scale"), 0.0) | dict(self.augment or {})
        return {
            "model": self._default_model(*images.shape[2:]) | model,
            "train": {"epochs": self.epochs, **smoothing, **train},
            "augment": augment,
            "settings": {
                "data.test_fraction": 0.0,
                "data.val_fraction": self.validation_fraction,
                "data.fit": "stretch",
                **(self.settings or {}),
            },
        }

    def _default_model(self, height: int, width: int) -> dict[str, Any]:
        return {}

    # --- pickling: as the files of the run -----------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if (run := state.pop("run_", None)) is not None:
            state["run_files"] = {file.name: file.read_bytes() for file in run.path.iterdir() if file.is_file()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("run_files", None)
        super().__setstate__(state)
        if files is not None:
            folder = tempfile.mkdtemp(prefix="vitreous-run-")
            _remove_with(self, folder)
            for name, content in files.items():
                Path(folder, Path(name).name).write_bytes(content)
            self.run_ = Run.open(folder)


def _num_axes(X: Any) -> int:
    shape = getattr(X, "shape", None)
    return np.asarray(X).ndim if shape is None else len(shape)


def _remove_with(owner: object, folder: str) -> None:
    """Remove a temporary folder once its estimator is no more, or the process ends."""
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)


class VitClassifier(_RunClassifier):
    """A Vision Transformer that classifies images, as a scikit-learn estimator.

    `run_` is the trained run (`run_.history`, `run_.model`); its folder is temporary unless `out` names a new one.
    Parameters that are None are those of the preset `vit`; `patch_size` by default divides each side by 4. `augment`
    and `settings` are as in `vitreous.fit`: {"shift": 1}, {"train.class_weights": "auto"}. With a `random_state` every
    fit gives the same model.
    """

    _preset = "vit"
    _model_settings = ("patch_size", "dim", "depth", "num_heads", "mlp_dim")

    def __init__(
        self,
        *,
        epochs: float = 20,
        lr: float | None = None,
        batch_size: int | None = None,
        patch_size: int | tuple[int, int] | None = None,
        dim: int | None = None,
        depth: int | None = None,
        num_heads: int | None = None,
        mlp_dim: int | None = None,
        augment: dict[str, Any] | None = None,
        validation_fraction: float = 0.0,
        image_shape: ImageShape = None,
        settings: dict[str, Any] | None = None,
        out: Path | str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.patch_size = patch_size
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.augment = augment
        self.validation_fraction = validation_fraction
        self.image_shape = image_shape
        self.settings = settings
        self.out = out
        self.random_state = random_state
        self.verbose = verbose

    def _default_model(self, height: int, width: int) -> dict[str, Any]:
        return {"patch_size": tuple(-(-side // _TOKENS_PER_SIDE) for side in (height, width)), "fit": "pad"}


class CnnClassifier(_RunClassifier):
    """A small convolutional network that classifies images, as a scikit-learn estimator.

    As `VitClassifier`, with the preset `cnn`; images below 8×8 pixels are padded to that.
    """

    _preset = "cnn"
    _model_settings = ("conv_channels", "hidden")
    _smallest_side = 8

    def __init__(
        self,
        *,
        epochs: float = 20,
        lr: float | None = None,
        batch_size: int | None = None,
        conv_channels: tuple[int, int] | None = None,
        hidden: int | None = None,
        augment: dict[str, Any] | None = None,
        validation_fraction: float = 0.0,
        image_shape: ImageShape = None,
        settings: dict[str, Any] | None = None,
        out: Path | str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.conv_channels = conv_channels
        self.hidden = hidden
        self.augment = augment
        self.validation_fraction = validation_fraction
        self.image_shape = image_shape
        self.settings = settings
        self.out = out
        self.random_state = random_state
        self.verbose = verbose
