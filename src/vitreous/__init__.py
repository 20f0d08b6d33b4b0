"""A Vision Transformer you can see through.

    import vitreous

    run = vitreous.fit("vit", data="mnist")          # a run folder: weights, metrics, configuration
    print(vitreous.evaluate(run).accuracy)
    print(vitreous.predict(["seven.png"], run=run)[0].label)

The names below are imported when they are first used, so that `import vitreous` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vitreous.hardware import guard_amx

__version__ = "0.2.0"

guard_amx()  # before anything here imports torch

if TYPE_CHECKING:
    from vitreous.api import calibrate, compare, create, evaluate, fit, load, look, predict
    from vitreous.api_run import Run
    from vitreous.config import CNNConfig, Config, ViTConfig
    from vitreous.config.presets import preset
    from vitreous.doctor import diagnose
    from vitreous.errors import VitreousError
    from vitreous.estimator import CnnClassifier, VitClassifier
    from vitreous.training.callbacks import Callback, TensorBoard, WandbStyle

#: public name → the module that defines it; no module has the name of a public function
_PUBLIC = {
    "create": "vitreous.api",
    "load": "vitreous.api",
    "fit": "vitreous.api",
    "evaluate": "vitreous.api",
    "calibrate": "vitreous.api",
    "predict": "vitreous.api",
    "compare": "vitreous.api",
    "look": "vitreous.api",
    "diagnose": "vitreous.doctor",
    "preset": "vitreous.config.presets",
    "Config": "vitreous.config",
    "ViTConfig": "vitreous.config",
    "CNNConfig": "vitreous.config",
    "Run": "vitreous.api_run",
    "VitClassifier": "vitreous.estimator",
    "CnnClassifier": "vitreous.estimator",
    "Callback": "vitreous.training.callbacks",
    "TensorBoard": "vitreous.training.callbacks",
    "WandbStyle": "vitreous.training.callbacks",
    "VitreousError": "vitreous.errors",
}

__all__ = [
    "CNNConfig", "Callback", "CnnClassifier", "Config", "Run", "TensorBoard", "ViTConfig", "VitClassifier",
    "VitreousError", "WandbStyle", "__version__",
    "calibrate", "compare", "create", "diagnose", "evaluate", "fit", "load", "look", "predict", "preset",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
