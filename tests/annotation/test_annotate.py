import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom, chi2

pytest.importorskip("openai")

import mprm
from mprm.annotation.annotate import AdaptiveRule, AnnotateConfig, annotate, estimate_cost
from mprm.annotation.samplers.sampler import Completion, Request
from mprm.annotation.samplers.server import HTTPSampler
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MprmError, OutputExistsError
from tests.annotation.samplers.chat_server import ChatServer, chat_server
from tests.annotation.scripted import Scripted, questions


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(path: Path, entries: Any, sampler: Scripted | None = None, **settings: Any) -> list[dict[str, Any]]:
    annotate(entries, sampler or Scripted(), path, **{"rollouts": 2, "continuations": 16, **settings})
    return read(path)


def test_every_rollout_has_a_record_that_check_passes_and_select_reads(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    records = run(out, questions(6))
    assert [(record["id"], record["rollout"]) for record in records] == [
        (str(i), r) for i in range(6) for r in (0, 1)
    ]
    first = records[0]
    assert first["response"] == "\n\n".join(step["step"] for step in first["steps_with_score"])
    assert first["question_orig"] == questions(6)[0].question
    assert first["question"].startswith(first["question_orig"])
    assert first["num_mc_sequences"] == 16
    for record in records:
        for step in record["steps_with_score"]:
            assert step["num_mc_total"] == 16
            assert step["score"] == step["num_mc_correct"] / 16
    assert mprm.check(str(out), text_only=True).counts == {}
    subset = mprm.select(str(out), rho=0.5, strategy="bis", text_only=True)
    # 2 rollouts of 6 questions in 3 sources: 4 a source, of which half are kept
    subset.write(str(tmp_path / "half.jsonl"))
    assert len(read(tmp_path / "half.jsonl")) == 6


def test_scores_follow_the_binomial_of_the_known_success_rate(tmp_path: Path) -> None:
    rates = (0.9, 0.5, 0.1, 0.0)
    records = run(tmp_path / "raw.jsonl", questions(150, rates=rates), rollouts=4)
    for index, rate in enumerate(rates):
        counts = Counter(record["steps_with_score"][index]["num_mc_correct"] for record in records)
        assert sum(counts.values()) == 600
        if rate == 0.0:
            assert counts == {0: 600}
            continue
        # neighbouring values are pooled until at least five are expected
        statistic, cells, seen, expected = 0.0, 0, 0.0, 0.0
        for k in range(17):
            seen, expected = seen + counts[k], expected + 600 * float(binom.pmf(k, 16, rate))
            left = 600 * float(binom.sf(k, 16, rate))
            if (expected >= 5 and left >= 5) or k == 16:
                statistic, cells = statistic + (seen - expected) ** 2 / expected, cells + 1
                seen = expected = 0.0
        assert statistic < chi2.ppf(0.999, cells - 1), (rate, counts)


def test_each_continuation_begins_where_the_steps_end(tmp_path: Path) -> None:
    sampler = Scripted()
    run(tmp_path / "raw.jsonl", questions(1), sampler, rollouts=1)
    prefixes = [request.prefix for request in sampler.requests]
    # a blank line follows every step but the last, after which the policy may end the answer
    assert prefixes[0] == ""
    assert prefixes[1] == "Step 0, take 0.\n\n"
    assert prefixes[2] == "Step 0, take 0.\n\nStep 1, take 0.\n\n"
    assert prefixes[4].endswith("Step 3, take 0.")
    assert [request.n for request in sampler.requests] == [1, 16, 16, 16, 16]
    assert len({request.seed for request in sampler.requests}) == 5


def test_an_early_stop_leaves_later_steps_unsampled_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    sampler = Scripted()
    records = run(out, questions(3, rates=(1.0, 0.0, 1.0, 1.0)), sampler, early_stop=True)
    for record in records:
        steps = record["steps_with_score"]
        assert [step["num_mc_total"] for step in steps] == [16, 16, 0, 0]
        assert [step["score"] for step in steps] == [1.0, 0.0, 0.0, 0.0]
        assert record["early_stop_at"] == 1
    assert len(sampler.requests) == 3 + 2 * 3 * 2
    assert set(mprm.check(str(out), text_only=True).counts) == {"never_sampled"}
    whole = run(tmp_path / "whole.jsonl", questions(3, rates=(1.0, 0.0, 1.0, 1.0)))
    assert [step["score"] for step in whole[0]["steps_with_score"]] == [1.0, 0.0, 1.0, 1.0]
    assert "early_stop_at" not in whole[0]


def test_truncated_continuations_are_recorded(tmp_path: Path) -> None:
    def change(request: Request, number: int, completion: Completion) -> Completion:
        if request.prefix and number < 3:
            return Completion(text="and so the answer is 4", finish_reason="length")  # of 42, perhaps
        if request.prefix and number == 3:
            return Completion(text=r"so \boxed{42} and", finish_reason="length")  # it had answered before it was cut
        return completion

    summary = annotate(
        questions(1, rates=(0.0,), n_steps=1),
        Scripted(change=change),
        str(tmp_path / "raw.jsonl"),
        rollouts=1,
    )
    step = read(tmp_path / "raw.jsonl")[0]["steps_with_score"][0]
    assert step == {
        "step": "Step 0, take 0.",
        "score": 1 / 16,
        "num_mc_correct": 1,
        "num_mc_total": 16,
        "num_mc_cut": 3,
    }
    assert summary.stats["n_truncated"] == 3


def test_a_failure_of_the_checker_counts_neither_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mprm.annotation.checker import AnswerChecker
    from mprm.answers.grade import GradedAnswer

    def failing(share: int) -> Any:
        fates = [GradedAnswer("failed", None, "math-verify took longer than 5 s"), GradedAnswer("correct", "42")]

        def check_many(_self: AnswerChecker, pairs: Any, *, on_checked: Any) -> None:
            for number, _ in enumerate(pairs):
                on_checked(number, fates[number % share != 0])

        return check_many

    monkeypatch.setattr(AnswerChecker, "check_many", failing(4))
    (record,) = run(tmp_path / "raw.jsonl", questions(1, rates=(0.5,), n_steps=1), rollouts=1)
    step = record["steps_with_score"][0]
    assert (step["num_mc_correct"], step["num_mc_total"], step["num_mc_failed"], step["score"]) == (12, 12, 4, 1.0)
    assert mprm.check(str(tmp_path / "raw.jsonl"), text_only=True).counts == {}
    monkeypatch.setattr(AnswerChecker, "check_many", failing(1))
    with pytest.raises(MprmError, match=r"1 of 1 questions failed, .* reason in .*other\.jsonl\.failed"):
        run(tmp_path / "other.jsonl", questions(1), rollouts=1)
    (failed,) = read(tmp_path / "other.jsonl.failed")
    assert failed["errors"][0] == "step 0 of rollout 0: the answer checker failed on all 16 continuations"
    monkeypatch.undo()
    sampler = Scripted()  # what could not be graded is sampled again, and now it can
    assert len(run(tmp_path / "other.jsonl", questions(1), sampler, rollouts=1)) == 1
    assert len(sampler.requests) == 5


def test_a_question_that_fails_is_listed_and_sampled_again_for_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"

    def broken(request: Request, number: int, completion: Completion) -> Completion:
        if request.prompt.startswith("[1]") and request.prefix.count("Step") == 2:
            return Completion(text="", finish_reason="error", error="HTTP 500: out of luck")
        return completion

    with pytest.raises(MprmError, match="1 of 3 questions failed"):
        run(out, questions(3), Scripted(change=broken))
    assert not out.exists()
    assert read(tmp_path / "raw.jsonl.failed") == [{"id": "1", "source": "s1", "errors": ["HTTP 500: out of luck"]}]
    sampler = Scripted()
    records = run(out, questions(3), sampler)
    # only what failed: the second prefix of both rollouts of question 1
    assert [(r.prompt[:3], r.prefix.count("Step"), r.n) for r in sampler.requests] == [("[1]", 2, 16)] * 2
    assert records == run(tmp_path / "whole.jsonl", questions(3))
    assert not (tmp_path / "raw.jsonl.failed").exists()
    assert not (tmp_path / "raw.jsonl.partial").exists()
    config = AnnotateConfig(rollouts=2)
    some = annotate(
        questions(3), Scripted(change=broken), str(tmp_path / "some.jsonl"), config=config, allow_failures=True
    )
    assert (some.n_done, some.n_failed) == (2, 1)
    assert {record["id"] for record in read(tmp_path / "some.jsonl")} == {"0", "2"}


def test_empty_rollouts_have_no_record_and_are_counted(tmp_path: Path) -> None:
    def mute(request: Request, number: int, completion: Completion) -> Completion:
        return replace(completion, text=" \n\n ") if not request.prefix and number == 0 else completion

    config = AnnotateConfig(rollouts=2)
    summary = annotate(questions(2), Scripted(change=mute), str(tmp_path / "raw.jsonl"), config=config)
    assert (summary.stats["n_rollouts"], summary.stats["n_empty"]) == (2, 2)
    assert len(read(tmp_path / "raw.jsonl")) == 2


def test_long_rollouts_are_merged_down_to_the_most_steps(tmp_path: Path) -> None:
    records = run(tmp_path / "raw.jsonl", questions(1, rates=(0.5,) * 9, n_steps=9), max_steps=3)
    assert [step["step"].count("Step") for step in records[0]["steps_with_score"]] == [3, 3, 3]


def test_shards_together_are_the_whole(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole.jsonl", questions(7))
    parts = [run(tmp_path / f"{i}.jsonl", questions(7), shard=f"{i}/3") for i in (1, 2, 3)]
    assert [len(part) for part in parts] == [6, 4, 4]
    together = [record for part in parts for record in part]
    assert sorted(together, key=lambda r: (r["id"], r["rollout"])) == whole
    (tmp_path / "cat.jsonl").write_bytes(b"".join((tmp_path / f"{i}.jsonl").read_bytes() for i in (1, 2, 3)))
    assert mprm.check(str(tmp_path / "cat.jsonl"), text_only=True).counts == {}
    for wrong in ("0/3", "4/3", "3", "a/b", "1/0"):
        with pytest.raises(ConfigError, match="shard"):
            AnnotateConfig(shard=wrong)


def test_a_corpus_with_eight_continuations_is_topped_up_to_sixteen(tmp_path: Path) -> None:
    eight, out = tmp_path / "eight.jsonl", tmp_path / "sixteen.jsonl"
    before = run(eight, questions(5), continuations=8)
    sampler = Scripted()
    annotate(None, sampler, str(out), rollouts_from=str(eight))
    after = read(out)
    assert {request.n for request in sampler.requests} == {8}
    assert len(sampler.requests) == 5 * 2 * 4
    for old, new in zip(before, after, strict=True):
        assert (new["question"], new["response"], new["source"]) == (old["question"], old["response"], old["source"])
        for was, is_ in zip(old["steps_with_score"], new["steps_with_score"], strict=True):
            assert is_["num_mc_total"] == 16
            assert 0 <= is_["num_mc_correct"] - was["num_mc_correct"] <= 8
    assert mprm.check(str(out), text_only=True).counts == {}
    fresh = Scripted()
    annotate(None, fresh, str(tmp_path / "fresh.jsonl"), rollouts_from=str(eight), fresh=True)
    assert {request.n for request in fresh.requests} == {16}
    nothing = Scripted()
    annotate(None, nothing, str(tmp_path / "again.jsonl"), rollouts_from=str(out))
    assert nothing.requests == []
    assert [r["steps_with_score"] for r in read(tmp_path / "again.jsonl")] == [r["steps_with_score"] for r in after]


def test_candidates_can_be_annotated_and_rollouts_need_an_answer(tmp_path: Path) -> None:
    candidates = tmp_path / "candidates.jsonl"
    mprm.sample(questions(2), Scripted(), str(candidates))
    sampler = Scripted()
    annotate(None, sampler, str(tmp_path / "raw.jsonl"), rollouts_from=str(candidates))
    assert len(read(tmp_path / "raw.jsonl")) == 32
    assert all(request.prefix for request in sampler.requests)
    record = {"question": "q", "steps_with_score": [{"step": "a", "score": 0.5}]}
    (tmp_path / "bare.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=r"bare\.jsonl:1: the rollout has no gold answer"):
        annotate(None, sampler, str(tmp_path / "x.jsonl"), rollouts_from=str(tmp_path / "bare.jsonl"))


def test_the_adaptive_rule_skips_continuations_and_reports_the_audit(tmp_path: Path) -> None:
    entries = questions(40, rates=(1.0, 0.5, 0.0, 0.0))
    stats = annotate(entries, Scripted(), tmp_path / "raw.jsonl", rollouts=2, adaptive=True, audit=0.25).stats
    assert stats["n_steps"] == 320
    assert stats["n_continuations"] + stats["n_skipped"] == 320 * 16
    totals = Counter(read(tmp_path / "raw.jsonl")[i]["steps_with_score"][0]["num_mc_total"] for i in range(80))
    assert set(totals) == {4, 16}  # four of four decide, but for the audited quarter
    assert 8 <= totals[16] <= 32
    assert stats["n_disagreed"] == 0  # a decided positive stays positive, and of rate 0 nothing comes
    assert stats["n_audited"] >= totals[16]
    assert mprm.check(str(tmp_path / "raw.jsonl"), text_only=True).counts == {}
    # without an audit, the same samples and fewer of them
    bare = run(tmp_path / "bare.jsonl", entries, adaptive=True, audit=0.0)
    assert all(record["steps_with_score"][0]["num_mc_total"] == 4 for record in bare)
    with pytest.raises(ConfigError, match="prior takes two numbers, a and b, got 3"):
        AnnotateConfig(adaptive=True, prior=(1.0, 1.0, 1.0))


def test_an_audit_finds_labels_that_stopping_has_changed(tmp_path: Path) -> None:
    # a rule that gives up after one round of failures: of rate 0.1, many would have had a success later
    rule = {"delta": 0.49, "prior": (0.05, 1.0)}
    assert AdaptiveRule(**rule).n_next(0, 4) == 0  # type: ignore[arg-type]
    entries = questions(60, rates=(0.1,), n_steps=1)
    stats = annotate(entries, Scripted(), tmp_path / "raw.jsonl", rollouts=2, adaptive=True, audit=1.0, **rule).stats
    # P(none of 4) = 0.656, and then P(some of 12) = 0.718: about 56 of 120
    assert 35 <= stats["n_disagreed"] <= 80
    assert stats["n_skipped"] == 0


def test_a_trial_gives_the_cost_and_keeps_nothing(tmp_path: Path) -> None:
    cost = estimate_cost(questions(40), Scripted(), rollouts=2, n_tried=4)
    assert (cost.n_questions, cost.n_tried) == (40, 4)
    assert [cost.stats[name] for name in ("n_rollouts", "n_steps", "n_continuations")] == [80, 320, 5120]
    assert cost.stats["n_tokens"] > 5120
    assert list(tmp_path.iterdir()) == []


def test_a_trial_of_a_slow_policy_ends_in_time() -> None:
    # 1 + 4 * 4 requests of 0.02 s a question: 0.34 s
    policy = Scripted(sleep_s=0.02)
    cost = estimate_cost(questions(8), policy, rollouts=4, trial_s=1.0)
    assert (cost.n_questions, cost.n_tried) == (8, 2)
    assert len(policy.requests) == 2 * 17
    assert 8 * 0.34 < cost.seconds < 8 * 1.0
    assert cost.stats["n_rollouts"] == 32


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"rollouts": 0}, {"continuations": 0}, {"max_steps": 0}, {"audit": 1.5}, {"delta": 0.5}):
        with pytest.raises(ConfigError):
            AnnotateConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="temperature 0"):
        AnnotateConfig(temperature=0)
    with pytest.raises(ConfigError, match="unknown option 'rolouts'; did you mean rollouts"):
        annotate(questions(1), Scripted(), "raw.jsonl", rolouts=2)


def test_two_questions_with_one_id_and_outputs_over_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="have the id '0'"):
        run(tmp_path / "raw.jsonl", [*questions(1), *questions(1)])
    file = tmp_path / "q.jsonl"
    file.write_text('{"id": "1", "question": "2+2?", "answer": "4"}\n')
    with pytest.raises(ConfigError):
        annotate(str(file), Scripted(), str(file), force=True)


def test_a_box_in_the_prefix_is_no_answer_of_a_continuation_that_was_cut(tmp_path: Path) -> None:
    def change(request: Request, number: int, completion: Completion) -> Completion:
        if not request.prefix:
            return replace(completion, text="So far \\boxed{42} Step\n\nStep two.")
        return Completion(text="Now the second part. We compute and", finish_reason="length")

    (record,) = run(tmp_path / "raw.jsonl", questions(1), Scripted(change=change), rollouts=1)
    assert [(step["score"], step["num_mc_cut"]) for step in record["steps_with_score"]] == [(0.0, 16)] * 2


def test_multiple_choice_is_graded_alike_from_questions_and_from_rollouts(tmp_path: Path) -> None:
    def change(request: Request, number: int, completion: Completion) -> Completion:
        return (
            replace(completion, text=["\\boxed{4}", "\\boxed{(B) 4}"][number % 2]) if request.prefix else completion
        )

    choice = Question(id="1", source="s", question="[1] [0.5]", answer="B", options=("3", "4", "5"))
    (first,) = run(tmp_path / "4.jsonl", [choice], Scripted(change=change), rollouts=1, continuations=4)
    assert first["options"] == ["3", "4", "5"]
    assert first["steps_with_score"][0]["score"] == 1.0
    again = tmp_path / "8.jsonl"
    annotate(
        None,
        Scripted(change=change),
        str(again),
        rollouts_from=str(tmp_path / "4.jsonl"),
        continuations=8,
    )
    assert read(again)[0]["steps_with_score"][0]["num_mc_correct"] == 8
    # a corpus that does not give the options: a letter with its text is a letter all the same
    del first["options"]
    (tmp_path / "bare.jsonl").write_text(json.dumps(first) + "\n")
    config = AnnotateConfig(continuations=8)
    only_letters = Scripted(change=lambda _r, _n, completion: replace(completion, text="so \\boxed{(B) 4}"))
    annotate(None, only_letters, str(tmp_path / "x.jsonl"), rollouts_from=str(tmp_path / "bare.jsonl"), config=config)
    assert read(tmp_path / "x.jsonl")[0]["steps_with_score"][0]["num_mc_correct"] == 8


def test_a_topped_up_corpus_keeps_its_ids_numbers_and_ends(tmp_path: Path) -> None:
    def cut(request: Request, number: int, completion: Completion) -> Completion:
        if request.prefix:
            return Completion(text="and", finish_reason="length") if number < 2 else completion
        return replace(completion, finish_reason="length")

    eight = run(tmp_path / "8.jsonl", questions(2), Scripted(change=cut), continuations=8)
    (tmp_path / "part.jsonl").write_text("".join(json.dumps(eight[i]) + "\n" for i in (3, 0, 1)))
    summary = annotate(
        None, Scripted(change=cut), str(tmp_path / "16.jsonl"), rollouts_from=str(tmp_path / "part.jsonl")
    )
    sixteen = read(tmp_path / "16.jsonl")
    assert summary.n_questions == 2
    assert [(r["id"], r["rollout"], r["finish_reason"]) for r in sixteen] == [
        ("1", 1, "length"),
        ("0", 0, "length"),
        ("0", 1, "length"),
    ]
    assert {step["num_mc_cut"] for record in sixteen for step in record["steps_with_score"]} == {4}
    # sampled anew, they are other samples, though the seed is the same
    fresh = Scripted()
    annotate(None, fresh, str(tmp_path / "f.jsonl"), rollouts_from=str(tmp_path / "8.jsonl"), fresh=True)
    first = Scripted()
    run(tmp_path / "again.jsonl", questions(2), first)
    assert not {r.seed for r in fresh.requests} & {r.seed for r in first.requests}


def test_an_id_that_stands_for_several_questions_becomes_the_number_of_the_record(tmp_path: Path) -> None:
    def line(id_: str | None, text: str) -> str:
        record = {"question": text, "answer": "42", "steps_with_score": [{"step": "Step", "score": 1.0}]}
        return json.dumps(record | ({} if id_ is None else {"id": id_})) + "\n"

    lines = [line("x", "[0] [1.0]"), line("x", "[1] [1.0]"), line(None, "[2] [1.0]"), line("x", "[0] [1.0]")]
    (tmp_path / "odd.jsonl").write_text("".join(lines))
    annotate(None, Scripted(), str(tmp_path / "raw.jsonl"), rollouts_from=str(tmp_path / "odd.jsonl"))
    names = [(r["id"], r["rollout"], r["question"][:3]) for r in read(tmp_path / "raw.jsonl")]
    assert names == [("x", 0, "[0]"), ("x", 1, "[0]"), ("#1", 0, "[1]"), ("#2", 0, "[2]")]


def test_a_total_without_the_number_of_successes_is_no_count(tmp_path: Path) -> None:
    record = {"question": "[0] [1.0]", "answer": "42", "steps_with_score": [{"step": "Step", "score": 1.0}]}
    record["steps_with_score"][0]["num_mc_total"] = 8  # type: ignore[index]
    (tmp_path / "odd.jsonl").write_text(json.dumps(record) + "\n")
    annotate(
        None,
        Scripted(),
        str(tmp_path / "raw.jsonl"),
        rollouts_from=str(tmp_path / "odd.jsonl"),
        continuations=8,
    )
    step = read(tmp_path / "raw.jsonl")[0]["steps_with_score"][0]
    assert (step["num_mc_correct"], step["num_mc_total"]) == (8, 8)


def test_given_rollouts_without_a_word_are_counted_and_never_replaced(tmp_path: Path) -> None:
    def entry(id_: str, *texts: str) -> str:
        record = {"id": id_, "question": "[0] [1.0]", "answer": "42", "candidates": [{"text": t} for t in texts]}
        return json.dumps(record) + "\n"

    (tmp_path / "c.jsonl").write_text(entry("a", "", "Step") + entry("b", " ", ""))
    with pytest.raises(MprmError, match=r"1 of 2 questions failed, 1 of them with: all 2 rollouts are empty"):
        annotate(None, Scripted(), str(tmp_path / "x.jsonl"), rollouts_from=str(tmp_path / "c.jsonl"))
    summary = annotate(
        None, Scripted(), str(tmp_path / "y.jsonl"), rollouts_from=str(tmp_path / "c.jsonl"), allow_failures=True
    )
    assert summary.stats["n_empty"] == 1
    assert [(r["id"], r["rollout"]) for r in read(tmp_path / "y.jsonl")] == [("a", 1)]


def test_samplers_that_give_too_few_too_many_or_other_answers_are_found_out(tmp_path: Path) -> None:
    class Odd(Scripted):
        def answer(self, request: Request) -> list[Completion]:
            completions = super().answer(request)
            if not request.prefix:
                return completions
            return [*completions, completions[0]] if self.sleep_s else completions[1:]

    for sampler in (Odd(), Odd(sleep_s=1e-9)):
        with pytest.raises(MprmError, match=r"scripted gave 1[57] answers to request \d, of which 16 were requested"):
            run(tmp_path / "raw.jsonl", questions(2), sampler)


def test_when_all_fail_for_one_reason_the_run_stops_and_says_it(tmp_path: Path) -> None:
    def pinned(*_given: Any) -> Completion:
        return Completion(text="", finish_reason="error", error="HTTP 400: no such model")

    sampler = Scripted(change=pinned)
    with pytest.raises(MprmError, match=r"the first 32 questions all failed, and none was done: HTTP 400"):
        run(tmp_path / "raw.jsonl", questions(100), sampler)
    assert len(sampler.requests) == 32


def test_an_empty_shard_is_an_empty_file(tmp_path: Path) -> None:
    assert run(tmp_path / "raw.jsonl", questions(2), shard="3/3") == []
    (tmp_path / "two.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in run(tmp_path / "a.jsonl", questions(2)))
    )
    config = AnnotateConfig(shard="3/3")
    assert (
        annotate(
            None, Scripted(), str(tmp_path / "b.jsonl"), rollouts_from=str(tmp_path / "two.jsonl"), config=config
        ).n_questions
        == 0
    )
    assert estimate_cost(questions(2), Scripted(), config).stats["n_continuations"] == 0


@pytest.mark.parametrize("name", ["raw.jsonl.gz", "raw.parquet", "new/", "n" * 230 + ".jsonl"])
def test_outputs_that_could_not_be_finished_are_refused_at_once(tmp_path: Path, name: str) -> None:
    sampler = Scripted()
    with pytest.raises(ConfigError):
        annotate(questions(1), sampler, f"{tmp_path}/{name}")
    assert sampler.requests == []


def test_texts_that_are_no_utf8_do_not_end_a_run(tmp_path: Path) -> None:
    def half(request: Request, number: int, completion: Completion) -> Completion:
        return replace(completion, text="Step \ud83d.")

    records = run(tmp_path / "raw.jsonl", questions(1), Scripted(change=half), rollouts=1)
    assert records[0]["response"] == "Step ?."


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"

    def write(request: Request, number: int, completion: Completion) -> Completion:
        out.write_text("somebody else's")
        return completion

    with pytest.raises(OutputExistsError):
        run(out, questions(1), Scripted(change=write))
    assert out.read_text() == "somebody else's"


PROGRAM = """
import sys
from pathlib import Path
from mprm.annotation.annotate import annotate
from tests.annotation.scripted import Scripted, questions
out, log = sys.argv[1:]
annotate(questions(8), Scripted(log=Path(log), sleep_s=0.004), out, rollouts=3)
"""


def started(out: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(out), str(log)], env=environment)


@pytest.mark.slow
def test_twenty_kills_at_random_moments_lose_only_what_is_in_flight(tmp_path: Path) -> None:
    out, log = tmp_path / "raw.jsonl", tmp_path / "log"
    draw = random.Random(0)
    n_kills = 0
    log.touch()
    while n_kills < 20:
        process = started(out, log)
        n_before = log.read_bytes().count(b"\n")
        while log.read_bytes().count(b"\n") == n_before and process.poll() is None:
            time.sleep(0.005)  # until it works at all
        time.sleep(draw.uniform(0.0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the work was done too soon for twenty kills"
        n_kills += 1
    assert started(out, log).wait() == 0
    requests = Counter(log.read_text().splitlines())
    # 8 questions, 3 rollouts of 4 steps: 8 + 96 requests, of which only those that a kill caught come again
    assert len(requests) == 104
    assert sum(requests.values()) - 104 <= 20
    whole = tmp_path / "whole.jsonl"
    annotate(questions(8), Scripted(), whole, rollouts=3)
    assert out.read_bytes() == whole.read_bytes()
    assert len({(r["id"], r["rollout"]) for r in read(out)}) == 24


def test_two_processes_on_one_output_refuse_each_other(tmp_path: Path) -> None:
    out, log = tmp_path / "raw.jsonl", tmp_path / "log"
    process = started(out, log)
    try:
        while not log.exists():
            time.sleep(0.005)
        with pytest.raises(ConfigError, match=r"another process is working on .*raw\.jsonl\.partial"):
            annotate(questions(8), Scripted(), out, rollouts=3)
    finally:
        process.kill()
        process.wait()


def test_other_questions_or_settings_do_not_continue_a_run(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"

    def broken(request: Request, number: int, completion: Completion) -> Completion:
        return Completion(text="", finish_reason="error", error="no") if request.prefix else completion

    with pytest.raises(MprmError, match="2 of 2 questions failed"):
        run(out, questions(2), Scripted(change=broken))
    with pytest.raises(ConfigError, match="begun with other settings: continuations was 16, now 8"):
        run(out, questions(2), continuations=8)
    with pytest.raises(ConfigError, match="begun with other settings: questions was"):
        run(out, questions(3))
    other = Question(id="0", question="[0] [0.5]", answer="43", source="s0")
    with pytest.raises(ConfigError, match="begun with other settings: questions was"):
        run(out, [other])


def test_a_server_that_dies_twenty_times_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("mprm.annotation.samplers.server.HEALTH_CHECK_S", 0.01)
    script = Scripted()

    def answer(body: dict[str, Any], number: int) -> dict[str, Any]:
        said, *begun = (message["content"] for message in body["messages"])
        if not said.startswith("["):  # the sampler gets to know the server
            text = "so"
        else:
            request = Request(prompt=said, prefix="".join(begun), n=body.get("n", 1), seed=body["seed"])
            text = script.answer(request)[number].text
        return {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}

    config, out = AnnotateConfig(rollouts=3), tmp_path / "raw.jsonl"
    draw, is_done = random.Random(1), threading.Event()
    deaths = 0

    def kill(server: ChatServer) -> None:
        nonlocal deaths
        while len(server.requests) < 8:  # a server that has not answered yet is not waited for
            time.sleep(0.005)
        while deaths < 20 and not is_done.wait(draw.uniform(0.04, 0.15)):
            server.die()
            time.sleep(draw.uniform(0.0, 0.05))
            server.start()
            deaths += 1

    with chat_server(answer=answer, delay_s=0.03) as server:
        sampler = HTTPSampler(server.url, "policy", concurrency=4)
        killer = threading.Thread(target=kill, args=(server,))
        killer.start()
        try:
            annotate(questions(10), sampler, str(out), config=config)
        finally:
            is_done.set()
            killer.join()
    assert deaths == 20, "the work was done too soon for twenty deaths"
    annotate(questions(10), Scripted(), str(tmp_path / "whole.jsonl"), config=config)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_other_weights_do_not_continue_a_run_and_another_name_does(tmp_path: Path) -> None:
    def broken(request: Request, number: int, completion: Completion) -> Completion:
        return Completion(text="", finish_reason="error", error="no") if request.prefix else completion

    def policy(name: str, weights: str, change: Any = None) -> Scripted:
        sampler = Scripted(change=change)
        sampler.name, sampler.settings = name, {"weights": weights}
        return sampler

    out = tmp_path / "raw.jsonl"
    with pytest.raises(MprmError, match="2 of 2 questions failed"):
        run(out, questions(2), policy("adder", "one", broken))
    with pytest.raises(ConfigError, match="weights was 'one', now 'other'"):
        run(out, questions(2), policy("adder", "other"))
    assert len(run(out, questions(2), policy("./adder", "one"))) == 4


def test_records_that_cannot_be_used_stop_the_run_or_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    good = run(tmp_path / "good.jsonl", questions(2), continuations=8)
    bad = {**good[0], "steps_with_score": [{"step": "Step", "score": 2.0}]}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*good, bad]))
    with pytest.raises(DataError, match=r"in\.jsonl:5: "):
        annotate(None, Scripted(), str(tmp_path / "x.jsonl"), rollouts_from=str(tmp_path / "in.jsonl"))
    summary = annotate(
        None, Scripted(), str(tmp_path / "x.jsonl"), rollouts_from=str(tmp_path / "in.jsonl"), skip_bad=True
    )
    assert (summary.stats["n_rollouts"], summary.n_dropped) == (4, 1)
    [dropped] = read(Path(str(summary.dropped_to)))
    assert dropped["line"] == 5
