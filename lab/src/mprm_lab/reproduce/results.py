"""The results file: every finished run, what was chosen, and the numbers made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

import mprm
from mprm.data import atomic_write, read_benchmark
from mprm.errors import DataError
from mprm.evaluation import StepTable, estimate, step_counts
from mprm_lab.reproduce import measure
from mprm_lab.reproduce.measure import SeedMean, seed_mean
from mprm_lab.reproduce.plan import ReproducePlan, Run
from mprm_lab.reproduce.run import RunStore

Record = dict[str, Any]
Metric = Callable[[Record], Any]
METRICS: dict[str, Metric] = {
    "overall": lambda record: record["metrics"]["held_out"]["overall"],
    "overall_test_threshold": lambda record: record["metrics"]["test_threshold"]["overall"],
    "macro_f1": lambda record: record["metrics"]["held_out"]["macro_f1"],
    "auc": lambda record: record["metrics"]["held_out"]["auc"],
}
"""Each number of a record; ``overall`` is the paper's."""
FROM_RECORD = (
    *("name", "run", "n_rollouts", "n_steps", "n_positive", "n_optimizer_steps", "seconds", "mean_loss"),
    *("last_loss", "device", "metrics", "curve", "best_of_n"),
)
"""What the results file has of a run's record."""


def results_of(lab: Path, plan: ReproducePlan) -> dict[str, Any]:
    """Everything that the page says, from the runs of the plan that are finished."""
    store = RunStore(lab, plan.results)
    finished = [(run, record) for run in plan.runs() if (record := store.read(run)) is not None]
    if not finished:
        raise DataError(f"{store.folder}: no run is finished; mprm-lab reproduce {lab} does them")
    records = [{name: record[name] for name in FROM_RECORD if name in record} for _, record in finished]
    backbones = tuple(dict.fromkeys(run.backbone for run, _ in finished))
    table = measure.unscored_table(read_benchmark(str(lab / "benchmark.jsonl")))
    results: dict[str, Any] = {
        "mprm": mprm.__version__,
        "plan": msgspec.to_builtins(plan),
        "n_planned": len(plan.runs()),
        "corpus": _corpus(lab),
        "truth": measure.corpus_truth(lab / "corpus.jsonl"),
        "benchmark": {**asdict(step_counts(table)), "n_sources": len(table.sources)},
        "rate_trials": [
            {name: getattr(run, name) for name in ("backbone", "rho", "learning_rate", "seed")}
            | {name: record["metrics"]["held_out"][name] for name in ("overall", "auc")}
            for run in plan.rate_trials()
            if (record := store.read(run)) is not None
        ],
        "runs": records,
        "summary": summary_of(records),
        "bis_minus_random_over_problems": {},
        "auc_at_same_position": {},
        "own_thresholds": {},
    }
    for backbone in backbones:
        of_backbone = ((run, store.scores(run)) for run in plan.runs() if run.backbone == backbone)
        tables = {run: replace(table, scores=scores) for run, scores in of_backbone if scores is not None}
        results["bis_minus_random_over_problems"][backbone] = _over_problems(tables, plan, backbone)
        auc: dict[str, list[float]] = {}
        own: dict[str, dict[str, dict[str, float]]] = {}
        for run, scored in tables.items():
            if (value := measure.auc_at_same_position(scored)) is not None:
                auc.setdefault(run.condition, []).append(value)
            if (values := measure.own_thresholds(scored)) is not None:
                own.setdefault(run.condition, {})[str(run.seed)] = values
        results["auc_at_same_position"][backbone] = {name: asdict(seed_mean(each)) for name, each in auc.items()}
        results["own_thresholds"][backbone] = own
    return results


def _corpus(lab: Path) -> dict[str, Any]:
    total = mprm.stats(str(lab / "corpus.jsonl")).total
    return {
        "rollouts": total.n_rollouts,
        "steps": total.n_steps,
        "error_share": round(total.error_step_ratio, 6),
        "mixed_share": round(total.mixed_share, 6),
        "mean_mc": round(total.mean_mc, 6),
    }


def _over_problems(tables: dict[Run, StepTable], plan: ReproducePlan, backbone: str) -> dict[str, dict[str, Any]]:
    """BIS minus random at each fraction: the mean over seeds, its interval by bootstrap over problems, paired."""
    differences = {}
    for rho in plan.rhos:
        pairs = []
        for seed in range(plan.seeds):
            bis, random = (
                tables.get(Run(backbone=backbone, subset=subset, rho=rho, seed=seed)) for subset in ("bis", "random")
            )
            if bis is not None and random is not None:
                pairs.append(measure.bootstrapped_overall(bis) - measure.bootstrapped_overall(random))
        if pairs:
            difference = np.mean(pairs, axis=0)
            interval = estimate(float(difference[0]), difference[1:])
            differences[f"{100 * rho:g}"] = {**asdict(interval), "n_seeds": len(pairs)}
    return differences


class Runs:
    """Records by backbone, condition and seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records: dict[tuple[str, str], dict[int, Record]] = {}
        for record in records:
            run = Run(**record["run"])
            self._records.setdefault((run.backbone, run.condition), {})[run.seed] = record

    @property
    def backbones(self) -> list[str]:
        """Names, in order of first appearance."""
        return list(dict.fromkeys(backbone for backbone, _ in self._records))

    def conditions(self, backbone: str) -> list[str]:
        """Conditions of a backbone, in order of first appearance."""
        return [condition for name, condition in self._records if name == backbone]

    def records(self, backbone: str, condition: str) -> dict[int, Record]:
        """By seed; empty where there is none."""
        return self._records.get((backbone, condition), {})

    def mean(self, backbone: str, condition: str, metric: Metric) -> SeedMean | None:
        """Mean over the seeds that have the number; None where none has."""
        return self.combined(backbone, [(condition, metric, 1)])

    def difference(
        self, backbone: str, condition: str, other: str, metric: Metric = METRICS["overall"]
    ) -> SeedMean | None:
        """Condition minus other, seed by seed; None where no seed has both."""
        return self.combined(backbone, [(condition, metric, 1), (other, metric, -1)])

    def combined(self, backbone: str, terms: Sequence[tuple[str, Metric, float]]) -> SeedMean | None:
        """Sum of a condition's number times a factor, seed by seed, over the seeds that have all of the numbers.

        Runs of one seed have the order of their data, and what is sampled, in common.
        """
        records = [self.records(backbone, condition) for condition, _, _ in terms]
        sums = []
        for seed in records[0]:
            if all(seed in by_seed for by_seed in records):
                values = [metric(each[seed]) for (_, metric, _), each in zip(terms, records, strict=True)]
                if None not in values:
                    sums.append(sum(factor * value for (*_, factor), value in zip(terms, values, strict=True)))
        return seed_mean(sums) if sums else None


def best_of_n_value(method: str, n: int) -> Metric:
    """The accuracy of a way to choose among n candidates."""
    return lambda record: record.get("best_of_n", {}).get("accuracy", {}).get(method, {}).get(str(n))


def _of_source(source: str) -> Metric:
    return lambda record: record["metrics"]["held_out"]["sources"].get(source)


def summary_of(records: Sequence[Record]) -> dict[str, Any]:
    """Every mean and interval by backbone and condition, and BIS minus random by percentage kept."""
    runs = Runs(records)
    summary: dict[str, Any] = {}
    for backbone in runs.backbones:
        names = runs.conditions(backbone)
        percentages = [name.removeprefix("bis-") for name in names if name.startswith("bis-") and "alpha" not in name]
        summary[backbone] = {
            "conditions": {name: _condition(runs, backbone, name) for name in names},
            "bis_minus_random": {
                rho: _as_json(runs.difference(backbone, f"bis-{rho}", f"random-{rho}"))
                for rho in sorted(percentages, key=float)
                if f"random-{rho}" in names
            },
        }
    return summary


def _condition(runs: Runs, backbone: str, condition: str) -> dict[str, Any]:
    records = list(runs.records(backbone, condition).values())
    counts = ("n_rollouts", "n_steps", "n_positive", "n_optimizer_steps", "seconds")
    summary: dict[str, Any] = {
        "n_seeds": len(records),
        **{name: round(fmean(record[name] for record in records), 1) for name in counts},
        **{name: _as_json(runs.mean(backbone, condition, metric)) for name, metric in METRICS.items()},
        "sources": {
            source: _as_json(runs.mean(backbone, condition, _of_source(source)))
            for source in records[0]["metrics"]["held_out"]["sources"]
        },
    }
    if "best_of_n" in records[0]:
        summary["best_of_n"] = {
            method: {n: _as_json(runs.mean(backbone, condition, best_of_n_value(method, int(n)))) for n in row}
            for method, row in records[0]["best_of_n"]["accuracy"].items()
        }
    if curves := [record["curve"] for record in records if "curve" in record]:
        summary["curve"] = _mean_curve(curves)
    return summary


def _mean_curve(curves: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The overall value at each optimizer step that all seeds were evaluated at."""
    by_step = [{point["optimizer_step"]: point["overall"] for point in curve} for curve in curves]
    shared = sorted(set.intersection(*map(set, by_step)))
    return [
        {"optimizer_step": step, "overall": _as_json(seed_mean([curve[step] for curve in by_step]))}
        for step in shared
    ]


def _as_json(mean: SeedMean | None) -> dict[str, Any] | None:
    if mean is None:
        return None
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(mean).items()}


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write the file, a line for each run."""
    parts = []
    for name, value in results.items():
        text = msgspec.json.encode(value).decode()
        if isinstance(value, list):
            text = "[\n" + ",\n".join(msgspec.json.encode(entry).decode() for entry in value) + "\n]"
        parts.append(f'"{name}": {text}')
    with atomic_write(str(path)) as temporary:
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def read_results(path: Path) -> dict[str, Any]:
    """What `write_results` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=dict)
