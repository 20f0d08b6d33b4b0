"""A ViT on MNIST as a user of timm would write it: the reference of time_to_accuracy.py, which runs it.

    python bench/standard_recipe.py [--lr 5e-4 1e-3 2e-3] [--epochs 20 | --seconds 30] [--target 0.99] [--stop-after N]

timm's VisionTransformer (patch 4, dim 64, depth 6, 4 heads), AdamW, linear warm-up and cosine, batch 128, a DataLoader
whose workers convert each image, one by one, from PIL to a tensor. It stops once the validation accuracy is reached. Of
several learning rates the first to reach it wins (a later one stops when it can no longer win), and only its model
reads the test set, once; after `--stop-after` epochs of the schedule, which only time it, none does. The output is
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from parity import declare_torchvision_operators
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from vitreous.config import DataConfig
from vitreous.data.datasets import Split, load_dataset

BATCH_SIZE, WEIGHT_DECAY, WARMUP_SHARE = 128, 0.05, 0.1
MEAN, STD = 0.1307, 0.3081


class Digits(Dataset[tuple[Tensor, int]]):
    """PIL in, a small random affine in training, a normalised tensor out."""

    def __init__(self, split: Split, training: bool):
        self.images = [Image.fromarray(image) for image in split.images[:, 0].numpy()]
        self.labels = split.labels.tolist()
        self.training = training

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.training:
            shift = (random.uniform(-2, 2), random.uniform(-2, 2))
            image = image.rotate(random.uniform(-10, 10), Image.Resampling.BILINEAR, translate=shift)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels)[None], self.labels[index]


def make_model() -> nn.Module:
    declare_torchvision_operators()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=28, patch_size=4, in_chans=1, num_classes=10, embed_dim=64, depth=6, num_heads=4, mlp_ratio=2
    )


@torch.inference_mode()
def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, int]]) -> float:
    model.eval()
    num_correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return num_correct / len(loader.dataset)  # type: ignore[arg-type]


class Training:
    """One learning rate, from a fresh model to the target or the end of the schedule."""

    def __init__(self, args: argparse.Namespace, lr: float, train: DataLoader[tuple[Tensor, int]]):
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        self.args, self.lr, self.loader = args, lr, train
        self.model = make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
        self.total_steps = round(args.epochs * len(train))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._factor)
        self.step = 0
        self.val_accuracy = 0.0
        self.seconds_to_target: float | None = None
        self.train_seconds = 0.0
        self.start = time.perf_counter()

    def _factor(self, step: int) -> float:
        warmup = max(1, round(WARMUP_SHARE * self.total_steps))
        if step < warmup:
            return (step + 1) / warmup
        return (1 + math.cos(math.pi * min(1, (step - warmup) / max(1, self.total_steps - warmup)))) / 2

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def is_over(self) -> bool:
        return self.step >= self.total_steps

    def train(self, val: DataLoader[tuple[Tensor, int]], give_up_after: float = math.inf) -> None:
        """Train until the target, the end of the schedule, or the time another learning rate needed; with a budget
        of seconds, always until its end."""
        self.start = time.perf_counter()
        epochs = 0
        while not self.is_over and (self.args.seconds or self._is_in_the_race(give_up_after)):
            if epochs == self.args.stop_after:
                break
            self.epoch()
            epochs += 1
            self.val_accuracy = accuracy(self.model, val)
            if self.val_accuracy >= self.args.target and self.seconds_to_target is None:
                self.seconds_to_target = self.elapsed_seconds
        self.train_seconds = self.elapsed_seconds

    def _is_in_the_race(self, give_up_after: float) -> bool:
        return self.seconds_to_target is None and self.elapsed_seconds < give_up_after

    @property
    def merit(self) -> tuple[float, float]:
        """Smaller is better: earlier at the target, then closer to it."""
        return (self.seconds_to_target or math.inf, -self.val_accuracy)

    def epoch(self) -> None:
        self.model.train()
        for images, labels in self.loader:
            loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            if self.args.seconds and self.step == 20:  # fit the schedule to the steps that the budget allows
                rate = self.step / self.elapsed_seconds
                self.total_steps = max(self.step + 1, int(rate * self.args.seconds))
            if self.is_over:
                break


def run(args: argparse.Namespace) -> dict[str, float | int | None]:
    dataset = load_dataset(DataConfig(name=args.data))
    val = DataLoader(Digits(dataset.val, False), batch_size=500)
    test = DataLoader(Digits(dataset.test, False), batch_size=500)
    train = DataLoader(Digits(dataset.train, True), BATCH_SIZE, shuffle=True, drop_last=True,
                       num_workers=args.workers, persistent_workers=args.workers > 0)  # fmt: skip
    trainings = [Training(args, lr, train) for lr in args.lr]
    soonest = math.inf
    for training in trainings:
        training.train(val, give_up_after=soonest)
        soonest = min(soonest, training.seconds_to_target or math.inf)
    best = min(trainings, key=lambda one: one.merit)
    return {
        "lr": best.lr, "val_accuracy": best.val_accuracy, "seconds_to_target": best.seconds_to_target,
        "train_seconds": best.train_seconds, "images_per_second": best.step * BATCH_SIZE / best.train_seconds,
        "test_accuracy": None if args.stop_after else accuracy(best.model, test),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--seconds", type=float, help="train for about this long instead")
    parser.add_argument("--stop-after", type=int, help="epochs of the schedule, to measure how long one takes")
    parser.add_argument("--target", type=float, default=0.99, help="stop at this validation accuracy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader")
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
