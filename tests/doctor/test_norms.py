"""Norms with a large ε, a gain that is not per feature, or nothing left to normalise; and wrappers around branches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitreous.doctor import diagnose
from vitreous.testing import TinyBlock, TinyViT

NORM_DETAILS = {"norm-epsilon", "norm-gain", "norm-repeated"}


class Norm(nn.Module):
    """Written by hand; every part is an argument."""

    def __init__(self, dim: int, epsilon: float = 1e-6, gain: tuple[int, ...] = (24,), kind: str = "var"):
        super().__init__()
        self.gain, self.bias, self.epsilon, self.kind = nn.Parameter(torch.ones(gain)), None, epsilon, kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "length":  # ScaleNorm
            return self.gain * x / (x.norm(dim=-1, keepdim=True) + self.epsilon)
        if self.kind == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.gain
        centred = x - x.mean(-1, keepdim=True)
        if self.kind == "std":
            return self.gain * centred / (x.std(-1, keepdim=True) + self.epsilon)
        return centred / (x.var(-1, keepdim=True) + self.epsilon).sqrt() * self.gain


def with_norms(make) -> type[TinyViT]:
    class Block(TinyBlock):
        def __init__(self, dim: int, num_heads: int):
            super().__init__(dim, num_heads)
            self.norm1, self.norm2 = make(dim), make(dim)

    class Model(TinyViT):
        block = Block

    return Model


class TinyTokens(TinyViT):
    """Tokens of size 1e-4: the usual ε decides, but the tokens are at fault."""

    def embed(self, images: Tensor) -> Tensor:
        return 1e-4 * super().embed(images)


class LargeTokens(with_norms(lambda dim: nn.LayerNorm(dim, eps=0.05))):  # type: ignore[misc]
    """An ε that is larger than usual and smaller than the variance."""

    def embed(self, images: Tensor) -> Tensor:
        return 10 * super().embed(images)


class NormalisedInside(TinyBlock):
    """Attention begins with a norm of its own, behind the one of the block."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.own, self.drop = nn.LayerNorm(dim), nn.Dropout(0.1)

    def attend(self, x: Tensor) -> Tensor:
        return super().attend(self.own(self.drop(x)))


class OneByHand(NormalisedInside):
    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.norm1, self.own = Norm(dim), Norm(dim, kind="rms")


class PostNormTwice(TinyBlock):
    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.again = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.norm1(x + self.attend(x)))
        return self.norm2(x + self.mlp(x))


class NormalisedBefore(TinyViT):
    """As in CLIP: a norm before the first block, which the skip connection carries."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(self.dim)

    def encode(self, x: Tensor) -> Tensor:
        return super().encode(self.before(x))


class PostNorm(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class PostNormWithAHead(TinyViT):
    """A norm of the last block, one of the encoder and one of the head, as many published models have."""

    block = PostNorm

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.LayerNorm(self.dim), nn.Linear(self.dim, 10))


class ValuesFromTheFirst(TinyBlock):
    """Queries and keys are normalised once more, the values are not."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.own = nn.LayerNorm(dim)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, _ = super().heads(self.own(x))
        return q, k, super().heads(x)[2]


def with_block(block: type[TinyBlock]) -> type[TinyViT]:
    return type(block.__name__, (TinyViT,), {"block": block})


@pytest.mark.parametrize(
    ("model_class", "findings"),
    [
        pytest.param(with_norms(lambda dim: nn.RMSNorm(dim, eps=dim)), {"norm-epsilon"}, id="rms"),
        pytest.param(with_norms(lambda dim: Norm(dim, dim)), {"norm-epsilon"}, id="by-hand"),
        pytest.param(with_norms(lambda dim: Norm(dim, dim, kind="std")), {"norm-epsilon"}, id="by-hand-std"),
        pytest.param(with_norms(lambda dim: Norm(dim, dim, kind="rms")), {"norm-epsilon"}, id="by-hand-rms"),
        pytest.param(with_norms(lambda dim: Norm(dim, 1e-3)), set(), id="usual"),
        pytest.param(with_norms(lambda dim: nn.LayerNorm(dim, eps=1e-3)), set(), id="usual-fused"),
        pytest.param(TinyTokens, set(), id="tiny-tokens"),
        pytest.param(LargeTokens, set(), id="large-tokens"),
        pytest.param(with_norms(lambda dim: Norm(dim, gain=(1,), kind="std")), {"norm-gain"}, id="one-gain-first"),
        pytest.param(with_norms(lambda dim: Norm(dim, gain=())), {"norm-gain"}, id="a-number"),
        pytest.param(with_norms(lambda dim: Norm(dim, gain=(10, 1))), {"norm-gain"}, id="per-token"),
        pytest.param(with_norms(lambda dim: Norm(dim, gain=(1, 1, 24))), set(), id="per-feature"),
        pytest.param(with_norms(lambda dim: Norm(dim, gain=(1,), kind="length")), set(), id="scale-norm"),
        pytest.param(with_block(NormalisedInside), {"norm-repeated"}, id="inside"),
        pytest.param(with_block(OneByHand), {"norm-repeated"}, id="inside-by-hand"),
        pytest.param(with_block(PostNormTwice), {"norm-repeated"}, id="post-norm-twice"),
        pytest.param(NormalisedBefore, set(), id="before-the-first-block"),
        pytest.param(PostNormWithAHead, set(), id="post-norm-with-a-head"),
        pytest.param(with_block(ValuesFromTheFirst), set(), id="values-from-the-first"),
    ],
)
def test_details_of_norms(model_class: type[TinyViT], findings: set[str], no_overfitting) -> None:
    diagnosis = diagnose(model_class(), input_shape=(1, 12, 12), fresh=True)
    found = "\n".join(f"{one.id}: {one.measured}" for one in diagnosis.findings)
    assert diagnosis.ids() & NORM_DETAILS == findings, found


# --- wrappers around branches --------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, branch: nn.Module):
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class PreNorm(Residual):
    def __init__(self, branch: nn.Module):
        super().__init__(branch)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(self.norm(x))


class Attention(TinyBlock):
    def __init__(self) -> None:
        super().__init__(24, 2)
        self.norm1 = self.norm2 = self.mlp = None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))


def wrapped(*branches) -> type[TinyViT]:
    """Return a model whose blocks apply what these functions make, one after the other."""

    class Model(TinyViT):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(*(make() for make in branches)) for _ in range(2))

    return Model


@pytest.mark.parametrize(
    ("branches", "findings"),
    [
        ([lambda: Residual(PreNorm(Attention())), lambda: Residual(PreNorm(mlp()))], set()),
        ([lambda: PreNorm(Residual(Attention())), lambda: Residual(PreNorm(mlp()))], {"skip-normalised"}),
        ([lambda: Residual(PreNorm(Attention())), lambda: PreNorm(Residual(mlp()))], set()),  # a note, as CCT has it
        ([lambda: Residual(PreNorm(Attention())), lambda: Residual(mlp())], {"branch-not-normalised"}),
        ([lambda: Residual(PreNorm(PreNorm(Attention()))), lambda: Residual(PreNorm(mlp()))], {"norm-repeated"}),
        ([lambda: Residual(nn.Sequential(Residual(PreNorm(Attention())), PreNorm(mlp())))], {"skip-missing"}),
    ],
    ids=["healthy", "norm-outside-attention", "norm-outside-mlp", "mlp-bare", "norm-twice", "skip-from-the-input"],
)
def test_wrappers(branches: list, findings: set[str], no_overfitting) -> None:
    diagnosis = diagnose(wrapped(*branches)(), input_shape=(1, 12, 12), fresh=True)
    found = "\n".join(f"{one.id}: {one.measured}" for one in diagnosis.findings)
    assert diagnosis.ids("warning", "broken") == findings, found


def test_a_skip_normalised_around_the_mlp_alone_is_a_note(no_overfitting) -> None:
    """The blocks of the published CCT, CVT and ViT-Lite: x = x + attention(norm(x)), x = norm(x), x = x + MLP(x)."""
    model = wrapped(lambda: Residual(PreNorm(Attention())), lambda: PreNorm(Residual(mlp())))()
    diagnosis = diagnose(model, input_shape=(1, 12, 12), fresh=True)
    assert diagnosis.ids("note") == {"skip-normalised"}
    assert diagnosis.exit_code == 0
