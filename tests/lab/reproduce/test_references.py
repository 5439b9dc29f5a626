"""Scores without any training: of the position alone, and of the policy's own probabilities."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mprm.data import Chain, prompt_of
from mprm.models.logprobs import StepLogProbs
from mprm_lab.policy.architecture import new_policy
from mprm_lab.reproduce.references import LogProbScorer, PositionScorer
from mprm_lab.world import draw, problem, solution
from tests.lab.policy.test_policy import KINDS, SMALL


def chain(source: str, steps: list[str]) -> Chain:
    return Chain("?", tuple(steps), (f"somewhere/{source}/3.png",))


def test_a_score_that_reads_nothing_is_the_share_of_positive_steps_at_the_position() -> None:
    corpus = [("grid-sum", [1.0, 0.5, 0.0]), ("grid-sum", [0.25, 0.0]), ("grid-max", [0.0])]
    scorer = PositionScorer(corpus)
    chains = [chain("grid-sum", ["s"] * 4), chain("grid-max", ["s"] * 2), chain("bars-total", ["s"])]
    # 2 of 2, 1 of 2, 0 of 1, then 3 of the source's 5; 0 of 1, then 0 of its 1; 3 of all 6
    assert scorer.score_many(chains) == [[1.0, 0.5, 0.0, 0.6], [0.0, 0.0], [0.5]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_policys_probabilities_are_those_of_the_text_it_would_have_written(kind: str, tmp_path: Path) -> None:
    policy = new_policy(kind, size=SMALL)
    reader = StepLogProbs.of(deepcopy(policy), tmp_path)
    examples = [problem("grid-sum", 3), problem("bars-second", 4)]
    chains = [Chain(each.question, tuple(solution(each)), (each.image,)) for each in examples]
    for each in examples:
        (tmp_path / each.image).parent.mkdir(exist_ok=True)
        draw(each).save(tmp_path / each.image)
    by_mean = LogProbScorer(reader, is_running_minimum=False).score_many(chains)
    by_minimum = LogProbScorer(reader, is_running_minimum=True).score_many(chains)
    for example, given, means, minima in zip(examples, chains, by_mean, by_minimum, strict=True):
        prompt, picture = prompt_of(example.as_question()), draw(example).convert("RGB")
        n_before, lowest = len(policy.chat_ids(prompt, [picture])), 1.0
        with torch.no_grad():
            inputs = policy.encode_chat(prompt, [picture], prefix="\n\n".join(given.steps))
            probabilities = policy.model(**inputs).logits[0].softmax(-1)
        ids = inputs["input_ids"][0]
        for number, (mean, minimum) in enumerate(zip(means, minima, strict=True)):
            end = len(policy.chat_ids(prompt, [picture], prefix="\n\n".join(given.steps[: number + 1])))
            of_step = [float(probabilities[at - 1, ids[at]]) for at in range(n_before, end)]
            n_before, lowest = end, min(lowest, *of_step)
            product = torch.tensor(of_step, dtype=torch.float64).log().mean().exp()
            assert mean == pytest.approx(float(product), rel=1e-4)
            assert minimum == pytest.approx(lowest, rel=1e-4)
