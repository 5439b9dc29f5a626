"""``mprm annotate`` and ``mprm sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.annotation.annotate import AnnotateConfig, SampleConfig, annotate, estimate_cost, sample
from mprm.annotation.samplers.sampler import Sampler, SamplerOptions
from mprm.cli.arguments import as_json, command
from mprm.config import Json, RayAddress, compute, output, positional
from mprm.errors import ConfigError, counted
from mprm.progress import progress_bar

if TYPE_CHECKING:
    from mprm.annotation.annotate import CostEstimate, RunSummary


Questions = Annotated[tuple[str, ...], positional("Files, globs, folders of questions.", "QUESTIONS")]


@dataclass(frozen=True, kw_only=True)
class AnnotateCommand(AnnotateConfig, SamplerOptions):
    """Monte-Carlo step labels: sample rollouts of each question, and continuations of each of their prefixes.

    A step's score is the share of the continuations that reach the right answer. A run that was stopped
    continues where it was.
    """

    questions: Questions = ()
    out: Annotated[str | None, output("Where the rollouts go, one line each.", "FILE")] = None
    engine: Annotated[
        Literal["local", "ray"],
        compute("Where the policy of --policy runs: here, or one copy a GPU of a Ray cluster."),
    ] = "local"
    ray_workers: Annotated[int | None, compute("Copies of the policy in Ray; one a GPU by default.", at_least=1)] = (
        None
    )
    ray_address: RayAddress = None
    dry_run: Annotated[bool, output("Try a few questions and say what the run would cost; keep nothing.")] = False
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.questions) == bool(self.rollouts_from):
            raise ConfigError("name either QUESTIONS or --rollouts-from FILE")
        if self.out is None and not self.dry_run:
            raise ConfigError("say with --out FILE where the rollouts go, or ask for the cost with --dry-run")
        if self.engine == "ray" and self.policy is None:
            raise ConfigError("--engine ray is for --policy; a server takes requests from one process as well")
        self.check_sampler(self.out)

    def engine_sampler(self) -> Sampler:
        """The policy, where it is to run."""
        if self.engine == "local":
            return self.sampler()
        from mprm.annotation.samplers.ray import RaySampler

        return RaySampler(self.sampler, workers=self.ray_workers, address=self.ray_address)


EXAMPLE = "questions.jsonl --policy Qwen/Qwen2.5-VL-7B-Instruct --image-root images --out raw.jsonl"


@command(AnnotateCommand, "annotate", EXAMPLE)
def run_annotate(options: AnnotateCommand) -> None:
    questions = options.questions or None
    if options.dry_run:
        cost = estimate_cost(questions, options.engine_sampler, options, progress=progress_bar)
        print(as_json(cost) if options.json else _cost_text(cost))
        return
    summary = annotate(questions, options.engine_sampler, str(options.out), options, progress=progress_bar)
    print(as_json(summary) if options.json else "\n".join(_summary_lines(summary, options)))


def _cost_text(cost: CostEstimate) -> str:
    hours, stats = cost.seconds / 3600, cost.stats
    time = f"{hours:,.1f} hours" if hours >= 1 else f"{cost.seconds / 60:,.1f} minutes"
    tokens = f" of {stats['n_tokens']:,.0f} tokens" if stats["n_tokens"] else ""
    return (
        f"{counted(cost.n_questions, 'question')} would make about {stats['n_rollouts']:,.0f} rollouts with"
        f" {stats['n_steps']:,.0f} steps and take {stats['n_continuations']:,.0f} continuations{tokens}:"
        f" {time} at the speed of the {cost.n_tried} that were tried"
        f" ({stats['n_correct'] / max(1, stats['n_continuations']):.0%} of their continuations correct)."
        " Nothing was kept."
    )


def _summary_lines(summary: RunSummary, config: AnnotateConfig) -> list[str]:
    stats: dict[str, Any] = summary.stats
    n_known = stats["n_continuations"] - stats["n_failed"]
    new = "new " if config.rollouts_from else ""
    limit = f"{config.max_new_tokens:,} tokens"
    lines = [
        f"{counted(stats['n_rollouts'], 'rollout')} of {counted(summary.n_done, 'question')},"
        f" {counted(stats['n_steps'], 'step')}, in {summary.out}.",
        f"{stats['n_continuations']:,} {new}continuations, {stats['n_correct'] / n_known:.1%} of them correct."
        if n_known
        else "No continuation was missing.",
    ]
    remarks = {
        "n_truncated_rollouts": f"rollouts were cut off at {limit}.",
        "n_empty": "rollouts were empty and have no record.",
        "n_unsampled": "steps were never sampled: they follow one that never succeeded.",
        "n_truncated": f"continuations had no answer at {limit} and count as incorrect; see num_mc_cut of each step.",
        "n_failed": "continuations could not be graded and count neither way; see num_mc_failed of each step.",
    }
    lines += [f"{stats[name]:,} {remark}" for name, remark in remarks.items() if stats[name]]
    if config.adaptive:
        share = stats["n_skipped"] / max(1, stats["n_skipped"] + stats["n_continuations"])
        lines.append(f"{stats['n_skipped']:,} continuations ({share:.0%}) were skipped by the adaptive rule.")
    if stats["n_audited"]:
        n_audited, n_disagreed = stats["n_audited"], stats["n_disagreed"]
        lines.append(
            f"Of {n_audited:,} audited steps that it had decided, {n_disagreed:,} would have had another label"
            f" ({n_disagreed / n_audited:.2%}) and their scores differ by {stats['audit_shift'] / n_audited:+.3f} on"
            f" average; they have those of all {config.continuations}."
        )
    return lines + run_remarks(summary)


def run_remarks(summary: RunSummary) -> list[str]:
    """What else is to be known of a run."""
    from mprm.data.questions import extracted_golds

    lines = extracted_golds(summary.n_extracted, summary.n_questions)
    if summary.n_resumed:
        lines.append(f"{summary.n_resumed:,} of the questions were done by an earlier run.")
    if summary.renamed_images:
        name, path = next(iter(summary.renamed_images.items()))
        lines.append(
            f"{len(summary.renamed_images):,} images were found under another name, such as {name} as {path}:"
            " are they the right ones?"
        )
    if summary.n_dropped:
        lines.append(f"{counted(summary.n_dropped, 'record')} could not be used, reasons in {summary.dropped_to}.")
    if summary.n_failed:
        lines.append(f"{counted(summary.n_failed, 'question')} failed, each with its reason in {summary.failed_to}.")
    return lines


@dataclass(frozen=True, kw_only=True)
class SampleCommand(SampleConfig, SamplerOptions):
    """Sample several answers of a policy to each question. A run that was stopped continues where it was."""

    questions: Questions
    out: Annotated[str, output("Where the candidates go, one line a question.", "FILE")]
    json: Json = False


@command(SampleCommand, "sample", "questions.jsonl --policy Qwen/Qwen2.5-VL-7B-Instruct --out candidates.jsonl")
def run_sample(options: SampleCommand) -> None:
    options.check_sampler(options.out)
    summary = sample(options.questions, options.sampler, options.out, options, progress=progress_bar)
    if options.json:
        print(as_json(summary))
        return
    print(f"{counted(summary.n_done, 'question')} with {counted(options.n, 'candidate')} each in {summary.out}.")
    n_truncated, n_candidates = summary.stats["n_truncated"], summary.stats["n_candidates"]
    if n_truncated:
        print(f"{n_truncated:,} of {n_candidates:,} candidates were cut off at {options.max_new_tokens:,} tokens.")
    for remark in run_remarks(summary):
        print(remark)
