"""Make the lab from nothing: policies, corpus, benchmarks, candidates, scores. Each part that is there is kept."""

from __future__ import annotations

import copy
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import mprm
from mprm.annotation import SamplingParams
from mprm.data import CandidateSet, Solution, atomic_write, check_images_exist, read_benchmark, read_candidates
from mprm.errors import ConfigError, InputNotFoundError, MprmError
from mprm.evaluation import score_benchmark, score_candidates, write_scores
from mprm.models import Backbone, load_backbone, need_torch
from mprm.training import TrainConfig
from mprm_lab.folder import CANDIDATE_SCORES, RECORDS, SCORES, Log, image_names, whole_folder
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


RARE_ERRORS = 0.1
"""Largest share of error steps of a source in ``rare``."""
FRESH_QUESTION = 1_000_000
"""Number of the first question of `make_fresh` in its split."""
SOLVER = "-solver"
"""Ending of a policy's name before it has learned to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """One policy: it learns to solve problems, and then to check solutions."""

    kind: str
    """``qwen2_5_vl`` or ``internvl``."""
    size: Size = field(default_factory=Size)
    solving: PolicyTrainConfig = field(default_factory=PolicyTrainConfig)
    checking: PolicyTrainConfig = field(
        default_factory=lambda: PolicyTrainConfig(
            n_optimizer_steps=3600, n_problems=24_576, learning_rate=7e-4, last_rate=0.0
        )
    )
    snapshots: dict[str, float] = field(default_factory=dict)
    """Weaker policies, each saved after this share of the optimizer steps of solving."""


def _policies() -> dict[str, PolicyPlan]:
    small = Size(hidden=128, layers=8, heads=4, kv_heads=2, intermediate=256, vision_hidden=96, vision_layers=3)

    def plan(kind: str, seed: int, **given: Any) -> PolicyPlan:
        plan = PolicyPlan(kind=kind, **given)
        return replace(plan, solving=replace(plan.solving, seed=seed), checking=replace(plan.checking, seed=seed + 3))

    def snapshots(name: str) -> dict[str, float]:
        return {f"{name}-{percent}": percent / 100 for percent in (30, 35, 40, 45, 50, 55, 70, 80, 90)}

    return {
        "internvl": plan("internvl", 0, snapshots=snapshots("internvl")),
        "qwen": plan("qwen2_5_vl", 1, snapshots=snapshots("qwen")),
        "small": plan("internvl", 2, size=small, solving=PolicyTrainConfig(n_optimizer_steps=10_000)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The whole lab; the defaults are its real size, for one H200."""

    policies: dict[str, PolicyPlan] = field(default_factory=_policies)
    policies_at_once: int = 3
    """Policies that are trained side by side on one device."""
    checking_policies: tuple[str, ...] = ("internvl-30", "internvl-50", "qwen-40", "qwen-55")
    """Sample the rollouts that policies learn to check."""
    corpus_policy: str = "internvl-80"
    """Samples the corpus."""
    benchmark_policies: tuple[str, ...] = ("internvl-35", "internvl-45", "qwen-45", "qwen-50")
    """Sample the benchmark; none of them has a part in the corpus."""
    candidates_policy: str = "internvl-40"
    """Samples the candidates of best-of-N."""
    fresh_policies: tuple[str, ...] = ("internvl", "qwen")
    """Sample what `make_fresh` makes; the first its candidates."""
    demo_policy: str = "small"
    """What reward models are trained from where there is no GPU."""
    demo_learning_rate: float = 3e-4
    sources: tuple[str, ...] = tuple(SOURCES)
    """In turn."""
    checking_questions: int = 3000
    """For each of the policies that sample rollouts to check, `rollouts` each."""
    corpus_questions: int = 10_000
    rollouts: int = 4
    continuations: int = 16
    benchmark_questions: int = 600
    """For each of the benchmark's policies, one solution each."""
    validation_questions: int = 150
    """Likewise, of the benchmark that hyperparameters are chosen on."""
    best_of_n_questions: int = 600
    candidates: int = 16
    first_question: int = 0
    """Number of the benchmark's and the candidates' first question in their splits."""
    sampling: SamplingParams = field(
        default_factory=lambda: SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=320)
    )
    rows: int | None = 2048
    """Completions that a process samples at a time."""
    shards: int = 40
    """Parts of the corpus, each annotated by a process of its own."""
    processes: int = 13
    """That sample side by side on one device."""
    device: str = "auto"


def make_lab(out: str | Path, plan: LabPlan | None = None, *, only: tuple[str, ...] = (), log: Log = print) -> None:
    """Make every part that is not there yet, or the parts named in ``only``, in the folder ``out``.

    A part that was interrupted continues where it was, as far as its command can: annotation and sampling do, the
    training of a policy starts over.
    """
    folder, plan = Path(out), plan or LabPlan()
    need_torch()
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (PARTS | ON_REQUEST).items():
        if name in (only or PARTS):
            make(folder, plan, log)


def make_policies(folder: Path, plan: LabPlan, log: Log) -> None:
    """Train the policies to solve, several at once; a folder without ``config.json`` is not finished."""
    missing = []
    for name, policy in plan.policies.items():
        paths = [folder / "policies" / made for made in (name + SOLVER, *policy.snapshots)]
        are_made = [(path / "config.json").is_file() for path in paths]
        if are_made[0] and not all(are_made):  # it comes last, after its snapshots
            raise ConfigError(
                f"{paths[0]} is there without its snapshots, as in an opened lab; make one in another folder"
            )
        _check_plan(folder, f"policy-{name}", policy.kind, policy.size, policy.snapshots, _as_made(policy.solving))
        missing += [] if all(are_made) else [name]
    _train_all(folder, plan, missing, log, None)


def make_backbones(folder: Path, plan: LabPlan, log: Log) -> None:
    """Train the policies further, to check: what reward models are trained from."""
    checking = folder / "checking.jsonl"
    missing = []
    for name, policy in plan.policies.items():
        _check_plan(folder, f"backbone-{name}", policy.kind, policy.size, _as_made(policy.checking))
        missing += [] if (folder / "policies" / name / "config.json").is_file() else [name]
    if missing:
        _check_policies(folder, *(name + SOLVER for name in missing))
        if not checking.is_file():
            raise InputNotFoundError(f"{checking} is not there; mprm-lab make {folder} --only checking makes it")
    _train_all(folder, plan, missing, log, checking)


def _as_made(training: PolicyTrainConfig) -> PolicyTrainConfig:
    """Neither the device nor the number of workers changes what training makes."""
    return replace(training, dataloader_workers=0, device="auto")


def _train_all(folder: Path, plan: LabPlan, names: list[str], log: Log, checking: Path | None) -> None:
    paths, plans = [folder / "policies" / name for name in names], [plan.policies[name] for name in names]
    if plan.policies_at_once == 1 or len(names) < 2:
        for path, policy in zip(paths, plans, strict=True):
            train_and_save(path, policy, checking, plan.device, log)
        return
    log(f"policies: {', '.join(names)}, {plan.policies_at_once} at a time")
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device of its parent
    with ProcessPoolExecutor(plan.policies_at_once, mp_context=spawn) as pool:
        n = len(names)
        list(pool.map(train_and_save, paths, plans, [checking] * n, [plan.device] * n, [print] * n))


def train_and_save(path: Path, plan: PolicyPlan, checking: Path | None, device: str, log: Log) -> None:
    """Train one policy and save it: to solve, with its snapshots beside it; or to check the rollouts of a file."""
    if checking is None:
        training, path = plan.solving, path.with_name(path.name + SOLVER)
        policy = new_policy(plan.kind, size=plan.size, seed=training.seed)
        rollouts: tuple[Solution, ...] = ()
    else:
        training = plan.checking
        policy = load_backbone(path.with_name(path.name + SOLVER), dtype="float32", device=device)
        rollouts = read_benchmark(str(checking)).solutions
    name, n_steps = path.name, training.n_optimizer_steps
    n_parameters = sum(weight.numel() for weight in policy.model.parameters())
    log(f"{name}: training {n_parameters / 1e6:.1f}M parameters for {n_steps:,} optimizer steps")
    snapshots = {round(share * n_steps): snapshot for snapshot, share in plan.snapshots.items() if not rollouts}

    def on_step(step: int, loss: float) -> None:
        if step % LOG_EVERY == 0:
            log(f"{name}: optimizer step {step:,}, loss {loss:.3f}")
        if snapshot := snapshots.get(step + 1):
            _save(policy, path.with_name(snapshot))

    losses = train_policy(policy, replace(training, device=device), rollouts=rollouts, on_step=on_step)
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
    if _is_made(folder, "corpus", out, *details, plan.sampling, plan.sources):
        return
    _check_policies(folder, plan.corpus_policy)
    questions = write_questions(folder, plan.sources, "corpus", plan.corpus_questions)
    shards = [folder / "shards" / f"corpus-{index}-of-{plan.shards}.jsonl" for index in range(1, plan.shards + 1)]
    log(f"corpus: {plan.corpus_questions:,} questions in {plan.shards} parts")
    options = {"rollouts": plan.rollouts, "continuations": plan.continuations}
    commands = [
        _command(
            folder, plan, "annotate", plan.corpus_policy, questions, shard, shard=f"{i}/{plan.shards}", **options
        )
        for i, shard in enumerate(shards, 1)
        if not shard.exists()
    ]
    _run_all(commands, plan)
    with atomic_write(str(out)) as temporary, temporary.open("wb") as whole:
        for shard in shards:
            with shard.open("rb") as part:
                shutil.copyfileobj(part, whole)


def _command(
    folder: Path, plan: LabPlan, command: str, policy: str, questions: Path, out: Path, **options: Any
) -> list[str]:
    """A command of mprm that lets a policy sample."""
    options = {
        "policy": folder / "policies" / policy,
        "image-root": folder / "images",
        "temperature": plan.sampling.temperature,
        "top-p": plan.sampling.top_p,
        "top-k": plan.sampling.top_k,
        "max-new-tokens": plan.sampling.max_new_tokens,
        "device": plan.device,
        **({} if plan.rows is None else {"rows-per-batch": plan.rows}),
        **options,
    }
    words = [sys.executable, "-m", "mprm", command, str(questions), "--out", str(out)]
    return words + [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _run_all(commands: list[list[str]], plan: LabPlan) -> None:
    """Run the commands, some at a time; an error where one fails, once all have ended."""
    with ThreadPoolExecutor(plan.processes) as pool:
        try:
            codes = list(pool.map(lambda command: subprocess.run(command, check=False).returncode, commands))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C reaches those that run, and starts no others
    if n_failed := sum(map(bool, codes)):
        raise MprmError(f"{n_failed} of {len(codes)} processes failed; the same command continues with them")


def make_benchmark(folder: Path, plan: LabPlan, log: Log, *, split: str) -> None:
    """A step benchmark: solutions of each policy to questions of its own, the steps judged by the world.

    ``validation`` is another one on problems of its own, for choosing how reward models are trained, and ``checking``
    the one that policies learn to check on.
    """
    out = folder / f"{split}.jsonl"
    names = plan.checking_policies if split == "checking" else plan.benchmark_policies
    n: int = getattr(plan, f"{split}_questions")
    n_solutions = plan.rollouts if split == "checking" else 1
    if _is_made(folder, split, out, *names, n, n_solutions, plan.sampling, plan.sources):
        return
    _check_policies(folder, *names)
    log(f"{split}: {n:,} questions each for {', '.join(names)}")
    sampled = {name: folder / "shards" / f"{split}-{name}.jsonl" for name in names}
    firsts = [plan.first_question + number * n for number in range(len(names))]
    questions = [write_questions(folder, plan.sources, split, n, first=first) for first in firsts]
    commands = [
        _command(folder, plan, "sample", name, asked, sampled[name], n=n_solutions)
        for name, asked in zip(names, questions, strict=True)
        if not sampled[name].exists()
    ]
    _run_all(commands, plan)
    made = ((name, read_candidates(str(path))) for name, path in sampled.items())
    _write_lines(out, (record for name, sets in made for record in labeled_solutions(sets, policy=name)))


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
    out, policy = folder / "candidates.jsonl", plan.candidates_policy
    if _is_made(folder, "candidates", out, policy, plan.best_of_n_questions, plan.candidates, plan.sampling):
        return
    _check_policies(folder, policy)
    log(f"best-of-N: {plan.candidates} candidates for {plan.best_of_n_questions:,} questions")
    n, first = plan.best_of_n_questions, plan.first_question
    questions = write_questions(folder, plan.sources, "best-of-n", n, first=first)
    _run_all([_command(folder, plan, "sample", policy, questions, out, n=plan.candidates)], plan)


def make_fresh(folder: Path, plan: LabPlan, log: Log) -> None:
    """A lab in ``fresh``: other problems, solved by the backbones themselves, for what was chosen on the lab's own.

    It shares corpus and backbones with the lab. An opened lab has no snapshots, so that the backbones, which solve
    most problems, sample hotter.
    """
    _check_policies(folder, *plan.fresh_policies)
    inner = _linked(folder, "fresh", "policies", "images", "corpus.jsonl", "validation.jsonl")
    fresh = replace(
        plan,
        benchmark_policies=plan.fresh_policies,
        candidates_policy=plan.fresh_policies[0],
        best_of_n_questions=plan.best_of_n_questions // 2,
        first_question=FRESH_QUESTION,
        sampling=replace(plan.sampling, temperature=1.8, top_p=0.9),
    )
    make_benchmark(inner, fresh, log, split="benchmark")
    make_candidates(inner, fresh, log)


def _linked(folder: Path, inner: str, *names: str) -> Path:
    """A folder in the lab with links to some of its parts."""
    (folder / inner).mkdir(exist_ok=True)
    for name in names:
        link, target = folder / inner / name, Path("..") / name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target)
        if not link.is_symlink() or link.readlink() != target:
            raise ConfigError(f"{link} is in the way: a link to {folder / name} belongs there; move it elsewhere")
    return folder / inner


def make_by_errors(folder: Path, _plan: LabPlan, log: Log) -> None:
    """Two labs: ``rare`` has the sources in which few steps of the corpus are errors, ``frequent`` the others.

    Benchmark and candidates are those of ``fresh``.
    """
    if not (folder / "fresh" / "candidates.jsonl").is_file():
        raise InputNotFoundError(f"{folder / 'fresh'} is not there; mprm-lab make {folder} --only fresh makes it")
    images = {name: list(_sources_of(folder / "fresh" / f"{name}.jsonl")) for name in RECORDS}
    n_errors, n_steps = Counter[str](), Counter[str]()
    for source, rollout in zip(images["corpus"], mprm.open_corpus(folder / "corpus.jsonl"), strict=True):
        n_steps[source] += len(rollout.scores)
        n_errors[source] += rollout.scores.count(0.0)
    rare = {source for source in n_steps if n_errors[source] <= RARE_ERRORS * n_steps[source]}
    for name, sources in (("rare", rare), ("frequent", n_steps.keys() - rare)):
        inner = _linked(folder, name, "policies", "images")
        for part, of_record in images.items():
            lines = (folder / "fresh" / f"{part}.jsonl").read_bytes().splitlines(keepends=True)
            with atomic_write(str(inner / f"{part}.jsonl")) as temporary:
                kept = (line for line, source in zip(lines, of_record, strict=True) if source in sources)
                temporary.write_bytes(b"".join(kept))
        log(f"{inner}: {', '.join(sorted(sources))}")


def _sources_of(path: Path) -> Iterator[str]:
    """The source of each record of a file of the lab, by its picture's folder."""
    with path.open("rb") as lines:
        yield from (name.split("/")[0] for name in image_names(lines, str(path)))


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
    chosen = score_candidates(read_candidates(str(folder / "candidates.jsonl")), prm)
    for path, scored in ((folder / CANDIDATE_SCORES, chosen), (out, score_benchmark(benchmark, prm))):
        write_scores(str(path), scored.solutions, config={"model": scored.model})
    shutil.rmtree(run)


PARTS: dict[str, Callable[[Path, LabPlan, Log], None]] = {
    "policies": make_policies,
    "checking": partial(make_benchmark, split="checking"),
    "backbones": make_backbones,
    "corpus": make_corpus,
    "benchmark": partial(make_benchmark, split="benchmark"),
    "validation": partial(make_benchmark, split="validation"),
    "candidates": make_candidates,
    "scores": make_scores,
}
"""In the order in which they need each other."""
ON_REQUEST: dict[str, Callable[[Path, LabPlan, Log], None]] = {"fresh": make_fresh, "by-errors": make_by_errors}
"""Parts that are made only where they are named."""


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
        is_same = list(lines) == [msgspec.json.encode(question_record(problem)) + b"\n" for problem in problems]
    if not is_same:
        raise ConfigError(f"{path} holds other questions than this plan asks for; remove it, or take another folder")
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
