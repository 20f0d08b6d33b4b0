"""Arguments that have no effect, work with one value only or count wrongly; MLPs that read the wrong tensor."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from vitreous.doctor import diagnose
from vitreous.doctor.constructor_calls import own_classes, recorded_calls
from vitreous.doctor.findings import MissingModule
from vitreous.testing import TinyBlock, TinyViT

NEW = {"argument-without-effect", "argument-fails", "depth-miscounted", "mlp-misses-attention", "skip-normalised"}


class Sized(TinyViT):
    """Every size is an argument that works."""

    def __init__(self, image_size: tuple[int, int] = (12, 12), patch_size: int = 4, embed_dim: int = 24, depth: int = 2,
                 num_heads: int = 2, in_channels: int = 1, num_classes: int = 10, dropout: float = 0.1):  # fmt: skip
        nn.Module.__init__(self)
        self.patches = nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)
        tokens = (image_size[0] // patch_size) * (image_size[1] // patch_size)
        self.class_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, embed_dim) * 0.02)
        self.blocks = nn.ModuleList(self.block(embed_dim, num_heads) for _ in range(depth))
        self.norm, self.dropout = nn.LayerNorm(embed_dim), nn.Dropout(dropout)
        self.head = nn.Linear(embed_dim, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        return self.dropout(super().embed(images))


class PositionsFixed(Sized):
    """Ten positions, whatever the image and the patch."""

    def __init__(self, image_size: tuple[int, int] = (12, 12), patch_size: int = 4) -> None:
        super().__init__(image_size, patch_size)
        self.positions = nn.Parameter(torch.randn(1, 10, 24) * 0.02)


class ChannelsFixed(Sized):
    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.channels = in_channels

    def patchify(self, images: Tensor) -> Tensor:
        return super().patchify(images.view(len(images), self.channels, 12, 12))


class JointNeedsMore(Sized):
    """A flag whose other value needs a further input is no fault."""

    def __init__(self, joint: bool = False) -> None:
        super().__init__()
        self.joint = joint

    def forward(self, images: Tensor, joint_size: int | None = None) -> Tensor:
        return super().forward(images) * (len(images) // joint_size if self.joint else 1)


class NothingWithoutDropout(Sized):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(dropout=dropout)
        self.dropout = nn.Dropout(dropout) if dropout else None  # type: ignore[assignment]


class RefusesOddWidths(Sized):
    """What the model's own check refuses is no fault: the width and the heads belong together."""

    def __init__(self, embed_dim: int = 24, num_heads: int = 2) -> None:
        if (embed_dim, num_heads) not in ((24, 2), (48, 4)):
            raise ValueError("24 wide with 2 heads, or 48 with 4")
        super().__init__(embed_dim=embed_dim, num_heads=num_heads)


class PixelsAsTokens(Sized):
    """Without a projection the width is that of a patch: one cannot change without the other."""

    def __init__(self, patch_size: int = 4, embed_dim: int = 16) -> None:
        super().__init__(patch_size=patch_size, embed_dim=embed_dim)
        self.patch_size = patch_size
        del self.patches

    def patchify(self, images: Tensor) -> Tensor:
        return nn.functional.unfold(images, self.patch_size, stride=self.patch_size).mT


class UpToALayer(Sized):
    """As in ConViT: a number of layers that only matters below the depth."""

    def __init__(self, depth: int = 2, plain_up_to_layer: int = 10) -> None:
        super().__init__(depth=depth)
        for block in self.blocks[plain_up_to_layer:]:
            block.mlp[1] = nn.Tanh()


class BiasOfAnUnusedLayer(Sized):
    def __init__(self, mlp_bias: bool = True) -> None:
        super().__init__()
        self.unused = nn.Linear(24, 48, bias=mlp_bias)


class OneLayerTooMany(Sized):
    def __init__(self, num_layers: int = 2) -> None:
        super().__init__(depth=num_layers + 1)


class SquaresOnly(Sized):
    def __init__(self, image_size: tuple[int, int] = (12, 12)) -> None:
        super().__init__((image_size[0], image_size[0]))


class ColourFlag(Sized):
    """A flag that is the number of channels: its other value needs other images."""

    def __init__(self, rgb: bool = False) -> None:
        super().__init__(in_channels=3 if rgb else 1)


class NothingWithoutTheToken(Sized):
    def __init__(self, use_class_token: bool = True) -> None:
        super().__init__()
        if not use_class_token:
            self.class_token = None  # type: ignore[assignment]


class OptionalWidth(Sized):
    """A layer before the head, of a width that the head does not know."""

    def __init__(self, embed_dim: int = 24, representation_size: int | None = None) -> None:
        super().__init__(embed_dim=embed_dim)
        wide = representation_size or embed_dim
        self.before = nn.Sequential(nn.Linear(embed_dim, wide), nn.Tanh()) if representation_size else nn.Identity()

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.before(self.norm(x[:, 0])))


class OptionalWidthFixed(OptionalWidth):
    def __init__(self, embed_dim: int = 24, representation_size: int | None = None) -> None:
        super().__init__(embed_dim, representation_size)
        self.head = nn.Linear(representation_size or embed_dim, 10)


class ChosenBlock(TinyBlock):
    def __init__(self, dim: int, num_heads: int, dropout: float = 0.1, act_layer: type[nn.Module] = nn.GELU) -> None:
        super().__init__(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), act_layer(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))


class Chosen(Sized):
    """Dropout, activation and pooling are arguments that reach every layer."""

    block = ChosenBlock

    def __init__(self, embed_dim: int = 24, dropout: float = 0.0, act_layer: type[nn.Module] | None = None,
                 pool: str = "cls") -> None:  # fmt: skip
        super().__init__(embed_dim=embed_dim, dropout=dropout)
        self.blocks = self.stack(embed_dim, dropout, act_layer or nn.GELU)
        self.pool = pool

    def stack(self, dim: int, dropout: float, act_layer: type[nn.Module]) -> nn.ModuleList:
        return nn.ModuleList(ChosenBlock(dim, 2, dropout, act_layer) for _ in range(2))

    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.mean(dim=1) if self.pool == "mean" else x[:, 0]))


class NormWithItsOwnEps(Sized):
    """The model adds an ε to the class it is given."""

    def __init__(self, embed_dim: int = 24, norm_layer: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__(embed_dim=embed_dim)
        self.norm = functools.partial(norm_layer, eps=1e-6)(embed_dim)  # type: ignore[assignment]


class ActivationNotPassedOn(Chosen):
    def stack(self, dim: int, dropout: float, act_layer: type[nn.Module]) -> nn.ModuleList:
        return nn.ModuleList(ChosenBlock(dim, 2, dropout) for _ in range(2))


class DropoutNotPassedOn(Chosen):
    def stack(self, dim: int, dropout: float, act_layer: type[nn.Module]) -> nn.ModuleList:
        return nn.ModuleList(ChosenBlock(dim, 2, act_layer=act_layer) for _ in range(2))


class PoolingIgnored(Chosen):
    def classify(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x[:, 0]))


class KeywordsPassedOn(Sized):
    def __init__(self, embed_dim: int = 24, **kwargs: float) -> None:
        super().__init__(embed_dim=embed_dim, dropout=0.0)
        self.blocks = nn.ModuleList(ChosenBlock(embed_dim, 2, **kwargs) for _ in range(2))


class KeywordsIgnored(KeywordsPassedOn):
    def __init__(self, embed_dim: int = 24, **kwargs: float) -> None:
        super().__init__(embed_dim)


class KeywordsRefused(KeywordsPassedOn):
    """The embedding gets them too, and knows none of them."""

    def __init__(self, embed_dim: int = 24, **kwargs: float) -> None:
        super().__init__(embed_dim, **kwargs)
        self.patches = nn.Conv2d(1, embed_dim, 4, 4, **kwargs)


class PatchOfTheTableOnly(Sized):
    """The patch size sets the number of positions, of which the first ten are read."""

    def __init__(self, image_size: int = 12, patch_size: int = 2) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2 + 1, 24) * 0.02)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patchify(images)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions[:, : x.shape[1] + 1]


class WithRate(nn.Module):
    """A feed-forward layer that drops nothing unless it is given a rate."""

    def __init__(self, dim: int, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.Dropout(p))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class BehindAttentionDrop(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x)


class PassesOn(TinyBlock):
    """Dropout behind attention and in the feed-forward layer."""

    def __init__(self, dim: int, num_heads: int, p: float = 0.0) -> None:
        super().__init__(dim, num_heads)
        self.drop, self.mlp = BehindAttentionDrop(p), self.feed_forward(dim, p)  # type: ignore[assignment]

    def feed_forward(self, dim: int, p: float) -> nn.Module:
        return WithRate(dim, p)

    def attend(self, x: Tensor) -> Tensor:
        return self.drop(super().attend(x))


class KeepsForItself(PassesOn):
    def feed_forward(self, dim: int, p: float) -> nn.Module:
        return WithRate(dim)


class DropsTheBranch(KeepsForItself):
    """The block drops values of what the feed-forward layer returns, which needs no rate of its own."""

    def __init__(self, dim: int, num_heads: int, p: float = 0.0) -> None:
        super().__init__(dim, num_heads, p)
        self.drop_path = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class NoRateOfItsOwn(KeepsForItself):
    """Only the model has a rate, so that its blocks may be without dropout on purpose."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)


class RateOfEveryLayer(Sized):
    passes_on: type[nn.Module] = PassesOn

    def __init__(self, embed_dim: int = 24, p: float = 0.0) -> None:
        super().__init__(embed_dim=embed_dim, dropout=p)
        self.blocks = nn.ModuleList(self.passes_on(embed_dim, 2, p) for _ in range(2))


class RateOfAttentionAlone(RateOfEveryLayer):
    passes_on = KeepsForItself


class RateOfTheBranch(RateOfEveryLayer):
    passes_on = DropsTheBranch


class RateOfTheEmbedding(Sized):
    def __init__(self, embed_dim: int = 24, dropout: float = 0.1) -> None:
        super().__init__(embed_dim=embed_dim, dropout=dropout)
        self.blocks = nn.ModuleList(NoRateOfItsOwn(embed_dim, 2) for _ in range(2))


class AttentionRateForgotten(PassesOn):
    """It is given a rate, and drops nothing: only the feed-forward layer does."""

    def attend(self, x: Tensor) -> Tensor:
        return TinyBlock.attend(self, x)

    def feed_forward(self, dim: int, p: float) -> nn.Module:
        return WithRate(dim, 0.1)


class RateThatDropsNothing(RateOfEveryLayer):
    passes_on = AttentionRateForgotten


class RateInTheHead(Sized):
    def __init__(self, embed_dim: int = 24, dropout: float = 0.1) -> None:
        super().__init__(embed_dim=embed_dim, dropout=dropout)
        self.head = nn.Sequential(nn.Dropout(0.25), nn.Linear(embed_dim, 10))  # type: ignore[assignment]


class WithRatio(Sized):
    def __init__(self, embed_dim: int = 24, mlp_ratio: float = 2) -> None:
        super().__init__(embed_dim=embed_dim)
        for block in self.blocks:
            hidden = self.hidden(embed_dim, mlp_ratio)
            block.mlp = nn.Sequential(nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, embed_dim))

    def hidden(self, dim: int, ratio: float) -> int:
        return int(dim * ratio)


class WholeRatio(WithRatio):
    def hidden(self, dim: int, ratio: float) -> int:
        return dim * ratio  # type: ignore[return-value]


class WholeRatioOnPurpose(WholeRatio):
    def __init__(self, embed_dim: int = 24, mlp_ratio: int = 2) -> None:
        super().__init__(embed_dim, mlp_ratio)


class Embedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(1, dim, 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(images)


class ChosenEmbedding(Sized):
    """The class of a layer is an argument."""

    def __init__(self, embed_dim: int = 24, embed_layer: type[nn.Module] = Embedding) -> None:
        super().__init__(embed_dim=embed_dim)
        self.patches = embed_layer(embed_dim)  # type: ignore[assignment]


class EmbeddingNotPassedOn(ChosenEmbedding):
    def __init__(self, embed_dim: int = 24, embed_layer: type[nn.Module] = Embedding) -> None:
        super().__init__(embed_dim)


class NormWithEps(nn.LayerNorm):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__(dim, eps)


class EpsPassedOn(Sized):
    def __init__(self, embed_dim: int = 24, eps: float = 1e-6) -> None:
        super().__init__(embed_dim=embed_dim)
        self.norm = NormWithEps(embed_dim, eps)


class EpsNotPassedOn(Sized):
    def __init__(self, embed_dim: int = 24, eps: float = 1e-6) -> None:
        super().__init__(embed_dim=embed_dim)
        self.norm = NormWithEps(embed_dim)


class EpsOfNothing(Sized):
    """No layer has an ε that could be set."""

    def __init__(self, embed_dim: int = 24, eps: float = 1e-6) -> None:
        super().__init__(embed_dim=embed_dim)


class EqualWidths(Sized):
    """A second width that must be the first one."""

    def __init__(self, embed_dim: int = 24, latent_dim: int = 24) -> None:
        super().__init__(embed_dim=embed_dim)
        self.head = nn.Linear(latent_dim, 10)


class NeedsALibrary(Sized):
    """With another value it needs what is not installed here."""

    def __init__(self, use_class_token: bool = True) -> None:
        super().__init__()
        if not use_class_token:
            raise MissingModule("the module 'flash' is missing: pip install flash")


class NormNotPassedOn(Sized):
    def __init__(self, embed_dim: int = 24, pre_norm: bool = True) -> None:
        super().__init__(embed_dim=embed_dim)


class DepthAndHeadsExchanged(Sized):
    def __init__(self, embed_dim: int = 24, depth: int = 3, num_heads: int = 2) -> None:
        super().__init__(embed_dim=embed_dim, depth=num_heads, num_heads=depth)


class ClassesFixed(Sized):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes=num_classes)
        self.head = nn.Linear(24, 10)


class NestedSettings(Sized):
    def __init__(self, config: dict = {"model": {"embed_dim": 24, "depth": 2}}) -> None:  # noqa: B006
        super().__init__(embed_dim=config["model"]["embed_dim"], depth=config["model"]["depth"])


class NestedSettingsFixedHead(NestedSettings):
    def __init__(self, config: dict = {"model": {"embed_dim": 24, "depth": 2}}) -> None:  # noqa: B006
        super().__init__(config)
        self.head = nn.Linear(24, 10)


class ReadsAttentionAlone(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        attended = self.attend(self.norm1(x))
        return x + attended + self.mlp(self.norm2(attended))


class ReadsTheInput(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(self.norm1(x)) + self.mlp(self.norm2(x))


class ParallelBlock(ReadsTheInput):
    """The same on purpose."""


class NormalisedSkip(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attend(x)
        return x + self.mlp(self.norm2(x))


class BesideAttention(TinyViT):
    block = ReadsTheInput


class BehindAttention(TinyViT):
    block = ReadsAttentionAlone


class Parallel(TinyViT):
    block = ParallelBlock


class OneOfThree(TinyViT):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([TinyBlock(24, 2), NormalisedSkip(24, 2), TinyBlock(24, 2)])


class ProjectedTwice(TinyBlock):
    """Post-norm, and two linear layers in a row before attention: the skips are there all the same."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.before = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(self.before(x)))
        return self.norm2(x + self.mlp(x))


class TwoProjections(TinyViT):
    block = ProjectedTwice


class MadeInForward(TinyViT):
    def classify(self, x: Tensor) -> Tensor:
        return nn.Linear(24, 10)(self.norm(x[:, 0]))


class MixedByALayerMadeInForward(TinyViT):
    """The new layer mixes the images of a batch, which shows only with weights that are not 0."""

    def classify(self, x: Tensor) -> Tensor:
        x = self.norm(x[:, 0])
        return self.head(x + nn.Linear(24, 24)(x).mean(dim=0))


class NormMadeInForward(TinyViT):
    """Its weights are 1 in every call, so that only their being made shows."""

    def classify(self, x: Tensor) -> Tensor:
        return self.head(nn.LayerNorm(24)(x[:, 0]))


class DeviceInTheFile(TinyViT):
    device = "cpu"

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) + torch.ones(24, device=self.device)


@pytest.mark.parametrize(
    ("model_class", "present", "absent"),
    [
        (TwoProjections, {"linear-after-linear"}, {"skip-missing"}),
        (
            MadeInForward,
            {"nondeterministic-eval", "device-fixed", "unregistered-tensors"},
            {"image-ignored", "patches-without-influence"},
        ),
        (MixedByALayerMadeInForward, {"batch-dependence", "unregistered-tensors"}, {"image-ignored"}),
        (NormMadeInForward, {"unregistered-tensors", "device-fixed"}, {"nondeterministic-eval"}),
        (DeviceInTheFile, set(), {"device-fixed"}),
    ],
)
def test_not_taken_for_something_else(
    model_class: type[nn.Module], present: set[str], absent: set[str], no_overfitting
) -> None:
    found = diagnose(model_class(), constructor=(model_class, {}), input_shape=(1, 12, 12), fresh=True).ids()
    assert present <= found
    assert not absent & found


@pytest.mark.parametrize(
    ("model_class", "findings"),
    [
        (Sized, set()),
        (PositionsFixed, {"argument-fails"}),
        (ChannelsFixed, {"argument-fails"}),
        (NothingWithoutDropout, {"argument-fails"}),
        (SquaresOnly, {"argument-fails"}),
        (ColourFlag, set()),
        (NothingWithoutTheToken, {"argument-fails"}),
        (OptionalWidth, {"argument-fails"}),
        (OptionalWidthFixed, set()),
        (Chosen, set()),
        (NormWithItsOwnEps, set()),
        (ActivationNotPassedOn, {"argument-without-effect"}),
        (DropoutNotPassedOn, {"argument-without-effect"}),
        (PoolingIgnored, {"argument-without-effect"}),
        (KeywordsPassedOn, set()),
        (KeywordsIgnored, {"argument-without-effect"}),
        (KeywordsRefused, {"argument-fails"}),
        (PatchOfTheTableOnly, {"argument-without-effect"}),
        (NormNotPassedOn, {"argument-without-effect"}),
        (RateOfEveryLayer, set()),
        (RateOfAttentionAlone, {"argument-without-effect"}),
        (RateOfTheBranch, set()),
        (RateThatDropsNothing, {"argument-without-effect"}),
        (WithRatio, set()),
        (WholeRatio, {"argument-fails"}),
        (WholeRatioOnPurpose, set()),
        (ChosenEmbedding, set()),
        (EmbeddingNotPassedOn, {"argument-without-effect"}),
        (EpsPassedOn, set()),
        (EpsNotPassedOn, {"argument-without-effect"}),
        (NeedsALibrary, set()),
        (DepthAndHeadsExchanged, {"depth-miscounted"}),
        (ClassesFixed, {"argument-without-effect"}),
        (NestedSettings, set()),
        (NestedSettingsFixedHead, {"argument-fails"}),
        (RefusesOddWidths, set()),
        (JointNeedsMore, set()),
        (PixelsAsTokens, set()),
        (UpToALayer, set()),
        (BiasOfAnUnusedLayer, {"argument-without-effect"}),
        (OneLayerTooMany, {"depth-miscounted"}),
        (BesideAttention, {"mlp-misses-attention"}),
        (BehindAttention, {"mlp-misses-attention"}),
        (Parallel, set()),
        (OneOfThree, {"skip-normalised"}),
    ],
)
def test_exactly_these_findings(model_class: type[nn.Module], findings: set[str], no_overfitting) -> None:
    diagnosis = diagnose(model_class(), constructor=(model_class, {}), input_shape=(1, 12, 12), fresh=True)
    found = "\n".join(f"{one.id}: {one.measured}" for one in diagnosis.findings)
    assert diagnosis.ids() & NEW == findings, found


@pytest.mark.parametrize(
    ("model_class", "id", "text"),
    [
        (RateOfTheEmbedding, "argument-without-effect", "keeps its default of 0"),
        (RateInTheHead, "argument-without-effect", "at a rate of 0.25"),
        (EpsOfNothing, "argument-without-effect", "`eps`"),
        (EqualWidths, "argument-fails", "`embed_dim` and `latent_dim` must be equal"),
    ],
)
def test_only_noted(model_class: type[nn.Module], id: str, text: str, no_overfitting) -> None:
    """What may be meant is a note."""
    diagnosis = diagnose(model_class(), constructor=(model_class, {}), input_shape=(1, 12, 12), fresh=True)
    noted = [(one.id, one.measured) for one in diagnosis.findings if one.level == "note" and one.id in NEW]
    assert diagnosis.ids("broken", "warning") & NEW == set()
    assert [one for one, _ in noted] == [id], noted
    assert text in noted[0][1]


def test_the_error_of_another_value_is_quoted(no_overfitting) -> None:
    diagnosis = diagnose(PositionsFixed(), constructor=(PositionsFixed, {}), input_shape=(1, 12, 12), fresh=True)
    (found,) = [one for one in diagnosis.findings if one.id == "argument-fails"]
    assert "`image_size`" in found.measured
    assert "`patch_size`" in found.measured
    assert "RuntimeError" in found.measured
    assert "test_arguments.py, line" in found.measured


def test_constructors_are_restored_after_recording() -> None:
    before = {one: one.__init__ for one in own_classes(RateOfEveryLayer())}
    with recorded_calls(list(before), {(WithRate, "p"): 0.5}) as calls:
        changed = RateOfEveryLayer(p=0.25)
    assert {one: one.__init__ for one in before} == before
    rates = [layer.p for layer in changed.modules() if isinstance(layer, nn.Dropout)]
    assert sorted(rates) == [0.25, 0.25, 0.25, 0.5, 0.5]
    made = [call for call in calls if call.layer_class is WithRate]
    assert [call.caller.layer_class for call in made if call.caller] == [PassesOn, PassesOn]
    assert all("p" in call.given for call in made)


def test_constructors_are_restored_after_an_error() -> None:
    before = {one: one.__init__ for one in own_classes(RateOfEveryLayer())}
    with pytest.raises(ValueError, match="dropout probability"), recorded_calls(list(before)):
        RateOfEveryLayer(p=2.0)
    assert {one: one.__init__ for one in before} == before
