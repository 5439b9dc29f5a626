"""Step scores that need no training: of the position alone, and of the policy's own probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from mprm.data import Chain, prompt_of
from mprm.models import Backbone, plain_text
from mprm_lab.policy.dataset import STEP_SEPARATOR
from mprm_lab.world import draw, problem_named

CHAINS_PER_BATCH = 64


def problem_of(chain: Chain) -> Any:
    """The problem whose picture the chain is about."""
    return problem_named("/".join(str(chain.images[0]).split("/")[-2:]))


class PositionScorer:
    """Reads nothing: the share of positive steps of the corpus with the same source and index.

    The corpus gives source and scores of each rollout. A position that it does not have is scored as all steps of the
    source, and a source that it does not have as all steps.
    """

    def __init__(self, corpus: Iterable[tuple[str, Sequence[float]]]) -> None:
        self._n_positive: Counter[tuple[Any, ...]] = Counter()
        self._n_steps: Counter[tuple[Any, ...]] = Counter()
        for source, scores in corpus:
            for index, score in enumerate(scores):
                for key in ((source, index), (source,), ()):
                    self._n_positive[key] += score > 0
                    self._n_steps[key] += 1

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        return [
            [self._score(problem_of(chain).source, index) for index in range(len(chain.steps))] for chain in chains
        ]

    def _score(self, source: str, index: int) -> float:
        key = next((key for key in ((source, index), (source,)) if key in self._n_steps), ())
        return self._n_positive[key] / max(1, self._n_steps[key])


class LogProbScorer:
    """The policy's probability of a step's tokens where it would have written them itself.

    Their geometric mean; or the lowest of them, and of all steps before it.
    """

    def __init__(self, policy: Backbone, *, is_running_minimum: bool) -> None:
        self._policy, self._is_running_minimum = policy, is_running_minimum

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        order = sorted(range(len(chains)), key=lambda index: sum(map(len, chains[index].steps)))
        scores: dict[int, list[float]] = {}
        for start in range(0, len(order), CHAINS_PER_BATCH):
            indices = order[start : start + CHAINS_PER_BATCH]
            scores |= zip(indices, self._batch([chains[index] for index in indices]), strict=True)
        return [scores[index] for index in range(len(chains))]

    def _batch(self, chains: Sequence[Chain]) -> Iterable[list[float]]:
        import torch

        policy, plain = self._policy, plain_text(self._policy.tokenizer)
        rows, spans = list[list[int]](), list[list[tuple[int, int]]]()
        pictures = [draw(problem_of(chain)).convert("RGB") for chain in chains]
        for chain, picture in zip(chains, pictures, strict=True):
            ids = policy.chat_ids(prompt_of(problem_of(chain).as_question()), [picture])
            spans.append([])
            for index, step in enumerate(chain.steps):
                start = len(ids)
                ids += plain.encode(STEP_SEPARATOR + step if index else step)
                spans[-1].append((start, len(ids)))
            rows.append(ids)
        input_ids = torch.full((len(rows), max(map(len, rows))), policy.tokenizer.pad_token_id)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = torch.tensor(ids)
        vision = policy.family.preprocess(policy.image_processor, pictures)
        inputs = {"input_ids": input_ids, **{name: torch.as_tensor(array) for name, array in vision.items()}}
        inputs |= policy.family.batch_inputs(policy.tokenizer, input_ids)
        inputs = {name: tensor.to(policy.model.device) for name, tensor in inputs.items()}
        with torch.no_grad():
            logits = policy.model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"])).logits
        logps = logits[:, :-1].float().log_softmax(-1).gather(-1, inputs["input_ids"][:, 1:, None])[..., 0].cpu()
        for row, steps in enumerate(spans):
            of_steps = [logps[row, start - 1 : end - 1] for start, end in steps]
            if self._is_running_minimum:
                yield list(accumulate((float(each.min().exp()) for each in of_steps), min))
            else:
                yield [float(each.mean().exp()) for each in of_steps]
