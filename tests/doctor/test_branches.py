"""How branches end and join the stream, dropout that is not passed on, and faults that hide behind another one."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from vitreous.doctor import diagnose
from vitreous.doctor.checks import CHECKS, FROM_RECORDING
from vitreous.errors import VitreousError
from vitreous.testing import TinyBlock, TinyViT

MODELS: list[tuple[set[str], type[nn.Module]]] = []


def has_only(*findings: str):
    """Register a block, in a model that has exactly these findings; none for a healthy one."""

    def register(block: type[TinyBlock]) -> type[TinyBlock]:
        MODELS.append((set(findings), type(block.__name__, (TinyViT,), {"block": block})))
        return block

    return register


# --- joins ---------------------------------------------------------------------------------------------------


@has_only("skip-multiplied")
class AttentionMultiplied(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x * self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@has_only()
class GateInsideTheBranch(TinyBlock):
    """Bilinear gate: the product is of the branch's own values, and a skip leads past it."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.gate = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def attend(self, x: Tensor) -> Tensor:
        return super().attend(x) * self.gate(x)


@has_only()
class Subtracted(TinyBlock):
    """The sign of a branch is learned."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


# --- ends ----------------------------------------------------------------------------------------------------


@has_only("branch-activation")
class ReLUBehindTheProjection(TinyBlock):
    def attend(self, x: Tensor) -> Tensor:
        return super().attend(x).relu()


@has_only("branch-activation")
class ScaledAndNormalisedBehindTheActivation(TinyBlock):
    """Post-norm inside the branch, with a layer scale: neither hides the activation."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.scale = nn.Parameter(torch.ones(dim))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.scale * self.norm2(self.mlp(x))


@has_only()
class GatedMLP(TinyBlock):
    """SwiGLU ends with a linear layer behind the product."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.mlp = nn.Linear(dim, 2 * dim)
        self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        normalised = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(normalised)) * self.mlp(normalised))


@has_only()
class OneHeadNeedsNoProjection(TinyBlock):
    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads=1)
        self.proj = nn.Identity()


# --- behind another fault ------------------------------------------------------------------------------------


@has_only("attention-summed", "heads-scrambled", "attention-scale", "skip-missing", "branch-activation")
class BehindSummedWeights(TinyBlock):
    """Weights that are summed hide neither how heads are split, nor the scale, nor what the MLP reads."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads)
        self.mlp.append(nn.GELU())

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(len(x), self.num_heads, x.shape[1], -1) for part in self.qkv(x).chunk(3, dim=-1))
        summed = torch.einsum("bhqk,bhvd->bhqd", (q @ k.mT).softmax(-1), v)
        return self.proj(summed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        attended = x + self.norm1(self.attend(x))
        return x + self.norm2(self.mlp(attended))


@has_only("nondeterministic-eval", "attention-scale")
class ScaleBehindDropout(TinyBlock):
    """Scores that are masked at random by assignment, in eval mode as well."""

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT * (self.num_heads * q.shape[-1]) ** -0.5
        scores[torch.rand(scores.shape) < 0.1] = -1e9
        return scores.softmax(dim=-1)


@has_only("nondeterministic-eval")
class RandomMaskAlone(TinyBlock):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores[torch.rand(scores.shape) < 0.1] = -1e9
        return scores.softmax(dim=-1)


@pytest.mark.parametrize(("findings", "model_class"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_exactly_these_findings(findings: set[str], model_class: type[nn.Module], no_overfitting) -> None:
    torch.manual_seed(0)
    diagnosis = diagnose(model_class(), factory=model_class, input_shape=(1, 12, 12), fresh=True)
    found = [f"{found.level} {found.id}: {found.measured}" for found in diagnosis.findings]
    assert diagnosis.ids("warning", "broken") == findings, found


class NotFinite(TinyViT):
    """The table of positions is uninitialised memory, say NaN, and half of the patches are not read."""

    is_fixed = False

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.positions, 0.0 if self.is_fixed else torch.nan)

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images)[:, : 10 if self.is_fixed else 5]


class Finite(NotFinite):
    is_fixed = True


def test_what_is_not_finite_is_measured_with_other_parameters(no_overfitting) -> None:
    ids = diagnose(NotFinite(), factory=NotFinite, input_shape=(1, 12, 12), fresh=True).ids("warning", "broken")
    assert ids == {"outputs-not-finite", "patches-without-influence"}
    assert not diagnose(Finite(), factory=Finite, input_shape=(1, 12, 12), fresh=True).ids("warning", "broken")


# --- dropout -------------------------------------------------------------------------------------------------


class MLP(nn.Sequential):
    def __init__(self, dim: int, dropout: float = 0.0):
        super().__init__(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))


class DropsTokens(TinyViT):
    """`attn_drop` names a part of the model, which is not the MLP."""

    def __init__(self, attn_drop: float = 0.1):
        super().__init__()
        self.dropout = nn.Dropout(attn_drop)
        for block in self.blocks:
            block.mlp = MLP(self.dim)

    def encode(self, x: Tensor) -> Tensor:
        return super().encode(self.dropout(x))


class DropsTokensAndMLP(DropsTokens):
    def __init__(self, dropout: float = 0.0, mlp_drop: float = 0.0):
        super().__init__(dropout)
        for block in self.blocks:
            block.mlp = MLP(self.dim, max(dropout, mlp_drop))


@pytest.mark.parametrize(
    "model_class",
    [DropsTokens, DropsTokensAndMLP],
)
def test_dropout_of_the_mlp(model_class, no_overfitting) -> None:
    diagnosis = diagnose(model_class(), constructor=(model_class, {}), input_shape=(1, 12, 12))
    assert not diagnosis.ids("warning", "broken"), [found.measured for found in diagnosis.findings]


# --- messages and time ---------------------------------------------------------------------------------------


class FourImagesAndNoWidth(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(self.dim, 0)

    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images.view(4, 1, 12, 12))
        return x + self.mix(x[..., :-1])


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_the_message_names_what_fails_behind_the_batch_size() -> None:
    with pytest.raises(
        VitreousError, match=r"with a batch of 4 it fails elsewhere.*`mix.weight` has the shape \(0, 24\)"
    ):
        diagnose(FourImagesAndNoWidth(), input_shape=(1, 12, 12))


class Slow(TinyViT):
    """A second of CPU time from the second image on."""

    seconds = 0.0

    def embed(self, images: Tensor) -> Tensor:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return super().embed(images)


def test_the_time_limit_holds_in_the_middle_of_a_check(monkeypatch) -> None:
    from vitreous.doctor import model_under_test

    monkeypatch.setattr(model_under_test, "CPU_SECONDS", 3.0)
    monkeypatch.setattr(model_under_test, "MOST_CPU_SECONDS", 4.0)
    monkeypatch.setattr(Slow, "seconds", 0.25)
    diagnosis = diagnose(Slow(), factory=Slow, input_shape=(1, 12, 12))
    assert not diagnosis.findings
    late = {item.id for item in diagnosis.not_measured if item.reason == model_under_test.NO_TIME}
    assert late
    assert not late & FROM_RECORDING
    assert FROM_RECORDING & set(CHECKS) <= set(diagnosis.healthy) | {item.id for item in diagnosis.not_measured}
    assert diagnosis.cpu_seconds < 4 + 3 * 0.25 * 4  # the recordings that the cheap checks need
