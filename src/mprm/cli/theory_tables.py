"""The tables of ``mprm theory``."""

from __future__ import annotations

from mprm.cli.tables import rich_table, show, show_fitted
from mprm.rollouts.printable import printable
from mprm.theory.corpus_fit.results import CorpusFit, SourceFit
from mprm.theory.simulation.verify import Verification


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
