"""Class relevance against NumPy (gradients by finite differences), integrated gradients against captum."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.special import erf

from vitreous.inspection.examination import examine
from vitreous.inspection.query import background
from vitreous.inspection.relevance import class_activation_maps, class_relevance, integrated_gradients


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class NumpyViT:
    """The ViT after its embedding, written again in NumPy; any attention weight can be changed by a small amount."""

    def __init__(self, model):
        self.config = model.config
        self.parameters = {name: value.numpy() for name, value in model.state_dict().items()}

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.parameters[f"{name}.weight"].T + self.parameters[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.config.norm_eps)
        return normed * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def run(self, tokens: np.ndarray, nudge: dict[tuple[int, int, int, int], float], pool_nudge: dict[int, float]):
        """Return the logits, the attention (H, N, N) of every layer, and the pooling weights (N,)."""
        H, K, seen = self.config.num_heads, self.config.head_dim, []
        x = tokens
        for layer in range(self.config.depth):
            at = f"blocks.{layer}"
            qkv = self.linear(self.norm(x, f"{at}.norm1"), f"{at}.attn.qkv").reshape(len(x), 3, H, K)
            q, k, v = qkv.transpose(1, 2, 0, 3)  # each (H, N, K)
            attention = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(K))
            for (nudged, head, query, key), amount in nudge.items():
                if nudged == layer:
                    attention[head, query, key] += amount
            seen.append(attention)
            x = x + self.linear((attention @ v).transpose(1, 0, 2).reshape(x.shape), f"{at}.attn.proj")
            hidden = self.linear(self.norm(x, f"{at}.norm2"), f"{at}.mlp.fc1")
            x = x + self.linear(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, f"{at}.mlp.fc2")
        normed = self.norm(x, "norm")
        weights = {
            "cls": lambda: np.eye(len(x))[0],
            "mean": lambda: np.full(len(x), 1 / len(x)),
            "seq": lambda: softmax(self.linear(normed, "pool_score")[:, 0]),
        }[self.config.pool]()
        for token, amount in pool_nudge.items():
            weights[token] += amount
        return self.linear(weights @ normed, "head"), seen, weights


def numpy_relevance(model, tokens: np.ndarray, target: int) -> np.ndarray:
    """Chefer et al., generic rule for self-attention, class by class, with gradients by central differences."""
    step, reference = 1e-5, NumpyViT(model)
    _, layers, weights = reference.run(tokens, {}, {})

    def slope(nudge, pool_nudge) -> float:
        up = reference.run(tokens, nudge(step), pool_nudge(step))[0][target]
        down = reference.run(tokens, nudge(-step), pool_nudge(-step))[0][target]
        return (up - down) / (2 * step)

    total = np.eye(len(tokens))
    for layer, attention in enumerate(layers):
        gradient = np.zeros_like(attention)
        for index in np.ndindex(attention.shape):
            gradient[index] = slope(lambda amount, at=(layer, *index): {at: amount}, lambda _: {})
        total = total + np.maximum(gradient * attention, 0).mean(axis=0) @ total
    if model.config.pool == "cls":
        return total[0]
    pooled = [slope(lambda _: {}, lambda amount, at=token: {at: amount}) for token in range(len(tokens))]
    # without the identity: see `class_relevance`
    return np.maximum(weights * np.array(pooled), 0) @ (total - np.eye(len(tokens)))


@pytest.mark.parametrize("variant", ["class token", "mean", "seq"])
@pytest.mark.parametrize("target", [0, 2])
def test_relevance(tiny_vit, image_for, variant: str, target: int) -> None:
    model = tiny_vit(variant)
    image = image_for(model)
    ours = examine(model, image, target=target, random_orders=2, integration_steps=4).maps["relevance"].cells
    with torch.no_grad():
        tokens = model.embed(image[None])[0].numpy()
        assert NumpyViT(model).run(tokens, {}, {})[0] == pytest.approx(model(image[None])[0].numpy())
    expected = numpy_relevance(model, tokens, target)[model.config.num_prefix_tokens :]
    np.testing.assert_allclose(ours.ravel(), expected, rtol=1e-5, atol=1e-9)


def test_relevance_depends_on_the_class(tiny_vit, image_for) -> None:
    model = tiny_vit()
    maps = [examine(model, image_for(model), target=k, random_orders=2).maps for k in (0, 1)]
    assert not np.allclose(maps[0]["relevance"].cells, maps[1]["relevance"].cells)
    np.testing.assert_array_equal(maps[0]["attention-rollout"].cells, maps[1]["attention-rollout"].cells)


def test_relevance_goes_from_the_first_layer_to_the_last() -> None:
    """As with rollout: 0 reads from 1 in the second layer, 1 from 2 in the first."""
    first, second = torch.zeros(1, 3, 3), torch.zeros(1, 3, 3)
    first[0, 1, 2] = second[0, 0, 1] = 1
    found = class_relevance([first, second], [torch.ones_like(first)] * 2, torch.tensor([1.0, 0, 0]))
    assert found.tolist() == [0, 1, 1]


def test_integrated_gradients_equal_captum(tiny_vit, tiny_cnn, image_for) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum's own, at import
        captum = pytest.importorskip("captum.attr", reason="captum is not installed: `make test` installs it")
    for model in (tiny_vit("mean"), tiny_cnn()):
        image = image_for(model)
        fill = background(image)
        ours = integrated_gradients(model, image, fill, 1, steps=24)
        theirs = captum.IntegratedGradients(model).attribute(
            image[None], fill[None], target=1, n_steps=24, method="gausslegendre"
        )
        torch.testing.assert_close(ours, theirs[0], rtol=1e-6, atol=1e-8)  # captum keeps its points in float32


def test_integrated_gradients_are_complete(any_vit, image_for) -> None:
    found = examine(any_vit, image_for(any_vit), random_orders=2, integration_steps=64)
    assert found.integration_gap < 1e-3
    assert found.maps["integrated-gradients"].cells.sum() == pytest.approx(
        found.maps["integrated-gradients"].pixels.sum()
    )


def test_gradient_by_finite_differences(tiny_vit, image_for) -> None:
    model = tiny_vit("not square, colour")
    image = image_for(model)
    found = examine(model, image, target=1, random_orders=2)
    pixel, step = torch.zeros_like(image), 1e-6
    total = 0.0
    for channel in range(3):
        pixel.zero_()[channel, 5, 3] = step
        with torch.no_grad():
            total += abs(float(model((image + pixel)[None])[0, 1] - model((image - pixel)[None])[0, 1])) / (2 * step)
    assert found.maps["gradient"].pixels[5, 3] == pytest.approx(total, rel=1e-5)


def test_class_activation_maps(tiny_cnn, image_for) -> None:
    """By hand: gradients of what follows the last convolution, by central differences."""
    model = tiny_cnn()
    image = image_for(model)
    with torch.no_grad():
        model.conv2.bias += 5  # no feature at zero, where ReLU and max-pool have no single slope
        features = model.features(image[None])  # (1, F, 8, 4)
        gradient, step = torch.zeros_like(features), 1e-6
        for index in np.ndindex(*features.shape):
            nudge = torch.zeros_like(features)
            nudge[index] = step
            difference = model.classify(features + nudge)[0, 2] - model.classify(features - nudge)[0, 2]
            gradient[index] = difference / (2 * step)
    maps = class_activation_maps(model, image, 2)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    for name, expected in (("grad-cam", weights * features), ("hires-cam", gradient * features)):
        inner = maps[name][2:-2, 2:-2]
        torch.testing.assert_close(inner, expected[0].sum(dim=0).clamp(min=0), rtol=1e-5, atol=1e-6)
        assert maps[name].shape == image.shape[1:]
        assert maps[name][:2].abs().sum() == 0
