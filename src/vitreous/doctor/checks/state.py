"""Is everything the model needs saved and restored?"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.doctor.checks.batch import SAME_PREDICTION
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.model_io import max_moved
from vitreous.doctor.model_state import lost_on_another_device, randomise_parameters, unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import Reseeded, seed_everything
from vitreous.doctor.tracebacks import own_line
from vitreous.reports.formats import percent, plural

Factory = Callable[[], nn.Module]


def unregistered(tested: ModelUnderTest) -> Iterator[Finding]:
    """Tensors that are neither parameters nor buffers, and their effect on the output."""
    lost = lost_on_another_device(*tested.constructor) if tested.constructor else []
    if lost:
        yield finding(
            "unregistered-tensors",
            f"on the CPU {quoted(lost)} {'is a parameter' if len(lost) == 1 else 'are parameters'}, on any other device"
            f" not: .to(device) of a parameter is a plain tensor ({plural(len(lost), 'parameter')} lost).",
        )
        return
    untrained = [name for name, buffer in tested.model.named_buffers() if isinstance(buffer, nn.Parameter)]
    if untrained:
        yield finding(
            "unregistered-tensors",
            f"{plural(len(untrained), 'parameter')} registered as a buffer: {quoted(untrained)};"
            " model.parameters() does not contain it, so no optimizer trains it.",
        )
    if made := list(tested.recording.made.values()):
        shape, module = made[0]
        yield finding(
            "unregistered-tensors",
            f"forward creates {plural(len(made), 'parameter')}, first one of shape {shape} in `{module or 'forward'}`:"
            " a layer made there is new in every call, so that it is neither trained nor saved.",
            module=module,
        )
    found = unregistered_tensors(tested.model)
    if not found:
        return
    moved = _moved_by_other_values(tested, found)
    size = sum(tensor.numel() for tensor in found.values())
    is_fixed = moved > SAME_PREDICTION and all(_is_fixed(tested, name, tensor) for name, tensor in found.items())
    yield finding(
        "unregistered-tensors",
        f"{plural(len(found), 'tensor')} registered neither as parameter nor as buffer: {quoted(found)}"
        f" ({plural(size, 'value')}); other values there move {percent(moved)} of the probability"
        + (", but the values are fixed: the constructor computes the same ones each time." if is_fixed else "."),
        level="warning" if moved > SAME_PREDICTION and not is_fixed else "note",
    )


def device_fixed(tested: ModelUnderTest) -> Iterator[Finding]:
    """Move the model and its input to the device without memory: what forward creates must follow them."""
    if tested.model is tested.original or unregistered_tensors(tested.model):
        raise NotMeasured("the model cannot be copied, or has tensors that do not move with it, which includes this")
    if _names_a_device(tested):
        raise NotMeasured("the device is given to the model, or set by a variable in its file")
    try:
        model = copy.deepcopy(tested.model).to("meta").eval()
        images = tested.images[: tested.num_recorded].to("meta")
    except Exception as error:
        raise NotMeasured(f"the model cannot be moved: {type(error).__name__}") from error
    try:
        with torch.no_grad(), _TwoDevices():  # type: ignore[no-untyped-call]
            model(images)
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        if not any(sign in message for sign in _OTHER_DEVICE):  # values cannot be read there
            raise NotMeasured("forward depends on values, which the device without memory does not have") from error
        yield finding(
            "device-fixed",
            f"moved to another device with {plural(len(images), 'image')}, the model fails in"
            f" {own_line(error) or 'forward'} ({type(error).__name__}): forward creates a tensor on the CPU.",
        )


_OTHER_DEVICE = ("same device", "expected device meta")
_COPIES = frozenset([torch.ops.aten._to_copy, torch.ops.aten.copy_])
_INDEXED = frozenset([torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_])


class _TwoDevices(TorchDispatchMode):
    """Treat the device without memory as a GPU: copies to the CPU succeed, and no operation mixes the two."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func.overloadpacket in _COPIES:
            target = torch.device(kwargs.get("device") or tensors[0].device)
            if target.type == "cpu" and any(tensor.is_meta for tensor in tensors):
                if len(tensors) > 1:  # into memory on the CPU
                    return tensors[0]
                return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        # a GPU takes places from the CPU, and numbers
        elif func.overloadpacket not in _INDEXED and len({one.device.type for one in tensors if one.ndim}) > 1:
            raise RuntimeError(f"{func.overloadpacket}: tensors are not on the same device")
        return func(*args, **kwargs)


def _names_a_device(tested: ModelUnderTest) -> bool:
    """Whether an argument, an attribute or a variable of the file decides on the device."""
    if tested.constructor and any("device" in name for name in inspect.signature(tested.constructor[0]).parameters):
        return True
    values: dict[str, object] = {}
    for module in tested.model.modules():
        values |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
        if not type(module).__module__.startswith("torch."):
            values |= vars(type(module)) | getattr(type(module).forward, "__globals__", {})
    return any(
        isinstance(value, torch.device) or (isinstance(value, str) and "dev" in key.lower())
        for key, value in values.items()
    )


def frozen_at_random(tested: ModelUnderTest) -> Iterator[Finding]:
    """Parameters of a fresh model that no optimizer trains, although every new instance draws other values for them.

    What is frozen on purpose was trained, loaded by the constructor or computed: the same in every instance.
    """
    if not tested.fresh:
        return
    parameters = dict(tested.original.named_parameters())
    # single vectors are tokens, which class-token-untrained examines
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad and p.squeeze().ndim > 1}
    if not frozen:
        return
    if tested.factory is None:
        raise NotMeasured("without a constructor it is unclear which frozen parameters are random: give a factory")
    seed_everything(tested.seed + 4243)
    others = dict(tested.factory().named_parameters())
    random = {
        name: p
        for name, p in frozen.items()
        if name in others and others[name].shape == p.shape and not torch.equal(others[name].cpu(), p.cpu())
    }
    if random:
        share = sum(p.numel() for p in random.values()) / sum(p.numel() for p in parameters.values())
        yield finding(
            "parameters-frozen",
            f"{plural(len(random), 'parameter')} ({percent(share)} of all values) with requires_grad=False and random"
            f" values, other ones in every instance: {quoted(random)}.",
        )


def lost_on_reload(tested: ModelUnderTest) -> Iterator[Finding]:
    """Save, build anew with other random numbers, load: the outputs must be the same."""
    tested.require_repeatable()
    factory = tested.factory or _config_factory(tested)
    unsaved = _unsaved(tested.model)
    if factory is not None or not unsaved:
        moved, lost, how = _moved_by_reload(tested, factory)
    else:
        # without a constructor it is unclear which values are rebuilt; only random ones certainly are not
        lost = [name for name, tensor in unsaved.items() if _looks_random(tensor)]
        if not lost:
            raise NotMeasured("without a constructor it is unclear which unsaved tensors are rebuilt: give a factory")
        moved = _moved_by_other_values(tested, lost)
        how = f"other random values in {plural(len(lost), 'unsaved tensor')} change the outputs"
    if moved > SAME_PREDICTION:
        yield finding(
            "state-lost-on-reload",
            f"the state dict does not contain the whole model: {how}; up to {percent(moved)} of the probability moves"
            + (f" (not saved: {quoted(lost)})." if lost else "."),
        )


# --- state ---------------------------------------------------------------------------------------------------


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    saved = model.state_dict()
    return unregistered_tensors(model) | {name: b for name, b in model.named_buffers() if name not in saved}


def _moved_by(tested: ModelUnderTest, change: Callable[[nn.Module], nn.Module]) -> float:
    """Return the probability that a change moves, with the model's own or with random parameters, whichever is more.

    A fresh head may hide a change that matters after training.
    """
    moved = []
    for randomised in (False, True):
        with tested.borrowed(randomised=randomised) as model:
            before = tested.log_probabilities(model, tested.batch)
        with tested.borrowed(randomised=randomised) as model:  # anew: forward may have filled a cache
            moved.append(max_moved(before, tested.log_probabilities(change(model), tested.batch)))
    return max(moved)


def _moved_by_other_values(tested: ModelUnderTest, names: Iterable[str]) -> float:
    """Return the probability moved when the named unsaved tensors hold other values of the same distribution."""
    tested.require_repeatable()
    generator = tested.generator(8)

    def replace_values(model: nn.Module) -> nn.Module:
        tensors = _unsaved(model)
        for name in names:
            tensor = tensors[name]
            order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
            other = tensor.detach().flatten()[order].view(tensor.shape)
            tensor.data.copy_(-other if tensor.is_floating_point() else other)
        return model

    return _moved_by(tested, replace_values)


def _config_factory(tested: ModelUnderTest) -> Factory | None:
    """Return the model's class called with its `config`, which is how ours and Hugging Face's models are built."""
    config = getattr(tested.model, "config", None)
    if config is None or isinstance(config, dict):
        return None

    def build() -> nn.Module:
        return type(tested.model)(copy.deepcopy(config))

    try:
        build()
    except Exception:
        return None
    return build


class _CannotLoad(Exception):
    pass


def _moved_by_reload(tested: ModelUnderTest, factory: Factory | None) -> tuple[float, list[str], str]:
    """Return the probability moved by saving and loading, the tensors that changed, and a description."""
    lost: list[str] = []

    def reload(model: nn.Module) -> nn.Module:
        saved = copy.deepcopy(model.state_dict())
        if factory is None:
            other = model
            randomise_parameters(model, tested.seed + 1)
        else:
            seed_everything(tested.seed + 4242)
            with Reseeded(tested.seed):
                other = factory()
            other = tested.adapted(other).to(tested.device).eval()
        try:
            other.load_state_dict(saved)
        except RuntimeError as error:
            raise _CannotLoad(str(error).splitlines()[-1].strip()) from None
        ours, theirs = _unsaved(model), _unsaved(other)
        lost[:] = [name for name in ours if name not in theirs or not torch.equal(ours[name], theirs[name])]
        return other

    try:
        moved = _moved_by(tested, reload)
    except _CannotLoad as error:
        return 1.0, [], f"a second instance does not load the state dict of the first ({error})"
    other_model = "copy with other parameters" if factory is None else "second instance with other random numbers"
    return moved, lost, f"a {other_model} gives different outputs after loading it"


def _is_fixed(tested: ModelUnderTest, name: str, tensor: Tensor) -> bool:
    """Whether the constructor computes the same values with other random numbers (a table of sines, indices)."""
    if tensor.requires_grad or isinstance(tensor, nn.Parameter):
        return False
    if tested.factory is None:
        return not _looks_random(tensor) and tensor.numel() >= 16 and float(tensor.float().std()) > 0
    seed_everything(tested.seed + 4242)
    with Reseeded(tested.seed):
        other = unregistered_tensors(tested.factory()).get(name)
    return other is not None and other.shape == tensor.shape and torch.equal(other.to(tensor.device), tensor)


def _looks_random(tensor: Tensor) -> bool:
    """Whether the values look drawn from a normal or uniform distribution, unlike a table of sines or indices.

    Kolmogorov–Smirnov test at 1 % against both, and no correlation between neighbours (4 standard errors).
    """
    if not tensor.is_floating_point() or tensor.numel() < 16:
        return False
    values = tensor.detach().flatten().double().cpu()[:4096]
    if float(values.std()) == 0:
        return False
    values = (values - values.mean()) / values.std()
    if abs(float((values[1:] * values[:-1]).mean())) > 4 / len(values) ** 0.5:
        return False
    normal = stats.kstest(values.numpy(), "norm").pvalue
    uniform = stats.kstest(values.numpy(), "uniform", args=(-(3**0.5), 2 * 3**0.5)).pvalue
    return bool(max(normal, uniform) > 0.01)
