"""Are the positions that are added to the tokens all different, and all read?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.doctor.checks.patches import without_influence
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import VIEWS, Node
from vitreous.reports.formats import plural

#: Operations through which the rows of a table are chosen.
_LOOKUPS = VIEWS | frozenset(["embedding", "index", "index_select", "cat", "add", "constant_pad_nd"])

_COMPUTED = "(computed)"


@dataclass(frozen=True, eq=False)
class Positions:
    """A table (rows, D) of vectors that is added to the tokens."""

    total: Node
    table: Tensor  # as it is added
    learned: set[str]  # the names of the trainable parameters that its values come from


def repeated(tested: ModelUnderTest) -> Iterator[Finding]:
    """Compare the columns of a fixed table: each should vary with the position in its own way."""
    for positions in _added(tested):
        if positions.learned:
            continue
        varying, different = _different_columns(positions.table)
        # sine-cosine tables have none, or a few whose frequency is 0
        if varying >= 8 and different <= 0.6 * varying:
            yield finding(
                "positions-repeated",
                f"the table of positions ({positions.table.shape[0]} × {positions.table.shape[1]}) that is added to the"
                f" tokens has {varying} columns that vary, of which only {different} are different: the others repeat"
                " them.",
                module=positions.total.module,
            )
            return


def unused(tested: ModelUnderTest) -> Iterator[Finding]:
    """Rows of a learned table that get no gradient."""
    named = dict(tested.model.named_parameters())
    names = {name for positions in _added(tested) for name in positions.learned}
    names = {name for name in names if name in named and named[name].squeeze().ndim == 2}
    if not names:
        return  # fixed, or computed from parameters
    if next(without_influence(tested), None) is not None:
        raise NotMeasured("some patches have no influence, which includes this")
    for name, read in _rows_read(tested, sorted(names), tested.batch).items():
        missing = (~read).nonzero().flatten().tolist()
        if missing and len(missing) < len(read):
            few = tested.batch if tested.fixed_batch_size else tested.batch[:2]
            if not torch.equal(read, _rows_read(tested, [name], few).get(name, read)):
                raise NotMeasured("which positions are read depends on the images: the model chooses its tokens")
            yield finding(
                "positions-unused",
                f"{plural(len(missing), 'row')} of {len(read)} of the table of positions `{name}` (first: row"
                f" {missing[0]}) get no gradient from {len(tested.batch)} images: no token reads them.",
                module=name.rpartition(".")[0],
            )


@torch.no_grad()
def _added(tested: ModelUnderTest) -> list[Positions]:
    """Return the tables that are added to tokens (B, N, D) and are the same for every image."""
    trainable = {name for name, parameter in tested.model.named_parameters() if parameter.requires_grad}
    found = []
    for node in tested.recording.nodes:
        if node.op != "add" or node.tensor.ndim != 3 or len(node.parents) != 2:
            continue
        data = [parent for parent in node.parents if parent.from_input]
        others = [parent for parent in node.parents if not parent.from_input]
        if len(data) != 1 or not others or data[0].tensor.shape != node.tensor.shape:
            continue
        table = others[0].tensor
        table = table[0] if table.ndim == 3 else table
        if table.ndim == 2 and table.shape == node.tensor.shape[1:] and min(table.shape) > 1:
            found.append(Positions(node, table.detach(), _sources(others[0]) & (trainable | {_COMPUTED})))
    if not found:
        raise NotMeasured("no table of positions is added to the tokens")
    return found


def _sources(node: Node) -> set[str]:
    """Return the names of the tensors that the values come from; `_COMPUTED` for what is computed from parameters."""
    if node.op == "leaf":
        return {node.name}
    if node.op not in _LOOKUPS:
        return {_COMPUTED} if node.from_parameter else set()
    return {name for parent in node.parents for name in _sources(parent)}


def _different_columns(table: Tensor) -> tuple[int, int]:
    """Return the number of columns that vary from row to row, and how many of those are different."""
    columns = table.double().mT
    deviation = columns.std(dim=1)
    columns = columns[deviation > 1e-3 * deviation.max()]
    if len(columns) == 0:
        return 0, 0
    distance = (columns[:, None] - columns[None]).abs().amax(-1)
    same = distance <= 1e-4 * columns.std(dim=1)
    return len(columns), int((same.long().argmax(1) == torch.arange(len(columns), device=same.device)).sum())


def _rows_read(tested: ModelUnderTest, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """Return per table which of its rows get a gradient from these images, in eval or in training mode."""
    read: dict[str, Tensor] = {}
    for training in (False, True):
        with tested.borrowed(randomised=True, training=training) as model:
            parameters = dict(model.named_parameters())
            outputs = tested.outputs(model, images, grad=True)
            if not outputs.requires_grad:
                raise NotMeasured("no parameter requires a gradient")
            gradients = tested.gradients(outputs, [parameters[name] for name in names], offset=6)
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                rows = gradient.squeeze().count_nonzero(dim=1) > 0
                read[name] = read[name] | rows if name in read else rows
    return read
