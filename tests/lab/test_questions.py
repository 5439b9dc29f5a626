"""The lab's problems in the field's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mprm
from mprm.data.benchmarks import read_benchmark
from mprm.data.candidates import read_candidates
from mprm.data.questions import prompt_of
from mprm.errors import ConfigError
from mprm_lab.questions import problems_of, write_questions
from mprm_lab.step_benchmark import judged_solutions
from mprm_lab.world import SOURCES, as_question, solution, write_images


def test_a_file_of_questions_asks_what_the_world_asks(tmp_path: Path) -> None:
    problems = problems_of("corpus", 2 * len(SOURCES))
    write_questions(problems, tmp_path / "q.jsonl")
    write_images(problems, tmp_path / "images")
    found = mprm.read_questions(str(tmp_path / "q.jsonl"), image_root=tmp_path / "images")
    assert [prompt_of(question) for question in found] == [prompt_of(as_question(one)) for one in problems]
    assert found == [as_question(one) for one in problems]
    assert {question.source for question in found} == set(SOURCES)
    assert problems_of("corpus", 3, first=20) == problems[20:23]


def test_a_source_that_comes_up_more_often_has_more_problems_and_none_twice() -> None:
    sources = ("grid-sum", "grid-max", "grid-max", "bars-total")
    found = problems_of("corpus", 10, sources=sources)
    assert [one.source for one in found] == [*sources, *sources, "grid-sum", "grid-max"]
    assert len({one.id for one in found}) == 10
    for source in sources:  # the first ones of each, as if it were alone
        assert [one for one in found if one.source == source] == problems_of(
            "corpus", sum(one.source == source for one in found), sources=(source,)
        )
    assert problems_of("corpus", 5, first=3, sources=sources) == found[3:8]


def test_splits_and_numbers_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="no split 'test' in the lab"):
        problems_of("test", 1)
    with pytest.raises(ConfigError, match="no sources; name at least one"):
        problems_of("train", 1, sources=())
    with pytest.raises(ConfigError, match="n must be 1 or more"):
        problems_of("train", 0)


def test_solutions_become_a_benchmark_with_the_truth_of_each_step(tmp_path: Path) -> None:
    right, other = problems_of("benchmark", 2)
    steps = solution(right)
    wrong = [steps[0].replace(steps[0].split()[-1], "97."), *steps[1:], "Let us go on."]
    lines = [
        {
            **_question(right),
            "candidates": [{"text": "\n\n".join(steps)}, {"text": "\n\n".join(wrong)}, {"text": ""}],
        },
        {**_question(other), "candidates": [{"text": "Gr row is."}]},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = list(judged_solutions(read_candidates(str(tmp_path / "c.jsonl")), policy="small"))
    truth = [record["response"]["process_correctness"] for record in records]
    assert set(truth[0]) <= {1, 0}
    assert truth[1][0] == -1
    assert truth[1][1:-1] == truth[0][1:]
    assert truth[1][-1] == 0
    assert truth[2] == [-1]
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    benchmark = read_benchmark(str(tmp_path / "bench.jsonl"))
    assert [len(chain.steps) for chain in benchmark.chains] == [len(steps), len(steps) + 1, 1]


def _question(one: object) -> dict[str, object]:
    question = as_question(one)  # type: ignore[arg-type]
    return {
        "id": question.id,
        "source": question.source,
        "question": question.question,
        "answer": question.answer,
        "images": list(question.images),
        "options": list(question.options),
    }
