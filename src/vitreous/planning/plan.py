"""The calculator of `vitreous plan`. Every rule is checked against a measured small case (tests/planning)."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from vitreous.config import CNNConfig, Config, TrainConfig, ViTConfig
from vitreous.errors import ConfigError
from vitreous.models import build
from vitreous.models.summary import FLOPS_COUNTED, count_flops
from vitreous.planning.activations import Kept, kept_for_backward
from vitreous.training.optimizers import suits_muon
from vitreous.training.plan import steps_per_epoch
from vitreous.training.step import DTYPES, freeze

#: Peak of an NVIDIA A100 by its data sheet, dense: float32 without TF32, which torch leaves off for matrix products.
A100_TFLOPS = {"bfloat16": 312.0, "auto": 312.0, "float32": 19.5, "float64": 19.5}
BACKWARD = 2  # times the FLOPs of a forward pass: a gradient of the inputs and one of the weights
KEPT_CHECKPOINTS = 2  # vitreous.runs keeps the newest, and the one before it
GATHERED_BLOCKS = 2  # FSDP gathers the next block while one computes
GIGABYTE = 1e9


@dataclass(frozen=True)
class Cluster:
    """The GPUs, and what is assumed of them."""

    gpus: int = 1
    tflops: float = A100_TFLOPS["bfloat16"]  # peak of one GPU
    utilisation: float = 0.4  # share of the peak that the model's FLOPs reach; the paper's runs: docs/scale.md
    memory_gb: float = 80.0  # of one GPU

    def check(self) -> None:
        for name, value in (("--gpu-tflops", self.tflops), ("--gpu-memory", self.memory_gb)):
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name} {value:g} must be above 0")
        if not 0 < self.utilisation <= 1:
            raise ConfigError(
                f"--utilisation {self.utilisation:g} is the share of the peak that is reached: above 0, at most 1"
            )


@dataclass(frozen=True)
class Work:
    """Arithmetic and time."""

    parameters: int
    trained_parameters: int
    forward_flops: int  # of one image
    training_flops: int  # of one image, forward and backward
    images: int  # of the training set
    batch_size: int
    micro_batch: int  # images of one rank in memory at a time
    steps: int
    total_flops: float
    seconds_per_step: float
    seconds: float
    images_per_second: float  # of all GPUs


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, without the CUDA context (about 0.5 GB) and what the allocator wastes."""

    parameters: float
    gradients: float
    optimizer: float
    averaged: float
    communication: float  # DDP's buckets; FSDP's gathered blocks, and gradients that accumulate whole
    cast_weights: float  # copies in bfloat16
    activations: float
    largest_micro_batch: int = 0  # images that fit into a GPU at a time; 0: not even one

    @property
    def total(self) -> float:
        return sum(asdict(self).values()) - self.largest_micro_batch

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True)
class Network:
    """What each rank sends per step, and as much it receives."""

    bytes_per_step: float
    overlap_seconds: float  # of a step's time, during which it can travel unnoticed
    bytes_per_second: float  # needed to be unnoticed


@dataclass(frozen=True)
class Disk:
    """Bytes on disk, and read per second."""

    prepared: int
    prepared_per_second: float
    weights: int  # model.safetensors
    checkpoint: int
    checkpoints: int  # all that are kept while it trains


@dataclass(frozen=True)
class TrainingPlan:
    config: Config
    cluster: Cluster
    work: Work
    memory: Memory
    recomputed: Memory | None  # with activation checkpointing; None: it is on already, or there are no blocks
    network: Network
    disk: Disk

    @property
    def seconds_recomputed(self) -> float:
        """The time with activation checkpointing: one more forward pass."""
        return self.work.seconds * (1 + self.work.forward_flops / self.work.training_flops)

    def as_json(self) -> dict[str, Any]:
        plain = {name: asdict(getattr(self, name)) for name in ("cluster", "work", "network", "disk")}
        plain["cluster"]["shard"] = self.config.train.shard
        memory = {"memory": self.memory.as_json()}
        if self.recomputed is not None:
            memory["memory_recomputed"] = self.recomputed.as_json()
            plain["work"]["seconds_recomputed"] = self.seconds_recomputed
        return {"preset": self.config.name, "flops_counted": FLOPS_COUNTED, **plain, **memory}


def make_plan(config: Config, images: int, cluster: Cluster) -> TrainingPlan:
    """Return what training `config` on that many training images takes on that cluster."""
    cluster.check()
    if config.train.precision == "auto":
        config = config.replace(train=config.train.replace(precision="bfloat16"))  # what it means on a GPU
    model, train = config.model, config.train
    if not isinstance(model, ViTConfig | CNNConfig):
        raise ConfigError(
            f"{config.name!r} is for small digits alone, and only ViTs and the CNN are planned: name one of these"
        )
    if isinstance(model, ViTConfig):
        model.check_geometry()
    if train.batch_size % cluster.gpus:
        raise ConfigError(
            f"train.batch_size={train.batch_size} cannot be shared equally by {cluster.gpus} GPUs; use a multiple of"
            f" {cluster.gpus} (--batch-size)"
        )
    with torch.device("meta"):
        network = build(model)
    freeze(network, train)
    work = _work(config, images, cluster, network)

    def memory(recompute: bool) -> Memory:
        kept = kept_for_backward(model, train, recompute)
        return _memory(network, train, cluster, kept, work.micro_batch, most=work.batch_size // cluster.gpus)

    return TrainingPlan(
        config=config,
        cluster=cluster,
        work=work,
        memory=memory(recompute=train.activation_checkpointing),
        recomputed=memory(recompute=True)
        if isinstance(model, ViTConfig) and not train.activation_checkpointing
        else None,
        network=_network(network, train, cluster, work),
        disk=_disk(config, images, network, cluster, work),
    )


def _work(config: Config, images: int, cluster: Cluster, model: nn.Module) -> Work:
    train, forward = config.train, count_flops(config.model)
    training = forward * (1 + (BACKWARD if train.freeze == "none" else 0))  # a linear probe's head is next to nothing
    steps = max(1, round(train.epochs * steps_per_epoch(images, train.batch_size, train)))
    computed = training + (forward if train.activation_checkpointing else 0)
    seconds = computed * train.batch_size / (cluster.gpus * cluster.tflops * 1e12 * cluster.utilisation)
    per_rank = train.batch_size // cluster.gpus
    return Work(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained_parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        forward_flops=forward,
        training_flops=training,
        images=images,
        batch_size=train.batch_size,
        micro_batch=min(train.micro_batch or per_rank, per_rank),
        steps=steps,
        total_flops=float(training) * train.batch_size * steps,
        seconds_per_step=seconds,
        seconds=seconds * steps,
        images_per_second=train.batch_size / seconds,
    )


def _value_bytes(train: TrainConfig) -> int:
    return DTYPES[train.precision].itemsize


def optimizer_values(model: nn.Module, train: TrainConfig) -> int:
    """Return the numbers that the optimizers keep: two per parameter for AdamW, one for momentum."""

    def per_parameter(name: str, parameter: nn.Parameter) -> int:
        if train.optimizer == "sgd":
            return int(train.momentum > 0)
        return 1 if train.optimizer == "muon" and suits_muon(name, parameter) else 2

    return sum(
        per_parameter(name, parameter) * parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )


def _memory(model: nn.Module, train: TrainConfig, cluster: Cluster, kept: Kept, images: int, most: int) -> Memory:
    """Return the memory with `images` at a time, and how many up to `most` fit."""
    size = _value_bytes(train)
    all_values = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    ranks = cluster.gpus if train.shard else 1  # that share a copy
    memory = Memory(
        parameters=size * all_values / ranks,
        gradients=size * trained / ranks,
        optimizer=size * optimizer_values(model, train) / ranks,
        averaged=size * all_values / ranks if train.ema_decay else 0,
        communication=size * trained if cluster.gpus > 1 else 0,  # DDP copies the gradients into buckets
        cast_weights=kept.fixed if train.precision == "bfloat16" else 0,
        activations=kept.per_image * images,
    )
    if train.shard and cluster.gpus > 1:
        blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in getattr(model, "blocks", ())]
        # what is outside the blocks stays gathered; of the blocks, those that compute: parameters and gradients
        gathered = all_values - sum(blocks) + GATHERED_BLOCKS * max(blocks, default=0)
        accumulates = images < most  # gradients stay whole until the last micro-batch, after which they are reduced
        memory = dataclasses.replace(
            memory,
            communication=size * (gathered + (trained if accumulates else gathered)),
            cast_weights=memory.cast_weights * gathered / all_values,  # cast as they are gathered
        )
    free = cluster.memory_gb * GIGABYTE - (memory.total - memory.activations)
    return dataclasses.replace(memory, largest_micro_batch=max(0, min(most, int(free // kept.per_image))))


def _network(model: nn.Module, train: TrainConfig, cluster: Cluster, work: Work) -> Network:
    """Return what a rank sends.

    DDP all-reduces the gradients once per step. FSDP gathers the parameters for each forward and backward pass of a
    micro-batch, and reduces the gradients once per step; Muon's matrices travel to one rank each, and back. A ring
    moves (n - 1) / n of the bytes once for each of these.
    """
    size, share = _value_bytes(train), (cluster.gpus - 1) / cluster.gpus
    micro_batches = -(-work.batch_size // cluster.gpus // work.micro_batch)
    if train.shard:
        matrices = [parameter for name, parameter in model.named_parameters() if suits_muon(name, parameter)]
        by_muon = sum(p.numel() for p in matrices if p.requires_grad) if train.optimizer == "muon" else 0
        values = micro_batches * 2 * work.parameters + work.trained_parameters + 2 * by_muon / cluster.gpus
        overlap = work.seconds_per_step
    else:
        values = 2 * work.trained_parameters  # an all-reduce is a reduce-scatter and an all-gather
        overlap = work.seconds_per_step / micro_batches * BACKWARD / (1 + BACKWARD)  # the last backward pass
    sent = size * values * share
    return Network(bytes_per_step=sent, overlap_seconds=overlap, bytes_per_second=sent / overlap)


def _disk(config: Config, images: int, model: nn.Module, cluster: Cluster, work: Work) -> Disk:
    train, (height, width) = config.train, config.model.image_size
    size = _value_bytes(train)
    image = config.model.channels * height * width  # one byte per value, uncompressed
    weights = size * sum(tensor.numel() for tensor in model.state_dict().values())
    copies = 1 + bool(train.ema_decay) + train.keeps_best
    generators = cluster.gpus * torch.get_rng_state().numel()
    checkpoint = copies * weights + size * optimizer_values(model, train) + generators
    return Disk(
        prepared=images * image,
        prepared_per_second=work.images_per_second * image,
        weights=weights,
        checkpoint=checkpoint,
        checkpoints=KEPT_CHECKPOINTS * checkpoint,
    )
