"""Features of other ViTs that ours does not have, recognised by their tensors and refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from vitreous.errors import CheckpointError

#: Pattern of a tensor's name → the feature.
_FEATURES = {
    r"(^|/)conv_root/kernel": "a ResNet in front of the transformer (the hybrid R+ViT)",
    r"(^|\.)patch_embed\.backbone\.": "a convolutional network in front of the transformer (timm's hybrid)",
    r"(^|\.)conv_proj\.conv_": "torchvision's conv stem with batch norm",
    r"(^|\.)(dist_token|head_dist)": "DeiT's distillation token with a head of its own (it is distilled)",
    r"(^|/|\.)(attn_pool|MAPHead_0)[./]": "attention pooling (a MAP head)",
    r"(^|\.)patch_embed\.norm\.": "a LayerNorm in the patch embedding",
    r"\.attn\.(q_norm|k_norm)\.": "normalised queries and keys (qk_norm)",
    r"\.lambda_[qk][12]$|\.attn\.lambda": "differential attention",
    r"\.attn\.(norm|sub_norm)\.": "a LayerNorm inside attention",
    r"\.mlp\.norm\.": "a LayerNorm inside the MLP",
    r"\.mlp\.(w12|w3|w1|w2|weights_in|weights_out|gate_proj|up_proj|fc1_g|fc1_x)\.": "SwiGLU, a gated MLP",
    r"blocks\.\d+\.(in_proj|mlp_out_proj|attn_out_proj|attns\.|ffns\.)": "attention and MLP in parallel",
    r"(relative_position_bias|rel_pos(_bias|_[hw]$|\.)|rope)": "relative or rotary positions (rope)",
    r"\.(attn\.(gating_param|pos_proj)|local_mp)|cls_attn_blocks\.": "another attention (ConViT's, XCiT's)",
    r"(^|\.)(blocks_token_only|network)\.\d+\.|\.(attn_in|mlp_in)\.": "other blocks (CaiT's, VOLO's, TNT's)",
    r"(^|\.)(blocks\.\d+\.blocks|layers\.\d+\.blocks|transformers)\.\d+\.": "stages (Swin's, CrossViT's, PiT's)",
    r"\.mlp_tokens\.": "an MLP over tokens in place of attention (MLP-Mixer)",
    r"blocks\.\d+\.gamma_[12]$|\.attn\.[qv]_bias$": "BEiT's or EVA's blocks (relative or rotary positions)",
    r"\.self_attn\.qkv\.|(^|\.)pre_layernorm\.": "parts that CLIP does not have (BLIP's or OWL's vision tower)",
    r"lora_[AB]\.": "LoRA adapters, which must be merged first",
}


#: Patch projections of timm and transformers, the last one CLIP's and SigLIP's.
_KERNELS = ("patch_embed.proj.weight", "patch_embeddings.projection.weight", "embeddings.patch_embedding.weight")


def refuse_unsupported(tensors: Mapping[str, Tensor]) -> None:
    """Raise for weights of which even a partial load makes no sense."""
    for pattern, feature in _FEATURES.items():
        if any(re.search(pattern, name) for name in tensors):
            _refuse(feature)
    for name, tensor in tensors.items():
        if name.endswith(_KERNELS) and tensor.ndim == 5:
            _refuse("patches of several frames (a video model)")
        if name.endswith(_KERNELS[-1]) and tensor.ndim == 2:
            _refuse("patches that are flattened before they are projected (NaFlex)")
    norms = {name for name in tensors if re.search(r"(norm1|norm2|layernorm_before|layernorm_after)\.weight$", name)}
    if norms and not any(name.removesuffix("weight") + "bias" in tensors for name in norms):
        _refuse("RMSNorm, or LayerNorms without a bias")
    for name, first in tensors.items():
        second = tensors.get(name.replace(".fc1.", ".fc2."))
        is_pair = name.endswith(".mlp.fc1.weight") and second is not None and first.ndim == second.ndim == 2
        if is_pair and second is not None and len(first) == 2 * second.shape[1]:
            _refuse("SwiGLU, a gated MLP")


def _refuse(feature: str) -> None:
    raise CheckpointError(f"the model has {feature}, which vitreous' ViT does not compute")
