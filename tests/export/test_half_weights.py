"""The static page's graphs store their large weights as float16, and compute what they computed before."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vitreous.export.graph import store_weights_in_half  # noqa: E402


def test_large_weights_are_stored_in_half() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "large": rng.normal(0, 0.1, (64, 64)).astype(np.float32),
        "huge": rng.normal(0, 1e6, (64, 64)).astype(np.float32),  # beyond float16
        "tiny": rng.normal(0, 1e-9, (64, 64)).astype(np.float32),  # below it
        "small": rng.normal(0, 0.1, (1, 64)).astype(np.float32),
    }
    steps = [("x", "large", "a"), ("a", "huge", "b"), ("b", "tiny", "c")]
    nodes = [helper.make_node("MatMul", [one, name], [out]) for one, name, out in steps]
    nodes.append(helper.make_node("Add", ["c", "small"], ["y"]))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in names]
        for names in (("x",), ("y", "a"))
    )
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = rng.normal(0, 1, (3, 64)).astype(np.float32)
    before, size = _run(model, x), model.ByteSize()

    store_weights_in_half(model)
    onnx.checker.check_model(model, full_check=True)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types == {
        "large.half": TensorProto.FLOAT16,
        "huge": TensorProto.FLOAT,
        "tiny": TensorProto.FLOAT,
        "small": TensorProto.FLOAT,
    }
    assert model.ByteSize() < size - 64 * 64 * 2 + 200
    for found, expected in zip(_run(model, x), before, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
        assert not np.array_equal(found, expected)


def _run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y", "a"], {"x": x})
