from __future__ import annotations

import json
import math
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mprm.annotation.annotate import SampleConfig, sample
from mprm.annotation.samplers.sampler import Answered, Completion, Request
from mprm.cli.main import run as main
from mprm.data.candidates import read_candidates
from mprm.data.types import STEP_SEPARATOR, Chain, Question
from mprm.errors import ConfigError, DataError, MprmError
from mprm.evaluation.rerank import rerank
from mprm.evaluation.search import Beam, SearchConfig, best_beams, search
from mprm.progress import Progress, silent
from tests.annotation.samplers.chat_server import ChatServer, chat_server
from tests.conftest import calling, write_jsonl

N_DIGITS = 4


class Digits:
    """A policy that writes a digit a step, and after some steps the answer: their sum."""

    name = "digits"

    def __init__(self, *, base: int = 10, stops_after: int | None = None) -> None:
        self.base, self.stops_after = base, stops_after
        self.settings: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.said: list[list[str]] = []

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        waiting: list[tuple[int, Request]] = []
        index = 0
        for request in requests:
            if request is not None:
                waiting.append((index, request))
                index += 1
            else:  # the last first: answers come in any order
                number, last = waiting.pop()
                yield [(number, self.answer(last))]

    def answer(self, request: Request) -> list[Completion]:
        if self.stops_after is not None and len(self.requests) >= self.stops_after:
            raise KeyboardInterrupt
        self.requests.append(request)
        rng = random.Random(f"{request.seed} {request.prompt}")
        completions = [self._completion(request, rng) for _ in range(request.n)]
        self.said.append([completion.text for completion in completions])
        return completions

    def _completion(self, request: Request, rng: random.Random) -> Completion:
        steps = request.prefix.split(STEP_SEPARATOR)[:-1]
        while len(steps) < N_DIGITS:
            steps.append(f"digit {rng.randrange(self.base)}")
            if request.stop:
                return Completion(text=steps[-1], finish_reason="stop_string", n_tokens=2)
        total = sum(int(step.split()[1]) for step in steps)
        text = STEP_SEPARATOR.join([*steps, f"\\boxed{{{total}}}"])
        return Completion(text=text.removeprefix(request.prefix), finish_reason="stop", n_tokens=1)


class DigitScorer:
    """Likes large digits: a step scores its digit / base, the answer 1."""

    name = "digit scorer"
    fingerprint = "digits"

    def __init__(self, *, lost: int | None = None, base: int = 10) -> None:
        self.lost, self.base, self.calls = lost, base, list[int]()

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        self.calls.append(len(chains))
        assert len(set(chains)) == len(chains) or len({chain.question for chain in chains}) > 1
        return [
            [
                math.nan if j == self.lost else int(s.split()[1]) / self.base if "digit" in s else 1.0
                for j, s in enumerate(steps)
            ]
            for steps in (chain.steps for chain in chains)
        ]


QUESTIONS = [Question(id=str(i), source="s", question=f"q{i}?", answer="30") for i in range(3)]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digits_of(text: str) -> list[int]:
    return [int(step.split()[1]) for step in text.split(STEP_SEPARATOR) if step.startswith("digit")]


def test_beam_search_continues_the_best_quarter_of_the_steps(tmp_path: Path) -> None:
    policy = Digits()
    search(QUESTIONS[:1], policy, DigitScorer(), str(tmp_path / "beam.jsonl"), n=8, beam_width=4)
    # a round samples 8 steps; of what they end, the 2 best by the mean of their digits are continued 4 times each
    level = [text + STEP_SEPARATOR for text in policy.said[0]]
    assert (policy.requests[0].prefix, policy.requests[0].n) == ("", 8)
    done = 1
    for _ in range(N_DIGITS):
        distinct = list(dict.fromkeys(level))
        best = sorted(distinct, key=lambda text: -sum(digits_of(text)) / len(digits_of(text)))[:2]
        asked = [(request.prefix, request.n) for request in policy.requests[done : done + len(best)]]
        n_each = {1: [8], 2: [4, 4]}[len(best)]
        assert sorted(asked) == sorted(zip(best, n_each, strict=True))
        level = []
        for prefix in best:  # in the order in which children are ranked, not in that of the answers
            position = next(i for i in range(done, done + len(best)) if policy.requests[i].prefix == prefix)
            level += [prefix + text + STEP_SEPARATOR for text in policy.said[position]]
        done += len(best)
    assert done == len(policy.requests)
    [record] = written(tmp_path / "beam.jsonl")
    assert sorted(c["text"] + STEP_SEPARATOR for c in record["candidates"]) == sorted(level)
    assert len(record["candidates"]) == 8


def test_dvts_keeps_the_best_step_of_each_tree(tmp_path: Path) -> None:
    policy, scorer = Digits(base=10**6), DigitScorer(base=10**6)  # no two steps are equal
    search(QUESTIONS[:1], policy, scorer, str(tmp_path / "dvts.jsonl"), method="dvts", n=8, beam_width=4)
    assert {request.n for request in policy.requests} == {4}
    said = {request.prefix: texts for request, texts in zip(policy.requests[2:], policy.said[2:], strict=True)}
    [record] = written(tmp_path / "dvts.jsonl")
    paths = []
    for first in policy.said[:2]:  # the four first steps of each tree
        path, siblings = "", first
        for _ in range(N_DIGITS):
            path += max(siblings, key=lambda text: int(text.split()[1])) + STEP_SEPARATOR
            siblings = said[path]
        paths.append(path)
    trees = [record["candidates"][:4], record["candidates"][4:]]
    assert {tuple(c["text"].rsplit(STEP_SEPARATOR, 1)[0] for c in tree) for tree in trees} == {
        (path.removesuffix(STEP_SEPARATOR),) * 4 for path in paths
    }


def test_best_of_n_gives_the_answers_of_sample_with_their_scores(tmp_path: Path) -> None:
    search(QUESTIONS, Digits(), DigitScorer(), str(tmp_path / "search.jsonl"), method="best-of-n", n=5, seed=3)
    sample(QUESTIONS, Digits(), str(tmp_path / "sample.jsonl"), config=SampleConfig(n=5, seed=3))
    found, plain = written(tmp_path / "search.jsonl"), written(tmp_path / "sample.jsonl")
    for record in found:
        for candidate in record["candidates"]:
            digits = digits_of(candidate["text"])
            assert candidate.pop("scores") == [*(digit / 10 for digit in digits), 1.0]
    assert found == plain


def test_every_method_gives_n_candidates_and_counts_its_tokens(tmp_path: Path) -> None:
    for method, n_calls in (("beam", 5), ("dvts", 5), ("best-of-n", 1)):
        policy, scorer, out = Digits(), DigitScorer(), tmp_path / f"{method}.jsonl"
        summary = search(QUESTIONS, policy, scorer, str(out), method=method, n=8, beam_width=4)
        assert [len(record["candidates"]) for record in written(out)] == [8, 8, 8]
        # a digit has 2 tokens and the answer 1: in a search each of 8 paths has 4 digits and an answer at each level
        per_question = 8 * (N_DIGITS * 2 + 1) if method != "best-of-n" else 8
        assert summary.stats["n_tokens"] == 3 * per_question
        assert (summary.stats["n_candidates"], summary.stats["n_truncated"]) == (24, 0)
        assert len(scorer.calls) == n_calls  # of all questions together
        manifest = json.loads((tmp_path / f"{method}.jsonl.manifest.json").read_text())
        assert (manifest["config"]["prm"], manifest["config"]["policy"]) == ("digit scorer", "digits")


def test_a_guided_search_finds_what_the_reward_model_likes(tmp_path: Path) -> None:
    means = {}
    for method in ("best-of-n", "dvts", "beam"):
        out = str(tmp_path / f"{method}.jsonl")
        search(QUESTIONS, Digits(), DigitScorer(), out, method=method, n=16, beam_width=4)
        records = written(Path(out))
        totals = [sum(digits_of(c["text"])) for record in records for c in record["candidates"]]
        means[method] = sum(totals) / len(totals)
    # digits at random have a mean of 4.5; the best of four 7.0 or so; of sixteen more
    assert means["best-of-n"] < 22 < 26 < means["dvts"] < means["beam"]


def test_the_limits_of_steps_and_tokens_cut_candidates_off(tmp_path: Path) -> None:
    for options in ({"max_steps": 2}, {"max_new_tokens": 4}):
        out = tmp_path / "cut.jsonl"
        summary = search(QUESTIONS, Digits(), DigitScorer(), str(out), n=4, beam_width=2, force=True, **options)
        candidates = [candidate for record in written(out) for candidate in record["candidates"]]
        assert {c["finish_reason"] for c in candidates} == {"length"}
        assert {len(c["steps"]) for c in candidates} == {2}
        assert summary.stats["n_truncated"] == 12


def test_steps_without_a_score_rank_last_and_are_null(tmp_path: Path) -> None:
    out = tmp_path / "lost.jsonl"
    search(QUESTIONS[:1], Digits(), DigitScorer(lost=1), str(out), n=4, beam_width=2)
    assert all(candidate["scores"][1] is None for candidate in written(out)[0]["candidates"])
    config = SearchConfig(n=4, beam_width=2)
    beams = [
        Beam(text="a", scores=(None,)),
        Beam(text="b", scores=(0.0,)),
        Beam(text="c"),
        Beam(text="d", scores=(0.1,)),
    ]
    assert [beam.text for beam in best_beams(beams, config)] == ["d", "b"]


def test_equal_texts_are_continued_once_and_ties_go_to_the_first() -> None:
    config = SearchConfig(n=4, beam_width=2)
    beams = [Beam(text=text, scores=(score,)) for text, score in (("x", 0.5), ("y", 0.9), ("y", 0.9), ("z", 0.5))]
    assert [beam.text for beam in best_beams(beams, config)] == ["y", "x"]


def test_questions_are_finished_before_others_are_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneAtATime(Digits):
        def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
            for index, request in enumerate(request for request in requests if request is not None):
                yield [(index, self.answer(request))]

    monkeypatch.setattr("mprm.annotation.journal.CHAINS_TOGETHER", 8)
    questions = [replace(QUESTIONS[0], id=str(number), question=f"{number}?") for number in range(12)]
    policy, n_asked = OneAtATime(), list[int]()
    progress = calling(lambda n: n_asked.extend([len(policy.requests)] * n))
    search(questions, policy, DigitScorer(), str(tmp_path / "out.jsonl"), n=4, beam_width=2, progress=progress)
    assert len(n_asked) == 12
    assert n_asked[5] < 0.7 * len(policy.requests)


@pytest.mark.parametrize("method", ["beam", "dvts", "best-of-n"])
def test_a_search_that_was_stopped_continues_to_the_same_file(tmp_path: Path, method: str) -> None:
    options: dict[str, Any] = {"method": method, "n": 4, "beam_width": 2}
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    policy = Digits()
    search(QUESTIONS, policy, DigitScorer(), str(whole), **options)
    n_asked = 0
    for stops_after in range(1, len(policy.requests), 3):
        stopped = Digits(stops_after=stops_after)
        with pytest.raises(KeyboardInterrupt):
            search(QUESTIONS, stopped, DigitScorer(), str(out), **options)
        assert not out.exists()
        rest = Digits()
        search(QUESTIONS, rest, DigitScorer(), str(out), **options)
        n_asked = len(stopped.requests) + len(rest.requests)
        assert n_asked == len(policy.requests)  # nothing is sampled twice
        assert out.read_bytes() == whole.read_bytes()
        out.unlink()


def test_another_reward_model_does_not_continue_a_search(tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    with pytest.raises(KeyboardInterrupt):
        search(QUESTIONS, Digits(stops_after=2), DigitScorer(), out, n=4, beam_width=2)
    other = DigitScorer()
    other.fingerprint = "others"
    with pytest.raises(ConfigError, match="prm_weights was 'digits', now 'others'"):
        search(QUESTIONS, Digits(), other, out, n=4, beam_width=2)


def test_a_scorer_that_does_not_score_every_step_stops_the_search(tmp_path: Path) -> None:
    class Short(DigitScorer):
        def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
            return [row[:-1] for row in super().score_many(chains)]

    with pytest.raises(DataError, match="digit scorer does not give one score for each step; what is done is kept"):
        search(QUESTIONS, Digits(), Short(), str(tmp_path / "out.jsonl"), n=4, beam_width=2)
    with pytest.raises(ConfigError, match=r"the model is .*; expected mprm\.PRM or mprm\.RemotePRM"):
        search(QUESTIONS, Digits(), lambda: 3, str(tmp_path / "out.jsonl"), n=4, beam_width=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda chain: [2.0] * len(chain.steps), "gives a step the score 2.0; expected 0 to 1"),
        (lambda chain: [math.inf] * len(chain.steps), "gives a step the score inf; expected 0 to 1"),
        (lambda _: None, "expected a list of scores for each chain"),
        (lambda chain: ["high"] * len(chain.steps), "expected a list of scores for each chain"),
    ],
)
def test_scores_that_are_no_probabilities_stop_the_search(tmp_path: Path, rows: Any, words: str) -> None:
    class Odd(DigitScorer):
        def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
            return [rows(chain) for chain in chains]

    with pytest.raises(DataError, match=words):
        search(QUESTIONS, Digits(), Odd(), str(tmp_path / "out.jsonl"), n=4, beam_width=2)


def test_arrays_are_scores_too(tmp_path: Path) -> None:
    class Arrays(DigitScorer):
        def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> Any:
            return [np.array(row, np.float32) for row in super().score_many(chains)]

    summary = search(QUESTIONS, Digits(), Arrays(), str(tmp_path / "out.jsonl"), n=4, beam_width=2)
    assert (summary.stats["n_scored"] > 0, summary.stats["n_unscored"]) == (True, 0)


def test_a_reward_model_that_scores_nothing_fails_the_question(tmp_path: Path) -> None:
    class Nothing(DigitScorer):
        def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
            return [[math.nan] * len(chain.steps) for chain in chains]

    out = str(tmp_path / "out.jsonl")
    with pytest.raises(MprmError, match="the reward model gives no step a score"):
        search(QUESTIONS, Digits(), Nothing(), out, n=4, beam_width=2)
    summary = search(QUESTIONS, Digits(), DigitScorer(lost=1), str(tmp_path / "b.jsonl"), n=4, beam_width=2)
    assert summary.stats["n_unscored"] > 0


def test_a_run_that_did_nothing_does_not_bind_the_next(tmp_path: Path) -> None:
    class Down(Digits):
        def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
            raise MprmError("no connection")
            yield []

    out = str(tmp_path / "out.jsonl")
    with pytest.raises(MprmError, match="no connection"):
        search(QUESTIONS, Down(), DigitScorer(), out, n=4, beam_width=2)
    assert search(QUESTIONS, Digits(), DigitScorer(), out, n=8, beam_width=2, seed=1).n_done == 3


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="dvts splits n into trees of beam_width: 6 is no multiple of 4"):
        SearchConfig(method="dvts", n=6)
    with pytest.raises(ConfigError, match="at temperature 0 all 16 candidates would be the same"):
        SearchConfig(temperature=0.0)
    with pytest.raises(ConfigError, match="beam_width must be at least 2"):
        SearchConfig(beam_width=1)


def test_candidates_of_a_search_are_reranked_with_or_without_the_model(tmp_path: Path) -> None:
    out = tmp_path / "beam.jsonl"
    search(QUESTIONS, Digits(), DigitScorer(), str(out), n=4, beam_width=2)
    [first, *_] = read_candidates([str(out)])
    assert first.candidates[0].step_scores is not None
    saved = rerank([str(out)], n=(4,))
    again = rerank([str(out)], DigitScorer(), n=(4,))
    assert saved.best_of_n == again.best_of_n
    assert [choice.candidate for choice in saved.chosen] == [choice.candidate for choice in again.chosen]


# A policy behind a server


def steps_of_server(server: ChatServer, *, told: str | None) -> None:
    """Let the server write three steps; ``told`` names the field that tells the stop string."""

    def answer(body: dict[str, Any], number: int) -> dict[str, Any]:
        last = body["messages"][-1]
        written = last["content"].split(STEP_SEPARATOR)[:-1] if last["role"] == "assistant" else []
        rest = [f"digit {(len(written) + number) % 10}" for _ in range(len(written), 3)] + ["\\boxed{30}"]
        is_stopped = "stop" in body and len(rest) > 1
        text = rest[0] if is_stopped else STEP_SEPARATOR.join(rest)
        field = {} if told is None else {told: "\n\n" if is_stopped else None}
        message = {"role": "assistant", "content": text}
        return {"index": number, "message": message, "finish_reason": "stop", **field}

    server.answer = answer


@pytest.mark.parametrize("told", ["stop_reason", "matched_stop"])
def test_a_server_that_tells_the_stop_string_samples_single_steps(tmp_path: Path, told: str) -> None:
    pytest.importorskip("openai")
    from mprm.annotation.samplers.server import HTTPSampler

    with chat_server() as server:
        steps_of_server(server, told=told)
        out = tmp_path / "out.jsonl"
        search(QUESTIONS, HTTPSampler(server.url, "m"), DigitScorer(), str(out), n=4, beam_width=2)
        assert all(body["stop"] == ["\n\n"] for body in server.requests)
        for record in written(out):
            assert [len(candidate["steps"]) for candidate in record["candidates"]] == [4] * 4
            assert {candidate["finish_reason"] for candidate in record["candidates"]} == {"stop"}


@pytest.mark.filterwarnings("ignore:.*does not tell whether an answer ended:UserWarning")
@pytest.mark.filterwarnings("ignore:the server cuts white space:UserWarning")
@pytest.mark.parametrize("trims", [False, True])
def test_whole_answers_of_other_servers_are_cut_at_the_step(tmp_path: Path, trims: bool) -> None:
    pytest.importorskip("openai")
    from mprm.annotation.samplers.server import HTTPSampler

    with chat_server(trims=trims) as server:
        steps_of_server(server, told=None)
        out = tmp_path / "out.jsonl"
        search(QUESTIONS, HTTPSampler(server.url, "m"), DigitScorer(), str(out), n=4, beam_width=2)
        for record in written(out):
            assert [len(candidate["steps"]) for candidate in record["candidates"]] == [4] * 4
        assert "stop" not in server.requests[-1]


# Real models


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from tests.tiny_policy import save_adder

    return save_adder(tmp_path_factory.mktemp("adder"))


def test_a_real_policy_and_reward_model_search_the_same_way_twice(tmp_path: Path, adder: Path) -> None:
    from mprm.annotation.samplers.local import PrefixSampler, TransformersSampler
    from mprm.models.checkpoint import PRMConfig, load_backbone
    from mprm.models.prm import PRM
    from tests.tiny_models import save_tiny
    from tests.tiny_policy import sums

    policy = load_backbone(adder, device="cpu")
    prm = PRM.from_pretrained(save_tiny("text", tmp_path / "prm"), PRMConfig(), device="cpu", dtype="float32")
    options: dict[str, Any] = {"n": 4, "beam_width": 2, "max_new_tokens": 60, "temperature": 1.0}
    records = {}
    for name, sampler in (
        ("shared", PrefixSampler(policy, name="adder")),
        ("again", PrefixSampler(policy, name="adder")),
        ("plain", TransformersSampler(policy, name="adder")),
    ):
        out = tmp_path / f"{name}.jsonl"
        search(sums()[:4], sampler, prm, str(out), **options)
        records[name] = written(out)
    assert records["shared"] == records["again"]
    candidates = [c for name in ("shared", "plain") for record in records[name] for c in record["candidates"]]
    assert len(candidates) == 2 * 4 * 4
    # the policy was trained to end after three steps
    assert sum(c["finish_reason"] == "stop" and len(c["steps"]) == 3 for c in candidates) > 24
    for record in records["shared"]:
        chains = [Chain(record["question"], tuple(c["steps"])) for c in record["candidates"]]
        for candidate, scores in zip(record["candidates"], prm.score_many(chains), strict=True):
            assert candidate["scores"] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("kind", ["prefix", "transformers"])
def test_answers_of_a_real_policy_end_before_the_stop_string(adder: Path, kind: str) -> None:
    from mprm.annotation.samplers.local import PrefixSampler, TransformersSampler
    from mprm.annotation.samplers.sampler import SamplingParams, answers
    from mprm.models.checkpoint import load_backbone

    policy = load_backbone(adder, device="cpu")
    sampler = (PrefixSampler if kind == "prefix" else TransformersSampler)(policy, name="adder")
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=80)
    whole = Request(prompt="1 + 2?", n=8, seed=4, sampling=sampling)
    cut = Request(prompt="1 + 2?", n=8, seed=4, sampling=sampling, stop=STEP_SEPARATOR)
    [(_, plain)] = answers(sampler, [whole])
    [(_, stopped)] = answers(sampler, [cut])
    for one, other in zip(plain, stopped, strict=True):
        if kind == "prefix":  # the same random numbers, whatever ends the answer
            assert other.text == one.text.split(STEP_SEPARATOR)[0]
        assert STEP_SEPARATOR not in other.text
        assert other.n_tokens is not None
        ids = policy.tokenizer(other.text + STEP_SEPARATOR, add_special_tokens=False)["input_ids"]
        assert other.finish_reason != "stop_string" or 0 < other.n_tokens <= 2 * len(ids) + 8
    assert {completion.finish_reason for completion in stopped} >= {"stop_string"}


def test_search_on_the_command_line(tmp_path: Path, adder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mprm.models.checkpoint import PRMConfig
    from mprm.models.prm import PRM
    from tests.tiny_models import save_tiny

    policy = adder
    PRM.from_pretrained(save_tiny("text", tmp_path / "tiny"), PRMConfig(), device="cpu").save_pretrained(
        tmp_path / "prm"
    )
    questions = write_jsonl(tmp_path / "q.jsonl", [{"id": "1", "question": "1 + 2?", "answer": "3"}])
    out = tmp_path / "out.jsonl"
    words = ["search", str(questions), "--policy", str(policy), "--model", str(tmp_path / "prm"), "--out", str(out)]
    words += ["--n", "4", "--beam-width", "2", "--max-new-tokens", "40", "--device", "cpu"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "1 question with 4 candidates each" in printed
    assert "tokens were sampled" in printed
    assert main(["rerank", str(out), "--n", "4"]) == 0
    capsys.readouterr()
    assert main([*words[:6], "--out", str(tmp_path / "other.jsonl"), "--model", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["search", str(questions), "--policy", str(policy), "--out", str(tmp_path / "x.jsonl")]) == 2
    assert "name the reward model with --model DIR or --prm-server URL" in capsys.readouterr().err
    assert not (tmp_path / "other.jsonl").exists()


def test_a_question_whose_policy_fails_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    class Failing(Digits):
        def answer(self, request: Request) -> list[Completion]:
            if request.prompt.startswith("q1") and request.prefix:
                return [Completion(text="", finish_reason="error", error="HTTP 500")] * request.n
            return super().answer(request)

    out = tmp_path / "out.jsonl"
    with pytest.raises(MprmError, match="1 of 3 questions failed, 1 of them with: HTTP 500"):
        search(QUESTIONS, Failing(), DigitScorer(), str(out), n=4, beam_width=2)
    assert not out.exists()
    search(QUESTIONS, Digits(), DigitScorer(), str(out), n=4, beam_width=2)
    assert len(written(out)) == 3
