"""Near-duplicates: changed copies are found, pictures that are only alike are not, and the search is exact."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.config import DataConfig
from vitreous.data import near_duplicates as module
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.near_duplicates import near_duplicate_notes, near_duplicates
from vitreous.data.splits import Split


def pictures(count: int, seed: int, side: int = 48) -> torch.Tensor:
    """Smooth colour pictures, uint8 (count, 3, side, side)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 9, 9, generator=generator) + 0.1 * torch.rand(count, 3, 9, 9, generator=generator)
    return (255 * torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)).to(
        torch.uint8
    )


def compressed(image: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=70)
    return torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1)


def brighter(image: torch.Tensor) -> torch.Tensor:
    return (0.8 * image.float() + 30).to(torch.uint8)


def dataset(train: torch.Tensor, test: torch.Tensor, train_labels: list[int], test_labels: list[int]) -> Dataset:
    digits = load_dataset(DataConfig(name="digits"))
    empty = Split(train[:0], torch.zeros(0, dtype=torch.long))
    return dataclasses.replace(
        digits, name="pictures", train=Split(train, torch.tensor(train_labels)), val=empty,
        test=Split(test, torch.tensor(test_labels)),
    )  # fmt: skip


@pytest.mark.parametrize("change", [compressed, brighter, lambda image: image], ids=["JPEG", "brighter", "equal"])
def test_changed_copies_are_found(change):
    train, test = pictures(40, 0), pictures(20, 1)
    test[7] = change(train[3])
    found = near_duplicates(dataset(train, test, [0] * 40, [0] * 20))
    assert [(pair.first, pair.second) for pair in found.pairs] == [(("train", 3), ("test", 7))]
    assert found.pairs[0].same_label
    assert 0.99 <= found.pairs[0].similarity <= 1
    assert found.notes == ()


def test_within_a_split_only_different_labels_matter():
    train = pictures(10, 0)
    train[4], train[8] = brighter(train[1]), brighter(train[1])
    labels = [0] * 10
    labels[8] = 1
    found = near_duplicates(dataset(train, pictures(3, 1), labels, [0] * 3))
    assert {(pair.first[1], pair.second[1]) for pair in found.pairs} == {(1, 8), (4, 8)}
    assert not any(pair.same_label for pair in found.pairs)


def test_blocks_find_what_all_pairs_find(monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 7)
    monkeypatch.setattr(module, "_BATCH", 5)
    train, test = pictures(33, 0), pictures(20, 1)
    for source, target in ((0, 0), (13, 6), (14, 7), (32, 19)):
        test[target] = compressed(train[source])
    found = near_duplicates(dataset(train, test, [0] * 33, [0] * 20))
    assert {(p.first[1], p.second[1]) for p in found.pairs} == {(0, 0), (13, 6), (14, 7), (32, 19)}
    assert [p.similarity for p in found.pairs] == sorted((p.similarity for p in found.pairs), reverse=True)


def test_flat_pictures_are_like_nothing():
    flat = torch.full((4, 3, 48, 48), 200, dtype=torch.uint8)
    assert near_duplicates(dataset(flat, flat, [0] * 4, [0] * 4)).pairs == ()


def test_only_pairs_of_the_splits_asked_for():
    train, test = pictures(5, 0), pictures(5, 1)
    train[1] = train[0]
    found = dataset(train, test, [0, 1, 0, 0, 0], [0] * 5)
    assert len(near_duplicates(found, among=("train",)).pairs) == 1
    assert near_duplicates(found, among=("test",)).pairs == ()


def test_limits_are_noted(monkeypatch):
    train, test = pictures(5, 0), pictures(5, 0)
    same = dataset(train, test, [0] * 5, [0] * 5)
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    found = near_duplicates(same)
    assert len(found.pairs) == 2
    assert "the search stopped there" in found.notes[0]
    monkeypatch.setattr(module, "MOST_IMAGES", 9)
    assert any("were not searched" in note for note in near_duplicates(same).notes)


def test_notes_leave_out_equal_pictures_and_named_data_sets():
    train, test = pictures(5, 0), pictures(5, 1)
    test[0], test[1] = train[0], compressed(train[1])
    found = dataset(train, test, [0] * 5, [0, 1, 0, 0, 0])
    (note,) = near_duplicate_notes(found)
    assert note.startswith("almost the same picture: train image 1 (0) and test image 1 (1)")
    assert note.endswith("their labels differ: one may be wrong")
    assert near_duplicate_notes(dataclasses.replace(found, name="digits")) == []
