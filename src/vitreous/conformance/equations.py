"""Rows that measure the model's arithmetic: equations 1–4, GELU and LayerNorm.

Each computes the paper's equation from the model's own parameters, independently of the model's code, and compares.
Where they differ, a few common variants are tried, so that the row can state what the model does instead.

Shapes: B images, T tokens, D width, M width of the MLP, k heads of width K.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import ModelConfig, ViTConfig
from vitreous.conformance.measurements import TOLERANCE, activation, equal, gap, layer_norm, measure_eps, noise
from vitreous.conformance.parts import BlockParts, Parts
from vitreous.conformance.rows import Measurement, Subject, differs, same, same_unless
from vitreous.reports.formats import by, plural

# --- Eq. 1 ---------------------------------------------------------------------------------------------------


def tokens(subject: Subject) -> Measurement:
    parts = subject.parts
    a, b = noise(1, *subject.image_shape), noise(1, *subject.image_shape, seed=1)
    blank = torch.zeros_like(a)
    z0 = parts.embed(blank)
    extra = z0.shape[1] - parts.num_patches
    linear = equal(parts.embed(a) + parts.embed(b), parts.embed(a + b) + z0)
    properties = {
        "there is no class token in front": extra == 1,
        "blank patches are skipped": not _skips(subject.model_config),
        "the first token depends on the image": extra != 1 or equal(parts.embed(a)[:, 0], z0[:, 0]),
        "the tokens are not linear in the pixels" + _why_not_linear(subject): linear,
        "a patch reaches other tokens than its own": not linear or _patches_stay_apart(parts, a),
        "patches are not projected by one shared matrix": not linear or _one_matrix(parts, blank),
        "no positions are added to the tokens": not linear or subject.position_kind not in ("none", "relative"),
        "one and the same position is added to every token": not linear or subject.position_kind != "one for all",
    }
    patches = f"{parts.num_patches} patches of {by(*parts.patch_size)}"
    return same_unless(
        [fault for fault, holds in properties.items() if not holds],
        f"{z0.shape[1]} tokens of width {z0.shape[2]} from {patches}{subject.scale}",
        "the equation has no bias; the authors' code and this model have one",
    )


def _skips(config: ModelConfig) -> bool:
    return isinstance(config, ViTConfig) and config.kept_patches < config.num_patches


def _why_not_linear(subject: Subject) -> str:
    if getattr(subject.model_config, "stem_channels", ()):
        return " (a conv stem comes first; the paper's hybrid has a ResNet there)"
    if getattr(subject.model_config, "embed_hidden", None):
        return " (the patch embedding has a hidden layer)"
    return " (they are L2-normalised across tokens)" if subject.model_config.kind == "post-vit" else ""


def _pixels(parts: Parts, patch: int) -> tuple[slice, slice]:
    (ph, pw), (row, column) = parts.patch_size, divmod(patch, parts.grid[1])
    return slice(row * ph, row * ph + ph), slice(column * pw, column * pw + pw)


def _patches_stay_apart(parts: Parts, images: Tensor) -> bool:
    """Whether changing one patch changes its token, in raster order, and no other."""
    before = parts.embed(images)
    offset = before.shape[1] - parts.num_patches
    for patch in {0, 1 % parts.num_patches, parts.grid[1] % parts.num_patches}:
        changed = images.clone()
        changed[..., *_pixels(parts, patch)] += 1.0
        moved = (parts.embed(changed) - before).abs().amax(dim=-1)[0] > TOLERANCE  # (T,)
        if moved.nonzero().flatten().tolist() != [patch + offset]:
            return False
    return True


def _one_matrix(parts: Parts, blank: Tensor) -> bool:
    """Whether the same pixels in two patches give tokens that differ by their positions alone."""
    z0, (ph, pw), found = parts.embed(blank), parts.patch_size, []
    rows, columns = blank.shape[-2] // ph, blank.shape[-1] // pw  # patches entirely inside the image (fit=pad)
    if rows * columns < 2:
        return True  # there are no two to compare
    offset = z0.shape[1] - parts.num_patches
    for patch in (0, (rows - 1) * parts.grid[1] + columns - 1):
        image = blank.clone()
        image[0, :, *_pixels(parts, patch)] = noise(blank.shape[1], ph, pw)
        found.append((parts.embed(image) - z0)[0, patch + offset])
    return equal(found[0], found[1])


# --- Eq. 2 and Eq. 3 -----------------------------------------------------------------------------------------


def attention(z: Tensor, block: BlockParts) -> Tensor:
    """MSA(z), Eq. 5–8, one head after another."""
    q, k, v = F.linear(z, *block.qkv).chunk(3, dim=-1)
    K, heads = z.shape[-1] // block.num_heads, []
    for i in range(block.num_heads):
        part = slice(i * K, (i + 1) * K)
        weights = (q[..., part] @ k[..., part].mT / math.sqrt(K)).softmax(dim=-1)
        heads.append(weights @ v[..., part])
    return F.linear(torch.cat(heads, dim=-1), *block.proj)


def mlp(z: Tensor, block: BlockParts) -> Tensor:
    hidden = F.linear(z, block.fc1.weight, block.fc1.bias)
    # the model's own activation: the row on GELU measures which it is
    return F.linear(activation(hidden, block), block.fc2.weight, block.fc2.bias)


def attention_layer(subject: Subject) -> Measurement:
    return _compare_blocks(subject, attention, "MSA", "z")


def mlp_layer(subject: Subject) -> Measurement:
    return _compare_blocks(subject, mlp, "MLP", "z′")


@torch.no_grad()
def _compare_blocks(
    subject: Subject, layer: Callable[[Tensor, BlockParts], Tensor], name: str, symbol: str
) -> Measurement:
    """Run each block on random tokens and compare its attention layer (z → z′) or its MLP (z′ → z) with the paper's."""
    parts, relative = subject.parts, subject.position_kind == "relative"
    # relative positions are built for the model's own number of tokens; otherwise a few tokens suffice
    num_tokens = parts.num_tokens if relative else min(parts.num_tokens, 9)
    for number, block in enumerate(parts.blocks(), start=1):
        z = noise(2, num_tokens, parts.width)
        middle, after = block.run(z)
        x, measured, norm = (z, middle, block.norm1) if name == "MSA" else (middle, after, block.norm2)
        normalised = layer_norm(x, norm)
        expected = layer(normalised, block) + x
        if equal(measured, expected):
            continue
        variants = {
            f"the residual is taken from the normalised stream: {name}(LN({symbol})) + LN({symbol})": (
                layer(normalised, block) + normalised
            ),
            f"the norm comes after the sum: LN({name}({symbol}) + {symbol})": layer_norm(layer(x, block) + x, norm),
            "attention runs across the images of a batch, and the norm comes after the sum": layer_norm(
                layer(x.transpose(0, 1), block).transpose(0, 1) + x, norm
            ),
            "there is no residual": layer(normalised, block),
        }
        found = [text for text, output in variants.items() if equal(measured, output)]
        if name == "MSA" and relative:
            found.append("the attention logits carry relative positions (the appendix's variant)")
        reason = [*found, f"by up to {gap(measured, expected):.1%} of the largest value"][0]
        count = len(parts.originals)
        return differs(f"measured in block {number} of {count}, parameters random{subject.scale}", reason)
    blocks = plural(len(parts.originals), "block")
    return same(f"equal in {blocks} to within {TOLERANCE:g}, parameters random{subject.scale}")


# --- Eq. 4 ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def representation(subject: Subject) -> Measurement:
    classify, width = subject.parts.classify, subject.parts.width
    z = noise(2, subject.parts.num_tokens, width)
    output, others, first = classify(z), z.clone(), z.clone()
    others[:, 1:] += noise(*others[:, 1:].shape, seed=1)
    first[:, 0] += noise(2, width, seed=2)
    only_class_token = equal(classify(others), output) and not equal(classify(first), output)
    # LN removes the mean and the size of a token, up to ε
    is_normalised = gap(classify(100 * z + 7), classify(1000 * z - 3)) < 1e-4
    faults = [] if only_class_token else ["the other tokens are read as well, the class token is not alone"]
    faults += [] if is_normalised else ["no LayerNorm precedes the head"]
    reads = "the class token" if only_class_token else "other tokens too"
    return same_unless(faults, f"the head reads {reads}, {'normalised' if is_normalised else 'not normalised'}")


# --- GELU and LayerNorm --------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the exact GELU, x Φ(x)": F.gelu,
    "the tanh approximation of GELU": lambda x: F.gelu(x, approximate="tanh"),
    "ReLU": F.relu,
}


@torch.no_grad()
def gelu(subject: Subject) -> Measurement:
    values, kinds = torch.linspace(-5, 5, 64, dtype=torch.float64), set()
    for block in subject.parts.blocks():
        measured = activation(values[:, None].expand(-1, block.fc1.out_features), block)[:, 0]
        matches = [name for name, function in _ACTIVATIONS.items() if equal(measured, function(values))]
        kinds.add([*matches, "another activation"][0])
    here = " and ".join(sorted(kinds))
    exact, approximate, _ = _ACTIVATIONS
    if not kinds <= {exact, approximate}:
        return differs(here, "not a GELU")
    note = "the text's GELU; the authors' code approximates it, with an error of at most 0.0005"
    return same(here, note if exact in kinds else "as in the authors' code")


def norm_eps(subject: Subject) -> Measurement:
    norms = [norm for block in subject.parts.blocks() for norm in (block.norm1, block.norm2)]
    norms += [subject.parts.final_norm] if subject.parts.final_norm is not None else []
    found = sorted({float(f"{measure_eps(norm):.2g}") for norm in norms})
    here = f"{', '.join(f'{eps:g}' for eps in found)} in {len(norms)} norms, measured with nearly constant tokens"
    return same(here) if found == [1e-6] else differs(here, "ε is not 1e-6")
