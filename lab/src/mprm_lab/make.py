"""Make the lab from nothing: policies, corpus, benchmarks, candidates, scores. Each part that is there is kept."""

from __future__ import annotations

import copy
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from mprm.annotation.sample import SampleConfig, sample
from mprm.annotation.samplers.load import load_policy
from mprm.data.candidate_formats import read_candidates
from mprm.data.output import atomic_write
from mprm.errors import ConfigError, InputNotFoundError, MprmError
from mprm.models import Backbone, need_torch
from mprm_lab.plan import LabPlan, PolicyPlan
from mprm_lab.policy.architecture import new_policy, save_policy
from mprm_lab.policy.train_policy import PolicyTraining, train_policy
from mprm_lab.questions import problems_of, write_questions
from mprm_lab.step_benchmark import judged_solutions
from mprm_lab.world import write_images
from mprm_lab.world.vocabulary import world_version

Say = Callable[[str], None]
TELL_EVERY = 250
"""Updates of a policy between two words on how it goes."""


def make_lab(out: str | Path, plan: LabPlan | None = None, *, only: tuple[str, ...] = (), say: Say = print) -> None:
    """Make every part that is not there yet, or the parts named in ``only``, in the folder ``out``.

    A part that was interrupted goes on where it was, as far as its command can: annotation and sampling
    do, the training of a policy begins anew.
    """
    folder, plan = Path(out), plan or LabPlan()
    if unknown := set(only) - PARTS.keys():
        raise ConfigError(f"no part {', '.join(sorted(unknown))} of the lab; expected {', '.join(PARTS)}")
    need_torch()
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PARTS.items():
        if not only or name in only:
            make(folder, plan, say)


def make_policies(folder: Path, plan: LabPlan, say: Say) -> None:
    """Train the policies, several at once; a folder without ``config.json`` is not finished."""
    missing = {
        name: replace(wanted, training=replace(wanted.training, device=plan.device))
        for name, wanted in plan.policies.items()
        if not all((folder / "policies" / made / "config.json").is_file() for made in (name, *wanted.snapshots))
    }
    for name in missing:
        if (there := folder / "policies" / name / "config.json").is_file():  # it comes last, after its snapshots
            raise ConfigError(
                f"{there.parent} is there without its snapshots, as in an opened lab; make one in another folder"
            )
    for name, wanted in plan.policies.items():
        _settle(folder, f"policy-{name}", wanted.kind, wanted.size, wanted.snapshots, _of_the_result(wanted.training))
    if plan.at_once == 1 or len(missing) < 2:
        for name, wanted in missing.items():
            _train(folder / "policies" / name, wanted, say)
        return
    say(f"policies: {', '.join(missing)}, {plan.at_once} at a time")
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device of its parent
    with ProcessPoolExecutor(plan.at_once, mp_context=spawn) as pool:
        training = {
            pool.submit(_train, folder / "policies" / name, wanted, print): wanted for name, wanted in missing.items()
        }
        for done in as_completed(training):
            done.result()


def _of_the_result(how: PolicyTraining) -> PolicyTraining:
    """What decides what training makes: neither where nor by how many."""
    return replace(how, workers=0, device="auto")


def _train(final: Path, wanted: PolicyPlan, say: Say) -> None:
    name = final.name
    policy = new_policy(wanted.kind, size=wanted.size, seed=wanted.training.seed)
    n_weights = sum(weight.numel() for weight in policy.model.parameters())
    say(f"{name}: training {n_weights / 1e6:.1f}M weights for {wanted.training.n_updates:,} updates")

    ends = {round(share * wanted.training.n_updates): kept for kept, share in wanted.snapshots.items()}

    def tell(update: int, loss: float) -> None:
        if update % TELL_EVERY == 0:
            say(f"{name}: update {update:,}, loss {loss:.3f}")
        if kept := ends.get(update + 1):
            _save(policy, final.with_name(kept))

    losses = train_policy(policy, wanted.training, on_update=tell)
    _save(policy, final)
    say(f"{name}: loss {losses[0]:.3f} → {sum(losses[-20:]) / len(losses[-20:]):.3f}")


def _save(policy: Backbone, final: Path) -> None:
    """Write a copy in bfloat16, as it is shipped: who begins from it begins from the same weights."""
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_policy(replace(policy, model=copy.deepcopy(policy.model).bfloat16()), partial)
    shutil.rmtree(final, ignore_errors=True)  # without config.json it is no policy
    partial.replace(final)


def make_corpus(folder: Path, plan: LabPlan, say: Say) -> None:
    """Annotate the corpus's questions, in several processes at once."""
    final = folder / "corpus.jsonl"
    if _is_made(
        folder,
        "corpus",
        final,
        plan.corpus_policy,
        plan.corpus_questions,
        plan.rollouts,
        plan.continuations,
        plan.sampling,
        plan.corpus_sources,
    ):
        return
    _need_policy(folder, plan.corpus_policy)
    questions = _questions(folder, plan.corpus_sources, "corpus", plan.corpus_questions)
    shards = [folder / "shards" / f"corpus-{index}-of-{plan.shards}.jsonl" for index in range(1, plan.shards + 1)]
    say(f"corpus: {plan.corpus_questions:,} questions in {plan.shards} processes")
    running = [
        subprocess.Popen(_annotate(folder, plan, questions, index, shard))
        for index, shard in enumerate(shards, 1)
        if not shard.exists()
    ]
    try:
        failed = [process.returncode for process in running if process.wait()]
    finally:
        for process in running:
            process.kill()
    if failed:
        raise MprmError(f"{len(failed)} of {plan.shards} shards failed; the same command goes on with them")
    with atomic_write(str(final)) as temporary, temporary.open("wb") as whole:
        for shard in shards:
            with shard.open("rb") as part:
                shutil.copyfileobj(part, whole)


def _annotate(folder: Path, plan: LabPlan, questions: Path, index: int, out: Path) -> list[str]:
    how = plan.sampling
    words = [sys.executable, "-m", "mprm", "annotate", str(questions), "--out", str(out)]
    options = {
        "policy": folder / "policies" / plan.corpus_policy,
        "image-root": folder / "images",
        "rollouts": plan.rollouts,
        "continuations": plan.continuations,
        "temperature": how.temperature,
        "top-p": how.top_p,
        "top-k": how.top_k,
        "max-new-tokens": how.max_new_tokens,
        "shard": f"{index}/{plan.shards}",
        "device": plan.device,
    }
    if plan.rows is not None:
        options["rows-per-batch"] = plan.rows
    return words + [word for name, value in options.items() for word in (f"--{name}", str(value))]


def make_benchmark(folder: Path, plan: LabPlan, say: Say) -> None:
    """The benchmark that process reward models are measured on."""
    _judged(folder, plan, say, "benchmark", plan.benchmark_questions)


def make_validation(folder: Path, plan: LabPlan, say: Say) -> None:
    """Another like it, on problems of its own: for nothing but choosing how reward models are trained."""
    _judged(folder, plan, say, "validation", plan.validation_questions)


def _judged(folder: Path, plan: LabPlan, say: Say, split: str, n: int) -> None:
    """One solution of each policy to each of its ``n`` questions, the steps judged by the world."""
    final = folder / f"{split}.jsonl"
    if _is_made(folder, split, final, *plan.benchmark_policies, n, plan.sampling, plan.sources):
        return
    for name in plan.benchmark_policies:
        _need_policy(folder, name)
    records: list[dict[str, Any]] = []
    for place, name in enumerate(plan.benchmark_policies):
        say(f"{split}: {n:,} solutions by {name}")
        questions = _questions(folder, plan.sources, split, n, first=place * n)
        out = folder / "shards" / f"{split}-{name}.jsonl"
        _sample(folder, plan, name, questions, out, n=1)
        records += judged_solutions(read_candidates(str(out)), policy=name)
    with atomic_write(str(final)) as temporary, temporary.open("wb") as lines:
        for record in records:
            lines.write(msgspec.json.encode(record) + b"\n")


def make_candidates(folder: Path, plan: LabPlan, say: Say) -> None:
    """Candidates for best-of-N."""
    final = folder / "candidates.jsonl"
    details = (plan.corpus_policy, plan.best_of_n_questions, plan.candidates, plan.sampling, plan.sources)
    if _is_made(folder, "candidates", final, *details):
        return
    _need_policy(folder, plan.corpus_policy)
    say(f"best-of-N: {plan.candidates} candidates for {plan.best_of_n_questions:,} questions")
    questions = _questions(folder, plan.sources, "best-of-n", plan.best_of_n_questions)
    _sample(folder, plan, plan.corpus_policy, questions, final, n=plan.candidates)


def make_scores(folder: Path, plan: LabPlan, say: Say) -> None:
    """Step scores of a small reward model that has learnt from all rollouts."""
    from mprm_lab.full_data import score_with_full_data

    final = folder / "scores" / "full.jsonl"
    if _is_made(folder, "scores", final, plan.demo_policy, plan.demo_rate):
        return
    _need_policy(folder, plan.demo_policy)
    say(f"scores: training on all rollouts from {plan.demo_policy}")
    final.parent.mkdir(exist_ok=True)
    score_with_full_data(folder, final, policy=plan.demo_policy, learning_rate=plan.demo_rate, device=plan.device)


PARTS: dict[str, Callable[[Path, LabPlan, Say], None]] = {
    "policies": make_policies,
    "corpus": make_corpus,
    "benchmark": make_benchmark,
    "validation": make_validation,
    "candidates": make_candidates,
    "scores": make_scores,
}
"""In the order in which they need each other."""


def _is_made(folder: Path, part: str, final: Path, *details: object) -> bool:
    """Whether a part's file is there already; what it is made with is written down before."""
    if final.exists() and not (folder / "plans" / f"{part}.json").exists():
        raise ConfigError(f"{final} is there without its plan, as in an opened lab; make one in another folder")
    _settle(folder, part, *details)
    return final.exists()


def _settle(folder: Path, part: str, *details: object) -> None:
    """Write down what a part is made with; stops where the folder has one that is made otherwise."""
    path = folder / "plans" / f"{part}.json"
    settled = msgspec.json.encode([world_version(), *details])
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with atomic_write(str(path)) as temporary:
            temporary.write_bytes(settled)
    elif path.read_bytes() != settled:
        raise ConfigError(f"{path}: this part of the lab was begun with another plan; choose another folder")


def _need_policy(folder: Path, name: str) -> None:
    path = folder / "policies" / name
    if not (path / "config.json").is_file():
        raise InputNotFoundError(f"{path}: no policy there; mprm lab make {folder} --only policies makes it")


def _questions(folder: Path, sources: tuple[str, ...], split: str, n: int, *, first: int = 0) -> Path:
    """A file of questions, with its images."""
    path = folder / "questions" / f"{split}-{first}-{n}.jsonl"
    problems = problems_of(split, n, first=first, sources=sources)
    write_images(problems, folder / "images")
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        with path.open("rb") as lines:
            kept = [msgspec.json.decode(line)["id"] for line in lines]
        if kept != [one.id for one in problems]:
            raise ConfigError(f"{path} holds other questions than this plan asks for; choose another folder")
    else:
        write_questions(problems, path)
    return path


def _sample(folder: Path, plan: LabPlan, policy: str, questions: Path, out: Path, *, n: int) -> None:
    if out.exists():
        return
    out.parent.mkdir(exist_ok=True)
    sampler = load_policy(folder / "policies" / policy, device=plan.device, rows=plan.rows)
    config = SampleConfig(n=n, sampling=plan.sampling)
    sample(str(questions), sampler, str(out), config=config, image_root=folder / "images")
