"""The processes of one training, by torch's own engine (torchrun, gloo or NCCL, DDP). A no-op for a single process."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from vitreous.errors import ConfigError, VitreousError
from vitreous.training import lost_ranks
from vitreous.training.sharding import is_sharded_model, release_group

T = TypeVar("T")

RESUME_COMMAND = "vitreous/resume-command"  # where the launcher finds it in the store


@dataclass
class Group:
    """This process's rank among all; every method is a no-op or the identity for a single process."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    resume_command: str = ""  # known once the run is
    _store: Store | None = field(default=None, repr=False, compare=False)
    _wrapped: list[nn.Module] = field(default_factory=list, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Average gradients over the processes during the backward pass; a sharded model does so by itself."""
        if self.world_size == 1:
            return model
        averages_itself = is_sharded_model(model)
        self._wrapped.append(model if averages_itself else nn.parallel.DistributedDataParallel(model))
        return self._wrapped[-1]

    def averaging(self, forward: Any, now: bool) -> contextlib.AbstractContextManager[Any]:
        """Average gradients in this backward pass if `now`; otherwise only accumulate them."""
        model = getattr(forward, "_orig_mod", forward)  # beneath a compiled model
        if is_sharded_model(model):
            model.set_requires_gradient_sync(now)
        elif self.world_size > 1 and not now:
            return model.no_sync()
        return contextlib.nullcontext()

    def barrier(self) -> None:
        self.sum([0.0])  # on the CPU, whatever the gradients travel by

    def sum(self, values: list[float]) -> list[float]:
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, *conditions: bool) -> list[bool]:
        """Return for each condition whether it holds on any rank, in one exchange."""
        return [total > 0 for total in self.sum([float(condition) for condition in conditions])]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def from_main(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes, on every rank; if it fails, all of them do."""
        result: T | VitreousError | None = None
        if self.is_main:
            try:
                result = make()
            except VitreousError as error:
                result = error
        if isinstance(result := self.broadcast(result), VitreousError):
            raise result
        return cast(T, result)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, in rank order, however many each has."""
        if self.world_size == 1:
            return rows
        counts = [int(n) for n in self._gather_equal(torch.tensor([len(rows)]))]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = self._gather_equal(padded).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def announce(self, path: Path) -> None:
        """Keep the command that resumes this run, for the report of a lost rank; the launcher needs it as well."""
        command = f"vitreous train --resume -o {shlex.quote(str(path))}"
        if self.local_world_size < self.world_size:
            command = f"torchrun, with the same options on each machine, and -m {command}"
        elif self.world_size > 1:
            command = command.replace(" -o ", f" --processes {self.world_size} -o ", 1)
        self.resume_command = command
        if self._store is not None and self.is_main:
            self._store.set(RESUME_COMMAND, command)

    def leave(self) -> None:
        """Leave the group, also on behalf of models that outlive it (an exception may keep them alive).

        Whoever releases gloo's group last waits for its threads to end. DDP's C++ reducer would do so while it has the
        GIL, for which one of these threads may be waiting to release its last tensor: a deadlock. So release it first.
        """
        for model in self._wrapped:
            if isinstance(model, nn.parallel.DistributedDataParallel):
                del model.logger, model.reducer, model.process_group
            else:
                release_group(model)
        self._wrapped.clear()
        dist.destroy_process_group()

    def _gather_equal(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.world_size)]
        dist.all_gather(parts, rows)
        return torch.cat(parts)


@contextlib.contextmanager
def group(timeout_seconds: float, shard: bool = False) -> Iterator[Group]:
    """Join the processes that torchrun or `--processes` started (they set the environment), or be the only one.

    Raise RankLost if not all of them join, or one is lost later. No exchange waits longer than `timeout_seconds`.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Group()
        return
    # DDP imports this module when it is first used, and default arguments of its functions then keep the open group:
    # gloo's threads outlive destroy_process_group and sometimes abort the process as it ends. Import it before.
    import torch.distributed.nn.functional

    if shard:  # so do these
        import torch.distributed.checkpoint
        import torch.distributed.fsdp  # noqa: F401

    lost_ranks.end_with_launcher()
    joined, store = _join(world_size, timeout_seconds)
    with lost_ranks.sigterm_as_exit() as sigterm:
        try:
            yield joined
        except BaseException as error:
            if not lost_ranks.is_loss(error):
                lost_ranks.exchange_endings(store, joined.rank, world_size, "failed")
                raise
            sigterm.is_ignored = True
            joined.leave()  # first, so that whoever waits for this rank notices
            silent = "Timed out" in str(error)
            how = f"did not respond for {timeout_seconds:g} s (train.timeout_seconds)" if silent else "ended"
            raise lost_ranks.report_loss(store, joined.rank, world_size, how, joined.resume_command) from None
        finally:
            if dist.is_initialized():
                joined.leave()


def _join(world_size: int, timeout_seconds: float) -> tuple[Group, Store]:
    backend, timeout = "gloo", datetime.timedelta(seconds=timeout_seconds)
    if torch.cuda.is_available():  # counts and metrics are exchanged on the CPU, gradients where they are
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    met: list[Store | Exception] = []

    def meet() -> None:
        try:
            store, rank, _ = next(rendezvous("env://", timeout=timeout))
            store = of_this_start(store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
            met.append(store)
        except Exception as error:
            met.append(error)

    # in a thread, because gloo waits five times the timeout for a connection (to a port that a firewall closes, say)
    thread = threading.Thread(target=meet, daemon=True)
    thread.start()
    thread.join(timeout_seconds + 1)
    if not met or isinstance(met[0], RuntimeError):
        meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise lost_ranks.RankLost(
            f"the {world_size} processes did not meet at {meeting} within {timeout_seconds:g} s"
            " (train.timeout_seconds): start all of them, with an address that each can reach",
            is_reported=lost_ranks.is_reported_elsewhere(),
        )
    if isinstance(met[0], Exception):
        raise ConfigError(
            f"WORLD_SIZE={world_size} announces {world_size} processes, which cannot be joined ({met[0]}): start them"
            " with --processes or torchrun, or unset WORLD_SIZE"
        )
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return Group(dist.get_rank(), world_size, local_world_size, _store=met[0]), met[0]


def of_this_start(store: Store) -> Store:
    """Return the part of a store for this start: torchrun's agents keep one for all restarts, with the addresses of
    earlier ones.

    Without it, torch 2.13 connects to ranks that are no more, or hangs (`torchrun --max-restarts`, gloo). Agents that
    share no store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1) have a new one each time, and may have counted differently: a
    host that replaces another has not restarted anything.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        return store
    return PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
