"""Everything the doctor checks, grouped by subject: each check yields its findings or raises `NotMeasured`."""

from collections.abc import Callable, Iterator

from vitreous.doctor.checks import (
    arguments,
    attention,
    batch,
    class_token,
    data,
    fresh,
    gradients,
    layout,
    norms,
    outputs,
    patches,
    positions,
    residual,
    state,
    structure,
)  # fmt: skip
from vitreous.doctor.findings import Finding
from vitreous.doctor.model_under_test import ModelUnderTest

Check = Callable[[ModelUnderTest], Iterator[Finding]]

#: Every check under its name in `healthy` and `not_measured`, the quick ones first. A finding has the name of its
#: check, or a more specific one (activations-vanish, dropout-on-logits).
CHECKS: dict[str, Check] = {
    "not-a-classifier": outputs.not_a_classifier,
    "outputs-not-finite": outputs.not_finite,
    "batch-size": batch.batch_size,
    "input-modified": outputs.input_modified,
    "image-ignored": patches.image_ignored,
    "inputs-wrong-range": data.wrong_range,
    "inputs-not-normalised": data.not_normalised,
    "inputs-channel-order": data.channel_order,
    "labels-out-of-range": data.labels_out_of_range,
    "train-test-overlap": data.train_test_overlap,
    "probabilities-not-logits": outputs.probabilities,
    "log-probabilities": outputs.log_probabilities_returned,
    "activation-on-logits": outputs.activation_on_logits,
    "dropout-in-eval": outputs.dropout_in_eval,
    "dropout-too-high": outputs.drops_everything,
    "dropout-without-effect": outputs.dropout_without_effect,
    "nondeterministic-eval": outputs.not_deterministic,
    "patches-scrambled": layout.patches_scrambled,
    "heads-scrambled": layout.heads_scrambled,
    "attention-scale": attention.scale,
    "softmax-axis": attention.softmax_axis,
    "softmax-missing": attention.softmax_missing,
    "softmax-repeated": attention.softmax_repeated,
    "projections-shared": attention.projections_shared,
    "causal-mask": attention.causal,
    "tokens-masked": attention.masked_tokens,
    "attention-blown-up": attention.blown_up,
    "attention-collapsed": attention.collapsed,
    "skip-missing": residual.skip_missing,
    "skip-normalised": residual.skip_normalised,
    "branch-not-normalised": residual.branch_not_normalised,
    "branch-doubled": residual.branch_doubled,
    "mlp-misses-attention": residual.mlp_misses_attention,
    "norm-axis": norms.norm_axis,
    "norm-shared": norms.norm_shared,
    "block-reused": structure.block_reused,
    "linear-after-linear": outputs.linear_after_linear,
    "unregistered-tensors": state.unregistered,
    "device-fixed": state.device_fixed,
    "backward-fails": gradients.backward_fails,
    "class-token-untrained": gradients.class_token_untrained,
    "class-token-not-read": class_token.not_read,
    "pooled-over-features": class_token.pooled_over_features,
    "parameters-without-gradient": gradients.parameters_without_gradient,
    "state-lost-on-reload": state.lost_on_reload,
    "first-loss": fresh.first_loss,
    "weights-too-large": fresh.weight_sizes,
    "activations-with-depth": fresh.activations_with_depth,
    "gradients-with-depth": fresh.gradients_with_depth,
    "batch-dependence": batch.batch_dependence,
    "tokens-never-attend": batch.tokens_never_attend,
    "patches-without-influence": patches.without_influence,
    "channels-ignored": patches.channels_ignored,
    "border-ignored": patches.border_ignored,
    "patch-order-ignored": patches.order_ignored,
    "positions-repeated": positions.repeated,
    "positions-unused": positions.unused,
    "argument-without-effect": arguments.argument_without_effect,
    "depth-miscounted": arguments.depth_miscounted,
    "argument-fails": arguments.argument_fails,
    "cannot-overfit": fresh.cannot_overfit,
}

#: Checks that need nothing but one recorded forward pass: also of a model that is too large for the others.
FROM_RECORDING = frozenset([
    "patches-scrambled", "heads-scrambled", "attention-scale", "softmax-axis", "softmax-missing", "softmax-repeated",
    "projections-shared", "causal-mask", "tokens-masked", "skip-missing", "skip-normalised", "branch-not-normalised",
    "branch-doubled", "mlp-misses-attention", "norm-axis", "norm-shared", "block-reused", "linear-after-linear",
    "pooled-over-features",
])  # fmt: skip
