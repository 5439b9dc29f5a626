"""The equations by hand, against simulations, and for any rollout."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mprm.errors import DataError
from mprm.theory.equations import (
    _above_zero,
    _squared_norms,
    expected_mixture,
    flipped_mixture,
    flipped_probability,
    gradient,
    gradient_second_moment,
    mixture_bounds,
    mixture_shift,
    mixture_shift_bound,
    positive_label_probability,
    positive_probability,
    rollout_signal,
    score_variance,
    step_information,
    teacher_mixture,
    within,
)
from tests.theory.monte_carlo import agrees

rates = st.floats(0, 1)


# --- arguments


def test_ends_of_the_range_are_in_it() -> None:
    assert within("q", [0, 1], 0, 1).tolist() == [0.0, 1.0]
    assert _squared_norms([0.0, 2.5]).tolist() == [0.0, 2.5]


def test_the_first_bad_value_is_named() -> None:
    with pytest.raises(DataError, match=r"^q must lie in \[0, 1\], got 1.5$"):
        within("q", [0.5, 1.5, -2], 0, 1)
    with pytest.raises(DataError, match=r"^T must be above 0 and finite, got 0$"):
        _above_zero("T", [3, 0])


# --- the logistic teacher

numbers = st.floats(-5, 5)
vectors = st.lists(numbers, min_size=3, max_size=3)


def test_teacher_probabilities_come_out_as_by_hand() -> None:
    # <w, phi> = 2 log 3 - log 3 = log 3, so 3 / (3 + 1); and for the opposite phi 1 / 4
    w = [2 * np.log(3), np.log(3)]
    assert positive_probability([[1, -1], [-1, 1]], w) == pytest.approx([0.75, 0.25])


def test_huge_logits_neither_warn_nor_lose_a_small_probability() -> None:
    assert positive_probability([[1000.0], [-1000.0]], [1.0]).tolist() == [1.0, 0.0]
    assert positive_probability([-50.0], [1.0]) == pytest.approx(np.exp(-50), rel=1e-12)


@given(vectors, vectors, st.integers(0, 1))
def test_gradient_is_the_slope_of_the_loss(phi: list[float], w: list[float], label: int) -> None:
    def loss(w: np.ndarray) -> float:
        z = float(np.dot(phi, w))
        return float(np.logaddexp(0, -z) if label else np.logaddexp(0, z))

    step = 1e-5
    slopes = [(loss(w + step * e) - loss(w - step * e)) / (2 * step) for e in np.eye(3)]
    assert gradient(phi, label, w) == pytest.approx(np.array(slopes), abs=1e-6)


def test_gradients_broadcast_over_replicas_with_their_own_parameters() -> None:
    phi, w = np.ones((4, 2)), np.zeros((4, 2))
    assert gradient(phi, np.array([0, 1, 0, 1]), w).tolist() == [[0.5, 0.5], [-0.5, -0.5]] * 2


# --- second moment of the gradient of a step

STEP_W = np.array([0.8, -1.1, 0.4])
STEP_PHI = np.array([[0.1, 0.2, 0.3], [2.0, -1.0, 0.5], [-1.0, 1.5, 0.0], [3.0, -2.0, 1.0]])
STEP_Q = positive_probability(STEP_PHI, STEP_W)
STEP_NORM_SQ = (STEP_PHI**2).sum(-1)


def simulated_moments(eta: float, seed: int, n_draws: int = 100_000) -> np.ndarray:
    """Squared norm of the gradient at the teacher, for each draw and each of the four steps."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n_draws, len(STEP_PHI))) < STEP_Q
    flipped = rng.random(Y.shape) < eta
    return (gradient(STEP_PHI, Y ^ flipped, STEP_W) ** 2).sum(-1)


@pytest.mark.parametrize("eta", [0.0, 0.05, 0.2, 0.45, 0.9])
def test_second_moment_is_that_of_simulated_gradients(eta: float) -> None:
    assert agrees(simulated_moments(eta, seed=1), gradient_second_moment(STEP_Q, norm_sq=STEP_NORM_SQ, eta=eta))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, eta: (1 - 2 * eta) * q * (1 - q) + eta,
        lambda q, eta: (1 - 4 * eta) * q * (1 - q),
        lambda q, eta: (1 - 4 * eta) * q * (1 - q) + eta**2,
        lambda q, eta: (1 - 4 * eta) * q**2 * (1 - q) + eta,
        lambda q, eta: ((1 - 2 * eta) * q + eta) * (1 - (1 - 2 * eta) * q - eta),  # the variance: leaves out the bias
    ],
)
def test_simulation_refuses_a_wrong_moment(wrong: object) -> None:
    assert callable(wrong)
    assert not agrees(simulated_moments(0.2, seed=1), wrong(STEP_Q, 0.2) * STEP_NORM_SQ)


def test_simulation_refuses_a_norm_that_is_not_squared() -> None:
    assert not agrees(simulated_moments(0.0, seed=1), gradient_second_moment(STEP_Q, norm_sq=np.sqrt(STEP_NORM_SQ)))


def test_moments_come_out_as_by_hand() -> None:
    # 3/4 * 1/4 = 3/16; with eta 1/8, (1 - 1/2) * 3/16 + 1/8 = 7/32; both times 2
    assert gradient_second_moment(0.75, norm_sq=2.0) == 0.375
    assert gradient_second_moment(0.75, norm_sq=2.0, eta=0.125) == 0.4375


@given(rates, rates)
def test_noise_adds_its_share_of_the_squared_distance_from_even(q: float, eta: float) -> None:
    clean, noisy = gradient_second_moment(q), gradient_second_moment(q, eta=eta)
    assert noisy == pytest.approx(clean + eta * (1 - 2 * q) ** 2)
    assert clean <= 0.25


@given(rates, rates)
def test_either_label_may_be_called_positive(q: float, eta: float) -> None:
    assert gradient_second_moment(q, eta=eta) == pytest.approx(gradient_second_moment(1 - q, eta=eta))


def test_a_rate_above_half_is_not_its_complement() -> None:
    # q = 1 and eta = 0.9: nine labels in ten are wrong, each with squared residual 1
    assert gradient_second_moment(1.0, eta=0.9) == pytest.approx(0.9)
    assert gradient_second_moment(1.0, eta=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [{"q": 1.1}, {"q": float("nan")}, {"eta": -0.1}, {"eta": 2}, {"norm_sq": -1.0}])
def test_arguments_of_a_moment_are_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(DataError, match=rf"^{name} must lie in"):
        gradient_second_moment(**({"q": 0.5} | wrong))


# --- signal of a rollout

ROLLOUT_W = np.array([0.7, -0.5])
ROLLOUT_PHI = np.random.default_rng(10).normal(size=(3, 4, 2)) * 1.5
"""Three rollouts of four steps."""
ROLLOUT_ETA = np.array([[0.0, 0.1, 0.05, 0.2], [0.4, 0.3, 0.45, 0.4], [0.0, 0.0, 0.0, 0.0]])
ROLLOUT_Q = positive_probability(ROLLOUT_PHI, ROLLOUT_W)
ROLLOUT_NORM_SQ = (ROLLOUT_PHI**2).sum(-1)


def simulated_signals(seed: int, n_draws: int = 50_000) -> np.ndarray:
    """Mean squared gradient norm of each rollout and draw, less the noise that does not depend on q."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((n_draws, *ROLLOUT_Q.shape)) < ROLLOUT_Q) ^ (
        rng.random((n_draws, *ROLLOUT_Q.shape)) < ROLLOUT_ETA
    )
    moments = (gradient(ROLLOUT_PHI, labels, ROLLOUT_W) ** 2).sum(-1).mean(-1)
    return moments - (ROLLOUT_ETA * ROLLOUT_NORM_SQ).mean(-1)


def test_signal_is_what_noise_leaves_of_simulated_gradients() -> None:
    assert agrees(simulated_signals(11), rollout_signal(ROLLOUT_Q, eta=ROLLOUT_ETA, norm_sq=ROLLOUT_NORM_SQ))


@pytest.mark.parametrize("factor", [0, 2, 8])
def test_simulation_refuses_another_weight_of_noise(factor: int) -> None:
    wrong = ((1 - factor * ROLLOUT_ETA) * ROLLOUT_Q * (1 - ROLLOUT_Q) * ROLLOUT_NORM_SQ).mean(-1)
    assert not agrees(simulated_signals(11), wrong)


def test_simulation_refuses_the_mean_rate_in_place_of_each_steps_own() -> None:
    wrong = rollout_signal(ROLLOUT_Q, eta=ROLLOUT_ETA.mean(-1, keepdims=True), norm_sq=ROLLOUT_NORM_SQ)
    assert not agrees(simulated_signals(11), wrong)


def test_signals_come_out_as_by_hand() -> None:
    # (1 * 1/4 * 2 + (1 - 1/2) * 3/16 * 4) / 2 = (1/2 + 3/8) / 2
    assert rollout_signal([0.5, 0.25], eta=[0.0, 0.125], norm_sq=[2.0, 4.0]) == 0.4375


def test_signal_is_negative_for_noise_above_a_quarter_and_then_falls_with_uncertainty() -> None:
    # (1 - 1.6) * 1/4 = -0.15; (1 - 1.6) * 0.09 = -0.054
    assert rollout_signal([[0.5], [0.9]], eta=0.4) == pytest.approx([-0.15, -0.054])


steps = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 9)), min_size=1, max_size=10)


@given(steps)
def test_signal_and_noise_are_the_mean_second_moment(rows: list[tuple[float, float, float]]) -> None:
    q, eta, norm_sq = np.array(rows).T
    noise = (eta * norm_sq).mean()
    whole = gradient_second_moment(q, eta=eta, norm_sq=norm_sq).mean()
    assert rollout_signal(q, eta=eta, norm_sq=norm_sq) + noise == pytest.approx(whole, abs=1e-12)


@given(steps)
def test_signal_is_at_most_the_information_without_noise(rows: list[tuple[float, float, float]]) -> None:
    q, eta, norm_sq = np.array(rows).T
    clean = step_information(q, norm_sq=norm_sq)
    assert rollout_signal(q, eta=0.0, norm_sq=norm_sq) == pytest.approx(clean)
    assert rollout_signal(q, eta=eta, norm_sq=norm_sq) <= clean + 1e-12


def test_arguments_of_a_signal_are_refused() -> None:
    with pytest.raises(DataError, match=r"^q must hold one probability for each step"):
        rollout_signal([], eta=0.1)
    with pytest.raises(DataError, match=r"^eta must"):
        rollout_signal([0.5], eta=1.5)
    with pytest.raises(DataError, match=r"^norm_sq must"):
        rollout_signal([0.5], eta=0.1, norm_sq=float("inf"))


# --- mixture of the labels of a rollout

MIXTURE_Q = np.array([[0.9, 0.8, 0.5, 0.1], [0.5, 0.5, 0.5, 0.5], [0.99, 0.95, 0.9, 0.9], [0.0, 1.0, 0.3, 0.6]])

rollouts = st.lists(st.floats(0, 1), min_size=1, max_size=12)
short_rollouts = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def simulated_mixtures(seed: int, n_draws: int = 100_000) -> np.ndarray:
    """Mixture of the labels of each draw of each rollout."""
    rng = np.random.default_rng(seed)
    p_hat = (rng.random((n_draws, *MIXTURE_Q.shape)) < MIXTURE_Q).mean(-1)
    return p_hat * (1 - p_hat)


def test_expectation_is_the_mean_mixture_of_simulated_labels() -> None:
    assert agrees(simulated_mixtures(seed=2), expected_mixture(MIXTURE_Q))


@pytest.mark.parametrize("power", [0, 2, None])
def test_simulation_refuses_another_power_of_n(power: int | None) -> None:
    n = MIXTURE_Q.shape[-1]
    bias = 0.0 if power is None else step_information(MIXTURE_Q) / n**power  # right: 1
    assert not agrees(simulated_mixtures(seed=2), teacher_mixture(MIXTURE_Q) - bias)


def test_simulated_mixtures_keep_to_the_bounds() -> None:
    draws = simulated_mixtures(seed=3)
    mean, error = draws.mean(0), 4.5 * draws.std(0) / np.sqrt(len(draws))
    low, high = mixture_bounds(MIXTURE_Q)
    assert np.all((low - error <= mean) & (mean <= high + error))
    too_low = teacher_mixture(MIXTURE_Q) * (1 - 1 / MIXTURE_Q.shape[-1] ** 2)  # as if the bias were O(1/n^2)
    assert not np.all(too_low - error <= mean)
    assert not np.all(mean <= step_information(MIXTURE_Q) + error)  # A(x) is no upper bound


@given(short_rollouts)
@settings(deadline=None)
def test_expectation_is_the_sum_over_all_labellings(q: list[float]) -> None:
    total = 0.0
    for labels in product([0, 1], repeat=len(q)):
        probability = np.prod([p if y else 1 - p for p, y in zip(q, labels, strict=True)])
        p_hat = sum(labels) / len(q)
        total += float(probability) * p_hat * (1 - p_hat)
    assert expected_mixture(q) == pytest.approx(total, abs=1e-12)


@given(rollouts)
def test_expectation_lies_between_its_bounds(q: list[float]) -> None:
    low, high = mixture_bounds(q)
    assert low - 1e-12 <= expected_mixture(q) <= high + 1e-12
    assert step_information(q) <= teacher_mixture(q) + 1e-12
    assert teacher_mixture(q) - expected_mixture(q) <= 1 / (4 * len(q)) + 1e-12


def test_both_bounds_are_reached() -> None:
    assert expected_mixture([0.3] * 5) == pytest.approx(mixture_bounds([0.3] * 5)[0])
    assert expected_mixture([0.0, 1.0, 1.0]) == pytest.approx(mixture_bounds([0.0, 1.0, 1.0])[1])


@given(rollouts, st.lists(st.floats(0.5, 8), min_size=12, max_size=12))
def test_norms_change_the_information_by_no_more_than_their_range(q: list[float], norms: list[float]) -> None:
    norm_sq = norms[: len(q)]
    A, A_full = step_information(q), step_information(q, norm_sq=norm_sq)
    assert min(norm_sq) * A - 1e-12 <= A_full <= max(norm_sq) * A + 1e-12


def test_mixtures_come_out_as_by_hand() -> None:
    q = [0.25, 0.75, 0.5]
    # q_bar = 1/2: theta = 1/4; A = (3/16 + 3/16 + 4/16) / 3 = 10/48; E = 1/4 - 10/144 = 13/72
    assert teacher_mixture(q) == pytest.approx(0.25)
    assert step_information(q) == pytest.approx(10 / 48)
    assert expected_mixture(q) == pytest.approx(13 / 72)
    # norms 4, 0, 1: (4 * 3/16 + 0 + 1/4) / 3 = 1/3
    assert step_information(q, norm_sq=[4, 0, 1]) == pytest.approx(1 / 3)


def test_one_step_is_never_mixed() -> None:
    assert expected_mixture([0.4]) == pytest.approx(0)


@pytest.mark.parametrize("q", [[], 0.5, [0.5, 1.5], [float("nan")]])
def test_rollouts_without_steps_or_probabilities_are_refused(q: object) -> None:
    for function in (step_information, teacher_mixture, expected_mixture, mixture_bounds):
        with pytest.raises(DataError, match=r"^q must"):
            function(q)  # type: ignore[operator]


# --- flipped labels

FLIPPED_Q = np.array([0.95, 0.9, 0.8, 0.3, 0.6])
FLIP_RATE = 0.15

mixtures = st.floats(0, 0.25)


def flipped_labels(seed: int, n_draws: int = 100_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((n_draws, len(FLIPPED_Q))) < FLIPPED_Q) ^ (rng.random((n_draws, len(FLIPPED_Q))) < FLIP_RATE)


def test_flipped_probability_is_the_share_of_simulated_positives() -> None:
    labels = flipped_labels(seed=4)
    assert agrees(labels, flipped_probability(FLIPPED_Q, eta=FLIP_RATE))
    assert not agrees(labels, (1 - FLIP_RATE) * FLIPPED_Q + FLIP_RATE)  # flips of negative labels only
    assert not agrees(labels, (1 - 2 * FLIP_RATE) * FLIPPED_Q)


def simulated_theta(seed: int) -> np.ndarray:
    """Unbiased for theta~: from two independent labellings of the rollout, p (1 - p')."""
    return flipped_labels(seed).mean(-1) * (1 - flipped_labels(seed + 1).mean(-1))


def test_flipped_mixture_is_that_of_simulated_labels() -> None:
    theta = teacher_mixture(FLIPPED_Q)
    assert agrees(simulated_theta(5), flipped_mixture(theta, eta=FLIP_RATE))
    assert agrees(simulated_theta(5), theta + mixture_shift(theta, eta=FLIP_RATE))


@pytest.mark.parametrize("wrong", ["first power", "no offset", "offset eta", "no noise"])
def test_simulation_refuses_a_wrong_mixture(wrong: str) -> None:
    theta, offset = teacher_mixture(FLIPPED_Q), FLIP_RATE * (1 - FLIP_RATE)
    predicted = {
        "first power": (1 - 2 * FLIP_RATE) * theta + offset,
        "no offset": (1 - 2 * FLIP_RATE) ** 2 * theta,
        "offset eta": (1 - 2 * FLIP_RATE) ** 2 * theta + FLIP_RATE,
        "no noise": theta,
    }
    assert not agrees(simulated_theta(5), predicted[wrong])


def test_observed_mixture_of_flipped_labels_is_the_lemma_with_flipped_probabilities() -> None:
    p_hat = flipped_labels(seed=7).mean(-1)
    assert agrees(p_hat * (1 - p_hat), expected_mixture(flipped_probability(FLIPPED_Q, eta=FLIP_RATE)))
    # the clean steps' information gives the wrong bias
    wrong = flipped_mixture(teacher_mixture(FLIPPED_Q), eta=FLIP_RATE) - step_information(FLIPPED_Q) / len(FLIPPED_Q)
    assert not agrees(p_hat * (1 - p_hat), wrong)


@given(st.lists(rates, min_size=1, max_size=10), rates)
def test_flipped_mixture_is_the_mixture_of_flipped_probabilities(q: list[float], eta: float) -> None:
    direct = teacher_mixture(flipped_probability(q, eta=eta))
    assert flipped_mixture(teacher_mixture(q), eta=eta) == pytest.approx(direct, abs=1e-12)


@given(mixtures, rates)
def test_shift_keeps_to_the_papers_bound_and_to_half_of_it(theta: float, eta: float) -> None:
    shift = flipped_mixture(theta, eta=eta) - theta
    assert abs(shift) <= mixture_shift_bound(theta, eta=eta) + 1e-12
    assert mixture_shift_bound(theta, eta=eta) <= 2 * eta + 1e-12
    assert shift == pytest.approx(mixture_shift(theta, eta=eta), abs=1e-12)
    assert -1e-12 <= shift <= eta * (1 - eta) + 1e-12


def test_a_bound_of_higher_order_in_eta_fails() -> None:
    assert flipped_mixture(0.0, eta=0.1) - 0.0 > 2 * 0.1**2  # 0.09, above 0.02


def test_flipped_mixtures_come_out_as_by_hand() -> None:
    # theta = 3/16, eta = 1/4: 3/64 + 3/16 = 15/64; shift 3/16 * 1/4 = 3/64; bound 3/16 + 3/16
    assert flipped_mixture(0.1875, eta=0.25) == 15 / 64
    assert mixture_shift(0.1875, eta=0.25) == 3 / 64
    assert mixture_shift_bound(0.1875, eta=0.25) == 0.375
    assert flipped_mixture([0.0, 0.1, 0.25], eta=0.5).tolist() == [0.25] * 3


def test_arguments_of_flips_are_refused() -> None:
    for function in (flipped_mixture, mixture_shift, mixture_shift_bound):
        with pytest.raises(DataError, match=r"^theta must lie in \[0, 0.25\], got 0.3"):
            function(0.3, eta=0.1)
    with pytest.raises(DataError, match=r"^eta must lie in"):
        flipped_probability(0.3, eta=1.1)


# --- labels and scores of Monte Carlo continuations

R = np.array([0.01, 0.05, 0.2, 0.4])  # even 0.4 fails 16 times in some of the draws: 50,000 * 0.6^16 = 14


def successes(n_mc: int, seed: int, n_draws: int = 50_000) -> np.ndarray:
    """Successful continuations of each draw of each step, each continuation drawn."""
    rng = np.random.default_rng(seed)
    return sum((rng.random((n_draws, len(R))) < R for _ in range(n_mc)), start=np.zeros((n_draws, len(R))))


@pytest.mark.parametrize("n_mc", [1, 4, 16])
def test_probability_is_the_share_of_simulated_positive_labels(n_mc: int) -> None:
    labels = successes(n_mc, seed=8) > 0
    assert agrees(labels, positive_label_probability(R, n_mc))
    assert not agrees(labels, positive_label_probability(R, n_mc + 1))
    assert not agrees(labels, 1 - (1 - R) ** (n_mc / 2))


def test_simulation_refuses_the_probability_that_all_continuations_succeed() -> None:
    assert not agrees(successes(4, seed=8) > 0, R**4)


@pytest.mark.parametrize("n_mc", [2, 16])
def test_scores_have_the_simulated_mean_and_variance(n_mc: int) -> None:
    scores = successes(n_mc, seed=9) / n_mc
    assert agrees(scores, R)
    assert agrees((scores - R) ** 2, score_variance(R, n_mc))
    assert not agrees((scores - R) ** 2, R * (1 - R) / n_mc**2)
    assert not agrees((scores - R) ** 2, R * (1 - R))


def test_positive_labels_come_out_as_by_hand() -> None:
    # 1 - (3/4)^2 = 7/16; 1 - (1/2)^16 = 65535/65536; variance 3/16 / 4 = 3/64
    assert positive_label_probability([0.25, 0.5], [2, 16]) == pytest.approx([7 / 16, 65535 / 65536])
    assert score_variance(0.25, 4) == 3 / 64


def test_ends_are_exact_and_a_tiny_probability_is_kept() -> None:
    assert positive_label_probability([0.0, 1.0], 16).tolist() == [0.0, 1.0]
    assert positive_label_probability(1e-20, 16) == pytest.approx(1.6e-19)


@given(st.floats(0, 0.5), st.floats(1e-3, 0.5), st.integers(1, 32))
def test_probability_rises_with_the_success_rate_and_with_continuations(r: float, more: float, n_mc: int) -> None:
    here = positive_label_probability(r, n_mc)
    assert here <= positive_label_probability(r, n_mc + 1)
    assert here <= positive_label_probability(r + more, n_mc)
    assert r - 1e-12 <= here <= min(1, n_mc * r) + 1e-12  # never below one try, never above the union bound


def test_probability_rises_strictly_over_a_grid() -> None:
    assert np.all(np.diff(positive_label_probability(np.linspace(0, 0.8, 100), 16)) > 0)


@pytest.mark.parametrize(
    ("r", "n_mc", "message"), [(1.2, 4, "r must"), (0.5, 0, "N must be above 0"), (0.5, 2.5, "whole")]
)
def test_arguments_of_positive_labels_are_refused(r: float, n_mc: float, message: str) -> None:
    for function in (positive_label_probability, score_variance):
        with pytest.raises(DataError, match=message):
            function(r, n_mc)
