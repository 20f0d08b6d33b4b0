"""Rows that measure the model's arithmetic: equations 1–4, GELU and LayerNorm.

Each computes what the paper writes from the model's own parameters, independently of the model's code, and compares;
where they differ, a few known variants are tried, so that the row can say what the model does instead.

Shapes: B images, T tokens, D width, M width of the MLP, k heads of width K.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.conformance.parts import BlockParts, Parts
from vitreous.conformance.places import position_kind, token_count
from vitreous.conformance.probes import NO_TOKENS, TOLERANCE, activation_of, equal, gap, layer_norm, noise, probe_eps
from vitreous.conformance.sheet import Row, Subject, differs, does_not_apply, item, same

# --- Eq. 1 ---------------------------------------------------------------------------------------------------


@item("eq1", "Eq. 1", "z_0 = [x_class; x_p¹E; …; x_pᴺE] + E_pos")
def tokens(subject: Subject) -> Row:
    parts = subject.parts
    if parts is None:
        return differs(NO_TOKENS, "no tokens")
    blank = torch.zeros(1, *subject.image_shape, dtype=torch.float64)
    z0, N = parts.embed(blank), math.prod(parts.grid)
    here = f"{z0.shape[1]} tokens of width {z0.shape[2]} from {N} patches of {_by(parts.patch_size)}{subject.scale}"
    faults = [text for text, holds in _eq1_properties(subject, parts, blank).items() if not holds]
    if faults:
        return differs(here, "; ".join(faults))
    return same(here, "the equation writes no bias; the authors' code and this model have one")


def _eq1_properties(subject: Subject, parts: Parts, blank: Tensor) -> dict[str, bool]:
    """What Eq. 1 implies, by what is wrong where it does not hold."""
    a, b, z0 = noise(1, *subject.image_shape), noise(1, *subject.image_shape, seed=1), parts.embed(blank)
    extra = z0.shape[1] - math.prod(parts.grid)
    linear = equal(parts.embed(a) + parts.embed(b), parts.embed(a + b) + z0)
    return {
        "there is no class token in front": extra == 1,
        "the first token depends on the image": extra != 1 or equal(parts.embed(a)[:, 0], z0[:, 0]),
        "the tokens are not linear in the pixels" + _why_not_linear(subject): linear,
        "a patch reaches other tokens than its own": not linear or _patches_stay_apart(parts, a),
        "patches are not projected by one shared matrix": not linear or _one_matrix(parts, blank),
        "no positions are added to the tokens": not linear or position_kind(subject) not in ("none", "relative"),
        "one and the same position is added to every token": not linear or position_kind(subject) != "one for all",
    }


def _why_not_linear(subject: Subject) -> str:
    if getattr(subject.model_config, "stem_channels", ()):
        return " (a conv stem comes first; the paper's hybrid has a ResNet there)"
    return " (they are L2-normalised across tokens)" if subject.model_config.kind == "post-vit" else ""


def _box(parts: Parts, patch: int) -> tuple[slice, slice]:
    (ph, pw), (top, left) = parts.patch_size, divmod(patch, parts.grid[1])
    return slice(top * ph, top * ph + ph), slice(left * pw, left * pw + pw)


def _patches_stay_apart(parts: Parts, images: Tensor) -> bool:
    """Changing one patch changes its token, in raster order, and no other."""
    before, offset = parts.embed(images), parts.embed(images).shape[1] - math.prod(parts.grid)
    for patch in {0, 1 % math.prod(parts.grid), parts.grid[1] % math.prod(parts.grid)}:
        changed = images.clone()
        changed[..., _box(parts, patch)[0], _box(parts, patch)[1]] += 1.0
        moved = (parts.embed(changed) - before).abs().amax(dim=-1)[0] > TOLERANCE  # (T,)
        if moved.nonzero().flatten().tolist() != [patch + offset]:
            return False
    return True


def _one_matrix(parts: Parts, blank: Tensor) -> bool:
    """The same pixels in two places give tokens that differ by their positions alone."""
    z0, (ph, pw), found = parts.embed(blank), parts.patch_size, []
    rows, columns = blank.shape[-2] // ph, blank.shape[-1] // pw  # those that do not hang over the edge (fit=pad)
    if rows * columns < 2:
        return True  # there are no two to compare
    offset = z0.shape[1] - math.prod(parts.grid)
    for patch in (0, (rows - 1) * parts.grid[1] + columns - 1):
        image = blank.clone()
        image[0, :, _box(parts, patch)[0], _box(parts, patch)[1]] = noise(blank.shape[1], ph, pw)
        found.append((parts.embed(image) - z0)[0, patch + offset])
    return equal(found[0], found[1])


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


# --- Eq. 2 and Eq. 3 -----------------------------------------------------------------------------------------


def attention(z: Tensor, block: BlockParts) -> Tensor:
    """MSA(z), Eq. 5–8, one head after another."""
    weight, bias = block.qkv
    q, k, v = (z @ weight.T + (0 if bias is None else bias)).chunk(3, dim=-1)
    K, heads = z.shape[-1] // block.num_heads, []
    for i in range(block.num_heads):
        part = slice(i * K, (i + 1) * K)
        weights = (q[..., part] @ k[..., part].mT / math.sqrt(K)).softmax(dim=-1)
        heads.append(weights @ v[..., part])
    return torch.cat(heads, dim=-1) @ block.proj[0].T + block.proj[1]


@item("eq2", "Eq. 2", "z′ = MSA(LN(z)) + z, MSA as in Eq. 5–8")
def attention_layer(subject: Subject) -> Row:
    def paper(z: Tensor, block: BlockParts) -> Tensor:
        return attention(layer_norm(z, block.norm1), block) + z

    variants: dict[str, Callable[[Tensor, BlockParts], Tensor]] = {
        "the residual is taken from the normalised stream: MSA(LN(z)) + LN(z)": lambda z, b: (
            attention(layer_norm(z, b.norm1), b) + layer_norm(z, b.norm1)
        ),
        "the norm comes after the sum: LN(MSA(z) + z)": lambda z, b: layer_norm(attention(z, b) + z, b.norm1),
        "attention runs across the images of a batch, and the norm comes after the sum": lambda z, b: layer_norm(
            attention(z.transpose(0, 1), b).transpose(0, 1) + z, b.norm1
        ),
        "there is no residual": lambda z, b: attention(layer_norm(z, b.norm1), b),
    }
    known = {"relative": "the attention logits carry relative positions (the appendix's variant)"}
    return _compare_blocks(subject, 0, paper, variants, known.get(position_kind(subject), "") if subject.parts else "")


@item("eq3", "Eq. 3", "z = MLP(LN(z′)) + z′, MLP: two linear layers, GELU between")
def mlp_layer(subject: Subject) -> Row:
    def mlp(z: Tensor, block: BlockParts) -> Tensor:
        hidden = z @ block.fc1.weight.T + block.fc1.bias
        # the activation is the model's own here: which it is, the row on GELU measures
        return activation_of(block)(hidden) @ block.fc2.weight.T + block.fc2.bias

    def paper(z: Tensor, block: BlockParts) -> Tensor:
        return mlp(layer_norm(z, block.norm2), block) + z

    variants: dict[str, Callable[[Tensor, BlockParts], Tensor]] = {
        "the residual is taken from the normalised stream: MLP(LN(z′)) + LN(z′)": lambda z, b: (
            mlp(layer_norm(z, b.norm2), b) + layer_norm(z, b.norm2)
        ),
        "the norm comes after the sum: LN(MLP(z′) + z′)": lambda z, b: layer_norm(mlp(z, b) + z, b.norm2),
        "there is no residual": lambda z, b: mlp(layer_norm(z, b.norm2), b),
    }
    return _compare_blocks(subject, 1, paper, variants)


@torch.no_grad()
def _compare_blocks(
    subject: Subject,
    half: int,
    paper: Callable[[Tensor, BlockParts], Tensor],
    variants: dict[str, Callable[[Tensor, BlockParts], Tensor]],
    known: str = "",
) -> Row:
    """Run each block on random tokens and compare one of its halves (0: z → z′, 1: z′ → z) with the paper's."""
    if subject.parts is None:
        return differs(NO_TOKENS, "no encoder layers")
    # relative positions are made for the model's own number of tokens; for the others a few tokens tell as much
    tokens = token_count(subject) if position_kind(subject) == "relative" else min(token_count(subject), 9)
    count = 0
    for count, block in enumerate(subject.parts.blocks(), start=1):
        z = noise(2, tokens, block.proj[0].shape[0])
        middle, after = block.run(z)
        before, measured = (z, middle) if half == 0 else (middle, after)
        expected = paper(before, block)
        if not equal(measured, expected):
            found = [text for text, variant in variants.items() if equal(measured, variant(before, block))]
            reason = found[0] if found else known or f"by up to {gap(measured, expected):.1%} of the largest value"
            return differs(
                f"measured in block {count} of {subject.parts.depth}, parameters random{subject.scale}", reason
            )
    blocks = "1 block" if count == 1 else f"{count} blocks"
    return same(f"equal in {blocks} to within {TOLERANCE:g}, parameters random{subject.scale}")


# --- Eq. 4 ---------------------------------------------------------------------------------------------------


@item("eq4", "Eq. 4", "y = LN(z_L⁰): only the class token is read, normalised")
@torch.no_grad()
def representation(subject: Subject) -> Row:
    if subject.parts is None:
        return differs(NO_TOKENS, "the head reads all features of the last convolution")
    classify = subject.parts.classify
    z = noise(2, token_count(subject), subject.width)
    output, others = classify(z), z.clone()
    others[:, 1:] += noise(*others[:, 1:].shape, seed=1)
    first = z.clone()
    first[:, 0] += noise(2, subject.width, seed=2)
    rest_is_ignored, first_is_read = equal(classify(others), output), not equal(classify(first), output)
    # LN forgets the mean and the size of a token, up to ε
    is_normalised = gap(classify(100 * z + 7), classify(1000 * z - 3)) < 1e-4
    reads = "the class token" if rest_is_ignored and first_is_read else "other tokens too"
    here = f"the head reads {reads}, {'normalised' if is_normalised else 'not normalised'}"
    faults = [
        "the other tokens are read as well, the class token is not alone" if reads != "the class token" else "",
        "no LayerNorm precedes the head" if not is_normalised else "",
    ]
    reasons = "; ".join(filter(None, faults))
    return differs(here, reasons) if reasons else same(here)


# --- GELU and LayerNorm --------------------------------------------------------------------------------------


@item(
    "gelu", "GELU", "GELU (Sec. 3.1 does not say which form); the authors' code: Flax's default, the tanh approximation"
)
@torch.no_grad()
def gelu(subject: Subject) -> Row:
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    values, kinds = torch.linspace(-5, 5, 64, dtype=torch.float64), set()
    for block in subject.parts.blocks():
        measured = activation_of(block)(values)
        if equal(measured, F.gelu(values)):
            kinds.add("the exact GELU, x Φ(x)")
        elif equal(measured, F.gelu(values, approximate="tanh")):
            kinds.add("the tanh approximation of GELU")
        else:
            kinds.add("ReLU" if equal(measured, F.relu(values)) else "another activation")
    here = " and ".join(sorted(kinds))
    if not kinds <= {"the exact GELU, x Φ(x)", "the tanh approximation of GELU"}:
        return differs(here, "not a GELU")
    exact = "the text's GELU; the authors' code approximates it, at most 0.0005 away"
    return same(here, exact if "the exact GELU, x Φ(x)" in kinds else "as in the authors' code")


@item("norm-eps", "LayerNorm ε", "not in the text; the authors' code: Flax's default, 1e-6")
def norm_eps(subject: Subject) -> Row:
    parts = subject.parts
    if parts is None:
        return does_not_apply(NO_TOKENS)
    norms = [norm for block in parts.blocks() for norm in (block.norm1, block.norm2)]
    norms += [parts.final_norm] if parts.final_norm is not None else []
    found = sorted({float(f"{probe_eps(norm):.2g}") for norm in norms})
    here = f"{', '.join(f'{eps:g}' for eps in found)} in {len(norms)} norms, probed with nearly constant tokens"
    return same(here) if found == [1e-6] else differs(here, "ε is not 1e-6")
