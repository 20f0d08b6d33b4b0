"""Is everything the model knows trained, saved and found again?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from scipy import stats
from torch import Tensor, nn

from vitreous.doctor.checks_batch import SAME_ANSWER
from vitreous.doctor.findings import Finding, NotMeasured
from vitreous.doctor.inputs import listed, moved_probability, percent
from vitreous.doctor.observe import OtherDice, without_views
from vitreous.doctor.subject import Patient, seed_everything, stir, unregistered

Factory = Callable[[], nn.Module]
_NAMES_OF_CLASS_TOKENS = ("cls_token", "class_token", "cls", "class_embedding", "class_tok")


def unregistered_tensors(patient: Patient) -> Iterator[Finding]:
    """Tensors that are neither parameters nor buffers, and what they do to the answer."""
    found = unregistered(patient.model)
    if not found:
        return
    moved = _moved_by_other_values(patient, list(found))
    size = sum(tensor.numel() for tensor in found.values())
    many = len(found) > 1
    yield Finding(
        "unregistered-tensors", "warning" if moved > SAME_ANSWER else "note",
        f"{len(found)} tensor{'s' * many} ({listed(list(found))}; {size} numbers) {'are' if many else 'is'} neither"
        f" parameter nor buffer; other values in {'them' if many else 'it'} move {percent(moved)} of the probability.",
        "Plain attributes are not trained, not saved in the state dict, and stay behind when the model moves to another"
        " device or precision; so do modules kept in a plain Python list.",
        "Learned: self.x = nn.Parameter(...). Fixed: self.register_buffer('x', ...). Modules: nn.ModuleList([...]).",
    )  # fmt: skip


def class_token_untrained(patient: Patient) -> Iterator[Finding]:
    """Class tokens: what is joined to the tokens of every image and does not come from the image."""
    untrained = untrained_class_tokens(patient)
    if untrained is None:
        raise NotMeasured("no class token was observed")
    for name, reason in untrained.items():
        yield Finding(
            "class-token-untrained", "warning",
            f"the class token `{name}` is {reason}: its gradient over {len(patient.batch)} images is 0, so training"
            " leaves it at its first value.",
            "The class token is the question that the model asks of the patches, and it is meant to be learned; where"
            " positions are added, only the first position vector can learn in its stead.",
            "self.class_token = nn.Parameter(torch.zeros(1, 1, dim)), given to the optimiser with model.parameters().",
        )  # fmt: skip


def parameters_without_gradient(patient: Patient) -> Iterator[Finding]:
    """Parameters that no image and no answer moves, in eval and in training mode."""
    dead = _without_gradient(patient)
    dead -= set(untrained_class_tokens(patient) or {})
    if dead:
        named = dict(patient.model.named_parameters())
        size = sum(named[name].numel() for name in dead)
        yield Finding(
            "parameters-without-gradient", "warning",
            f"{len(dead)} of {len(named)} parameter tensors ({listed(sorted(dead))}; {size} numbers) get no gradient"
            f" from {len(patient.batch)} images, even with all parameters randomised.",
            "They are never trained: a layer that is built and not used, or cut off by .detach(), .data or no_grad.",
            "Use the layer in forward, remove it, or take the cut out; if it is frozen on purpose,"
            " requires_grad_(False).",
        )  # fmt: skip


def state_lost_on_reload(patient: Patient) -> Iterator[Finding]:
    """Save, build anew with other random numbers, load: the answers must be the same."""
    patient.require_repeatable()
    factory = patient.factory or _own_factory(patient)
    if factory is not None:
        moved, lost, difference = _moved_by_reload(patient, factory)
        how = difference or (
            "a second model, built with other random numbers and given the first one's state dict, answers differently"
        )
    elif not _unsaved(patient.model):
        moved, lost, difference = _moved_by_reload(patient, None)
        how = difference or "a copy with other weights, given the state dict of the first, answers differently"
    else:
        # without a constructor it is not known which values come back; only what looks drawn at random surely does not
        names = [name for name, tensor in _unsaved(patient.model).items() if _looks_random(tensor)]
        if not names:
            raise NotMeasured(
                "the constructor, which is not known, may rebuild the unsaved tensors: give package.module:callable"
            )
        moved, lost = _moved_by_other_values(patient, names), names
        how = (
            f"load_state_dict into a model whose {len(names)} unsaved tensor{'s' * (len(names) > 1)} of random numbers"
            " came out otherwise changes the answers"
        )
    if moved > SAME_ANSWER:
        yield Finding(
            "state-lost-on-reload", "broken",
            f"the state dict does not hold the whole model: {how}: up to {percent(moved)} of the probability moves"
            + (f" ({listed(lost)} {'are' if len(lost) > 1 else 'is'} not in it)." if lost else "."),
            "A checkpoint of this model does not bring it back: accuracy after reloading is not the accuracy that was"
            " measured. A constructor that seeds itself only hides it until the seed or the order of calls changes.",
            "Make what must survive an nn.Parameter or a persistent buffer; then compare answers before and after"
            " reloading.",
        )  # fmt: skip


# --- measurements --------------------------------------------------------------------------------------------


def untrained_class_tokens(patient: Patient) -> dict[str, str] | None:
    """name → why it is not trained; None where no class token was seen."""
    tokens = _class_tokens(patient)
    if not tokens:
        return None
    parameters = dict(patient.model.named_parameters())
    without = _without_gradient(patient)
    reasons = {}
    for name, kind in tokens.items():
        if kind == "plain":
            reasons[name] = "a plain tensor, not a parameter"
        elif kind == "buffer":
            reasons[name] = "a buffer, not a parameter"
        elif name in parameters and not parameters[name].requires_grad:
            reasons[name] = "a frozen parameter (requires_grad=False)"
        elif name in without:
            reasons[name] = "a parameter cut off from the answer (detached or unused)"
    return reasons


def _class_tokens(patient: Patient) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in patient.recording.nodes:
        if node.op != "cat" or node.tensor.ndim != 3:
            continue
        if not any(parent.from_input for parent in node.parents):
            continue
        axis = (node.arguments[1] if len(node.arguments) > 1 else 0) % 3
        for parent in node.parents:
            leaf = without_views(parent)
            width = leaf.tensor.shape[-1] if leaf.tensor.ndim else 0
            vector = parent.tensor.shape[-1] == width and leaf.tensor.numel() <= 8 * width  # registers come in fours
            if axis < 2 and leaf.name and not leaf.from_input and vector:
                found[leaf.name] = leaf.kind
    if not found:  # it may be copied into place instead of joined: then only its name tells
        everything = dict.fromkeys(unregistered(patient.model), "plain")
        everything |= dict.fromkeys(dict(patient.model.named_buffers()), "buffer")
        everything |= dict.fromkeys(dict(patient.model.named_parameters()), "parameter")
        found = {name: kind for name, kind in everything.items() if name.split(".")[-1] in _NAMES_OF_CLASS_TOKENS}
    return found


def _without_gradient(patient: Patient) -> set[str]:
    """Trainable parameters whose gradient is exactly 0 or missing.

    Exactly: biases of keys, which softmax ignores, still get the rounding noise of their terms, and what is really cut
    off gets nothing at all. Those biases are exempt by name of the layer observed, should the noise cancel out.
    """
    dead: set[str] | None = None
    for training in (False, True):
        with patient.borrowed(stirred=True, training=training) as model:
            answers = patient.answers(model, patient.batch, grad=True)
            named = {name: p for name, p in model.named_parameters() if p.requires_grad}
            if not answers.requires_grad or not named:
                raise NotMeasured("no parameter asks for a gradient")
            reading = torch.randn(answers.shape, generator=patient.generator(6)).to(answers.device)
            gradients = torch.autograd.grad((answers * reading).sum(), list(named.values()), allow_unused=True)
            still = {name for name, g in zip(named, gradients, strict=True) if g is None or not bool((g != 0).any())}
        dead = still if dead is None else dead & still
    assert dead is not None
    return dead - _key_biases(patient) if dead else dead


def _key_biases(patient: Patient) -> set[str]:
    try:
        nodes = [op.key_node for op in patient.attention if op.key_node is not None]
    except NotMeasured:
        return set()
    return {without_views(node.parents[0]).name for node in nodes if node.op == "addmm"}


def _unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    return {**unregistered(model), **_unsaved_buffers(model)}


def _moved_by_other_values(patient: Patient, names: list[str]) -> float:
    """How far the answers move when the named unsaved tensors hold other numbers of the same kind."""
    patient.require_repeatable()
    generator = patient.generator(8)
    worst = 0.0
    for stirred in (False, True):  # a fresh head may hide it, a trained one is what counts
        with patient.borrowed(stirred=stirred) as model:
            before = patient.log_probabilities(model, patient.batch)
            tensors = _unsaved(model)
            for name in names:
                tensor = tensors[name]
                order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
                other = tensor.detach().flatten()[order].view(tensor.shape)
                tensor.data.copy_(-other if tensor.is_floating_point() else other)
            after = patient.log_probabilities(model, patient.batch)
            worst = max(worst, float(moved_probability(before, after).max()))
    return worst


def _own_factory(patient: Patient) -> Factory | None:
    """A constructor the model itself suggests: its class called with its `config`, as ours and Hugging Face's are."""
    config = getattr(patient.model, "config", None)
    if config is None or isinstance(config, dict):
        return None

    def build() -> nn.Module:
        return patient.model_class(copy.deepcopy(config))

    try:
        build()
    except Exception:
        return None
    return build


def _moved_by_reload(patient: Patient, factory: Factory | None) -> tuple[float, list[str], str]:
    """How far the answers move after save and load, the tensors that came out otherwise, and what else went wrong."""
    worst, lost = 0.0, []
    for stirred in (False, True):
        with patient.borrowed(stirred=stirred) as model:
            before = patient.log_probabilities(model, patient.batch)
            saved = copy.deepcopy(model.state_dict())
            if factory is None:
                stir(model, patient.seed + 1)
                other = model
            else:
                seed_everything(patient.seed + 4242)
                with OtherDice(patient.seed):
                    other = factory()
                other = other.to(patient.device).eval()
            try:
                other.load_state_dict(saved)
            except RuntimeError as error:
                reason = str(error).splitlines()[-1].strip()
                return 1.0, [], f"a second model does not take the first one's state dict ({reason})"
            ours, theirs = _unsaved(model), _unsaved(other)
            lost = [name for name in ours if name not in theirs or not torch.equal(ours[name], theirs[name])]
            after = patient.log_probabilities(other, patient.batch)
            worst = max(worst, float(moved_probability(before, after).max()))
    return worst, lost, ""


def _looks_random(tensor: Tensor) -> bool:
    """Whether numbers look drawn at random, from a normal or uniform distribution, unlike a table of sines or indices.

    Kolmogorov–Smirnov at 1 % against both, and no correlation between neighbours (4 standard errors).
    """
    if not tensor.is_floating_point() or tensor.numel() < 16:
        return False
    values = tensor.detach().flatten().double().cpu()[:4096]
    if float(values.std()) == 0:
        return False
    values = (values - values.mean()) / values.std()
    neighbours = float((values[1:] * values[:-1]).mean())
    if abs(neighbours) > 4 / len(values) ** 0.5:
        return False
    normal = stats.kstest(values.numpy(), "norm").pvalue
    uniform = stats.kstest(values.numpy(), "uniform", args=(-(3**0.5), 2 * 3**0.5)).pvalue
    return bool(max(normal, uniform) > 0.01)
