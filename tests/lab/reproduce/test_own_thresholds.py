from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mprm.evaluation.step_table import ScoredSolution, StepTable, step_table
from mprm_lab.reproduce.measure_cell import step_metrics
from mprm_lab.reproduce.own_thresholds import of_source, own_thresholds


def table_of(levels: dict[str, tuple[float, float]], n: int = 20) -> StepTable:
    """Of each source, solutions of a correct and an incorrect step with these scores."""
    return step_table(
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
    found = own_thresholds(table)
    assert found is not None
    plain = step_metrics(table)["held_out"]
    assert [found["overall"], found["auc"]] == pytest.approx([plain["overall"], plain["auc"]], abs=1e-6)


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
    found = own_thresholds(table)
    assert found is not None
    assert found["auc"] == pytest.approx(2 / 3, abs=1e-6)


def test_a_source_of_too_few_problems_leaves_no_value() -> None:
    assert own_thresholds(table_of({"one": (0.9, 0.1)}, n=4)) is None


def test_the_solutions_of_a_source_keep_their_steps_and_problems() -> None:
    table = table_of({"a": (0.3, 0.1), "b": (0.9, 0.7)}, n=6)
    one = of_source(table, 1)
    assert one.sources == ("b",)
    assert one.issues == tuple(f"b/{number}" for number in range(6))
    assert one.scores.tolist() == [0.9, 0.7] * 6
    assert one.solution.tolist() == [number for number in range(6) for _ in range(2)]
