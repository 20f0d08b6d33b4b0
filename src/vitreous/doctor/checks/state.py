"""Is everything the model needs trained, saved and restored?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from scipy import stats
from torch import Tensor, nn

from vitreous.doctor.checks.batch import SAME_PREDICTION
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.model_io import max_moved
from vitreous.doctor.model_state import lost_on_another_device, randomise_parameters, unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.randomness import Reseeded, seed_everything
from vitreous.doctor.recording import without_views
from vitreous.reports.formats import percent, plural

Factory = Callable[[], nn.Module]
_CLASS_TOKEN_NAMES = ("cls_token", "class_token", "cls", "class_embedding", "class_tok")


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


def class_token_untrained(tested: ModelUnderTest) -> Iterator[Finding]:
    """Tokens that are prepended to those of every image and get no gradient."""
    untrained = _untrained_class_tokens(tested)
    if untrained is None:
        raise NotMeasured("no class token was observed")
    for name, reason in untrained.items():
        yield finding(
            "class-token-untrained",
            f"the class token `{name}` is {reason}: its gradient over {len(tested.batch)} images is 0, so training"
            " leaves it at its initial value.",
        )


def parameters_without_gradient(tested: ModelUnderTest) -> Iterator[Finding]:
    """Parameters without gradient in eval and in training mode."""
    if tested.ignores_image:
        raise NotMeasured("the image does not reach the output, which includes this")
    dead = _without_gradient(tested) - set(_untrained_class_tokens(tested) or {})
    if dead:
        named = dict(tested.model.named_parameters())
        size = sum(named[name].numel() for name in dead)
        # one vector that is not used is a spare token (for masked training), not a forgotten layer
        spare = all(named[name].numel() == named[name].shape[-1] and named[name].ndim > 1 for name in dead)
        single = dead <= _of_single_keys(tested)
        yield finding(
            "parameters-without-gradient",
            f"{len(dead)} of {len(named)} parameter tensors ({quoted(sorted(dead))}; {plural(size, 'value')}) get no"
            f" gradient from {len(tested.batch)} images, even with all parameters randomised"
            + (": their attention has a single token to read at this image size." if single else "."),
            level="note" if spare or single else None,
            module=min(dead).rpartition(".")[0],
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


# --- gradients -----------------------------------------------------------------------------------------------


def _untrained_class_tokens(tested: ModelUnderTest) -> dict[str, str] | None:
    """Return name → reason for the class tokens that are not trained; None where no class token was observed."""
    tokens = _class_tokens(tested)
    if not tokens:
        return None
    parameters = dict(tested.model.named_parameters())
    without = _without_gradient(tested)
    reasons = {}
    for name, kind in tokens.items():
        if kind != "parameter":
            reasons[name] = f"a {'plain tensor' if kind == 'plain' else kind}, not a parameter"
        elif name in parameters and not parameters[name].requires_grad and not _is_mostly_frozen(tested.model):
            reasons[name] = "a frozen parameter (requires_grad=False)"
        elif name in without:
            reasons[name] = "a parameter without effect on the output (detached or unused)"
    return reasons


def _is_mostly_frozen(model: nn.Module) -> bool:
    """Whether most parameters are frozen: a backbone with a new head, as in linear probing."""
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return 2 * trainable < sum(parameter.numel() for parameter in model.parameters())


def _class_tokens(tested: ModelUnderTest) -> dict[str, str]:
    """Return name → kind of the vectors that are concatenated with the tokens of every image."""
    found: dict[str, str] = {}
    for node in tested.recording.nodes:
        if node.op != "cat" or node.tensor.ndim != 3 or not any(parent.from_input for parent in node.parents):
            continue
        axis = (node.arguments[1] if len(node.arguments) > 1 else 0) % 3
        for parent in node.parents:
            leaf = without_views(parent)
            width = leaf.tensor.shape[-1] if leaf.tensor.ndim else 0
            is_vector = parent.tensor.shape[-1] == width and leaf.tensor.numel() <= 8 * width  # up to 8 registers
            if axis < 2 and leaf.name and not leaf.from_input and is_vector:
                found[leaf.name] = leaf.kind
    if not found:  # it may be copied in instead of concatenated: then only its name identifies it
        everything = dict.fromkeys(unregistered_tensors(tested.model), "plain")
        everything |= dict.fromkeys(dict(tested.model.named_buffers()), "buffer")
        everything |= dict.fromkeys(dict(tested.model.named_parameters()), "parameter")
        found = {name: kind for name, kind in everything.items() if name.split(".")[-1] in _CLASS_TOKEN_NAMES}
    return found


def _without_gradient(tested: ModelUnderTest) -> set[str]:
    """Return the trainable parameters whose gradient is missing or exactly 0, in eval and in training mode.

    Exactly: biases of keys, which softmax ignores, still get the rounding noise of their terms, a disconnected
    parameter gets nothing. Those biases are exempt by name as well, should the noise cancel.
    """
    dead: list[set[str]] = []
    for training in (False, True):
        with tested.borrowed(randomised=True, training=training) as model:
            outputs = tested.outputs(model, tested.batch, grad=True)
            named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
            if not outputs.requires_grad or not named:
                raise NotMeasured("no parameter requires a gradient")
            gradients = tested.gradients(outputs, list(named.values()), offset=6)
            dead.append({name for name, g in zip(named, gradients, strict=True) if g is None or not bool(g.any())})
    return (dead[0] & dead[1]) - _key_biases(tested)


def _of_single_keys(tested: ModelUnderTest) -> set[str]:
    """Return the parameters that scores of a single key are computed with: its weight is 1, whatever they are."""
    try:
        scores = [op.logits_node for op in tested.attention if op.weights.shape[-1] == 1]
    except NotMeasured:
        return set()
    found: set[str] = set()
    seen: set[int] = set()
    while scores:
        node = scores.pop()
        if id(node) not in seen:
            seen.add(id(node))
            found |= {node.name} if node.kind == "parameter" else set()
            scores += node.parents
    return found


def _key_biases(tested: ModelUnderTest) -> set[str]:
    """Return the biases of keys, and of scores themselves (attention pooling): softmax ignores both."""
    try:
        nodes = [op.scores.key_node if op.scores else without_views(op.logits_node) for op in tested.attention]
    except NotMeasured:
        return set()
    return {without_views(node.parents[0]).name for node in nodes if node.op == "addmm"}


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
            other = other.to(tested.device).eval()
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
