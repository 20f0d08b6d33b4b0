"""Is the class token what the classifier reads?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.doctor.attention_ops import attention_ops
from vitreous.doctor.checks.residual import residuals
from vitreous.doctor.class_tokens import concatenations
from vitreous.doctor.findings import Finding, NotMeasured, finding, quoted
from vitreous.doctor.graph import Graph
from vitreous.doctor.intervention import Changed
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import VIEWS, Node, Recorder
from vitreous.reports.formats import join

_NOT_READ = 1e-5  # of the largest output: float noise is 1e-7, a token that is read moves the outputs by 0.1 and more


def not_read(tested: ModelUnderTest) -> Iterator[Finding]:
    """Change single tokens behind the last block: the outputs must not depend on one patch instead of a learned token.

    A learned token that nothing reads is no fault where several patches are read: registers, or a mean of the patches.
    """
    tested.require_repeatable()
    images = tested.synthetic_inputs(tested.num_recorded, offset=13)
    recorder = tested.record(images, randomised=True)
    joined = list(concatenations(recorder))
    if not joined:
        yield from _one_patch_read(tested, recorder, images)
        return
    joint, axis, _ = joined[-1]
    learned = _learned_positions(tested, recorder, joint, axis)
    last, axis = _last_tokens(recorder, joint, axis)
    patches = [i for i in range(joint.tensor.shape[joined[-1][1]]) if i not in learned]
    reads = _reader(tested, recorder, last, axis, images)
    if not learned or not patches or reads(learned):
        return
    found = _read_positions(patches, reads, most=len(learned))
    if found:
        names = quoted(dict.fromkeys(leaf.name for _, _, leaf in joined))
        count = len(learned) + len(patches)
        yield finding(
            "class-token-not-read",
            f"of the {count} tokens behind the last block, only number {_listed(found)} (from 0)"
            f" {'reaches the output, which is a patch' if len(found) == 1 else 'reach the output, which are patches'};"
            f" {names}, number {_listed(learned)}, {'is' if len(learned) == 1 else 'are'} only attended to: other"
            " values there change nothing.",
            module=last.module,
        )


def pooled_over_features(tested: ModelUnderTest) -> Iterator[Finding]:
    """No mean or maximum over the features of a token may be on every path to the output."""
    streams = {tuple(found.total.tensor.shape) for found in residuals(tested) if found.kind != "token MLP"}
    if not streams:
        raise NotMeasured("no residual connection was observed")
    for node in tested.graph.nodes:
        shape = tuple(node.parents[0].tensor.shape) if node.parents else ()
        if node.op not in ("mean", "sum", "amax", "max") or len(shape) != 3 or shape not in streams or node.result:
            continue
        axes = node.arguments[1] if len(node.arguments) > 1 else []
        if axes in (2, -1, [2], [-1]) and id(node) in tested.graph.unavoidable:
            yield finding(
                "pooled-over-features",
                f"`{node.module or 'forward'}` reduces the {shape[2]} features of each of {shape[1]} tokens to one"
                f" number: the classifier reads {tuple(node.tensor.shape)}, a value per token.",
                module=node.module,
            )
            return


def _one_patch_read(tested: ModelUnderTest, recorder: Recorder, images: Tensor) -> Iterator[Finding]:
    """Without a class token, all patches must be read: a mean, a maximum or attention pooling."""
    attention = [op for op in attention_ops(recorder) if op.scores and op.weights.shape[-1] > 2]
    count = attention[0].weights.shape[-1] if attention else 0
    sums = [
        node
        for node in recorder.nodes
        if node.op == "add" and node.tensor.ndim == 3 and all(parent.from_input for parent in node.parents)
        and list(node.tensor.shape).count(count) == 1 and len(images) in node.tensor.shape
    ]  # fmt: skip
    constant = [node for node in recorder.nodes if node.op == "cat" and node.tensor.ndim == 3 and node.from_input
                and not all(parent.from_input for parent in node.parents)]  # fmt: skip
    if not sums or count == len(images) or constant:
        raise NotMeasured("no class token was observed")
    axis = list(sums[0].tensor.shape).index(count)
    last, axis = _last_tokens(recorder, sums[0], axis)
    patches = list(range(sums[0].tensor.shape[axis]))
    found = _read_positions(patches, _reader(tested, recorder, last, axis, images), most=1)
    if found:
        yield finding(
            "class-token-not-read",
            f"of the {len(patches)} tokens behind the last block, only number {found[0]} (from 0) reaches the output,"
            " which is a patch: the model has no class token.",
            module=last.module,
        )


def _learned_positions(tested: ModelUnderTest, recorder: Recorder, joint: Node, axis: int) -> list[int]:
    """Return the tokens that are the same for other images."""
    seen: list[Tensor] = []
    for offset in (13, 14):  # the recording may hold what was added in place later
        images = tested.synthetic_inputs(tested.num_recorded, offset)
        _run(tested, Changed(recorder, joint, lambda tokens: seen.append(tokens.clone())), images)
    rest = [i for i in range(3) if i != axis]
    return (seen[0] == seen[1]).all(dim=rest[1]).all(dim=rest[0]).nonzero().flatten().tolist()


def _last_tokens(recorder: Recorder, joint: Node, axis: int) -> tuple[Node, int]:
    """Return the last result with all tokens in it, and the axis they are on: encoders may exchange batch and token."""
    graph, shape = Graph(recorder), tuple(joint.tensor.shape)
    exchanged = (shape[1], shape[0], shape[2]) if axis < 2 else shape
    for node in reversed(recorder.nodes):
        found = tuple(node.tensor.shape)
        if found not in (shape, exchanged) or node.op in VIEWS or node.function is None or node.result:
            continue
        if graph.depends(node, joint) and graph.output is not None and graph.depends(graph.output, node):
            return node, axis if found == shape else 1 - axis
    raise NotMeasured("what happens to the class token was not observed")


def _run(tested: ModelUnderTest, mode: Changed, images: Tensor) -> Tensor:
    # without fused kernels, as in a recording: the operations are counted
    with tested.borrowed(randomised=True) as model, sdpa_kernel(SDPBackend.MATH):
        outputs = tested.outputs(model, images, mode=mode)
    if not mode.was_applied:
        raise NotMeasured("the model's operations vary from one run to the next")
    return outputs


def _reader(
    tested: ModelUnderTest, recorder: Recorder, node: Node, axis: int, images: Tensor
) -> Callable[[list[int]], bool]:
    """Return a function that measures whether the outputs depend on these tokens of `node`."""
    before = _run(tested, Changed(recorder, node, lambda tokens: None), images)

    def reads(positions: list[int]) -> bool:
        def change(tokens: Tensor) -> None:
            where = (slice(None),) * axis + (positions,)
            noise = torch.randn(tokens[where].shape, generator=tested.generator(15)).to(tokens)
            tokens[where] += noise * tokens.std()

        after = _run(tested, Changed(recorder, node, change), images)
        return float((after - before).abs().max()) > _NOT_READ * float(before.abs().max())

    return reads


def _listed(positions: list[int]) -> str:
    return join(map(str, positions), most=4)


def _read_positions(positions: list[int], reads: Callable[[list[int]], bool], most: int) -> list[int]:
    """Return the positions that are read, found by halving; empty if there are more than `most`, or none."""
    parts = [positions] if reads(positions) else []
    while any(len(part) > 1 for part in parts):
        smaller = [some for part in parts for some in (part[: len(part) // 2], part[len(part) // 2 :]) if some]
        parts = [some for some in smaller if reads(some)]
        if len(parts) > most:
            return []
    return [part[0] for part in parts]
