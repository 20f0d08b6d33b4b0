"""Compare the families of ViTs that other libraries publish with vitreous on the same weights, and write the table.

    python bench/families.py [--write docs/checkpoints.md]

Each peer is built by its own library with random parameters and saved in that library's way (`save_pretrained`, timm's
`save_for_hf`, a sharded folder …); vitreous reads the folder. Compared are the logits or, for a backbone, what the
library pools. `OUT` is the other direction, and bench/parity.py has both for the plain layouts. What is refused is
measured too: each of `REFUSED` is saved the same way, and the table has the feature that the refusal names.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import parity
import torch
from parity import MAIN_CASES, TINY, VARIANTS, Row, images_for, randomise
from torch import Tensor, nn

from vitreous.checkpoints import load_model, read_checkpoint, save_model
from vitreous.errors import CheckpointError
from vitreous.inspection.reproduction import require_reproduction

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24, "patch_size": 6}
_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
TIMM_SIZES = {
    "img_size": [24, 24], "patch_size": [6, 6], "embed_dim": 32, "depth": 3, "num_heads": 4, "mlp_ratio": 2.5,
    "num_classes": 7,
}  # fmt: skip


# --- saving a peer in its library's way --------------------------------------------------------------------


def hf_model(kind: str, **changes: Any) -> nn.Module:
    """Build `transformers`' class `kind` at the tiny size, every parameter random."""
    import transformers

    is_dino = kind.startswith("Dinov2")
    values: dict[str, Any] = SIZES | ({"mlp_ratio": 2} if is_dino else {"intermediate_size": 80}) | changes
    model_class = getattr(transformers, kind)
    config_class = model_class.config_class
    if kind in ("CLIPModel", "CLIPForImageClassification", "SiglipModel", "SiglipForImageClassification"):
        labels = {"num_labels": values.pop("num_labels")} if "num_labels" in values else {}
        config = config_class(text_config=dict(_TEXT), vision_config=values, **labels)
    else:
        config = config_class(**values)
    return randomise(model_class(config))


def timm_model(architecture: str = "vit_base_patch16_224", **arguments: Any) -> nn.Module:
    import timm

    return randomise(timm.create_model(architecture, **TIMM_SIZES | arguments))


def save_hf(model: Any, folder: Path, **options: Any) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # a progress bar
        model.save_pretrained(folder, **options)


def save_timm(model: nn.Module, folder: Path, **arguments: Any) -> None:
    """Save as `timm.models.push_to_hf_hub` does."""
    from timm.models._hub import save_for_hf

    arguments.pop("architecture", None)
    save_for_hf(model, folder, model_args=TIMM_SIZES | arguments, safe_serialization=True)


# --- what the peer computes --------------------------------------------------------------------------------


def logits_of(model: Any, images: Tensor) -> Tensor:
    output = model(images)
    return getattr(output, "logits", output)


def pooled_of(model: Any, images: Tensor) -> Tensor:
    """Return what a backbone pools: the normalised class token."""
    output = getattr(model, "vision_model", getattr(model, "vit", model))(images)
    if type(model).__name__.startswith("ViTMAE"):
        return output.last_hidden_state[:, 0]
    if type(model).__name__.startswith("Siglip"):
        return output.last_hidden_state.mean(dim=1)  # as SiglipForImageClassification does; its own pooling is MAP
    if type(model).__name__ in ("ViTModel", "DeiTModel"):
        return output.last_hidden_state[:, 0]
    return output.pooler_output


@torch.no_grad()
def measure(folder: Path, name: str, theirs: Tensor, **arguments: Any) -> Row:
    images = images_for(TINY)
    is_logits = theirs.shape[1] == TINY.num_classes
    model, checkpoint = load_model(folder, **({} if is_logits else {"num_classes": TINY.num_classes}), **arguments)
    taps: dict[str, Tensor] = {}
    logits = model(images, taps)
    require_reproduction(model, images)  # what `vitreous look` requires before it draws
    ours = logits if is_logits else taps["pooled"]
    return Row(name, "in" if is_logits else "in, backbone", (ours - theirs).abs().max().item(), checkpoint.report)


# --- the cases ---------------------------------------------------------------------------------------------

Case = Callable[[str, Path], Row]


def _hf(kind: str, options: Mapping[str, Any] | None = None, **changes: Any) -> Case:
    def case(name: str, folder: Path) -> Row:
        model = hf_model(kind, **changes)
        save_hf(model, folder, **(options or {}))
        compute = logits_of if kind.endswith("Classification") else pooled_of
        with torch.no_grad():
            return measure(folder, name, compute(model, images_for(TINY)))

    return case


def _timm(architecture: str = "vit_base_patch16_224", **arguments: Any) -> Case:
    def case(name: str, folder: Path) -> Row:
        model = timm_model(architecture, **arguments)
        save_timm(model, folder, **arguments)
        with torch.no_grad():
            return measure(folder, name, model(images_for(TINY)))

    return case


_SEVEN = {"num_labels": 7}
#: Family → what saves one of its models and measures ours.
FAMILIES: dict[str, Case] = {
    "Hugging Face ViT": _hf("ViTForImageClassification", **_SEVEN),
    "Hugging Face ViT, sharded": _hf("ViTForImageClassification", {"max_shard_size": "20KB"}, **_SEVEN),
    "Hugging Face DeiT, not distilled": _hf("DeiTForImageClassification", **_SEVEN),
    "Hugging Face MSN": _hf("ViTMSNForImageClassification", **_SEVEN),
    "Hugging Face I-JEPA": _hf("IJepaForImageClassification", **_SEVEN),
    "Hugging Face MAE, encoder": _hf("ViTMAEModel", mask_ratio=0.0),
    "Hugging Face MAE, with its decoder": _hf(
        "ViTMAEForPreTraining", mask_ratio=0.0, decoder_hidden_size=16, decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1, decoder_intermediate_size=16,
    ),
    "Hugging Face DINOv2": _hf("Dinov2Model"),
    "Hugging Face DINOv2 with registers": _hf("Dinov2WithRegistersModel"),
    "Hugging Face CLIP, vision tower": _hf("CLIPVisionModel"),
    "Hugging Face CLIP, both towers": _hf("CLIPModel"),
    "Hugging Face CLIP, erf GELU": _hf("CLIPVisionModel", hidden_act="gelu"),
    "Hugging Face SigLIP, vision tower": _hf("SiglipVisionModel"),
    "Hugging Face SigLIP, classifier": _hf("SiglipForImageClassification", **_SEVEN),
    "timm folder": _timm(),
    "timm folder, mean, no class token": _timm(class_token=False, global_pool="avg", fc_norm=False),
    "timm folder, mean beside a class token": _timm(global_pool="avg", fc_norm=False),
    "timm folder, mean, fc_norm (timm's default)": _timm(global_pool="avg"),
    "timm folder, mean, fc_norm, no class token": _timm(global_pool="avg", class_token=False, reg_tokens=2),
    "timm folder, class token, fc_norm": _timm(fc_norm=True),
    "timm folder, registers": _timm(reg_tokens=4),
    "timm folder, registers without position": _timm(reg_tokens=4, no_embed_class=True),
    "timm folder, registers, mean": _timm(reg_tokens=2, class_token=False, global_pool="avg", fc_norm=False),
    "timm folder, DeiT III (LayerScale)": _timm("deit3_small_patch16_224", init_values=0.1),
    "timm folder, DINOv2 with registers": _timm("vit_small_patch14_reg4_dinov2", init_values=0.1),
    "timm folder, CLIP": _timm("vit_base_patch16_clip_224"),
    "timm folder, CLIP, quick GELU": _timm("vit_base_patch32_clip_quickgelu_224"),
    "timm folder, no biases": _timm(proj_bias=False, qkv_bias=False),
    "timm folder, tanh GELU": _timm(act_layer="gelu_tanh"),
}  # fmt: skip

# --- the other direction: ours, opened by the peer ---------------------------------------------------------


def _google_out(name: str, folder: Path) -> Row:
    """Google's npz has a peer here: timm reads it."""
    from timm.models.vision_transformer import VisionTransformer

    def peer_logits(path: Path) -> Tensor:
        model = VisionTransformer(**TIMM_SIZES, act_layer="gelu_tanh")
        model.load_pretrained(str(path))
        return model.eval()(images_for(config))

    config = TINY.replace(gelu="tanh")
    return parity.measure_out(config, "google", name, folder / "google.npz", peer_logits)


def _clip_out(name: str, folder: Path) -> Row:
    """A CLIP tower of Hugging Face's with a new head, written for timm, which has no bias in the patch projection."""
    import timm

    save_hf(hf_model("CLIPVisionModel"), folder / "hf")
    model, checkpoint = load_model(folder / "hf", num_classes=TINY.num_classes)
    randomise(model)
    save_model(model, folder / "timm", "timm", mean=checkpoint.mean, std=checkpoint.std)
    peer = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True).eval()
    with torch.no_grad():
        difference = (peer(images_for(TINY)) - model(images_for(TINY))).abs().max().item()
    again = read_checkpoint(folder / "timm")
    return Row(name, "out", difference, again.report)


def _timm_out(**changes: Any) -> Case:
    return lambda name, folder: parity.timm_out(TINY.replace(**changes), folder, name)


#: Family → what writes a model of ours and lets the peer open it; bench/parity.py has more.
OUT: dict[str, Case] = {
    "Google npz, opened by timm": _google_out,
    "timm folder, registers": _timm_out(registers=3),
    "timm folder, registers, mean": _timm_out(registers=2, pool="mean"),
    "timm folder, mean, fc_norm": _timm_out(pool="mean", norm_after_pool=True),
    "timm folder, ε 1e-5, quick GELU": _timm_out(norm_eps=1e-5, gelu="quick"),
    "timm folder, CLIP": _clip_out,
    "Hugging Face ViT, quick GELU": lambda name, folder: parity.hf_out(TINY.replace(gelu="quick"), folder, name),
}

#: Model → (what saves it, the words of the feature that its refusal names)
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    name: (lambda folder, kind=kind, changes=changes: save_hf(hf_model(kind, **changes), folder), words)  # type: ignore[misc]
    for name, (kind, changes, words) in {
        "Hugging Face DeiT, distilled": ("DeiTForImageClassificationWithTeacher", _SEVEN, "distilled"),
        "Hugging Face DINOv2, classifier": ("Dinov2ForImageClassification", _SEVEN, "class token and the mean"),
        "Hugging Face DINOv2, SwiGLU": ("Dinov2Model", {"use_swiglu_ffn": True}, "SwiGLU"),
        "Hugging Face DINOv3": ("DINOv3ViTModel", {"num_register_tokens": 2}, "rope"),
        "Hugging Face CLIP, classifier": ("CLIPForImageClassification", _SEVEN, "without the final LayerNorm"),
        "Hugging Face ViT, ReLU": ("ViTForImageClassification", _SEVEN | {"hidden_act": "relu"}, "'relu'"),
    }.items()
} | {
    name: (lambda folder, a=arguments: save_timm(timm_model(**a), folder, **a), words)  # type: ignore[misc]
    for name, (arguments, words) in {
        "timm, global_pool max": ({"global_pool": "max", "fc_norm": False}, "the maximum over the patches"),
        "timm, global_pool avgmax": ({"global_pool": "avgmax", "fc_norm": False}, "average and maximum"),
        "timm, global_pool map": ({"global_pool": "map"}, "attention pooling"),
        "timm, qk_norm": ({"qk_norm": True}, "queries and keys"),
        "timm, SwiGLU": ({"architecture": "vit_giant_patch14_dinov2"}, "SwiGLU"),
        "timm, residual post-norm": ({"architecture": "vit_base_patch16_rpn_224"}, "post-norm"),
        "timm, distilled": ({"architecture": "deit_tiny_distilled_patch16_224"}, "distillation"),
        "timm, RMSNorm": ({"norm_layer": "rmsnorm"}, "RMSNorm"),
        "timm, differential attention": ({"attn_layer": "diff"}, "differential attention"),
        "timm, pool_include_prefix": (
            {"global_pool": "avg", "fc_norm": False, "pool_include_prefix": True}, "pooling over class token",
        ),
        "timm, no final norm": ({"final_norm": False}, "no final LayerNorm"),
    }.items()
}  # fmt: skip


def measure_family(name: str, cases: Mapping[str, Case] = FAMILIES) -> Row:
    parity.declare_torchvision_operators()
    with tempfile.TemporaryDirectory() as folder:
        return cases[name](name, Path(folder))


def refusal(name: str) -> str:
    """Save a model that our ViT cannot express, and return why it is refused."""
    parity.declare_torchvision_operators()
    with tempfile.TemporaryDirectory() as folder:
        REFUSED[name][0](Path(folder))
        try:
            read_checkpoint(folder)
        except CheckpointError as error:
            return str(error).removeprefix(f"{folder!r}: ")
    raise AssertionError(f"{name} was read")


# --- the page ----------------------------------------------------------------------------------------------

_BEGIN, _END = "<!-- bench/families.py writes the following -->", "<!-- to here -->"


def page() -> str:
    rows = [measure_family(name, cases) for cases in (FAMILIES, OUT) for name in cases]
    rows += [parity.measure(case, TINY) for case in (MAIN_CASES | VARIANTS).values()]
    table = ["| refused | why |", "|---|---|", *(f"| {name} | {refusal(name)} |" for name in REFUSED)]
    return "\n".join([_BEGIN, "", parity.table(rows), "", *table, "", *_attacks(), _END])


def _attacks() -> list[str]:
    """Return what bench/survey.py and bench/mutations.py find; some ten minutes of CPU time."""
    import mutations
    import survey

    survey.quiet()
    return [
        "### Every ViT of two libraries", "", survey.__doc__.split("\n\n")[2].strip(), "",
        survey.tables(survey.survey()), "", "### Every field of a configuration", "",
        mutations.__doc__.split("\n\n")[2].strip(), "", mutations.table(), "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, help="replace the tables in this page")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("vitreous.checkpoints").setLevel(logging.ERROR)
    text = page()
    print(text)
    if arguments.write:
        before = arguments.write.read_text(encoding="utf-8")
        start, end = before.index(_BEGIN), before.index(_END) + len(_END)
        arguments.write.write_text(before[:start] + text + before[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
