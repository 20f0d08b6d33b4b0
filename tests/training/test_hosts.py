"""Two hosts, as two network namespaces joined by a cable: torchrun on both trains as one host does, and one may die.

A process of a host is a fork of the tests' server (`processes.py`) that enters the namespace first. The hosts share
the disk, as those of a cluster do, and nothing else: their traffic stays between the two namespaces.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from processes import Child, Processes
from safetensors.torch import load_file

from vitreous.runs import Run

_ENTER = """
import ctypes, runpy, sys
with open(f"/run/netns/{sys.argv.pop(1)}") as namespace:
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000):  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "setns")
sys.argv[0] = "torchrun"
runpy.run_module("torch.distributed.run", run_name="__main__")
"""

_SPEC = importlib.util.spec_from_file_location(
    "reference_losses", Path(__file__).parents[1] / "reference" / "losses.py"
)
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)

_SETTINGS = (*reference.HOSTS, "train.checkpoint_seconds=0.1")
TRAIN = ("-m", "vitreous", "train", "vit", "--data", "digits", *(f"--set={setting}" for setting in _SETTINGS))
MEET_AT = "10.213.7.1:29500"  # on the first host


@dataclass
class Host:
    """A network namespace with one interface."""

    name: str
    address: str
    interface: str
    processes: Processes
    children: list[Child] = field(default_factory=list)

    def torchrun(self, *options: str, meet_at: str, cwd: Path) -> Child:
        # fewer hosts than the most begin after 8 s instead of 30; torchrun compares names, which both hosts share, to
        # know which one the others meet at
        patience = f"is_host={meet_at.startswith(f'{self.address}:')},last_call_timeout=8"
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", meet_at, "--rdzv-id", "test", "--rdzv-conf", patience)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCH")}
        environment |= {
            "GLOO_SOCKET_IFNAME": self.interface,  # gloo would choose by the host's name, which both have
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # so that a host can be replaced: docs/scale.md
            "OMP_NUM_THREADS": "1",
        }
        child = self.processes.start(
            "-c", _ENTER, self.name, "--local-addr", self.address, "--monitor-interval", "0.2", *meeting, *options,
            cwd=cwd, env=environment,
        )  # fmt: skip
        self.children.append(child)
        return child

    def die(self) -> None:
        """Kill everything that runs on this host: torchrun and its ranks."""
        while running := _ip("netns", "pids", self.name).split():
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts(processes: Processes) -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; all that runs on them ends with the test."""
    made = [
        Host(f"vitreous-{os.getpid()}-{letter}", f"10.213.7.{number}", f"v{os.getpid()}{letter}", processes)
        for number, letter in ((1, "a"), (2, "b"))
    ]
    with contextlib.ExitStack() as stack:
        try:
            for host in made:
                _ip("netns", "add", host.name)
                stack.callback(_ip, "netns", "del", host.name)
                stack.callback(host.die)
            first, second = made
            _ip("-n", first.name, "link", "add", first.interface, "type", "veth",
                "peer", "name", second.interface, "netns", second.name)  # fmt: skip
            for host in made:
                _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.interface)
                for interface in ("lo", host.interface):
                    _ip("-n", host.name, "link", "set", interface, "up")
        except FileNotFoundError:
            pytest.skip("there is no `ip` (iproute2) to make network namespaces with")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no right to make network namespaces: {error.stderr.strip()}")
        yield first, second


@pytest.fixture(scope="module")
def one_host(processes: Processes, tmp_path_factory) -> Path:
    """Return the run that two processes of one host make."""
    folder = tmp_path_factory.mktemp("one-host")
    result = processes.run(*TRAIN, "--processes", "2", "-o", "run", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "run"


WAYS = [pytest.param((), id="ddp"), pytest.param(("--shard",), id="shard", marks=pytest.mark.slow)]


def wait_for_step(run: Path, step: int, children: list[Child]) -> None:
    deadline = time.monotonic() + 120
    while not [file for file in run.glob("resume/step-*.json") if int(file.stem[5:]) >= step]:
        for child in children:
            assert child.poll() is None, f"it was to be disturbed before its end: {child.output()}"
        assert time.monotonic() < deadline, [child.output() for child in children]
        time.sleep(0.02)


@pytest.mark.parametrize("options", WAYS)
def test_two_hosts_train_as_one(tmp_path, hosts, one_host, options):
    """The same bits; sharded, within rounding."""
    command = ("--nnodes", "2", *TRAIN, *options, "-o", "run")
    children = [host.torchrun(*command, meet_at=MEET_AT, cwd=tmp_path) for host in hosts]
    for child in children:
        assert child.wait(120) == 0, [other.output() for other in children]
    assert_same(tmp_path / "run", one_host, is_exact=not options)


def assert_same(run: Path, expected: Path, is_exact: bool) -> None:
    """Compare the weights with those of one host, and the losses with the recorded ones."""
    recorded = json.loads(reference.RECORDED.read_text())
    losses = [line["loss"] for line in Run.open(run).metrics() if line["event"] == "train"]
    same_machine = reference.machine() == recorded["machine"]
    if is_exact:
        assert Run.open(run).record.weights == Run.open(expected).record.weights
        assert not same_machine or losses == recorded["losses"]["two-hosts"]
    assert losses == pytest.approx(recorded["losses"]["two-hosts"], rel=0.01 if same_machine else 0.25)
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, expected))
    for name, value in ours.items():
        other, dim = theirs[name], len(value) // 3
        if name.endswith("qkv.bias"):  # a key's bias changes no attention: its gradient is nothing but rounding
            value, other = (torch.cat([values[:dim], values[2 * dim :]]) for values in (value, other))
        torch.testing.assert_close(value, other, rtol=0.02, atol=5e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_a_host_dies_and_is_replaced(tmp_path, hosts, one_host):
    """Its replacement, which SLURM or Kubernetes would start, joins those that wait; the same bits in the end."""
    command = ("--nnodes", "2", "--max-restarts", "2", *TRAIN, "-o", "run")
    survivor, _ = children = [host.torchrun(*command, meet_at=MEET_AT, cwd=tmp_path) for host in hosts]
    wait_for_step(tmp_path / "run", 8, children)
    hosts[1].die()
    start = time.monotonic()
    replacement = hosts[1].torchrun(*command, meet_at=MEET_AT, cwd=tmp_path)
    for child in (survivor, replacement):
        assert child.wait(120) == 0, (survivor.output(), replacement.output())
    assert time.monotonic() - start < 120
    assert "torchrun starts it again (restart 1 of 2)" in survivor.output()[1]
    assert_same(tmp_path / "run", one_host, is_exact=True)


@pytest.mark.parametrize("options", WAYS)
def test_a_host_dies_and_the_other_goes_on(tmp_path, hosts, one_host, options):
    """With --nnodes 1:2, on one rank instead of two: the same batches, so the same weights within rounding."""
    command = ("--nnodes", "1:2", "--max-restarts", "2", *TRAIN, *options, "-o", "run")
    survivor, _ = children = [host.torchrun(*command, meet_at=MEET_AT, cwd=tmp_path) for host in hosts]
    wait_for_step(tmp_path / "run", 8, children)
    hosts[1].die()
    assert survivor.wait(120) == 0, survivor.output()
    assert Run.open(tmp_path / "run").is_done
    assert_same(tmp_path / "run", one_host, is_exact=False)
