"""``mprm-lab compare``: methods that need only Monte-Carlo counts, and some with a model's scores, against BIS.

A method is a selection, labels and a loss. All are trained at the same budgets and with the same seeds, as by
``mprm-lab reproduce``; the page compares each with BIS, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from mprm.data import atomic_write
from mprm.errors import DataError
from mprm_lab.reproduce.page import markdown, section
from mprm_lab.reproduce.plan import ReproducePlan, Run
from mprm_lab.reproduce.run import RunStore

NAME = "compare"
BASELINE = "bis"
NAMES = {"bis": "BIS", "random": "random selection"}
"""Of what the others are compared with."""
MODEL_BASED = ("disagreement", "uncertainty", "bis-filtered")
INNER = {"fresh": "fresh", "rare": "fresh by-errors", "frequent": "fresh by-errors"}
"""Folders in a lab that are labs themselves, and the parts of `mprm_lab.make` that make them."""
READ_OUT = ("bis-readout", "random-readout", "bis-alpha-0.5-readout")


def _on(strategy: str, **options: Any) -> dict[str, Any]:
    return {"strategy": strategy, **options}


METHODS: dict[str, dict[str, Any]] = {
    "bis": _on("bis"),
    "random": _on("random"),
    "low-mc": _on("low-mc"),
    "mixed": _on("mixed"),
    "reliable": _on("reliable"),
    "bis-alpha-0.5": _on("bis", alpha=0.5),
    "bis-length": _on("bis", stratify="length"),
    "bis-adaptive": _on("bis-adaptive"),
    "bis-sampled": _on("bis-sampled"),
    "drop": _on("drop"),
    "difficulty": _on("difficulty"),
    "agreement": _on("agreement"),
    "scan": _on("scan", labels="scan"),
    "random-soft": _on("random", labels="soft"),
    "random-monotone": _on("random", labels="monotone"),
    "random-monotone-soft": _on("random", labels="monotone-soft"),
    "random-posterior": _on("random", labels="posterior", reliable=0.25),
    "bis-posterior": _on("bis", labels="posterior", reliable=0.25),
    "random-negatives": _on("random", negative_weight=2.0),
    "random-beta-binomial": _on("random", loss="beta-binomial"),
    "random-ranking": _on("random", loss="ranking"),
    **{name: _on(name) for name in MODEL_BASED},
}
"""Fields of `mprm.TrainConfig` of each method."""
METHODS |= {name: METHODS[name.removesuffix("-readout")] for name in READ_OUT}
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"bis-alpha-{alpha:g}": _on("bis", alpha=alpha) for alpha in (0.1, 0.2, 0.5)},
    **{f"random-posterior-{rate:g}": _on("random", labels="posterior", reliable=rate) for rate in (0.25, 0.5, 0.75)},
    **{f"random-negatives-{weight:g}": _on("random", negative_weight=weight) for weight in (2.0, 3.0, 5.0)},
    **{f"random-ranking-{zeta:g}": _on("random", loss="ranking", zeta=zeta) for zeta in (0.0, 2.0, 4.0)},
    "random-beta-binomial": METHODS["random-beta-binomial"],
}
"""What the settings of `METHODS` are chosen from, on the validation split alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan(ReproducePlan):
    """The comparison; the defaults are its real size, for one H200."""

    methods: dict[str, dict[str, Any]] = field(default_factory=lambda: METHODS)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: VARIANTS)
    rhos: tuple[float, ...] = (0.05, 0.10, 0.25)
    trial_rho: float = 0.10
    curves: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    model_based: tuple[str, ...] = MODEL_BASED
    read_out: tuple[str, ...] = READ_OUT
    first_seed: int = 0
    results: str = NAME

    def runs(self) -> list[Run]:
        """Every method at every budget."""
        return [
            Run(backbone=backbone, subset=method, rho=rho, seed=seed)
            for seed in range(self.first_seed, self.first_seed + self.seeds)
            for backbone in self.backbones
            for rho in self.rhos
            for method in self.methods
        ]

    def rate_trials(self) -> list[Run]:
        """Runs that try every variant at every rate, on the validation split."""
        return [
            Run(backbone=backbone, subset=name, rho=self.trial_rho, learning_rate=rate, seed=self.trial_seed)
            for backbone in self.backbones
            for name in self.variants
            for rate in self.tried_rates
        ]

    def chooses(self, run: Run) -> bool:
        return run.learning_rate is None

    def keeps_scores(self, run: Run) -> bool:  # noqa: ARG002 - a record has what the page needs
        return False

    def train_options(self, run: Run) -> dict[str, Any]:
        options = ReproducePlan.train_options(self, replace(run, subset="random"))
        return options | (METHODS | self.methods | self.variants)[run.subset]


# Results: a cell for each run, and the page that is made of the cells alone.

METRICS = {
    "overall": "step F1",
    "own_overall": "step F1, own thresholds",
    "auc_same": "AUC, same index",
    "best_of_16": "best-of-16",
}
COMPARED = ("overall", "best_of_16")
"""Metrics whose differences are tested."""


def cells_of(lab: Path, plan: ComparePlan) -> list[dict[str, Any]]:
    """The numbers of every finished run."""
    store = RunStore(lab, plan.results)
    cells = []
    for run in plan.runs():
        if (record := store.read(run)) is None:
            continue
        if missing := [name for name in ("own_thresholds", "best_of_n", "auc_same") if name not in record]:
            raise DataError(f"{store.path(run)} has no {missing[0]}; remove it, and the run is repeated")
        own, accuracy = record["own_thresholds"], record["best_of_n"]["accuracy"]
        largest = max(accuracy["prm"], key=int)
        cell = {name: getattr(run, name) for name in ("backbone", "rho", "seed")} | {"method": run.subset}
        cell |= {name: record[name] for name in ("n_rollouts", "n_steps", "train_seconds", "device")}
        cell |= {"overall": record["metrics"]["held_out"]["overall"], "auc": record["metrics"]["held_out"]["auc"]}
        cell |= {"own_overall": own and own["overall"], "auc_same": record["auc_same"]}
        cell |= {"best_of_16": accuracy["prm"][largest], "one_answer": accuracy["random"][largest]}
        extra = (record.get("columns_seconds"), record.get("read_out_seconds"))
        cell["extra_seconds"] = sum(seconds or 0.0 for seconds in extra)
        cells.append(cell)
    if not cells:
        raise DataError(f"{store.folder}: no run is finished; mprm-lab compare {lab} does them")
    return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A rival less the baseline: the mean over seeds, and Student's interval at the level that `holm` gives it."""

    mean: float
    low: float | None = None
    """None for a single seed, and where all differences are equal."""
    high: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes zero; that is so where Holm's method rejects equality at 5%."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def holm(differences: dict[str, list[float]]) -> dict[str, Difference]:
    """Of several rivals, from the differences of the seeds.

    The smallest p-value of m paired t tests is compared with 0.05/m, the next with 0.05/(m − 1), and so on until one
    is larger; the intervals have the levels 1 − 0.05/m, 1 − 0.05/(m − 1) …, from there on the same.

    >>> gains = holm({"a": [0.04, 0.05, 0.06], "b": [0.02, 0.04, 0.06]})
    >>> [(name, round(gain.mean, 3), gain.is_sure) for name, gain in gains.items()]  # p = 0.013, 0.074
    [('a', 0.05, True), ('b', 0.04, False)]
    """
    from scipy.stats import t

    means = {name: fmean(values) for name, values in differences.items()}
    errors = {name: stdev(v) / len(v) ** 0.5 if len(v) > 1 else 0.0 for name, v in differences.items()}
    p_values = {
        name: 2 * float(t.sf(abs(means[name]) / errors[name], len(differences[name]) - 1)) if errors[name] else 1.0
        for name in differences
    }
    gains, n_left, has_stopped = {name: Difference(mean=mean) for name, mean in means.items()}, len(means), False
    for name in sorted(p_values, key=lambda name: p_values[name]):
        has_stopped = has_stopped or p_values[name] > 0.05 / n_left
        if errors[name]:
            half = float(t.ppf(1 - 0.025 / n_left, len(differences[name]) - 1)) * errors[name]
            gains[name] = Difference(mean=means[name], low=means[name] - half, high=means[name] + half)
        n_left -= not has_stopped
    return gains


Cells = Iterable[dict[str, Any]]


def write_compare(lab: Path, out: Path, plan: ComparePlan) -> list[Path]:
    """Paths of ``compare.json`` and ``compare.md``, written from the finished runs over earlier ones."""
    cells = cells_of(lab, plan)
    raw, text = out / f"{NAME}.json", out / f"{NAME}.md"
    lines = ",\n".join(msgspec.json.encode(cell).decode() for cell in cells)
    methods = msgspec.json.encode(plan.methods).decode()
    tried = ",\n".join(msgspec.json.encode(trial).decode() for trial in _trials(lab, plan))
    name = f"LAB/{lab.name}" if lab.name in INNER else "LAB"
    head = f'{{"lab": "{name}",\n"methods": {methods},\n"n_planned": {len(plan.runs())},\n"trials": [\n{tried}\n],'
    with atomic_write(str(raw)) as temporary:
        temporary.write_text(f'{head}\n"cells": [\n{lines}\n]}}\n')
    with atomic_write(str(text)) as temporary:
        temporary.write_text(compare_page(raw), encoding="utf-8")
    return [raw, text]


def _trials(lab: Path, plan: ComparePlan) -> list[dict[str, Any]]:
    """The finished trials of settings."""
    store = RunStore(lab, plan.results)
    records = [(run, record) for run in plan.rate_trials() if (record := store.read(run)) is not None]
    return [
        {
            "method": run.subset,
            "backbone": run.backbone,
            "learning_rate": run.learning_rate,
            "overall": record["metrics"]["held_out"]["overall"],
        }
        for run, record in records
    ]


def compare_page(path: Path) -> str:
    """``compare.md``, made of ``compare.json`` and nothing else."""
    results: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict)
    cells = results["cells"]
    counts = {"n_runs": len(cells), "n_planned": results["n_planned"], "n": len(results["methods"])}
    backbones = list(dict.fromkeys(cell["backbone"] for cell in cells))
    rhos = sorted({cell["rho"] for cell in cells})
    commands = _commands(results, backbones, rhos)
    parts = [f"# BIS and its rivals\n\n{section('compare', **counts, commands=commands)}"]
    for baseline in (name for name in NAMES if name in results["methods"]):
        for metric in COMPARED:
            title = f"## {METRICS[metric]}, minus {NAMES[baseline]}: {' and '.join(backbones)}"
            parts.append(f"{title}\n\n{_summary(cells, rhos, metric, baseline)}")
    for backbone in backbones:
        for rho in rhos:
            own = [cell for cell in cells if (cell["backbone"], cell["rho"]) == (backbone, rho)]
            if own:
                parts.append(f"## {backbone}, {100 * rho:g}% of the rollouts\n\n{_table(own)}")
    methods = [[name, _options(name, options)] for name, options in results["methods"].items()]
    parts.append("## Methods\n\n" + markdown(["method", "options of `mprm train`"], methods))
    if results["trials"]:
        parts.append(f"## Settings\n\n{section('compare trials')}\n\n{_trial_table(results['trials'], backbones)}")
    return "\n\n".join(parts) + "\n"


def _commands(results: dict[str, Any], backbones: Sequence[str], rhos: Sequence[float]) -> str:
    """What makes the runs of the page, and the page."""
    plan, lab, first_seed = ComparePlan(), results["lab"], min(cell["seed"] for cell in results["cells"])
    words = [f"$ mprm-lab compare {lab}", *[f"--only '*-{100 * rhos[0]:g}.*'"] * (len(rhos) == 1)]
    words += [f"--backbones {' '.join(backbones)}"] * (tuple(backbones) != plan.backbones)
    words += [f"--first-seed {first_seed}"] * (first_seed > 0)
    seeds = results["n_planned"] // (len(backbones) * len(results["methods"]) * len(rhos))
    words += [f"--seeds {seeds}"] * (0 < seeds < plan.seeds)
    words += [f"--methods {' '.join(results['methods'])}"] * (len(results["methods"]) < len(METHODS))
    opening = ["$ mprm-lab open LAB"]
    opening += [f"$ mprm-lab make LAB --only {INNER[lab.removeprefix('LAB/')]}"] if lab != "LAB" else []
    out = "docs/results" + lab.removeprefix("LAB")
    return "\n".join([*opening, " ".join([*words, f"--out {out} --force"])])


def _trial_table(trials: Cells, backbones: Sequence[str]) -> str:
    values: dict[tuple[str, float], dict[str, float]] = {}
    for trial in trials:
        values.setdefault((trial["method"], trial["learning_rate"]), {})[trial["backbone"]] = trial["overall"]
    rows = [
        [name, f"{rate:g}", *(f"{100 * own[backbone]:.2f}" if backbone in own else "" for backbone in backbones)]
        for (name, rate), own in values.items()
    ]
    return markdown(["method", "learning rate", *backbones], rows)


def _options(name: str, options: dict[str, Any]) -> str:
    words = [f"`--{option.replace('_', '-')} {value}`" for option, value in options.items()]
    return " ".join(words + ["and then `mprm readout`"] * name.endswith("-readout"))


def _gains(cells: Cells, metric: str, baseline: str) -> dict[str, Difference]:
    """Every other method less the baseline, by seed: the mean over the backbones that both have.

    A seed draws the same rollouts for all backbones, so that these are no repetitions of each other.
    """
    values: dict[str, dict[tuple[int, str], float]] = {}
    for cell in cells:
        if cell[metric] is not None:
            values.setdefault(cell["method"], {})[cell["seed"], cell["backbone"]] = cell[metric]
    base, differences = values.pop(baseline, {}), dict[str, list[float]]()
    for name, own in values.items():
        of_seed: dict[int, list[float]] = {}
        for run in own.keys() & base.keys():
            of_seed.setdefault(run[0], []).append(own[run] - base[run])
        if of_seed:
            differences[name] = [fmean(gains) for _, gains in sorted(of_seed.items())]
    return holm(differences)


def _summary(cells: Sequence[dict[str, Any]], rhos: Sequence[float], metric: str, baseline: str) -> str:
    """Every budget, the mean over backbones."""
    gains = {rho: _gains([cell for cell in cells if cell["rho"] == rho], metric, baseline) for rho in rhos}
    names = dict.fromkeys(name for of_rho in gains.values() for name in of_rho)
    order = sorted(names, key=lambda name: -fmean(of_rho[name].mean for of_rho in gains.values() if name in of_rho))
    rows = [[name, *(_points(gains[rho].get(name)) for rho in rhos)] for name in order]
    return markdown(["method", *(f"{100 * rho:g}%" for rho in rhos)], rows)


def _table(cells: Sequence[dict[str, Any]]) -> str:
    """The methods at one budget on one backbone."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_method.setdefault(cell["method"], []).append(cell)
    gains = {metric: _gains(cells, metric, BASELINE) for metric in COMPARED}
    rows = []
    for name, own in sorted(by_method.items(), key=lambda item: -fmean(cell["overall"] or 0.0 for cell in item[1])):
        row = [name, str(len(own)), *(_percent(own, metric) for metric in METRICS)]
        row += [_points(gains[metric].get(name)) for metric in COMPARED]
        rows.append([*row, f"{fmean(cell['train_seconds'] + cell['extra_seconds'] for cell in own):.0f}"])
    differences = [f"{METRICS[metric]}, minus BIS" for metric in COMPARED]
    return markdown(["method", "seeds", *METRICS.values(), *differences, "cost, s"], rows)


def _percent(cells: Cells, metric: str) -> str:
    values = [cell[metric] for cell in cells if cell[metric] is not None]
    return f"{100 * fmean(values):.1f}" if values else ""


def _points(gain: Difference | None) -> str:
    """The difference in points with its interval; bold where that excludes zero."""
    if gain is None:
        return ""
    mean = f"**{100 * gain.mean:+.1f}**" if gain.is_sure else f"{100 * gain.mean:+.1f}"
    return (
        mean if gain.low is None or gain.high is None else f"{mean} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    )
