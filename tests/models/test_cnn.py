"""The CNN: equal to the layers written out, at any image size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from vitreous.config import ArticleCNNConfig, CNNConfig
from vitreous.errors import ConfigError
from vitreous.models import build, count_parameters
from vitreous.models.cnn import CNN


def _written_out(model: CNN) -> nn.Sequential:
    return nn.Sequential(
        model.conv1, nn.ReLU(), model.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        model.fc1, nn.ReLU(), nn.Dropout(0.5), model.fc2,
    )  # fmt: skip


def test_equals_the_layers_written_out(randomise: Callable[..., nn.Module]) -> None:
    model = randomise(CNN(CNNConfig()).double().eval(), scale=0.05)
    results = []
    for network in (model, _written_out(model).eval()):
        images = torch.linspace(-1, 1, 2 * 28 * 28, dtype=torch.float64).view(2, 1, 28, 28).requires_grad_()
        logits = network(images)
        results.append((logits, *torch.autograd.grad(logits.square().sum(), [images, *model.parameters()])))
    torch.testing.assert_close(results[0], results[1])


def test_equals_the_articles_cnn_but_for_the_softmax(randomise: Callable[..., nn.Module]) -> None:
    ours, post = randomise(build(CNNConfig()).eval(), scale=0.05), build(ArticleCNNConfig()).eval()
    post.load_state_dict(dict(zip(post.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(ours(images).log_softmax(dim=1), post(images))


def test_the_articles_flatten_width() -> None:
    config = CNNConfig()
    assert config.flat_features == 9216
    assert count_parameters(CNN(config)) == 1_199_882


@pytest.mark.parametrize("size", [(6, 6), (8, 8), (32, 32), (9, 20), (31, 7)])
@pytest.mark.parametrize("channels", [1, 3])
def test_takes_any_image(size: tuple[int, int], channels: int) -> None:
    config = CNNConfig(image_size=size, channels=channels, num_classes=4, conv_channels=(3, 5), hidden=8)
    model, images = CNN(config), torch.randn(2, channels, *size)
    assert model.features(images).shape == (2, 5, size[0] - 4, size[1] - 4)
    assert model(images).shape == (2, 4)


def test_features_then_classify_is_forward() -> None:
    model, images = CNN(CNNConfig()).eval(), torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model.classify(model.features(images)), model(images), rtol=0, atol=0)


def test_a_too_small_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 6×6 pixels, not 5×9"):
        CNNConfig().replace(image_size=(5, 9))


def test_dropout_acts_in_training_only() -> None:
    model, images = CNN(CNNConfig()), torch.randn(2, 1, 28, 28)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))
