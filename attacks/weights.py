"""Files with weights or arrays from strangers: safetensors, .npz, pickles, and the config.json beside them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from attacks.cases import Case, Finding, Verdict, flip_bits, listed, numbered, refused_or, take_turns
from attacks.weight_files import CANARY, CONFIGS, LISTED, data_sets

TITLE = "weights and arrays"
SECONDS = 60.0
EXPECTED = "expected.npz"  # what the undamaged file holds
_RANDOM_CASES = 300  # of each kind
_MEGABYTES = 384.0  # a header of 16 MB, parsed
_PICKLES = 15  # each starts a process that imports torch


def cases(seed: int) -> Iterator[Case]:
    damaged = [f"{damage} {form}" for damage in ("truncated", "flipped bits in") for form in FORMS]
    yield from take_turns(
        *(listed("weights", kind, make(), seed, megabytes=_MEGABYTES) for kind, (_, make) in LISTED.items()),
        listed("weights", "data sets of wrong content", data_sets(), seed, megabytes=_MEGABYTES),
        listed("weights", "config.json beside weights", CONFIGS, seed, megabytes=_MEGABYTES),
        *(
            numbered("weights", kind, _PICKLES if "pth" in kind else _RANDOM_CASES, seed, megabytes=_MEGABYTES)
            for kind in damaged
        ),
    )


#: name of the form → the file of weights, or of a data set
FORMS = {"safetensors": "model.safetensors", "npz": "model.npz", "data.npz": "data.npz", "pth": "model.pth"}


def prepare(case: Case, folder: Path) -> None:
    if case.kind in LISTED:
        name, make = LISTED[case.kind]
        (folder / name).write_bytes(make()[case.name]())
    elif case.kind == "data sets of wrong content":
        np.savez(folder / "data.npz", **data_sets()[case.name])  # type: ignore[arg-type]
    elif case.kind == "config.json beside weights":
        (folder / "model.safetensors").write_bytes(_whole("safetensors")[0])
        (folder / "config.json").write_bytes(CONFIGS[case.name])
    else:
        form = case.kind.split()[-1]
        whole, expected = _whole(form)
        numbers = case.random()
        truncated = case.kind.startswith("truncated")
        damaged = whole[: numbers.randrange(len(whole))] if truncated else flip_bits(whole, numbers)
        (folder / FORMS[form]).write_bytes(damaged)
        if form != "safetensors":  # it has no checksum: changed weights cannot be noticed
            np.savez(folder / EXPECTED, **expected)  # type: ignore[arg-type]


def _whole(form: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return an undamaged file and its arrays: a small ViT, or a small data set."""
    import torch

    from vitreous.checkpoints import save_model
    from vitreous.config import ViTConfig
    from vitreous.models import ViT

    numbers = np.random.default_rng(0)
    if form == "data.npz":
        arrays = {"images": numbers.integers(0, 256, (20, 8, 8), np.uint8), "labels": np.arange(20) % 2}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue(), arrays
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=(8, 8), patch_size=(4, 4), dim=12, depth=1, num_heads=3, mlp_dim=16, channels=3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    expected = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if form == "pth":
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        return buffer.getvalue(), expected
    file = Path(f"whole-{FORMS[form]}").absolute()
    save_model(model, file, "timm" if form == "safetensors" else "google", approximate=True)
    data = file.read_bytes()
    file.unlink()
    return data, expected


# --- the attack ----------------------------------------------------------------------------------------------------


def warm_up() -> None:
    import sklearn.datasets  # noqa: F401

    from vitreous.checkpoints import convert  # noqa: F401
    from vitreous.data import datasets, folders  # noqa: F401
    from vitreous.data import npz as _  # noqa: F401


def attack(case: Case, folder: Path) -> Finding:
    findings = [refused_or(partial(read, folder)) for read in (_read_weights, _convert, _read_data)]
    if (folder / CANARY).exists():
        return Finding(Verdict.WRONG, "code in the file was executed")
    if any(folder.parent.glob("images*")) or any(folder.parent.glob("*.npy")):
        return Finding(Verdict.WRONG, "a file was written outside the folder")
    # the worst first: a refusal by one reader does not excuse another
    order = [Verdict.CRASH, Verdict.WRONG, Verdict.REFUSED, Verdict.IDENTICAL, Verdict.HANDLED]
    return min(findings, key=lambda finding: order.index(finding.verdict))


def _read_weights(folder: Path) -> Finding:
    from vitreous.checkpoints import read_checkpoint

    file = next(folder.glob("model.*"), None)
    if file is None:
        return Finding(Verdict.HANDLED)
    checkpoint = read_checkpoint(folder if (folder / "config.json").exists() else file, num_heads=3)
    return _compare({name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}, folder)


def _convert(folder: Path) -> Finding:
    """`vitreous convert` writes a run, or nothing."""
    from vitreous.checkpoints.convert import convert
    from vitreous.runs import Run

    file = next(folder.glob("model.*"), None)
    if file is None or file.suffix == ".pth":  # read once above; each reading starts a process
        return Finding(Verdict.HANDLED)
    target = folder / "converted"
    try:
        convert(file, target, "vitreous", num_heads=3)
    except Exception:
        if target.exists():
            return Finding(Verdict.WRONG, "a refused conversion left a folder behind")
        raise
    tensors = Run.open(target).load_model().state_dict()
    return _compare({name: tensor.numpy() for name, tensor in tensors.items()}, folder)


def _read_data(folder: Path) -> Finding:
    from vitreous.config import DataConfig
    from vitreous.data.datasets import load_dataset

    file = next((path for path in (folder / "data.npz", folder / "model.npz") if path.exists()), None)
    if file is None:
        return Finding(Verdict.HANDLED)
    dataset = load_dataset(DataConfig(name=str(file)))
    expected = np.load(folder / EXPECTED) if (folder / EXPECTED).is_file() else None
    if expected is None:
        return Finding(Verdict.HANDLED)
    found = {image.numpy().tobytes() for split in (dataset.train, dataset.val, dataset.test) for image in split.images}
    if found != {image.tobytes() for image in expected["images"]}:
        return Finding(Verdict.WRONG, "the images are not those that were saved")
    return Finding(Verdict.IDENTICAL)


def _compare(tensors: dict[str, np.ndarray], folder: Path) -> Finding:
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        return Finding(Verdict.WRONG, "weights that are not finite")
    if not (folder / EXPECTED).is_file():
        return Finding(Verdict.HANDLED)
    expected = np.load(folder / EXPECTED)
    same = set(tensors) == set(expected) and all(np.array_equal(tensors[name], expected[name]) for name in tensors)
    return Finding(Verdict.IDENTICAL) if same else Finding(Verdict.WRONG, "other weights than were saved")
