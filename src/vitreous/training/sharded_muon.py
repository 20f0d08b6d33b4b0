"""Muon on matrices that FSDP divided by rows among the processes."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.training.muon import Muon
from vitreous.training.sharding import is_sharded


class ShardedMuon(Muon):
    """Each rank orthogonalises its share of the matrices, whole.

    The rows of a matrix travel to the rank that has its turn, and the rows of the update back: twice what a rank keeps
    of the momentum. To gather every matrix on every rank would send as much as a forward pass does, and each rank
    would do the work of all.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        groups = [(group, members) for group, members in groups if members]
        if not groups:
            return
        exchange = _Exchange([(p, self.work(p)) for _, members in groups for p in members])
        whole = exchange.to_owners([rows for group, members in groups for rows in self._look_ahead(group, members)])
        updates: dict[int, Tensor] = {}
        first = 0
        for _, members in groups:
            if own := [number for number in range(first, first + len(members)) if number in whole]:
                found = self._orthogonalise([members[n - first] for n in own], [whole[n] for n in own])
                updates |= dict(zip(own, found, strict=True))
            first += len(members)
        rows = iter(exchange.from_owners(updates))
        for group, members in groups:
            self._move(group, members, [next(rows) for _ in members])


class _Exchange:
    """Moves the rows of sharded parameters to one rank each, their owner, and back."""

    def __init__(self, parameters: list[tuple[Tensor, int]]):
        """`parameters` are those of all groups, each with its work."""
        first = parameters[0][0]
        assert is_sharded(first)
        self.group, self.ranks = first.device_mesh.get_group(), first.device_mesh.size()
        self.rank, self.like = first.device_mesh.get_local_rank(), first.to_local()
        self.shapes = [parameter.shape for parameter, _ in parameters]
        self.owners = self._balance([work for _, work in parameters])
        self.owned = [[m for m, owner in enumerate(self.owners) if owner == rank] for rank in range(self.ranks)]

    def _balance(self, works: list[int]) -> list[int]:
        """Return the owner of each parameter: the largest first, each to the rank with the least work so far."""
        load, owners = [0] * self.ranks, [0] * len(works)
        for number in sorted(range(len(works)), key=lambda number: -works[number]):
            owners[number] = load.index(min(load))
            load[owners[number]] += works[number]
        return owners

    def _rows(self, number: int, rank: int) -> int:
        """Return how many rows of a parameter that rank has: FSDP divides them as torch.chunk does."""
        rows = self.shapes[number][0]
        chunk = -(-rows // self.ranks)
        return max(0, min(chunk, rows - rank * chunk))

    def _sizes(self, numbers: list[int], rank: int) -> list[int]:
        """Return how many values of these parameters that rank has."""
        return [self._rows(number, rank) * math.prod(self.shapes[number][1:]) for number in numbers]

    def to_owners(self, rows: list[Tensor]) -> dict[int, Tensor]:
        """Return the parameters of which this rank is the owner, whole, by number."""
        own = self.owned[self.rank]
        received = self._all_to_all(
            [rows[number] for numbers in self.owned for number in numbers],
            [sum(self._sizes(numbers, self.rank)) for numbers in self.owned],
            [sum(self._sizes(own, rank)) for rank in range(self.ranks)],
        )
        by_rank = [values.split(self._sizes(own, rank)) for rank, values in enumerate(received)]
        return {
            number: torch.cat([values[place] for values in by_rank]).view(self.shapes[number])
            for place, number in enumerate(own)
        }

    def from_owners(self, whole: dict[int, Tensor]) -> list[Tensor]:
        """Return this rank's rows of every parameter, in their order; `whole` are those of which it is the owner."""
        own = self.owned[self.rank]
        divided = [whole[number].split([self._rows(number, rank) for rank in range(self.ranks)]) for number in own]
        received = self._all_to_all(
            [by_rank[rank] for rank in range(self.ranks) for by_rank in divided],
            [sum(self._sizes(own, rank)) for rank in range(self.ranks)],
            [sum(self._sizes(numbers, self.rank)) for numbers in self.owned],
        )
        found: dict[int, Tensor] = {}
        for numbers, values in zip(self.owned, received, strict=True):
            for number, part in zip(numbers, values.split(self._sizes(numbers, self.rank)), strict=True):
                found[number] = part.view(self._rows(number, self.rank), *self.shapes[number][1:])
        return [found[number] for number in range(len(self.shapes))]

    def _all_to_all(self, parts: list[Tensor], sent: list[int], received: list[int]) -> list[Tensor]:
        """Send the parts, in the order of the ranks that get them; return what each rank sent, flat."""
        flat = torch.cat([self.like.new_empty(0), *(part.flatten() for part in parts)])
        found = flat.new_empty(sum(received))
        dist.all_to_all_single(found, flat, received, sent, group=self.group)
        return list(found.split(received))
