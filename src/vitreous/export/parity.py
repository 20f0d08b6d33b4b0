"""Check that an ONNX file computes what its model computes, on test images, in a process without vitreous or torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.errors import ExportError
from vitreous.export.graph import INTERMEDIATES, MASKS, OUTPUTS, Full, Lean, default_masks
from vitreous.export.images import sample_images
from vitreous.models import ViT
from vitreous.runs import Run

NUM_IMAGES = 96
FEWEST_IMAGES = 4
MAX_ATTENTION = 64_000_000  # weights of all images: models of many tokens are checked on fewer, or memory would run out
#: Relative to the largest value of an output. Correct graphs differ by 1e-6, wrong ones by far more than this.
MAX_DIFFERENCE = 1e-4
MAX_HALF_DIFFERENCE = 2e-3  # where the weights are rounded to float16; the bundled models differ by 4e-4 at most
TIMEOUT_SECONDS = 120.0

# Run in a fresh, isolated (-I) process with numpy and ONNX Runtime: a batch, one image, and masks.
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
assert [value.name for value in session.get_inputs()] == ["pixels"], "only pixels may be required"
names = [value.name for value in session.get_outputs()]
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
    """How closely the file matches the model."""

    images: int
    image_source: str
    max_difference: float  # of the logits and probabilities, absolute
    max_intermediate_difference: float  # 0 if there are none


def check_parity(file: Path, run: Run, model: nn.Module, full: bool, max_difference: float = MAX_DIFFERENCE) -> Parity:
    """Raise an ExportError unless every output equals the model's and every prediction is the same."""
    images, source = sample_images(run, _num_images(model))
    pixels = images.float() / 255
    masks = _random_masks(model, len(pixels)) if full and isinstance(model, ViT) else {}
    expected = _expected(run, model, pixels, masks)
    found = _run_fresh(file, {"pixels": pixels, **masks})
    if found.keys() != expected.keys():
        raise ExportError(f"the ONNX file returns {', '.join(found)}; expected {', '.join(expected)}; please report it")
    differences = {}
    for name, want in expected.items():
        got = torch.from_numpy(found[name])
        if got.shape != want.shape or not torch.isfinite(got).all():
            raise ExportError(
                f"the ONNX file's {name!r} is of shape {tuple(got.shape)} or not finite; please report it"
            )
        differences[name] = float((got - want).abs().max())
        allowed = max_difference * max(1.0, float(want.abs().max()))
        if differences[name] > allowed:
            raise ExportError(
                f"the ONNX file's {name!r} differs from the model's by {differences[name]:.2g} on {len(pixels)} images"
                f" ({source}); at most {allowed:.2g} is allowed, so no file was written; please report it"
            )
        if name.endswith("logits") and (changed := int((got.argmax(1) != want.argmax(1)).sum())):
            raise ExportError(
                f"the ONNX file predicts other classes than the model for {changed} of {len(want)} images, so no file"
                " was written; please report it"
            )
    outputs, intermediates = (
        max((value for name, value in differences.items() if name.split()[-1] in kind), default=0.0)
        for kind in (OUTPUTS, INTERMEDIATES)
    )
    return Parity(len(pixels), source, outputs, intermediates)


def _num_images(model: nn.Module) -> int:
    if not isinstance(model, ViT):
        return NUM_IMAGES
    config = model.config
    return min(
        NUM_IMAGES, max(FEWEST_IMAGES, MAX_ATTENTION // (config.depth * config.num_heads * config.num_tokens**2))
    )


def _random_masks(model: ViT, count: int) -> dict[str, Tensor]:
    """Return masks that remove about a third; the first image keeps all patches, and every image keeps one."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    heads = (torch.rand(config.depth, config.num_heads, generator=generator) > 0.3).float()
    tokens = (torch.rand(count, config.num_patches, generator=generator) > 0.3).float()
    tokens[0] = 1
    tokens[:, 0] = 1
    return dict(zip(MASKS, (heads, tokens), strict=True))


@torch.inference_mode()
def _expected(run: Run, model: nn.Module, pixels: Tensor, masks: dict[str, Tensor]) -> dict[str, Tensor]:
    lean = Lean(run, model).eval()
    expected = {"one logits": lean(pixels[:1])[0]}
    expected |= zip(lean.outputs, lean(pixels), strict=True)
    if masks:
        assert isinstance(model, ViT)
        full = Full(run, model).eval()
        names = full.outputs
        # the outputs are compared with the plain forward, the intermediates with the tapped one
        expected = dict(zip(names, full(pixels, **default_masks(model)), strict=True)) | expected
        expected |= {f"masked {name}": value for name, value in zip(names, full(pixels, **masks), strict=True)}
    return expected


def _run_fresh(file: Path, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory(prefix="vitreous-parity-") as folder:
        arrays, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(arrays, **{name: tensor.numpy() for name, tensor in inputs.items()})  # type: ignore[arg-type]
        command = [sys.executable, "-I", "-c", _FRESH, str(file.absolute()), str(arrays), str(outputs)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise ExportError(
                f"ONNX Runtime did not run the file within {TIMEOUT_SECONDS:.0f} s; is the machine busy?"
            ) from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ExportError(f"ONNX Runtime cannot run the file: {lines[-1][:300]}; please report it")
        with np.load(outputs) as found:
            return dict(found)
