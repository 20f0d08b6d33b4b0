"""The patient: a model that may be tried out in every way and is given back as it came.

Checks work on a deep copy where the model allows one. In any case `borrowed` puts everything back afterwards (values,
modes, attributes, gradients), so a model that cannot be copied is examined itself and left as it was.
"""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.doctor import inputs as inp
from vitreous.doctor.findings import NotMeasured
from vitreous.doctor.observe import AttentionOp, Calm, Recorder, attention_ops, recording
from vitreous.errors import VitreousError

BATCH = 32  # images in a batch: enough company to notice, quick on two cores
VISIT_SECONDS = 55.0  # what may take its time (overfitting) stops here and is not measured
SLOW = 0.02  # seconds an image from which on most checks make do with fewer images, to stay under a minute


@contextmanager
def untouched_world(device: torch.device) -> Iterator[None]:
    """Leave the process as it was: random generators, grad mode, the attention fast path, threads, warnings.

    One thread meanwhile: many small passes wait for each other's threads more than they gain (`doctor post-vit` on two
    cores that others used too: 26 s with one thread, 56 to 100 s with two).
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    fastpath, threads = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    cuda = [device] if device.type == "cuda" else []
    try:
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=cuda),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            warnings.simplefilter("ignore")  # the patient's; they would come dozens of times
            torch.backends.mha.set_fastpath_enabled(False)
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(fastpath)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# --- finding tensors -----------------------------------------------------------------------------------------

_MACHINERY = frozenset(vars(nn.Module()))  # what every module has: `_parameters`, hooks, `training`


def hidden_in(value: Any, name: str) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Tensors and modules in an attribute: it may be one, or hold some in lists, tuples or dicts."""
    if isinstance(value, Tensor | nn.Module):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from hidden_in(item, f"{name}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from hidden_in(item, f"{name}[{key!r}]")


def unregistered(model: nn.Module) -> dict[str, Tensor]:
    """Tensors the model holds that are neither parameters nor buffers, modules kept in plain lists included."""
    registered = {id(t) for t in [*model.parameters(), *model.buffers()]}
    modules = {id(module) for module in model.modules()}
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MACHINERY:
                continue
            for name, item in hidden_in(value, f"{prefix}.{attribute}" if prefix else attribute):
                if isinstance(item, Tensor) and id(item) not in registered:
                    found[name] = item
                elif isinstance(item, nn.Module) and id(item) not in modules:
                    inner = [*item.named_parameters(prefix=name), *item.named_buffers(prefix=name)]
                    found |= {path: tensor for path, tensor in inner if id(tensor) not in registered}
    return found


class _Snapshot:
    def __init__(self, model: nn.Module) -> None:
        self.attributes = []
        for module in model.modules():
            inner = {key: dict(vars(module)[key]) for key in ("_parameters", "_buffers", "_modules")}
            self.attributes.append((module, dict(vars(module)), inner))
        tensors = [*model.parameters(), *model.buffers(), *unregistered(model).values()]
        tensors = [tensor for tensor in tensors if tensor.is_leaf and not tensor.is_inference()]
        self.tensors = [(tensor, tensor.detach().clone(), tensor.requires_grad, tensor.grad) for tensor in tensors]

    def restore(self) -> None:
        for module, attributes, inner in self.attributes:
            vars(module).clear()
            vars(module).update(attributes)
            for key, members in inner.items():
                vars(module)[key].clear()
                vars(module)[key].update(members)
        for tensor, value, requires_grad, grad in self.tensors:
            tensor.requires_grad_(requires_grad)
            tensor.data.copy_(value)
            tensor.grad = grad


@torch.no_grad()
def stir(model: nn.Module, seed: int) -> None:
    """Give every parameter a random value of a sensible size.

    Fresh models hide faults: a zero head answers everything alike, layer scales of 1e-5 switch whole blocks off.
    Matrices keep the variance of what passes through (1 / fan-in), vectors move about their value by 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        if parameter.ndim <= 1:
            parameter.add_(0.2 * noise)
        elif parameter.ndim == 3:  # tokens and positions (1, N, D); or one matrix (in, out) a head
            parameter.copy_(noise * (0.5 if parameter.shape[0] == 1 else parameter.shape[1] ** -0.5))
        else:
            parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5)


class Patient:
    """A model, inputs and labels for it, and what has been observed so far."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor | None,
        labels: Tensor | None,
        *,
        input_shape: inp.Shape | None,
        num_classes: int | None,
        fresh: bool | None,
        test_images: Tensor | None,
        factory: Callable[[], nn.Module] | None,
        seed: int,
    ) -> None:
        self.deadline = time.monotonic() + VISIT_SECONDS
        self.seed = seed
        self.factory = factory
        self.given_images, self.given_labels, self.test_images = images, labels, test_images
        try:
            self.model = copy.deepcopy(model)
            self.is_copy = True
        except Exception:  # some models hold what cannot be copied; `borrowed` restores the original
            self.model, self.is_copy = model, False
        self.model_class = type(model)
        self.device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self.images = self._inputs(input_shape)  # what the model is tried on: normalised, channels first
        self.shape: inp.Shape = tuple(self.images.shape[1:])
        with self.borrowed() as borrowed:
            start = time.thread_time()  # not the clock on the wall: what else runs must not change what is measured
            outputs = self.answers(borrowed, self.images[:2])
            self.slow = (time.thread_time() - start) / 2 > SLOW
        self.batch = self.images[: 8 if self.slow else BATCH]
        self.watched = 2 if self.slow else 3  # images whose every operation is kept
        with self.borrowed(stirred=True) as borrowed:
            self.output_kind: inp.OutputKind = inp.kind_of(self.answers(borrowed, self.batch))
        self.num_classes = num_classes or max(outputs.shape[1], 2)
        self.fresh = looks_fresh(self.model) if fresh is None else fresh

    # --- inputs

    def generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 * offset)

    def made_up(self, count: int, offset: int) -> Tensor:
        return inp.made_up(count, self.shape, self.generator(offset)).to(self.device)

    def _inputs(self, input_shape: inp.Shape | None) -> Tensor:
        if self.given_images is not None:
            images = self.given_images[:64]
            if channels_last(tuple(images.shape)):
                images = images.permute(0, 3, 1, 2)
            if not images.is_floating_point() or images.abs().max() > 16 or not torch.isfinite(images).all():
                images = inp.standardised(torch.nan_to_num(images.float(), 0, 0, 0))
            images = images.to(self.device, torch.float32).contiguous()
            self._try(images[:2], "the images given")
            return images
        if input_shape is not None:
            images = inp.made_up(64, input_shape, self.generator()).to(self.device)
            self._try(images[:2], f"an input of shape {(2, *input_shape)}")
            return images
        for shape in inp.candidate_shapes(self.model):
            images = inp.made_up(64, shape, self.generator()).to(self.device)
            try:
                self._try(images[:2], "")
            except VitreousError:
                continue
            return images
        raise VitreousError(
            "the model took none of the usual input shapes; say which it takes: --input-shape 1,28,28 (or images=...)"
        )

    def _try(self, images: Tensor, what: str) -> None:
        try:
            with self.borrowed() as model:
                self.answers(model, images)
        except NotMeasured as error:
            raise VitreousError(f"{error}; the doctor examines classifiers") from None
        except Exception as error:
            raise VitreousError(
                f"the model does not take {what}, {tuple(images.shape)}: {type(error).__name__}: {error};"
                " say which shape it takes: --input-shape 1,28,28 (or images=...)"
            ) from None

    @cached_property
    def labels(self) -> Tensor:
        """The labels given, one for each of `images`; random ones where none are given or they do not fit."""
        given, count = self.given_labels, len(self.images)
        if given is not None and given.ndim == 1 and not given.is_floating_point() and len(given) >= count:
            given = given[:count].long().to(self.device)
            if int(given.min()) >= 0 and int(given.max()) < self.num_classes:
                return given
        # ten classes at most: learning 64 images by heart should not wait for a thousand classes to be ruled out
        return torch.randint(min(self.num_classes, 10), (count,), generator=self.generator(7)).to(self.device)

    # --- running it

    @contextmanager
    def borrowed(self, *, stirred: bool = False, training: bool = False) -> Iterator[nn.Module]:
        """The model, in eval mode unless `training`, with random parameters if `stirred`; put back afterwards."""
        snapshot = _Snapshot(self.model)
        try:
            self.model.train(training)
            if stirred:
                stir(self.model, self.seed)
            yield self.model
        finally:
            snapshot.restore()

    def answers(
        self, model: nn.Module, images: Tensor, *, dice: AbstractContextManager | None = None, grad: bool = False
    ) -> Tensor:
        """The model's raw outputs, (B, classes); random draws give their expectation unless other `dice` are given."""
        with torch.set_grad_enabled(grad), dice if dice is not None else Calm():
            return inp.answer_in(model(images))

    def log_probabilities(self, model: nn.Module, images: Tensor) -> Tensor:
        return inp.log_probabilities(self.answers(model, images), self.output_kind)

    def require_repeatable(self) -> None:
        """Comparisons need a model that, with its dice taken away, gives the same answer twice."""
        if not self.repeatable:
            raise NotMeasured("the model answers the same images differently each time, so answers cannot be compared")

    @cached_property
    def repeatable(self) -> bool:
        with self.borrowed() as model:
            first, second = (self.log_probabilities(model, self.batch) for _ in range(2))
        if not bool(torch.isfinite(first).all()):
            raise NotMeasured("the model's answers are not finite numbers")
        return float(inp.moved_probability(first, second).max()) < 1e-6

    # --- watching it

    def watch(self, images: Tensor, *, stirred: bool = False) -> Recorder:
        with self.borrowed(stirred=stirred) as model, recording(model, images, unregistered(model)) as recorder:
            model(images)
        return recorder

    @cached_property
    def recording(self) -> Recorder:
        """A few images through the model as it is."""
        return self.watch(self.images[: self.watched])

    @cached_property
    def attention(self) -> list[AttentionOp]:
        """Every attention of one forward pass; raises `NotMeasured` where there is none."""
        found = attention_ops(self.recording)
        if not found:
            raise NotMeasured("no attention was observed (a softmax whose result is multiplied with other activations)")
        return found


def channels_last(shape: tuple[int, ...]) -> bool:
    """(B, H, W, C), as image files and NumPy have it."""
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] > 4 and shape[2] > 4


_NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.RMSNorm)


def looks_fresh(model: nn.Module) -> bool | None:
    """Norm layers start at exactly weight 1 and bias 0, and one training step moves them. None: there are none."""
    norms = [module for module in model.modules() if isinstance(module, _NORMS) and module.weight is not None]
    if not norms:
        return None
    biases = [bias for bias in (getattr(norm, "bias", None) for norm in norms) if bias is not None]
    return all(bool((norm.weight == 1).all()) for norm in norms) and all(bool((bias == 0).all()) for bias in biases)
