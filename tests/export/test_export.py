"""ONNX files: their contents, that they equal the model, and that a file which does not is never written."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file

from vitreous import runs
from vitreous.config import ArticleViTConfig, CNNConfig, Config, DataConfig, ModelConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ExportError, MissingExtraError
from vitreous.export import onnx_files, parity
from vitreous.export.catalog import model_entries
from vitreous.export.graph import LEAST_HALVED, build_graph
from vitreous.export.images import sample_images
from vitreous.export.onnx_files import export_onnx
from vitreous.inspection.cells import patch_cells
from vitreous.models import build
from vitreous.runs import Run
from vitreous.serving import pages, static_page
from vitreous.serving.static_page import export_page

RESULTS = runs.TestResults(
    accuracy=0.5, correct=5, count=10, nll=1.0, calibration_error=0.1, train_seconds=1.0, images_per_second=10.0
)
TINY = ViTConfig(dim=16, depth=2, num_heads=2, mlp_dim=24, zero_head=False)


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory, randomise: Any) -> Callable[..., Run]:
    def make(model: ModelConfig, name: str = "tiny", **data: Any) -> Run:
        config = Config(name=name, model=model, data=DataConfig(name="digits", **data))
        dataset = load_dataset(config.data)
        preprocessing = Preprocessing.for_dataset(dataset)
        run = Run.create(tmp_path_factory.mktemp(name) / name, config, dataset, preprocessing)
        run.finish(randomise(build(model)), RESULTS)
        return run

    return make


@pytest.fixture(scope="module")
def tiny(make_run: Callable[..., Run]) -> Run:
    return make_run(TINY)


@pytest.fixture(scope="module", autouse=True)
def _trace_once() -> Any:
    """Trace each run's graph once for all tests here, since that takes seconds; nothing else is replaced."""
    traced: dict[tuple[Path, bool], Any] = {}

    def remembered(run: Run, model: torch.nn.Module, full: bool) -> Any:
        key = (run.path, full)
        if key not in traced:
            traced[key] = build_graph(run, model, full)
        copy = type(traced[key])()
        copy.CopyFrom(traced[key])
        return copy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_files, "build_graph", remembered)
        yield


@pytest.fixture(scope="module")
def exported(tiny: Run, tmp_path_factory: pytest.TempPathFactory) -> onnx_files.Exported:
    return export_onnx(tiny, tmp_path_factory.mktemp("onnx") / "deeper" / "tiny.onnx")


@pytest.fixture(scope="module")
def session(exported: onnx_files.Exported) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(exported.path, options)


def pixels_of(run: Run, count: int = 5) -> np.ndarray:
    images = sample_images(run, parity.NUM_IMAGES)[0][-count:]
    return images.float().div(255).numpy()


def test_reports_what_it_wrote(exported: onnx_files.Exported) -> None:
    assert exported.full
    assert exported.inputs == ("pixels", "head_mask", "token_mask")
    assert exported.outputs == ("logits", "probabilities", "attention", "lens", "queries", "keys", "values", "kept")
    assert exported.bytes == exported.path.stat().st_size
    assert exported.parity.images >= 64
    assert exported.parity.max_difference < 1e-4
    assert [path.name for path in exported.path.parent.iterdir()] == ["tiny.onnx"]  # one file, no leftovers


def test_no_path_of_this_machine_is_in_the_file(exported: onnx_files.Exported) -> None:
    """The exporter notes a stack trace for each operation."""
    content = exported.path.read_bytes()
    assert b"stack_trace" not in content
    assert b".py" not in content


def test_only_pixels_are_required(session: ort.InferenceSession, tiny: Run) -> None:
    assert [value.name for value in session.get_inputs()] == ["pixels"]
    assert {value.name for value in session.get_overridable_initializers()} == {"head_mask", "token_mask"}
    for count in (1, 2, 7):
        assert session.run(["logits"], {"pixels": pixels_of(tiny, count)})[0].shape == (count, 10)


def test_equals_the_model(session: ort.InferenceSession, tiny: Run) -> None:
    pixels = pixels_of(tiny)
    model = tiny.load_model()
    taps: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        wanted = model(tiny.preprocessing.to_input(torch.from_numpy(pixels)), taps)
    names = ["logits", "probabilities", "attention", "lens", "queries"]
    logits, probabilities, attention, lens, queries = session.run(names, {"pixels": pixels})
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    np.testing.assert_allclose(probabilities, wanted.softmax(1), atol=1e-6)
    np.testing.assert_allclose(attention[:, 1], taps["blocks.1.attention"], atol=1e-6)
    np.testing.assert_allclose(queries[:, 0], taps["blocks.0.q"], atol=1e-5)
    np.testing.assert_allclose(lens[:, -1], wanted, atol=1e-5)
    with torch.inference_mode():
        np.testing.assert_allclose(lens[:, 0], model.classify(taps["tokens"]), atol=1e-5)


def test_masks_remove_heads_and_patches(session: ort.InferenceSession, tiny: Run) -> None:
    pixels = pixels_of(tiny, 3)
    heads = np.array([[1, 0], [0, 1]], np.float32)
    patches = np.ones((3, 16), np.float32)
    patches[1, 4] = patches[2, 5:9] = 0
    feeds = {"pixels": pixels, "head_mask": heads, "token_mask": patches}
    logits, attention = session.run(["logits", "attention"], feeds)
    normalised = tiny.preprocessing.to_input(torch.from_numpy(pixels))
    with torch.inference_mode():
        wanted = tiny.load_model()(
            normalised, head_mask=torch.from_numpy(heads), patch_mask=torch.from_numpy(patches) > 0
        )
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    assert (attention[1, :, :, :, 1 + 4] == 0).all()
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
    one_row = session.run(["logits"], {"pixels": pixels, "token_mask": patches[1:2]})[0]
    assert one_row.shape == (3, 10)  # one row serves all images


def test_metadata_is_json(session: ort.InferenceSession, tiny: Run) -> None:
    metadata = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert metadata["class_names"] == list("0123456789")
    assert metadata["preprocessing"] == tiny.preprocessing.model_dump(mode="json")
    assert metadata["model"]["patch_size"] == [7, 7]
    assert metadata["run"] == "tiny"
    assert metadata["accuracy"] == 0.5
    assert "0 to 1" in metadata["meanings"]["pixels"]
    assert np.shape(metadata["position_similarity"]) == (16, 16)
    assert np.allclose(np.diag(metadata["position_similarity"]), 1)


VARIANTS = {
    "mean": TINY.replace(
        depth=1, pool="mean", positions="learned-2d", stem_channels=(4,), stem_depth=2, patch_size=4, fit="pad"
    ),
    "seq": TINY.replace(depth=1, pool="seq", positions="relative", head="mlp", patch_size=5, fit="resize"),
    "tokens": TINY.replace(depth=1, patch_size=4, window=8, embed_hidden=8, tokens=16),
    "few tokens": TINY.replace(
        depth=1, patch_size=7, tokens=2, pool="mean", norm_after_pool=True
    ),  # masks remove both in some images
    "cnn": CNNConfig(conv_channels=(4, 8), hidden=16),
}


@pytest.mark.parametrize("name", [*VARIANTS, pytest.param("post-vit", marks=pytest.mark.slow)])
def test_every_kind(name: str, make_run: Callable[..., Run], tmp_path: Path) -> None:
    """The export itself checks parity, on test images, with and without masks."""
    run = make_run(VARIANTS.get(name, ArticleViTConfig(dim=16)), name)
    exported = export_onnx(run, tmp_path / "model.onnx")
    assert exported.full == (run.config.model.kind == "vit")
    assert exported.parity.max_difference < 1e-4


# --- failing -------------------------------------------------------------------------------------------------------


def test_a_failed_check_leaves_no_file(tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "MAX_DIFFERENCE", 0.0)
    with pytest.raises(ExportError, match="differs from the model's"):
        export_onnx(tiny, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_graph_is_detected_and_an_older_file_stays(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"the older file")
    remembered = onnx_files.build_graph

    def wrong(run: Run, model: torch.nn.Module, full: bool) -> Any:
        proto = remembered(run, model, full)
        weights = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weights.raw_data = weights.raw_data[4:] + weights.raw_data[:4]  # one column shifted
        return proto

    monkeypatch.setattr(onnx_files, "build_graph", wrong)
    with pytest.raises(ExportError, match="differs"):
        export_onnx(tiny, tmp_path / "model.onnx")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the older file"]


def test_a_place_that_cannot_be_written(tiny: Run, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is a folder"):
        export_onnx(tiny, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="cannot write"):
        export_onnx(tiny, tmp_path / "file" / "model.onnx", full=True)


def test_names_the_missing_extra(tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints\.txt -e .\.\[export\]"):
        export_onnx(tiny, tmp_path / "model.onnx")


# --- the page ------------------------------------------------------------------------------------------------------


def test_without_torchvision_nothing_is_printed(tiny: Run, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Our own requirements do not include it: the exporter would warn of four operators that we do not use."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torchvision" else find_spec(name, *more)
    )
    build_graph(tiny, tiny.load_model(), False)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.fixture
def page_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of two files, and an engine that need not be fetched."""
    page = tmp_path / "page"
    (page / ".hidden").mkdir(parents=True)
    (page / "index.html").write_text("<p>")
    (page / "main.js").write_text("")
    (page / "texts").mkdir()
    (page / "texts" / "en.js").write_text("")
    (page / "notes.md").write_text("not the page's")
    (page / "more").mkdir()
    (page / "more" / "part.js").write_text("")
    (page / ".hidden" / "x.js").write_text("")
    monkeypatch.setattr(static_page, "page_files", lambda engine: pages.files_in(page))
    monkeypatch.setattr(static_page, "MADE_FILES", {"play/broken.json": lambda: b"{}"})
    monkeypatch.setattr(static_page.sources, "ensure", lambda files: tmp_path)
    monkeypatch.setattr(static_page.sources, "read", lambda files, name: b"engine")


@pytest.mark.usefixtures("page_parts")
def test_the_page_is_a_whole_folder(tiny: Run, make_run: Callable[..., Run], tmp_path: Path) -> None:
    cnn = make_run(VARIANTS["cnn"], "small")
    written = export_page([tiny, cnn], tmp_path / "site")
    copies = [name for name in written.files if name.endswith(".gz")]
    assert tuple(name for name in written.files if name not in copies) == (
        "index.html", "main.js", "models.json", "models/small.onnx", "models/tiny.onnx",
        "models/tiny.safetensors", "more/part.js", "ort/ort-wasm-simd-threaded.mjs", "ort/ort-wasm-simd-threaded.wasm",
        "ort/ort.wasm.min.mjs", "play/broken.json", "samples/tiny.json", "texts/en.js",
    )  # fmt: skip
    assert {"models/tiny.onnx.gz", "ort/ort-wasm-simd-threaded.wasm.gz"} < set(copies)
    for name in copies:
        copy = tmp_path / "site" / name
        assert gzip.decompress(copy.read_bytes()) == copy.with_suffix("").read_bytes()
    vit_entry, cnn_entry = json.loads((tmp_path / "site" / "models.json").read_text())["models"]
    assert (vit_entry["id"], vit_entry["name"], vit_entry["kind"], vit_entry["lean"]) == ("tiny", "ViT", "vit", False)
    assert vit_entry["grid"] == [4, 4]
    weights = tmp_path / "site" / vit_entry["weights"]
    stored, exact = load_file(weights), load_file(tiny.path / "model.safetensors")
    assert stored.keys() == exact.keys()
    assert vit_entry["skips_patches"] is False
    halved = {name for name, values in stored.items() if values.dtype == torch.float16}
    assert halved == {name for name, values in exact.items() if values.numel() >= LEAST_HALVED}  # as in the graph
    for name, values in exact.items():
        torch.testing.assert_close(stored[name].float(), values.half().float() if name in halved else values)
    assert "weights" not in cnn_entry
    assert (cnn_entry["kind"], cnn_entry["lean"], cnn_entry["onnx"]) == ("cnn", True, "models/small.onnx")
    assert vit_entry["samples"] == cnn_entry["samples"] == "samples/tiny.json"  # the same images
    samples = json.loads((tmp_path / "site" / "samples" / "tiny.json").read_text())["samples"]
    assert len(samples) == 100
    assert {sample["label"] for sample in samples[:10]} == set("0123456789")
    assert all(len(base64.b64decode(sample["pixels"])) == 28 * 28 for sample in samples)
    # onnxruntime-web takes no optional inputs: in the page's copy all three are required
    session = ort.InferenceSession(tmp_path / "site" / "models" / "tiny.onnx")
    assert [value.name for value in session.get_inputs()] == ["pixels", "head_mask", "token_mask"]


@pytest.mark.usefixtures("page_parts")
def test_a_page_that_fails_leaves_nothing(tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "MAX_DIFFERENCE", 0.0)
    monkeypatch.setattr(onnx_files, "MAX_HALF_DIFFERENCE", 0.0)  # with float16 weights, which are tried first
    before = set(tmp_path.iterdir())
    with pytest.raises(ExportError):
        export_page([tiny], tmp_path / "site")
    assert set(tmp_path.iterdir()) == before
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ExportError, match="not empty"):
        export_page([tiny], tmp_path / "taken")


def test_a_relative_path_is_relative_to_the_current_folder(tiny: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    made = export_onnx(tiny, Path("here.onnx"), full=False)
    assert (tmp_path / "here.onnx").stat().st_size == made.bytes


# --- the page's models.json -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"patch_size": 16, "fit": "pad"}, {"patch_size": 1, "stem_channels": (4, 4)}], ids=str
)
def test_entries_hold_the_edges_of_the_patches(changes: dict[str, Any]) -> None:
    config = TINY.replace(**changes)
    metadata = {
        "model": config.model_dump(mode="json"),
        "class_names": list("0123456789"),
        "preprocessing": {},
        "parameters": 1,
        "accuracy": None,
        "temperature": 1.0,
        "novelty": False,
        "position_similarity": None,
    }
    entry, cells = model_entries({"tiny": metadata})[0]["cells"], patch_cells(config)
    assert (entry["row_edges"], entry["column_edges"]) == (list(cells.row_edges), list(cells.column_edges))
    assert (entry["exact"], entry["note"]) == (cells.exact, cells.note)


def test_many_tokens_are_checked_on_fewer_images() -> None:
    """All attention weights of 96 images with 1,024 patches would take 6 GB."""
    fine = TINY.replace(image_size=(128, 128), patch_size=4, depth=4, num_heads=4, dim=16)
    assert parity._num_images(build(TINY)) == parity.NUM_IMAGES
    assert parity._num_images(build(fine)) == parity.FEWEST_IMAGES
