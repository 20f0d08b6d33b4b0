"""Run folders: what is missing, newer or edited gives a sentence; nothing partial is ever believed."""

import errno
import json

import numpy as np
import pytest
import torch

from vitreous.config import override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.errors import ConfigError, DataError, RunError
from vitreous.evaluation.prediction import evaluate_run
from vitreous.runs import FORMAT, ResumePoint, Run, free_folder, is_run, new_run_path
from vitreous.training.loop import fit
from vitreous.training.restart import same_training
from vitreous.training.setup import fit_to_data


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    settings = [
        "data.name=digits",
        "model.depth=1",
        "model.dim=16",
        "model.mlp_dim=16",
        "train.epochs=0.3",
        "train.threads=1",
    ]
    return fit(override(preset("vit"), settings), tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.fixture
def copy(finished, tmp_path):
    import shutil

    return shutil.copytree(finished.path, tmp_path / "run")


def record_of(path):
    """The record without its checksum: what a person has who accepts their own edits."""
    record = json.loads((path / "config.json").read_text())
    del record["checksum"]
    return record


def edit(path, **changes):
    (path / "config.json").write_text(json.dumps(record_of(path) | changes))


def test_opening_gives_back_what_was_trained(finished):
    run = Run.open(finished.path)
    assert run.config == finished.config
    assert run.class_names == tuple("0123456789")
    model = run.load_model()
    assert not model.training
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_no_such_folder(tmp_path):
    with pytest.raises(RunError, match=r"there is no run folder .*nowhere.*vitreous.fit"):
        Run.open(tmp_path / "nowhere")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no config.json"):
        Run.open(tmp_path)


def test_missing_weights(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"is missing model.safetensors"):
        Run.open(copy).load_model()


def test_an_unfinished_run_says_how_to_finish_it(copy):
    edit(copy, status="training")
    (copy / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"no weights yet: finish it with vitreous.fit\(resume=True, out="):
        Run.open(copy).load_model()


def test_a_newer_format(copy):
    edit(copy, format=99, vitreous="9.9")
    with pytest.raises(RunError, match=r"format 99, made by vitreous 9\.9; .*pip install -U"):
        Run.open(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "one"}', "\0"])
def test_a_configuration_that_is_not_one(copy, text):
    (copy / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        Run.open(copy)


def test_a_configuration_edited_by_hand(copy):
    record = record_of(copy)
    record["config"]["model"]["depth"] = -3
    (copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"config\.json: model\..*depth=-3"):
        Run.open(copy)


def test_a_section_removed_by_hand(copy):
    record = record_of(copy)
    del record["preprocessing"]
    (copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="lacks preprocessing; it was edited by hand"):
        Run.open(copy)


def test_edited_weights_are_noticed(copy):
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(RunError, match="is not the file that was written"):
        Run.open(copy).load_model()


def test_weights_of_another_model(copy):
    record = record_of(copy)
    record["config"]["model"]["depth"] = 2
    (copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"do not fit the model in config\.json"):
        Run.open(copy).load_model()


def test_truncated_weights_without_a_checksum(copy):
    edit(copy, weights={})
    file = copy / "model.safetensors"
    for share in (0, 0.01, 0.5, 0.99):
        whole = file.read_bytes()
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(RunError, match="is not a whole safetensors file"):
            Run.open(copy).load_model()
        file.write_bytes(whole)


def test_metrics_edited_by_hand(copy):
    with (copy / "metrics.jsonl").open("a") as file:
        file.write("not json\n")
    with pytest.raises(RunError, match=r"line \d+ of .*metrics\.jsonl"):
        Run.open(copy).metrics()


def test_an_existing_folder_is_left_alone(copy, finished):
    before = (copy / "config.json").read_bytes()
    with pytest.raises(RunError, match=r"exists already: add resume=True .*or name another folder"):
        fit(finished.config, copy, progress=False)
    assert (copy / "config.json").read_bytes() == before


def test_resuming_a_finished_run_changes_nothing(copy):
    before = {file.name: file.read_bytes() for file in copy.iterdir() if file.is_file()}
    fit(Run.open(copy).config, copy, resume=True, progress=False)
    assert {file.name: file.read_bytes() for file in copy.iterdir() if file.is_file()} == before


def test_every_truncation_of_a_checkpoint_falls_back(copy):
    run = Run.open(copy)
    for step in (1, 2):
        run.save_resume_point(ResumePoint(step, {"x": torch.full((50,), float(step))}, {}))
    file = copy / "resume" / "step-000000002.safetensors"
    whole = file.read_bytes()
    for percent in range(0, 100, 5):
        file.write_bytes(whole[: len(whole) * percent // 100])
        checkpoint = run.resume_point()
        assert checkpoint is not None
        assert checkpoint.step == 1
    file.write_bytes(whole)
    assert run.rewind().step == 2


def test_a_damaged_checkpoint_does_not_outlive_those_written_after_it(copy):
    run = Run.open(copy)
    for step in (800, 900):
        run.save_resume_point(ResumePoint(step, {"x": torch.zeros(1)}, {}))
    for file in (copy / "resume").glob("*.safetensors"):
        file.write_bytes(b"x")
    assert run.rewind() is None
    for step in (50, 60, 70):
        run.save_resume_point(ResumePoint(step, {"x": torch.zeros(1)}, {}))
    assert run.resume_point().step == 70
    (copy / "resume" / "step-000000070.safetensors").write_bytes(b"x")
    assert run.rewind().step == 60


def test_metrics_that_a_power_failure_truncated(copy):
    run = Run.open(copy)
    (copy / "metrics.jsonl").unlink()
    for step in (1, 2):
        run.log(event="train", step=step)
    run.save_resume_point(ResumePoint(2, {"x": torch.zeros(1)}, {}))
    file = copy / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    assert run.rewind().step == 2
    run.log(event="train", step=3)
    assert [line["step"] for line in run.metrics()] == [1, 3]


def test_one_process_trains_a_run_at_a_time(copy):
    run = Run.open(copy)
    with run.locked(), pytest.raises(RunError, match="is being trained by another process"), Run.open(copy).locked():
        pass
    with run.locked():
        pass


def test_a_disk_without_locks_stops_nobody(copy, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    run, entered = Run.open(copy), False
    with run.locked():
        entered = True
    assert entered


def test_evaluation_on_the_same_data_by_name_splits_it_as_training_did(tmp_path):
    """Otherwise images it was trained on would be in the test split."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", images=random.integers(0, 256, (200, 28, 28), dtype=np.uint8),
             labels=np.arange(200) % 2)  # fmt: skip
    settings = [f"data.name={tmp_path / 'd.npz'}", "data.split_seed=1", "data.val_fraction=0.3", "model.depth=1",
                "train.epochs=1", "train.threads=1"]  # fmt: skip
    run = fit(override(preset("vit"), settings), tmp_path / "run", progress=False)
    for split in ("val", "test"):
        mine, named = evaluate_run(run, split), evaluate_run(run, split, data=run.config.data.name)
        assert np.array_equal(mine.logits, named.logits)
    np.savez(tmp_path / "d.npz", images=np.zeros((200, 28, 28), dtype=np.uint8), labels=np.arange(200) % 2)
    with pytest.raises(DataError, match="changed since"):
        evaluate_run(run, data=run.config.data.name)


def test_a_run_goes_on_where_it_was_started(copy):
    run = Run.open(copy)
    on_cuda = run.resolved.model_copy(update={"device": "cuda"})
    run.record = run.record.replace(status="training", resolved=on_cuda)
    run.write_record()
    with pytest.raises(RunError, match=r"was started on cuda, (which is not available here|not on cpu)"):
        fit(run.config, copy, resume=True, device="cpu", progress=False)


def test_only_the_last_two_checkpoints_stay(copy):
    run = Run.open(copy)
    for step in range(1, 6):
        run.save_resume_point(ResumePoint(step, {"x": torch.zeros(1)}, {}))
    assert sorted(file.name for file in (copy / "resume").iterdir()) == [
        "step-000000004.json", "step-000000004.safetensors", "step-000000005.json", "step-000000005.safetensors",
    ]  # fmt: skip


def test_names_of_new_folders(tmp_path):
    assert new_run_path(preset("vit"), tmp_path) == tmp_path / "mnist-vit"
    (tmp_path / "mnist-vit").mkdir()
    assert new_run_path(preset("vit"), tmp_path) == tmp_path / "mnist-vit-2"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_folder(tmp_path / "a") == tmp_path / "a-3"


def test_a_full_disk_is_a_sentence(copy, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run.open(copy)
    model = run.load_model()
    monkeypatch.setattr("vitreous.downloads.files.replacing", full)
    for write in (lambda: run.save_resume_point(ResumePoint(3, {}, {})), lambda: run.finish(model, None)):
        with pytest.raises(RunError, match=r"cannot write to .*: No space left on device; make room, then go on with"):
            write()


def test_bundled_models_have_names():
    assert Run.open("bundled:cnn").config.model.kind == "cnn"
    assert Run.open("box:cnn").path == Run.open("bundled:cnn").path  # the name in 0.1; vocabulary: ok
    with pytest.raises(RunError, match="there is no bundled model 'nope'; choose from broken, cnn, vit"):
        Run.open("bundled:nope")


def test_changed_data_are_not_evaluated(tmp_path):
    """The split goes by the images' places: with five fewer, what was trained on would be tested on."""
    images = np.random.default_rng(0).integers(0, 256, (300, 28, 28), dtype=np.uint8)
    labels = np.arange(300) % 3
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    config = override(preset("vit"), [f"data.name={tmp_path}/data.npz", "model.depth=1", "train.epochs=1"])
    run = fit(config, tmp_path / "run", progress=False)
    assert evaluate_run(run).count == 60
    np.savez(tmp_path / "data.npz", images=images[5:], labels=labels[5:])
    with pytest.raises(DataError, match=r"data.npz' changed since .* test images may be among those it was trained on"):
        evaluate_run(run)


def test_other_settings_are_another_training():
    asked = override(preset("vit"), ["data.name=digits"])
    done = fit_to_data(asked, load_dataset(asked.data))
    assert same_training(done, asked)
    for other in ("model.depth=6", "train.epochs=3", "data.augment.shift=0"):
        assert not same_training(done, override(asked, [other])), other
    assert not same_training(done, override(preset("cnn"), ["data.name=digits"]))


def test_a_run_has_a_format_marker(copy, tmp_path):
    """Published checkpoints have a config.json too, which may well contain the word preprocessing."""
    assert is_run(copy)
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text(json.dumps({"architectures": ["ViT"], "preprocessing": "resize"}))
    assert not is_run(published)
    (published / "config.json").write_bytes(b"\xff\xfe")
    assert not is_run(published)


def test_settings_of_format_1_are_migrated(copy):
    record = record_of(copy)
    record["format"] = 1
    record["config"]["model"] |= {"patch_embed": "linear"}
    record["preprocessing"] |= {"range": "0-1"}
    (copy / "config.json").write_text(json.dumps(record))
    run = Run.open(copy)
    assert run.record.format == FORMAT
    run.load_model()
    record["config"]["model"] = {"kind": "post-vit", "mends": ["attention"]}  # vocabulary: ok
    (copy / "config.json").write_text(json.dumps(record))
    assert Run.open(copy).config.model.fixes == ("attention",)


def test_keys_of_other_tools_stay_in_the_record(copy):
    edit(copy, note="mine")
    run = Run.open(copy)
    run.write_record()
    assert json.loads((copy / "config.json").read_text())["note"] == "mine"
