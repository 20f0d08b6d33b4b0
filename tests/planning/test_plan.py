"""The calculator against measured small cases and against the paper."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from trainings import small

from vitreous.config import Config, DataConfig, configure
from vitreous.data.datasets import load_dataset
from vitreous.data.prepared_cache import list_copies
from vitreous.models import ViT, build
from vitreous.planning import Cluster, TrainingPlan, make_plan
from vitreous.planning.activations import kept_for_backward
from vitreous.planning.plan import optimizer_values
from vitreous.training.callbacks import Callback
from vitreous.training.loop import fit
from vitreous.training.optimizers import make_optimizers
from vitreous.training.step import freeze


def plan(preset: str, *settings: str, images: int = 60_000, **cluster: float) -> TrainingPlan:
    return make_plan(configure(preset, settings=settings), images, Cluster(**cluster))


# --- arithmetic and time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["vit", "vit-hybrid", "vit-s16", "cnn"])
def test_training_flops_are_those_torch_counts(preset):
    """Only the gradient of the images is not computed: of the patches a small share, of a CNN's first layer more."""
    config = configure(preset)
    with torch.device("meta"):
        model = ViT(config.model) if config.model.kind == "vit" else build(config.model)
        images = torch.zeros(2, config.model.channels, *config.model.image_size)
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
    assert plan(preset).work.training_flops == pytest.approx(counter.get_total_flops() / 2, rel=0.05)


SHARD = "train.shard=true"
JFT_IMAGES = 303_000_000


@pytest.mark.parametrize(
    ("preset", "epochs", "exaflops"),
    [("vit-b16", 7, 224), ("vit-l16", 7, 783), ("vit-l16", 14, 1567), ("vit-h14", 14, 4262)],
)
def test_total_flops_are_the_papers(preset, epochs, exaflops):
    """The pre-training compute of the paper's appendix (Table 6)."""
    found = plan(preset, f"train.epochs={epochs}", "train.batch_size=4096", images=JFT_IMAGES).work.total_flops
    assert found / 1e18 == pytest.approx(exaflops, rel=0.005)


TPU_CORE_TFLOPS = 61.5  # half of a TPUv3 chip's 123


@pytest.mark.parametrize(
    ("preset", "images", "epochs", "core_days", "off"),
    [
        ("vit-h14", JFT_IMAGES, 14, 2500, -0.20),
        ("vit-l16", JFT_IMAGES, 14, 680, +0.08),
        ("vit-l16", 14_200_000, 90, 230, -0.03),
    ],
)
def test_time_against_the_papers_core_days(preset, images, epochs, core_days, off):
    """With the default utilisation of 40 %; `off` is in docs/scale.md."""
    made = plan(preset, f"train.epochs={epochs}", "train.batch_size=4096", images=images, tflops=TPU_CORE_TFLOPS)
    assert made.cluster.utilisation == 0.4
    assert made.work.seconds / 86_400 / core_days - 1 == pytest.approx(off, abs=0.005)


def test_time_falls_with_gpus_and_rises_with_epochs():
    one = plan("vit-b16", images=1_000_000).work
    assert plan("vit-b16", images=1_000_000, gpus=8).work.seconds == pytest.approx(one.seconds / 8)
    assert plan("vit-b16", "train.epochs=20", images=1_000_000).work.seconds == pytest.approx(2 * one.seconds)
    assert plan("vit-b16", images=1_000_000, utilisation=0.2).work.seconds == pytest.approx(2 * one.seconds)
    assert one.steps == 10 * (1_000_000 // 512), "an incomplete batch of an epoch is dropped"


# --- memory ----------------------------------------------------------------------------------------------------

MICRO_BATCH = 24
SHALLOW = ("vit-ti16", "model.depth=4", "data.image_size=96", "model.image_size=96")


def train_two_steps(config: Config) -> None:
    """Each of two micro-batches: from the second step on, everything is in memory at once."""
    model = build(config.model).train()
    optimizers = make_optimizers(model, config.train)
    images, labels = (
        torch.randn(MICRO_BATCH, config.model.channels, *config.model.image_size),
        torch.zeros(MICRO_BATCH, dtype=torch.long),
    )
    for _ in range(2):
        for _ in range(2):
            F.cross_entropy(model(images), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def peak_bytes(config: Config) -> int:
    """Return the most memory that torch's allocator had given out at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        train_two_steps(config)
    results = recorded.profiler.kineto_results
    now = most = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("vit", ()),
        (SHALLOW[0], SHALLOW[1:]),
        (SHALLOW[0], (*SHALLOW[1:], "model.depth=7", "model.pool=mean", "train.optimizer=adamw")),
        ("vit-hybrid", ("model.dropout=0.1",)),
        # Muon's step takes more, without activations
        ("cnn", ("train.optimizer=adamw", "model.hidden=16")),
    ],
)
def test_memory_is_what_torch_allocates(preset, settings):
    """Within 5 %: the backward pass has a few temporary tensors beside what was kept for it; of a CNN 20 %."""
    config = configure(preset, settings=[*settings, f"train.micro_batch={MICRO_BATCH}", "train.ema_decay=0"])
    planned = make_plan(config, 1000, Cluster()).memory.total
    assert peak_bytes(config) == pytest.approx(planned, rel=0.2 if preset == "cnn" else 0.05)


def test_depth_is_extrapolated_exactly():
    settings = [*SHALLOW[1:], "model.depth=6"]
    config = configure(SHALLOW[0], settings=settings)
    model, kept = build(config.model).train(), {}
    own = {parameter.data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
    ):
        F.cross_entropy(model(torch.randn(3, 3, 96, 96)), torch.zeros(3, dtype=torch.long))
    found = sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in own)
    assert kept_for_backward(config.model, config.train).of(3) == found


def test_bfloat16_is_half_of_what_matrix_products_keep():
    """Per token and block: both norms' inputs in float32; their outputs, q, k, v, heads (twice), MLP in bfloat16."""
    config = configure("vit-s16", settings=["train.precision=bfloat16", "model.pool=mean"])
    two, three = (kept_for_backward(config.model.replace(depth=depth), config.train) for depth in (2, 3))
    tokens, width, hidden = config.model.num_tokens, config.model.dim, config.model.mlp_dim
    per_token = 2 * 4 * width + 2 * (2 + 3 + 2) * width + 2 * 2 * hidden
    assert three.per_image - two.per_image == pytest.approx(tokens * per_token, rel=0.01)
    assert three.fixed - two.fixed == pytest.approx(2 * (4 * width**2 + 2 * width * hidden), rel=0.01)


def test_recomputing_keeps_the_inputs_of_the_blocks_and_one_block():
    made = plan("vit-b16", "train.micro_batch=1", "model.pool=mean")
    model = made.config.model
    one_input = 4 * model.num_tokens * model.dim
    kept = {depth: kept_for_backward(model.replace(depth=depth), made.config.train).per_image for depth in (11, 12)}
    block = kept[12] - kept[11]
    outside = kept[12] - 12 * block
    assert made.recomputed.activations == pytest.approx(outside + 12 * one_input + block, rel=0.02)
    assert made.recomputed.total < made.memory.total
    assert made.seconds_recomputed == pytest.approx(4 / 3 * made.work.seconds)
    assert plan("cnn").recomputed is None
    on = plan("vit-b16", "train.micro_batch=1", "model.pool=mean", "train.activation_checkpointing=true")
    assert (on.memory, on.recomputed) == (made.recomputed, None)
    assert on.work.seconds == pytest.approx(made.seconds_recomputed)


@pytest.mark.parametrize(
    "setting", ["optimizer=adamw", "optimizer=sgd", "momentum=0", "optimizer=muon", "freeze=backbone"]
)
def test_optimizer_state_is_what_the_optimizers_keep(setting):
    settings = ["train.optimizer=sgd"] if setting == "momentum=0" else []
    config = configure("vit", settings=[*settings, f"train.{setting}"])
    model = build(config.model)
    freeze(model, config.train)
    optimizers = make_optimizers(model, config.train)
    model(torch.randn(2, 1, 28, 28)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    found = sum(tensor.numel() for tensor in tensors if tensor.ndim)  # without AdamW's counts of steps
    assert optimizer_values(model, config.train) == found


def test_sharding_divides_what_the_ranks_keep():
    config = ("vit-h14", "train.optimizer=adamw", "train.ema_decay=0.999")
    ddp, fsdp = plan(*config, gpus=64).memory, plan(*config, SHARD, gpus=64).memory
    for name in ("parameters", "gradients", "optimizer", "averaged"):
        assert getattr(fsdp, name) == getattr(ddp, name) / 64
    assert fsdp.activations == ddp.activations
    assert fsdp.total < ddp.total


def test_largest_micro_batch_fits_and_one_more_does_not():
    settings = ("train.batch_size=4096", "train.micro_batch=1")
    largest = plan("vit-l16", *settings, memory_gb=24).memory.largest_micro_batch
    assert 1 < largest < 4096
    totals = [plan("vit-l16", *settings, f"train.micro_batch={largest + more}").memory.total for more in (0, 1)]
    assert totals[0] <= 24e9 < totals[1]
    assert plan("vit-l16", memory_gb=1).memory.largest_micro_batch == 0
    assert plan("vit-l16", *settings, gpus=1024).memory.largest_micro_batch == 4, "no rank has more images"


# --- disk ------------------------------------------------------------------------------------------------------


class SizesOfCheckpoints(Callback):
    def __init__(self, folder: Path):
        self.folder, self.found = folder, []

    def on_step(self, metrics):
        self.found += [file.stat().st_size for file in (self.folder / "resume").glob("*.safetensors")]


@pytest.mark.parametrize("settings", [("train.optimizer=adamw", "train.keep=best"), ("train.optimizer=muon",)])
def test_files_of_a_run_have_the_planned_sizes(tmp_path, settings):
    settings = (*settings, "train.epochs=0.5", "train.log_every=1", "train.checkpoint_seconds=0")
    settings += ("train.validate_every=0.1", "model.dim=128")
    config, sizes = small(*settings), SizesOfCheckpoints(tmp_path / "run")
    run = fit(config, tmp_path / "run", progress=False, callbacks=[sizes])
    planned = make_plan(run.config, 1000, Cluster()).disk
    assert (run.path / "model.safetensors").stat().st_size == pytest.approx(planned.weights, rel=0.02)
    assert max(sizes.found) == pytest.approx(planned.checkpoint, rel=0.02)


def test_prepared_images_take_the_planned_disk(tmp_path):
    for number in range(20):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        noise = (torch.rand(64, 64, 3) * 255).byte().numpy()
        Image.fromarray(noise).save(tmp_path / "images" / "ab"[number % 2] / f"{number}.png")
    before = {copy.folder for copy in list_copies()}
    load_dataset(DataConfig(name=str(tmp_path / "images"), image_size=(64, 64), channels=3))
    (folder,) = {copy.folder for copy in list_copies()} - before
    planned = plan("vit", "model.image_size=64", "model.patch_size=8", "model.channels=3", images=20).disk.prepared
    assert sum(file.stat().st_size for file in folder.iterdir()) == pytest.approx(planned, rel=0.05)


# --- network ---------------------------------------------------------------------------------------------------

_TRAFFIC = r"""
import json, os, socket, struct, sys, time
import torch, torch.distributed as dist, torch.nn.functional as F
from vitreous.config import configure
from vitreous.models import build
from vitreous.training.optimizers import make_optimizers
from vitreous.training.sharding import mesh_of, shard


def sent():
    "Return the bytes that this process's TCP connections have sent (tcpi_bytes_acked of linux/tcp.h)."
    total = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                total += struct.unpack_from("Q", information, 120)[0]
        except OSError:  # no socket, or none of TCP
            pass
    return total


def sent_by(act, times=3):
    act()  # DDP arranges its buckets anew after the first step
    dist.barrier()
    time.sleep(0.3)  # the last bytes are acknowledged
    before = sent()
    for _ in range(times):
        act()
    time.sleep(0.3)
    return (sent() - before) / times


def step():
    F.cross_entropy(forward(torch.zeros(4, 1, 28, 28)), torch.zeros(4, dtype=torch.long)).backward()
    model.zero_grad()


dist.init_process_group("gloo")
found = {}
for kind in ("ddp", "fsdp"):
    model = build(configure("vit").model)
    if kind == "ddp":
        forward = torch.nn.parallel.DistributedDataParallel(model)
    else:
        forward = shard(model, mesh_of(torch.device("cpu"), 2))
    step()
    found[kind] = sent_by(step)
muon = make_optimizers(model, configure("vit").train)[0]
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
found["muon"] = sent_by(muon.step)
values = torch.zeros(200_000)
found["reduce_scatter"] = sent_by(lambda: dist.reduce_scatter_tensor(torch.zeros(100_000), values)) / (4 * len(values))
if dist.get_rank() == 0:
    print(json.dumps(found))
del forward, model, muon, parameter
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def traffic(processes) -> dict[str, float]:
    """What each of two ranks sends per step, counted by the kernel."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = dict(os.environ)
    ranks = [processes.start("-c", _TRAFFIC, env={**environment, **shared, "RANK": str(rank)}) for rank in (0, 1)]
    out, errors = ranks[0].communicate()
    assert [rank.wait() for rank in ranks] == [0, 0], errors
    return json.loads(out)


def test_ddp_sends_what_is_planned(traffic):
    assert traffic["ddp"] == pytest.approx(plan("vit", gpus=2).network.bytes_per_step, rel=0.01)


def test_fsdp_sends_what_is_planned(traffic):
    """NCCL's reduce-scatter is half of an all-reduce, as planned; gloo's is a whole one."""
    made = plan("vit", SHARD, "train.optimizer=adamw", gpus=2)
    gradients = 4 * made.work.trained_parameters
    more_by_gloo = (traffic["reduce_scatter"] - 1 / 2) * gradients
    assert traffic["fsdp"] - more_by_gloo == pytest.approx(made.network.bytes_per_step, rel=0.01)


def test_muon_sends_its_matrices_to_one_rank_and_back(traffic):
    more = [plan("vit", SHARD, f"train.optimizer={name}", gpus=2).network.bytes_per_step for name in ("muon", "adamw")]
    assert traffic["muon"] == pytest.approx(more[0] - more[1], rel=0.05), (
        "a few hundred bytes of it are TCP's and gloo's"
    )


def test_accumulated_gradients_travel_once_and_gathered_parameters_every_time():
    whole, parts = ("train.batch_size=64",), ("train.batch_size=64", "train.micro_batch=8")
    assert plan("vit", *whole, gpus=2).network.bytes_per_step == plan("vit", *parts, gpus=2).network.bytes_per_step
    one, four = [plan("vit", "train.optimizer=adamw", SHARD, *settings, gpus=2) for settings in (whole, parts)]
    assert four.network.bytes_per_step == pytest.approx(one.network.bytes_per_step * (4 * 2 + 1) / 3), "reduced once"
    assert four.memory.communication - one.memory.communication == pytest.approx(
        4 * one.work.parameters - one.memory.communication / 2
    ), "until then the gradients stay whole"
    assert plan("vit").network.bytes_per_step == 0


def test_modules_named_blocks_are_what_is_sharded():
    assert isinstance(build(configure("vit").model).blocks, nn.ModuleList)
