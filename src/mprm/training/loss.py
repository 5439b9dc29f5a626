"""The loss: two-way cross-entropy at each step, summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


def step_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy of Yes against No, summed over the steps whose label is not ignored.

    ``-Σ_j [y_j log p_j + (1 - y_j) log(1 - p_j)]`` with ``p = softmax(z_yes, z_no)_yes = σ(z_yes - z_no)``;
    whoever calls divides by the number of steps of the whole global batch, so that a step's weight does
    not depend on who shares its micro-batch or its device.

    Parameters
    ----------
    logits : shape (S, 2)
        Yes, then No.
    labels : shape (S,)
        In [0, 1], hard or soft; negative where the step is ignored.
    """
    taught = labels >= 0
    margin = logits[:, 0] - logits[:, 1]
    # where(): a step that is ignored must not spoil the sum, but stays in the graph for the other ranks' sake
    losses = F.binary_cross_entropy_with_logits(margin, labels.clamp(min=0), reduction="none")
    return losses.where(taught, 0.0).sum()
