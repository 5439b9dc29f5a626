"""Counting steps: by hand, in every container, and of kept rollouts only."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mprm
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine, ProcessEngine
from mprm.data.output import DroppedRecords
from mprm.errors import DataError
from mprm.theory.fit_corpus import StepCounts, count_corpus_steps
from tests.conftest import raw_record, write_jsonl


def counted(paths: Any, **options: Any) -> StepCounts:
    return count_corpus_steps(open_corpus(paths), InlineEngine(), **options)


def as_dict(found: StepCounts, source: str) -> dict[tuple[float, int | None], int]:
    row = found.histogram()[found.labels.sources.index(source)]
    return {kind: int(n) for kind, n in zip(found.kinds, row, strict=True) if n}


def test_steps_are_counted_by_source_score_and_continuations(corpus: Callable[..., Path]) -> None:
    found = counted(corpus(n_mc=4, ai2d=[[1.0, 0.5], [0.5]], vqa=[[0.25, 0.0]]))
    assert as_dict(found, "ai2d") == {(1.0, 4): 1, (0.5, 4): 2}
    assert as_dict(found, "vqa") == {(0.25, 4): 1, (0.0, 4): 1}


def test_missing_counts_and_steps_never_sampled_are_told_apart(tmp_path: Path) -> None:
    record = raw_record([0.5, 0.0, 0.0], n_mc=4)
    del record["steps_with_score"][0]["num_mc_total"]
    record["steps_with_score"][2]["num_mc_total"] = 0
    found = counted(write_jsonl(tmp_path / "a.jsonl", [record]))
    assert as_dict(found, "a") == {(0.5, None): 1, (0.0, 4): 1, (0.0, 0): 1}


def test_a_line_that_needs_a_closer_look_is_counted_all_the_same(tmp_path: Path) -> None:
    odd = raw_record([0.5, 1.0], n_mc=4)
    odd["steps_with_score"][1]["num_mc_total"] = "four"  # a field that is not needed: the record is good
    found = counted(write_jsonl(tmp_path / "a.jsonl", [raw_record([0.25], n_mc=4), odd]))
    assert as_dict(found, "a") == {(0.25, 4): 1, (0.5, 4): 1, (1.0, None): 1}


def test_bad_records_and_blank_lines_count_nothing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([0.5]), b"", raw_record([1.5]), raw_record([1.0, 0.25])])
    with pytest.raises(DataError, match=r"a\.jsonl:3"):
        counted(path)
    dropped = DroppedRecords()
    found = counted(path, on_bad=dropped)
    assert as_dict(found, "a") == {(0.5, 16): 1, (1.0, 16): 1, (0.25, 16): 1}
    assert len(dropped) == 1


def test_every_container_and_engine_counts_the_same(random_corpus: Path, tmp_path: Path) -> None:
    plain = counted(random_corpus)
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in random_corpus.glob("*.jsonl"):
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    workers = count_corpus_steps(open_corpus(random_corpus), ProcessEngine(2))
    for other in (counted(packed), workers):
        for source in plain.labels.sources:
            assert as_dict(other, source) == as_dict(plain, source)


def test_mm_prm_soft_scores_have_no_counts() -> None:
    record = {
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "Question: q\nProcess: a<prm>\n\nb<prm>"},
            {"from": "gpt", "value": [0.875, 0.0]},
        ],
    }
    found = counted([record])
    assert sorted(found.kinds) == [(0.0, None), (0.875, None)]


def test_steps_of_kept_rollouts_are_those_that_are_written(random_corpus: Path, tmp_path: Path) -> None:
    found = counted(random_corpus)
    selection = mprm.select(random_corpus, rho=0.2)
    selection.write(str(tmp_path / "kept.jsonl"))
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    scores = sorted(step["score"] for line in lines for step in json.loads(line)["steps_with_score"])
    histogram = found.histogram(selection.subsets[0].kept.between).sum(axis=0)
    assert sorted(np.repeat([score for score, _ in found.kinds], histogram).tolist()) == scores


def test_sums_over_a_rollout_s_steps(corpus: Callable[..., Path]) -> None:
    found = counted(corpus(n_mc=4, a=[[1.0, 0.5], [0.25]], b=[[0.5, 0.5, 0.5]]))
    values = np.zeros((2, len(found.kinds), 1))
    values[0, :, 0] = values[1, :, 0] = [score for score, _ in found.kinds]
    values[1] *= 10
    ((source, sums),) = found.by_rollout(values)
    assert source.tolist() == [0, 0, 1]
    assert sums[:, 0].tolist() == [1.5, 0.25, 15.0]
