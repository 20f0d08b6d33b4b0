"""One candidate in its own process, which waits for requests: the parent lets several take turns.

Each has a process, because thread pools, compilers and memory belong to one. Requests and replies are JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.config import ViTConfig

IMAGES_SEED = 3


@dataclass(frozen=True)
class Candidate:
    """A library, and how its model is run."""

    peer: str
    config: dict[str, Any]  # of a ViTConfig
    weights: str  # the folder that peers.write_weights filled
    #: eager; tuned (eager, in a process that `hardware.prepare` has configured); compiled; onnx;
    #: for vitreous also split and whole (eager; the batch split over two threads or not, whatever the rule decides)
    mode: str = "eager"
    threads: int | None = None  # None: all cores, as a user gets them

    @property
    def file_name(self) -> str:
        return self.peer.replace(" ", "-")  # torch passes its path to a compiler, unquoted


class WorkerError(RuntimeError):
    """The candidate failed; the message is its own."""


class Worker:
    """A candidate's process, seen from the parent; a context manager."""

    def __init__(self, candidate: Candidate):
        self.candidate = candidate
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(candidate))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            # its own cache: a shared one would shorten the compilation of the next candidate
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{candidate.weights}/{candidate.file_name}-inductor"},
        )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # no more requests: it ends by itself
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, request: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(self._last_message())
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]

    def _last_message(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{self.candidate.peer} ended with {self._process.returncode}: {lines[-1] if lines else 'no message'}"


# --- the child -----------------------------------------------------------------------------------------------------


def resident_peak_megabytes() -> float:
    """Return the peak of this process alone: `ru_maxrss` starts with its parent's memory at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


class Requests:
    """The requests a worker can serve. Every method returns what JSON can represent."""

    def __init__(self, candidate: Candidate):
        import torch

        from vitreous import hardware

        if candidate.peer == "vitreous" or candidate.mode == "tuned":
            hardware.prepare(candidate.threads)  # as its commands do; a peer's user has torch's defaults
        elif candidate.threads is not None:
            torch.set_num_threads(candidate.threads)
        torch.manual_seed(0)
        self.candidate = candidate
        self.config = ViTConfig(**candidate.config)
        self.folder = Path(candidate.weights)

    @cached_property
    def model(self) -> Any:
        import torch
        from peers import build_peer

        model = build_peer(self.candidate.peer, self.config, self.folder)
        return torch.compile(model) if self.candidate.mode == "compiled" else model

    @cached_property
    def optimizers(self) -> Any:
        from peers import make_peer_optimizers

        return make_peer_optimizers(self.candidate.peer, getattr(self.model, "_orig_mod", self.model))

    def split(self, batch: int) -> Any:
        """Return the two threads that vitreous would train such a batch on, or None for the whole batch at once."""
        import torch

        from vitreous.models.fast.split_batch import SplitBatch, split_is_faster

        mode, threads = self.candidate.mode, torch.get_num_threads()
        ours = self.candidate.peer == "vitreous"
        wanted = mode == "split" or (ours and mode == "eager" and split_is_faster(self.config, batch, threads))
        return SplitBatch(threads) if wanted else None

    @cached_property
    def predict(self) -> Callable[[Any], Any]:
        """Return images → logits, for inference, by the fastest path of this candidate."""
        if self.candidate.mode == "onnx":
            return _onnx_session(self.candidate, self.config, self.folder)
        import torch
        from peers import logits_of

        from vitreous.models.fast.inference import infer

        @torch.inference_mode()
        def run(images: Any) -> Any:  # vitreous: as its `predict` does; a compiled model is called directly
            ours = self.candidate.peer == "vitreous" and self.candidate.mode != "compiled"
            return infer(self.model, images) if ours else logits_of(self.model(images))

        self.model.eval()
        return run

    def images(self, batch: int) -> Any:
        import torch

        generator = torch.Generator().manual_seed(IMAGES_SEED)
        return torch.randn(batch, self.config.channels, *self.config.image_size, generator=generator)

    def logits(self, batch: int) -> list[list[float]]:
        return self.predict(self.images(batch)).tolist()

    def train(self, batch: int, steps: int) -> float:
        """Return the seconds per step: forward, loss, backward, AdamW; the batch is in memory already."""
        import torch
        import torch.nn.functional as F
        from peers import logits_of

        from vitreous import hardware

        images = self.images(batch)
        labels = torch.arange(batch) % self.config.num_classes
        optimizers, model, split = self.optimizers, self.model, self.split(batch)
        model.train()

        def backward(rows: torch.Tensor) -> None:
            loss = F.cross_entropy(logits_of(model(images[rows])), labels[rows])
            (loss * (len(rows) / batch)).backward()

        def step() -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            if split is not None:
                split.run(backward, torch.arange(batch))
            else:
                F.cross_entropy(logits_of(model(images)), labels).backward()
            for optimizer in optimizers:
                optimizer.step()

        start = time.perf_counter()
        with contextlib.nullcontext() if split is None else hardware.one_thread():  # as training/step.py
            for _ in range(steps):
                step()
        seconds = (time.perf_counter() - start) / steps
        self.__dict__.pop("predict", None)  # built again, in eval mode, at the next request
        return seconds

    def infer(self, batch: int, calls: int) -> float:
        """Return the seconds per batch."""
        images, predict = self.images(batch), self.predict
        start = time.perf_counter()
        for _ in range(calls):
            predict(images)
        return (time.perf_counter() - start) / calls

    def flops(self) -> float:
        """Return the FLOPs per image that a vitreous model executes in training, which skips unused outputs.

        Its attention must be the unfused one for that: torch counts no FLOPs inside the fused kernel.
        """
        from torch.utils.flop_counter import FlopCounterMode

        for block in self.model.blocks:
            block.attn.fused, fused = False, block.attn.fused
        with FlopCounterMode(display=False) as counter:
            self.model.train()(self.images(2))
        for block in self.model.blocks:
            block.attn.fused = fused
        self.__dict__.pop("predict", None)
        return counter.get_total_flops() / 2

    def load_libraries(self) -> None:
        """Import what is imported on first use, such as torch's optimizers: it is not part of a model's memory."""
        from peers import make_peer_optimizers
        from torch import nn

        make_peer_optimizers(self.candidate.peer, nn.Linear(1, 1))

    def peak_memory(self) -> float:
        """Return the peak memory of this process in megabytes, libraries included."""
        return resident_peak_megabytes()


def _onnx_session(candidate: Candidate, config: ViTConfig, folder: Path) -> Callable[[Any], Any]:
    import onnxruntime
    import torch

    path = folder / f"{candidate.file_name}.onnx"
    _export_ours(config, folder, path) if candidate.peer == "vitreous" else _export_peer(candidate, config, path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.intra_op_num_threads = candidate.threads or torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name, first = session.get_inputs()[0].name, session.get_outputs()[0].name
    return lambda images: session.run([first], {name: images.numpy()})[0]


def _export_ours(config: ViTConfig, folder: Path, path: Path) -> None:
    """Export as `vitreous export --lean` does."""
    from peers import build_peer

    from vitreous.data.preprocessing import Preprocessing
    from vitreous.export.onnx_files import export_onnx
    from vitreous.runs import Run

    plain = Preprocessing(
        image_size=config.image_size, channels=config.channels, mean=(0.0,) * config.channels,
        std=(1.0,) * config.channels, resize="bilinear", polarity="as-is",
    )  # fmt: skip
    names = tuple(str(number) for number in range(config.num_classes))
    run = Run.adopt(path.with_suffix(".run"), build_peer("vitreous", config, folder), plain, names, [])
    export_onnx(run, path, full=False)


def _export_peer(candidate: Candidate, config: ViTConfig, path: Path) -> None:
    import torch
    from peers import build_peer, logits_of

    class Logits(torch.nn.Module):
        def __init__(self, model: torch.nn.Module):
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return logits_of(self.model(images))

    model = Logits(build_peer(candidate.peer, config, Path(candidate.weights))).eval()
    torch.backends.mha.set_fastpath_enabled(False)  # ONNX has no such fused operator
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    images = torch.randn(3, config.channels, *config.image_size)
    torch.onnx.export(
        model, (images,), path, dynamo=True, external_data=False, verbose=False, dynamic_shapes={"images": {0: batch}}
    )


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")  # what libraries print goes to stderr, away from the replies
    os.dup2(2, 1)
    requests = Requests(Candidate(**json.loads(sys.argv[1])))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            value = {"value": getattr(requests, request.pop("request"))(**request)}
        except Exception as error:  # whatever another library raises becomes the reply
            value = {"error": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"}
        replies.write(json.dumps(value) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
