"""A policy whose success rates are known exactly, because they are written into its questions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from mprm.annotation.samplers.sampler import Answered, Completion, Request
from mprm.data.types import Question


def questions(n: int, *, n_steps: int = 4, rates: tuple[float, ...] = (0.9, 0.5, 0.1, 0.0)) -> list[Question]:
    """Questions whose text gives the success rate of a prefix of each length."""
    return [
        Question(id=str(i), question=f"[{i}] " + json.dumps([*rates[:n_steps]]), answer="42", source=f"s{i % 3}")
        for i in range(n)
    ]


class Scripted:
    """Rollouts have a step for each rate; a continuation is right with the rate of the steps it continues."""

    name = "scripted"

    def __init__(
        self, *, log: Path | None = None, sleep_s: float = 0.0, change: Callable[..., Completion] | None = None
    ) -> None:
        self.log, self.sleep_s, self.change = log, sleep_s, change
        self.requests: list[Request] = []
        self.settings: dict[str, Any] = {}

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        for index, request in enumerate(requests):
            assert request is not None, "all earlier requests are answered"
            yield [(index, self.answer(request))]

    def answer(self, request: Request) -> list[Completion]:
        self.requests.append(request)
        if self.log is not None:
            with self.log.open("a") as lines:
                lines.write(json.dumps([request.prompt, request.prefix, request.n, request.seed]) + "\n")
        time.sleep(self.sleep_s)
        rates = json.loads(request.prompt.split("] ", 1)[1].splitlines()[0])
        draw = random.Random(f"{request.seed} {request.prompt}")
        completions = []
        for number in range(request.n):
            if request.prefix:
                rate = rates[min(len(rates), request.prefix.count("Step")) - 1]
                text = f"so \\boxed{{{42 if draw.random() < rate else 7}}}"
            else:
                text = "\n\n".join(f"Step {index}, take {number}." for index in range(len(rates)))
            completion = Completion(text=text, finish_reason="stop", n_tokens=len(text.split()))
            completions.append(self.change(request, number, completion) if self.change else completion)
        return completions
