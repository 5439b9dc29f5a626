"""Make the lab from nothing: policies, corpus, benchmarks, candidates, scores. Each part that is there is kept."""

from __future__ import annotations

import copy
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import mprm
from mprm.annotation import SampleConfig, SamplingParams, load_policy
from mprm.data import CandidateSet, atomic_write, check_images_exist, read_benchmark, read_candidates
from mprm.errors import ConfigError, InputNotFoundError, MprmError
from mprm.evaluation import score_benchmark, write_scores
from mprm.models import Backbone, need_torch
from mprm.training import TrainConfig
from mprm_lab.folder import SCORES, Log, whole_folder
from mprm_lab.policy.architecture import Size, new_policy, save_policy
from mprm_lab.policy.train import PolicyTrainConfig, train_policy
from mprm_lab.world import SOURCES, Problem, Verdict, judge_chain, problem_named, problems_of, write_images
from mprm_lab.world.problems import world_version

LABELS: dict[Verdict, int] = {"correct": 1, "incorrect": -1, "neutral": 0}
"""Of VisualProcessBench."""
LOG_EVERY = 250
"""Optimizer steps of a policy between two lines of the log."""
TRAINING: dict[str, Any] = {"batch_size": 64, "per_device": 64, "max_length": 1024}
"""Fields of `mprm.TrainConfig` that all reward models of the lab share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """One policy."""

    kind: str
    """``qwen2_5_vl`` or ``internvl``."""
    size: Size = field(default_factory=Size)
    training: PolicyTrainConfig = field(default_factory=PolicyTrainConfig)
    snapshots: dict[str, float] = field(default_factory=dict)
    """Weaker policies, each saved after this share of the optimizer steps."""


def _policies() -> dict[str, PolicyPlan]:
    usual = Size(hidden=256, layers=5, heads=8, kv_heads=4, intermediate=768, vision_hidden=128, vision_layers=3)
    small = Size(hidden=128, layers=3, heads=4, kv_heads=2, intermediate=384, vision_hidden=96, vision_layers=2)
    training = PolicyTrainConfig(n_optimizer_steps=8000)

    def snapshots(name: str) -> dict[str, float]:
        return {f"{name}-{percent}": percent / 100 for percent in range(20, 100, 10)}

    return {
        "internvl": PolicyPlan(kind="internvl", size=usual, training=training, snapshots=snapshots("internvl")),
        "qwen": PolicyPlan(
            kind="qwen2_5_vl", size=usual, training=replace(training, seed=1), snapshots=snapshots("qwen")
        ),
        "small": PolicyPlan(kind="internvl", size=small, training=replace(training, seed=2)),
    }


_LARGER = {"grid-max": 6, "bars-second": 6, "grid-path": 4, "shapes-points": 3}
CORPUS_SOURCES = tuple(source for source in SOURCES for _ in range(_LARGER.get(source, 1)))
"""Sources of a collected corpus differ in size: here the ones that the policy finds hard are the large ones, which
brings the corpus's share of error steps and of mixed rollouts near the paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The whole lab; the defaults are its real size, for one H200."""

    policies: dict[str, PolicyPlan] = field(default_factory=_policies)
    policies_at_once: int = 3
    """Policies that are trained side by side on one device."""
    corpus_policy: str = "internvl-90"
    """Samples the corpus, and the candidates of best-of-N."""
    benchmark_policies: tuple[str, ...] = ("internvl-40", "internvl-50", "qwen-40", "qwen-70")
    """Sample the benchmark; none of them has a part in the corpus."""
    demo_policy: str = "small"
    """What reward models are trained from where there is no GPU."""
    demo_learning_rate: float = 3e-4
    sources: tuple[str, ...] = tuple(SOURCES)
    """Of the benchmarks and the candidates, in turn."""
    corpus_sources: tuple[str, ...] = CORPUS_SOURCES
    """Of the corpus, in turn; some are listed more than once."""
    corpus_questions: int = 10_000
    rollouts: int = 4
    continuations: int = 16
    benchmark_questions: int = 600
    """For each of the benchmark's policies, one solution each."""
    validation_questions: int = 150
    """Likewise, of the benchmark that hyperparameters are chosen on."""
    best_of_n_questions: int = 600
    candidates: int = 16
    sampling: SamplingParams = field(
        default_factory=lambda: SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=320)
    )
    rows: int | None = 4096
    """Completions that a process samples at a time."""
    shards: int = 6
    """Processes that annotate side by side on one device."""
    device: str = "auto"


def make_lab(out: str | Path, plan: LabPlan | None = None, *, only: tuple[str, ...] = (), log: Log = print) -> None:
    """Make every part that is not there yet, or the parts named in ``only``, in the folder ``out``.

    A part that was interrupted continues where it was, as far as its command can: annotation and sampling do, the
    training of a policy starts over.
    """
    folder, plan = Path(out), plan or LabPlan()
    need_torch()
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PARTS.items():
        if not only or name in only:
            make(folder, plan, log)


def make_policies(folder: Path, plan: LabPlan, log: Log) -> None:
    """Train the policies, several at once; a folder without ``config.json`` is not finished."""
    missing = {}
    for name, policy in plan.policies.items():
        paths = [folder / "policies" / made for made in (name, *policy.snapshots)]
        are_made = [(path / "config.json").is_file() for path in paths]
        if are_made[0] and not all(are_made):  # it comes last, after its snapshots
            raise ConfigError(
                f"{paths[0]} is there without its snapshots, as in an opened lab; make one in another folder"
            )
        if not all(are_made):
            missing[paths[0]] = replace(policy, training=replace(policy.training, device=plan.device))
        # neither the device nor the number of workers changes what training makes
        training = replace(policy.training, dataloader_workers=0, device="auto")
        _check_plan(folder, f"policy-{name}", policy.kind, policy.size, policy.snapshots, training)
    if plan.policies_at_once == 1 or len(missing) < 2:
        for path, policy in missing.items():
            train_and_save(path, policy, log)
        return
    log(f"policies: {', '.join(path.name for path in missing)}, {plan.policies_at_once} at a time")
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device of its parent
    with ProcessPoolExecutor(plan.policies_at_once, mp_context=spawn) as pool:
        list(pool.map(train_and_save, missing, missing.values(), [print] * len(missing)))


def train_and_save(path: Path, plan: PolicyPlan, log: Log) -> None:
    """Train one policy and save it, and its snapshots beside it."""
    name, n_steps = path.name, plan.training.n_optimizer_steps
    policy = new_policy(plan.kind, size=plan.size, seed=plan.training.seed)
    n_parameters = sum(weight.numel() for weight in policy.model.parameters())
    log(f"{name}: training {n_parameters / 1e6:.1f}M parameters for {n_steps:,} optimizer steps")
    snapshots = {round(share * n_steps): snapshot for snapshot, share in plan.snapshots.items()}

    def on_step(step: int, loss: float) -> None:
        if step % LOG_EVERY == 0:
            log(f"{name}: optimizer step {step:,}, loss {loss:.3f}")
        if snapshot := snapshots.get(step + 1):
            _save(policy, path.with_name(snapshot))

    losses = train_policy(policy, plan.training, on_step=on_step)
    _save(policy, path)
    log(f"{name}: loss {losses[0]:.3f} → {sum(losses[-20:]) / len(losses[-20:]):.3f}")


def _save(policy: Backbone, path: Path) -> None:
    """Write a copy in bfloat16, as it is shipped, so that training starts from the same weights everywhere."""
    with whole_folder(path) as partial_path:
        save_policy(replace(policy, model=copy.deepcopy(policy.model).bfloat16()), partial_path)


def make_corpus(folder: Path, plan: LabPlan, log: Log) -> None:
    """Annotate the corpus's questions, in several processes at once."""
    out = folder / "corpus.jsonl"
    details = (plan.corpus_policy, plan.corpus_questions, plan.rollouts, plan.continuations)
    if _is_made(folder, "corpus", out, *details, plan.sampling, plan.corpus_sources):
        return
    _check_policies(folder, plan.corpus_policy)
    questions = write_questions(folder, plan.corpus_sources, "corpus", plan.corpus_questions)
    shards = [folder / "shards" / f"corpus-{index}-of-{plan.shards}.jsonl" for index in range(1, plan.shards + 1)]
    log(f"corpus: {plan.corpus_questions:,} questions in {plan.shards} processes")
    running = [
        subprocess.Popen(_annotate_command(folder, plan, questions, index, shard))
        for index, shard in enumerate(shards, 1)
        if not shard.exists()
    ]
    try:
        failed = [process.returncode for process in running if process.wait()]
    finally:
        for process in running:
            process.kill()
    if failed:
        raise MprmError(f"{len(failed)} of {plan.shards} shards failed; the same command continues with them")
    with atomic_write(str(out)) as temporary, temporary.open("wb") as whole:
        for shard in shards:
            with shard.open("rb") as part:
                shutil.copyfileobj(part, whole)


def _annotate_command(folder: Path, plan: LabPlan, questions: Path, index: int, out: Path) -> list[str]:
    options = {
        "policy": folder / "policies" / plan.corpus_policy,
        "image-root": folder / "images",
        "rollouts": plan.rollouts,
        "continuations": plan.continuations,
        "temperature": plan.sampling.temperature,
        "top-p": plan.sampling.top_p,
        "top-k": plan.sampling.top_k,
        "max-new-tokens": plan.sampling.max_new_tokens,
        "shard": f"{index}/{plan.shards}",
        "device": plan.device,
        **({} if plan.rows is None else {"rows-per-batch": plan.rows}),
    }
    words = [sys.executable, "-m", "mprm", "annotate", str(questions), "--out", str(out)]
    return words + [word for name, value in options.items() for word in (f"--{name}", str(value))]


def make_benchmark(folder: Path, plan: LabPlan, log: Log, *, split: str) -> None:
    """A step benchmark: one solution of each policy to each question, the steps judged by the world.

    ``validation`` is another one on problems of its own, for choosing how reward models are trained.
    """
    out = folder / f"{split}.jsonl"
    n = plan.benchmark_questions if split == "benchmark" else plan.validation_questions
    if _is_made(folder, split, out, *plan.benchmark_policies, n, plan.sampling, plan.sources):
        return
    _check_policies(folder, *plan.benchmark_policies)
    records: list[dict[str, Any]] = []
    for number, name in enumerate(plan.benchmark_policies):
        log(f"{split}: {n:,} solutions by {name}")
        questions = write_questions(folder, plan.sources, split, n, first=number * n)
        sampled = folder / "shards" / f"{split}-{name}.jsonl"
        _sample(folder, plan, name, questions, sampled, n=1)
        records += labeled_solutions(read_candidates(str(sampled)), policy=name)
    _write_lines(out, records)


def labeled_solutions(sets: list[CandidateSet], *, policy: str) -> Iterator[dict[str, Any]]:
    """Every candidate of a policy as a record of VisualProcessBench, each step labeled by the world."""
    for entry in sets:
        question = entry.question
        for candidate in entry.candidates:
            if not candidate.steps:
                continue  # an empty answer has no step to judge
            verdicts = judge_chain(problem_named(question.id), candidate.steps)
            yield {
                "image": list(question.images),
                "question": question.question,
                "answer": question.answer,
                "response": {
                    "steps": list(candidate.steps),
                    "process_correctness": [LABELS[verdict] for verdict in verdicts],
                },
                "policy_model": policy,
                "data_source": question.source,
            }


def make_candidates(folder: Path, plan: LabPlan, log: Log) -> None:
    """Candidates for best-of-N."""
    out = folder / "candidates.jsonl"
    details = (plan.corpus_policy, plan.best_of_n_questions, plan.candidates, plan.sampling, plan.sources)
    if _is_made(folder, "candidates", out, *details):
        return
    _check_policies(folder, plan.corpus_policy)
    log(f"best-of-N: {plan.candidates} candidates for {plan.best_of_n_questions:,} questions")
    questions = write_questions(folder, plan.sources, "best-of-n", plan.best_of_n_questions)
    _sample(folder, plan, plan.corpus_policy, questions, out, n=plan.candidates)


def make_scores(folder: Path, plan: LabPlan, log: Log) -> None:
    """Step scores of a small reward model that was trained on all rollouts: what the demo compares subsets with."""
    out = folder / SCORES
    if _is_made(folder, "scores", out, plan.demo_policy, plan.demo_learning_rate):
        return
    _check_policies(folder, plan.demo_policy)
    log(f"scores: training on all rollouts from {plan.demo_policy}")
    run, images = out.with_suffix(""), folder / "images"
    shutil.rmtree(run, ignore_errors=True)  # of a command that was stopped
    run.parent.mkdir(exist_ok=True)
    benchmark = read_benchmark(str(folder / "benchmark.jsonl"))
    check_images_exist(benchmark, images)
    config = TrainConfig(
        model=str(folder / "policies" / plan.demo_policy),
        out=str(run),
        image_root=str(images),
        learning_rate=plan.demo_learning_rate,
        device=plan.device,  # type: ignore[arg-type]
        gradient_checkpointing=False,
        save_every=0,
        report_to=("none",),
        **TRAINING,
    )
    mprm.train(str(folder / "corpus.jsonl"), config)
    prm = mprm.PRM.from_pretrained(run, device=plan.device, image_root=images)
    scored = score_benchmark(benchmark, prm, model=run.name)
    write_scores(str(out), scored.solutions, config={"model": run.name})
    shutil.rmtree(run)


PARTS: dict[str, Callable[[Path, LabPlan, Log], None]] = {
    "policies": make_policies,
    "corpus": make_corpus,
    "benchmark": partial(make_benchmark, split="benchmark"),
    "validation": partial(make_benchmark, split="validation"),
    "candidates": make_candidates,
    "scores": make_scores,
}
"""In the order in which they need each other."""


def _is_made(folder: Path, part: str, out: Path, *details: object) -> bool:
    """Whether a part's file is there already; its plan is written down first."""
    if out.exists() and not (folder / "plans" / f"{part}.json").exists():
        raise ConfigError(f"{out} is there without its plan, as in an opened lab; make one in another folder")
    _check_plan(folder, part, *details)
    return out.exists()


def _check_plan(folder: Path, part: str, *details: object) -> None:
    """Write down what a part is made with; stops where the folder has one that is made otherwise."""
    path = folder / "plans" / f"{part}.json"
    plan = msgspec.json.encode([world_version(), *details])
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with atomic_write(str(path)) as temporary:
            temporary.write_bytes(plan)
    elif path.read_bytes() != plan:
        raise ConfigError(f"{path}: this part of the lab was begun with another plan; choose another folder")


def _check_policies(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "policies" / name
        if not (path / "config.json").is_file():
            raise InputNotFoundError(f"{path}: no policy there; mprm-lab make {folder} --only policies makes it")


def write_questions(folder: Path, sources: tuple[str, ...], split: str, n: int, *, first: int = 0) -> Path:
    """The file of ``n`` questions, with its images; stops where it holds others."""
    path = folder / "questions" / f"{split}-{first}-{n}.jsonl"
    problems = problems_of(split, n, first=first, sources=sources)
    write_images(problems, folder / "images")
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        _write_lines(path, map(question_record, problems))
        return path
    with path.open("rb") as lines:
        ids = [msgspec.json.decode(line)["id"] for line in lines]
    if ids != [problem.id for problem in problems]:
        raise ConfigError(f"{path} holds other questions than this plan asks for; choose another folder")
    return path


def question_record(problem: Problem) -> dict[str, Any]:
    """A problem as a record of a question file."""
    return {
        "id": problem.id,
        "question": problem.question,
        "answer": problem.answer,
        "image": problem.image,
        "source": problem.source,
        **({"options": problem.options} if problem.options else {}),
    }


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with atomic_write(str(path)) as temporary, temporary.open("wb") as lines:
        for record in records:
            lines.write(msgspec.json.encode(record) + b"\n")


def _sample(folder: Path, plan: LabPlan, policy: str, questions: Path, out: Path, *, n: int) -> None:
    if out.exists():
        return
    out.parent.mkdir(exist_ok=True)
    sampler = load_policy(folder / "policies" / policy, device=plan.device, rows=plan.rows)
    config = SampleConfig(n=n, **asdict(plan.sampling))
    mprm.sample(str(questions), sampler, str(out), config=config, image_root=folder / "images")
