"""Attention that does not reproduce the prediction is not drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitreous.inspection.examination import examine
from vitreous.inspection.query import LookError
from vitreous.inspection.removal import ReducedViT
from vitreous.inspection.reproduction import recompute_stream, require_reproduction
from vitreous.models.vit import Attention, Block, ViT


def test_every_variant_is_reproduced(any_vit, image_for):
    taps = {}
    with torch.no_grad():
        logits = any_vit(image_for(any_vit)[None], taps)
        torch.testing.assert_close(any_vit.classify(recompute_stream(any_vit, taps)[-1]), logits)
    require_reproduction(any_vit, image_for(any_vit)[None])


def test_removed_heads_and_patches_are_reproduced(tiny_vit, image_for):
    model = tiny_vit()
    examine(ReducedViT(model, [(0, 1)], [2]), image_for(model), integration_steps=1, random_orders=1)


class Transposed(Attention):
    """Records the weights with queries and keys exchanged."""

    def forward(self, x, taps=None, head_mask=None, key_mask=None):
        output = super().forward(x, taps, head_mask, key_mask)
        if taps is not None:
            taps["attention"] = taps["attention"].mT
        return output


class Gated(Attention):
    """Scales its output after the weights are recorded."""

    def forward(self, x, taps=None, head_mask=None, key_mask=None):
        return 0.5 * super().forward(x, taps, head_mask, key_mask)


class Fewer(Attention):
    """Records the weights of the class token alone."""

    def forward(self, x, taps=None, head_mask=None, key_mask=None):
        output = super().forward(x, taps, head_mask, key_mask)
        if taps is not None:
            taps["attention"] = taps["attention"][:, :, :1]
        return output


class PostNorm(Block):
    """Normalises after the branches, so that the recorded values do not enter as z + U (A v)."""

    def forward(self, x, taps=None, head_mask=None, key_mask=None):
        x = x + self.norm1(self.attn(x, taps, head_mask, key_mask))
        if taps is not None:
            taps["middle"] = x
        return x + self.norm2(self.mlp(x))


class OtherPatches(Attention):
    """Records the right weights of the class token, which alone is read after the last block, and wrong ones else."""

    def forward(self, x, taps=None, head_mask=None, key_mask=None):
        output = super().forward(x, taps, head_mask, key_mask)
        if taps is not None:
            weights = taps["attention"]
            taps["attention"] = torch.cat([weights[:, :, :1], weights[:, :, 1:].roll(1, dims=-1)], dim=2)
        return output


@pytest.mark.parametrize("zero_head", [False, True])
@pytest.mark.parametrize("part", [Transposed, Gated, Fewer, PostNorm, OtherPatches])
def test_what_is_not_reproduced_is_refused_in_one_sentence(tiny_vit, image_for, part: type[nn.Module], zero_head):
    model = tiny_vit(depth=1)
    if zero_head:  # of a backbone with a new head: all logits are equal, whatever the attention is
        nn.init.zeros_(model.head.weight)
    block = part if issubclass(part, Block) else type("OtherBlock", (Block,), {"attention_class": part})
    other = type("Other", (ViT,), {"block_class": block})(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    with pytest.raises(LookError, match=r"attention that Other records does not reproduce.*mislead") as caught:
        examine(other, image_for(model))
    assert "\n" not in str(caught.value)
