"""The simulated corpora, and students of them."""

from __future__ import annotations

import numpy as np
import pytest

import mprm
from mprm_lab.theory.selection import World, annotated_rollouts, quality, subset, train


def test_success_rates_follow_the_world() -> None:
    world = World(correlation=0.6)
    rollouts = annotated_rollouts(np.random.default_rng(0), world, 4000)
    r, is_right = rollouts.r[rollouts.is_step], rollouts.r[rollouts.is_step] >= world.tau
    assert is_right.mean() == pytest.approx(rollouts.q[rollouts.is_step].mean(), abs=0.01)
    assert rollouts.k[rollouts.is_step].mean() == pytest.approx(world.N * r.mean(), rel=0.01)
    # features before they are cut have correlation 0.6 between steps of a rollout
    first, second = rollouts.phi[:, 0, 1:].ravel(), rollouts.phi[:, 1, 1:].ravel()
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0.6, abs=0.02)
    lengths = rollouts.is_step.sum(axis=1)
    assert (lengths.min(), lengths.max()) == world.n_steps


def test_subsets_are_those_of_the_package_s_own_score() -> None:
    rollouts = annotated_rollouts(np.random.default_rng(1), World(), 300)
    chosen = subset(rollouts.label_counts(), "bis", 30, alpha=0.05, seed=0)
    scores = [mprm.bis(k[is_step] / 16, alpha=0.05) for k, is_step in zip(rollouts.k, rollouts.is_step, strict=True)]
    left = np.setdiff1d(np.arange(300), chosen)
    assert len(chosen) == 30
    assert min(scores[i] for i in chosen) >= max(scores[i] for i in left)


def test_the_teacher_has_no_risk_and_the_null_student_has_that_of_a_guess() -> None:
    held_out = annotated_rollouts(np.random.default_rng(2), World(), 500)
    d = len(held_out.world.w_star)
    metrics = quality(np.stack([held_out.world.w_star, np.zeros(d)]), held_out)
    assert metrics["risk"][0] == pytest.approx(0, abs=1e-12)
    assert metrics["f1"][0] == pytest.approx(0, abs=1e-12)
    q = held_out.q[held_out.is_step]
    z = np.log(q / (1 - q))
    best = np.mean(np.logaddexp(0, z) - q * z)
    assert metrics["risk"][1] == pytest.approx(np.log(2) - best)
    # with the best intercept a student without features knows the share of right steps
    p = q.mean()
    assert metrics["refitted_risk"][1] == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p) - best)


def test_a_student_takes_the_mean_gradient_of_a_rollout() -> None:
    phi = np.array([[[[1.0, 2.0], [1.0, 0.0], [9.0, 9.0]]]])
    labels, is_step = np.array([[[True, False, True]]]), np.array([[[True, True, False]]])
    # from 0, residuals are -1/2 and 1/2: the mean gradient is (0, -1/2), and the third is no step
    assert train(phi, labels, is_step) == pytest.approx(np.array([[0.0, 0.5]]))
