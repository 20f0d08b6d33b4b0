"""The model under test: it can be run, modified and recorded in any way, and is restored afterwards.

Checks work on a deep copy where the model allows one. In any case `borrowed` restores everything (values, modes,
attributes, gradients), so a model that cannot be copied is examined itself and left unchanged.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.doctor import model_io
from vitreous.doctor.attention_ops import AttentionOp, SummedWeights, attention_ops, summed_weights
from vitreous.doctor.findings import MissingModule, NotMeasured
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_io import Shape
from vitreous.doctor.model_state import looks_fresh, randomise_parameters, restored, unregistered_tensors
from vitreous.doctor.randomness import Deterministic, seed_everything
from vitreous.doctor.recording import Recorder, record_forward
from vitreous.errors import VitreousError

BATCH_SIZE = 32  # large enough to show dependence on the batch, quick on two cores
CPU_SECONDS = 30.0  # of CPU time: slow checks (overfitting) stop here and are not measured
MOST_CPU_SECONDS = 1.5 * CPU_SECONDS  # all that runs the model again stops here, in the middle of a check
SLOW_SECONDS_PER_IMAGE = 0.02  # from here on most checks use fewer images
VERY_SLOW_SECONDS_PER_IMAGE = 0.5
NO_TIME = "the model is large: the CPU time of a diagnosis is used up"
BATCH_SIZES = (2, 1, 4, 8, 16, 32, 64, 100, 128)  # tried in this order until the model runs

Constructor = tuple[Callable[..., nn.Module], dict[str, Any]]


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
        self.start = time.thread_time()
        self.deadline = self.start + CPU_SECONDS
        self.is_limited = False  # set for checks that need more than the recording
        self.refusals: dict[int, str] = {}  # batch size → the error it raises
        self.is_unbatched = False
        #: (B, H, W, C) is what the model takes; it is given (B, C, H, W), which a hook permutes
        self.is_channels_last = self.given_images is None and model_io.is_channels_last((1, *(self.input_shape or ())))
        try:
            self.model = copy.deepcopy(self.original)
        except Exception:  # some models hold objects that cannot be copied; `borrowed` restores the original
            self.model = self.original
        if self.is_channels_last and self.input_shape is not None and self.model is not self.original:
            self.input_shape = (self.input_shape[2], *self.input_shape[:2])
            self.adapted(self.model)
        self.device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.images = self._find_inputs()  # normalised, channels first
        self.shape: Shape = tuple(self.images.shape[1:])
        few = self.images if self.fixed_batch_size else self.images[:2]
        if self._copy_uses_original(few):
            self.model = self.original
        self._collect_statistics()
        with self.borrowed() as model:
            start = time.thread_time()
            outputs = self.outputs(model, few)
            seconds = (time.thread_time() - start) / len(few)
        self.is_slow = slow = seconds > SLOW_SECONDS_PER_IMAGE
        few_images = 3 if seconds > VERY_SLOW_SECONDS_PER_IMAGE else 8 if slow else BATCH_SIZE
        self.batch = self.images if self.fixed_batch_size else self.images[:few_images]
        #: images in a recording, which keeps every tensor
        self.num_recorded = self.fixed_batch_size or (2 if slow else 3)
        with self.borrowed(randomised=True) as model:
            self.output_kind = model_io.kind_of(self.outputs(model, self.batch))
        self.num_classes = self.num_classes or max(outputs.shape[1], 2)
        self.fresh = self._looks_fresh() if self.fresh is None else self.fresh

    def adapted(self, model: nn.Module) -> nn.Module:
        """Let a new instance take the same inputs as the model under test."""
        if self.is_channels_last:
            model.register_forward_pre_hook(lambda _, inputs: (inputs[0].permute(0, 2, 3, 1), *inputs[1:]))
        if self.is_unbatched:
            model.register_forward_pre_hook(lambda _, inputs: (inputs[0][0], *inputs[1:]))
        return model

    def _copy_uses_original(self, images: Tensor) -> bool:
        """Whether the copy computes with the original's parameters, as a function made in the constructor does."""
        parameters = [parameter for parameter in self.original.parameters() if parameter.requires_grad]
        if self.model is self.original or self.is_unbatched or not parameters:
            return False
        with self.borrowed() as model:
            outputs = self.outputs(model, images, grad=True)
        if not outputs.requires_grad:
            return False
        gradients = torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
        return any(gradient is not None for gradient in gradients)

    @torch.no_grad()
    def _collect_statistics(self) -> None:
        """Let batch norms that have seen no batch measure one: until then they normalise nothing in eval mode."""
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        new = [norm for norm in norms if norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 0]
        if not new or self.model is self.original:
            return
        modes = {module: module.training for module in self.model.modules()}
        momenta = {norm: norm.momentum for norm in new}
        for norm in new:
            norm.train()
            norm.momentum = 1.0
        try:
            with Deterministic():
                self.model(self.images[:BATCH_SIZE].clone())
        except ValueError:  # one value per channel has no statistics: a model that takes one image at a time
            pass
        finally:
            for module, mode in modes.items():
                module.training = mode
            for norm, momentum in momenta.items():
                norm.momentum = momentum

    def _looks_fresh(self) -> bool | None:
        """Judge by the norm layers; else by whether another instance has other random matrices."""
        fresh = looks_fresh(self.model)
        if fresh or self.factory is None:
            return fresh
        seed_everything(self.seed + 4242)
        try:
            others = dict(self.factory().named_parameters())
        except Exception:
            return fresh
        matrices = {name: parameter for name, parameter in self.model.named_parameters() if parameter.ndim > 1}
        same = sum(name not in others or torch.equal(p.cpu(), others[name].cpu()) for name, p in matrices.items())
        return True if matrices and 2 * same < len(matrices) else fresh

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
            except MissingModule:
                raise
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
                    if size == 2 and len(images) > 2:
                        self.refusals |= self._refusal(model, images[:3])
            except NotMeasured as error:
                raise VitreousError(f"{error}; the doctor examines classifiers") from None
            except MissingModule:
                raise
            except Exception as error:
                self.refusals[size] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if size == 2 and not self.refusals:
                return images
            self.fixed_batch_size = size
            return some
        if self._accepts_unbatched(images[0]):
            self.fixed_batch_size = 1
            return images[:1]
        raise VitreousError(
            f"The model does not accept inputs of shape {(2, *images.shape[1:])}: {self.refusals[2]}"
            f"{self._other_refusal()}; give its shape: --input-shape 1,28,28 (or images=...)"
        )

    def _other_refusal(self) -> str:
        """Describe the error of the one batch size that fails elsewhere, and layers without any weights."""
        kinds: dict[str, list[int]] = {}
        for size, error in self.refusals.items():
            kinds.setdefault(re.sub(r"\d+", "0", error), []).append(size)
        text = "".join(
            f"; with a batch of {sizes[0]} it fails elsewhere: {self.refusals[sizes[0]]}"
            for sizes in kinds.values()
            if len(sizes) == 1 < len(self.refusals) - 1 and sizes[0] != 2
        )
        empty = [name for name, parameter in self.model.named_parameters() if parameter.numel() == 0]
        shapes = {name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()}
        return text + (f" (`{empty[0]}` has the shape {shapes[empty[0]]}: no weights at all)" if empty else "")

    def _refusal(self, model: nn.Module, images: Tensor) -> dict[int, str]:
        """Return the error that these images raise, by their number: two of them may be accepted by a constant 2."""
        try:
            self.outputs(model, images)
        except Exception as error:
            return {len(images): f"{type(error).__name__}: {error}".splitlines()[0]}
        return {}

    def _accepts_unbatched(self, image: Tensor) -> bool:
        """Whether the model takes one image without a batch axis; if so, it is given that from now on."""
        if self.model is self.original:  # it could not be copied, and the hook would stay
            return False
        remove_axis = self.model.register_forward_pre_hook(lambda _, inputs: (inputs[0][0], *inputs[1:]))
        try:
            with self.borrowed() as model:
                outputs = self.outputs(model, image[None])
        except Exception:
            outputs = None
        self.is_unbatched = outputs is not None and len(outputs) == 1
        if not self.is_unbatched:
            remove_axis.remove()
        return self.is_unbatched

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
        self._require_time()
        with restored(self.model):
            self.model.train(training)
            if randomised:
                randomise_parameters(self.model, self.seed)
            yield self.model

    def outputs(
        self, model: nn.Module, images: Tensor, *, mode: AbstractContextManager | None = None, grad: bool = False
    ) -> Tensor:
        """Return the model's raw outputs, (B, classes); random draws give their expectation unless `mode` is given."""
        self._require_time()
        with torch.set_grad_enabled(grad), mode if mode is not None else self._draws():
            return model_io.logits_in(model(images.clone()))  # some models change their input in place

    def _draws(self) -> AbstractContextManager:
        """Return how random numbers are drawn: layers that forward makes need weights, the same in every call."""
        if "recording" in vars(self) and self.recording.made:
            seed_everything(self.seed)
            return nullcontext()
        return Deterministic()

    def log_probabilities(
        self, model: nn.Module, images: Tensor, *, mode: AbstractContextManager | None = None, grad: bool = False
    ) -> Tensor:
        return model_io.log_probabilities(self.outputs(model, images, mode=mode, grad=grad), self.output_kind)

    def gradients(self, outputs: Tensor, inputs: Sequence[Tensor], offset: int) -> tuple[Tensor | None, ...]:
        """Return the gradients of a random weighted sum of `outputs`, None where there is no dependence."""
        weights = torch.randn(outputs.shape, generator=self.generator(offset)).to(outputs.device)
        return torch.autograd.grad((outputs * weights).sum(), inputs, allow_unused=True)

    @cached_property
    def rows_with_gradient(self) -> dict[str, Tensor]:
        """Per trainable parameter, which of its rows get a gradient in eval or in training mode; random parameters.

        Raises `NotMeasured` where no output requires a gradient.
        """
        found: dict[str, Tensor] = {}
        for training in (False, True):
            with self.borrowed(randomised=True, training=training) as model:
                outputs = self.outputs(model, self.batch, grad=True)
                named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
                if not outputs.requires_grad or not named:
                    raise NotMeasured("no parameter requires a gradient")
                gradients = self.gradients(outputs, list(named.values()), offset=6)
            for name, gradient in zip(named, gradients, strict=True):
                rows = max(named[name].shape[0], 1) if named[name].ndim else 1
                used = torch.zeros(rows, dtype=torch.bool)
                if gradient is not None and gradient.numel():
                    used = gradient.cpu().reshape(rows, -1).any(1)
                found[name] = found[name] | used if name in found else used
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        """What several checks of one module share."""
        return {}

    def require_repeatable(self, *, randomised: bool = False) -> None:
        """Raise unless the model, with deterministic draws, gives the same finite outputs twice.

        With `randomised`, outputs that are finite with random parameters are enough.
        """
        is_finite, is_repeatable = self._repeatable
        if not is_finite and not randomised:
            raise NotMeasured("the model's outputs are not finite")
        if not is_repeatable:
            raise NotMeasured("the model's outputs for the same images vary, so they cannot be compared")

    @cached_property
    def _repeatable(self) -> tuple[bool, bool]:
        for randomised in (False, True):
            with self.borrowed(randomised=randomised) as model:
                first, second = (self.log_probabilities(model, self.batch) for _ in range(2))
            if bool(torch.isfinite(first).all()):
                return not randomised, model_io.max_moved(first, second) < 1e-6
        raise NotMeasured("the model's outputs are not finite")

    @cached_property
    def change_by_other_images(self) -> tuple[float, float]:
        """The largest change of an output when all images are replaced, and the largest output; random parameters."""
        self.require_repeatable(randomised=True)
        images = self.synthetic_inputs(len(self.batch), offset=11)
        with self.borrowed(randomised=True) as model:
            outputs, others = self.outputs(model, self.batch), self.outputs(model, images)
            if torch.equal(outputs, others):  # weights that forward draws anew are constants under deterministic draws
                drawn = []
                for given in (self.batch, images):
                    seed_everything(self.seed)
                    with torch.no_grad():
                        drawn.append(model_io.logits_in(model(given.clone())))
                outputs, others = drawn
        return float((others - outputs).abs().max()), float(outputs.abs().max())

    @property
    def ignores_image(self) -> bool:
        changed, size = self.change_by_other_images
        return changed <= 1e-6 * size  # float noise of a batched product is 1e-7 of the values

    # --- recording it

    def record(self, images: Tensor, *, randomised: bool = False) -> Recorder:
        with self.borrowed(randomised=randomised) as model:
            return record_forward(model, images.clone(), unregistered_tensors(model))

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
        """Whether even quick checks have to be left out, which large models need more than `CPU_SECONDS` for."""
        return time.thread_time() >= self.start + MOST_CPU_SECONDS

    def _require_time(self) -> None:
        if self.is_limited and self.is_far_too_late:
            raise NotMeasured(NO_TIME)

    @cached_property
    def attention(self) -> list[AttentionOp]:
        """Every attention of one forward pass; raises `NotMeasured` where there is none."""
        found = attention_ops(self.recording)
        if not found:
            raise NotMeasured("no attention was observed (a softmax whose result is multiplied with other activations)")
        return found

    @property
    def has_attention(self) -> bool:
        try:
            return bool(self.attention)
        except NotMeasured:
            return False

    @cached_property
    def summed_weights(self) -> list[SummedWeights]:
        """Every attention whose weights are summed, so that it is not among those of `attention`."""
        return summed_weights(self.recording, attention_ops(self.recording))
