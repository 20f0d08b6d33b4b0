"""`vitreous train --processes N`: one command, several ranks, stopped and reported as one."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Child, Processes

import vitreous
from vitreous import hardware
from vitreous.config import configure
from vitreous.errors import ConfigError, RunError
from vitreous.runs import Run
from vitreous.training import distributed, launch
from vitreous.training.launch import is_launched, run_in_processes
from vitreous.training.loop import fit
from vitreous.training.lost_ranks import RankLost
from vitreous.training.restart import is_restart, run_to_restart

TINY = ("--data", "digits", "--set", "model.depth=1", "--set", "model.dim=16", "--set", "train.checkpoint_seconds=0.1")


@pytest.fixture
def train(processes: Processes, tmp_path: Path) -> Callable[..., Child]:
    """Start `vitreous train` in the test's folder."""
    return functools.partial(processes.vitreous, "train", cwd=tmp_path)


def test_two_processes_share_one_training(tmp_path, train):
    process = train("vit", "--epochs", "1", "--processes", "2", *TINY)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert out.count("on the test set") == 1, "one rank speaks"
    run = Run.open(tmp_path / "runs" / "digits-vit")  # both ranks agreed on the folder that rank 0 made
    assert run.resolved.world_size == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-vit"]


def test_processes_inside_another_launchers_job(monkeypatch):
    assert not is_launched(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched(2)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match=r"--processes 2 inside a job of 8 .*leave --processes out"):
        is_launched(2)


def test_a_mistake_is_reported_once(tmp_path, train):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    arguments = ("vit", "--data", "digits", "--processes", "2", "-o", "taken")
    process = train(*arguments)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.count("taken") == 1
    assert "Traceback" not in errors
    assert (tmp_path / "taken" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)])
def test_stopping_saves_on_all_ranks_and_resumes(tmp_path, train, number, code):
    settings = ("--epochs", "4000", *TINY)
    process = train("vit", "--processes", "2", "-o", "run", *settings)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "run" / "resume").glob("step-*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert errors.count("stopped at step") == 1
    assert "vitreous train --resume --processes 2 -o run" in errors
    assert "Traceback" not in errors
    steps = [json.loads(path.read_text())["step"] for path in (tmp_path / "run" / "resume").glob("step-*.json")]
    assert max(steps) > 0


def test_two_ranks_go_on_where_they_stopped(tmp_path, train):
    """Stopped and resumed: the same bits as a training that was never stopped."""
    settings = ("--epochs", "12", "--processes", "2", *TINY)
    whole = train("vit", "-o", "whole", *settings)
    whole.communicate(timeout=240)
    stopped = train("vit", "-o", "run", *settings)
    while not list((tmp_path / "run" / "resume").glob("step-*.json")):
        assert stopped.poll() is None, "it was to be stopped before its end"
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=120)
    assert stopped.returncode == 143
    resumed = train("--resume", "-o", "run", "--processes", "2")
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert Run.open(tmp_path / "run").record.weights == Run.open(tmp_path / "whole").record.weights


# --- a lost rank ---------------------------------------------------------------------------------------------


def test_lost_ranks_are_reported_once_and_by_rank():
    """Killed, killed and the others terminated as torchrun does, stopped, failed for a reason of its own, orphaned."""
    script = Path(__file__).with_name("lost_ranks_script.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    go_on = "so the training stopped; go on with: vitreous.fit(resume=True, out='the run')"
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert printed == [
        "# killed", f"rank 1 of 3 ended, {go_on}", {"1": -9, "0": 75, "2": 75},
        "# killed, and the others terminated", f"rank 0 of 3 ended, {go_on}", {"0": -9, "1": 75, "2": 75},
        "# silent", f"rank 1 of 3 did not respond for 1 s (train.timeout_seconds), {go_on}",
        {"0": 75, "1": -9, "2": 75},
        "# failed", "a reason of its own", {"0": 2, "1": 75},
        "# orphan", True,
    ]  # fmt: skip
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "sentence", "exit_code"),
    [
        ("sys.exit(75)", "end(signal.SIGKILL)", r"rank 1 of 2 was ended by SIGKILL \(often .* memory\)", 137),
        ("time.sleep(600)", "end(signal.SIGBUS)", "rank 1 of 2 was ended by SIGBUS", 135),
        ("sys.exit(75)", "1 / 0", "rank 1 of 2 ended with exit code 1", 1),
        ("sys.exit(75)", "time.sleep(600)", "the 2 processes waited for rank 1 longer than train.timeout_seconds", 75),
        ("sys.exit(75)", "sys.exit(75)", "the 2 processes waited for each other longer", 75),
    ],
)
def test_the_launcher_says_which_rank_was_lost(monkeypatch, capfd, rank_0, rank_1, sentence, exit_code):
    script = (
        "import os, signal, sys, time\nend = lambda number: os.kill(os.getpid(), number)\n"
        f"{{'0': lambda: {rank_0}, '1': lambda: {rank_1}}}[os.environ['RANK']]()"
    )
    monkeypatch.setattr(launch, "_COMMAND", (sys.executable, "-S", "-c", script))
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    with pytest.raises(
        RankLost, match=f"^{sentence}.*, so the training stopped; nothing was trained yet: start it"
    ) as lost:
        run_in_processes(2, [])
    assert lost.value.exit_code == exit_code
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (rank_1 == "1 / 0"), "what the lost rank wrote is shown"


def test_what_all_ranks_report_is_shown_once(monkeypatch, capfd):
    """Also when rank 0, whose messages are shown at once, ends last."""
    script = (
        "import os, sys, time; print('stopped', file=sys.stderr); time.sleep(os.environ['RANK'] == '0'); sys.exit(143)"
    )
    monkeypatch.setattr(launch, "_COMMAND", (sys.executable, "-S", "-c", script))
    assert run_in_processes(2, []) == 143
    assert capfd.readouterr().err == "stopped\n"


def test_ranks_that_never_meet_are_given_up(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    sentence = rf"the 2 processes did not meet at 127.0.0.1:{port} within 1 s \(train.timeout_seconds\): start all"
    with pytest.raises(RankLost, match=sentence), distributed.group(1):
        pass
    assert time.monotonic() - start < 30
    with monkeypatch.context() as patched:  # as gloo waits for a connection that a firewall swallows
        patched.setattr(distributed, "rendezvous", lambda *_, **__: iter([(None, 0, 2)]))
        patched.setattr(distributed, "of_this_start", lambda store: threading.Event().wait(20))
        with pytest.raises(RankLost, match=sentence), distributed.group(1):
            pass
    assert time.monotonic() - start < 15
    monkeypatch.delenv("RANK")
    with pytest.raises(
        ConfigError,
        match=r"WORLD_SIZE=2 announces 2 processes, which cannot be joined .* RANK expected.* or unset WORLD_SIZE",
    ):
        fit(configure("vit", settings=["train.timeout_seconds=1"], data="digits"))


def test_the_timeout_is_a_setting(monkeypatch):
    seen = []

    def group(seconds: float) -> None:
        seen.append(seconds)
        raise RankLost("enough")

    monkeypatch.setattr(distributed, "group", group)
    for settings in ([], ["train.timeout_seconds=7"]):
        with pytest.raises(RankLost):
            fit(configure("vit", settings=settings, data="digits"))
    assert seen == [300, 7]
    with pytest.raises(ConfigError, match=r"train\.timeout_seconds=0"):
        configure("vit", settings=["train.timeout_seconds=0"])


def test_no_more_processes_than_the_machine_can_run(monkeypatch):
    monkeypatch.setattr(launch, "_COMMAND", (sys.executable, "-S", "-c", ""))
    monkeypatch.setattr(hardware, "available_cores", lambda: 2)
    monkeypatch.setattr(hardware, "free_memory", lambda: 16 * 10**9)
    with pytest.raises(
        ConfigError, match=r"--processes 64 is more .* at most 8 on 2 cores and 16.0 GB .*--processes 2"
    ):
        run_in_processes(64, [])
    monkeypatch.setattr(hardware, "free_memory", lambda: 10**9)
    with pytest.raises(
        ConfigError, match=r"--processes 4 is more than this machine can run: at most 2 on 2 cores and 1"
    ):
        run_in_processes(4, [])


def start_train(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start it as a user does, not by a fork."""
    command = [sys.executable, "-m", "vitreous", "train", "vit", *TINY, *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip


def rank_processes(launcher: int) -> dict[int, int]:
    """Return the process id of each rank."""
    if sys.platform != "linux":
        pytest.skip("finds the ranks in /proc")
    found = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(entry[5:]): int(child) for entry in environment if entry.startswith(b"RANK=")}
    return found


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    while not list((run / "resume").glob("step-*.json")):
        assert process.poll() is None, "it was to be disturbed before its end"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "sentence", "code"),
    [
        (signal.SIGKILL, "rank 1 of 2 was ended by SIGKILL", 137),
        (signal.SIGSTOP, "the 2 processes waited for rank 1 longer than train.timeout_seconds", 75),
    ],
)
def test_a_lost_rank_ends_the_training_in_seconds(tmp_path, number, sentence, code):
    settings = ("--epochs", "400", "--set", "train.timeout_seconds=3", "--processes", "2", "-o", "run")
    process = start_train(*settings, cwd=tmp_path)
    wait_for_checkpoint(tmp_path / "run", process)
    os.kill(rank_processes(process.pid)[1], number)
    start = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert time.monotonic() - start < 60
    assert process.returncode == code
    [line] = [line for line in errors.splitlines() if line.startswith("vitreous: ")]
    assert line.startswith(f"vitreous: {sentence}")
    assert line.endswith("; go on with: vitreous train --resume --processes 2 -o run")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_ranks_end_with_their_launcher(tmp_path):
    process = start_train("--epochs", "400", "--processes", "2", "-o", "run", cwd=tmp_path)
    wait_for_checkpoint(tmp_path / "run", process)
    ranks = rank_processes(process.pid)
    process.kill()
    _, errors = process.communicate(timeout=60)  # until rank 0 has closed it
    assert errors.count("stopped at step") == 1, "they saved"
    deadline = time.monotonic() + 60
    while any(_is_running(child) for child in ranks.values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _is_running(child: int) -> bool:
    try:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- restarts by torchrun ------------------------------------------------------------------------------------


def test_a_restart_goes_on_with_the_unfinished_run_of_the_same_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configure("vit", settings=["model.depth=1", "model.dim=16", "train.epochs=0.1"], data="digits")
    other = config.replace(seed=1)
    with monkeypatch.context() as patched:
        patched.setattr("vitreous.training.loop.Trainer.train", lambda *_: 1 / 0)
        for out in ("run", None, None):  # without -o: runs/digits-vit and runs/digits-vit-2
            with pytest.raises(ZeroDivisionError):
                fit(config, out, progress=False)
    assert not is_restart(), "not restarted by torchrun"
    with pytest.raises(RunError, match="'run' exists already: add resume=True"):
        fit(config, "run", progress=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_to_restart(other, "run") is run_to_restart(other, None) is None
    assert run_to_restart(config, "nowhere") is None
    with pytest.raises(RunError, match="'run' exists already: add resume=True"):
        fit(other, "run", progress=False)
    assert fit(config, "run", progress=False).path == Path("run")
    with pytest.raises(RunError, match="'run' exists already"):
        fit(config, "run", progress=False)  # finished by now
    newest = json.loads(Path("runs/digits-vit-2/config.json").read_text())
    del newest["checksum"]  # accept the edit
    Path("runs/digits-vit-2/config.json").write_text(json.dumps({**newest, "created": "9999"}))
    assert fit(config, progress=False).path == Path("runs/digits-vit-2")


@pytest.mark.slow
def test_torchrun_restarts_to_the_same_weights(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["-m", "vitreous", "train", "vit", *TINY, "--epochs", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "-o", "whole"], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300
    )
    for out in (["-o", "run"], []):
        process = subprocess.Popen([*command, *out], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        run = tmp_path / (out[1] if out else "runs/digits-vit")
        wait_for_checkpoint(run, process)
        os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert (
            errors.count("rank 1 of 2 ended, so the training stopped; torchrun starts it again (restart 1 of 1)") == 1
        )
        assert "Traceback" not in errors
        assert Run.open(run).record.weights == Run.open(tmp_path / "whole").record.weights
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-vit"]


# --- child processes and the current folder ------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Work in a folder with files named like modules, which leave a trace if they are imported."""
    for name in ("typer", "torch", "random", "pickle", "selectors", "vitreous"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w').write(__name__)\nraise SystemExit(99)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    yield tmp_path
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


def test_ranks_do_not_import_from_the_current_folder(hostile, capfd):
    assert run_in_processes(2, ["--version"]) == 0
    assert capfd.readouterr().out == f"vitreous {vitreous.__version__}\n"


def test_the_bf16_probe_does_not_import_from_the_current_folder(hostile, monkeypatch):
    monkeypatch.setattr(hardware, "_PROBE_BFLOAT16", "import random")
    assert hardware.bfloat16_works.__wrapped__()


def test_server_workers_do_not_import_from_the_current_folder(hostile, monkeypatch):
    granian = pytest.importorskip("granian.server")
    from vitreous.serving import server
    from vitreous.serving.limits import Limits

    class Server:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def serve(self, **_: object) -> None:
            worker = multiprocessing.Process(target=os.getpid)  # as granian starts its own
            worker.start()
            worker.join()
            assert worker.exitcode == 0

    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(granian, "Server", Server)
    previous = multiprocessing.get_start_method()
    try:
        server._run_granian(lambda: None, "127.0.0.1", 0, 1, Limits())
    finally:
        multiprocessing.set_start_method(previous, force=True)


def test_the_command_itself_does_not_import_from_the_current_folder(hostile):
    """`python -m` and torchrun put the current folder first: Python itself, and our __init__, still look there."""
    for name in ("vitreous", "random", "pickle", "selectors"):
        (hostile / f"{name}.py").unlink()
    subprocess.run([sys.executable, "-m", "vitreous", "--version"], check=True, capture_output=True, timeout=60)


def test_every_child_interpreter_ignores_the_current_folder():
    source = Path(vitreous.__file__).parent
    started = [match for path in source.rglob("*.py") for match in re.findall(r"sys\.executable(.*)", path.read_text())]
    assert len(started) >= 4, "this test must find them"
    assert [rest for rest in started if not re.match(r', "-[PI]"', rest)] == []
