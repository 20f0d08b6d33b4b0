"""Effects of removing parts: pixels of a cell (occlusion), a patch, a head; and the logit lens.

Shapes: C channels, `height` × `width` pixels, L layers, H heads, P cells or patches, K classes. One image.
An effect is the drop of log₁₀ odds of the target (`query.log_odds`): positive where the prediction needs the part. Odds
are those of the probabilities that are reported, so logits are divided by the run's temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitreous.inspection.attention import stream_layers
from vitreous.inspection.query import LookError, batched_logits, log_odds
from vitreous.models import ViT
from vitreous.models.vit import Taps


class ReducedViT(ViT):
    """A copy of a ViT without some heads (layer, head) and patches, all counted from 0.

    The output of a removed head is zero; a removed patch is masked in attention and pooling. Masks passed to `forward`
    remove further parts, so that every map describes the reduced model.
    """

    def __init__(self, model: ViT, heads: Sequence[tuple[int, int]] = (), patches: Sequence[int] = ()):
        with torch.random.fork_rng(devices=[]):  # the random initialisation is overwritten
            super().__init__(model.config)
        L, H, P = self.config.depth, self.config.num_heads, self.config.num_patches
        self.kept_heads: Tensor  # (L, H), 0 for a removed head
        self.kept_patches: Tensor  # (1, P), False for a removed patch
        self.register_buffer("kept_heads", torch.ones(L, H), persistent=False)
        self.register_buffer("kept_patches", torch.ones(1, P, dtype=torch.bool), persistent=False)
        parameter = next(model.parameters())
        self.to(parameter.device, parameter.dtype).load_state_dict(model.state_dict())
        self.train(model.training)
        for layer, head in heads:
            if not (0 <= layer < L and 0 <= head < H):
                where = f"{L} layers of {H} heads, counted from 1"
                raise LookError(f"there is no head {head + 1} in layer {layer + 1}: the model has {where}")
            self.kept_heads[layer, head] = 0
        for patch in patches:
            if not 0 <= patch < P:
                raise LookError(f"there is no patch {patch}: the model has patches 0 to {P - 1}")
            self.kept_patches[0, patch] = False
        if patches and not self.config.has_class_token and int(self.kept_patches.sum()) < 2:
            # patch removal takes one more away, and pooling needs at least one
            raise LookError("this model pools its patches and has no class token: keep at least two patches")

    def forward(
        self,
        images: Tensor,
        taps: Taps | None = None,
        *,
        head_mask: Tensor | None = None,
        patch_mask: Tensor | None = None,
    ) -> Tensor:
        heads = self.kept_heads if head_mask is None else self.kept_heads * head_mask
        patches = self.kept_patches if patch_mask is None else self.kept_patches & patch_mask
        return super().forward(images, taps, head_mask=heads, patch_mask=patches)

    def classify(self, x: Tensor, key_mask: Tensor | None = None, taps: Taps | None = None) -> Tensor:
        return super().classify(x, self.token_mask(self.kept_patches) if key_mask is None else key_mask, taps)


def occlusion(
    model: nn.Module, image: Tensor, fill: Tensor, cell_masks: Tensor, target: int, temperature: float = 1.0
) -> Tensor:
    """Return the effect (P,) of replacing the pixels of each cell (P, height, width) by `fill` (C, height, width)."""
    occluded = torch.where(cell_masks[:, None], fill[None], image[None])  # (P, C, height, width)
    return _drop(model, image, batched_logits(model, occluded), target, temperature)


def patch_effects(model: ViT, image: Tensor, target: int, temperature: float = 1.0) -> Tensor | None:
    """Return the effect (P,) of removing each patch from attention and pooling; None for a model with one patch.

    No pixel changes, so this also shows where an empty patch matters.
    """
    patches = model.config.num_patches
    if patches == 1:
        return None
    masks = ~torch.eye(patches, dtype=torch.bool, device=image.device)
    reduced = batched_logits(model, image[None].expand(patches, -1, -1, -1), masks)
    return _drop(model, image, reduced, target, temperature)


@torch.no_grad()
def head_effects(model: ViT, image: Tensor, target: int, temperature: float = 1.0) -> Tensor:
    """Return the effect (L, H) of setting the output of each head to zero."""
    L, H = model.config.depth, model.config.num_heads
    masks = 1 - torch.eye(L * H, dtype=image.dtype, device=image.device)
    logits = torch.cat([model(image[None], head_mask=mask.view(L, H)) for mask in masks])
    return _drop(model, image, logits, target, temperature).view(L, H)


@torch.no_grad()
def logit_lens(model: ViT, taps: Taps) -> Tensor:
    """Return the logits (L + 1, K) that the final norm and head give after the embedding and after each layer."""
    stream = torch.cat([layer[:1] for layer in stream_layers(taps, model.config.depth)])
    kept = taps.get("kept")
    return model.classify(stream, None if kept is None else model.token_mask(kept[:1]))


def _drop(model: nn.Module, image: Tensor, reduced: Tensor, target: int, temperature: float) -> Tensor:
    whole = batched_logits(model, image[None])
    return log_odds(whole / temperature, target) - log_odds(reduced / temperature, target)
