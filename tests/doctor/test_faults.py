"""One small broken model per check: the doctor finds its fault, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor import diagnose
from vitreous.testing import TinyBlock, TinyViT

FAULTS: list[tuple[str, type[nn.Module]]] = []


def has_only(finding: str):
    """Register a model that has exactly this fault."""

    def register(model: type[nn.Module]) -> type[nn.Module]:
        FAULTS.append((finding, model))
        return model

    return register


# --- batch and tokens ----------------------------------------------------------------------------------------


@has_only("batch-dependence")
class CentredOnTheBatch(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        x = self.norm(x[:, 0])
        return self.head(x - 0.5 * x.mean(0, keepdim=True))


class MeanPooled(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).mean(1))


class HeadsAttendToEachOther(TinyBlock):
    def heads(self, x: Tensor) -> tuple[Tensor, ...]:  # the transpose to (B, heads, tokens, K) was forgotten
        B, N, D = x.shape
        return self.qkv(x).view(B, N, 3, self.num_heads, D // self.num_heads).permute(2, 0, 1, 3, 4).unbind(0)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.proj((self.weights(q, k) @ v).flatten(2))


@has_only("tokens-never-attend")
class AttentionInsideEachToken(MeanPooled):
    block = HeadsAttendToEachOther


class SeesItselfOnly(TinyBlock):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        return logits.masked_fill(~torch.eye(q.shape[2], dtype=torch.bool), -torch.inf).softmax(dim=-1)


class OnePositionEach(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)[:, None]).view(x.shape)


@has_only("tokens-never-attend")
class EachTokenAlone(MeanPooled):
    block = OnePositionEach


# --- patches -------------------------------------------------------------------------------------------------


@has_only("patches-without-influence")
class LastPatchDropped(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images)[:, :-1]


@has_only("border-ignored")
class PatchDoesNotDivide(TinyViT):
    size = 14


@has_only("patch-order-ignored")
class NoPositions(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions[:, :1]


# --- state ---------------------------------------------------------------------------------------------------


def sine_table() -> Tensor:
    return torch.outer(torch.arange(10) / 3, torch.arange(24) / 10).sin()[None]


@has_only("unregistered-tensors")
class TableAsAttribute(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.table = sine_table()

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) + self.table


@has_only("class-token-untrained")
class FrozenClassToken(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.class_token.requires_grad_(False)


@has_only("class-token-untrained")
class ClassTokenAsBuffer(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        vector = self.class_token.detach().clone()
        del self.class_token
        self.register_buffer("class_token", vector)


@has_only("class-token-untrained")
class DetachedClassToken(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.detach().expand(len(x), -1, -1), x], dim=1) + self.positions


@has_only("parameters-without-gradient")
class UnusedLayer(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Linear(24, 24)


@has_only("parameters-without-gradient")
class DetachedPositions(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions.data


@has_only("state-lost-on-reload")
class UnsavedRandomBuffer(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.randn(1, 10, 24), persistent=False)

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) + self.offset


@has_only("state-lost-on-reload")
class SeededUnsavedBuffer(UnsavedRandomBuffer):
    """Rebuilt with the same values only as long as the seed is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.offset.copy_(torch.randn(1, 10, 24, generator=torch.Generator().manual_seed(1)))


# --- outputs -------------------------------------------------------------------------------------------------


@has_only("probabilities-not-logits")
class SoftmaxAtTheEnd(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return super().classify(x).softmax(-1)


@has_only("log-probabilities")
class LogSoftmaxAtTheEnd(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return super().classify(x).log_softmax(-1)


@has_only("linear-after-linear")
class TwoLinearLayers(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(24, 50)
        self.head = nn.Linear(50, 10)

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.before(self.norm(x[:, 0])))


@has_only("dropout-in-eval")
class FunctionalDropout(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.norm(x[:, 0]), 0.1))  # training=True is the default


@has_only("nondeterministic-eval")
class NoiseInForward(TinyViT):
    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)
        return x + 0.1 * torch.randn_like(x)


# --- attention -----------------------------------------------------------------------------------------------


class ScaledByTheWholeWidth(TinyBlock):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / (self.num_heads * q.shape[-1]) ** 0.5).softmax(dim=-1)


@has_only("attention-scale")
class WrongWidth(TinyViT):
    block = ScaledByTheWholeWidth


class FusedUnscaled(TinyBlock):
    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.proj(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


@has_only("attention-scale")
class NoScaleInTheFusedKernel(TinyViT):
    block = FusedUnscaled


class SoftmaxOverQueries(TinyBlock):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-2)


class SoftmaxOverHeads(TinyBlock):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=1)


@has_only("softmax-axis")
class OverQueries(TinyViT):
    block = SoftmaxOverQueries


@has_only("softmax-axis")
class OverHeads(TinyViT):
    block = SoftmaxOverHeads


@has_only("attention-blown-up")
class BlownUp(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():  # in the last block only: an early one would also affect the gradients
            self.blocks[-1].qkv.weight[:24] *= 1000


@has_only("attention-collapsed")
class Collapsed(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.spread = torch.nn.Parameter(torch.zeros(10))

    class block(TinyBlock):
        def weights(self, q: Tensor, k: Tensor) -> Tensor:
            logits = q @ k.mT * q.shape[-1] ** -0.5
            return (logits + 30 * torch.eye(q.shape[2]).roll(1, 0)).softmax(dim=-1)

    def encode(self, x: Tensor) -> Tensor:
        return super().encode(x + self.spread[:, None])


# --- fresh models --------------------------------------------------------------------------------------------


@has_only("first-loss")
class LoudHead(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.head.weight, std=1.0)


class FaintGradient(TinyBlock):
    """The same values forward, 1/200 of the gradient backward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach() * 0.995 + x * 0.005)


@has_only("gradients-vanish")
class GradientsVanish(TinyViT):
    block, depth = FaintGradient, 3


class Growing(TinyBlock):
    """Grows 50 times per block forward; gradients do not grow."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return 50 * x.detach() + (x - x.detach())


@has_only("activations-explode")
class ActivationsExplode(TinyViT):
    block, depth = Growing, 3


@has_only("cannot-overfit")
class BoundedOutput(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return torch.tanh(super().classify(x))


@pytest.mark.parametrize(("finding", "model_class"), FAULTS, ids=[f"{name}-{model.__name__}" for name, model in FAULTS])
def test_names_exactly_this_fault(finding: str, model_class: type[nn.Module]) -> None:
    input_shape = (1, model_class.size, model_class.size)
    diagnosis = diagnose(model_class(), factory=model_class, input_shape=input_shape, fresh=True)
    assert diagnosis.ids() == {finding}, "\n".join(found.measured for found in diagnosis.findings)
    (found,) = diagnosis.findings
    assert any(character.isdigit() for character in found.measured), "a finding states the number measured"
    assert found.level in ("broken", "warning")
    assert diagnosis.exit_code == 1


def test_a_mask_that_shows_each_token_only_itself() -> None:
    class Masked(MeanPooled):
        block = SeesItselfOnly

    diagnosis = diagnose(Masked(), input_shape=(1, 12, 12))
    assert "tokens-never-attend" in diagnosis.ids("broken")


def test_activations_and_gradients_that_vanish_together(no_overfitting) -> None:
    class Vanishing(TinyViT):
        depth = 4

        class block(TinyBlock):
            def forward(self, x: Tensor) -> Tensor:
                return 0.05 * x

    assert {"activations-vanish", "gradients-vanish"} <= diagnose(Vanishing(), input_shape=(1, 12, 12)).ids()


def test_modules_in_a_plain_list_are_seen() -> None:
    class ListOfBlocks(TinyViT):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = None
            self.hidden = [TinyBlock(24, 2)]

        def encode(self, x: Tensor) -> Tensor:
            return self.hidden[0](x)

    diagnosis = diagnose(ListOfBlocks(), factory=ListOfBlocks, input_shape=(1, 12, 12))
    assert diagnosis.ids() == {"unregistered-tensors", "state-lost-on-reload"}
    assert "hidden[0].norm1.weight" in diagnosis.findings[0].measured


def test_a_narrow_middle_between_linear_layers_is_only_noted() -> None:
    class LowRank(TinyViT):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.head = nn.Linear(24, 4), nn.Linear(4, 10)

        def classify(self, x: Tensor) -> Tensor:
            return self.head(self.down(self.norm(x[:, 0])))

    diagnosis = diagnose(LowRank(), input_shape=(1, 12, 12))
    assert diagnosis.ids("note") == {"linear-after-linear"}
    assert diagnosis.exit_code == 0


class ArticleEncoder(MeanPooled):
    """`nn.TransformerEncoder` as the article uses it: no batch_first."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 2, 48)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def encode(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class TwoOutputFaults(LogSoftmaxAtTheEnd, NoPositions):
    pass


class TwoStateFaults(TableAsAttribute, FrozenClassToken):
    pass


class DropoutAndBatch(CentredOnTheBatch):
    def embed(self, images: Tensor) -> Tensor:
        return F.dropout(super().embed(images), 0.1)


class NoiseAndDropout(NoiseInForward, FunctionalDropout):
    pass


class ScaleAndBorder(PatchDoesNotDivide):
    block = ScaledByTheWholeWidth


@pytest.mark.parametrize(
    ("model_class", "findings"),
    [
        (ArticleEncoder, {"batch-dependence", "tokens-never-attend"}),
        (TwoOutputFaults, {"log-probabilities", "patch-order-ignored"}),
        (TwoStateFaults, {"unregistered-tensors", "class-token-untrained"}),
        (DropoutAndBatch, {"dropout-in-eval", "batch-dependence"}),
        (NoiseAndDropout, {"dropout-in-eval", "nondeterministic-eval"}),
        (ScaleAndBorder, {"attention-scale", "border-ignored"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_two_faults_are_both_named(model_class: type[nn.Module], findings: set[str], no_overfitting) -> None:
    input_shape = (1, model_class.size, model_class.size)
    assert diagnose(model_class(), factory=model_class, input_shape=input_shape).ids() == findings


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
    assert not diagnosis.not_measured


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
