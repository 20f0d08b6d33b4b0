"""Sharded trainings (FSDP2) equal data-parallel ones; their checkpoints load on any number of ranks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Processes
from safetensors.torch import load_file
from trainings import small, timeless

from vitreous import hardware
from vitreous.config import Config, configure, override
from vitreous.errors import ConfigError, RunError
from vitreous.models import build
from vitreous.planning import Cluster, make_plan
from vitreous.runs import Run
from vitreous.training.loop import fit

SCRIPT = Path(__file__).with_name("sharding_script.py").read_text()
SHARD, RECOMPUTE = "train.shard=true", "train.activation_checkpointing=true"

Ranks = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(processes: Processes) -> Ranks:
    """Call a function of the script on some ranks; return the lines that rank 0 prints."""

    def call(function: str, count: int, code: int = 0, **arguments: Any) -> list[dict[str, Any]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command, folder = (
            ("-c", SCRIPT, function, json.dumps(arguments)),
            Path(__file__).parents[1],
        )  # with trainings.py
        started = [processes.start(*command, cwd=folder, env={**shared, "RANK": str(rank)}) for rank in range(count)]
        out, errors = started[0].communicate()
        assert [rank.wait() for rank in started] == [code] * count, errors
        return [json.loads(line) for line in out.splitlines()]

    return call


def difference(ones: dict[str, Any], others: dict[str, Any]) -> tuple[float, float]:
    """Return the largest difference of the losses, and of the weights."""
    losses, expected = torch.tensor([ones["losses"], others["losses"]], dtype=torch.float64)
    weights = [
        (torch.tensor(value, dtype=torch.float64) - torch.tensor(others["weights"][name], dtype=torch.float64)).abs()
        for name, value in ones["weights"].items()
    ]
    return float((losses - expected).abs().max()), float(torch.cat(weights).max())


WAYS = {"ddp": [], "shard": [SHARD], "shard, recompute": [SHARD, RECOMPUTE]}


def test_the_first_50_steps_are_those_of_ddp(ranks):
    """In float32 AdamW divides by gradients that are nothing but rounding (a key's bias has none): 1e-3 of a loss."""
    ways = {way: ["train.optimizer=adamw", *settings] for way, settings in WAYS.items()}
    ddp, shard, recompute = ranks("first_steps", 2, ways=ways, steps=50)
    assert difference(shard, ddp)[0] < 1e-3
    assert recompute["losses"] == shard["losses"], "recomputing changes no bit"
    assert recompute["weights"] == shard["weights"]
    assert min(ddp["losses"]) < 0.9 * ddp["losses"][0], "it learned"


ALL = ["train.clip_norm=0.5", "train.ema_decay=0.9", "train.micro_batch=8", "train.class_weights=auto"]


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (2, ["train.optimizer=sgd", "train.lr=0.05"]),
        (3, ["train.optimizer=muon", "train.layer_decay=0.8", *ALL]),  # rows that three ranks cannot share equally
        (2, ["train.optimizer=adamw", "train.freeze=backbone", "model.positions=learned-2d", "model.pool=seq"]),
    ],
    ids=["sgd", "muon", "probe"],
)
def test_every_optimizer_is_exact_in_float64(ranks, count, settings):
    settings = [*settings, "train.precision=float64", "train.batch_size=48"]
    ways = {way: [*settings, *more] for way, more in WAYS.items()}
    ddp, shard, recompute = ranks("first_steps", count, ways=ways, steps=8)
    assert difference(shard, ddp) < (1e-12, 1e-9)
    assert recompute["weights"] == shard["weights"]
    # rank 0 has its share of every parameter; rows that cannot be divided make it a little more
    for name in ("values", "optimizer_values"):
        assert ddp[name] / count <= shard[name] < 1.15 * ddp[name] / count


def test_bfloat16_is_that_of_ddp(ranks):
    if not hardware.bfloat16_works():
        pytest.skip("no bfloat16 on this CPU")
    ways = {way: ["train.precision=bfloat16", "train.optimizer=adamw", *WAYS[way]] for way in ("ddp", "shard")}
    ddp, shard = ranks("first_steps", 2, ways=ways, steps=3)
    assert difference(shard, ddp)[0] < 1e-3


def test_one_process_has_nothing_to_divide(tmp_path):
    """The same command works on a laptop; dropout and stochastic depth are on, and recomputed with the same numbers."""
    weights = {}
    for name, settings in {"whole": [], "shard": [SHARD], "recompute": [SHARD, RECOMPUTE]}.items():
        run = fit(small("train.epochs=0.5", *settings), tmp_path / name, progress=False)
        weights[name] = run.record.weights
    assert weights["whole"] == weights["shard"] == weights["recompute"]


@pytest.mark.parametrize(
    ("preset", "optimizer", "count"), [("vit-h14", "adamw", 64), ("vit-b16", "muon", 8)], ids=["h14", "b16"]
)
def test_large_models_are_divided_as_planned(ranks, preset, optimizer, count):
    """A rank of many, on fake tensors: nothing is allocated. Rank 0 has a row more where they cannot be divided."""
    settings = [SHARD, f"train.optimizer={optimizer}", f"train.batch_size={2 * count}"]
    (found,) = ranks("pretend", 1, preset=preset, settings=[*settings, "model.depth=3"], ranks=count)
    share = share_of_rank_0(configure(preset, settings=[*settings, "model.depth=3"]), count)
    assert found["parameters"] == found["gradients"] == 4 * share
    assert found["optimizer"] == 8 * share if optimizer == "adamw" else 4 * share < found["optimizer"] < 5 * share
    whole = configure(preset, settings=settings)
    planned = make_plan(whole, 1000, Cluster(gpus=count)).memory
    assert planned.parameters <= 4 * share_of_rank_0(whole, count) < 1.05 * planned.parameters


def share_of_rank_0(config: Config, count: int) -> int:
    with torch.device("meta"):
        model = build(config.model)
    return sum(-(-len(parameter) // count) * parameter[0].numel() for parameter in model.parameters())


@pytest.mark.parametrize("setting", [SHARD, RECOMPUTE])
@pytest.mark.parametrize("preset", ["cnn", "post-vit"])
def test_models_without_blocks_are_refused(setting, preset):
    with pytest.raises(ConfigError, match=r"works by the blocks of a ViT, and a '[a-z-]+' has none: leave it out"):
        small(setting, name=preset)


# --- checkpoints -----------------------------------------------------------------------------------------------

EXACT = ["model.dropout=0", "model.drop_path=0", "train.precision=float64", "train.batch_size=48", "train.epochs=0.6"]
EXACT += ["train.checkpoint_seconds=0", "train.optimizer=muon", "train.ema_decay=0.9", "train.keep=best", SHARD]


@pytest.fixture(scope="module")
def whole(ranks, tmp_path_factory) -> dict[str, torch.Tensor]:
    """The weights of a training that one process never stopped."""
    path = tmp_path_factory.mktemp("sharding") / "whole"
    fit(override(small(), EXACT), path, progress=False)
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize(("first", "then"), [(2, 3), (2, 1), (1, 2)])
def test_checkpoints_load_on_another_number_of_ranks(ranks, tmp_path, whole, first, then):
    path = tmp_path / "run"
    ranks("fit", first, code=7, settings=EXACT, out=str(path), stop_at=5)
    point = Run.open(path).resume_point()
    assert point.step == 5
    assert len(point.shards) == (first if first > 1 else 0)
    assert any(name.startswith("model.") for name in point.tensors) == (first == 1)
    ranks("fit", then, settings=EXACT, out=str(path), resume=True)
    weights = load_file(path / "model.safetensors")
    assert {name: (v.shape, v.dtype) for name, v in weights.items()} == {
        name: (v.shape, v.dtype) for name, v in whole.items()
    }
    for name, value in weights.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-7, atol=1e-9, msg=name)
    assert not (path / "resume").exists()
    Run.open(path).load_model()


def test_a_stopped_training_goes_on_to_the_same_bits(ranks, tmp_path):
    """With dropout, on as many ranks; a damaged shard means the checkpoint before it."""
    settings = ["train.epochs=0.5", "train.checkpoint_seconds=0", "train.optimizer=adamw", "train.batch_size=48", SHARD]
    ranks("fit", 2, settings=settings, out=str(tmp_path / "whole"))
    path = tmp_path / "run"
    ranks("fit", 2, code=7, settings=settings, out=str(path), stop_at=4)
    resume = path / "resume"
    assert sorted(file.name for file in resume.glob("step-*")) == [
        "step-000000003", "step-000000003.json", "step-000000003.safetensors",
        "step-000000004", "step-000000004.json", "step-000000004.safetensors",
    ]  # fmt: skip
    shard = next((resume / "step-000000004").iterdir())
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    (resume / "step-000000009.part").mkdir()  # of a process that was killed while it wrote
    assert Run.open(path).resume_point().step == 3
    ranks("fit", 2, settings=settings, out=str(path), resume=True)
    assert Run.open(path).record.weights == Run.open(tmp_path / "whole").record.weights
    assert timeless(Run.open(path)) == timeless(Run.open(tmp_path / "whole"))


def test_shards_of_another_model_are_a_sentence(ranks, tmp_path, monkeypatch):
    path = tmp_path / "run"
    ranks("fit", 2, code=7, settings=[*EXACT, "train.keep=last"], out=str(path), stop_at=1)
    record = json.loads((path / "config.json").read_text())
    del record["checksum"]  # accept the edit
    record["config"]["model"]["mlp_dim"] = 24
    (path / "config.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"the checkpoint of step 1 in .* does not fit the model in config\.json"):
        fit(Run.open(path).config, path, resume=True, progress=False)
