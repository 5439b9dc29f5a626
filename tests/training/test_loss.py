"""The loss by hand, and against torch's own cross-entropy."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

from mprm.training import step_labels, step_loss_sum


def test_the_loss_by_hand() -> None:
    # z_yes - z_no = ln 3, so p = 3/4; labels 1, 0 and 0.5
    logits = torch.tensor([[math.log(3), 0.0]] * 3)
    expected = -math.log(0.75) - math.log(0.25) - 0.5 * (math.log(0.75) + math.log(0.25))
    assert step_loss_sum(logits, torch.tensor([1.0, 0.0, 0.5])).item() == pytest.approx(expected, rel=1e-6)


def test_hard_labels_give_the_two_way_cross_entropy() -> None:
    logits = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    is_positive = torch.arange(50) % 3 == 0
    # class 0 is Yes
    expected = F.cross_entropy(logits, (~is_positive).long(), reduction="sum")
    torch.testing.assert_close(step_loss_sum(logits, is_positive.float()), expected)


def test_ignored_steps_count_for_nothing_even_where_they_are_not_finite() -> None:
    logits = torch.tensor([[1.0, 0.0], [math.inf, 0.0]], requires_grad=True)
    loss = step_loss_sum(logits, torch.tensor([1.0, -100.0]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)))


def test_labels_are_strictly_above_tau() -> None:
    assert step_labels([0.0, 1 / 16, 2 / 16, 1.0]) == [0, 1, 1, 1]
    assert step_labels([0.0, 1 / 16, 2 / 16, 1.0], tau=1 / 16) == [0, 0, 1, 1]
    assert step_labels([0.0, 1 / 16, 1.0], soft=True) == [0, 1 / 16, 1]
