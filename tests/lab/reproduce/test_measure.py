"""What a reward model and the corpus's labels are worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom

from mprm.errors import DataError
from mprm.evaluation import ScoredSolution, StepTable
from mprm.theory import eta_eff, fit_beta
from mprm_lab.reproduce.measure import (
    auc_at_same_position,
    corpus_truth,
    of_source,
    own_thresholds,
    step_metrics,
)
from mprm_lab.world import judge_step, problem, solution
from tests.conftest import write_jsonl


def table_of(levels: dict[str, tuple[float, float]], n: int = 20) -> StepTable:
    """Of each source, solutions of a correct and an incorrect step with these scores."""
    return StepTable.of(
        [
            ScoredSolution(
                id=f"{source}/{number}",
                source=source,
                problem=f"{source}/{number}",
                labels=(1, -1),
                first_error=1,
                scores=scores,
            )
            for number in range(n)
            for source, scores in levels.items()
        ]
    )


def test_sources_on_different_scales_are_told_apart_by_thresholds_of_their_own() -> None:
    table = table_of({"low": (0.3, 0.1), "high": (0.9, 0.7)})
    assert step_metrics(table)["held_out"]["overall"] < 0.7
    assert own_thresholds(table) == {"overall": 1.0, "auc": 1.0}


def test_a_single_source_comes_to_what_it_comes_to_with_one_threshold() -> None:
    rng = np.random.default_rng(0)
    table = table_of({"one": (0.0, 0.0)}, n=50)
    table = replace(table, scores=np.round(rng.random(100) + 0.4 * (table.labels == 1), 2))
    metrics = own_thresholds(table)
    assert metrics is not None
    plain = step_metrics(table)["held_out"]
    assert [metrics["overall"], metrics["auc"]] == pytest.approx([plain["overall"], plain["auc"]], abs=1e-6)


def test_sources_count_by_their_steps() -> None:
    both = table_of({"right": (0.9, 0.1), "reversed": (0.1, 0.9)})
    is_kept = (both.source == 0) | (both.problem < 20)  # 20 solutions of the one, 10 of the other
    kept = is_kept[both.solution]
    table = replace(
        both,
        scores=both.scores[kept],
        labels=both.labels[kept],
        solution=np.repeat(np.arange(is_kept.sum()), 2),
        first_error=both.first_error[is_kept],
        source=both.source[is_kept],
        problem=np.arange(is_kept.sum()),
        problems=tuple(map(str, range(is_kept.sum()))),
    )
    metrics = own_thresholds(table)
    assert metrics is not None
    assert metrics["auc"] == pytest.approx(2 / 3, abs=1e-6)


def test_a_source_of_too_few_problems_leaves_no_value() -> None:
    assert own_thresholds(table_of({"one": (0.9, 0.1)}, n=4)) is None


def test_the_solutions_of_a_source_keep_their_steps_and_problems() -> None:
    table = table_of({"a": (0.3, 0.1), "b": (0.9, 0.7)}, n=6)
    of_b = of_source(table, 1)
    assert of_b.sources == ("b",)
    assert of_b.problems == tuple(f"b/{number}" for number in range(6))
    assert of_b.scores.tolist() == [0.9, 0.7] * 6
    assert of_b.solution.tolist() == [number for number in range(6) for _ in range(2)]


def table(*solutions: tuple[str, list[int], list[float]]) -> StepTable:
    return StepTable.of(
        [
            ScoredSolution(
                id=str(n), source=source, problem=str(n), labels=tuple(labels), first_error=None, scores=tuple(scores)
            )
            for n, (source, labels, scores) in enumerate(solutions)
        ]
    )


def test_a_model_that_knows_positions_alone_is_at_chance() -> None:
    # later steps are wrong more often and score lower; at one position all scores are alike
    rng = np.random.default_rng(0)
    solutions = [
        (
            "a",
            [1 if rng.random() > 0.2 * index else -1 for index in range(5)],
            [1 - 0.2 * index for index in range(5)],
        )
        for _ in range(200)
    ]
    assert auc_at_same_position(table(*solutions)) == 0.5


def test_positions_count_by_their_rarer_label() -> None:
    auc = auc_at_same_position(
        table(
            ("a", [1, 1], [0.9, 0.4]),
            ("a", [-1, -1], [0.1, 0.5]),
            ("a", [-1, 1], [0.2, 0.3]),
            ("a", [1, 0], [0.8, 0.9]),  # the neutral step does not count
            ("b", [-1], [0.99]),  # the only one of its source
        )
    )
    # position 0: all told apart, two of each; position 1: one incorrect above both correct ones
    assert auc == pytest.approx((2 * 1.0 + 1 * 0.0) / 3)


def test_without_a_position_that_has_both_there_is_none() -> None:
    assert auc_at_same_position(table(("a", [1, -1], [0.9, 0.1]))) is None


def record(steps: list[tuple[str, int]], *, image: str = "grid-sum/3.png", of: int = 4) -> dict[str, Any]:
    scored = [{"step": text, "score": k / of, "num_mc_correct": k, "num_mc_total": of} for text, k in steps]
    return {"image": image, "question": "?", "steps_with_score": scored, "num_mc_sequences": of}


def test_steps_are_counted_by_their_successes_and_their_truth(tmp_path: Path) -> None:
    example = problem("grid-sum", 3)
    right = next(text for text in solution(example) if judge_step(example, text) == "correct")
    neutral, wrong = "Let us go on.", "Row 9 is on the moon."
    assert [judge_step(example, text) for text in (neutral, wrong)] == ["neutral", "incorrect"]
    records = [record([(right, 4), (neutral, 4), (wrong, 1)]), record([(right, 3), (wrong, 0), (wrong, 1)])]
    path = write_jsonl(tmp_path / "corpus.jsonl", records)
    truth = corpus_truth(path)
    assert truth["N"] == 4
    counts = [tuple(row[name] for name in ("k", "n_steps", "n_wrong", "n_neutral")) for row in truth["rows"]]
    assert counts == [(0, 1, 1, 0), (1, 2, 2, 0), (2, 0, 0, 0), (3, 1, 0, 0), (4, 2, 0, 1)]
    a, b = fit_beta([0, 1, 3, 4], [4] * 4, counts=[1, 2, 1, 2])
    assert [row["eta_eff"] for row in truth["rows"]] == pytest.approx(
        eta_eff(range(5), 4, tau=0.5, a=a, b=b).tolist()
    )


def test_a_prefix_that_comes_up_twice_is_predicted_from_its_first_count(tmp_path: Path) -> None:
    records = [
        record([("a", 3), ("b", 2)]),
        record([("a", 1), ("c", 0)]),
        record([("a", 4), ("b", 2)]),  # a third "a" is not used; a second "a", "b" is
        record([("a", 0)], image="grid-sum/4.png"),  # of another problem
    ]
    truth = corpus_truth(write_jsonl(tmp_path / "corpus.jsonl", records))
    # "a" had 3, then 1 of 4, which is below a half; "a", "b" had 2, then 2, which is not
    assert [(row["k"], row["n_again"], row["n_below"]) for row in truth["rows"] if row["n_again"]] == [
        (2, 1, 0),
        (3, 1, 1),
    ]
    a, b = fit_beta([0, 1, 2, 3, 4], [4] * 5, counts=[2, 1, 2, 1, 1])
    expected = betabinom.cdf(1, 4, a + 3, b + 1)
    assert truth["rows"][3]["below"] == pytest.approx(expected)


def test_a_corpus_that_no_prior_fits_has_no_expectation(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [record([("All right.", 4)])] * 2)
    assert [row["eta_eff"] for row in corpus_truth(path)["rows"]] == [None] * 5


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
