"""Save every ViT-like model of timm and of transformers, read it, and compare: equal, refused by name, or wrong.

    python bench/survey.py [--only TEXT] [--verbose]

Each model is built by its own library from its registered name, at that architecture's number of heads but narrow and
shallow, with every parameter random. It is saved three times: as the library's folder, as a folder with the names that
its state dict has in memory, and as a file without a configuration. What vitreous reads from each must give the
library's own logits or pooled tokens, or be refused. Of a file alone, what it leaves open (heads, GELU, ε, pooling) is
stated, as the printed assumptions ask for.

bench/families.py writes the counts into docs/checkpoints.md.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from parity import declare_torchvision_operators, randomise
from safetensors.torch import save_file
from torch import Tensor, nn

from vitreous.checkpoints import load_model
from vitreous.checkpoints.assumptions import PRE_NORM_BLOCKS
from vitreous.checkpoints.hf_config import FAMILIES
from vitreous.errors import CheckpointError

TOLERANCE = 1e-5  # relative; other kernels differ by a tenth of it, another ε or GELU by 1e-4 and more
CLASSES = 7
#: timm's modules whose models are transformers on patches, or are published as such.
TIMM_MODULES = (
    "vision_transformer", "deit", "beit", "eva", "vision_transformer_hybrid", "vision_transformer_relpos",
    "vision_transformer_sam", "naflexvit", "vitamin", "cait", "xcit", "tnt", "volo", "crossvit", "convit", "pit",
    "deepseek_vit", "gemma4_vit", "qwen3_vit", "swin_transformer", "mlp_mixer", "hiera", "levit",
)  # fmt: skip
#: Classes of transformers besides those of its table of image classifiers.
HF_CLASSES = (
    "ViTModel", "DeiTModel", "ViTMAEModel", "ViTMAEForPreTraining", "ViTMSNModel", "BeitModel", "Data2VecVisionModel",
    "Dinov2Model", "Dinov2Backbone", "Dinov2WithRegistersModel", "Dinov2WithRegistersBackbone", "DINOv3ViTModel",
    "CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel", "SiglipVisionModel", "SiglipModel",
    "Siglip2VisionModel", "IJepaModel", "YolosModel", "YolosForObjectDetection", "ViTForMaskedImageModeling",
    "DeiTForMaskedImageModeling", "VitDetModel", "ViTHybridModel", "AltCLIPVisionModel", "ChineseCLIPVisionModel",
    "BlipVisionModel", "Blip2VisionModel", "InstructBlipVisionModel", "XCLIPVisionModel", "MetaClip2VisionModel",
    "FlavaImageModel", "GitVisionModel", "Owlv2VisionModel", "OwlViTVisionModel", "Dinov2ForImageClassification",
    "DPTModel", "SamVisionModel", "VivitModel", "TimesformerModel", "VideoMAEModel", "ASTModel", "PixtralVisionModel",
    "Idefics2VisionTransformer", "MLCDVisionModel", "AIMv2VisionModel", "Aimv2VisionModel", "BridgeTowerModel",
    "IJepaForImageClassification", "DINOv3ViTForImageClassification", "DINOv3ViTBackbone", "VitPoseBackbone",
    "MetaClip2ForImageClassification", "BertModel",
)  # fmt: skip

READ_CLASSES = {name for family in FAMILIES.values() for name in family.classes}

Kind = Literal["equal", "refused", "WRONG", "CRASH", "UNCHECKED", "assumed", "not built"]


@dataclass(frozen=True)
class Outcome:
    library: str
    name: str
    saved: str  # how
    kind: Kind
    difference: float = 0.0
    reason: str = ""  # of a refusal; what went wrong

    @property
    def family(self) -> str:
        """timm's module; of transformers, whether the class is one that vitreous reads."""
        if self.library == "timm":
            from timm.models import _registry

            return _registry._model_to_module[self.name]
        return "classes that vitreous reads" if self.name in READ_CLASSES else "other classes"


# --- comparing ---------------------------------------------------------------------------------------------


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))


@torch.no_grad()
def compare(path: Path, images: Tensor, candidates: Mapping[str, Tensor], **arguments: Any) -> tuple[Kind, float, str]:
    """Read `path`; compare with the library's logits, or with what it pools if the file has no classifier."""
    try:
        has_head = "logits" in candidates
        model, checkpoint = load_model(path, **arguments, **({} if has_head else {"num_classes": CLASSES}))
        taps: dict[str, Tensor] = {}
        logits = model(images, taps)
    except CheckpointError as error:
        return "refused", 0.0, str(error).removeprefix(f"{str(path)!r}: ").removeprefix(f"{str(path)!r} ")
    except Exception as error:  # what must never happen
        return "CRASH", 0.0, f"{type(error).__name__}: {error}"
    prefix = model.config.num_prefix_tokens
    ours = [logits] if has_head else [taps["pooled"], taps["normed"][:, prefix:].mean(dim=1)]
    if not candidates:
        return "UNCHECKED", 0.0, "it was read, and the library's own output is not known here"
    difference = min(relative_difference(mine, theirs) for mine in ours for theirs in candidates.values())
    if difference > TOLERANCE and PRE_NORM_BLOCKS in checkpoint.assumptions:
        return "assumed", difference, PRE_NORM_BLOCKS
    return ("equal" if difference <= TOLERANCE else "WRONG"), difference, ""


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}


def _heads(model: nn.Module) -> int:
    names = ("num_heads", "num_attention_heads")
    found = (getattr(module, name, None) for module in model.modules() for name in names)
    return next((heads for heads in found if isinstance(heads, int)), 0)


def _open_facts(model: nn.Module) -> dict[str, Any]:
    """Return what a file of these weights leaves open, as someone who knows the model would state it."""
    facts: dict[str, Any] = {"num_heads": _heads(model) or 1}
    norms = [module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)]
    if norms:
        facts["norm_eps"] = norms[0]
    kinds = {"GELUActivation": "erf", "GELUTanh": "tanh", "NewGELUActivation": "tanh", "QuickGELU": "quick",
             "QuickGELUActivation": "quick", "GELU": "erf", "FastGELUActivation": "tanh", "GELUTanhActivation": "tanh",
             "PytorchGELUTanh": "tanh"}  # fmt: skip
    for module in model.modules():
        if type(module).__name__ in kinds:
            facts["gelu"] = kinds[type(module).__name__]
            break
    return facts


def _sensitive(model: nn.Module) -> nn.Module:
    """Randomise every parameter so that another ε or another GELU shows: tokens are small, the MLPs' inputs large."""
    randomise(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("embed", "token", "conv_proj", "cls")) and "norm" not in name:
                parameter.mul_(0.01)
            elif any(part in name for part in ("fc1.weight", "intermediate.dense.weight")):
                parameter.mul_(2)
    return model


# --- timm --------------------------------------------------------------------------------------------------


def timm_names() -> list[str]:
    import timm

    return [name for module in TIMM_MODULES for name in timm.list_models(module=module)]


def build_timm(name: str, **others: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return a narrow and shallow model of this architecture, and the arguments that made it so."""
    import timm

    with torch.device("meta"):
        whole = timm.create_model(name)
    heads, patch = _heads(whole), getattr(getattr(whole, "patch_embed", None), "patch_size", None)
    side = patch[0] if isinstance(patch, tuple) else patch
    small: dict[str, Any] = {"depth": 2, "embed_dim": 8 * heads if heads else None}
    if isinstance(side, int):
        small["img_size"] = 4 * side
    small = {key: value for key, value in small.items() if value is not None}
    for arguments in (small, small | {"embed_dim": None}, {"depth": 2}, {}):
        chosen = {key: value for key, value in arguments.items() if value is not None} | others
        with contextlib.suppress(Exception):  # an argument that this architecture does not take, or a size
            with torch.device("meta"):
                parameters = timm.create_model(name, num_classes=CLASSES, **chosen).parameters()
            if sum(parameter.numel() for parameter in parameters) < 30_000_000:
                model = timm.create_model(name, num_classes=CLASSES, **chosen)
                return _sensitive(model), chosen
    raise RuntimeError("too large at any size that its constructor takes")


def survey_timm(name: str, **others: Any) -> Iterator[Outcome]:
    from timm.models._hub import save_for_hf

    try:
        model, arguments = build_timm(name, **others)
        height, width = (
            model.patch_embed.img_size
            if hasattr(model, "patch_embed") and getattr(model.patch_embed, "img_size", None)
            else model.pretrained_cfg["input_size"][1:]
        )
        images = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))
        theirs: dict[str, Tensor] = {}
        with torch.no_grad(), contextlib.suppress(Exception):  # an odd size at which it cannot run
            theirs = {"logits": model(images)}
    except Exception as error:
        yield Outcome("timm", name, "folder", "not built", reason=f"{type(error).__name__}: {str(error)[:100]}")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_for_hf(model, path / "hub", model_args=arguments, safe_serialization=True)
        yield Outcome("timm", name, "folder", *compare(path / "hub", images, theirs))
        save_file(_state(model), path / "file.safetensors")
        facts = _open_facts(model) | {"trained_size": (height, width)}
        if getattr(model, "global_pool", "token") == "avg":
            facts["pool"] = "mean"
        yield Outcome("timm", name, "file alone", *compare(path / "file.safetensors", images, theirs, **facts))


# --- transformers ------------------------------------------------------------------------------------------

_SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80, "image_size": 24,
    "patch_size": 6, "mask_ratio": 0.0,
}  # fmt: skip
_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


def hf_classes() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as table

    listed = [name for value in table.values() for name in ((value,) if isinstance(value, str) else value)]
    return list(dict.fromkeys([*listed, *HF_CLASSES]))


def build_hf(kind: str, **others: Any) -> nn.Module:
    import transformers

    model_class = getattr(transformers, kind)
    config_class = model_class.config_class
    default = config_class()
    labels = {"num_labels": CLASSES} if "Classification" in kind else {}
    if hasattr(default, "vision_config"):
        vision = {key: value for key, value in _SMALL.items() if hasattr(default.vision_config, key)}
        config = config_class(text_config=dict(_TEXT), vision_config=vision | others, **labels)
    else:
        small = {key: value for key, value in _SMALL.items() if isinstance(getattr(default, key, None), int | float)}
        config = config_class(**small | labels | others)
    with contextlib.suppress(NotImplementedError, ZeroDivisionError), torch.device("meta"):
        if sum(parameter.numel() for parameter in model_class(config).parameters()) > 30_000_000:
            raise RuntimeError("too large at any size that its configuration takes")
    return _sensitive(model_class(config))


@torch.no_grad()
def hf_outputs(model: Any, images: Tensor) -> dict[str, Tensor]:
    """Return the logits or, without a classifier, the pooled tokens that a user of the model may read."""
    if "Classification" in type(model).__name__:
        return {"logits": model(pixel_values=images).logits}
    tower = getattr(model, "vision_model", None) or getattr(model, "vit", None) or getattr(model, "deit", None) or model
    output = tower(pixel_values=images)
    found: dict[str, Tensor] = {}
    tokens = getattr(output, "last_hidden_state", None)
    if tokens is not None and tokens.ndim == 3:
        found |= {"class token": tokens[:, 0], "mean": tokens.mean(dim=1)}
    if maps := getattr(output, "feature_maps", None):  # of a backbone: the patches alone
        found["patches"] = maps[-1].flatten(2).mean(dim=-1)
    pooled = getattr(output, "pooler_output", None)
    if pooled is not None:
        found["pooler"] = pooled
    return found


def survey_hf(kind: str, **others: Any) -> Iterator[Outcome]:
    try:
        model = build_hf(kind, **others)
        config = getattr(model.config, "vision_config", model.config)
        size = getattr(config, "image_size", 24)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        images = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))
        theirs: dict[str, Tensor] = {}
        with contextlib.suppress(Exception):  # no images: text, video, sound
            theirs = hf_outputs(model, images)
    except Exception as error:
        yield Outcome("transformers", kind, "folder", "not built", reason=f"{type(error).__name__}: {str(error)[:100]}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # a progress bar
            model.save_pretrained(folder / "hub")
        yield Outcome("transformers", kind, "folder", *compare(folder / "hub", images, theirs))
        facts = _open_facts(getattr(model, "vision_model", model))
        (folder / "hub" / "model.safetensors").rename(folder / "disk.safetensors")
        yield Outcome(
            "transformers", kind, "file alone", *compare(folder / "disk.safetensors", images, theirs, **facts)
        )
        save_file(_state(model), folder / "hub" / "model.safetensors")
        yield Outcome("transformers", kind, "folder, names in memory", *compare(folder / "hub", images, theirs))
        (folder / "hub" / "model.safetensors").rename(folder / "memory.safetensors")
        how = "file alone, names in memory"
        yield Outcome("transformers", kind, how, *compare(folder / "memory.safetensors", images, theirs, **facts))


# --- the table ---------------------------------------------------------------------------------------------


def quiet() -> None:
    """Make the libraries importable and silent."""
    declare_torchvision_operators()
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity(hf_logging.CRITICAL)
    hf_logging.disable_progress_bar()


def survey(only: str = "") -> Iterator[Outcome]:
    quiet()
    for names, run in ((timm_names(), survey_timm), (hf_classes(), survey_hf)):
        for name in names:
            if only in name:
                yield from run(name)


_OFTEN = 4  # files: rarer refusals are not listed


def tables(outcomes: Iterable[Outcome]) -> str:
    """Return the counts per family, and of each library's refusals per reason, as Markdown."""
    by_family: dict[tuple[str, str], list[Outcome]] = {}
    reasons: Counter[tuple[str, str]] = Counter()
    for each in outcomes:
        by_family.setdefault((each.library, each.family), []).append(each)
        if each.kind == "refused":
            reasons[each.library, _without_names(each.reason)] += 1
    lines = [
        "| library | family | models | read, equal | largest difference | refused | assumed | wrong | not built |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (library, family), rows in by_family.items():
        counts = Counter(row.kind for row in rows)
        largest = max((row.difference for row in rows if row.kind == "equal"), default=None)
        wrong = counts["WRONG"] + counts["CRASH"] + counts["UNCHECKED"]
        cells = [
            library, family, len({row.name for row in rows}), counts["equal"],
            "–" if largest is None else f"{largest:.1e}", counts["refused"], counts["assumed"], wrong,
            counts["not built"],
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| library | refused | files |", "|---|---|---|"]
    common = [(key, count) for key, count in reasons.most_common() if count >= _OFTEN]
    lines += [f"| {library} | {reason} | {count} |" for (library, reason), count in common]
    rest = [count for count in reasons.values() if count < _OFTEN]
    lines.append(f"| both | {len(rest)} other sentences | {sum(rest)} |")
    return "\n".join(lines)


def _without_names(reason: str) -> str:
    """Return a refusal without what differs from model to model."""
    reason = reason.split("\n")[0]
    reason = re.sub(r"(the architecture|names an?|names the architecture) '[\w-]+'", r"\1 …", reason)
    reason = re.sub(r"its \d+ tensors \([^)]*\) match", "its tensors match", reason)
    reason = re.sub(r"; it reads .*| \(it is distilled\)", "", reason)
    return re.sub(r"\d+ of \d+ tensors; .*", "parts are missing or left over, which are listed", reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a part of a model's name")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("vitreous.checkpoints").setLevel(logging.ERROR)  # what is assumed is stated here
    found = []
    for outcome in survey(arguments.only):
        found.append(outcome)
        if arguments.verbose or outcome.kind in ("WRONG", "CRASH", "UNCHECKED"):
            words = f"{outcome.name} ({outcome.saved}) {outcome.kind} {outcome.difference:.1e} {outcome.reason}"
            print(outcome.library, words, flush=True)
    print(tables(found))


if __name__ == "__main__":
    main()
