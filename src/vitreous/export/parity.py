"""Whether a file does what its model does: on real images, in a fresh process that knows nothing of vitreous."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.datasets import describe, load_dataset
from vitreous.data.digits import load_digits
from vitreous.data.images import resize, to_channels
from vitreous.data.specs import DATASETS
from vitreous.errors import DataError
from vitreous.export.graph import ANSWERS, INSIDES, MASKS, ExportError, Full, Lean
from vitreous.models import ViT
from vitreous.runs import Run

IMAGES = 96
#: Relative to the largest value of an output. Measured: 1e-6; a wrong graph is wrong by far more than this.
LARGEST_DIFFERENCE = 1e-4
SECONDS = 120.0

# What runs in the fresh process: numpy and ONNX Runtime, isolated (-I), every batch size that matters.
_FRESH = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
options.add_session_config_entry("session.set_denormal_as_zero", "1")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given = dict(np.load(sys.argv[2]))
pixels = given.pop("pixels")
assert [one.name for one in session.get_inputs()] == ["pixels"], "only pixels may be required"
names = [one.name for one in session.get_outputs()]
found = dict(zip(names, session.run(None, {"pixels": pixels})))
found["one logits"] = session.run(["logits"], {"pixels": pixels[:1]})[0]
if given:
    masked = session.run(None, {"pixels": pixels, **given})
    found |= {"masked " + name: value for name, value in zip(names, masked)}
assert not any(name.split(".")[0] in ("vitreous", "torch") for name in sys.modules)
np.savez(sys.argv[3], **found)
"""


@dataclass(frozen=True)
class Parity:
    """How near the file is to the model."""

    images: int
    image_source: str
    max_difference: float  # of the logits and probabilities, in their own units
    max_inside_difference: float  # of the insides; 0 where there are none


def check_parity(file: Path, run: Run, model: nn.Module, full: bool) -> Parity:
    """Raise an ExportError unless every output is the model's and every decision the same."""
    images, source = real_images(run)
    pixels = images.float() / 255
    masks = _some_masks(model, len(pixels)) if full and isinstance(model, ViT) else {}
    expected = _expected(run, model, pixels, masks)
    found = _run_fresh(file, {"pixels": pixels, **masks})
    if found.keys() != expected.keys():
        raise ExportError(f"the ONNX file gives {', '.join(found)}; expected {', '.join(expected)}; please report it")
    differences = {}
    for name, want in expected.items():
        got = torch.from_numpy(found[name])
        if got.shape != want.shape or not torch.isfinite(got).all():
            raise ExportError(
                f"the ONNX file's {name!r} is of shape {tuple(got.shape)} or not finite; please report it"
            )
        differences[name] = float((got - want).abs().max())
        allowed = LARGEST_DIFFERENCE * max(1.0, float(want.abs().max()))
        if differences[name] > allowed:
            raise ExportError(
                f"the ONNX file's {name!r} differs from the model's by {differences[name]:.2g} on {len(pixels)} images"
                f" ({source}); at most {allowed:.2g} is allowed, so no file was written; please report it"
            )
    _check_decisions(found, expected)
    inside = [value for name, value in differences.items() if name.split()[-1] in INSIDES]
    answers = max(value for name, value in differences.items() if name.split()[-1] in ANSWERS)
    return Parity(len(pixels), source, answers, max(inside, default=0.0))


def _check_decisions(found: dict[str, np.ndarray], expected: dict[str, Tensor]) -> None:
    for name in ("logits", "one logits", "masked logits"):
        if name not in expected:
            continue
        changed = int((torch.from_numpy(found[name]).argmax(1) != expected[name].argmax(1)).sum())
        if changed:
            raise ExportError(
                f"the ONNX file decides {changed} of {len(expected[name])} images otherwise than the model, so no file"
                " was written; please report it"
            )


def real_images(run: Run, count: int = IMAGES) -> tuple[Tensor, str]:
    """uint8 (count, C, H, W) at the model's size: test images of the run's data or, where those are not here, digits.

    Nothing is fetched for this.
    """
    name = run.config.data.name
    try:
        here = describe(name).cached if name in DATASETS else True
        dataset = load_dataset(run.config.data) if here else None
    except DataError:  # a folder that was moved, say
        dataset = None
    if dataset is not None and len(dataset.test) >= count:
        images, source = dataset.test.images, f"test images of {name}"
    else:
        images, source = load_digits().splits["test"].images, "scikit-learn's digits"
    every = torch.linspace(0, len(images) - 1, count).long()
    config = run.config.model
    return resize(to_channels(images[every], config.channels), config.image_size), source


def _some_masks(model: ViT, count: int) -> dict[str, Tensor]:
    """Masks that take away about a third; the first image keeps everything, and every image keeps a patch."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    heads = (torch.rand(config.depth, config.num_heads, generator=generator) > 0.3).float()
    tokens = (torch.rand(count, config.num_patches, generator=generator) > 0.3).float()
    tokens[0] = 1
    tokens[:, 0] = 1
    return dict(zip(MASKS, (heads, tokens), strict=True))


@torch.inference_mode()
def _expected(run: Run, model: nn.Module, pixels: Tensor, masks: dict[str, Tensor]) -> dict[str, Tensor]:
    lean = Lean(model, run.preprocessing).eval()
    expected = {"one logits": lean(pixels[:1])[0]}
    expected |= zip(ANSWERS, lean(pixels), strict=True)
    if masks:
        assert isinstance(model, ViT)
        full = Full(model, run.preprocessing).eval()
        everything = torch.ones(model.config.depth, model.config.num_heads), torch.ones(1, model.config.num_patches)
        names = (*ANSWERS, *INSIDES)
        # the answers are held against the plain forward, the insides against the tapped one
        expected |= dict(zip(names, full(pixels, *everything), strict=True)) | expected
        expected |= {f"masked {name}": value for name, value in zip(names, full(pixels, **masks), strict=True)}
    return expected


def _run_fresh(file: Path, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory(prefix="vitreous-parity-") as folder:
        given, answer = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(given, **{name: tensor.numpy() for name, tensor in inputs.items()})  # type: ignore[arg-type]
        command = [sys.executable, "-I", "-c", _FRESH, str(file.absolute()), str(given), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder)
        except subprocess.TimeoutExpired:
            raise ExportError(
                f"ONNX Runtime did not run the file within {SECONDS:.0f} s; is the machine busy?"
            ) from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ExportError(f"ONNX Runtime cannot run the file: {lines[-1][:300]}; please report it")
        with np.load(answer) as loaded:
            return dict(loaded)
