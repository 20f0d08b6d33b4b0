"""What an answer rests on, by gradients: class relevance, gradient, integrated gradients, Grad-CAM and its kin.

Shapes: C channels, `height` × `width` pixels, L layers, H heads, N tokens, F feature maps. One image at a time.
All of these claim to explain; `faithfulness.py` says which claim holds for the image at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inspection.attention import attention_layers, pooling_weights
from vitreous.inspection.query import batch_size
from vitreous.models import CNN, ArticleCNN, ViT
from vitreous.models.vit import Taps


@dataclass(frozen=True)
class Pass:
    """One forward and one backward: everything that single pass can tell."""

    target: int
    logits: Tensor  # (K,)
    image_gradient: Tensor  # (C, height, width), of the target's logit
    taps: Taps  # detached; empty for models that have none
    attention_gradients: tuple[Tensor, ...] = ()  # L of (H, N, N)
    pooled_gradient: Tensor | None = None  # (D,)
    patch_mask: Tensor | None = None  # (1, P), False where a patch was removed


def forward_and_back(
    model: nn.Module,
    image: Tensor,
    target: int | None,
    *,
    head_mask: Tensor | None = None,
    patch_mask: Tensor | None = None,
) -> Pass:
    """Ask once with taps, then go back from the target's logit (None: the model's own answer); masks are a ViT's."""
    images = image[None].clone().requires_grad_()
    taps: Taps = {}
    masks = {"head_mask": head_mask, "patch_mask": patch_mask}
    logits = model(images, taps, **masks) if isinstance(model, ViT) else model(images)
    target = int(logits[0].argmax()) if target is None else target
    layers = attention_layers(taps, model.config.depth) if isinstance(model, ViT) else []
    wanted = [images, *layers, *([taps["pooled"]] if layers else [])]
    gradients = [gradient[0].detach() for gradient in torch.autograd.grad(logits[0, target], wanted)]
    return Pass(
        target=target,
        logits=logits[0].detach(),
        image_gradient=gradients[0],
        taps={name: value.detach() for name, value in taps.items()},
        attention_gradients=tuple(gradients[1:-1]) if layers else (),
        pooled_gradient=gradients[-1] if layers else None,
        patch_mask=patch_mask,
    )


def class_relevance(layers: Sequence[Tensor], gradients: Sequence[Tensor], readout: Tensor) -> Tensor:
    """Gradient × attention, carried through the layers (Chefer, Gur & Wolf, ICCV 2021): L of (H, N, N) → (N,).

    R starts as the identity; each layer, from the first to the last, adds what its heads pass on where more attention
    would raise the class: R ← R + mean_h(∇A ⊙ A)⁺ R. The answer reads the rows of R − I with `readout` (N,).

    For a class token, taking I away changes nothing on the patches. For pooled models it decides: what a token is to
    itself says "read here", not "came from here", and deep tokens all carry the answer. Measured on 30 MNIST digits
    with a mean-pooled ViT: insertion − deletion 0.51 without I, −0.07 with it (random orders 0).
    """
    identity = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    relevance = identity
    for attention, gradient in zip(layers, gradients, strict=True):
        passed_on = (attention * gradient).clamp(min=0).mean(dim=0)
        relevance = relevance + passed_on @ relevance
    return readout @ (relevance - identity)


def relevance_readout(model: ViT, asked: Pass) -> Tensor:
    """(N,): with a class token, that token. Pooling is treated as one more attention layer with a single query:

    weights p, and by the chain rule ∂logit/∂p_i = ∂logit/∂pooled · LN(z_i); so its relevance is (∇p ⊙ p)⁺.
    """
    weights = pooling_weights(model, asked.taps, asked.patch_mask)[0].detach()
    if model.config.has_class_token:
        return weights
    assert asked.pooled_gradient is not None
    return (weights * (asked.taps["normed"][0] @ asked.pooled_gradient)).clamp(min=0)


def integrated_gradients(model: nn.Module, image: Tensor, baseline: Tensor, target: int, steps: int = 48) -> Tensor:
    """(C, height, width): gradients gathered on the straight way from `baseline` (Sundararajan et al., 2017).

    They sum to logit(image) − logit(baseline): completeness. Gauss–Legendre points, as captum's default.
    """
    points, weights = np.polynomial.legendre.leggauss(steps)
    along = torch.as_tensor((points + 1) / 2, dtype=image.dtype, device=image.device)
    share = torch.as_tensor(weights / 2, dtype=image.dtype, device=image.device)
    total = torch.zeros_like(image)
    # a backward pass keeps every layer's activations: smaller batches than for answers alone
    size = max(1, batch_size(model, image) // 8)
    for at, part in zip(along.split(size), share.split(size), strict=True):
        batch = (baseline + at[:, None, None, None] * (image - baseline)).requires_grad_()
        (gradient,) = torch.autograd.grad(model(batch)[:, target].sum(), batch)
        total += (part[:, None, None, None] * gradient).sum(dim=0)
    return (image - baseline) * total


def feature_split(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None:
    """A CNN cut after its last convolution: image → features, features → logits; None where there is no such cut."""
    if isinstance(model, CNN):
        return model.features, model.classify
    if isinstance(model, ArticleCNN):
        return model.layers[:4], model.layers[4:]
    return None


def class_activation_maps(model: nn.Module, image: Tensor, target: int) -> dict[str, Tensor]:
    """Grad-CAM and HiResCAM on the last convolution, each (height, width); empty for a model without convolutions.

    Grad-CAM weighs each feature map by its mean gradient; HiResCAM multiplies place by place, which is what a
    network that flattens its features really does. Both keep what speaks for the class (the positive part).
    """
    split = feature_split(model)
    if split is None:
        return {}
    features = split[0](image[None]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(split[1](features)[0, target], features)
    kept = features.detach()[0]  # (F, h, w)
    maps = {
        "grad-cam": (gradient[0].mean(dim=(1, 2), keepdim=True) * kept).sum(dim=0).clamp(min=0),
        "hires-cam": (gradient[0] * kept).sum(dim=0).clamp(min=0),
    }
    return {name: _centre(values, image.shape[-2:]) for name, values in maps.items()}


def _centre(values: Tensor, size: Sequence[int]) -> Tensor:
    """Convolutions without padding lose the border: lay the features back over the pixels they are centred on."""
    top, left = ((want - have) // 2 for want, have in zip(size, values.shape, strict=True))
    return F.pad(values, (left, size[1] - values.shape[1] - left, top, size[0] - values.shape[0] - top))
