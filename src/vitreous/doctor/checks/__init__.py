"""Everything the doctor checks, grouped by subject: each check yields its findings or raises `NotMeasured`."""

from collections.abc import Callable, Iterator

from vitreous.doctor.checks import attention, batch, data, fresh, outputs, patches, state
from vitreous.doctor.findings import Finding
from vitreous.doctor.model_under_test import ModelUnderTest

Check = Callable[[ModelUnderTest], Iterator[Finding]]

#: Every check under its name in `healthy` and `not_measured`. A finding has the name of its check, or a more specific
#: one (activations-vanish).
CHECKS: dict[str, Check] = {
    "outputs-not-finite": outputs.not_finite,
    "batch-dependence": batch.batch_dependence,
    "tokens-never-attend": batch.tokens_never_attend,
    "patches-without-influence": patches.without_influence,
    "border-ignored": patches.border_ignored,
    "patch-order-ignored": patches.order_ignored,
    "unregistered-tensors": state.unregistered,
    "class-token-untrained": state.class_token_untrained,
    "parameters-without-gradient": state.parameters_without_gradient,
    "state-lost-on-reload": state.lost_on_reload,
    "probabilities-not-logits": outputs.probabilities,
    "log-probabilities": outputs.log_probabilities_returned,
    "linear-after-linear": outputs.linear_after_linear,
    "dropout-in-eval": outputs.dropout_in_eval,
    "nondeterministic-eval": outputs.not_deterministic,
    "attention-scale": attention.scale,
    "softmax-axis": attention.softmax_axis,
    "attention-blown-up": attention.blown_up,
    "attention-collapsed": attention.collapsed,
    "first-loss": fresh.first_loss,
    "activations-with-depth": fresh.activations_with_depth,
    "gradients-with-depth": fresh.gradients_with_depth,
    "cannot-overfit": fresh.cannot_overfit,
    "inputs-wrong-range": data.wrong_range,
    "inputs-not-normalised": data.not_normalised,
    "inputs-channel-order": data.channel_order,
    "labels-out-of-range": data.labels_out_of_range,
    "train-test-overlap": data.train_test_overlap,
}
