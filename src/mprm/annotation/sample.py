"""``mprm sample``: several answers of a policy to each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm.annotation.annotate import Advance, Watch, unwatched_watch
from mprm.annotation.journal import Journal, check_output, commonest, write_failed
from mprm.annotation.samplers.sampler import (
    Completion,
    Request,
    Sampler,
    SamplingParams,
    answers,
    derived_seed,
    identity_of,
)
from mprm.data.candidate_formats import split_steps
from mprm.data.corpus import hash_file, write_manifest
from mprm.data.images import image_files
from mprm.data.output import atomic_write, check_overwrite
from mprm.data.questions import given_questions
from mprm.data.types import Question
from mprm.errors import MprmError


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """What is sampled; the defaults are the paper's for best-of-N."""

    n: int = 16
    """Candidates of each question."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """With the question's source and id it seeds the question's candidates."""
    max_steps: int | None = None
    """Most steps a candidate is split into; as many as it has blank lines when None."""

    def __post_init__(self) -> None:
        Request(prompt="", n=self.n, sampling=self.sampling)  # refuses what makes no sense
        split_steps("", self.max_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSummary:
    """What became of the questions: questions = done + failed."""

    out: str
    n_questions: int
    n_done: int
    n_failed: int
    n_continued: int
    """Of those done, the ones that an earlier run had done."""
    n_candidates: int
    n_cut: int
    """Candidates that the token limit cut off."""
    renamed_images: dict[str, str]
    """Images that lie under the image root by another name than the question's: that name, by the question's."""
    failed_to: str | None
    manifest: str


def sample(
    questions: Any,
    sampler: Sampler,
    out: str,
    *,
    config: SampleConfig | None = None,
    format: str | None = None,
    image_root: str | Path | None = None,
    allow_failures: bool = False,
    force: bool = False,
    watch: Watch = unwatched_watch,
) -> SampleSummary:
    """Write each question with its candidates to ``out``, in the questions' order.

    Each question is saved in ``OUT.partial`` as soon as it is done; the same call continues there
    after whatever stopped it. A question of which a candidate could not be had fails: it is listed
    with its reasons in ``OUT.failed``, and tried again by the next call.

    Parameters
    ----------
    questions
        Whatever `mprm.data.questions.read_questions` takes, or a list of `Question`.
    image_root
        Folder of the images; paths that leave it are refused.
    allow_failures
        Write ``out`` without the questions that failed, instead of stopping before it.
    watch
        Shows how far the work is.
    """
    out, config = str(out), config or SampleConfig()
    check_output(out, questions, force=force)
    renamed: dict[str, str] = {}
    entries, inputs = given_questions(questions, format, image_root, renamed)
    requests = [_request(question, config, image_root) for question in entries]
    run = {**identity_of(sampler), **_settings(config), "questions": _digest(entries)}
    with Journal(out, run=run, force=force) as journal:
        check_overwrite(out, force=force)  # again: nobody else can finish it from now on
        todo = [number for number, question in enumerate(entries) if _key(question) not in journal]
        with watch("sampling", len(todo) * config.n) as advance:
            reasons = _fill(journal, sampler, [(entries[i], requests[i]) for i in todo], config, advance)
        failed_to = write_failed(out, reasons)
        if reasons and (not allow_failures or len(reasons) == len(entries)):
            raise MprmError(
                f"{len(reasons):,} of {len(entries):,} questions failed, {commonest(reasons)}. Each has its reason in"
                f" {failed_to}; the others are kept in {journal.path}. The same command asks for the failed ones"
                " again; with --allow-failures it goes on without those that fail"
            )
        n_cut, manifest = _write(out, journal, entries, reasons, inputs, {"policy": sampler.name, **run})
        journal.remove()
    n_done = len(entries) - len(reasons)
    return SampleSummary(
        out=out,
        n_questions=len(entries),
        n_done=n_done,
        n_failed=len(reasons),
        n_continued=len(entries) - len(todo),
        n_candidates=n_done * config.n,
        n_cut=n_cut,
        renamed_images=renamed,
        failed_to=failed_to,
        manifest=manifest,
    )


def _key(question: Question) -> tuple[str, str]:
    return question.source, question.id


def _digest(entries: Sequence[Question]) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([asdict(question) for question in entries]))


def _settings(config: SampleConfig) -> dict[str, Any]:
    return {"n": config.n, **asdict(config.sampling), "seed": config.seed, "max_steps": config.max_steps}


def _request(question: Question, config: SampleConfig, image_root: str | Path | None) -> Request:
    from mprm.data.questions import prompt_of

    return Request(
        prompt=prompt_of(question),
        images=image_files(question, image_root),
        n=config.n,
        seed=derived_seed(config.seed, question.source, question.id),
        sampling=config.sampling,
    )


def _fill(
    journal: Journal,
    sampler: Sampler,
    asked: Sequence[tuple[Question, Request]],
    config: SampleConfig,
    advance: Advance,
) -> dict[tuple[str, str], list[str]]:
    """Save each question as its candidates are there; returns the reasons of those that failed."""
    reasons = {}
    for number, completions in answers(sampler, (request for _, request in asked)):
        advance(len(completions))
        question = asked[number][0]
        errors = [c.error or "no reason given" for c in completions if c.finish_reason == "error"]
        if errors:
            reasons[_key(question)] = sorted(set(errors))
        else:
            journal.add(_record(question, completions, config.max_steps))
    if any(_key(question) not in journal and _key(question) not in reasons for question, _ in asked):
        raise MprmError(f"{sampler.name} left requests unanswered; those that are done are kept in {journal.path}")
    return reasons


def _record(question: Question, completions: Sequence[Completion], max_steps: int | None) -> dict[str, Any]:
    candidates = [
        {"text": c.text, "steps": split_steps(c.text, max_steps), "finish_reason": c.finish_reason}
        for c in completions
    ]
    return {
        "id": question.id,
        "source": question.source,
        "question": question.question,
        "answer": question.answer,
        "images": question.images,
        "options": question.options,
        "candidates": candidates,
    }


def _write(
    out: str,
    journal: Journal,
    entries: Sequence[Question],
    reasons: dict[tuple[str, str], list[str]],
    inputs: list[dict[str, Any]],
    run: dict[str, Any],
) -> tuple[int, str]:
    """Copy the journal's records in the questions' order; returns how many candidates were cut, and the manifest."""
    sources: dict[str, dict[str, int]] = {}
    n_cut = 0
    with atomic_write(out) as temporary:
        with temporary.open("wb") as lines:
            for question in entries:
                counts = sources.setdefault(question.source, {"read": 0, "done": 0, "failed": 0, "cut": 0})
                counts["read"] += 1
                if _key(question) in reasons:
                    counts["failed"] += 1
                    continue
                line = journal.line(_key(question))
                record = msgspec.json.decode(line)
                cut = sum(candidate["finish_reason"] == "length" for candidate in record["candidates"])
                counts["done"] += 1
                counts["cut"] += cut
                n_cut += cut
                lines.write(line)
        output = {"path": out, "n_bytes": temporary.stat().st_size, "xxh3_128": hash_file(str(temporary))}
        manifest = write_manifest(out, command="sample", config=run, inputs=inputs, sources=sources, output=output)
    return n_cut, manifest
