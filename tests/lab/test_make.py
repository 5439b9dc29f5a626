"""The lab's plan holds together, and the lab is made from nothing, in miniature, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import mprm
from mprm.annotation import SamplingParams
from mprm.data import prompt_of, read_benchmark, read_candidates
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.evaluation import read_scores
from mprm.models import load_backbone
from mprm_lab.folder import RECORDS, LabFolder
from mprm_lab.make import LabPlan, PolicyPlan, labeled_solutions, make_lab, train_and_save, write_questions
from mprm_lab.policy.architecture import Size, new_policy
from mprm_lab.policy.train import PolicyTrainConfig, train_policy
from mprm_lab.world import SOURCES, Problem, problems_of, solution
from tests.conftest import raw_record, write_jsonl

SMALL = Size(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vision_hidden=32, vision_layers=1, vision_heads=2
)


def small(kind: str, seed: int) -> PolicyPlan:
    how = PolicyTrainConfig(
        n_optimizer_steps=40,
        n_problems=120,
        tokens_per_batch=3200,
        learning_rate=5e-3,
        warmup=2,
        dataloader_workers=0,
        seed=seed,
    )
    return PolicyPlan(kind=kind, size=SMALL, solving=how, checking=replace(how, n_optimizer_steps=6))


def with_snapshot(policy: PolicyPlan, name: str) -> PolicyPlan:
    return replace(policy, snapshots={name: 0.9})


PLAN = LabPlan(
    policies={"qwen": with_snapshot(small("qwen2_5_vl", 0), "b"), "a": small("internvl", 1)},
    checking_policies=("b",),
    checking_questions=4,
    benchmark_policies=("a-solver", "b"),
    fresh_policies=("qwen", "a"),
    demo_policy="a",
    policies_at_once=2,
    corpus_policy="qwen-solver",
    candidates_policy="b",
    corpus_questions=6,
    rollouts=4,
    continuations=4,
    benchmark_questions=5,
    validation_questions=3,
    best_of_n_questions=4,
    candidates=3,
    sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=40),
    shards=2,
    rows=None,
    device="cpu",
)


@pytest.mark.slow
def test_the_lab_is_made_from_nothing_and_what_is_there_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    make_lab(tmp_path, PLAN, only=("policies",), log=said.append)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(made) == 3
    make_lab(tmp_path, PLAN, log=said.append)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert mprm.check(str(tmp_path / "corpus.jsonl"), image_root=str(tmp_path / "images")).counts.keys() <= {
        "special_token"
    }
    assert 20 <= len((tmp_path / "corpus.jsonl").read_text().splitlines()) <= 24  # some may be empty
    records = [json.loads(line) for line in (tmp_path / "benchmark.jsonl").read_text().splitlines()]
    assert {record["policy_model"] for record in records} == {"a-solver", "b"}
    assert len(records) <= 10
    held_apart = [json.loads(line) for line in (tmp_path / "validation.jsonl").read_text().splitlines()]
    assert {record["policy_model"] for record in held_apart} == {"a-solver", "b"}
    assert not {record["image"][0] for record in held_apart} & {record["image"][0] for record in records}
    candidates = [json.loads(line) for line in (tmp_path / "candidates.jsonl").read_text().splitlines()]
    assert [len(entry["candidates"]) for entry in candidates] == [3] * 4
    scores = read_scores(tmp_path / "scores" / "full.jsonl")
    assert (scores.model, len(scores.solutions)) == ("full", len(records))
    n_said = len(said)
    make_lab(tmp_path, PLAN, log=said.append)
    assert len(said) == n_said  # nothing was left to do
    assert not (tmp_path / "fresh").exists()
    for _ in range(2):
        make_lab(tmp_path, PLAN, only=("fresh",), log=said.append)
    assert len(said) == n_said + 2
    others = [json.loads(line) for line in (tmp_path / "fresh" / "benchmark.jsonl").read_text().splitlines()]
    assert {record["policy_model"] for record in others} == {"qwen", "a"}
    assert not {record["image"][0] for record in others} & {record["image"][0] for record in [*records, *held_apart]}
    fresh = LabFolder.read(tmp_path / "fresh", ("a",))
    assert fresh.hashes["corpus"] == LabFolder.read(tmp_path, ("a",)).hashes["corpus"]
    asked = {entry.question.images for entry in read_candidates(str(fresh.file("candidates")))}
    assert len(asked) == 2
    assert not asked & {entry.question.images for entry in read_candidates(str(tmp_path / "candidates.jsonl"))}


def test_who_makes_the_benchmark_is_made_and_has_no_part_in_the_corpus() -> None:
    plan = LabPlan()
    made = [*plan.policies, *(name for policy in plan.policies.values() for name in policy.snapshots)]
    assert len(made) == len(set(made))
    makers = [plan.corpus_policy, plan.candidates_policy, *plan.benchmark_policies, *plan.checking_policies]
    assert set(makers) <= set(made)
    assert len(set(makers)) == len(makers), "each has one part"
    assert len(plan.benchmark_policies) == 4
    seeds = [training.seed for policy in plan.policies.values() for training in (policy.solving, policy.checking)]
    assert len(set(seeds)) == len(seeds), "policies see problems of their own"


def test_the_lab_has_the_sizes_that_it_promises() -> None:
    plan = LabPlan()
    assert plan.corpus_questions * plan.rollouts >= 40_000
    assert plan.continuations == 16
    assert plan.benchmark_questions * len(plan.benchmark_policies) >= 2_000
    assert (plan.best_of_n_questions >= 500, plan.candidates) == (True, 16)
    assert set(plan.sources) <= set(SOURCES)
    assert len(plan.sources) >= 8
    for policy in plan.policies.values():
        model = new_policy(policy.kind, size=policy.size).model
        assert 1e6 < sum(weight.numel() for weight in model.parameters()) < 1e7


def test_a_folder_with_other_questions_is_not_taken_for_this_plan(tmp_path: Path) -> None:
    sources = ("grid-sum", "bars-total")
    path = write_questions(tmp_path, sources, "corpus", 6)
    assert write_questions(tmp_path, sources, "corpus", 6) == path
    with pytest.raises(ConfigError, match="holds other questions than this plan asks for"):
        write_questions(tmp_path, ("grid-sum",), "corpus", 6)


@pytest.mark.parametrize("part", ["corpus", "benchmark", "validation", "candidates"])
def test_parts_that_need_a_policy_say_so_before_anything_is_drawn(part: str, tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="--only policies makes it"):
        make_lab(tmp_path, only=(part,))
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]


def test_fresh_problems_need_the_backbones_and_the_places_of_their_links(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="--only policies makes it"):
        make_lab(tmp_path, only=("fresh",))
    assert not list(tmp_path.iterdir())
    for name in ("internvl", "qwen"):
        (tmp_path / "policies" / name).mkdir(parents=True)
        (tmp_path / "policies" / name / "config.json").touch()
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "corpus.jsonl").touch()
    with pytest.raises(ConfigError, match=r"fresh/corpus\.jsonl is in the way: a link"):
        make_lab(tmp_path, only=("fresh",))


def test_sources_are_parted_by_their_error_steps(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="--only fresh makes it"):
        make_lab(tmp_path, only=("by-errors",))
    images = ["grid-sum/1.png", "shapes-count/2.png", "bars-above/3.png"]
    scores = [[1.0] * 9 + [0.0], [1.0, 0.0, 0.0], [1.0, 0.5]]  # a tenth, two thirds and none are errors
    rollouts = [raw_record(row) | {"image": image} for image, row in zip(images, scores, strict=True)]
    (tmp_path / "fresh").mkdir()
    for name in RECORDS:
        records = rollouts if name == "corpus" else [{"images": [image], "of": name} for image in images]
        write_jsonl(tmp_path / "fresh" / f"{name}.jsonl", records)
    write_jsonl(tmp_path / "corpus.jsonl", rollouts)
    said: list[str] = []
    make_lab(tmp_path, only=("by-errors",), log=said.append)
    assert [line.rpartition("/")[2] for line in said] == ["rare: bars-above, grid-sum", "frequent: shapes-count"]
    for name in RECORDS:
        lines = (tmp_path / "fresh" / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        assert (tmp_path / "rare" / f"{name}.jsonl").read_bytes() == lines[0] + lines[2]
        assert (tmp_path / "frequent" / f"{name}.jsonl").read_bytes() == lines[1]
    assert (tmp_path / "rare" / "images").readlink() == Path("../images")


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    for name in RECORDS:
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"corpus\.jsonl: no rollouts; remove it"):
        LabFolder.read(tmp_path, ())


def test_a_part_that_was_begun_with_another_plan_is_not_gone_on_with(tmp_path: Path) -> None:
    plan = LabPlan()
    with pytest.raises(InputNotFoundError, match="no policy there"):
        make_lab(tmp_path, plan, only=("corpus",))
    (tmp_path / "corpus.jsonl").touch()
    make_lab(tmp_path, plan, only=("corpus",))  # it is there
    with pytest.raises(ConfigError, match="begun with another plan"):
        make_lab(tmp_path, replace(plan, sampling=replace(plan.sampling, temperature=0.3)), only=("corpus",))


@pytest.mark.parametrize("part", ["corpus", "benchmark", "validation", "candidates", "scores"])
def test_what_an_opened_lab_has_is_not_taken_for_made(tmp_path: Path, part: str) -> None:
    path = tmp_path / ("scores/full.jsonl" if part == "scores" else f"{part}.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(ConfigError, match="is there without its plan, as in an opened lab"):
        make_lab(tmp_path, LabPlan(), only=(part,))
    assert not (tmp_path / "plans" / f"{part}.json").exists()


def test_a_snapshot_holds_the_weights_after_its_share_of_the_optimizer_steps(tmp_path: Path) -> None:
    size = Size(
        hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, vision_hidden=16, vision_layers=1, vision_heads=2
    )
    how = PolicyTrainConfig(n_optimizer_steps=4, n_problems=15, tokens_per_batch=500, dataloader_workers=0)
    plan = PolicyPlan(kind="internvl", size=size, solving=how, snapshots={"b": 0.5})
    train_and_save(tmp_path / "a", plan, None, "cpu", lambda _: None)
    policy, heads = new_policy("internvl", size=size), []
    how = replace(how, device="cpu")
    train_policy(policy, how, on_step=lambda *_: heads.append(policy.model.lm_head.weight.detach().bfloat16()))
    for name, n_steps in (("b", 2), ("a-solver", 4)):
        kept = load_backbone(tmp_path / name, device="cpu").model.lm_head.weight
        assert torch.equal(kept.bfloat16(), heads[n_steps - 1])
    assert not torch.equal(heads[0], heads[1])


def test_a_policy_that_was_made_otherwise_or_stands_without_its_snapshots_is_refused(tmp_path: Path) -> None:
    policy = LabPlan().policies["internvl"]
    plan = replace(
        LabPlan(),
        policies={"one": replace(policy, snapshots={"early": 0.5})},
        corpus_policy="one",
        demo_policy="one",
        benchmark_policies=("early",),
    )
    (tmp_path / "policies" / "one-solver").mkdir(parents=True)
    (tmp_path / "policies" / "one-solver" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="one-solver is there without its snapshots, as in an opened lab"):
        make_lab(tmp_path, plan, only=("policies",))
    (tmp_path / "policies" / "early").mkdir()
    (tmp_path / "policies" / "early" / "config.json").write_text("{}")
    make_lab(tmp_path, plan, only=("policies",))  # all is there
    elsewhere = replace(
        policy, snapshots={"early": 0.5}, solving=replace(policy.solving, device="cpu", dataloader_workers=1)
    )
    make_lab(tmp_path, replace(plan, policies={"one": elsewhere}), only=("policies",))
    longer = replace(elsewhere, solving=replace(policy.solving, n_optimizer_steps=9000))
    with pytest.raises(ConfigError, match=r"policy-one\.json: this part of the lab was begun with another plan"):
        make_lab(tmp_path, replace(plan, policies={"one": longer}), only=("policies",))


def test_a_file_of_questions_asks_what_the_world_asks(tmp_path: Path) -> None:
    problems = problems_of("corpus", 2 * len(SOURCES))
    path = write_questions(tmp_path, tuple(SOURCES), "corpus", 2 * len(SOURCES))
    questions = mprm.read_questions(str(path), image_root=tmp_path / "images")
    assert [prompt_of(question) for question in questions] == [
        prompt_of(example.as_question()) for example in problems
    ]
    assert questions == [example.as_question() for example in problems]
    assert {question.source for question in questions} == set(SOURCES)
    assert problems_of("corpus", 3, first=20) == problems[20:23]


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
    records = list(labeled_solutions(read_candidates(str(tmp_path / "c.jsonl")), policy="small"))
    truth = [record["response"]["process_correctness"] for record in records]
    assert set(truth[0]) <= {1, 0}
    assert truth[1][0] == -1
    assert truth[1][1:-1] == truth[0][1:]
    assert truth[1][-1] == 0
    assert truth[2] == [-1]
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    benchmark = read_benchmark(str(tmp_path / "bench.jsonl"))
    assert [len(chain.steps) for chain in benchmark.chains] == [len(steps), len(steps) + 1, 1]


def _question(example: Problem) -> dict[str, object]:
    question = example.as_question()
    return {
        "id": question.id,
        "source": question.source,
        "question": question.question,
        "answer": question.answer,
        "images": list(question.images),
        "options": list(question.options),
    }
