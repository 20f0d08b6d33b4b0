"""What all tests share: one thread each, the peers made importable, and in CI a skip is a failure."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from processes import Processes

# There is no CPU build of torchvision 0.28 in the registry: the one that installs beside torch 2.13 looks for two
# operators of its compiled half when it is imported. Declared (never called), torchvision, timm and transformers
# import. They are peers to compare with, so this stays in the tests.
if not hasattr(torch.ops.torchvision, "nms"):
    _TORCHVISION = torch.library.Library("torchvision", "DEF")  # declarations live as long as this does
    for _operator in ("nms", "qnms"):
        _TORCHVISION.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# Tiny models: a second thread costs more than it brings, and pytest-xdist already fills the cores.
torch.set_num_threads(1)

# Prepared copies of the tests' images: not in the user's cache.
os.environ["VITREOUS_PREPARED"] = tempfile.mkdtemp(prefix="vitreous-tests-")
atexit.register(shutil.rmtree, os.environ["VITREOUS_PREPARED"], ignore_errors=True)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Every test starts from the same random numbers, whichever ran before it, and leaves the global state alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Start other Python processes without the seconds that importing torch takes."""
    started = Processes()
    yield started
    started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """In CI everything is installed, so whatever skips there is a test that silently stopped testing."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and in CI a skip is a failure: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """The same for a module that skips itself while it is collected (`pytest.importorskip` at its top)."""
    report = yield
    if IN_CI and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and in CI a skip is a failure: {report.longrepr}"
    return report


def _peer(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"the peer {module} is not installed: `make test` installs it ({error})")


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    return _peer("timm.models.vision_transformer")


@pytest.fixture(scope="session")
def torchvision_vit() -> ModuleType:
    return _peer("torchvision.models.vision_transformer")


@pytest.fixture(scope="session")
def transformers_vit() -> ModuleType:
    return _peer("transformers.models.vit.modeling_vit")


@pytest.fixture(scope="session")
def randomise():
    """Give every parameter a random value: fresh biases are 0 and norms 1, which would hide wiring mistakes."""

    @torch.no_grad()
    def _randomise(model: torch.nn.Module, seed: int = 0, scale: float = 0.2) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in sorted(model.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
            is_norm_weight = "norm" in name and name.endswith("weight")
            parameter.copy_(values + 1 if is_norm_weight else values)
        return model

    return _randomise
