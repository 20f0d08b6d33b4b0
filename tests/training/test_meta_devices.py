"""Trainings on another device than the CPU, without one: torch's `meta` device stands for the GPU.

It has no data, but every operation runs, forward and backward, and a tensor that was left on the CPU is noticed. What
a training reads from the device (a loss, logits) is replaced by random numbers. A CPU build of torch has no autograd
for fake CUDA tensors.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from trainings import small

from vitreous.errors import ConfigError
from vitreous.models.fast.vit import FastAttention
from vitreous.runs import Run
from vitreous.training import devices, loop, setup
from vitreous.training.devices import check_precision, make_repeatable, pick_device, resolve_precision
from vitreous.training.distributed import Group
from vitreous.training.loop import fit

_COPIES = {torch.ops.aten._to_copy, torch.ops.aten.to, torch.ops.aten.copy_}


class WrongDevice(AssertionError):
    pass


class OneDevice(TorchDispatchMode):
    """Raise where an operation mixes tensors of the CPU and the GPU, as CUDA and MPS do; numbers (0-dim) may be."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0  # on the GPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = [tensor for tensor in tensors if tensor.is_meta]
        if func is torch.ops.aten._local_scalar_dense.default and on_gpu:
            return 0.5 if on_gpu[0].is_floating_point() else 1
        if func.overloadpacket in _COPIES:
            return self._copy(func, args, kwargs)
        self.operations += bool(on_gpu)
        if on_gpu and any(tensor.ndim and not tensor.is_meta for tensor in tensors):
            raise WrongDevice(f"{func} mixes devices: {[(str(t.device), tuple(t.shape)) for t in tensors]}")
        if any(tensor.dtype == torch.float64 for tensor in on_gpu):
            raise WrongDevice(f"{func} computes in float64, which MPS does not have")
        return func(*args, **kwargs)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:  # to the CPU: there are no data
            args = tree_map(lambda leaf: _random(leaf) if isinstance(leaf, Tensor) and leaf.is_meta else leaf, args)
            return func(*args, **kwargs)


def _random(tensor: Tensor) -> Tensor:
    return torch.rand(tensor.shape, device="cpu").to(tensor.dtype)


@pytest.fixture
def autocasts(monkeypatch) -> list[tuple[Any, ...]]:
    """Let `meta` be a device to train on; return the calls of autocast, which does not know it."""
    calls: list[tuple[Any, ...]] = []

    def autocast(*arguments: Any, enabled: bool) -> contextlib.AbstractContextManager[None]:
        calls.append((*arguments, enabled))
        return contextlib.nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)
    for module in (devices, setup):
        monkeypatch.setattr(module, "available_devices", lambda: {"cpu": True, "meta": True})
    optimizers = importlib.import_module("torch.optim.optimizer")  # not an attribute of torch.optim
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
    return calls


CASES = {
    "vit": ("vit", ()),
    "fused attention": ("vit", ("model.patch_size=1", "train.clip_norm=1")),
    "adamw, averaged": ("vit", ("train.optimizer=adamw", "train.ema_decay=0.9", "train.micro_batch=16")),
    "sgd, class weights": ("vit", ("train.optimizer=sgd", "train.class_weights=auto", "train.label_smoothing=0.1")),
    "augmented": ("vit", ("data.augment.rotate=5", "data.augment.erase=0.2", "data.augment.elastic=1")),
    "mean of tokens, relative": ("vit", ("model.pool=mean", "model.positions=relative")),
    "sincos, seq": ("vit", ("model.pool=seq", "model.positions=sincos-2d")),
    "blank patches skipped": ("vit", ("model.patch_size=2", "model.tokens=8", "model.window=4")),
    "hybrid": ("vit-hybrid", ("model.depth=1", "model.fit=pad")),
    "best, early stopping": ("vit", ("train.keep=best", "train.early_stopping=2", "train.validate_every=0.1")),
    "probe": ("vit", ("train.freeze=backbone",)),
    "cnn": ("cnn", ("model.conv_channels=[4, 4]",)),
    "article's ViT": ("post-vit", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_training_on_another_device(tmp_path, autocasts, case):
    """Steps, validation, checkpoints, calibration and the test set."""
    preset, settings = CASES[case]
    common = ("train.epochs=0.3", "train.log_every=2", "train.checkpoint_seconds=0", "train.batch_size=32")
    with OneDevice() as mode:
        run = fit(small(*common, *settings, name=preset), tmp_path / "run", device="meta", progress=False)
    assert run.is_done
    assert run.resolved.device == "meta"
    assert mode.operations > 1000
    assert set(autocasts) == {("meta", torch.bfloat16, False)}


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_resumed_on_another_device(tmp_path, autocasts, monkeypatch):
    config = small("train.epochs=0.5", "train.checkpoint_seconds=0", "train.optimizer=adamw", "train.ema_decay=0.9")

    finish = loop.Trainer._finish

    def fail(*_: Any) -> None:
        raise KeyError("stopped")

    with OneDevice():
        monkeypatch.setattr(loop.Trainer, "_finish", fail)
        with pytest.raises(KeyError):
            fit(config, tmp_path / "run", device="meta", progress=False)
        assert Run.open(tmp_path / "run").resume_point() is not None
        monkeypatch.setattr(loop.Trainer, "_finish", finish)
        assert fit(config, tmp_path / "run", resume=True, device="meta", progress=False).is_done


def test_teacher_on_another_device(tmp_path, autocasts):
    settings = ("train.epochs=0.2", "model.num_classes=10")
    fit(small("train.epochs=0.1", name="cnn"), tmp_path / "teacher", device="cpu", progress=False)
    with OneDevice():
        config = small(*settings, f'train.teacher="{tmp_path / "teacher"}"')
        assert fit(config, tmp_path / "run", device="meta", progress=False).is_done


def test_bfloat16_is_autocast_on_the_device_of_the_training(tmp_path, autocasts, monkeypatch):
    config = small("train.epochs=0.1", "train.precision=bfloat16")
    with OneDevice():
        fit(config, tmp_path / "run", device="meta", progress=False)
    assert ("meta", torch.bfloat16, True) in autocasts


def test_a_tensor_left_on_the_cpu_is_noticed(tmp_path, autocasts, monkeypatch):
    """The tests above can fail: labels, images, class weights or a module's own tensor on the CPU."""
    from vitreous.training.step import Stepper

    batch = Stepper.batch

    def labels_left_behind(self: Stepper, *arguments: Any) -> tuple[Tensor, Tensor]:
        pixels, _ = batch(self, *arguments)
        return pixels, self.dataset.train.labels[arguments[1]]

    monkeypatch.setattr(Stepper, "batch", labels_left_behind)
    with OneDevice(), pytest.raises(WrongDevice, match="nll_loss"):
        fit(small("train.epochs=0.1"), tmp_path / "labels", device="meta", progress=False)
    monkeypatch.setattr(Stepper, "batch", batch)

    attend = FastAttention._first_token
    shift = torch.ones(1)
    monkeypatch.setattr(FastAttention, "_first_token", lambda self, x: attend(self, x + shift))
    with OneDevice(), pytest.raises(WrongDevice, match="add"):
        fit(small("train.epochs=0.1"), tmp_path / "module", device="meta", progress=False)


# --- which device, and what it can do --------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are some."""

    def pretend(cuda: int = 0, mps: bool = False, capability: int = 8) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: capability >= 8)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


def test_auto_picks_the_fastest_device_that_the_processes_can_use(gpus):
    two = Group(rank=0, world_size=2, local_world_size=2)
    assert pick_device("auto", Group()) == "cpu"
    gpus(mps=True)
    assert pick_device("auto", Group()) == "mps"
    assert pick_device("auto", two) == "cpu", "gloo cannot add up gradients on MPS"
    with pytest.raises(ConfigError, match="mps trains in one process, not 2"):
        pick_device("mps", two)
    gpus(cuda=1)
    assert pick_device("auto", Group()) == "cuda"
    with pytest.raises(ConfigError, match="2 processes on a machine with 1 GPUs"):
        pick_device("auto", two)
    assert pick_device("cpu", two) == "cpu"
    assert pick_device("cuda", Group(rank=0, world_size=2, local_world_size=1)) == "cuda", "two machines"


def test_precision_is_checked_on_the_device_that_trains(gpus, monkeypatch):
    monkeypatch.setattr("vitreous.hardware.bfloat16_works", lambda: False)
    gpus(cuda=1)
    check_precision("bfloat16", "cuda")  # whatever the CPU can do
    gpus(cuda=1, capability=7)
    with pytest.raises(ConfigError, match="compute capability 8"):
        check_precision("bfloat16", "cuda")
    for precision in ("bfloat16", "float64"):
        with pytest.raises(ConfigError, match=f"'{precision}' does not run on mps"):
            check_precision(precision, "mps")
    with pytest.raises(ConfigError, match="does not run on this CPU"):
        check_precision("bfloat16", "cpu")


@pytest.mark.parametrize("faster", [True, False])
def test_auto_precision_is_decided_by_the_device(gpus, monkeypatch, faster):
    monkeypatch.setattr("vitreous.hardware.bfloat16_is_faster", lambda: faster)
    assert resolve_precision("auto", "cpu") == ("bfloat16" if faster else "float32")
    assert resolve_precision("auto", "mps") == "float32"
    gpus(cuda=1)
    assert resolve_precision("auto", "cuda") == "bfloat16"
    gpus(cuda=1, capability=7)
    assert resolve_precision("auto", "cuda") == "float32"
    assert resolve_precision("float64", "cpu") == "float64", "what the configuration says is not changed"


def test_cuda_is_made_repeatable_and_the_cpu_left_alone(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        make_repeatable(torch.device("cpu"))
        assert not torch.are_deterministic_algorithms_enabled()
        make_repeatable(torch.device("cuda"))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
