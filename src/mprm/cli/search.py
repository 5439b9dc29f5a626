"""``mprm search``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.annotation.samplers.sampler import SamplerOptions
from mprm.cli.annotate import Questions, run_remarks
from mprm.cli.arguments import ScorerOptions, as_json, command
from mprm.config import Json, output
from mprm.errors import counted
from mprm.evaluation.search import SearchConfig, search
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class SearchCommand(SearchConfig, SamplerOptions, ScorerOptions):
    """Search for solutions step by step: a policy samples steps, a process reward model chooses which to continue.

    A run that was stopped continues where it was.
    """

    questions: Questions
    out: Annotated[str, output("Where the candidates go, one line a question.", "FILE")]
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_scorer()
        self.check_sampler(self.out)


EXAMPLE = "questions.jsonl --policy Qwen/Qwen2.5-VL-7B-Instruct --model runs/bis10 --out beam.jsonl"


@command(SearchCommand, "search", EXAMPLE)
def run_search(options: SearchCommand) -> None:
    summary = search(options.questions, options.sampler, options.scorer, options.out, options, progress=progress_bar)
    if options.json:
        print(as_json(summary))
        return
    stats = summary.stats
    print(f"{counted(summary.n_done, 'question')} with {counted(options.n, 'candidate')} each in {summary.out}.")
    if tokens := stats["n_tokens"]:
        print(f"{tokens:,} tokens were sampled, {tokens / summary.n_done:,.0f} a question, dropped steps included.")
    if stats["n_truncated"]:
        limits = f"{options.max_new_tokens:,} tokens or {options.max_steps:,} steps"
        print(f"{stats['n_truncated']:,} of {stats['n_candidates']:,} candidates were cut off at {limits}.")
    if stats["n_unscored"]:
        print(f"{stats['n_unscored']:,} steps are beyond the reward model's length, and have no score.")
    for remark in run_remarks(summary):
        print(remark)
