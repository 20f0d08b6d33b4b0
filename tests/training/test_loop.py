"""The loop: exact resume of a killed process, learning, budgets, NaN, signals, many processes."""

import json
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import Child, Processes
from safetensors.torch import load_file, save_file
from trainings import newest_step, small, timeless, torchrun, wait_for_checkpoint

from vitreous import hardware
from vitreous.checkpoints import save_model
from vitreous.config import Config
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError, ConfigError, RunError
from vitreous.runs import ResumePoint, Run
from vitreous.training import distributed, setup
from vitreous.training.loop import Trainer, fit
from vitreous.training.progress import Lines
from vitreous.training.setup import fit_to_data
from vitreous.training.step import Stepper, Weights


def test_digits_are_learned(tmp_path):
    run = fit(small("train.epochs=20", "model.dropout=0", "model.drop_path=0"), tmp_path / "run", progress=False)
    assert run.is_done
    assert run.test_results.accuracy > 0.93
    losses = [line["loss"] for line in run.metrics() if line["event"] == "val"]
    assert losses[-1] < losses[0] / 2
    assert not (run.path / "resume").exists()


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "sgd"])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, processes, optimizer):
    settings = [f"train.optimizer={optimizer}", "train.epochs=4", "train.checkpoint_seconds=0", "train.log_every=7",
                "train.ema_decay=0.9"]  # fmt: skip
    whole = fit(small(*settings), tmp_path / "whole", progress=False)
    killed = tmp_path / "killed"
    flags = [f"--set={s}" for s in ["data.name=digits", "train.threads=1", "train.batch_size=64", "model.depth=2",
             "model.dim=32", "model.mlp_dim=48", "model.dropout=0.1", "model.drop_path=0.1", *settings]]  # fmt: skip
    process = processes.vitreous("train", "vit", *flags, "-o", str(killed))
    wait_for_checkpoint(killed, 9, process)
    process.kill()
    process.wait()
    assert not (killed / "model.safetensors").exists()
    resumed = fit(Run.open(killed).config, killed, resume=True, progress=False)
    ours, theirs = load_file(resumed.path / "model.safetensors"), load_file(whole.path / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    assert timeless(resumed) == timeless(whole)


def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path, processes):
    whole = fit(small("train.epochs=2"), tmp_path / "whole", progress=False)
    path = tmp_path / "truncated"
    interrupted(processes, path, small("train.epochs=2", "train.checkpoint_seconds=0"))
    newest = path / "resume" / f"step-{newest_step(path):09d}.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    resumed = fit(Run.open(path).config, path, resume=True, progress=False)
    ours, theirs = load_file(resumed.path / "model.safetensors"), load_file(whole.path / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert timeless(resumed) == timeless(whole)


def interrupted(processes: Processes, path: Path, config: Config) -> None:
    """A real training that gets Ctrl-C after a few steps."""
    file = path.with_suffix(".json")
    file.write_text(config.model_dump_json())
    script = (
        "from pathlib import Path; from vitreous.config import Config; from vitreous.training.loop import fit\n"
        f"fit(Config.model_validate_json(Path({str(file)!r}).read_text()), {str(path)!r}, progress=False)"
    )
    process = processes.start("-c", script)
    wait_for_checkpoint(path, 4, process)
    process.send_signal(signal.SIGINT)
    process.wait(60)


def long_training(processes: Processes, path: Path) -> Child:
    arguments = ["--data", "digits", "--epochs", "500", "--set", "train.checkpoint_seconds=0", "--threads", "1"]
    return processes.vitreous("train", "vit", *arguments, "-o", str(path))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, processes):
    path = tmp_path / "run"
    process = long_training(processes, path)
    wait_for_checkpoint(path, 3, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = errors.strip().splitlines()[-1]
    assert last.startswith("vitreous: stopped at step")
    assert f"vitreous train --resume -o {path}" in last
    assert "Traceback" not in errors
    assert newest_step(path) >= 3


def test_sigterm_ends_with_143(tmp_path, processes):
    path = tmp_path / "run"
    process = long_training(processes, path)
    wait_for_checkpoint(path, 2, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_an_infinite_loss_stops_before_the_step(tmp_path):
    config = small("train.optimizer=sgd", "train.lr=1e12", "train.warmup_fraction=0", "train.checkpoint_seconds=0",
                   "train.ema_decay=0", "train.momentum=0")  # fmt: skip
    with pytest.raises(RunError, match=r"the loss became (nan|inf) at step \d+ \(learning rate 1e\+12\)") as caught:
        fit(config, tmp_path / "run", progress=False)
    assert "train a new run with a lower train.lr" in str(caught.value)
    stopped_at = int(re.findall(r"at step (\d+)", str(caught.value))[0])
    checkpoint = Run.open(tmp_path / "run").rewind()
    assert checkpoint is not None
    assert checkpoint.step == stopped_at, "the step that failed changed nothing"


def test_a_budget_becomes_steps_before_the_first_step(tmp_path):
    run = fit(small("train.budget_seconds=2"), tmp_path / "run", progress=False)
    resolved = run.resolved
    assert resolved.steps == max(1, int(2 / resolved.seconds_per_step))
    assert run.metrics()[-1]["step"] == resolved.steps


def test_a_budget_is_measured_on_a_ranks_share(monkeypatch):
    """Two ranks share a batch: what is timed is half of it, or half of the time would be left over."""
    sizes = []
    monkeypatch.setattr(Stepper, "step", lambda self, step, epoch, indices: sizes.append(len(indices)) or (0.0, 0))
    config = small("train.budget_seconds=2", "train.batch_size=64")
    dataset = load_dataset(config.data)
    group = SimpleNamespace(rank=1, world_size=2, local_world_size=2, broadcast=lambda value: value)
    setup._resolve(fit_to_data(config, dataset), dataset, Preprocessing.for_dataset(dataset), "cpu", group)
    assert set(sizes) == {32}


def test_a_budget_with_a_learning_rate_that_explodes_is_reported(tmp_path):
    settings = ("train.optimizer=sgd", "train.lr=1e12", "train.warmup_fraction=0", "train.budget_seconds=2")
    with pytest.raises(ConfigError, match=r"the loss became (nan|inf) within \d+ steps: lower train.lr"):
        fit(small(*settings), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_rate_of_a_resumed_window_counts_the_time_before(tmp_path, monkeypatch):
    """Half a window's images from before the stop, and its seconds too."""
    run = fit(small("train.epochs=1", "train.log_every=1000"), tmp_path / "first", progress=False)
    before = {}

    def stop_and_save(trainer: Trainer, done: int) -> None:
        before["seconds"] = time.perf_counter() - trainer.window.started
        save(trainer, done)
        raise KeyboardInterrupt

    save = Trainer._save
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", stop_and_save)
        config = run.config.replace(train=run.config.train.replace(checkpoint_seconds=0.0))
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "run", progress=False)
    resumed = Trainer(Run.open(tmp_path / "run"), load_dataset(run.config.data), distributed.Group())
    resumed._restore()
    assert time.perf_counter() - resumed.window.started >= before["seconds"] > 0


def test_validation_is_split_from_training_and_the_test_set_is_read_once(tmp_path):
    run = fit(small("train.epochs=2"), tmp_path / "run", progress=False)
    events = [line["event"] for line in run.metrics()]
    assert events.count("test") == 1
    assert events[-1] == "test"
    counts = run.record.data.images
    dataset = load_dataset(run.config.data)
    assert counts == {"train": len(dataset.train), "val": len(dataset.val), "test": len(dataset.test)}


def test_no_validation_is_possible(tmp_path):
    run = fit(small("train.epochs=1", "data.val_fraction=0"), tmp_path / "run", progress=False)
    assert run.record.data.images["val"] == 0
    assert "val" not in {line["event"] for line in run.metrics()}


def test_a_model_that_does_not_fit_the_data_says_how_to_make_it_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"patch_size=7×7 does not divide .* 32×32 .*choose patch_size from"):
        fit(small("data.image_size=32"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_bfloat16_is_refused_where_it_crashes(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.hardware.bfloat16_works", lambda: False)
    with pytest.raises(ConfigError, match=r"bfloat16.*does not run on this CPU"):
        fit(small("train.precision=bfloat16"), tmp_path / "run", progress=False)


def test_bfloat16_trains_where_it_works(tmp_path):

    if not hardware.bfloat16_works():
        with pytest.raises(ConfigError):
            fit(small("train.precision=bfloat16"), tmp_path / "run", progress=False)
        return
    run = fit(small("train.epochs=12", "train.precision=bfloat16"), tmp_path / "run", progress=False)
    assert run.test_results.accuracy > 0.8


def test_auto_precision_is_recorded_and_trains_in_it(tmp_path, monkeypatch, capsys):
    weights = {}
    for faster in (False, True):
        monkeypatch.setattr("vitreous.hardware.bfloat16_is_faster", lambda faster=faster: faster)
        run = fit(small("train.epochs=0.2", "train.precision=auto"), tmp_path / f"auto-{faster}")
        assert ("training in bfloat16" in capsys.readouterr().err) == faster
        assert run.resolved.precision == ("bfloat16" if faster else "float32")
        weights[run.resolved.precision] = run.load_model().head.weight
        if not hardware.bfloat16_works():
            return
    stated = fit(small("train.epochs=0.2", "train.precision=float32"), tmp_path / "float32", progress=False)
    assert stated.resolved.precision is None
    assert torch.equal(weights["float32"], stated.load_model().head.weight)
    assert not torch.equal(weights["bfloat16"], weights["float32"]), "bfloat16 rounds"


def test_a_run_in_bfloat16_does_not_go_on_where_it_crashes(tmp_path, monkeypatch):
    if not hardware.bfloat16_works():
        pytest.skip("bf16 products crash on this machine")
    monkeypatch.setattr("vitreous.hardware.bfloat16_is_faster", lambda: True)
    config = small("train.precision=auto")
    with setup.open_or_create(config, tmp_path / "run", resume=False, device="cpu", group=distributed.Group()):
        pass
    monkeypatch.setattr("vitreous.hardware.bfloat16_works", lambda: False)
    with pytest.raises(ConfigError, match="does not run on this CPU"):
        fit(small(), tmp_path / "run", resume=True, progress=False)


def test_device_that_is_not_here(tmp_path):
    with pytest.raises(ConfigError, match="device='tpu': choose from"):
        fit(small(), tmp_path / "run", device="tpu", progress=False)


def test_a_training_that_cannot_be_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.freeze='backbone' is for ViTs"):
        fit(small("train.freeze=backbone", name="cnn"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_fine_tuning_from_a_part_of_a_model(tmp_path):
    """`start.allow_partial`: what is missing starts afresh, and the same each time."""
    first = fit(small("train.epochs=0.1"), tmp_path / "first", progress=False)
    save_model(first.load_model(), tmp_path / "whole.safetensors", "timm")
    tensors = load_file(tmp_path / "whole.safetensors")
    del tensors["blocks.1.norm2.weight"], tensors["blocks.1.mlp.fc1.weight"]
    save_file(tensors, tmp_path / "part.safetensors")
    settings = [f'start.weights="{tmp_path / "part.safetensors"}"', "start.num_heads=2"]
    dataset = load_dataset(small().data)
    with pytest.raises(CheckpointError, match="is not a whole model"):
        setup.starting_weights(small(*settings), dataset)
    config = small(*settings, "start.allow_partial=true")
    one, two = (setup.starting_weights(config, dataset)[1].tensors for _ in range(2))
    assert torch.equal(one["blocks.0.attn.qkv.weight"], first.load_model().blocks[0].attn.qkv.weight)
    assert torch.equal(one["blocks.1.mlp.fc1.weight"], two["blocks.1.mlp.fc1.weight"])
    assert one["blocks.1.mlp.fc1.weight"].std() > 0


def test_processes_share_what_few_images_there_are():
    dataset = load_dataset(small("data.train_per_class=5").data)  # 50 images, fewer than the batch
    config = fit_to_data(small("train.batch_size=66"), dataset)
    group = distributed.Group(rank=0, world_size=3, local_world_size=3)
    resolved = setup._resolve(config, dataset, Preprocessing.for_dataset(dataset), "cpu", group)
    assert resolved.batch_size == 50, "the same for every number of processes"
    config = fit_to_data(small("train.batch_size=2"), dataset)
    with pytest.raises(ConfigError, match=r"train.batch_size=2 .* cannot be shared by 3 processes"):
        setup._resolve(config, dataset, Preprocessing.for_dataset(dataset), "cpu", group)


def test_what_cannot_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "free_memory", lambda: 10**6)
    with pytest.raises(ConfigError, match=r"patches of 7×7 are 17 tokens each, and 64 of them need more than .* GB"):
        fit(small(), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(hardware, "free_memory", lambda: None)  # a machine that does not say
    fit(small("train.epochs=0.1"), tmp_path / "run", progress=False)


@pytest.mark.parametrize("name", ["post-vit", "post-cnn", "post-design", "cnn"])
def test_every_kind_of_model_trains_and_reloads_as_it_was(tmp_path, name):
    from vitreous.evaluation.prediction import evaluate_run

    run = fit(small("train.epochs=0.2", name=name), tmp_path / "run", progress=False)
    again = evaluate_run(Run.open(run.path))
    assert again.accuracy == pytest.approx(run.test_results.accuracy, abs=1e-9)
    assert again.nll == pytest.approx(run.test_results.nll, rel=1e-6)


def test_fine_tuning_starts_from_a_run_and_is_better_for_it(tmp_path):
    first = fit(small("train.epochs=8", "model.dropout=0"), tmp_path / "first", progress=False)
    few = ["data.train_per_class=5", "train.epochs=4", "train.batch_size=25", "model.dropout=0"]
    scratch = fit(small(*few), tmp_path / "scratch", progress=False)
    tuned = fit(small(*few, f"start.weights={json.dumps(str(first.path))}"), tmp_path / "tuned", progress=False)
    gain = tuned.test_results.accuracy - scratch.test_results.accuracy
    assert gain > 0.2
    assert "a new classifier for 10 classes" in " ".join(tuned.resolved.starting_weights)


def test_a_linear_probe_changes_the_head_alone(tmp_path):
    first = fit(small("train.epochs=0.5"), tmp_path / "first", progress=False)
    settings = ["train.freeze=backbone", "train.epochs=0.5", "train.ema_decay=0"]
    probe = fit(small(*settings, f"start.weights={json.dumps(str(first.path))}"), tmp_path / "probe", progress=False)
    before, after = load_file(first.path / "model.safetensors"), load_file(probe.path / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_fine_tuning_keeps_the_normalisation_of_its_weights(tmp_path):
    first = fit(small("train.epochs=0.2"), tmp_path / "first", progress=False)
    record = json.loads((first.path / "config.json").read_text())
    record["preprocessing"].update(mean=[0.25], std=[0.5])
    del record["checksum"]
    (first.path / "config.json").write_text(json.dumps(record))
    tuned = fit(
        small("train.epochs=0.2", f"start.weights={json.dumps(str(first.path))}"), tmp_path / "t", progress=False
    )
    assert (tuned.preprocessing.mean, tuned.preprocessing.std) == ((0.25,), (0.5,))


def test_fine_tuning_from_what_is_no_vit(tmp_path):
    cnn = fit(small("train.epochs=0.1", name="cnn"), tmp_path / "cnn", progress=False)
    with pytest.raises(RunError, match="holds a cnn; weights=… needs a ViT"):
        fit(small(f"start.weights={json.dumps(str(cnn.path))}"), tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match="nowhere"):
        fit(small("start.weights=nowhere.npz"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_two_processes_train_as_one(tmp_path):
    """Same global batch, float64, no dropout: the losses of 50 steps agree within 1e-8, and evaluation is exact."""
    config = small("train.precision=float64", "model.dropout=0", "model.drop_path=0", "train.log_every=1",
                   "train.epochs=2.5", "train.optimizer=adamw", "train.micro_batch=24")  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json())
    one = fit(config, tmp_path / "one", progress=False)
    torchrun(
        "from pathlib import Path; from vitreous.config import Config; from vitreous.training.loop import fit\n"
        f"config = Config.model_validate_json(Path({str(file)!r}).read_text())\n"
        f"fit(config, {str(tmp_path / 'two')!r}, progress=False)\n",
        tmp_path / "two.py",
    )
    two = Run.open(tmp_path / "two")
    ours, theirs = timeless(one), timeless(two)
    assert len([line for line in ours if line["event"] == "train"]) >= 50
    assert [line["event"] for line in ours] == [line["event"] for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-8)
        assert a["accuracy"] == pytest.approx(b["accuracy"], abs=1e-12)
    assert two.resolved.world_size == 2
    assert two.test_results.count == one.test_results.count


def test_the_group_ends_though_a_model_outlives_it(tmp_path):
    """As an exception's traceback lets it. Gloo's threads would end with the model, and now and then never."""
    torchrun(
        "import torch; from vitreous.training import distributed\n"
        "with distributed.group(60) as group:\n"
        "    model = group.wrap(torch.nn.Linear(2, 2))\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    assert group.sum([1.0]) == [2.0]\n",
        tmp_path / "outlives.py",
    )


def test_flushed_denormals_reach_every_thread(processes):
    """A parallel product of denormals is zero in all of its parts only if each worker thread flushes."""
    script = (
        "from vitreous import hardware; hardware.prepare(threads=2)\n"
        "import torch; x = torch.full((4_000_000,), 1e-39); y = x * 1.0\n"
        "print(int((y != 0).sum()), torch.get_num_threads())"
    )
    result = processes.run("-c", script)
    assert result.stdout.split() == ["0", "2"]
    unprepared = script.replace("from vitreous import hardware; hardware.prepare(threads=2)\n", "")
    result = processes.run("-c", unprepared)
    assert int(result.stdout.split()[0]) > 0, "this test would pass without the setting"


def test_the_record_tells_the_whole_configuration(tmp_path):
    run = fit(small("train.epochs=0.1"), tmp_path / "run", progress=False)
    record = json.loads((run.path / "config.json").read_text())
    assert Config.model_validate(record["config"]) == run.config
    assert record["preprocessing"]["mean"]
    assert record["versions"]["torch"] == torch.__version__
    assert record["data"]["class_names"] == list("0123456789")


def test_time_left_of_a_resumed_training(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0])  # created; step 5050 is shown; then step 5100, ten seconds later
    monkeypatch.setattr("vitreous.training.progress.time.monotonic", lambda: next(clock))
    lines = Lines("vit")
    lines.step(5050, 6100, 0.5, 0.9, 100)
    assert "left" not in capsys.readouterr().err, "nobody knows yet"
    lines.step(5100, 6100, 0.5, 0.9, 100)
    assert "200 s left" in capsys.readouterr().err


def test_micro_batches_change_memory_and_not_the_step(tmp_path):
    settings = ("train.precision=float64", "train.epochs=0.5", "train.optimizer=adamw", "train.clip_norm=0.5",
                "model.dropout=0", "model.drop_path=0")  # fmt: skip
    whole = fit(small(*settings), tmp_path / "whole", progress=False)
    pieces = fit(small(*settings, "train.micro_batch=24"), tmp_path / "pieces", progress=False)  # 24 does not divide it
    for name, tensor in load_file(whole.path / "model.safetensors").items():
        torch.testing.assert_close(load_file(pieces.path / "model.safetensors")[name], tensor, rtol=1e-9, atol=1e-11)
    losses = [[line["loss"] for line in run.metrics()] for run in (whole, pieces)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_a_fine_tuning_goes_on_without_its_first_weights_or_starts_from_them(tmp_path):
    """A whole checkpoint holds everything; where all are damaged, it starts over from the weights it started from."""
    base = fit(small("train.epochs=1"), tmp_path / "base", progress=False)
    config = small("train.epochs=1", f'start.weights="{base.path}"', "train.checkpoint_seconds=0")
    run = fit(config, tmp_path / "run", progress=False)
    run.record = run.record.replace(status="training")
    run.write_record()

    def starting_weights() -> Weights | None:
        with setup.open_or_create(config, run.path, True, "cpu", distributed.Group()) as (_, _, weights):
            return weights

    assert starting_weights() is not None, "no checkpoint is left of a finished run"
    run.save_resume_point(ResumePoint(3, {"model.x": torch.zeros(1)}, {}))
    base.path.rename(tmp_path / "moved")
    assert starting_weights() is None
    next((run.path / "resume").glob("*.safetensors")).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="base"):
        starting_weights()
