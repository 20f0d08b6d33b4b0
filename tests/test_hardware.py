"""The memory and the threads that this process may use: of the machine, its containers and its own limit."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from vitreous import hardware
from vitreous.config import CNNConfig, ViTConfig
from vitreous.config.presets import PRESETS
from vitreous.errors import ConfigError
from vitreous.models import build, count_parameters
from vitreous.models.size import least_parameters

GB = 10**9


@pytest.fixture
def machine(tmp_path):
    """Write files of /proc and /sys under a root of its own."""

    def write(**files: str) -> Path:
        for name, text in {"proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n", **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_memory_of_the_machine(machine):
    assert hardware.free_memory(machine()) == 32_768 * 10**6
    assert hardware.free_memory() is None or hardware.free_memory() > 0


@pytest.mark.parametrize("path", ["/", "/user.slice/app", "/a/path/on/the/host"])
def test_memory_of_a_container_of_version_2(machine, path):
    """Inside a container the path may be the host's; the limits are then at the root of the mount."""
    root = machine(**{
        "proc/self/cgroup": f"0::{path}\n",
        "sys/fs/cgroup/memory.max": f"{4 * GB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {GB}\ninactive_file {GB}\nactive_file {GB // 2}\n",
        "sys/fs/cgroup/user.slice/app/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/app/memory.current": "0\n",
    })  # fmt: skip
    assert hardware.free_memory(root) == 2.5 * GB  # the page cache is given back when memory is short


def test_the_tightest_group_counts(machine):
    root = machine(**{
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/memory.max": f"{2 * GB}\n",
        "sys/fs/cgroup/outer/memory.current": "0\n",
        "sys/fs/cgroup/outer/inner/memory.max": f"{5 * GB}\n",
        "sys/fs/cgroup/outer/inner/memory.current": "0\n",
    })  # fmt: skip
    assert hardware.free_memory(root) == 2 * GB


def test_memory_of_a_container_of_version_1(machine):
    root = machine(**{
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GB}\n",
    })  # fmt: skip
    assert hardware.free_memory(root) == 0


def test_memory_of_the_process(machine, monkeypatch):
    root = machine(**{"proc/self/statm": "1000 10 1 1 0 1 0\n"})
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (GB, GB))
    assert hardware.free_memory(root) == GB - 1000 * resource.getpagesize()


def test_require_memory_names_what_to_change(monkeypatch):
    monkeypatch.setattr(hardware, "free_memory", lambda: 2 * GB)
    hardware.require_memory(2 * GB, "the images", "take fewer")
    with pytest.raises(ConfigError, match=r"the images need more than 3 GB of memory, and 2 GB are free: take fewer"):
        hardware.require_memory(3 * GB, "the images", "take fewer")


def test_threads_are_limited(monkeypatch):
    before = torch.get_num_threads()
    with pytest.raises(ConfigError, match="99,999 threads are more than this machine can start"):
        hardware.prepare(99_999)
    assert torch.get_num_threads() == before
    monkeypatch.setenv("OMP_NUM_THREADS", "9" * 5000)
    assert hardware.default_threads() == hardware.most_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert hardware.default_threads() == 3


@pytest.mark.parametrize("name", PRESETS)
def test_least_parameters_is_a_close_lower_bound(name):
    config = PRESETS[name]().model
    with torch.device("meta"):
        count = count_parameters(build(config))
    bound = least_parameters(config)
    assert bound <= count
    assert bound >= 0.8 * count or config.kind == "post-cnn"


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(positions="relative"),
        ViTConfig(positions="sincos-2d"),
        ViTConfig(head="mlp"),
        ViTConfig(stem_channels=(8, 16), stem_depth=2, patch_size=(1, 1)),
        CNNConfig(hidden=3),
    ],
)
def test_least_parameters_of_variants(config):
    model = build(config)
    buffers = sum(buffer.numel() for buffer in model.buffers())
    assert 0.7 * count_parameters(model) <= least_parameters(config) <= count_parameters(model) + buffers


def test_models_that_cannot_fit_are_refused_before_they_are_built(monkeypatch):
    monkeypatch.setattr(hardware, "free_memory", lambda: GB)
    with pytest.raises(ConfigError, match="parameters of this 'vit' need more than"):
        build(ViTConfig(dim=2**20, num_heads=2))
    with pytest.raises(ConfigError, match="parameters of this 'cnn' need more than"):
        build(CNNConfig(hidden=2**31 - 1))


def test_one_bad_moment_does_not_decide_the_precision(monkeypatch):
    """Products of one precision that are slow at first, as on a busy machine, are measured again later."""
    calls = {torch.float32: 0, torch.bfloat16: 0}
    now = 0.0

    def linear(a: torch.Tensor, b: torch.Tensor) -> None:
        nonlocal now
        calls[a.dtype] += 1
        busy = a.dtype is torch.bfloat16 and calls[a.dtype] <= 20
        now += 3.0 if a.dtype is torch.float32 or busy else 1.0

    monkeypatch.setattr(hardware, "flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(hardware, "bfloat16_works", lambda: True)
    monkeypatch.setattr("torch.nn.functional.linear", linear)
    monkeypatch.setattr("vitreous.hardware.time.perf_counter", lambda: now)
    assert hardware.bfloat16_is_faster.__wrapped__()
