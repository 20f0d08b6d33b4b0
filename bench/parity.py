"""Compare the logits of other libraries and of vitreous on the same weights, in and out of every layout.

    python bench/parity.py [--full] [--json FILE]

In: the peer's model with random parameters, saved by the peer, read here. Out: our model with random parameters, saved
in the layout, read strictly by the peer. Google's npz has no peer that runs here: its forward pass is written below in
NumPy from the paper's equations, and older vit-pytorch's in torch from its documented names. `--full` compares ViT-B/16
instead of a tiny model. tests/checkpoints/test_parity.py requires every difference to be below 1e-5.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitreous.checkpoints import load_model, save_model
from vitreous.config import ViTConfig
from vitreous.models.vit import ViT

TINY = ViTConfig(
    image_size=24, channels=3, num_classes=7, patch_size=6, dim=32, depth=3, num_heads=4, mlp_dim=80, zero_head=False
)
B16 = ViTConfig(
    image_size=224, channels=3, num_classes=1000, patch_size=16, dim=768, depth=12, num_heads=12, mlp_dim=3072
)


@dataclass(frozen=True)
class Row:
    """One row of the table. `tensors` is the report of `read_checkpoint`."""

    layout: str
    direction: str
    max_difference: float
    tensors: str


def declare_torchvision_operators() -> None:
    """Declare (never call) the two compiled operators that torchvision 0.28 looks for when it is imported: it has no
    CPU build. Afterwards torchvision, timm and transformers import."""
    if not hasattr(torch.ops.torchvision, "nms"):
        global _TORCHVISION
        _TORCHVISION = torch.library.Library("torchvision", "DEF")  # declarations live as long as this does
        for operator in ("nms", "qnms"):
            _TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 1) -> nn.Module:
    """Randomise every parameter: fresh biases are 0 and norms 1, which would hide wiring mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
        parameter.copy_(values * fan_in**-0.5 if parameter.ndim > 1 else values * 0.2 + 0.5)
    return model.eval()


def images_for(config: ViTConfig) -> Tensor:
    count = 4 if config.dim < 100 else 1
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, config.channels, *config.image_size, generator=generator)


def measure_in(path: Path, config: ViTConfig, theirs: Tensor, layout: str, **arguments: Any) -> Row:
    model, checkpoint = load_model(path, **arguments)
    with torch.no_grad():
        difference = (model(images_for(config)) - theirs).abs().max().item()
    return Row(layout, "in", difference, checkpoint.report)


def measure_out(config: ViTConfig, layout: str, name: str, path: Path, peer_logits: Callable[[Path], Tensor]) -> Row:
    """Save a random model of ours, compare with the peer's logits, and read the same tensors back."""
    model = randomise(ViT(config))
    assert isinstance(model, ViT)
    mean = (0.5,) * config.channels
    save_model(model, path, layout, mean=mean, std=mean, class_names=[f"class {i}" for i in range(config.num_classes)])
    with torch.no_grad():
        difference = (peer_logits(path) - model(images_for(config))).abs().max().item()
    again, checkpoint = load_model(path, trained_size=config.image_size)
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), f"{key} changed on the way through {layout}"
    return Row(name, "out", difference, checkpoint.report)


# --- timm --------------------------------------------------------------------------------------------------


def _timm_model(config: ViTConfig, **others: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=config.image_size, patch_size=config.patch_size, in_chans=config.channels, embed_dim=config.dim,
        num_classes=config.num_classes, depth=config.depth, num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.dim, **others,
    )  # fmt: skip


def timm_in(
    config: ViTConfig, folder: Path, name: str = "timm", wrap: str = "", file: str = "timm.safetensors", **others: Any
) -> Row:
    theirs = randomise(_timm_model(config, **others))
    path, state = folder / file, {wrap + key: value for key, value in theirs.state_dict().items()}
    torch.save({"model": state, "epoch": 3}, path) if path.suffix == ".pth" else save_file(state, path)
    with torch.no_grad():
        return measure_in(path, config, theirs(images_for(config)), name, num_heads=config.num_heads)


def timm_out(config: ViTConfig, folder: Path, name: str = "timm") -> Row:
    def create(path: Path) -> Tensor:
        import timm

        return timm.create_model(f"local-dir:{path}", pretrained=True).eval()(images_for(config))

    return measure_out(config, "timm", name, folder / "timm", create)


# --- Hugging Face ------------------------------------------------------------------------------------------


def _hf_model(config: ViTConfig) -> nn.Module:
    import transformers

    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config.dim, num_hidden_layers=config.depth, num_attention_heads=config.num_heads,
            intermediate_size=config.mlp_dim, image_size=config.image_size[0], patch_size=config.patch_size[0],
            num_channels=config.channels, num_labels=config.num_classes, attn_implementation="eager",
            hidden_act="gelu" if config.gelu == "erf" else "gelu_new", qkv_bias=config.qkv_bias,
        )
    )  # fmt: skip


def hf_in(config: ViTConfig, folder: Path, name: str = "Hugging Face", in_memory: bool = False) -> Row:
    theirs = randomise(_hf_model(config))
    path = folder / "hf"
    theirs.save_pretrained(path)
    if in_memory:
        save_file(dict(theirs.state_dict()), path / "model.safetensors")
    with torch.no_grad():
        return measure_in(path, config, theirs(images_for(config)).logits, name)


def hf_out(config: ViTConfig, folder: Path, name: str = "Hugging Face") -> Row:
    def peer_logits(path: Path) -> Tensor:
        import transformers

        model, info = transformers.AutoModelForImageClassification.from_pretrained(path, output_loading_info=True)
        assert not any(info.values()), f"transformers reports {info}"
        return model.eval()(images_for(config)).logits

    return measure_out(config, "hf", name, folder / "hf", peer_logits)


# --- torchvision -------------------------------------------------------------------------------------------


def _torchvision_model(config: ViTConfig) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=config.image_size[0], patch_size=config.patch_size[0], num_layers=config.depth,
        num_heads=config.num_heads, hidden_dim=config.dim, mlp_dim=config.mlp_dim, num_classes=config.num_classes,
        representation_size=(config.head_hidden or config.dim) if config.head == "mlp" else None,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
    )  # fmt: skip


def torchvision_in(config: ViTConfig, folder: Path, name: str = "torchvision", old_names: bool = False) -> Row:
    theirs = randomise(_torchvision_model(config))
    state = dict(theirs.state_dict())
    if old_names:
        state = {key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): state[key] for key in state}
    save_file(state, folder / "tv.safetensors")
    with torch.no_grad():
        return measure_in(
            folder / "tv.safetensors", config, theirs(images_for(config)), name, num_heads=config.num_heads
        )


def torchvision_out(config: ViTConfig, folder: Path, name: str = "torchvision") -> Row:
    def peer_logits(path: Path) -> Tensor:
        from safetensors.torch import load_file

        model = _torchvision_model(config)
        model.load_state_dict(load_file(path), strict=True)
        return model.eval()(images_for(config))

    return measure_out(config, "torchvision", name, folder / "tv.safetensors", peer_logits)


# --- Google npz: the paper's equations in NumPy, on the file's own arrays ----------------------------------

Arrays = dict[str, np.ndarray]


def google_arrays(config: ViTConfig, big_vision: bool = False) -> Arrays:
    """Return random arrays in the documented layout."""
    random = np.random.default_rng(3)
    D, H, K, M = config.dim, config.num_heads, config.head_dim, config.mlp_dim
    attention, norm2, mlp = ("_0", "_1", "_0") if big_vision else ("_1", "_2", "_3")
    tokens = config.num_patches if big_vision else config.num_tokens
    positions = "pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"
    shapes: dict[str, tuple[int, ...]] = {
        positions: (1, tokens, D),
        "embedding/kernel": (*config.patch_size, config.channels, D),
        "embedding/bias": (D,),
        "Transformer/encoder_norm/scale": (D,),
        "Transformer/encoder_norm/bias": (D,),
        "head/bias": (config.num_classes,),
    }
    hidden = (config.head_hidden or D) if config.head == "mlp" else D
    shapes["head/kernel"] = (hidden, config.num_classes)
    if config.head == "mlp":
        shapes |= {"pre_logits/kernel": (D, hidden), "pre_logits/bias": (hidden,)}
    if config.has_class_token:
        shapes["cls"] = (1, 1, D)
    for i in range(config.depth):
        block = f"Transformer/encoderblock_{i}/"
        for norm in ("LayerNorm_0", f"LayerNorm{norm2}"):
            shapes |= {f"{block}{norm}/scale": (D,), f"{block}{norm}/bias": (D,)}
        for part in ("query", "key", "value"):
            module = f"{block}MultiHeadDotProductAttention{attention}/{part}"
            shapes |= {f"{module}/kernel": (D, H, K), f"{module}/bias": (H, K)}
        module = f"{block}MultiHeadDotProductAttention{attention}/out"
        shapes |= {f"{module}/kernel": (H, K, D), f"{module}/bias": (D,)}
        for layer, (inside, outside) in {"Dense_0": (D, M), "Dense_1": (M, D)}.items():
            module = f"{block}MlpBlock{mlp}/{layer}"
            shapes |= {f"{module}/kernel": (inside, outside), f"{module}/bias": (outside,)}
    arrays = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape)
        is_kernel = name.endswith("kernel")
        arrays[name] = (values * _fan_in(name, shape) ** -0.5 if is_kernel else values * 0.3 + 0.3).astype(np.float32)
    return arrays


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    is_qkv = len(shape) == 3 and not name.endswith("out/kernel")
    return shape[0] if is_qkv else int(np.prod(shape[:-1]))


def google_forward(arrays: Mapping[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Compute equations 1 to 4 in float64, with Flax's tanh GELU and ε 1e-6; images (B, height, width, C)."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    big_vision = "pos_embedding" in w
    attention, norm2, mlp = ("_0", "_1", "_0") if big_vision else ("_1", "_2", "_3")

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    B, height, width, C = images.shape
    P, Q = w["embedding/kernel"].shape[:2]
    patches = images.reshape(B, height // P, P, width // Q, Q, C)
    z = np.einsum("bhpwqc,pqcd->bhwd", patches, w["embedding/kernel"]) + w["embedding/bias"]
    z = z.reshape(B, -1, z.shape[-1])
    positions = w["pos_embedding"] if big_vision else w["Transformer/posembed_input/pos_embedding"]
    z = z + positions if big_vision else z
    if "cls" in w:
        z = np.concatenate([np.repeat(w["cls"], B, axis=0), z], axis=1)
    z = z if big_vision else z + positions
    depth = sum("LayerNorm_0/scale" in name for name in w)
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}/"
        module = f"{block}MultiHeadDotProductAttention{attention}/"
        x = norm(z, f"{block}LayerNorm_0")
        q, k, v = (
            np.einsum("bnd,dhk->bhnk", x, w[f"{module}{part}/kernel"]) + w[f"{module}{part}/bias"][None, :, None]
            for part in ("query", "key", "value")
        )
        scores = np.einsum("bhnk,bhmk->bhnm", q, k) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("bhnm,bhmk->bnhk", weights, v)
        z = z + np.einsum("bnhk,hkd->bnd", heads, w[f"{module}out/kernel"]) + w[f"{module}out/bias"]
        x, module = norm(z, f"{block}LayerNorm{norm2}"), f"{block}MlpBlock{mlp}/"
        x = gelu(x @ w[f"{module}Dense_0/kernel"] + w[f"{module}Dense_0/bias"])
        z = z + x @ w[f"{module}Dense_1/kernel"] + w[f"{module}Dense_1/bias"]
    z = norm(z, "Transformer/encoder_norm")
    y = z[:, 0] if "cls" in w else z.mean(axis=1)
    if "pre_logits/kernel" in w:
        y = np.tanh(y @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return y @ w["head/kernel"] + w["head/bias"]


def stack_blocks(arrays: Arrays) -> Arrays:
    """Convert to big_vision's scanned form: `encoderblock/…` with the depth as leading axis."""
    stacked = {name: array for name, array in arrays.items() if "encoderblock_" not in name}
    depth = sum("LayerNorm_0/scale" in name for name in arrays)
    for name in arrays:
        if "encoderblock_0/" in name:
            parts = [arrays[name.replace("encoderblock_0", f"encoderblock_{i}")] for i in range(depth)]
            stacked[name.replace("encoderblock_0", "encoderblock")] = np.stack(parts)
    return stacked


def _numpy_logits(arrays: Mapping[str, np.ndarray], config: ViTConfig) -> Tensor:
    images = images_for(config).permute(0, 2, 3, 1).numpy().astype(np.float64)
    return torch.from_numpy(google_forward(arrays, images))


def google_in(
    config: ViTConfig,
    folder: Path,
    name: str = "Google npz",
    prefix: str = "",
    big_vision: bool = False,
    stack: bool = False,
) -> Row:
    arrays = google_arrays(config, big_vision)
    written = stack_blocks(arrays) if stack else arrays
    np.savez(folder / "google.npz", **{prefix + key: value for key, value in written.items()})
    return measure_in(folder / "google.npz", config, _numpy_logits(arrays, config), name)


def google_out(config: ViTConfig, folder: Path, name: str = "Google npz") -> Row:
    config = config.replace(gelu="tanh")

    def forward(path: Path) -> Tensor:
        with np.load(path, allow_pickle=False) as arrays:
            return _numpy_logits(dict(arrays), config)

    return measure_out(config, "google", name, folder / "google.npz", forward)


# --- older vit-pytorch, written from its documented names --------------------------------------------------


class _PreNorm(nn.Module):
    def __init__(self, dim: int, fn: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class _OldAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        q, k, v = (part.reshape(B, N, self.heads, -1).transpose(1, 2) for part in self.to_qkv(x).chunk(3, dim=-1))
        weights = (q @ k.mT * (D // self.heads) ** -0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(B, N, D))


class _OldMlp(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        layers = [nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(0.0), nn.Linear(hidden, dim), nn.Dropout(0.0)]
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class OldVitPytorch(nn.Module):
    """Patches flattened (row column channel), PreNorm blocks, a LayerNorm in front of the classifier."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.patch, D = config.patch_size[0], config.dim
        size = self.patch**2 * config.channels
        self.to_patch_embedding = nn.Sequential(nn.Identity(), nn.Linear(size, D))
        self.cls_token = nn.Parameter(torch.randn(1, 1, D))
        self.pos_embedding = nn.Parameter(torch.randn(1, config.num_tokens, D))
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            nn.ModuleList([_PreNorm(D, _OldAttention(D, config.num_heads)), _PreNorm(D, _OldMlp(D, config.mlp_dim))])
            for _ in range(config.depth)
        )
        self.mlp_head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, config.num_classes))

    def forward(self, images: Tensor) -> Tensor:
        B, P = len(images), self.patch
        x = images.unfold(2, P, P).unfold(3, P, P)  # (B, C, rows, columns, P, P)
        x = self.to_patch_embedding(x.permute(0, 2, 3, 4, 5, 1).reshape(B, -1, P * P * images.shape[1]))
        x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1) + self.pos_embedding
        for attention, mlp in self.transformer.layers:
            x = x + attention(x)
            x = x + mlp(x)
        return self.mlp_head(x[:, 0])


def vit_pytorch_in(config: ViTConfig, folder: Path, name: str = "vit-pytorch (older)") -> Row:
    theirs = randomise(OldVitPytorch(config))
    save_file(dict(theirs.state_dict()), folder / "old.safetensors")
    with torch.no_grad():
        logits = theirs(images_for(config))
    return measure_in(folder / "old.safetensors", config, logits, name, num_heads=config.num_heads)


# --- the table ---------------------------------------------------------------------------------------------

Case = Callable[[ViTConfig, Path], Row]

#: One per layout and direction; run at both sizes.
MAIN_CASES: dict[str, Case] = {
    "timm in": timm_in,
    "timm out": timm_out,
    "hf in": hf_in,
    "hf out": hf_out,
    "torchvision in": torchvision_in,
    "torchvision out": torchvision_out,
    "google in": google_in,
    "google out": google_out,
    "vit-pytorch in": vit_pytorch_in,
}


def _other(case: Case, name: str, changes: Mapping[str, Any] | None = None, **arguments: Any) -> Case:
    return lambda config, folder: case(config.replace(**(changes or {})), folder, name=name, **arguments)  # type: ignore[call-arg]


_MEAN, _TANH, _GRAY = {"pool": "mean"}, {"gelu": "tanh"}, {"channels": 1}
_OBLONG = {"image_size": (24, 12), "patch_size": (6, 3)}

#: Variants of the layouts, at the tiny size.
VARIANTS: dict[str, Case] = {
    "timm pth": _other(timm_in, "DeiT .pth, prefix module.", wrap="module.", file="deit.pth"),
    "timm mean": _other(timm_in, "timm, mean pooling", _MEAN, class_token=False, global_pool="avg", fc_norm=False),
    "timm no_embed_class": _other(timm_in, "timm, no_embed_class", no_embed_class=True),
    "timm layer scale": _other(timm_in, "DeiT III (LayerScale)", init_values=0.1),
    "timm mean out": _other(timm_out, "timm, mean pooling", _MEAN),
    "timm gray tanh out": _other(timm_out, "timm, gray, oblong, tanh", _GRAY | _OBLONG | _TANH),
    "hf in memory": _other(hf_in, "Hugging Face, names in memory", in_memory=True),
    "hf gray tanh": _other(hf_in, "Hugging Face, gray, tanh, no bias", _GRAY | _TANH | {"qkv_bias": False}),
    "hf gray out": _other(
        hf_out, "Hugging Face, gray, oblong, tanh, ε 1e-5", _GRAY | _OBLONG | _TANH | {"norm_eps": 1e-5}
    ),
    "torchvision mlp": _other(torchvision_in, "torchvision, MLP head", {"head": "mlp", "head_hidden": 20}),
    "torchvision old": _other(torchvision_in, "torchvision, names before 0.14", old_names=True),
    "torchvision mlp out": _other(torchvision_out, "torchvision, MLP head", {"head": "mlp", "head_hidden": 20}),
    "google mlp": _other(google_in, "Google npz, opt/target/, MLP head", {"head": "mlp"}, prefix="opt/target/"),
    "big_vision": _other(google_in, "big_vision npz, params/", prefix="params/", big_vision=True),
    "big_vision stacked": _other(
        google_in, "big_vision npz, params/img/, stacked, GAP", _MEAN, prefix="params/img/", big_vision=True, stack=True
    ),
    "google mlp out": _other(google_out, "Google npz, MLP head, gray", _GRAY | {"head": "mlp", "head_hidden": 20}),
    "google gap out": _other(google_out, "Google npz, mean pooling", _MEAN),
    "vit-pytorch gray": _other(vit_pytorch_in, "vit-pytorch (older), gray", _GRAY),
}  # fmt: skip


def measure(case: Case, config: ViTConfig) -> Row:
    declare_torchvision_operators()
    with tempfile.TemporaryDirectory() as folder:
        return case(config, Path(folder))


def table(rows: list[Row]) -> str:
    lines = ["| layout | direction | max difference of logits | tensors |", "|---|---|---|---|"]
    lines += [f"| {row.layout} | {row.direction} | {row.max_difference:.1e} | {row.tensors} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="ViT-B/16 instead of a tiny model; takes minutes")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = MAIN_CASES if arguments.full else MAIN_CASES | VARIANTS
    rows = [measure(case, B16 if arguments.full else TINY) for case in cases.values()]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
