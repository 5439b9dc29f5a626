"""Corpora that lie on the edge of what can be fitted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mprm.cli.theory import run
from mprm.errors import ConfigError, DataError
from mprm.theory import fit_beta, fit_corpus
from tests.conftest import write_jsonl


def rollout(counts: Sequence[int], of: int = 16, **kept: Any) -> dict[str, Any]:
    steps = [{"step": "s", "score": k / of, "num_mc_correct": k, "num_mc_total": of} for k in counts]
    return {"question": "?", "steps_with_score": steps, **kept}


def test_a_likelihood_that_rises_to_the_end_is_refused_wherever_the_search_would_stop() -> None:
    rng = np.random.default_rng(5)
    for N in (2, 16, 64) * 10:
        k = rng.binomial(N, rng.beta(2000, 2000, 40))
        n = np.full(40, N)
        try:
            a, b = fit_beta(k, n)
        except DataError:
            continue
        # a real maximum: both ways along the ridge the likelihood is lower
        from scipy.special import betaln

        def likelihood(times: float, a: float = a, b: float = b, k: Any = k, n: Any = n) -> float:
            return float(np.sum(betaln(times * a + k, times * b + n - k) - betaln(times * a, times * b)))

        assert likelihood(1.0) >= max(likelihood(1e4 / max(a, b)), likelihood(0.5)), (N, a, b)


def test_one_rollout_tells_no_interval() -> None:
    with pytest.raises(DataError, match="only one rollout"):
        fit_corpus([rollout([0, 4, 8, 12, 16, 16, 16])], text_only=True)


def test_few_rollouts_have_intervals_that_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    n_held, n_fitted = 0, 0
    for _ in range(60):
        rates = np.repeat(rng.beta(1.5, 0.5, (3, 1)), 5, axis=1)  # the steps of a rollout are all alike
        try:
            found = fit_corpus([rollout(row.tolist()) for row in rng.binomial(16, rates)], text_only=True)
        except DataError:
            continue
        assert found.total.prior is not None
        low, high = found.total.prior.a_interval
        n_held, n_fitted = n_held + (low <= 1.5 <= high), n_fitted + 1
    assert n_fitted > 40
    assert n_held / n_fitted > 0.8


def test_a_score_that_no_count_gives_is_named_with_its_line(tmp_path: Path) -> None:
    bad = rollout([1, 2, 3], 3)
    for step in bad["steps_with_score"]:
        step["score"] = round(step["score"], 2)
        del step["num_mc_correct"]
    write_jsonl(tmp_path / "good.jsonl", [rollout([0, 1, 2, 3], 3)] * 3)
    path = write_jsonl(tmp_path / "odd.jsonl", [rollout([0, 3], 3), rollout([2], 3), bad])
    with pytest.raises(DataError, match=rf"^{path}:3: a step has score 0\.33 of 3 continuations"):
        fit_corpus(tmp_path, text_only=True)


def test_continuations_that_were_given_are_not_called_inferred(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"question": "?", "steps_with_score": [{"step": "s", "score": k / 8} for k in (0, 1, 5, 8)]}] * 20
    path = str(write_jsonl(tmp_path / "a.jsonl", records))
    assert fit_corpus(path, text_only=True).total.is_inferred
    assert not fit_corpus(path, text_only=True, continuations=16).total.is_inferred
    assert run(["fit", path, "--text-only", "--continuations", "16"]) == 0
    assert "coarsest grid" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="continuations must be"):
        fit_corpus(path, text_only=True, continuations=10**21)


def test_a_source_s_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [rollout([0, 4, 8, 12, 16], source="good")] * 9 + [rollout([16], source="\x1b[2Jones")] * 3
    write_jsonl(tmp_path / "a.jsonl", records)
    assert run(["fit", str(tmp_path), "--text-only"]) == 0
    out = capsys.readouterr().out
    assert "every continuation succeeds" in out
    assert "\x1b[2J" not in out
