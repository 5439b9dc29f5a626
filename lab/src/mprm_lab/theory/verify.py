"""``mprm-lab theory``: all statements, simulated and checked together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mprm.data import atomic_write, save_figure
from mprm.progress import Progress, silent
from mprm.theory import FloatArray
from mprm_lab.theory import selection
from mprm_lab.theory.selection import World
from mprm_lab.theory.statements import CRITERION, CheckResult, Comparison, check_all
from mprm_lab.theory.steps import compare_rollouts, compare_steps, compare_success_rates
from mprm_lab.theory.training import DATA, UPDATES, Training, compare_training, train_students

N_SEEDS = 200
"""Students of each strategy in the world like the corpus; as many corpora."""
N_SEEDS_OTHER = 60
"""In each of the other worlds, and for pseudo-positives."""
APART, ALIKE = 0.2, 0.8
"""Correlation of a rollout's steps in the other worlds."""
UNCERTAIN = World(correlation=ALIKE, n_features=9, slope=1.5, intercept=3.0, wrong=(0.25, 1.5))
"""A teacher less sure of its steps, and so more mixed rollouts: shown beside the others, no statement is about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was simulated, and which statements hold."""

    seed: int
    results: list[CheckResult]
    training: Training | None = None
    worlds: list[selection.StrategyResults] = field(default_factory=list)
    pseudo_positives: selection.PseudoPositiveResults | None = None

    @property
    def holds(self) -> bool:
        """Whether every statement does."""
        return all(result.holds for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        contents: dict[str, Any] = {
            "seed": self.seed,
            "holds": self.holds,
            "criterion": CRITERION,
            "lines": [result.as_dict() for result in self.results],
        }
        if self.training is not None:
            names = ("single_pass", "minimizer", "deviation")
            contents["training"] = {name: _curve_points(getattr(self.training, name)) for name in names}
        if self.worlds:
            settings = {"rollouts": selection.N_ROLLOUTS, "rho": selection.RHO, "alpha": selection.ALPHA}
            contents["strategies"] = settings | {"worlds": [world.as_dict() for world in self.worlds]}
        if (pseudo := self.pseudo_positives) is not None:
            contents["pseudo_positives"] = {
                "share": pseudo.share.tolist(),
                "annotated": pseudo.annotated.mean(axis=0).tolist(),
                "corrected": pseudo.corrected.mean(axis=0).tolist(),
            }
        return contents


def _curve_points(curve: dict[int, FloatArray]) -> dict[int, dict[str, float]]:
    """Mean and standard error, by number of data or of updates."""
    return {
        size: {"mean": float(values.mean()), "error": float(values.std(ddof=1) / np.sqrt(len(values)))}
        for size, values in curve.items()
    }


Simulated = tuple[list[Comparison], dict[str, Any]]
"""Comparisons, and fields of a `Verification`."""


def _training(rng: np.random.Generator) -> Simulated:
    training = train_students(rng)
    return compare_training(training), {"training": training}


def _strategies(rng: np.random.Generator) -> Simulated:
    train = selection.train_by_strategy
    usual = train(rng, World(), N_SEEDS)
    apart, alike = (train(rng, World(correlation=c), N_SEEDS_OTHER) for c in (APART, ALIKE))
    pseudo = selection.train_with_pseudo_positives(rng, World(), N_SEEDS_OTHER)
    worlds = [usual, apart, alike, train(rng, UNCERTAIN, N_SEEDS_OTHER)]
    compared = [*selection.compare_strategies(usual, alike), *selection.compare_pseudo_positives(pseudo)]
    return compared, {"worlds": worlds, "pseudo_positives": pseudo}


PARTS: dict[str, Callable[[np.random.Generator], Simulated]] = {
    "steps": lambda rng: (compare_steps(rng), {}),
    "rollouts": lambda rng: (compare_rollouts(rng), {}),
    "success-rates": lambda rng: (compare_success_rates(rng), {}),
    "training": _training,
    "strategies": _strategies,
}


def verify(*, seed: int = 0, only: Iterable[str] = (), progress: Progress = silent) -> Verification:
    """Simulate what the paper's statements are about, and check each statement.

    ``only`` names some of `PARTS`; a part samples the same with or without the others.

    >>> verify(only=["steps"]).holds
    True
    """
    parts = list(only) or list(PARTS)
    compared: list[Comparison] = []
    fields: dict[str, Any] = {}
    with progress("simulating", len(parts)) as advance:
        for number, (part, simulate) in enumerate(PARTS.items()):
            if part in parts:
                of_part, of_fields = simulate(np.random.default_rng([seed, number]))
                compared += of_part
                fields |= of_fields
                advance(1)
    return Verification(seed=seed, results=check_all(compared), **fields)


# Figures.

BLUE, GREEN, ORANGE = "#0072B2", "#009E73", "#D55E00"
"""Of Okabe and Ito's palette: told apart with any kind of colour vision."""
KINDS = ("svg", "png")
FIGURES = tuple(f"{name}.{kind}" for name in ("scaling", "strategies", "pseudo_positives") for kind in KINDS)
"""All files that may be written."""


def write_figures(verification: Verification, folder: Path) -> list[str]:
    """Names of the files: each figure as SVG and PNG."""
    charts: dict[str, Any] = {}
    if verification.training is not None:
        charts["scaling"] = _scaling_figure(verification.training)
    if verification.worlds:
        charts["strategies"] = _strategies_figure(verification.worlds)
    if verification.pseudo_positives is not None:
        charts["pseudo_positives"] = _pseudo_positives_figure(verification.pseudo_positives)
    written = [f"{name}.{kind}" for name in charts for kind in KINDS]
    for file in written:
        name, kind = file.split(".")
        with atomic_write(str(folder / file)) as temporary:
            save_figure(charts[name], temporary, kind)
    return written


def _lines(rows: list[dict[str, Any]], colours: dict[str, str], direction: str, **axes: Any) -> Any:
    """Lines with points, one for each ``curve`` of the rows."""
    import altair as alt

    colour = alt.Color(
        "curve:N",
        title=None,
        sort=list(colours),
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(orient="bottom", direction=direction),
    )
    chart = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45))
    return chart.encode(color=colour, **axes)


def _scaling_figure(training: Training) -> Any:
    """Excess risk against updates and data, on logarithmic scales."""
    import altair as alt

    curves = {
        "SGD, by updates T": training.single_pass,
        "largest deviation of the loss, by data N": training.deviation,
        "empirical minimizer, by data N": training.minimizer,
    }
    rows = [
        {"curve": name, "size": size, "value": float(values.mean())}
        for name, curve in curves.items()
        for size, values in curve.items()
    ]
    log, sizes = alt.Scale(type="log", nice=False), alt.Axis(values=[*DATA, *UPDATES])
    tenths = alt.Axis(values=[1, 0.1, 0.01, 0.001, 0.0001], format="~g")
    x = alt.X("size:Q", title="updates T, or training steps N", scale=log, axis=sizes)
    y = alt.Y("value:Q", title="excess risk, or deviation", scale=log, axis=tenths)
    chart = _lines(rows, dict(zip(curves, (BLUE, ORANGE, GREEN), strict=True)), "vertical", x=x, y=y)
    title = "T^(−1/2) and N^(−1/2) as bounded; the minimizer itself falls as 1/N"
    return chart.properties(title=title, width=440, height=280)


def _strategies_figure(worlds: list[selection.StrategyResults]) -> Any:
    """Macro-F1 and risk of each strategy's students, with 95% intervals over seeds, in each world of slope 3."""
    import altair as alt

    shown = {f"correlation {w.world.correlation:g}": w for w in worlds if w.world.slope == World().slope}
    rows = []
    for name, world in shown.items():
        for strategy, values in world.as_dict()["students"].items():
            for measure in ("f1", "refitted_risk"):
                mean, half = values[measure]
                rows.append(
                    {"world": name, "subset": strategy, measure: mean, "low": mean - half, "high": mean + half}
                )
    scale = alt.Scale(domain=sorted(shown), range=[GREEN, BLUE, ORANGE])
    colour = alt.Color("world:N", title="steps of a rollout", scale=scale)
    order = ["all", "bis", "mixed", "reliable", "random", "low-mc"]

    def panel(measure: str, title: str) -> Any:
        base = alt.Chart(alt.InlineData(values=[row for row in rows if measure in row])).encode(
            y=alt.Y("subset:N", title=None, sort=order), yOffset="world:N", color=colour
        )
        low = alt.X("low:Q", title=title, scale=alt.Scale(zero=False))
        bars = base.mark_rule(strokeWidth=2).encode(x=low, x2="high:Q")
        points = base.mark_point(filled=True, size=60, opacity=1).encode(x=f"{measure}:Q")
        return (bars + points).properties(width=250, height=240)

    f1, risk = panel("f1", "macro-F1 less the teacher's"), panel("refitted_risk", "excess risk, intercept refitted")
    return alt.hconcat(f1, risk).properties(title="A tenth of the rollouts by each strategy, and all of them")


def _pseudo_positives_figure(pseudo: selection.PseudoPositiveResults) -> Any:
    """Risk with and without pseudo-positives, against their share."""
    import altair as alt

    curves = {"labels k > 0": pseudo.annotated, "pseudo-positives labelled negative": pseudo.corrected}
    rows = [
        {"curve": name, "share": 100 * float(share), "risk": float(risk)}
        for name, risks in curves.items()
        for share, risk in zip(pseudo.share, risks.mean(axis=0), strict=True)
    ]
    x = alt.X("share:Q", title="pseudo-positives among positive steps (%)")
    y = alt.Y("risk:Q", title="excess risk of the student")
    chart = _lines(rows, dict(zip(curves, (ORANGE, BLUE), strict=True)), "horizontal", x=x, y=y)
    title = "Pseudo-positives harm, and the more of them the more"
    return chart.properties(title=title, width=440, height=260)
