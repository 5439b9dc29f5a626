"""``mprm sample``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from mprm.annotation.run import check_output
from mprm.annotation.sample import SampleConfig, sample
from mprm.annotation.samplers.load import SamplerOptions
from mprm.cli.annotate import run_remarks
from mprm.cli.arguments import as_json, parsed
from mprm.config import Json, Option
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class SampleCommand(SampleConfig, SamplerOptions):
    """Sample several answers of a policy to each question. A run that was stopped continues where it was."""

    questions: Annotated[
        tuple[str, ...],
        Option("Files, globs or folders of questions.", "QUESTIONS", group="input", is_positional=True),
    ]
    out: Annotated[str, Option("Where the candidates go, one line a question.", "FILE", group="output")]
    json: Json = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.sample`, print."""
    example = "mprm sample questions.jsonl --policy Qwen2.5-VL-7B-Instruct --out candidates.jsonl"
    options = parsed(SampleCommand, arguments, command="sample", example=example)
    options.check_sampler(options.out)
    check_output(options.out, options.questions, force=options.force)  # before a policy is loaded
    config = options.narrowed(SampleConfig)
    summary = sample(options.questions, options.sampler(), options.out, config, progress=progress_bar)
    if options.json:
        print(as_json(asdict(summary)))
        return 0
    print(f"{summary.n_done:,} questions with {options.n} candidates each in {summary.out}.")
    n_truncated, n_candidates = summary.stats["n_truncated"], summary.stats["n_candidates"]
    if n_truncated:
        limit = f"{options.max_new_tokens:,} tokens"
        print(f"{n_truncated:,} of {n_candidates:,} candidates were cut off at {limit}.")
    for remark in run_remarks(summary):
        print(remark)
    return 0
