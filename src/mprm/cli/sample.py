"""``mprm sample``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from mprm.annotation.samplers.load import SamplerOptions
from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import counting
from mprm.config import Force, Json, Option


@dataclass(frozen=True, kw_only=True)
class SampleCommand(SamplerOptions):
    """Let a policy answer each question several times. A run that was stopped continues where it was."""

    questions: Annotated[
        tuple[str, ...], Option("Files, globs or folders of questions.", "QUESTIONS", is_positional=True)
    ]
    out: Annotated[str, Option("Where the candidates go, one line a question.", "FILE")]
    n: Annotated[int, Option("Candidates of each question.", "N")] = 16
    seed: Annotated[int, Option("Seed; each question has its own made from it.", "N")] = 0
    max_steps: Annotated[int | None, Option("Most steps a candidate is split into.", "N")] = None
    questions_format: Annotated[
        str | None, Option("Format of the questions, where the first record must not decide.", "NAME")
    ] = None
    image_root: Annotated[str | None, Option("Folder that holds the questions' images.", "DIR")] = None
    allow_failures: Annotated[
        bool, Option("Write the output without the questions that failed, instead of stopping before it.")
    ] = False
    force: Force = False
    json: Json = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.sample`, print."""
    options = parsed(
        SampleCommand,
        arguments,
        command="sample",
        example="mprm sample questions.jsonl --server http://localhost:8000/v1 --served-model NAME --out out.jsonl",
    )
    options.check_sampler(options.out)
    from mprm.annotation.journal import check_output
    from mprm.annotation.sample import SampleConfig, sample

    config = SampleConfig(
        n=options.n, sampling=options.sampling_params(), seed=options.seed, max_steps=options.max_steps
    )
    check_output(options.out, options.questions, force=options.force)
    summary = sample(
        options.questions,
        options.sampler(),
        options.out,
        config=config,
        format=options.questions_format,
        image_root=options.image_root,
        allow_failures=options.allow_failures,
        force=options.force,
        watch=counting,
    )
    if options.json:
        print(as_json(asdict(summary)))
        return 0
    print(f"{summary.n_done:,} questions with {options.n} candidates each in {summary.out}.")
    if summary.n_continued:
        print(f"{summary.n_continued:,} of them were done by an earlier run.")
    if summary.renamed_images:
        name, path = next(iter(summary.renamed_images.items()))
        print(
            f"{len(summary.renamed_images):,} images were found under another name, such as {name} as {path}:"
            " are they the right ones?"
        )
    if summary.n_cut:
        limit = options.max_new_tokens
        print(f"{summary.n_cut:,} of {summary.n_candidates:,} candidates were cut off at {limit:,} tokens.")
    if summary.n_failed:
        print(f"{summary.n_failed:,} questions failed, each with its reason in {summary.failed_to}.")
    return 0
