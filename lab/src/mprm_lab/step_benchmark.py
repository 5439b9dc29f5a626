"""A step benchmark in the form of VisualProcessBench: solutions of policies, each step judged by the world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mprm.data.candidate_formats import CandidateSet
from mprm_lab.world import Judgement, judge_chain, problem_named

CORRECTNESS: dict[Judgement, int] = {"correct": 1, "incorrect": -1, "neutral": 0}


def judged_solutions(sets: list[CandidateSet], *, policy: str) -> Iterator[dict[str, Any]]:
    """Every candidate as a record with the truth of each of its steps.

    Parameters
    ----------
    sets
        Candidates for questions of the lab, as ``mprm sample`` writes them.
    policy
        Who made them.
    """
    for entry in sets:
        question = entry.question
        one = problem_named(f"{question.id}.png")
        for candidate in entry.candidates:
            if not candidate.steps:
                continue  # an empty answer has no step to judge
            judgements = judge_chain(one, list(candidate.steps))
            yield {
                "image": list(question.images),
                "question": question.question,
                "answer": question.answer,
                "response": {
                    "steps": list(candidate.steps),
                    "process_correctness": [CORRECTNESS[judgement] for judgement in judgements],
                },
                "policy_model": policy,
                "data_source": question.source,
            }
