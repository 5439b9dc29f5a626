"""``mprm theory fit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command, say_dropped
from mprm.cli.tables import show_summary, show_table
from mprm.config import Force, Json, Paths, output
from mprm.data.corpus import open_corpus
from mprm.data.output import atomic_write, check_not_inputs, check_overwrite, printable
from mprm.errors import ConfigError
from mprm.progress import progress_bar
from mprm.theory.fit import CorpusFit, FitConfig, SourceFit, fit_corpus


@dataclass(frozen=True, kw_only=True)
class FitCommand(FitConfig):
    paths: Paths
    out: Annotated[str | None, output("File for everything, as JSON.", "FILE")] = None
    force: Force = False
    json: Json = False


def run_theory(arguments: list[str]) -> int:
    if arguments[:1] not in (["fit"], ["-h"], ["--help"]):
        raise ConfigError(f"expected the subcommand fit, got {arguments[0] if arguments else 'none'}")
    return _run_fit(arguments[arguments[0] == "fit" :])


@command(FitCommand, "theory fit", "annotations/*.jsonl --rho 0.10")
def _run_fit(options: FitCommand) -> None:
    corpus = open_corpus(options.paths, **options.reading())
    outs = [] if options.out is None else [options.out]
    check_not_inputs([file.path for file in corpus.files], outs)
    for out in outs:
        check_overwrite(out, force=options.force)
    fit = fit_corpus(corpus, options, progress=progress_bar)
    for out in outs:
        with atomic_write(out) as temporary:
            temporary.write_text(as_json(fit.as_dict()) + "\n", encoding="utf-8")
    say_dropped("theory", fit.n_dropped)
    if options.json:
        print(as_json(fit.as_dict()))
    else:
        _show_fit(fit)


def _show_fit(fit: CorpusFit) -> None:
    """Print priors, noise and subsets, and what they leave open."""
    heads = ["source", "steps", "N", "a", "a within", "b", "b within", "mean r", "negative", "expected"]
    show_summary(
        "Success rates r ~ Beta(a, b), and pseudo-positives among positive steps (intervals: 95%, of the prior)",
        [*heads, "pseudo- positive", "by the prior"],
        [_source_row(source) for source in [*fit.sources, fit.total]],
        optional=("mean r", "a", "b", "negative", "expected", "by the prior", "N", "a within", "b within"),
    )
    noise = [[f"{row.k}", f"{row.steps:,}", f"{row.posterior_mean:.3f}", f"{row.eta_eff:.3g}"] for row in fit.noise]
    title = f"By k of {fit.N}: Pr(r < {fit.reliable:g} | k)"
    show_table(title, ["k", "steps", "mean r", "η_eff(k)"], noise, total_last=False)
    subsets = [
        [name, *(f"{n:,}" for n in counts), f"{of_positive:.2%}", f"{of_all:.2%}"]
        for name, *counts, of_positive, of_all in fit.subsets
    ]
    title = f"Expected pseudo-positives of each strategy's subset, ρ = {fit.rho:g}"
    heads = ["strategy", "rollouts", "steps", "positive steps", "of positive", "of all steps"]
    show_table(title, heads, subsets, total_last=False)
    for source in fit.sources:
        if source.prior is None:
            name = printable(source.name)
            print(f"{name}: {source.why_no_prior}. Its pseudo-positives are by the prior of all sources.")
    if any(source.continuations_inferred for source in fit.sources):
        print("* N is not in the files: the coarsest grid that holds all scores tells it.")
    if fit.total.n_unsampled:
        print(f"{fit.total.n_unsampled:,} steps were never sampled; they weigh nothing in the fit.")
    expected = fit.total.expected_negative or 0.0
    if fit.total.negative > 2 * expected:
        print(
            f"One Beta expects {expected:.2%} negative steps where there are {fit.total.negative:.2%}: it misses"
            " many of the steps that never succeed."
        )


def _source_row(source: SourceFit) -> list[str]:
    numbers, prior = source.continuations, source.prior
    sampled = "/".join(map(str, numbers)) if len(numbers) <= 3 else f"{min(numbers)} to {max(numbers)}"
    cells = ["–"] * 5
    if prior is not None:
        ends = ["{:.3g} to {:.3g}".format(*interval) for interval in (prior.a_interval, prior.b_interval)]
        cells = [f"{prior.a:.3g}", ends[0], f"{prior.b:.3g}", ends[1], f"{prior.mean:.3f}"]
    return [
        source.name,
        f"{source.n_steps:,}",
        sampled + ("*" if source.continuations_inferred else ""),
        *cells,
        f"{source.negative:.2%}",
        "–" if source.expected_negative is None else f"{source.expected_negative:.2%}",
        f"{source.pseudo_positive:.2%}",
        "{:.2%} to {:.2%}".format(*source.pseudo_positive_interval),
    ]
