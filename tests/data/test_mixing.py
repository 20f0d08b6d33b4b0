"""CutMix: which images are mixed, what is pasted, and that labels and loss follow."""

import pytest
import torch
from trainings import small

from vitreous.config import override
from vitreous.data.datasets import load_dataset
from vitreous.data.mixing import draw, mixed_labels, paste
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ConfigError
from vitreous.runs import Resolved
from vitreous.training import distributed
from vitreous.training.setup import fit_to_data
from vitreous.training.step import Stepper


def stepper(*settings: str) -> Stepper:
    config = small("train.precision=float64", "model.dropout=0", "model.drop_path=0", *settings)
    dataset = load_dataset(config.data)
    resolved = Resolved(batch_size=64, steps=10, steps_per_epoch=10)
    return Stepper(
        fit_to_data(config, dataset), dataset, Preprocessing.for_dataset(dataset), resolved, distributed.Group()
    )


def test_the_share_of_mixed_images_and_their_partners():
    chosen, others, random = draw(0.3, 0, 0, torch.arange(20_000), 1000)
    assert len(chosen) == pytest.approx(6000, abs=200)
    assert len(others) == len(random) == len(chosen)
    assert 0 <= others.min() < 5
    assert 995 < others.max() < 1000
    assert torch.bincount(others, minlength=1000).float().std() < 4  # √6 for independent uniform ones
    assert len(draw(0.0, 0, 0, torch.arange(100), 1000)[0]) == 0
    assert len(draw(1.0, 0, 0, torch.arange(100), 1000)[0]) == 100


def test_the_share_that_is_kept_is_that_of_the_pixels():
    random = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
    images, kept = paste(torch.zeros(500, 2, 12, 20), torch.ones(500, 2, 12, 20), random)
    torch.testing.assert_close(1 - images.mean(dim=(1, 2, 3)), kept)
    for image in images[:50]:  # a rectangle, the same in all channels
        rows, columns = image[0].any(dim=1), image[0].any(dim=0)
        assert torch.equal(image[0].bool(), rows[:, None] & columns[None])
        assert torch.equal(image[0], image[1])
    assert kept.min() < 0.2
    assert kept.max() == 1  # a rectangle of less than a pixel


def test_labels_have_the_shares_of_their_images():
    labels = mixed_labels(torch.tensor([1, 2, 0]), torch.tensor([0, 2, 1]), torch.tensor([0.75, 0.5, 1.0]), 3)
    assert labels.tolist() == [[0.25, 0.75, 0], [0, 0, 1], [1, 0, 0]]


def test_an_image_is_mixed_the_same_way_in_every_batch():
    one = stepper("data.augment.mix=0.7", "data.augment.shift=1", "data.augment.flip=true")
    pixels, labels = one.batch(3, torch.arange(64))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for part in order.split(9):
        some_pixels, some_labels = one.batch(3, part)
        torch.testing.assert_close(some_pixels, pixels[part])
        assert torch.equal(some_labels, labels[part])
    assert not torch.equal(one.batch(4, torch.arange(64))[1], labels)


def test_what_is_pasted_is_another_training_image():
    nothing_else = (f"data.augment.{name}=0" for name in ("shift", "rotate", "scale"))
    one = stepper("data.augment.mix=1", *nothing_else)
    pixels, labels = one.batch(0, torch.arange(64))
    _, others, _ = draw(1.0, one.config.seed, 0, torch.arange(64), len(one.dataset.train))
    own, theirs = (one.dataset.train.batch(indices).float() / 255 for indices in (torch.arange(64), others))
    assert ((pixels == own) | (pixels == theirs)).all()
    assert (pixels != own).any(dim=(1, 2, 3)).sum() > 50
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(64, dtype=torch.float64))
    assert (labels > 0).sum(dim=1).max() == 2


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_sum_over_both_labels(weighted):
    one = stepper("data.augment.mix=0.6", "train.label_smoothing=0.1")
    if weighted:
        one.class_weights = torch.linspace(0.5, 1.5, 10, dtype=torch.float64)
    for parameter in one.model.parameters():  # the head starts at zero, where all losses are equal
        torch.nn.init.normal_(parameter, std=0.2)
    pixels, labels = one.batch(0, torch.arange(64))
    with torch.no_grad():
        log_probabilities = one.model(one.preprocessing.to_input(pixels).double()).log_softmax(dim=1)
    expected = -((0.9 * labels + 0.01) * log_probabilities).sum(dim=1)
    if weighted:
        expected = expected * (labels * one.class_weights).sum(dim=1)
    assert one.step(0, 0, torch.arange(64))[0] == pytest.approx(expected.mean().item(), rel=1e-9)


def test_a_divided_batch_has_the_same_gradients():
    def gradients(one: Stepper) -> list[torch.Tensor]:
        torch.manual_seed(1)
        for parameter in one.model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        one._backward(0, torch.arange(64))
        return [parameter.grad for parameter in one.model.parameters() if parameter.grad is not None]

    whole = gradients(stepper("data.augment.mix=0.5"))
    divided = gradients(stepper("data.augment.mix=0.5", "train.micro_batch=24"))
    assert len(whole) > 10
    for ours, theirs in zip(divided, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_log_probabilities_take_no_mixed_labels():
    with pytest.raises(ConfigError, match=r"data\.augment\.mix"):
        override(small(name="post-design"), ["data.augment.mix=0.5"])
