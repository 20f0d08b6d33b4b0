"""From a configuration to a run that can be trained: load the data and the starting weights, resolve open settings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vitreous import hardware
from vitreous.checkpoints import Adapted, Checkpoint, adapt, read_checkpoint, take_architecture
from vitreous.config import CNNConfig, Config, StartConfig, ViTConfig
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.sampler import BatchSampler
from vitreous.errors import ConfigError, RunError
from vitreous.evaluation import blank
from vitreous.models import ViT
from vitreous.runs import Resolved, Run, is_run, load_run_data, new_run_path
from vitreous.training import distributed, plan
from vitreous.training.devices import (
    available_devices,
    check_precision,
    describe_hardware,
    pick_device,
    resolve_precision,
)
from vitreous.training.distillation import Teacher
from vitreous.training.step import Stepper, Weights


def fit_to_data(config: Config, dataset: Dataset) -> Config:
    """Return the configuration with image size, channels and classes taken from the data."""
    model = config.model.replace(
        image_size=dataset.image_size, channels=dataset.channels, num_classes=dataset.num_classes
    )
    if isinstance(model, ViTConfig):
        model = blank.resolve(model.check_geometry(), dataset)
    return config.replace(model=model)


@contextlib.contextmanager
def open_or_create(
    config: Config, out: Path | str | None, resume: bool, device: str, group: distributed.Group
) -> Iterator[tuple[Run, Dataset, Weights | None]]:
    """Yield the run to train, its data and its starting weights, while rank 0 has the run's lock.

    The state of the run is read under the lock: another process may have gone on with it, or finished it, until then.
    """
    if resume:
        if out is None:
            raise RunError("--resume needs the run to go on with: name it with -o RUN")
        run, created = Run.open(out), None
    else:
        run, created = _create(config, out, device, group)
    with _locked(run, group):
        run = Run.open(run.path)
        dataset, weights = created or _reload(run, device)
        yield run, dataset, weights


@contextlib.contextmanager
def _locked(run: Run, group: distributed.Group) -> Iterator[None]:
    """Lock the run by rank 0, for which the other ranks wait; a finished run, perhaps read-only, needs no lock."""
    with contextlib.ExitStack() as stack:
        _on_rank_0(group, lambda: None if run.is_done else stack.enter_context(run.locked()))
        yield


def _on_rank_0(group: distributed.Group, act: Callable[[], object]) -> None:
    """Let rank 0 act while the other ranks wait; if it fails, all of them do."""

    def act_alone() -> None:  # what it returns stays on rank 0: a lock cannot be sent
        act()

    group.from_main(act_alone)


def _reload(run: Run, device: str) -> tuple[Dataset, Weights | None]:
    """Load the data of an existing run, and its starting weights where no checkpoint has others."""
    _check_same_device(run, device)
    dataset = load_run_data(run)
    if run.is_done:
        run.remove_checkpoints()  # where it was killed between its last write and their removal
        return dataset, None
    check_precision(run.resolved.precision or run.config.train.precision, run.resolved.device)
    if _teacher(run.config, dataset) != run.resolved.teacher:
        raise RunError(
            f"the teacher {run.config.train.teacher!r} changed since {str(run.path)!r} was started; train a new run"
        )
    needed = run.config.start.weights is not None and run.resume_point() is None
    return dataset, starting_weights(run.config, dataset)[1].tensors if needed else None


def _create(
    config: Config, out: Path | str | None, device: str, group: distributed.Group
) -> tuple[Run, tuple[Dataset, Weights | None]]:
    """Create a run, by rank 0; return it with its data and starting weights, on every rank."""
    config, dataset, preprocessing, resolved, weights = prepare(config, device, group)
    path = group.broadcast(Path(out) if out is not None else new_run_path(config))
    _on_rank_0(group, lambda: Run.create(path, config, dataset, preprocessing, resolved))
    return Run.open(path), (dataset, weights)


def prepare(
    config: Config, device: str, group: distributed.Group
) -> tuple[Config, Dataset, Preprocessing, Resolved, Weights | None]:
    """Return everything a training needs: the configuration fitted to the data, the data, the starting weights, …"""
    if not config.data.name:
        raise ConfigError(
            f"{config.name!r} has no data of its own: name some with --data (a folder, a .csv or .npz file, mnist, …)"
        )
    dataset = load_dataset(config.data, config.model.divisor if isinstance(config.model, ViTConfig) else (1, 1))
    preprocessing, weights, notes = Preprocessing.for_dataset(dataset), None, []
    if config.start.weights is None:
        config = fit_to_data(config, dataset)
    else:
        config, adapted = starting_weights(config, dataset)
        preprocessing, weights, notes = adapted.normalise_as_before(preprocessing), adapted.tensors, adapted.changes
    resolved = _resolve(config, dataset, preprocessing, device, group)
    resolved = resolved.model_copy(update={"starting_weights": tuple(notes)})
    return config, dataset, preprocessing, resolved, weights


def starting_weights(config: Config, dataset: Dataset) -> tuple[Config, Adapted]:
    """Return the configuration with the architecture of the weights it starts from, and those weights.

    They are fitted to the data: positions, patches and channels as needed, and a new head that starts at zero (the
    paper's way).
    """
    if not isinstance(config.model, ViTConfig):
        raise ConfigError(f"--from is for ViTs, and {config.name!r} is a {config.model.kind}: choose a ViT preset")
    checkpoint = _read_start(config.start)
    model = take_architecture(checkpoint, config.model.replace(head="linear"))
    config = fit_to_data(config.replace(model=model), dataset)
    assert isinstance(config.model, ViTConfig)
    return config, adapt(checkpoint, config.model, new_head=True)


def _read_start(start: StartConfig) -> Checkpoint:
    assert start.weights is not None
    if not is_run(start.weights):
        return read_checkpoint(
            start.weights,
            num_heads=start.num_heads,
            pool=start.pool,
            gelu=start.gelu,
            norm_eps=start.norm_eps,
            trained_size=start.trained_size,
            allow_partial=start.allow_partial,
        )
    run = Run.open(start.weights)
    model = run.load_model()
    if not isinstance(model, ViT):
        raise RunError(f"{start.weights!r} holds a {run.config.model.kind}; --from needs a ViT")
    return Checkpoint.of_model(model, mean=run.preprocessing.mean, std=run.preprocessing.std)


def _resolve(
    config: Config, dataset: Dataset, preprocessing: Preprocessing, device: str, group: distributed.Group
) -> Resolved:
    """Decide once what depends on the machine and the data; it is stored in the run and reused on resume."""
    train = config.train
    picked = pick_device(device, group)
    precision: str | None = None
    if train.precision == "auto":  # by rank 0: a measurement may come out differently on each
        precision = group.broadcast(resolve_precision(train.precision, picked))
    check_precision(precision or train.precision, picked)
    batch_size = min(train.batch_size, len(dataset.train))
    if batch_size < group.world_size:
        raise ConfigError(
            f"train.batch_size={train.batch_size} ({len(dataset.train)} images) cannot be shared by"
            f" {group.world_size} processes; use at least {group.world_size}, or fewer processes"
        )
    plan.require_validation(config, dataset)
    if picked == "cpu" and train.freeze == "none":  # a frozen backbone keeps nothing for its backward pass
        _check_memory(config, min(train.micro_batch or batch_size, -(-batch_size // group.world_size)))
    threads = hardware.prepare(train.threads or max(1, hardware.default_threads() // group.local_world_size))
    steps_per_epoch = plan.steps_per_epoch(len(dataset.train), batch_size, train)
    steps = max(1, round(train.epochs * steps_per_epoch))
    resolved = Resolved(
        device=picked,
        threads=threads,
        world_size=group.world_size,
        batch_size=batch_size,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        validate_every=plan.validation_interval(train, steps_per_epoch, batch_size, len(dataset.val)),
        class_weights=plan.class_weights(dataset.train.labels, dataset.num_classes, train),
        compile=train.compile,
        precision=precision,
        teacher=_teacher(config, dataset),
        hardware=describe_hardware(picked),
    )
    if train.budget_seconds is not None:
        seconds = _seconds_per_step(config, dataset, preprocessing, resolved, group)
        steps = group.broadcast(max(1, int(train.budget_seconds / seconds)))
        resolved = resolved.model_copy(update={"steps": steps, "seconds_per_step": seconds})
    return resolved


def _check_memory(config: Config, images: int) -> None:
    """Refuse what cannot fit, by a lower bound: a photograph in small patches is a hundred thousand tokens."""
    model = config.model
    value_bytes = 2 if config.train.precision in ("bfloat16", "auto") else 4
    height, width = model.image_size
    if isinstance(model, CNNConfig):
        first, second = model.conv_channels
        kept = first * (height - 2) * (width - 2) + second * (height - 4) * (width - 4)  # outputs of the convolutions
        what = f"the activations of {images} images of {height}×{width}"
        change = "make the images smaller (--set data.image_size=64) or take fewer at once (train.micro_batch)"
        hardware.require_memory(value_bytes * images * kept, what, change)
    if isinstance(model, ViTConfig):
        block = 8 * model.dim + 2 * model.mlp_dim  # activations per token for the backward pass
        recomputed = config.train.activation_checkpointing  # then the inputs of the blocks, and one block's activations
        kept = block + model.depth * model.dim if recomputed else model.depth * block
        rows, columns = model.patch_size
        hardware.require_memory(
            value_bytes * images * model.kept_tokens * kept,
            f"images of {height}×{width} in patches of {rows}×{columns} are {model.kept_tokens:,} tokens each, and"
            f" {images} of them",
            "make the images smaller (--set data.image_size=64), the patches larger (model.patch_size) or take fewer"
            " at once (train.micro_batch)",
        )


def _teacher(config: Config, dataset: Dataset) -> dict[str, str] | None:
    """Return which weights distil, so that a resumed training has the same ones; None without distillation."""
    return Teacher(config.train.teacher, dataset).fingerprint if config.train.teacher else None


def _check_same_device(run: Run, device: str) -> None:
    started_on = run.resolved.device
    if run.is_done or (device in ("auto", started_on) and available_devices().get(started_on)):
        return
    why = "which is not available here" if device in ("auto", started_on) else f"not on {device}"
    raise RunError(f"{str(run.path)!r} was started on {started_on}, {why}: it can only go on there; or train a new run")


def _seconds_per_step(
    config: Config, dataset: Dataset, preprocessing: Preprocessing, resolved: Resolved, group: distributed.Group
) -> float:
    """Measure a few steps of this rank's share on a model that is then discarded."""
    alone = group if config.train.shard else distributed.Group()  # a sharded model may not fit into one process
    trial = Stepper(config, dataset, preprocessing, resolved, alone)
    sampler = BatchSampler.of(dataset.train, resolved.batch_size, config.seed, group.rank, group.world_size)
    times = []
    for step, epoch, indices in sampler.steps(0, 12):
        start = time.perf_counter()
        try:
            trial.step(step, epoch, indices)
        except FloatingPointError as error:
            raise ConfigError(
                f"the loss became {error} within {step + 1} steps: lower train.lr ({config.train.lr:g}), or set"
                " train.clip_norm=1"
            ) from None
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[len(times[2:]) // 2]
