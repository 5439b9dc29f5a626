"""Monte-Carlo labels of a corpus of the lab, beside the truth of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import betabinom

from mprm.errors import DataError
from mprm.theory import eta_eff, fit_beta
from mprm_lab.corpus_truth import corpus_truth
from mprm_lab.world import judge_step, problem, solution
from tests.conftest import write_jsonl


def record(steps: list[tuple[str, int]], *, image: str = "grid-sum/3.png", of: int = 4) -> dict[str, Any]:
    scored = [{"step": text, "score": k / of, "num_mc_correct": k, "num_mc_total": of} for text, k in steps]
    return {"image": image, "question": "?", "steps_with_score": scored, "num_mc_sequences": of}


def test_steps_are_counted_by_their_successes_and_their_truth(tmp_path: Path) -> None:
    one = problem("grid-sum", 3)
    right = next(text for text in solution(one) if judge_step(one, text) == "correct")
    neutral, wrong = "Let us go on.", "Row 9 is on the moon."
    assert [judge_step(one, text) for text in (neutral, wrong)] == ["neutral", "incorrect"]
    records = [record([(right, 4), (neutral, 4), (wrong, 1)]), record([(right, 3), (wrong, 0), (wrong, 1)])]
    path = write_jsonl(tmp_path / "corpus.jsonl", records)
    seen: list[None] = []
    found = corpus_truth(path, on_rollout=lambda: seen.append(None))
    assert len(seen) == 2
    assert found.N == 4
    told = [(row.k, row.n_steps, row.n_wrong, row.n_neutral, row.wrong_share) for row in found.rows]
    assert told == [(0, 1, 1, 0, 1.0), (1, 2, 2, 0, 1.0), (2, 0, 0, 0, None), (3, 1, 0, 0, 0.0), (4, 2, 0, 1, 0.0)]
    a, b = fit_beta([0, 1, 3, 4], [4] * 4, counts=[1, 2, 1, 2])
    assert [row.eta_eff for row in found.rows] == pytest.approx(eta_eff(range(5), 4, tau=0.5, a=a, b=b).tolist())


def test_a_beginning_that_comes_up_twice_is_foretold_by_its_first_count(tmp_path: Path) -> None:
    records = [
        record([("a", 3), ("b", 2)]),
        record([("a", 1), ("c", 0)]),
        record([("a", 4), ("b", 2)]),  # a third "a" is not used; a second "a", "b" is
        record([("a", 0)], image="grid-sum/4.png"),  # of another problem
    ]
    found = corpus_truth(write_jsonl(tmp_path / "corpus.jsonl", records))
    # "a" had 3, then 1 of 4, which is below a half; "a", "b" had 2, then 2, which is not
    assert [(row.k, row.n_again, row.n_below) for row in found.rows if row.n_again] == [(2, 1, 0), (3, 1, 1)]
    a, b = fit_beta([0, 1, 2, 3, 4], [4] * 5, counts=[2, 1, 2, 1, 1])
    expected = betabinom.cdf(1, 4, a + 3, b + 1)
    assert found.rows[3].below == pytest.approx(expected)


def test_a_corpus_that_no_prior_fits_has_no_expectation(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [record([("All right.", 4)])] * 2)
    assert [row.eta_eff for row in corpus_truth(path).rows] == [None] * 5


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record([("a", 1)], image="photo.png")], "names no problem of the lab"),
        ([record([("a", 1)]), record([("a", 1)], of=8)], r"expected one number of continuations, found \[4, 8\]"),
        ([record([("a", 1)]) | {"image": ["grid-sum/3.png", "grid-sum/4.png"]}], "has 2 images"),
    ],
)
def test_what_is_no_corpus_of_the_lab_is_refused(records: list[dict[str, Any]], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        corpus_truth(write_jsonl(tmp_path / "corpus.jsonl", records))


def test_a_corpus_without_counts_is_refused(tmp_path: Path) -> None:
    scored = [{"step": "a", "score": 0.5}, {"step": "b", "score": 1.0}]
    path = write_jsonl(
        tmp_path / "corpus.jsonl", [{"image": "grid-sum/3.png", "question": "?", "steps_with_score": scored}]
    )
    with pytest.raises(DataError, match="has no counts"):
        corpus_truth(path)
