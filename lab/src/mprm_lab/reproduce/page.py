"""The results page and its figures: made of the results file and nothing else.

Tables have the paper's layout, with the paper's numbers beside the lab's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from mprm.data import atomic_write, markdown_table
from mprm_lab.reproduce.figures import Summary, charts_of, write_figures
from mprm_lab.reproduce.findings import BACKBONES, CLOSE, FINDINGS, MODERATE, OVERALL, PAPER, counts
from mprm_lab.reproduce.measure import SeedMean, seed_mean
from mprm_lab.reproduce.plan import REFERENCES, ReproducePlan
from mprm_lab.reproduce.reproduce import duration
from mprm_lab.reproduce.results import METRICS, Runs, best_of_n_value, read_results, results_of, write_results

NAME = "lab"
WIDTH = 118
MAIN_PAIRS = (("bis-10", "random-10"), ("bis-25", "random-25"), ("bis-10", "full"), ("bis-25", "full"))
OTHER_METRICS = {"macro_f1": "pooled F1", "auc": "AUC"}
"""Those that do not take the mean over sources."""
CAPTIONS = {
    "scaling": "Overall F1 against the share of the rollouts",
    "random": "Random selection, one pass and as many optimizer steps as all data",
    "curves": "Overall F1 during training",
    "best_of_n": "Accuracy of best-of-N",
}
LABELS = {
    "base": "Base (untrained)",
    "position": "Position alone",
    "logp-mean": "Policy's probability, mean",
    "logp-min": "Policy's probability, lowest so far",
    "full": "All rollouts, hard (τ = 0)",
    "full-tau-1": "All rollouts, hard (τ = 1/N)",
    "full-tau-2": "All rollouts, hard (τ = 2/N)",
    "full-soft": "All rollouts, soft",
}


def write_page(lab: Path, out: Path, plan: ReproducePlan | None = None) -> list[Path]:
    """Paths of ``lab.json``, ``lab.md`` and the figures, written from the finished runs over earlier ones."""
    path = out / f"{NAME}.json"
    write_results(results_of(lab, plan or ReproducePlan()), path)
    results, text = read_results(path), out / f"{NAME}.md"
    with atomic_write(str(text)) as temporary:
        temporary.write_text(page(results), encoding="utf-8")
    return [path, text, *(out / name for name in write_figures(results, out))]


def page(results: dict[str, Any]) -> str:
    """The whole of ``lab.md``."""
    runs = Runs(results["runs"])
    parts = ["# The paper's experiments in the lab", _introduction(results), _findings(runs), _truth(results)]
    parts += [_backbone(results, runs, backbone) for backbone in runs.backbones]
    return "\n\n".join([*parts, _learning_rates(results)]) + "\n"


def section(name: str, **values: Any) -> str:
    """A section of ``page.md`` with these values, its paragraphs and list items filled."""
    template = (files("mprm_lab.reproduce") / "page.md").read_text(encoding="utf-8")
    section = template.partition(f"<!-- {name} -->\n")[2].partition("\n<!--")[0]
    text = ""
    for block in section.strip().format(**values).split("\n\n"):
        indent = "  " if block.startswith("- ") else ""
        is_code, is_next_item = block.startswith("```"), indent and text.rpartition("\n\n")[2].startswith("- ")
        words = block if is_code else fill(" ".join(block.split()), WIDTH, subsequent_indent=indent)
        text += ("\n" if is_next_item else "\n\n") + words
    return text.strip()


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; nothing where there are no rows."""
    return markdown_table(heads, rows) if rows else ""


# Cells of tables.


def label(condition: str) -> str:
    """The condition as the paper calls it."""
    if condition in LABELS:
        return LABELS[condition]
    strategy, _, rest = condition.removeprefix("low-").partition("-")
    name = {"bis": "BIS", "mc": "Low-MC"}.get(strategy, strategy.capitalize())
    share, _, more = rest.partition("-")
    ending = ", matched updates" if more == "matched" else more.replace("alpha-", ", α = ")
    return f"{name}-{share}%{ending}"


def percent(mean: dict[str, Any] | None) -> str:
    """A mean in percent with its interval."""
    if mean is None:
        return ""
    text = f"{100 * mean['mean']:.2f}"
    return text if mean["low"] is None else f"{text} [{100 * mean['low']:.2f}, {100 * mean['high']:.2f}]"


def points(difference: SeedMean | None, scale: float = 100.0) -> str:
    """A difference in points with its interval; of shares, where the scale is 100."""
    if difference is None:
        return ""
    if difference.low is None or difference.high is None:
        return signed(scale * difference.mean)
    return f"{signed(scale * difference.mean)} [{signed(scale * difference.low)}, {signed(scale * difference.high)}]"


def signed(value: float) -> str:
    """With its sign; what rounds to zero has a plus."""
    return f"{round(value, 2) + 0.0:+.2f}"


def _paper(backbone: str, condition: str) -> str:
    value = OVERALL.get(backbone, {}).get(condition)
    return "" if value is None else f"{value:.2f}"


def _paper_difference(backbone: str, condition: str, other: str) -> str:
    known = OVERALL.get(backbone, {})
    return signed(known[condition] - known[other]) if condition in known and other in known else ""


def _error_steps(summary: dict[str, Any]) -> str:
    """Share of error steps among those that are trained on, in percent."""
    return f"{100 * (1 - summary['n_positive'] / summary['n_steps']):.2f}" if summary["n_steps"] else ""


# Sections of the page.


def _introduction(results: dict[str, Any]) -> str:
    runs = results["runs"]
    n_missing = results["n_planned"] - len(runs)
    return section(
        "introduction",
        **{name: results[name] for name in ("corpus", "benchmark", "plan")},
        n_runs=len(runs),
        time=duration(sum(record["seconds"] for record in runs)),
        devices=", ".join(sorted({record["device"] for record in runs})),
        missing=f"{n_missing} planned runs are not done yet." if n_missing else "",
    )


def _findings(runs: Runs) -> str:
    rows = []
    for finding in FINDINGS:
        for number, claim in enumerate(finding.claims):
            row = [finding.words if number == 0 else "", claim.words]
            for backbone in runs.backbones:
                difference, paper = claim.difference(runs, backbone), claim.paper(backbone)
                row += ["" if paper is None else signed(paper), points(difference, 1.0), claim.outcome(difference)]
            rows.append(row)
    heads = ["finding", "claim, in points"]
    for backbone in runs.backbones:
        heads += [f"{BACKBONES.get(backbone, backbone)}, paper", f"lab ({backbone})", "verdict"]
    outcomes = "; ".join(
        f"{backbone}: " + ", ".join(f"{n} {outcome}" for outcome, n in by_outcome.items())
        for backbone, by_outcome in counts(runs).items()
    )
    text = section("findings", outcomes=outcomes, n_findings=len(FINDINGS), close=CLOSE, moderate=MODERATE)
    return "\n\n".join(("## Findings", text, markdown(heads, rows), _other_metrics(runs)))


def _other_metrics(runs: Runs) -> str:
    """The main differences by metrics that do not take the mean over sources."""
    columns = [(backbone, metric) for backbone in runs.backbones for metric in OTHER_METRICS]
    rows = [
        [
            f"{condition} − {other}",
            *(points(runs.difference(name, condition, other, METRICS[metric])) for name, metric in columns),
        ]
        for condition, other in MAIN_PAIRS
    ]
    heads = ["difference", *(f"{name}: {OTHER_METRICS[metric]}" for name, metric in columns)]
    return f"{section('other metrics')}\n\n{markdown(heads, rows)}"


def _truth(results: dict[str, Any]) -> str:
    """Labels against the world's own verdicts on the steps."""
    truth = results["truth"]
    rows = []
    for row in truth["rows"]:
        n_claiming = row["n_steps"] - row["n_neutral"]
        wrong = f"{100 * row['n_wrong'] / n_claiming:.1f}" if n_claiming else ""
        noise, below = ("" if row[name] is None else f"{100 * row[name]:.1f}" for name in ("eta_eff", "below"))
        again = f"{100 * row['n_below'] / row['n_again']:.1f}" if row["n_again"] else ""
        n_steps, n_neutral, n_again = (f"{row[name]:,}" for name in ("n_steps", "n_neutral", "n_again"))
        rows.append([str(row["k"]), n_steps, n_neutral, wrong, noise, n_again, again, below])
    positive = [row for row in truth["rows"] if row["k"] > 0]
    n_positive = sum(row["n_steps"] - row["n_neutral"] for row in positive)
    n_wrong = sum(row["n_wrong"] for row in positive)
    share = n_wrong / max(1, n_positive)
    settings = {"N": truth["N"], "reliable": truth["reliable"]}
    text = section("truth", n_positive=n_positive, n_wrong=n_wrong, wrong_share=share, **settings)
    heads = ["k", "steps", "neutral", "wrong, %", "η_eff, %", "pairs", "second is low, %", "by the prior, %"]
    return f"## Labels against the truth\n\n{text}\n\n{markdown(heads, rows)}"


def _backbone(results: dict[str, Any], runs: Runs, backbone: str) -> str:
    summary = results["summary"][backbone]["conditions"]
    names = {chart.name for chart in charts_of(results)}

    def figure(kind: str) -> str:
        name = f"lab_{kind}_{backbone}"
        return f"\n\n![{CAPTIONS[kind]}]({name}.svg)" if name in names else ""

    title = f"{BACKBONES[backbone]}'s architecture" if backbone in BACKBONES else backbone
    over_problems = results["bis_minus_random_over_problems"].get(backbone, {})
    sections: Sequence[tuple[str, str]] = (
        ("Labels and fractions", _main_table(summary, backbone) + figure("scaling")),
        ("BIS minus random selection", _paired_table(runs, backbone, over_problems)),
        ("One threshold for all sources, or one for each", _own_thresholds(results, runs, backbone)),
        ("Ablation at 25%", _ablation_table(runs, summary, backbone)),
        ("Sensitivity to α at 25%", _alpha_table(summary, backbone)),
        (
            "Random selection: one pass, and as many optimizer steps as all data",
            _matched_table(summary) + figure("random"),
        ),
        ("Best of N", _best_of_n_table(summary, backbone) + figure("best_of_n")),
        ("What choosing among sixteen gains", _gains_table(runs, backbone, summary)),
        ("Whether, or where", _same_position(results, backbone, summary)),
        ("Training dynamics", _curve_table(summary) + figure("curves")),
        ("By source", _source_table(summary)),
    )
    shown = [f"### {head}\n\n{body}" for head, body in sections if body.strip()]
    return "\n\n".join([f"## {title}", *shown])


def _main_table(summary: Summary, backbone: str) -> str:
    """The paper's main table, its overall values beside the lab's."""

    def is_main(condition: str) -> bool:
        kind = condition.split("-")[0]
        is_share = kind in ("bis", "random") and condition.count("-") == 1
        return condition in REFERENCES or kind == "full" or is_share

    rows = [
        [
            label(condition),
            f"{row['n_rollouts']:,.0f}",
            f"{row['n_optimizer_steps']:,.0f}",
            _error_steps(row),
            _paper(backbone, condition),
            *(percent(row[metric]) for metric in ("overall", "overall_test_threshold", "macro_f1", "auc")),
            str(row["n_seeds"]),
        ]
        for condition, row in summary.items()
        if is_main(condition)
    ]
    heads = ["data", "rollouts", "optimizer steps", "error steps (%)"]
    heads += ["paper: overall", "lab: overall", "test threshold", "pooled F1", "AUC", "seeds"]
    return markdown(heads, rows)


def _paired_table(runs: Runs, backbone: str, over_problems: dict[str, Any]) -> str:
    """BIS minus random: paired by seed, and by bootstrap over problems."""
    rows = []
    for condition in runs.conditions(backbone):
        rho = condition.removeprefix("bis-")
        other = f"random-{rho}"
        if not condition.startswith("bis-") or other not in runs.conditions(backbone):
            continue
        interval = over_problems.get(rho, {})
        ends = [interval.get(name) for name in ("value", "low", "high")]
        paper = _paper_difference(backbone, condition, other)
        by_problem = "" if None in ends else "{} [{}, {}]".format(*(signed(100 * end) for end in ends))
        rows.append([f"{rho}%", paper, points(runs.difference(backbone, condition, other)), by_problem])
    table = markdown(["ρ", "paper", "lab: over seeds", "lab: over problems"], rows)
    note = "Over problems: the seeds' mean difference, its interval by bootstrap over problems, 1,000 samples."
    return f"{table}\n\n{note}" if rows else ""


def _own_thresholds(results: dict[str, Any], runs: Runs, backbone: str) -> str:
    """What is left of a lead where scores of different sources are not compared."""
    own = results["own_thresholds"].get(backbone, {})
    rows = []
    for condition in own:
        other = condition.replace("bis-", "random-")
        if not condition.startswith("bis-") or other not in own:
            continue
        row = [condition.replace("bis-", "") + "%"]
        for name in (condition, other):
            mean = runs.mean(backbone, name, METRICS["overall"])
            own_mean = fmean(values["overall"] for values in own[name].values())
            row += ["" if mean is None else f"{100 * mean.mean:.2f}", f"{100 * own_mean:.2f}"]
        row.append(points(runs.difference(backbone, condition, other)))
        for metric in ("overall", "auc"):
            leads = [
                own[condition][seed][metric] - own[other][seed][metric]
                for seed in own[condition]
                if seed in own[other]
            ]
            row.append(points(seed_mean(leads) if leads else None))
        rows.append(row)
    full = ""
    if "full" in own:
        own_mean = fmean(values["overall"] for values in own["full"].values())
        full = f"All rollouts come to {100 * own_mean:.2f} with one each."
    heads = ["", "BIS", "BIS, one each", "random", "random, one each", "lead", "lead, one each", "lead, AUC"]
    return f"{section('own thresholds', full=full)}\n\n{markdown(heads, rows)}" if rows else ""


def _ablation_table(runs: Runs, summary: Summary, backbone: str) -> str:
    """BIS at 25% and what it is made of, each with its distance."""
    rows, error_steps = [], PAPER["error_steps"]
    for condition in ("bis-25", "mixed-25", "reliable-25", "low-mc-25", "random-25"):
        if condition in summary:
            is_bis = condition == "bis-25"
            rows.append(
                [
                    label(condition),
                    f"{error_steps[condition]:.2f}" if condition in error_steps else "",
                    _paper(backbone, condition),
                    "" if is_bis else _paper_difference(backbone, condition, "bis-25"),
                    _error_steps(summary[condition]),
                    percent(summary[condition]["overall"]),
                    "" if is_bis else points(runs.difference(backbone, condition, "bis-25")),
                ]
            )
    columns = (f"{who}: {what}" for who in ("paper", "lab") for what in ("error %", "overall", "minus BIS"))
    return markdown(["subset", *columns], rows if len(rows) > 2 else [])


def _alpha_table(summary: Summary, backbone: str) -> str:
    """BIS at 25% by alpha."""
    conditions = {name.split("-alpha-")[1]: name for name in summary if "-alpha-" in name}
    if not conditions:
        return ""
    conditions |= {"0.05": "bis-25"} if "bis-25" in summary else {}
    rows = [
        [f"α = {alpha}", _paper(backbone, conditions[alpha]), percent(summary[conditions[alpha]]["overall"])]
        for alpha in sorted(conditions, key=float)
    ]
    return markdown(["BIS-25%", "paper: overall", "lab: overall"], rows)


def _matched_table(summary: Summary) -> str:
    """Random fractions, trained for one pass and for as many optimizer steps as all data."""
    rows = []
    for condition, row in summary.items():
        if condition.endswith("-matched"):
            single = condition.removesuffix("-matched")
            once = percent(summary[single]["overall"]) if single in summary else ""
            rows.append([label(single), once, percent(row["overall"]), f"{row['n_optimizer_steps']:,.0f}"])
    return markdown(["data", "one pass", "matched updates", "optimizer steps, matched"], rows)


def _best_of_n_table(summary: Summary, backbone: str) -> str:
    """Accuracy by N; the paper's four benchmarks at N = 16 beside it."""
    accuracies = {condition: row["best_of_n"] for condition, row in summary.items() if "best_of_n" in row}
    if not accuracies:
        return ""
    any_model, of_paper = next(iter(accuracies.values())), PAPER["best_of_16"]
    ns, blank = list(any_model["prm"]), [""] * len(of_paper["benchmarks"])

    def paper(condition: str) -> list[str]:
        is_known = backbone == "internvl" and condition in of_paper
        return [f"{value:.2f}" for value in of_paper[condition]] if is_known else blank

    rows = [
        [label(name), *(blank if name == "base" else paper(name)), *(percent(row["prm"][n]) for n in ns)]
        for name, row in accuracies.items()
    ]
    rows += [
        [f"{label(name)}, weighted vote", *blank, *(percent(row["weighted_vote"][n]) for n in ns)]
        for name, row in accuracies.items()
        if "weighted_vote" in row
    ]
    for method, words in (("random", "no reward model"), ("majority_vote", "majority vote"), ("oracle", "oracle")):
        if method in any_model:
            values = [f"{100 * any_model[method][n]['mean']:.2f}" for n in ns]
            rows.append([words, *(paper("base") if method == "random" else blank), *values])
    heads = [f"paper (N = 16): {name}" for name in of_paper["benchmarks"]] + [f"lab: N = {n}" for n in ns]
    return markdown(["reward model", *heads], rows)


def _gains_table(runs: Runs, backbone: str, summary: Summary) -> str:
    """The choice among sixteen minus one answer, and minus their majority vote."""
    chosen = best_of_n_value("prm", 16)
    rows = []
    for condition in (name for name, row in summary.items() if "best_of_n" in row):
        others = [(condition, best_of_n_value(method, 16), -1) for method in ("random", "majority_vote")]
        leads = [runs.combined(backbone, [(condition, chosen, 1), other]) for other in others]
        if any(leads):
            rows.append([label(condition), *map(points, leads)])
    return markdown(["reward model", "minus one answer", "minus the majority vote"], rows)


def _same_position(results: dict[str, Any], backbone: str, summary: Summary) -> str:
    """What is left of the AUC where neither the source nor the index of a step tells anything."""
    auc = results["auc_at_same_position"].get(backbone, {})
    rows = [[label(name), percent(summary[name]["auc"]), percent(mean)] for name, mean in auc.items()]
    table = markdown(["data", "AUC, all steps", "AUC, at the same position"], rows)
    return f"{section('same position')}\n\n{table}" if rows else ""


def _curve_table(summary: Summary) -> str:
    """Overall value at each optimizer step that was evaluated."""
    curves = {condition: row["curve"] for condition, row in summary.items() if "curve" in row}
    rows = [
        [label(name), " → ".join(f"{100 * p['overall']['mean']:.1f} ({p['optimizer_step']})" for p in curve)]
        for name, curve in curves.items()
    ]
    n_seeds = max((point["overall"]["n"] for curve in curves.values() for point in curve), default=0)
    return markdown(["data", f"overall (optimizer step), mean over {n_seeds} seeds"], rows)


def _source_table(summary: Summary) -> str:
    """Macro-F1 of each source, means over seeds."""
    sources = list(next(iter(summary.values()))["sources"])
    rows = []
    for condition, row in summary.items():
        means = [row["sources"].get(source) for source in sources]
        rows.append([label(condition), *("" if mean is None else f"{100 * mean['mean']:.1f}" for mean in means)])
    return markdown(["data", *sources], rows)


def _learning_rates(results: dict[str, Any]) -> str:
    """Overall F1 on the validation split by data and rate, that of the plan's rate in bold."""
    plan, cells = results["plan"], dict[tuple[str, float], dict[float, str]]()
    for trial in results["rate_trials"]:
        share, rate = trial["rho"] or 1.0, trial["learning_rate"]
        is_chosen = rate == next(chosen for largest, chosen in plan["rates"] if share <= largest)
        value = f"{100 * trial['overall']:.2f}"
        cells.setdefault((trial["backbone"], share), {})[rate] = f"**{value}**" if is_chosen else value
    rows = [
        [name, f"{share:.0%}", *(row.get(rate, "") for rate in plan["tried_rates"])]
        for (name, share), row in sorted(cells.items())
    ]
    heads = ["backbone", "random rollouts", *(f"{rate:g}" for rate in plan["tried_rates"])]
    return f"## Hyperparameters\n\n{section('learning rates')}\n\n{markdown(heads, rows)}"
