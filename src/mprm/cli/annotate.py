"""``mprm annotate``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mprm.annotation.samplers.load import SamplerOptions
from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import noting
from mprm.config import Force, Json, Option, SkipBad
from mprm.data.engine import EngineName
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from mprm.annotation.annotate import AnnotateConfig, AnnotateSummary, Estimate
    from mprm.annotation.samplers.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class AnnotateCommand(SamplerOptions):
    """Monte-Carlo step labels: let a policy answer each question, and continue each answer from each of its steps.

    A step's score is the share of the continuations that reach the right answer. A run that was stopped
    continues where it was.
    """

    questions: Annotated[
        tuple[str, ...], Option("Files, globs or folders of questions.", "QUESTIONS", is_positional=True)
    ] = ()
    out: Annotated[str | None, Option("Where the rollouts go, one line each.", "FILE")] = None
    rollouts_from: Annotated[
        tuple[str, ...],
        Option("Annotate these rollouts or candidates instead; counts that they carry are added to.", "FILE"),
    ] = ()
    fresh: Annotated[bool, Option("Draw all continuations anew, whatever counts the rollouts carry.")] = False
    rollouts: Annotated[int, Option("Rollouts of each question.", "N")] = 4
    continuations: Annotated[int, Option("Continuations of each prefix.", "N")] = 16
    max_steps: Annotated[int, Option("Most steps a rollout is split into.", "N")] = 12
    early_stop: Annotated[
        bool, Option("Leave out the steps after a first one that never succeeded; they count as negative.")
    ] = False
    adaptive: Annotated[
        bool, Option("Stop a prefix once its label and its reliability are decided; see docs/adaptive.md.")
    ] = False
    delta: Annotated[float, Option("Accepted probability of a wrong decision, with --adaptive.", "NUMBER")] = 0.05
    reliable: Annotated[float, Option("Success rate from which a step is reliable, with --adaptive.", "NUMBER")] = 0.5
    prior: Annotated[
        tuple[float, ...], Option("a and b of the Beta prior of success rates, with --adaptive.", "NUMBER")
    ] = (1.0, 1.0)
    audit: Annotated[
        float,
        Option("Share of the prefixes drawn in full all the same, to measure what adaptive changes.", "SHARE"),
    ] = 0.05
    engine: Annotated[
        EngineName, Option("Where the policy of --policy runs: here, or one copy a GPU of a Ray cluster.")
    ] = "local"
    workers: Annotated[int | None, Option("Copies of the policy with --engine ray; one a GPU by default.", "N")] = (
        None
    )
    ray_address: Annotated[str | None, Option("Ray cluster to join; a local one by default.", "ADDRESS")] = None
    shard: Annotated[str, Option("Do one of several equal parts, such as 3/64.", "I/N")] = "1/1"
    seed: Annotated[int, Option("Seed; each request has its own made from it.", "N")] = 0
    questions_format: Annotated[
        str | None,
        Option(
            "Format of the questions or rollouts, where the first record must not decide.",
            "NAME",
        ),
    ] = None
    image_root: Annotated[str | None, Option("Folder that holds the images.", "DIR")] = None
    allow_failures: Annotated[
        bool, Option("Write the output without the questions that failed, instead of stopping before it.")
    ] = False
    skip_bad: SkipBad = False
    dry_run: Annotated[bool, Option("Try a few questions and tell what the run would cost; keep nothing.")] = False
    force: Force = False
    json: Json = False

    def check(self) -> None:
        """Stop when the options do not go together, before anything is read."""
        self.check_sampler(self.out)
        if bool(self.questions) == bool(self.rollouts_from):
            raise ConfigError("name either QUESTIONS or --rollouts-from FILE")
        if self.out is None and not self.dry_run:
            raise ConfigError("say with --out FILE where the rollouts go, or ask for the cost with --dry-run")
        if self.engine == "ray" and self.policy is None:
            raise ConfigError("--engine ray is for --policy; a server takes requests from one process as well")
        if len(self.prior) != 2:
            raise ConfigError(f"--prior takes two numbers, a and b, got {len(self.prior)}")

    def engine_sampler(self) -> Sampler:
        """The policy, where it is to run."""
        if self.engine == "local":
            return self.sampler()
        from mprm.annotation.samplers.ray import RaySampler

        return RaySampler(self.sampler, workers=self.workers, address=self.ray_address)

    def config(self) -> AnnotateConfig:
        """What is asked for."""
        from mprm.annotation.adaptive import AdaptiveRule
        from mprm.annotation.annotate import AnnotateConfig
        from mprm.annotation.task import Shard

        rule = None
        if self.adaptive:
            a, b = self.prior
            rule = AdaptiveRule(n_max=self.continuations, delta=self.delta, tau=self.reliable, a=a, b=b)
        return AnnotateConfig(
            rollouts=self.rollouts,
            continuations=self.continuations,
            max_steps=self.max_steps,
            early_stop=self.early_stop,
            sampling=self.sampling_params(),
            seed=self.seed,
            adaptive=rule,
            audit=self.audit,
            shard=Shard.parse(self.shard),
        )


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.annotate`, print."""
    options = parsed(
        AnnotateCommand,
        arguments,
        command="annotate",
        example="mprm annotate questions.jsonl --policy Qwen2.5-VL-7B-Instruct --image-root images --out raw.jsonl",
    )
    options.check()
    from mprm.annotation.annotate import annotate
    from mprm.annotation.journal import check_output

    config = options.config()
    given: dict[str, Any] = {
        "rollouts_from": options.rollouts_from or None,
        "fresh": options.fresh,
        "config": config,
        "format": options.questions_format,
        "image_root": options.image_root,
        "skip_bad": options.skip_bad,
        "watch": noting,
    }
    questions = options.questions or None
    if options.dry_run:
        from mprm.annotation.annotate import estimate

        expected = estimate(questions, options.engine_sampler(), **given)
        print(as_json(asdict(expected)) if options.json else _expected(expected))
        return 0
    assert options.out is not None, "checked before"
    check_output(options.out, options.questions or options.rollouts_from, force=options.force)
    summary = annotate(
        questions,
        options.engine_sampler(),
        options.out,
        allow_failures=options.allow_failures,
        force=options.force,
        **given,
    )
    print(as_json(asdict(summary)) if options.json else _told(summary, options))
    return 0


def _expected(found: Estimate) -> str:
    hours = found.seconds / 3600
    time = f"{hours:,.1f} hours" if hours >= 1 else f"{found.seconds / 60:,.1f} minutes"
    tokens = f" of {found.n_tokens:,.0f} tokens" if found.n_tokens else ""
    return (
        f"{found.n_questions:,} questions would make about {found.n_rollouts:,.0f} rollouts with"
        f" {found.n_steps:,.0f} steps and take {found.n_continuations:,.0f} continuations{tokens}:"
        f" {time} at the speed of the {found.n_tried} that were tried"
        f" ({found.share_correct:.0%} of their continuations correct). Nothing was kept."
    )


def _told(summary: AnnotateSummary, options: AnnotateCommand) -> str:
    tally = summary.tally
    known = tally.n_continuations - tally.n_failed
    new = "new " if options.rollouts_from else ""
    lines = [
        f"{tally.n_rollouts:,} rollouts of {summary.n_done:,} questions, {tally.n_steps:,} steps, in {summary.out}.",
        f"{tally.n_continuations:,} {new}continuations, {tally.n_correct / known:.1%} of them correct."
        if known
        else "No continuation was missing.",
    ]
    if summary.n_continued:
        lines.append(f"{summary.n_continued:,} of the questions were done by an earlier run.")
    if tally.n_cut_rollouts:
        lines.append(f"{tally.n_cut_rollouts:,} rollouts were cut off at {options.max_new_tokens:,} tokens.")
    if tally.n_empty:
        lines.append(f"{tally.n_empty:,} rollouts were empty and have no record.")
    if tally.n_unsampled:
        lines.append(f"{tally.n_unsampled:,} steps were never sampled: they follow one that never succeeded.")
    if tally.n_cut:
        lines.append(
            f"{tally.n_cut:,} continuations had no answer at {options.max_new_tokens:,} tokens and count as not"
            " correct; num_mc_cut tells how many of each step."
        )
    if tally.n_failed:
        lines.append(
            f"{tally.n_failed:,} continuations could not be judged and count neither way; num_mc_failed tells"
            " how many of each step."
        )
    if options.adaptive:
        spared = tally.n_spared / max(1, tally.n_spared + tally.n_continuations)
        lines.append(f"{tally.n_spared:,} continuations ({spared:.0%}) were spared by the adaptive budget.")
        if tally.n_audited:
            lines.append(
                f"Of {tally.n_audited:,} audited steps that it had decided, {tally.n_disagreed:,} would have had"
                " another label"
                f" ({tally.n_disagreed / tally.n_audited:.2%}) and their scores differ by"
                f" {tally.audit_shift / tally.n_audited:+.3f} on average; they have those of all"
                f" {options.continuations}."
            )
    if summary.renamed_images:
        name, path = next(iter(summary.renamed_images.items()))
        lines.append(
            f"{len(summary.renamed_images):,} images were found under another name, such as {name} as {path}:"
            " are they the right ones?"
        )
    if summary.n_dropped:
        lines.append(f"{summary.n_dropped:,} records could not be used, reasons in {summary.dropped_to}.")
    if not summary.has_images:
        lines.append("The questions have no images: the commands that read the rollouts need --text-only.")
    if summary.n_failed:
        lines.append(f"{summary.n_failed:,} questions failed, each with its reason in {summary.failed_to}.")
    return "\n".join(lines)
