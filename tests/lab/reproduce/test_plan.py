from __future__ import annotations

import pytest

from mprm_lab.reproduce.findings import OVERALL
from mprm_lab.reproduce.page import label
from mprm_lab.reproduce.plan import ReproducePlan, Run


@pytest.mark.parametrize(
    ("run", "name", "words"),
    [
        (Run(backbone="qwen"), "qwen.full.seed0", "All rollouts, hard (τ = 0)"),
        (Run(backbone="qwen", tau_count=2, seed=3), "qwen.full-tau-2.seed3", "All rollouts, hard (τ = 2/N)"),
        (Run(backbone="qwen", labels="soft"), "qwen.full-soft.seed0", "All rollouts, soft"),
        (Run(backbone="internvl", subset="bis", rho=0.05), "internvl.bis-5.seed0", "BIS-5%"),
        (Run(backbone="qwen", subset="low-mc", rho=0.25), "qwen.low-mc-25.seed0", "Low-MC-25%"),
        (
            Run(backbone="qwen", subset="bis", rho=0.25, alpha=0.02),
            "qwen.bis-25-alpha-0.02.seed0",
            "BIS-25%, α = 0.02",
        ),
        (
            Run(backbone="qwen", subset="random", rho=0.25, is_matched=True),
            "qwen.random-25-matched.seed0",
            "Random-25%, matched updates",
        ),
    ],
)
def test_a_run_has_a_name_that_says_what_it_is(run: Run, name: str, words: str) -> None:
    assert run.name == name
    assert label(run.condition) == words


def test_matched_runs_read_as_many_rollouts_as_one_pass_over_everything() -> None:
    run = Run(backbone="qwen", subset="random", rho=0.05, is_matched=True)
    assert (run.epochs, run.passes) == (20, 1.0)
    assert Run(backbone="qwen", subset="random", rho=0.05).passes == 0.05
    assert Run(backbone="qwen", subset="base").passes == 0


def test_the_plan_has_every_run_of_the_papers_tables_once() -> None:
    plan = ReproducePlan()
    runs = plan.runs()
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    # 4 references, then of each seed: 4 kinds of labels, 2 x 6 fractions, 3 strategies, 3 alphas, 2 matched
    assert len(runs) == 2 * (4 + 5 * (4 + 12 + 3 + 3 + 2))
    for backbone, known in OVERALL.items():
        assert set(known) <= {run.condition for run in runs if run.backbone == backbone}
    assert {*plan.curves, *plan.best_of_n} <= {run.condition for run in runs}
    assert not {run.name for run in plan.rate_trials()} & set(names)
    assert all(any(f"{b}.{kept}" in names for kept in plan.keep) for b in plan.backbones)


def test_a_runs_options_are_those_of_its_training() -> None:
    plan = ReproducePlan(n_continuations=16)
    options = plan.train_options(Run(backbone="qwen", tau_count=2, seed=4))
    assert options["tau"] == 0.125  # 2 / 16
    assert (options["strategy"], options["rho"], options["seed"], options["select_seed"]) == (None, None, 4, 4)
    assert (options["learning_rate"], options["epochs"], options["labels"]) == (1e-4, 1, "hard")
    chosen = plan.train_options(Run(backbone="qwen", subset="bis", rho=0.1, alpha=0.2))
    assert (chosen["strategy"], chosen["rho"], chosen["alpha"]) == ("bis", 0.1, 0.2)


def test_the_rate_goes_by_the_share_that_a_run_passes_over() -> None:
    plan = ReproducePlan(rates=((0.15, 3e-4), (1.0, 1e-4)))
    shares = {rho: plan.rate_of(Run(backbone="qwen", subset="bis", rho=rho)) for rho in (0.05, 0.15, 0.25, 0.5)}
    assert shares == {0.05: 3e-4, 0.15: 3e-4, 0.25: 1e-4, 0.5: 1e-4}
    assert plan.rate_of(Run(backbone="qwen")) == 1e-4
    # 20 epochs over a twentieth are one pass over all
    assert plan.rate_of(Run(backbone="qwen", subset="random", rho=0.05, is_matched=True)) == 1e-4
    assert plan.rate_of(Run(backbone="qwen", learning_rate=1e-3)) == 1e-3
