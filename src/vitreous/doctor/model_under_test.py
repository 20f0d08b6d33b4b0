"""The model under test: it can be run, modified and recorded in any way, and is restored afterwards.

Checks work on a deep copy where the model allows one. In any case `borrowed` restores everything (values, modes,
attributes, gradients), so a model that cannot be copied is examined itself and left unchanged.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor import model_io
from vitreous.doctor.attention_ops import AttentionOp, attention_ops
from vitreous.doctor.findings import NotMeasured
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_io import Shape
from vitreous.doctor.randomness import Deterministic
from vitreous.doctor.recording import Recorder, record_forward
from vitreous.errors import VitreousError

BATCH_SIZE = 32  # large enough to show dependence on the batch, quick on two cores
CPU_SECONDS = 30.0  # of CPU time: slow checks (overfitting) stop here and are not measured
SLOW_SECONDS_PER_IMAGE = 0.02  # from here on most checks use fewer images
BATCH_SIZES = (2, 1, 4, 8, 16, 32, 64, 100, 128)  # tried in this order until the model runs

# --- tensors of a model --------------------------------------------------------------------------------------

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # what every module has: `_parameters`, hooks, `training`


def unregistered_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are neither parameters nor buffers, including those of modules kept in plain lists."""
    registered = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    modules = {id(module) for module in model.modules()}
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MODULE_ATTRIBUTES:
                continue
            for name, item in _tensors_and_modules(value, f"{prefix}.{attribute}" if prefix else attribute):
                if isinstance(item, Tensor) and id(item) not in registered:
                    found[name] = item
                elif isinstance(item, nn.Module) and id(item) not in modules:
                    inner = [*item.named_parameters(prefix=name), *item.named_buffers(prefix=name)]
                    found |= {path: tensor for path, tensor in inner if id(tensor) not in registered}
    return found


def _tensors_and_modules(value: Any, name: str) -> Iterator[tuple[str, Tensor | nn.Module]]:
    if isinstance(value, Tensor | nn.Module):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors_and_modules(item, f"{name}[{key!r}]")


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore attributes, values, requires_grad and gradients afterwards."""
    attributes = []
    for module in model.modules():
        members = {key: dict(vars(module)[key]) for key in ("_parameters", "_buffers", "_modules")}
        attributes.append((module, dict(vars(module)), members))
    # caches: some models keep tensors in a dict or a list
    plain = [
        value for module in model.modules() for key, value in vars(module).items() if key not in _MODULE_ATTRIBUTES
    ]
    containers = [(value, copy.copy(value)) for value in plain if type(value) in (dict, list)]
    candidates = [*model.parameters(), *model.buffers(), *unregistered_tensors(model).values()]
    leaves = [tensor for tensor in candidates if tensor.is_leaf and not tensor.is_inference()]
    values = [(tensor, tensor.detach().clone(), tensor.requires_grad, tensor.grad) for tensor in leaves]
    try:
        yield
    finally:
        for module, own, members in attributes:
            vars(module).clear()
            vars(module).update(own)
            for key, member in members.items():
                vars(module)[key].clear()
                vars(module)[key].update(member)
        for container, content in containers:
            container.clear()
            container.update(content) if isinstance(container, dict) else container.extend(content)
        for tensor, value, requires_grad, grad in values:
            tensor.requires_grad_(requires_grad)
            tensor.data.copy_(value)
            tensor.grad = grad


@torch.no_grad()
def randomise_parameters(model: nn.Module, seed: int) -> None:
    """Give every parameter that training can change a random value of a sensible size.

    Fresh models hide faults: a zero head gives every image the same logits, layer scales of 1e-5 disable whole blocks.
    Matrices preserve the variance of their input (1 / fan-in), vectors change by 0.2 around their value. Frozen
    parameters keep their values (a position table frozen at zero stays zero), unless all are frozen.
    """
    generator = torch.Generator().manual_seed(seed)
    trainable = any(parameter.requires_grad for parameter in model.parameters())
    for parameter in model.parameters():
        if not parameter.is_floating_point() or (trainable and not parameter.requires_grad):
            continue
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        if parameter.ndim <= 1:
            parameter.add_(0.2 * noise)
        elif parameter.ndim == 3:  # tokens and positions (1, N, D); or one matrix (in, out) per head
            parameter.copy_(noise * (0.5 if parameter.shape[0] == 1 else parameter.shape[1] ** -0.5))
        else:
            parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5)


_NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.RMSNorm)


def looks_fresh(model: nn.Module) -> bool | None:
    """Whether all norm layers are at weight 1 and bias 0, which one training step changes; None without norm layers."""
    norms = [module for module in model.modules() if isinstance(module, _NORMS) and module.weight is not None]
    biases = [bias for norm in norms if (bias := getattr(norm, "bias", None)) is not None]
    initial = all(bool((norm.weight == 1).all()) for norm in norms) and not any(bool(bias.any()) for bias in biases)
    return initial if norms else None


Constructor = tuple[Callable[..., nn.Module], dict[str, Any]]

# --- the model -----------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ModelUnderTest:
    """A model, its inputs and labels, and the results that several checks share."""

    original: nn.Module
    given_images: Tensor | None
    given_labels: Tensor | None
    test_images: Tensor | None
    input_shape: Shape | None
    num_classes: int  # 0: as many as the model has outputs
    fresh: bool | None
    factory: Callable[[], nn.Module] | None
    constructor: Constructor | None  # to build it with other arguments
    seed: int

    def __post_init__(self) -> None:
        # CPU time, not wall time: other processes must not decide what is measured
        self.deadline = time.thread_time() + CPU_SECONDS
        self.refusals: dict[int, str] = {}  # batch size → the error it raises
        try:
            self.model = copy.deepcopy(self.original)
        except Exception:  # some models hold objects that cannot be copied; `borrowed` restores the original
            self.model = self.original
        self.device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.images = self._find_inputs()  # normalised, channels first
        self.shape: Shape = tuple(self.images.shape[1:])
        few = self.images if self.fixed_batch_size else self.images[:2]
        with self.borrowed() as model:
            start = time.thread_time()
            outputs = self.outputs(model, few)
            slow = (time.thread_time() - start) / len(few) > SLOW_SECONDS_PER_IMAGE
        self.is_slow = slow
        self.batch = self.images if self.fixed_batch_size else self.images[: 8 if slow else BATCH_SIZE]
        #: images in a recording, which keeps every tensor
        self.num_recorded = self.fixed_batch_size or (2 if slow else 3)
        with self.borrowed(randomised=True) as model:
            self.output_kind = model_io.kind_of(self.outputs(model, self.batch))
        self.num_classes = self.num_classes or max(outputs.shape[1], 2)
        self.fresh = looks_fresh(self.model) if self.fresh is None else self.fresh

    # --- inputs

    def generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 * offset)

    def synthetic_inputs(self, count: int, offset: int) -> Tensor:
        return model_io.synthetic_inputs(count, self.shape, self.generator(offset)).to(self.device)

    def _find_inputs(self) -> Tensor:
        if self.given_images is not None:
            images = self.given_images[:64]
            if model_io.is_channels_last(tuple(images.shape)):
                images = images.permute(0, 3, 1, 2)
            if not images.is_floating_point() or images.abs().max() > 16 or not torch.isfinite(images).all():
                images = model_io.standardised(torch.nan_to_num(images.float(), 0, 0, 0))
            return self._accepted(images.to(self.device, torch.float32).contiguous())
        shapes = model_io.candidate_shapes(self.model) if self.input_shape is None else [self.input_shape]
        for shape in shapes:
            images = model_io.synthetic_inputs(64, shape, self.generator()).to(self.device)
            try:
                return self._accepted(images)
            except VitreousError:
                if self.input_shape is not None:
                    raise
        raise VitreousError(
            "The model accepts none of the common input shapes; give its shape: --input-shape 1,28,28 (or images=...)"
        )

    def _accepted(self, images: Tensor) -> Tensor:
        """Return the images, or as many of them as the model takes at once if it takes only one batch size."""
        self.fixed_batch_size, self.refusals = 0, {}
        hints = {len(tensor) for tensor in [*self.model.parameters(), *unregistered_tensors(self.model).values()]
                 if tensor.ndim == 3 and 1 < len(tensor) <= 256}  # fmt: skip
        for size in dict.fromkeys((2, 1, *sorted(hints), *BATCH_SIZES)):
            some = images.repeat(-(-size // len(images)), *[1] * (images.ndim - 1))[:size]
            try:
                with self.borrowed() as model:
                    self.outputs(model, some)
            except NotMeasured as error:
                raise VitreousError(f"{error}; the doctor examines classifiers") from None
            except Exception as error:
                self.refusals[size] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if size == 2:
                return images
            self.fixed_batch_size = size
            return some
        raise VitreousError(
            f"The model does not accept inputs of shape {(2, *images.shape[1:])}: {self.refusals[2]};"
            " give its shape: --input-shape 1,28,28 (or images=...)"
        )

    @cached_property
    def labels(self) -> Tensor:
        """The given labels, one per image of `images`; random ones where none are given or they are invalid."""
        given, count = self.given_labels, len(self.images)
        if given is not None and given.ndim == 1 and not given.is_floating_point() and len(given) >= count:
            given = given[:count].long().to(self.device)
            if int(given.min()) >= 0 and int(given.max()) < self.num_classes:
                return given
        # at most ten classes: memorising 64 images should not have to rule out a thousand classes first
        return torch.randint(min(self.num_classes, 10), (count,), generator=self.generator(7)).to(self.device)

    # --- running it

    @contextmanager
    def borrowed(self, *, randomised: bool = False, training: bool = False) -> Iterator[nn.Module]:
        """Lend the model, in eval mode unless `training`, with random parameters if `randomised`; restore it after."""
        with _restored(self.model):
            self.model.train(training)
            if randomised:
                randomise_parameters(self.model, self.seed)
            yield self.model

    def outputs(
        self, model: nn.Module, images: Tensor, *, mode: AbstractContextManager | None = None, grad: bool = False
    ) -> Tensor:
        """Return the model's raw outputs, (B, classes); random draws give their expectation unless `mode` is given."""
        with torch.set_grad_enabled(grad), mode if mode is not None else Deterministic():
            return model_io.logits_in(model(images))

    def log_probabilities(
        self, model: nn.Module, images: Tensor, *, mode: AbstractContextManager | None = None, grad: bool = False
    ) -> Tensor:
        return model_io.log_probabilities(self.outputs(model, images, mode=mode, grad=grad), self.output_kind)

    def gradients(self, outputs: Tensor, inputs: Sequence[Tensor], offset: int) -> tuple[Tensor | None, ...]:
        """Return the gradients of a random weighted sum of `outputs`, None where there is no dependence."""
        weights = torch.randn(outputs.shape, generator=self.generator(offset)).to(outputs.device)
        return torch.autograd.grad((outputs * weights).sum(), inputs, allow_unused=True)

    def require_repeatable(self) -> None:
        """Raise unless the model, with deterministic draws, gives the same outputs twice."""
        if not self._repeatable:
            raise NotMeasured("the model's outputs for the same images vary, so they cannot be compared")

    @cached_property
    def _repeatable(self) -> bool:
        with self.borrowed() as model:
            first, second = (self.log_probabilities(model, self.batch) for _ in range(2))
        if not bool(torch.isfinite(first).all()):
            raise NotMeasured("the model's outputs are not finite")
        return model_io.max_moved(first, second) < 1e-6

    @cached_property
    def change_by_other_images(self) -> tuple[float, float]:
        """The largest change of an output when all images are replaced, and the largest output; random parameters."""
        self.require_repeatable()
        with self.borrowed(randomised=True) as model:
            outputs = self.outputs(model, self.batch)
            others = self.outputs(model, self.synthetic_inputs(len(self.batch), offset=11))
        return float((others - outputs).abs().max()), float(outputs.abs().max())

    @property
    def ignores_image(self) -> bool:
        changed, size = self.change_by_other_images
        return changed <= 1e-6 * size  # float noise of a batched product is 1e-7 of the values

    # --- recording it

    def record(self, images: Tensor, *, randomised: bool = False) -> Recorder:
        with self.borrowed(randomised=randomised) as model:
            return record_forward(model, images, unregistered_tensors(model))

    @cached_property
    def recording(self) -> Recorder:
        """A few images through the model as it is."""
        return self.record(self.images[: self.num_recorded])

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.recording)

    @property
    def is_late(self) -> bool:
        return time.thread_time() >= self.deadline

    @property
    def is_far_too_late(self) -> bool:
        """Whether even quick checks have to be left out; large models need more than `CPU_SECONDS` for those."""
        return time.thread_time() >= self.deadline + 3 * CPU_SECONDS

    @cached_property
    def attention(self) -> list[AttentionOp]:
        """Every attention of one forward pass; raises `NotMeasured` where there is none."""
        found = attention_ops(self.recording)
        if not found:
            raise NotMeasured("no attention was observed (a softmax whose result is multiplied with other activations)")
        return found
