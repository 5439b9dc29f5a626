"""The tables of ``mprm theory``.

``mprm theory``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import counting, progress
from mprm.cli.tables import rich_table, show, show_fitted
from mprm.config import Alpha, EngineOptions, Force, InputFormat, Json, Option, Paths, SkipBad, Tau, TextOnly
from mprm.errors import ConfigError, printable
from mprm.theory.fit_corpus import CorpusFit, SourceFit
from mprm_lab.theory.verify import Verification


def show_verification(found: Verification) -> None:
    """Print one row a line."""
    heads = [
        "statement",
        "in the paper",
        "what it says",
        "",
        "predicted",
        "simulated",
        "95% interval",
        "settings",
        "",
    ]
    rows = []
    for verdict in found.verdicts:
        line, (low, high) = verdict.line, verdict.interval()
        rows.append(
            [
                line.name,
                line.equation,
                line.statement,
                line.relation,
                f"{line.predicted[0]:.4g}",
                f"{line.simulated[0]:.4g}",
                f"{low:.4g} to {high:.4g}" if line.error[0] else "exact",
                f"{line.n_settings}",
                "holds" if verdict.holds else "FAILS",
            ]
        )
    show_fitted(
        f"The paper's statements, simulated (seed {found.seed})",
        heads,
        rows,
        spare=["what it says", "settings", "in the paper", "95% interval"],
        texts=["in the paper", "what it says"],
        total_last=False,
    )


def show_fit(found: CorpusFit) -> None:
    """Print priors, noise and subsets, and what they leave open."""
    heads = ["source", "steps", "N", "a", "a within", "b", "b within", "mean r", "negative", "expected"]
    heads += ["pseudo- positive", "by the prior"]
    show_fitted(
        "Success rates r ~ Beta(a, b), and pseudo-positives among positive steps (intervals: 95%, of the prior)",
        heads,
        [_source_row(source) for source in [*found.sources, found.total]],
        spare=["mean r", "N", "by the prior", "b within", "a within", "expected"],
    )
    rows = [[f"{row.k}", f"{row.steps:,}", f"{row.posterior_mean:.3f}", f"{row.eta_eff:.3g}"] for row in found.noise]
    show(
        rich_table(
            f"By k of {found.N}: Pr(r < {found.reliable:g} | k)",
            ["k", "steps", "mean r", "η_eff(k)"],
            rows,
            total_last=False,
        )
    )
    rows = [
        [
            s.strategy,
            f"{s.n_rollouts:,}",
            f"{s.n_steps:,}",
            f"{s.n_positive:,}",
            f"{s.pseudo_positive:.2%}",
            f"{s.of_all_steps:.2%}",
        ]
        for s in found.subsets
    ]
    show(
        rich_table(
            f"Expected pseudo-positives of each strategy's subset, ρ = {found.rho:g}",
            ["strategy", "rollouts", "steps", "positive steps", "of positive", "of all steps"],
            rows,
            total_last=False,
        )
    )
    _show_notes(found)


def _source_row(source: SourceFit) -> list[str]:
    numbers = source.continuations
    sampled = "/".join(map(str, numbers)) if len(numbers) <= 3 else f"{min(numbers)} to {max(numbers)}"
    prior, pseudo = source.prior, source.pseudo_positive
    if prior is None:
        cells = ["–", "–", "–", "–", "–", f"{source.negative:.2%}", "–"]
    else:
        cells = [
            f"{prior.a:.3g}",
            "{:.3g} to {:.3g}".format(*prior.a_interval),
            f"{prior.b:.3g}",
            "{:.3g} to {:.3g}".format(*prior.b_interval),
            f"{prior.mean:.3f}",
            f"{source.negative:.2%}",
            f"{source.expected_negative:.2%}",
        ]
    low, high = pseudo.interval
    return [
        source.name,
        f"{source.n_steps:,}",
        sampled + ("*" if source.is_inferred else ""),
        *cells,
        f"{pseudo.share:.2%}",
        f"{low:.2%} to {high:.2%}",
    ]


def _show_notes(found: CorpusFit) -> None:
    """What the tables leave open."""
    for source in found.sources:
        if source.prior is None:
            name = printable(source.name)
            print(f"{name}: {source.why_no_prior}. Its pseudo-positives are by the prior of all sources.")
    if any(source.is_inferred for source in found.sources):
        print("* N is not in the files: the coarsest grid that holds all scores tells it.")
    if found.total.n_unsampled:
        print(f"{found.total.n_unsampled:,} steps were never sampled; they weigh nothing in the fit.")
    expected = found.total.expected_negative or 0.0
    if found.total.negative > 2 * expected:
        print(
            f"One Beta expects {expected:.2%} negative steps where there are {found.total.negative:.2%}: it misses"
            " many of the steps that never succeed."
        )


HELP = """usage: mprm theory {verify,fit} ...

The paper's analysis.

  verify    simulate what each statement is about, and tell whether it holds
  fit       fit the Beta-Binomial model to a corpus: priors, effective noise, pseudo-positives

"mprm theory verify --help" and "mprm theory fit --help" tell more.

Example:
  mprm theory fit annotations
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCommand(EngineOptions):
    """Simulate what each statement of the paper's analysis is about, and tell whether it holds.

    Exits with 1 when a line does not hold.
    """

    seed: Annotated[int, Option("Seed of all that is drawn.", "N")] = 0
    only: Annotated[
        tuple[Literal["steps", "rollouts", "success-rates", "training", "strategies"], ...],
        Option("Parts to simulate; all by default."),
    ] = ()
    out: Annotated[str | None, Option("Folder for theory.json and the figures.", "DIR")] = None
    force: Force = False
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCommand(EngineOptions):
    """Fit the Beta-Binomial model to a corpus, overall and per source.

    Tells the priors with 95% intervals, the effective noise of each count, the expected share of pseudo-positives,
    and how much of each strategy's subset they make up.
    """

    paths: Paths
    rho: Annotated[float, Option("Fraction that each strategy keeps of a source, in (0, 1].", "NUMBER")] = 0.1
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    reliable: Annotated[
        float, Option("A step is reliable when its success rate is at least this; in (0, 1).", "NUMBER")
    ] = 0.5
    seed: Annotated[int, Option("Seed of the random order.", "N")] = 0
    continuations: Annotated[
        int | None,
        Option("Continuations behind each score, where files do not say; else the scores' grid tells.", "N"),
    ] = None
    out: Annotated[str | None, Option("File for everything, as JSON.", "FILE")] = None
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False
    json: Json = False


def run(arguments: list[str]) -> int:
    """Run the subcommand."""
    commands = {"verify": run_verify, "fit": run_fit}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        raise SystemExit(0 if arguments else 2)
    if arguments[0] not in commands:
        raise ConfigError(f"unknown subcommand {arguments[0]!r}; expected {' or '.join(commands)}")
    return commands[arguments[0]](arguments[1:])


def run_verify(arguments: list[str]) -> int:
    """Parse, call `mprm.theory.verify`, write, print."""
    options = parsed(VerifyCommand, arguments, command="theory verify", example="mprm theory verify --out theory")
    from mprm_lab.theory.verify import CRITERION, PARTS, verify

    folder = None if options.out is None else _output_folder(options)
    with counting("simulating", len(options.only or PARTS)) as on_part:
        found = verify(seed=options.seed, only=options.only, on_part=on_part)
    written = [] if folder is None else _write_verification(found, folder)
    if options.json:
        print(as_json(found.as_dict()))
    else:
        show_verification(found)
        print(CRITERION)
        print(f"{sum(v.holds for v in found.verdicts)} of {len(found.verdicts)} lines hold.", *written, sep="\n")
    return 0 if found.holds else 1


def _output_folder(options: VerifyCommand) -> Path:
    """The folder, once it is known that nothing in it would be replaced."""
    from mprm_lab.theory.figures import FIGURES

    from mprm.data.output import check_overwrite

    assert options.out is not None
    folder = Path(options.out).expanduser()
    for name in ("theory.json", *FIGURES):
        check_overwrite(str(folder / name), force=options.force)
    return folder


def _write_verification(found: Verification, folder: Path) -> list[str]:
    """Write the JSON and the figures; returns what to say of it."""
    from mprm_lab.theory.figures import can_draw, write_figures

    from mprm.data.output import atomic_write

    with atomic_write(str(folder / "theory.json")) as temporary:
        temporary.write_text(as_json(found.as_dict()) + "\n", encoding="utf-8")
    if not can_draw():
        return [
            f"{folder / 'theory.json'}",
            "No figures: they need Altair and vl-convert; install mprm with its extra [report].",
        ]
    return [str(folder / name) for name in ("theory.json", *write_figures(found, folder))]


def run_fit(arguments: list[str]) -> int:
    """Parse, call `mprm.theory.fit_corpus`, write, print."""
    options = parsed(
        FitCommand, arguments, command="theory fit", example="mprm theory fit annotations/*.jsonl --rho 0.10"
    )
    from mprm.data.corpus import open_corpus
    from mprm.data.output import atomic_write, check_not_inputs, check_overwrite
    from mprm.theory.fit_corpus import fit_corpus

    corpus = open_corpus(options.paths, format=options.format, text_only=options.text_only)
    if options.out is not None:
        check_not_inputs([file.path for file in corpus.files], [options.out])
        check_overwrite(options.out, force=options.force)
    with progress("counting", corpus.n_bytes) as on_chunk:
        found = fit_corpus(
            corpus,
            rho=options.rho,
            alpha=options.alpha,
            tau=options.tau,
            reliable=options.reliable,
            seed=options.seed,
            continuations=options.continuations,
            skip_bad=options.skip_bad,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    if options.out is not None:
        with atomic_write(options.out) as temporary:
            temporary.write_text(as_json(found.as_dict()) + "\n", encoding="utf-8")
    if found.n_dropped:
        print(f"mprm theory: {found.n_dropped:,} bad records were left out; mprm check lists them", file=sys.stderr)
    if options.json:
        print(as_json(found.as_dict()))
    else:
        show_fit(found)
    return 0
