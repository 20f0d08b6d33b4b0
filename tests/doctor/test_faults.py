"""Variants of the faults that are not on the pages: found, named correctly, and nothing else is reported."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor import diagnose
from vitreous.doctor.checks import batch
from vitreous.testing import TinyBlock, TinyViT

MODELS: list[tuple[set[str], type[nn.Module]]] = []


def has_only(*findings: str):
    """Register a model that has exactly these findings; none for a healthy one."""

    def register(model: type[nn.Module]) -> type[nn.Module]:
        MODELS.append((set(findings), model))
        return model

    return register


class MeanPooled(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).mean(1))


# --- patches -------------------------------------------------------------------------------------------------


class Colour(TinyViT):
    """Three channels; patches by hand and a linear layer."""

    channels = 3

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(self.channels * 16, self.dim)


@has_only("patches-scrambled")
class UnfoldedWithoutPermute(Colour):
    def patchify(self, images: Tensor) -> Tensor:
        return self.patches(images.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(images), 9, 48))


@has_only()
class Unfolded(Colour):
    def patchify(self, images: Tensor) -> Tensor:
        grid = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
        return self.patches(grid.reshape(len(images), 9, 48))


@has_only("patches-scrambled")
class EveryThirdPixel(Colour):
    def patchify(self, images: Tensor) -> Tensor:
        grid = images.view(len(images), 3, 4, 3, 4, 3).permute(0, 3, 5, 1, 2, 4)
        return self.patches(grid.reshape(len(images), 9, 48))


@has_only()
class CopiedInALoop(Colour):
    def patchify(self, images: Tensor) -> Tensor:
        patches = images.new_zeros(len(images), 9, 48)
        for image, rows in zip(images, patches, strict=True):
            for i in range(9):
                y, x = i // 3 * 4, i % 3 * 4
                rows[i] = image[:, y : y + 4, x : x + 4].flatten()
        return self.patches(patches)


@has_only("patches-scrambled")
class RawMemory(Colour):
    channels = 1

    def patchify(self, images: Tensor) -> Tensor:
        return self.patches(images.view(len(images), 9, 16))


@has_only("patch-order-ignored")
class PositionsFromContent(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.positions = None
        self.from_content = nn.Linear(24, 24)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        x = x + self.from_content(x).tanh()
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)


@has_only("patch-order-ignored")
class OneVectorForAllPositions(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions[:, :1]


@has_only("patches-without-influence")
class HalfBlind(TinyViT):
    """Not `border-ignored`: what is ignored is larger than a patch."""

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images)[:, :4]


@has_only("image-ignored")
class TokensNeverMeet(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.qkv = self.proj = self.norm1 = None

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(self.norm2(x))


@has_only("linear-after-linear")
class BottleneckThatSavesNothing(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.widen = nn.Conv2d(1, 12, 4, 4), nn.Linear(12, self.dim)

    def patchify(self, images: Tensor) -> Tensor:
        return self.widen(super().patchify(images))


@has_only("linear-after-linear")
class PatchEmbeddingThenLinear(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.widen = nn.Conv2d(1, 32, 4, 4), nn.Linear(32, self.dim)

    def patchify(self, images: Tensor) -> Tensor:
        return self.widen(super().patchify(images))


@has_only()
class EmbeddingIsAlsoTheSkip(Colour):
    """The first attention reads the embedding directly, but so does the skip connection."""

    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))

    def __init__(self) -> None:
        super().__init__()
        self.class_token = None
        self.positions = nn.Parameter(torch.zeros(1, 9, 48))

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).mean(1))

    def embed(self, images: Tensor) -> Tensor:
        grid = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
        return self.patches(grid.reshape(len(images), 9, 48) + self.positions)


@has_only("patch-order-ignored")
class PositionsForSomePatches(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        return torch.cat([x[:, :4] + self.positions[:, :4], x[:, 4:] + self.positions[:, 4:].mean(1, True)], dim=1)


@has_only("class-token-not-read")
class OnePatchRead(TinyViT):
    """No class token, and no pooling."""

    def embed(self, images: Tensor) -> Tensor:
        return self.patchify(images) + self.positions

    def __init__(self) -> None:
        super().__init__()
        self.class_token, self.positions = None, nn.Parameter(torch.randn(1, 9, 24) * 0.02)


@has_only("linear-after-linear")
class SumOfTwoLayers(TinyViT):
    """A gated MLP without its gate."""

    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.gate = nn.Linear(dim, 2 * dim)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norm1(x))
            y = self.norm2(x)
            return x + self.mlp[2](self.mlp[0](y) + self.gate(y))


# --- heads ---------------------------------------------------------------------------------------------------


@has_only("heads-scrambled")
class SplitWithoutTranspose(TinyViT):
    class block(TinyBlock):
        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(part.reshape(len(x), 2, x.shape[1], -1) for part in self.qkv(x).chunk(3, dim=-1))


@has_only("tokens-never-attend")
class HeadsAttendToEachOther(MeanPooled):
    class block(TinyBlock):
        def heads(self, x: Tensor) -> tuple[Tensor, ...]:  # (B, N, heads, K): the transpose was forgotten
            return self.qkv(x).view(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 1, 3, 4).unbind(0)

        def merge(self, x: Tensor) -> Tensor:
            return x.flatten(2)


class SlicedHeads(TinyBlock):
    """Each head projects its own part of the features."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.qkv = nn.ModuleList(nn.Linear(dim // num_heads, 3 * dim // num_heads) for _ in range(num_heads))

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.chunk(self.num_heads, dim=-1)

    def attend(self, x: Tensor) -> Tensor:
        heads = [head(part).chunk(3, dim=-1) for head, part in zip(self.qkv, self.parts(x), strict=True)]
        return self.proj(torch.cat([self.weights(q, k) @ v for q, k, v in heads], dim=-1))


@has_only()
class HeadsOfSlices(TinyViT):
    block = SlicedHeads


@has_only("parameters-without-gradient")
class AllHeadsReadTheFirstSlice(TinyViT):
    class block(SlicedHeads):
        def parts(self, x: Tensor) -> tuple[Tensor, ...]:
            return (super().parts(x)[0],) * self.num_heads


@has_only("heads-scrambled")
class SlicesOfSeveralTokens(TinyViT):
    class block(SlicedHeads):
        def parts(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.reshape(len(x), self.num_heads, x.shape[1], -1).unbind(1)


@has_only()
class MoreHeadsThanBlocks(TinyViT):
    """The longest ModuleList is that of the heads, which run side by side."""

    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.qkv = nn.ModuleList(nn.Linear(dim, 3 * 6) for _ in range(4))

        def attend(self, x: Tensor) -> Tensor:
            heads = [head(x).chunk(3, dim=-1) for head in self.qkv]
            return self.proj(torch.cat([self.weights(q, k) @ v for q, k, v in heads], dim=-1))


# --- attention -----------------------------------------------------------------------------------------------


@has_only("attention-scale")
class ScaledAfterSoftmax(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            return (q @ k.mT).softmax(dim=-1) / q.shape[-1] ** 0.5


@has_only("attention-scale")
class FusedWithoutScale(TinyViT):
    class block(TinyBlock):
        def attend(self, x: Tensor) -> Tensor:
            return self.proj(self.merge(F.scaled_dot_product_attention(*self.heads(x), scale=1.0)))


@has_only("softmax-axis")
class SoftmaxOverQueries(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-2)


@has_only("softmax-axis")
class HandWrittenSoftmaxOverQueries(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            logits = q @ k.mT * q.shape[-1] ** -0.5
            e = torch.exp(logits - logits.amax(-2, keepdim=True))
            return e / e.sum(-2, keepdim=True)


@has_only("attention-scale")
class HandWrittenSoftmaxWithoutScale(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            e = (q @ k.mT).exp()
            return e / (e.sum(-1, keepdim=True) + 1e-8)


@has_only("softmax-missing")
class ExpWithoutItsSum(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            return torch.exp(q @ k.mT * q.shape[-1] ** -0.5 - 3)


@has_only()
class LinearAttention(TinyViT):
    """Keys and values are multiplied first: no scores, and no softmax is missing."""

    class block(TinyBlock):
        def attend(self, x: Tensor) -> Tensor:
            q, k, v = self.heads(x)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            mixed = q @ (k.mT @ v) / (q @ k.sum(2, keepdim=True).mT)
            return self.proj(self.merge(mixed))


@has_only("parameters-without-gradient", "projections-shared")
class KeysAreTheQueries(TinyViT):
    """A third of the fused layer is never used."""

    class block(TinyBlock):
        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            q, _, v = super().heads(x)
            return q, q, v


@has_only()
class WindowsMaskedByMinus100(TinyViT):
    """As in Swin: a mask that is added is no score."""

    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            mask = torch.zeros(10, 10, device=q.device)
            mask[1:5, 5:] = mask[5:, 1:5] = -100  # the class token sees both windows
            return (q @ k.mT * q.shape[-1] ** -0.5 + mask).softmax(dim=-1)


class Windowed(TinyBlock):
    """Attention within each quarter of the patches, with a bias per pair of places in it."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.bias = nn.Parameter(torch.zeros(4, 4))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5 + self.bias).softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.unflatten(1, (2, 2, 2, 2)).transpose(2, 3)  # (B, row and column of the window, those in it, D)
        x = super().forward(grid.reshape(-1, 4, x.shape[-1])).view_as(grid)
        return x.transpose(2, 3).flatten(1, 4)


class WithWindows(MeanPooled):
    """As in Swin: sixteen patches in four windows, positions within these alone."""

    patch, size = 3, 12
    block = Windowed

    def __init__(self) -> None:
        super().__init__()
        self.class_token = self.positions = None

    def embed(self, images: Tensor) -> Tensor:
        return self.patchify(images)


@has_only("patch-order-ignored")
class WindowsThatAreNeverShifted(WithWindows):
    """As in a Swin with one block per stage: tokens attend to those of their window, windows never meet."""


@has_only()
class WindowsThatAreShifted(WithWindows):
    depth = 4

    def encode(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            shift = i % 2
            grid = x.unflatten(1, (4, 4)).roll((shift, shift), (1, 2))
            x = block(grid.flatten(1, 2)).unflatten(1, (4, 4)).roll((-shift, -shift), (1, 2)).flatten(1, 2)
        return x


@has_only()
class MaskedWithALearnedScale(TinyViT):
    """As in Swin v2: cosine attention, a learned temperature, and the mask of windows."""

    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.scale = nn.Parameter(torch.full((num_heads, 1, 1), 10.0))

        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            mask = torch.zeros(10, 10, device=q.device)
            mask[1:5, 5:] = mask[5:, 1:5] = -100  # the class token sees both windows
            return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale + mask).softmax(dim=-1)


@has_only()
class BiasCachedInEval(TinyViT):
    """As in LeViT: a bias is looked up once and kept in a dict."""

    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.bias, self.cache = nn.Parameter(torch.zeros(10, 10)), {}

        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            bias = self.bias if torch.is_grad_enabled() else self.cache.setdefault("bias", self.bias * 1)
            return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(dim=-1)


class ChannelBlock(TinyBlock):
    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        weights = (q.mT @ k * q.shape[-1] ** -0.5).softmax(dim=-1)  # (B, heads, K, K)
        return self.proj(self.merge((weights @ v.mT).mT))


@has_only("tokens-never-attend")
class OnlyAttentionBetweenChannels(MeanPooled):
    block = ChannelBlock


@has_only()
class AttentionBetweenChannels(MeanPooled):
    """As in DaViT: channels and tokens in turn; the scale of the channels is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = ChannelBlock(self.dim, 2)


@has_only("projections-shared")
class KeysAreTheValues(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.qkv = nn.Linear(dim, 2 * dim)

        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            B, N, D = x.shape
            q, k = self.qkv(x).view(B, N, 2, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, k


@has_only("projections-shared")
class TokensWithoutProjection(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            del self.qkv

        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            return (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2),) * 3


# --- residual branches ---------------------------------------------------------------------------------------


@has_only("skip-missing")
class SkipFromTheEmbedding(TinyViT):
    """Each attention is added to the embedding instead of the stream: the blocks before are left out."""

    depth = 3

    def encode(self, x: Tensor) -> Tensor:
        embedding = x
        for block in self.blocks:
            x = embedding + block.attend(block.norm1(x))
            x = x + block.mlp(block.norm2(x))
        return x


@has_only("skip-normalised")
class NormAndBranchSwapped(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x) + self.attend(x)
            return x + self.mlp(self.norm2(x))


@has_only("skip-normalised")
class SkipNormalisedWithoutBlocks(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # with a norm at the end this would be a post-norm model

    def encode(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.norm1(x)
            x = x + block.attend(x)
            x = block.norm2(x)
            x = x + block.mlp(x)
        return x


@has_only()
class PostNorm(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))


@has_only()
class PostNormAfterANormedEmbedding(PostNorm):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_norm, self.norm = nn.LayerNorm(24), nn.Identity()

    def embed(self, images: Tensor) -> Tensor:
        return self.embedding_norm(super().embed(images))


@has_only()
class NormAfterTheBranch(TinyViT):
    """As in Swin v2."""

    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.norm1(self.attend(x))
            return x + self.norm2(self.mlp(x))


@has_only()
class ParallelBranches(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm2 = None

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(x)
            return x + self.attend(y) + self.mlp(y)


class HandWrittenNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-6) + self.bias


@has_only()
class NormsByHand(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1, self.norm2 = HandWrittenNorm(dim), HandWrittenNorm(dim)


@has_only("skip-missing")
class NoSkipAroundTheMLP(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norm1(x))
            return self.mlp(self.norm2(x))


@has_only("skip-missing")
class SkipStartsBeforeAttention(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(self.norm2(x + self.attend(self.norm1(x))))


@has_only("skip-missing")
class OneBlockWithoutSkip(TinyViT):
    depth = 1

    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))


@has_only("branch-doubled")
class BranchCalledTwice(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norm1(x)) + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))


@has_only("skip-missing")
class NoSkipAtAll(TinyViT):
    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            return self.mlp(self.norm2(self.attend(self.norm1(x))))


@has_only("branch-doubled")
class SkipInsideAndOutside(TinyViT):
    class block(TinyBlock):
        def attend(self, x: Tensor) -> Tensor:
            return x + super().attend(x)


@has_only("branch-not-normalised")
class MLPWithoutNorm(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm2 = nn.Identity()


@has_only("branch-not-normalised")
class OneNormOfThreeMissing(TinyViT):
    depth = 3

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].norm1 = nn.Identity()


@has_only("branch-not-normalised")
class QueriesAndKeysNormalisedInstead(TinyViT):
    """A norm of queries and keys is none of the values."""

    class block(TinyBlock):
        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            q, k, v = super().heads(x)
            return F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:]), v

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(x)
            return x + self.mlp(self.norm2(x))

        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1 = None


@has_only("norm-axis")
class MLPNormOverTokens(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm2 = nn.LayerNorm(10)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x.mT).mT)


@has_only("norm-axis")
class LastNormOverEverything(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([10, 24])

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)[:, 0])


@has_only("norm-axis")
class BatchNormOverTokens(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1 = nn.BatchNorm1d(10)


@has_only()
class BatchNormOverFeatures(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1 = nn.BatchNorm1d(dim)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norm1(x.mT).mT)
            return x + self.mlp(self.norm2(x))


@has_only("norm-shared")
class OneNormAfterBothBranches(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1 = self.norm2 = HandWrittenNorm(dim)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))


@has_only("heads-share-weights")
class HeadsReadSlicesOfTheNorm(TinyViT):
    """One projection for all heads, each of which reads its slice of the normalised token: no norm over tokens."""

    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.q, self.k, self.v = (nn.Linear(dim // num_heads, dim // num_heads, bias=False) for _ in range(3))
            self.qkv = nn.Identity()

        def heads(self, x: Tensor) -> tuple[Tensor, ...]:
            slices = x.unflatten(-1, (self.num_heads, -1))
            return tuple(layer(slices).transpose(1, 2) for layer in (self.q, self.k, self.v))


@has_only("unregistered-tensors")
class ParameterAsBuffer(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        positions = self.positions
        del self.positions
        self.register_buffer("positions", positions)


@has_only("norm-shared", "backward-fails")
class TiedNormWeights(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm2.weight = self.norm1.weight

        def forward(self, x: Tensor) -> Tensor:
            x += self.attend(self.norm1(x))  # in place: the norm has kept x for its backward pass
            x += self.mlp(self.norm2(x))
            return x


@has_only("norm-shared")
class OneNormForTheFirstPlaceOfAllBlocks(TinyViT):
    """Shared between blocks, not within one; and the last norm is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.norm1 = self.blocks[0].norm1

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.norm(x)[:, 0]))


@has_only()
class NoStatisticsYet(BatchNormOverFeatures):
    """In eval mode a new batch norm passes on the large activations that it normalises in training."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.patches.weight, std=10)


@has_only("block-reused")
class OneBlockInALoop(TinyViT):
    depth = 1

    def encode(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.blocks[0](x)
        return x


@has_only()
class BlocksAsLists(TinyViT):
    """Blocks stored as [norm, attention, norm, MLP]: no module runs a block, so the residual sums are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(24),
                    nn.MultiheadAttention(24, 4, batch_first=True),
                    nn.LayerNorm(24),
                    nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)),
                ]
            )
            for _ in range(2)
        )

    def encode(self, x: Tensor) -> Tensor:
        for norm1, attention, norm2, mlp in self.blocks:
            y = norm1(x)
            x = attention(y, y, y, need_weights=False)[0] + x
            x = mlp(norm2(x)) + x
        return x


# --- state and outputs ---------------------------------------------------------------------------------------


@has_only("dropout-without-effect")
class DropoutNeverCalled(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)


@has_only()
class DropoutOfTheKernel(TinyViT):
    """Some libraries only read the rate of the layer, for a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def encode(self, x: Tensor) -> Tensor:
        return F.dropout(super().encode(x), self.dropout.p, self.training)


@has_only("image-ignored")
class BranchesThrownAway(TinyViT):
    """What a block computes is not read: its skip connection is there, so skip-missing would name the wrong cause."""

    class block(TinyBlock):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            return x

    depth = 3


@has_only("backward-fails")
class ChangedInPlace(TinyViT):
    def encode(self, x: Tensor) -> Tensor:
        x = super().encode(x)
        y = x.exp()
        x = x + y
        y += 1  # exp keeps its result for the backward pass
        return x


@has_only()
class ClassTokenPerImage(TinyViT):
    """A loop over the batch: each image's tokens get the class token and positions on their own."""

    def embed(self, images: Tensor) -> Tensor:
        rows = [torch.cat([self.class_token[0], x]) + self.positions[0] for x in self.patchify(images)]
        return torch.cat([row.unsqueeze(0) for row in rows])


@has_only("class-token-untrained")
class FrozenClassToken(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.class_token.requires_grad_(False)


@has_only("class-token-untrained")
class DetachedClassToken(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.detach().expand(len(x), -1, -1), x], dim=1) + self.positions


class Registers(TinyViT):
    """Two registers behind the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, 2, self.dim) * 0.02)

    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)
        return torch.cat([x, self.registers.expand(len(x), -1, -1)], dim=1)


@has_only()
class ClassTokenAndRegisters(Registers):
    pass


@has_only("class-token-not-read")
class SecondTokenRead(Registers):
    """Not found at the ends: the first patch is between class token and registers."""

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))[:, 1]


@has_only()
class MeanOfThePatches(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x[:, 1:].mean(1)))


class AppendedLast(TinyViT):
    """Tokens first, batch second, inside the encoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(self.dim, 2, 48, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        x = torch.cat([x, self.class_token.expand(len(x), -1, -1)], dim=1)
        x += self.positions  # in place
        return x

    def encode(self, x: Tensor) -> Tensor:
        return self.blocks(x.transpose(0, 1)).transpose(0, 1)


@has_only("class-token-not-read")
class LastTokenNotRead(AppendedLast):
    pass


@has_only("class-token-not-read")
class RepeatedWithItsPosition(AppendedLast):
    """Named differently, too: it has to be recognised by what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.extra, self.class_token = self.class_token, None

    def embed(self, images: Tensor) -> Tensor:
        x, last = self.patchify(images), self.extra + self.positions[:, -1:]
        return torch.cat([x + self.positions[:, :-1], last.repeat(len(x), 1, 1)], dim=1)


@has_only()
class LastTokenRead(AppendedLast):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x[:, -1]))


@has_only("parameters-without-gradient")
class DetachedPositions(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions.data


@has_only("state-lost-on-reload")
class SeededUnsavedBuffer(TinyViT):
    """Rebuilt with the same values only as long as the seed is the same."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.randn(1, 10, 24, generator=torch.Generator().manual_seed(1))
        self.register_buffer("offset", values, persistent=False)

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) + self.offset


@has_only("parameters-without-gradient")
class NothingIsTrained(TinyViT):
    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        return super().encode(x)

    def classify(self, x: Tensor) -> Tensor:
        return super().classify(x).detach()


@has_only("batch-size")
class TwoImagesOnly(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(2, -1, -1), x], dim=1) + self.positions


@has_only("batch-dependence")
class NormalisedByTheBatch(TinyViT):
    """One image alone gets NaN."""

    def classify(self, x: Tensor) -> Tensor:
        x = self.norm(x[:, 0])
        return self.head((x - x.mean(0)) / x.std(0))


@has_only("batch-size")
class SqueezesTheBatch(TinyViT):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).squeeze()


class OneHead(nn.Module):
    def __init__(self, dim: int, width: int):
        super().__init__()
        self.width, self.qkv = width, nn.Linear(dim, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (q @ k.mT * self.width**-0.5).softmax(dim=-1) @ v


class HeadsInAList(TinyBlock):
    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        del self.qkv
        self.list = nn.ModuleList(self.make(dim, num_heads))

    def make(self, dim: int, num_heads: int) -> list[nn.Module]:
        return [OneHead(dim, dim // num_heads) for _ in range(num_heads)]

    def attend(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.list], dim=-1))


@has_only()
class HeadsOfTheirOwn(TinyViT):
    block = HeadsInAList


@has_only("heads-share-weights")
class OneHeadRepeated(TinyViT):
    class block(HeadsInAList):
        def make(self, dim: int, num_heads: int) -> list[nn.Module]:
            return [OneHead(dim, dim // num_heads)] * num_heads


class ConvolvedMLP(TinyBlock):
    """As in PVT v2: a depthwise convolution between the two layers of the MLP."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.first, self.second = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.depthwise = nn.Conv2d(2 * dim, 2 * dim, 3, padding=1, groups=2 * dim)
        del self.mlp

    def as_map(self, x: Tensor) -> Tensor:
        return x.mT.reshape(len(x), -1, 3, 3)

    def mlp(self, x: Tensor) -> Tensor:
        maps = self.depthwise(self.as_map(self.first(x[:, 1:])))
        patches = self.second(nn.functional.gelu(maps.flatten(2).mT))
        return nn.functional.pad(patches, (0, 0, 1, 0))


@has_only()
class TokensBackOnTheMap(MeanPooled):
    block = ConvolvedMLP


@has_only("patches-scrambled")
class TokensReshapedToAMap(MeanPooled):
    class block(ConvolvedMLP):
        def as_map(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), -1, 3, 3)  # without moving the features in front of the tokens


class Convolved(MeanPooled):
    """As in CPVT: a depthwise convolution of the stream itself adds what is near."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(self.dim, self.dim, 3, padding=1, groups=self.dim)

    def as_map(self, x: Tensor) -> Tensor:
        return x.mT.reshape(len(x), -1, 3, 3)

    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)
        return torch.cat([x[:, :1], x[:, 1:] + self.depthwise(self.as_map(x[:, 1:])).flatten(2).mT], dim=1)


@has_only()
class StreamConvolved(Convolved):
    pass


@has_only("patches-scrambled")
class StreamReshapedToAMap(Convolved):
    def as_map(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, 3, 3)


@has_only("activation-on-logits")
class LogitsNormalised(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.LayerNorm(10)

    def classify(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.gelu(super().classify(x)))


@has_only("softmax-missing")
class SoftmaxComputedAndThrownAway(TinyViT):
    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            self.shown = scores.softmax(dim=-1)
            return scores


@has_only("attention-summed", "attention-scale")
class WeightsScaledAndSummed(TinyViT):
    """einsum('bhqk, bhvd -> bhqd'): k and v are two axes, each summed for itself."""

    class block(TinyBlock):
        def attend(self, x: Tensor) -> Tensor:
            q, k, v = self.heads(x)
            weights = (q @ k.mT).softmax(dim=-1) / q.shape[-1] ** 0.5
            return self.proj(self.merge(torch.einsum("bhqk, bhvd -> bhqd", weights, v)))


@has_only()
class TwoAttentionsInParallel(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.other, self.norm3 = TinyBlock(dim, num_heads), nn.LayerNorm(dim)
            del self.other.norm1, self.other.norm2, self.other.mlp

        def forward(self, x: Tensor) -> Tensor:
            x = x + sum([self.attend(self.norm1(x)), self.other.attend(self.norm3(x))])
            return x + self.mlp(self.norm2(x))


@has_only()
class PositionsAreDistances(TinyViT):
    """Places that are mirror images of each other are alike for a model that knows distances only (2-D ALiBi)."""

    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            side = torch.arange(3.0, device=q.device)
            places = torch.cartesian_prod(side, side)
            distances = nn.functional.pad(torch.cdist(places, places), (1, 0, 1, 0))
            slopes = torch.arange(1.0, 3.0, device=q.device).view(2, 1, 1) / 4
            return (q @ k.mT * q.shape[-1] ** -0.5 - slopes * distances).softmax(dim=-1)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)

    def __init__(self) -> None:
        super().__init__()
        del self.positions


@has_only()
class AttentionKeptOnTheCPU(TinyViT):
    """A copy to look at later works on every device."""

    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            weights = super().weights(q, k)
            self.__dict__["shown"] = weights.detach().cpu()
            return weights


@has_only("device-fixed")
class NumbersOfPositionsOnTheCPU(TinyViT):
    """An embedding takes no index from another device."""

    def __init__(self) -> None:
        super().__init__()
        del self.positions
        self.table = nn.Embedding(10, self.dim)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.table(torch.arange(10))


@has_only("not-a-classifier")
class Identity(nn.Identity):
    size = 12


@pytest.mark.parametrize(("findings", "model_class"), MODELS, ids=[model.__name__ for _, model in MODELS])
def test_exactly_these_findings(findings: set[str], model_class: type[nn.Module], no_overfitting) -> None:
    input_shape = (getattr(model_class, "channels", 1), model_class.size, model_class.size)
    diagnosis = diagnose(model_class(), factory=model_class, input_shape=input_shape, fresh=True)
    assert diagnosis.ids() == findings, "\n".join(f"{found.id}: {found.measured}" for found in diagnosis.findings)
    assert diagnosis.exit_code == bool(findings)
    if not findings:
        reasons = {item.id for item in diagnosis.not_measured} & {"activations-with-depth", "gradients-with-depth"}
        assert not reasons, "the stack of blocks was not found"


class MovedParameter(TinyViT):
    """On the CPU `.to` returns the parameter itself, elsewhere a plain tensor."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        del self.class_token
        self.class_token = nn.Parameter(torch.zeros(1, 1, 24)).to(device)


class ParameterMadeThere(TinyViT):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 24, device=device))


@pytest.mark.parametrize(
    ("model_class", "findings"), [(MovedParameter, {"unregistered-tensors"}), (ParameterMadeThere, set())]
)
def test_a_parameter_that_is_lost_on_another_device(model_class, findings, no_overfitting) -> None:
    diagnosis = diagnose(model_class(), constructor=(model_class, {}), input_shape=(1, 12, 12), fresh=True)
    assert diagnosis.ids("warning", "broken") == findings


class OneImageAndABatchNorm(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(self.dim)

    def forward(self, images: Tensor) -> Tensor:
        if len(images) != 1:
            raise RuntimeError("one image at a time")
        return super().forward(images)


def test_a_batch_norm_that_cannot_measure_a_batch(no_overfitting) -> None:
    assert "batch-size" in diagnose(OneImageAndABatchNorm(), input_shape=(1, 12, 12), fresh=True).ids()


class OneImageWithoutBatchAxis(TinyViT):
    def forward(self, image: Tensor) -> Tensor:
        assert image.ndim == 3
        return super().forward(image[None])


def test_a_model_without_a_batch_axis(no_overfitting) -> None:
    (found,) = diagnose(OneImageWithoutBatchAxis(), input_shape=(1, 12, 12), fresh=True).findings
    assert found.id == "batch-size"
    assert "without a batch axis" in found.measured


class OneImageAfterAnother(TinyViT):
    """A little of the neighbour in the batch, less than what is certainly no noise."""

    def classify(self, x: Tensor) -> Tensor:
        return super().classify(x + 1e-3 * x.roll(1, 0))


@pytest.mark.parametrize("model_class", [TinyViT, OneImageAfterAnother])
def test_float_noise_is_no_dependence_on_the_batch(model_class, monkeypatch, no_overfitting) -> None:
    monkeypatch.setattr(batch, "SAME_PREDICTION", 0.0)  # so that any noise counts
    found = diagnose(model_class(), input_shape=(1, 12, 12), fresh=True).ids()
    assert ("batch-dependence" in found) == (model_class is OneImageAfterAnother)


class ReadsTheFirstPatch(TinyViT):
    """No positions, and a patch in place of the class token: the order of all other patches is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = self.positions = None

    def embed(self, images: Tensor) -> Tensor:
        return self.patchify(images)


def test_the_first_patch_in_place_of_a_class_token(no_overfitting) -> None:
    diagnosis = diagnose(ReadsTheFirstPatch(), input_shape=(1, 12, 12), fresh=True)
    assert diagnosis.ids("warning", "broken") == {"patch-order-ignored", "class-token-not-read"}


class FunctionOfTheConstructor(TinyViT):
    """Healthy; a copy of it still computes with the head of the original."""

    def __init__(self) -> None:
        super().__init__()
        head = self.head
        self.apply_head = lambda x: head(x)

    def classify(self, x: Tensor) -> Tensor:
        return self.apply_head(self.norm(x[:, 0]))


def test_a_copy_that_uses_the_original(no_overfitting) -> None:
    assert not diagnose(FunctionOfTheConstructor(), input_shape=(1, 12, 12), fresh=True).findings


# --- notes ---------------------------------------------------------------------------------------------------


class TableAsAttribute(TinyViT):
    """A fixed table of sines: it must be moved by hand, but nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.outer(torch.arange(10) / 3, torch.arange(24) / 10).sin()[None]

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) + self.table


class TableMadeInForward(TinyViT):
    """As in ConViT: a plain tensor that the first forward pass replaces by a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(1, 1, 24)

    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)
        if self.table.shape[1] != x.shape[1]:
            self.table = torch.outer(torch.arange(10) / 3, torch.arange(24) / 10).sin()[None]
        return x + self.table


class SpareMaskToken(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 24))


class NoNormAnywhere(TinyViT):
    class block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1 = self.norm2 = nn.Identity()


class LowRank(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.head = nn.Linear(24, 4), nn.Linear(4, 10)

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.down(self.norm(x[:, 0])))


@pytest.mark.parametrize(
    ("finding", "model_class"),
    [
        ("unregistered-tensors", TableAsAttribute),
        ("unregistered-tensors", TableMadeInForward),
        ("parameters-without-gradient", SpareMaskToken),
        ("branch-not-normalised", NoNormAnywhere),
        ("linear-after-linear", LowRank),
    ],
)
@pytest.mark.parametrize("with_factory", [True, False])
def test_only_noted(finding: str, model_class: type[nn.Module], with_factory: bool, no_overfitting) -> None:
    factory = model_class if with_factory else None
    diagnosis = diagnose(model_class(), factory=factory, input_shape=(1, 12, 12), fresh=True)
    assert diagnosis.ids("note") == diagnosis.ids() == {finding}
    assert diagnosis.exit_code == 0


def test_a_frozen_backbone_is_no_fault(no_overfitting) -> None:
    model = TinyViT().requires_grad_(False)
    model.head.requires_grad_(True)
    assert not diagnose(model, input_shape=(1, 12, 12)).findings


# --- several faults ------------------------------------------------------------------------------------------


def test_a_mask_that_shows_each_token_only_itself(no_overfitting) -> None:
    class Masked(MeanPooled):
        class block(TinyBlock):
            def weights(self, q: Tensor, k: Tensor) -> Tensor:
                logits = q @ k.mT * q.shape[-1] ** -0.5
                return logits.masked_fill(~torch.eye(q.shape[2], dtype=torch.bool), -torch.inf).softmax(dim=-1)

    assert "tokens-never-attend" in diagnose(Masked(), input_shape=(1, 12, 12)).ids("broken")


def test_activations_and_gradients_that_vanish_together(no_overfitting) -> None:
    class Vanishing(TinyViT):
        depth = 4

        class block(TinyBlock):
            def forward(self, x: Tensor) -> Tensor:
                return 0.05 * x

    assert {"activations-vanish", "gradients-vanish"} <= diagnose(Vanishing(), input_shape=(1, 12, 12)).ids()


class NoisyAndNormalisedByBatch(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)
        return F.dropout(x + 0.1 * torch.randn_like(x), 0.1)

    def classify(self, x: Tensor) -> Tensor:
        x = self.norm(x[:, 0])
        return self.head(x - 0.5 * x.mean(0))


class LogProbabilitiesWithoutPositions(OneVectorForAllPositions):
    def classify(self, x: Tensor) -> Tensor:
        return super().classify(x).log_softmax(-1)


class ArticleEncoder(MeanPooled):
    """`nn.TransformerEncoder` as the article uses it: no batch_first."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 2, 48)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def encode(self, x: Tensor) -> Tensor:
        return self.blocks(x)


@pytest.mark.parametrize(
    ("model_class", "findings"),
    [
        (ArticleEncoder, {"batch-dependence", "tokens-never-attend"}),
        (NoisyAndNormalisedByBatch, {"dropout-in-eval", "nondeterministic-eval", "batch-dependence"}),
        (LogProbabilitiesWithoutPositions, {"log-probabilities", "patch-order-ignored"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_all_faults_are_named(model_class: type[nn.Module], findings: set[str], no_overfitting) -> None:
    assert diagnose(model_class(), factory=model_class, input_shape=(1, 12, 12)).ids() == findings


# --- data ----------------------------------------------------------------------------------------------------


def pictures(count: int = 64) -> Tensor:
    return torch.randn(count, 1, 12, 12, generator=torch.Generator().manual_seed(3))


LABELS = torch.arange(64) % 10


@pytest.mark.parametrize(
    ("finding", "images", "labels", "test_images"),
    [
        ("inputs-wrong-range", (pictures() * 40 + 127).clamp(0, 255).byte(), LABELS, None),
        ("inputs-wrong-range", (pictures() * 40 + 127).clamp(0, 255), LABELS, None),
        ("inputs-wrong-range", pictures().index_fill(0, torch.tensor(5), torch.nan), LABELS, None),
        ("inputs-not-normalised", pictures().sigmoid(), LABELS, None),
        ("inputs-not-normalised", pictures() + 5, LABELS, None),
        ("inputs-channel-order", pictures().permute(0, 2, 3, 1), LABELS, None),
        ("labels-out-of-range", pictures(), LABELS + 1, None),
        ("labels-out-of-range", pictures(), LABELS - 1, None),
        ("train-test-overlap", pictures(), LABELS, torch.cat([pictures()[:3], pictures() + 1])),
    ],
)
def test_faults_in_the_data(
    finding: str, images: Tensor, labels: Tensor, test_images: Tensor | None, no_overfitting
) -> None:
    diagnosis = diagnose(TinyViT(), images, labels, test_images=test_images)
    assert diagnosis.ids() == {finding}, "\n".join(found.measured for found in diagnosis.findings)


def test_clean_data_are_measured_without_findings() -> None:
    diagnosis = diagnose(TinyViT(), pictures(), LABELS, test_images=pictures() + 1)
    assert not diagnosis.findings
    # there is no constructor
    arguments = {"argument-without-effect", "argument-fails", "depth-miscounted"}
    assert {item.id for item in diagnosis.not_measured} == arguments


def test_reversed_colours() -> None:
    """A model that reads the first channel, as if trained, given images with the channels reversed."""

    class ReadsRed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.threshold = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Tensor:
            red = images[:, 0].mean((1, 2)) - self.threshold
            return torch.stack([-red, red], dim=1) * 10

    images = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, 0] += (torch.arange(64) % 2 * 2.0 - 1)[:, None, None]
    labels = torch.arange(64) % 2
    assert "inputs-channel-order" not in diagnose(ReadsRed(), images, labels, fresh=False).ids()
    assert "inputs-channel-order" in diagnose(ReadsRed(), images.flip(1), labels, fresh=False).ids()


def test_frozen_weights_of_a_trained_model_are_no_finding(no_overfitting) -> None:
    """A backbone that was trained and is frozen for a new head; a frozen number has no axes at all."""
    model = TinyViT()
    model.register_parameter("temperature", nn.Parameter(torch.tensor(1.0), requires_grad=False))
    model.blocks.requires_grad_(False)
    for fresh, expected in ((True, {"parameters-frozen"}), (False, set())):
        diagnosis = diagnose(model, factory=TinyViT, input_shape=(1, 12, 12), fresh=fresh)
        assert diagnosis.ids() & {"parameters-frozen"} == expected
        assert "parameters-frozen" not in {item.id for item in diagnosis.not_measured}
