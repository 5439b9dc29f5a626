"""The tables of the results page, in the paper's layout, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from mprm_lab.reproduce.aggregate import METRICS, Cells
from mprm_lab.reproduce.paper_numbers import BEST_OF_16, BEST_OF_16_BENCHMARKS, ERROR_STEPS, OVERALL
from mprm_lab.reproduce.seed_interval import SeedMean, seed_mean

Arms = dict[str, Any]
"""Of one backbone, as `mprm_lab.reproduce.aggregate.summary_of` makes them."""
LABELS = {
    "base": "Base (untrained)",
    "full": "All rollouts, hard (τ = 0)",
    "full-tau-1": "All rollouts, hard (τ = 1/N)",
    "full-tau-2": "All rollouts, hard (τ = 2/N)",
    "full-soft": "All rollouts, soft",
}


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others numbers. Nothing where there are no rows."""
    if not rows:
        return ""
    lines = [list(heads), ["---"] + ["---:"] * (len(heads) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def label(arm: str) -> str:
    """The arm as the paper calls it."""
    if arm in LABELS:
        return LABELS[arm]
    strategy, _, rest = arm.partition("-mc-") if arm.startswith("low-mc-") else arm.partition("-")
    name = {"bis": "BIS", "low": "Low-MC"}.get(strategy, strategy.capitalize())
    share, _, more = rest.partition("-")
    ending = ", matched updates" if more == "matched" else more.replace("alpha-", ", α = ")
    return f"{name}-{share}%{ending}"


def cell(found: dict[str, Any] | None) -> str:
    """A mean in percent with its interval."""
    if found is None:
        return ""
    mean = f"{100 * found['mean']:.2f}"
    return mean if found["low"] is None else f"{mean} [{100 * found['low']:.2f}, {100 * found['high']:.2f}]"


def difference_cell(found: SeedMean | None) -> str:
    """A difference in points with its interval."""
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return signed(found.mean)
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def points_cell(found: SeedMean | None) -> str:
    """A difference of shares, in points with its interval."""
    return difference_cell(_points(found))


def signed(value: float) -> str:
    """With its sign; what rounds to zero has a plus."""
    return f"{round(value, 2) + 0.0:+.2f}"


def _paper(backbone: str, arm: str) -> str:
    value = OVERALL.get(backbone, {}).get(arm)
    return "" if value is None else f"{value:.2f}"


def _points(found: SeedMean | None) -> SeedMean | None:
    """In points of a hundred."""
    if found is None:
        return None
    low, high = (None if end is None else 100 * end for end in (found.low, found.high))
    return SeedMean(mean=100 * found.mean, low=low, high=high, n=found.n)


def _is_main(arm: str) -> bool:
    """Whether the arm is of the paper's main table."""
    kind = arm.split("-")[0]
    return kind in ("base", "full") or (kind in ("bis", "random") and arm.count("-") == 1)


def _error_steps(found: dict[str, Any]) -> str:
    """Share of error steps among those that are trained on, in percent."""
    return f"{100 * (1 - found['n_positive'] / found['n_steps']):.2f}" if found["n_steps"] else ""


def main_table(arms: Arms, backbone: str) -> str:
    """The paper's main table, its overall values beside the lab's."""
    rows = [
        [
            label(arm),
            f"{found['n_rollouts']:,.0f}",
            f"{found['n_updates']:,.0f}",
            _error_steps(found),
            _paper(backbone, arm),
            cell(found["overall"]),
            cell(found["overall_test_threshold"]),
            cell(found["macro_f1"]),
            cell(found["auc"]),
            str(found["n_seeds"]),
        ]
        for arm, found in arms.items()
        if _is_main(arm)
    ]
    heads = ["data", "rollouts", "updates", "error steps (%)"]
    heads += ["paper: overall", "lab: overall", "test threshold", "pooled F1", "AUC", "seeds"]
    return markdown(heads, rows)


def paired_table(cells: Cells, backbone: str, over_problems: dict[str, Any]) -> str:
    """BIS minus random choice: paired by seed, and with problems drawn anew."""
    rows = []
    for arm in cells.arms(backbone):
        rho = arm.removeprefix("bis-")
        other = f"random-{rho}"
        if not arm.startswith("bis-") or other not in cells.arms(backbone):
            continue
        known = OVERALL.get(backbone, {})
        paper = signed(known[arm] - known[other]) if arm in known and other in known else ""
        drawn = over_problems.get(rho)
        by_problem = (
            ""
            if drawn is None or drawn["low"] is None
            else f"{signed(100 * drawn['value'])} [{signed(100 * drawn['low'])}, {signed(100 * drawn['high'])}]"
        )
        rows.append([f"{rho}%", paper, points_cell(cells.difference(backbone, arm, other)), by_problem])
    table = markdown(["ρ", "paper", "lab: over seeds", "lab: over problems"], rows)
    note = "Over problems: the seeds' mean difference, its interval by drawing the benchmark's problems, 1,000 draws."
    return f"{table}\n\n{note}" if rows else ""


def own_threshold_rows(cells: Cells, backbone: str, found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """BIS and random choice at each fraction: with one threshold, with one for each source, and what lies between."""
    rows = []
    for arm in found:
        other = arm.replace("bis-", "random-")
        if not arm.startswith("bis-") or other not in found:
            continue
        row = [arm.replace("bis-", "") + "%"]
        for name in (arm, other):
            mean = cells.mean(backbone, name, METRICS["overall"])
            own = fmean(values["overall"] for values in found[name].values())
            row += ["" if mean is None else f"{100 * mean.mean:.2f}", f"{100 * own:.2f}"]
        row.append(points_cell(cells.difference(backbone, arm, other)))
        seeds = [seed for seed in found[arm] if seed in found[other]]
        for metric in ("overall", "auc"):
            apart = [found[arm][seed][metric] - found[other][seed][metric] for seed in seeds]
            row.append(points_cell(seed_mean(apart) if apart else None))
        rows.append(row)
    return rows


def ablation_table(cells: Cells, arms: Arms, backbone: str) -> str:
    """BIS at 25% and what it is made of, each with its distance."""
    rows = []
    for arm in ("bis-25", "mixed-25", "reliable-25", "low-mc-25", "random-25"):
        if arm in arms:
            known = OVERALL.get(backbone, {})
            less = signed(known[arm] - known["bis-25"]) if arm in known and arm != "bis-25" else ""
            found = None if arm == "bis-25" else _points(cells.difference(backbone, arm, "bis-25"))
            errors = f"{ERROR_STEPS[arm]:.2f}" if arm in ERROR_STEPS else ""
            row = [label(arm), errors, _paper(backbone, arm), less]
            row += [_error_steps(arms[arm]), cell(arms[arm]["overall"]), difference_cell(found)]
            rows.append(row)
    heads = [
        "subset",
        *(f"{who}: {what}" for who in ("paper", "lab") for what in ("error %", "overall", "minus BIS")),
    ]
    return markdown(heads, rows if len(rows) > 2 else [])


def alpha_table(arms: Arms, backbone: str) -> str:
    """BIS at 25% by alpha."""
    found = {arm.split("-alpha-")[1]: arm for arm in arms if "-alpha-" in arm}
    if not found:
        return ""
    found |= {"0.05": "bis-25"} if "bis-25" in arms else {}
    rows = [
        [f"α = {alpha}", _paper(backbone, found[alpha]), cell(arms[found[alpha]]["overall"])]
        for alpha in sorted(found, key=float)
    ]
    return markdown(["BIS-25%", "paper: overall", "lab: overall"], rows)


def matched_table(arms: Arms) -> str:
    """Random choice, trained once and trained on."""
    rows = []
    for arm, found in arms.items():
        if arm.endswith("-matched"):
            single = arms.get(arm.removesuffix("-matched"))
            once = "" if single is None else cell(single["overall"])
            rows.append(
                [label(arm.removesuffix("-matched")), once, cell(found["overall"]), f"{found['n_updates']:,.0f}"]
            )
    return markdown(["data", "one pass", "matched updates", "updates, matched"], rows)


def best_of_n_table(arms: Arms, backbone: str) -> str:
    """Accuracy by N; the paper's four benchmarks at N = 16 beside it."""
    ranked = {arm: found["best_of_n"] for arm, found in arms.items() if "best_of_n" in found}
    if not ranked:
        return ""
    ns = list(next(iter(ranked.values()))["prm"])
    rows = []
    for arm, found in ranked.items():
        paper = BEST_OF_16.get(arm) if backbone == "internvl" and arm != "base" else None
        of_paper = ["" if paper is None else f"{value:.2f}" for value in paper or BEST_OF_16_BENCHMARKS]
        rows.append([label(arm), *of_paper, *(cell(found["prm"][n]) for n in ns)])
    for arm, found in ranked.items():
        if "weighted_vote" in found:
            values = [cell(found["weighted_vote"][n]) for n in ns]
            rows.append([f"{label(arm)}, weighted vote", *[""] * len(BEST_OF_16_BENCHMARKS), *values])
    any_one = next(iter(ranked.values()))
    blank = [""] * len(BEST_OF_16_BENCHMARKS)
    policy = [f"{value:.2f}" for value in BEST_OF_16["base"]] if backbone == "internvl" else blank
    for method, words in (("random", "no reward model"), ("majority_vote", "majority vote"), ("oracle", "oracle")):
        if method in any_one:
            values = [f"{100 * any_one[method][n]['mean']:.2f}" for n in ns]
            rows.append([words, *(policy if method == "random" else blank), *values])
    heads = [
        "reward model",
        *(f"paper (N = 16): {name}" for name in BEST_OF_16_BENCHMARKS),
        *(f"lab: N = {n}" for n in ns),
    ]
    return markdown(heads, rows)


def curve_table(arms: Arms) -> str:
    """Overall value at each update that was measured."""
    rows = [
        [label(arm), " → ".join(f"{100 * p['overall']['mean']:.1f} ({p['update']})" for p in found["curve"])]
        for arm, found in arms.items()
        if "curve" in found
    ]
    seeds = max((point["overall"]["n"] for found in arms.values() for point in found.get("curve", ())), default=0)
    return markdown(["data", f"overall (update), mean over {seeds} seeds"], rows)


def source_table(arms: Arms) -> str:
    """Macro-F1 of each source, means over seeds."""
    sources = list(next(iter(arms.values()))["sources"])
    rows = [
        [
            label(arm),
            *("" if (one := found["sources"].get(name)) is None else f"{100 * one['mean']:.1f}" for name in sources),
        ]
        for arm, found in arms.items()
    ]
    return markdown(["data", *sources], rows)
