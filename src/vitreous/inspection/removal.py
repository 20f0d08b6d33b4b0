"""What happens when something is taken away: a cell painted over, a patch or a head removed; and the logit lens.

Shapes: C channels, `height` × `width` pixels, L layers, H heads, P cells or patches, K classes. One image.
Effects are evidence lost (log₁₀ of the odds, see `asking.evidence`): above zero, the answer needed what was taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitreous.inspection.attention import stream_layers
from vitreous.inspection.query import LookError, answers, evidence
from vitreous.models import ViT
from vitreous.models.vit import Taps


class Reduced(ViT):
    """A ViT that does without some heads (layer, head) and patches, all counted from 0, whoever asks it.

    The heads still look, but nothing they find is passed on; nobody looks at the patches. What is asked to be removed
    beside them goes as well, so every map of this model is a map of what is left.
    """

    def __init__(self, model: ViT, heads: Iterable[tuple[int, int]] = (), patches: Iterable[int] = ()):
        with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are overwritten
            super().__init__(model.config)
        first = next(model.parameters())
        self.to(first.device, first.dtype).load_state_dict(model.state_dict())
        self.train(model.training)
        self.kept_heads: Tensor  # (L, H), 0 where a head is gone
        self.kept_patches: Tensor  # (1, P), False where a patch is
        self.register_buffer("kept_heads", torch.ones(self.config.depth, self.config.num_heads), persistent=False)
        kept = torch.ones(1, self.config.num_patches, dtype=torch.bool)
        self.register_buffer("kept_patches", kept, persistent=False)
        for layer, head in heads:
            if not (0 <= layer < self.config.depth and 0 <= head < self.config.num_heads):
                raise LookError(
                    f"there is no head {head + 1} in layer {layer + 1}: the model has {self.config.depth} layers of"
                    f" {self.config.num_heads} heads, counted from 1"
                )
            self.kept_heads[layer, head] = 0
        patches = list(patches)
        for patch in patches:
            if not 0 <= patch < self.config.num_patches:
                raise LookError(f"there is no patch {patch}: the model has patches 0 to {self.config.num_patches - 1}")
            self.kept_patches[0, patch] = False
        if patches and not self.config.has_class_token and int(self.kept_patches.sum()) < 2:
            # the maps take one more away, and a model that reads its patches only needs one to read
            raise LookError("this model has no class token and reads its patches alone: leave it at least two of them")
        self.to(first.device, first.dtype)

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
        return super().classify(x, self._token_mask(self.kept_patches) if key_mask is None else key_mask, taps)


def occlusion(model: nn.Module, image: Tensor, fill: Tensor, cell_masks: Tensor, target: int) -> Tensor:
    """(P,): evidence lost when each cell (P, height, width) alone is painted with `fill` (C, height, width)."""
    painted = torch.where(cell_masks[:, None], fill[None], image[None])  # (P, C, height, width)
    return _lost(answers(model, image[None]), answers(model, painted), target)


def patch_effects(model: ViT, image: Tensor, target: int) -> Tensor | None:
    """(P,): evidence lost when no token may look at a patch any more, and no pooling counts it.

    Nothing is painted over, so this also shows where an empty patch matters. None for a model with a single patch.
    """
    patches = model.config.num_patches
    if patches == 1:
        return None
    masks = ~torch.eye(patches, dtype=torch.bool, device=image.device)
    removed = answers(model, image[None].expand(patches, -1, -1, -1), masks)
    return _lost(answers(model, image[None]), removed, target)


@torch.no_grad()
def head_effects(model: ViT, image: Tensor, target: int) -> Tensor:
    """(L, H): evidence lost when one head's output is set to zero."""
    L, H = model.config.depth, model.config.num_heads
    removed = []
    for gone in range(L * H):
        mask = torch.ones(L * H, dtype=image.dtype, device=image.device)
        mask[gone] = 0
        removed.append(model(image[None], head_mask=mask.view(L, H)))
    return _lost(answers(model, image[None]), torch.cat(removed), target).view(L, H)


@torch.no_grad()
def logit_lens(model: ViT, taps: Taps) -> Tensor:
    """(L + 1, K): what the answer would be if the head read the tokens after the embedding and after each layer."""
    stream = torch.cat([layer[:1] for layer in stream_layers(taps, model.config.depth)])
    return model.classify(stream)


def _lost(whole: Tensor, removed: Tensor, target: int) -> Tensor:
    return evidence(whole, target) - evidence(removed, target)
