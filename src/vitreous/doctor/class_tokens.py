"""Learned tokens (class tokens, registers) found in a recording: vectors that join the tokens of every image."""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.doctor.model_state import unregistered_tensors
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node, Recorder, without_views

_CLASS_TOKEN_NAMES = ("cls_token", "class_token", "cls", "class_embedding", "class_tok")


def class_tokens(tested: ModelUnderTest) -> dict[str, str]:
    """Return name → kind of the vectors that are concatenated with the tokens of every image."""
    found = {leaf.name: leaf.kind for _, _, leaf in concatenations(tested.recording)}
    if not found:  # it may be copied in instead of concatenated: then only its name identifies it
        everything = dict.fromkeys(unregistered_tensors(tested.model), "plain")
        everything |= dict.fromkeys(dict(tested.model.named_buffers()), "buffer")
        everything |= dict.fromkeys(dict(tested.model.named_parameters()), "parameter")
        found = {name: kind for name, kind in everything.items() if name.split(".")[-1] in _CLASS_TOKEN_NAMES}
    return found


def concatenations(recorder: Recorder) -> Iterator[tuple[Node, int, Node]]:
    """Yield each concatenation of tokens with learned ones: its result, the axis of the tokens, the learned leaf."""
    for node in recorder.nodes:
        ndim = node.tensor.ndim
        if node.op != "cat" or ndim not in (2, 3) or not any(parent.from_input for parent in node.parents):
            continue
        axis = (node.arguments[1] if len(node.arguments) > 1 else 0) % ndim
        for parent in node.parents:
            leaf = _leaf(parent)
            width = leaf.tensor.shape[-1] if leaf.tensor.ndim else 0
            is_vector = parent.tensor.shape[-1] == width and leaf.tensor.numel() <= 8 * width  # up to 8 registers
            if axis == ndim - 1 or not leaf.name or leaf.from_input or not is_vector:
                continue
            if ndim == 3:
                yield node, axis, leaf
            elif (joint := _stacked(recorder, node)) is not None:
                yield joint, 1, leaf


def _stacked(recorder: Recorder, tokens: Node) -> Node | None:
    """Return the batch (B, N, D) that the tokens (N, D) of one image, with their positions, become a part of."""
    for node in recorder.nodes:
        is_joint = node.op in ("stack", "cat") and node.tensor.shape[-2:] == tokens.tensor.shape
        if is_joint and node.tensor.ndim == 3 and any(_unplaced(parent) is tokens for parent in node.parents):
            return node
    return None


def _unplaced(node: Node) -> Node:
    """Walk back through views and the addition of positions."""
    node = without_views(node)
    if node.op == "add" and len(own := [parent for parent in node.parents if parent.from_input]) == 1:
        return without_views(own[0])
    return node


def _leaf(node: Node) -> Node:
    """Walk back to the tensor that is copied for every image; of token + position, to the smaller one."""
    node = without_views(node)
    while node.op in ("repeat", "embedding"):
        node = without_views(node.parents[0])
    if node.op == "add" and not node.from_input:
        return min(map(_leaf, node.parents), key=lambda leaf: leaf.tensor.numel())
    return node
