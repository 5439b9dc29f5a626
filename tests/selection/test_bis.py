import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import mprm
from mprm.cli.main import run
from mprm.errors import ConfigError, DataError
from tests.conftest import raw_record, write_jsonl

CASES = [
    # n 10, n_pos 4: (0.4 * 0.6 + 0.05) * (0.875 + 0.875 + 0.9375 + 0.875) / 4 = 0.29 * 0.890625
    ([0.875, 0.875, 0.9375, 0.875, 0, 0, 0, 0, 0, 0], 0.25828125),
    # n 8, n_pos 4: (0.25 + 0.05) * (0.5625 + 0.6875 + 0.6875 + 0.0625) / 4 = 0.3 * 0.5
    ([0.5625, 0.6875, 0.6875, 0.0625, 0, 0, 0, 0], 0.15),
    # n 9, n_pos 6: (2/9 + 0.05) * 0.0625
    ([0.0625, 0.0625, 0.0625, 0.0625, 0, 0.0625, 0.0625, 0, 0], 0.0170138889),
]


@pytest.mark.parametrize(("scores", "expected"), CASES)
def test_the_papers_case_studies_come_out(scores: list[float], expected: float) -> None:
    assert mprm.bis(scores, alpha=0.05) == pytest.approx(expected, abs=5e-11)


def test_the_papers_case_studies_come_out_of_the_score_command(tmp_path: Path) -> None:
    records = [raw_record([float(s) for s in scores], number=i) for i, (scores, _) in enumerate(CASES)]
    path = write_jsonl(tmp_path / "mavis.jsonl", records)
    assert run(["score", str(path), "--out", str(tmp_path / "scores.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [row["bis"] for row in rows] == [pytest.approx(expected, abs=5e-11) for _, expected in CASES]
    assert [row["line"] for row in rows] == [1, 2, 3]


def test_all_negative_rollout_has_reliability_one() -> None:
    assert mprm.reliability([0.0, 0.0]) == 1.0
    assert mprm.bis([0.0, 0.0], alpha=0.05) == 0.05


def test_a_step_at_tau_is_negative() -> None:
    # tau 0.5: only 0.75 is positive, p_pos = 1/3, R = 0.75
    assert mprm.positive_fraction([0.75, 0.5, 0.0], tau=0.5) == 1 / 3
    assert mprm.reliability([0.75, 0.5, 0.0], tau=0.5) == 0.75


@pytest.mark.parametrize("scores", [[], [1.25], [-0.1], [float("nan")]])
def test_bad_scores_are_refused(scores: list[float]) -> None:
    with pytest.raises(DataError):
        mprm.bis(scores)


def test_negative_alpha_is_refused() -> None:
    with pytest.raises(ConfigError):
        mprm.bis([1.0], alpha=-0.1)


counts = st.lists(st.integers(0, 16), min_size=1, max_size=20)


@given(counts, st.floats(0, 2))
def test_bis_lies_in_its_range(ks: list[int], alpha: float) -> None:
    value = mprm.bis([k / 16 for k in ks], alpha=alpha)
    assert 0 <= value <= 0.25 + alpha + 1e-12


@given(counts, st.randoms())
def test_step_order_leaves_bis_unchanged(ks: list[int], rng) -> None:
    scores = [k / 16 for k in ks]
    mixed_up = list(scores)
    rng.shuffle(mixed_up)
    assert mprm.bis(scores) == mprm.bis(mixed_up)


@given(counts)
def test_bis_is_its_parts(ks: list[int]) -> None:
    scores = [k / 16 for k in ks]
    assert mprm.bis(scores, alpha=0.05) == (mprm.mixture(scores) + 0.05) * mprm.reliability(scores)
