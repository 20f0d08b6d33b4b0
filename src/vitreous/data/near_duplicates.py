"""Near-duplicates: pictures that are almost the same, in different splits or under different labels.

They were compressed again, made a little brighter, resized from a larger file, or taken a moment later.

Two descriptors per picture, both without its mean and of length 1, so that brightness and contrast do not matter: 8×8
averages find candidates, 32×32 averages (or the pixels themselves, where there are fewer) confirm them. The search is
exact: all pairs, by blocks of a matrix product, in bounded memory.

Shapes: n pictures, d = channels · rows · columns of a descriptor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.splits import Split

if TYPE_CHECKING:
    from vitreous.data.datasets import Dataset

COARSE, FINE = 8, 32  # sides of the descriptors
#: Cosine similarities; docs/calibration.md has the numbers of false pairs at this threshold.
CANDIDATE, NEAR = 0.985, 0.99
FLAT = 4.0  # grey levels of contrast (standard deviation), below which a picture has nothing to compare
MOST_IMAGES = 100_000  # in two splits together; the time grows with the square
MOST_PAIRS = 10_000
_ROWS = 2048  # of one block
_BATCH = 1024  # pictures that are pooled at a time


@dataclass(frozen=True)
class NearDuplicate:
    """Two pictures, each by its split and index; `similarity` is 1 for equal ones."""

    first: tuple[str, int]
    second: tuple[str, int]
    similarity: float
    same_label: bool


@dataclass(frozen=True)
class NearDuplicates:
    pairs: tuple[NearDuplicate, ...]  # the most similar first
    notes: tuple[str, ...]  # what was not searched


def near_duplicates(dataset: Dataset, among: Sequence[str] = ("train", "val", "test")) -> NearDuplicates:
    """Return pairs across splits, and pairs under different labels, with at least one picture in the splits `among`."""
    every = {name: split for name, split in _splits(dataset).items() if len(split)}
    descriptors: dict[str, Descriptors] = {}
    found: list[NearDuplicate] = []
    notes: list[str] = []
    for first, second in combinations_with_replacement(every, 2):
        if first not in among and second not in among:
            continue
        images = len(every[first]) + (len(every[second]) if first != second else 0)
        if images > MOST_IMAGES:
            notes.append(f"near-duplicates of {first} in {second} were not searched: more than {MOST_IMAGES:,} images")
            continue
        for name in {first, second} - descriptors.keys():
            descriptors[name] = describe_pictures(every[name])
        pairs = list(islice(_pairs(every[first], every[second], descriptors[first], descriptors[second]), MOST_PAIRS))
        if len(pairs) == MOST_PAIRS:
            notes.append(f"near-duplicates of {first} in {second}: more than {MOST_PAIRS:,}, the search stopped there")
        found += [NearDuplicate((first, i), (second, j), value, same) for i, j, value, same in pairs]
    return NearDuplicates(tuple(sorted(found, key=lambda pair: -pair.similarity)), tuple(notes))


def _splits(dataset: Dataset) -> dict[str, Split]:
    return {"train": dataset.train, "val": dataset.val, "test": dataset.test}


@dataclass(frozen=True)
class Descriptors:
    """Coarse unit vectors of the pictures that are not flat, and their indices in the split."""

    vectors: Tensor  # (n, d)
    indices: Tensor  # (n,)


def describe_pictures(split: Split) -> Descriptors:
    vectors, kept = [], []
    for start in range(0, len(split), _BATCH):
        pixels = split.batch(slice(start, start + _BATCH)).float()
        is_kept = pixels.flatten(1).std(dim=1) >= FLAT
        vectors.append(unit_vectors(pixels[is_kept], COARSE))
        kept.append(start + is_kept.nonzero()[:, 0])
    return Descriptors(torch.cat(vectors), torch.cat(kept))


def unit_vectors(pixels: Tensor, side: int) -> Tensor:
    """Average (n, C, H, W) to at most `side` × `side`, and return vectors (n, d) without mean, of length 1."""
    height, width = pixels.shape[-2:]
    pooled = F.adaptive_avg_pool2d(pixels, (min(side, height), min(side, width))).flatten(1)
    return F.normalize(pooled - pooled.mean(dim=1, keepdim=True), dim=1)


def _pairs(
    first: Split, second: Split, of_first: Descriptors, of_second: Descriptors
) -> Iterator[tuple[int, int, float, bool]]:
    """Yield (index, index, similarity, same label); within one split, pairs of different labels, each once."""
    within = first is second
    for start in range(0, len(of_first.vectors), _ROWS):
        for other in range(start if within else 0, len(of_second.vectors), _ROWS):
            products = of_first.vectors[start : start + _ROWS] @ of_second.vectors[other : other + _ROWS].mT
            rows, columns = (products >= CANDIDATE).nonzero(as_tuple=True)
            i, j = of_first.indices[rows + start], of_second.indices[columns + other]
            same_label = first.labels[i] == second.labels[j]
            if within:
                kept = (i < j) & ~same_label
                i, j, same_label = i[kept], j[kept], same_label[kept]
            for at in range(0, len(i), _BATCH):
                part = slice(at, at + _BATCH)
                a, b = first.batch(i[part]), second.batch(j[part])
                similarity = (unit_vectors(a.float(), FINE) * unit_vectors(b.float(), FINE)).sum(dim=1)
                for k in (similarity >= NEAR).nonzero()[:, 0].tolist():
                    yield int(i[at + k]), int(j[at + k]), min(1.0, float(similarity[k])), bool(same_label[at + k])


def describe_pair(pair: NearDuplicate, dataset: Dataset) -> str:
    """Return a pair of pictures in words, with their files where they have some."""
    splits = _splits(dataset)

    def name_of(split_name: str, index: int) -> str:
        split = splits[split_name]
        label = dataset.class_names[int(split.labels[index])]
        return split.paths[index] if split.paths else f"{split_name} image {index} ({label})"

    problem = "" if pair.same_label else "; their labels differ: one may be wrong"
    return f"{name_of(*pair.first)} and {name_of(*pair.second)}, similarity {pair.similarity:.3f}{problem}"


def near_duplicate_notes(dataset: Dataset, most: int = 8) -> list[str]:
    """Return a note for each pair that is almost, but not pixel for pixel, the same; the named data sets are exempt."""
    from vitreous.data.datasets import DATASETS

    if dataset.name in DATASETS:
        return []
    found, splits = near_duplicates(dataset), _splits(dataset)

    def digest(split_name: str, index: int) -> bytes:
        return splits[split_name].digest(index)

    notes = [
        f"almost the same picture: {describe_pair(pair, dataset)}"
        for pair in found.pairs
        if digest(*pair.first) != digest(*pair.second)
    ]
    if len(notes) > most:
        notes[most:] = [f"… {len(notes) - most} more pairs that are almost the same"]
    return [*notes, *found.notes]
