"""``mprm lab demo``: the main job from end to end on the lab that mprm ships, without a GPU."""

from __future__ import annotations

import io
import os
import shlex
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from mprm.cli.tables import rich_table, show
from mprm.errors import MprmError, OutputExistsError

INTERRUPTED = 130
N_PROBLEMS = 150
"""Of best-of-N."""
NAMES = {"random-0.1": "a tenth at random", "bis-0.1": "a tenth by BIS", "full": "all of them (shipped)"}
CHOICES = {"random": "any of them", "majority_vote": "majority vote", "prm": "the BIS model's choice"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, and how long it takes on two cores."""

    about: str
    seconds: int
    words: tuple[str, ...]


def stages(folder: Path) -> list[Stage]:
    """What the demo runs, in order."""
    from mprm_lab.plan import LabPlan
    from mprm_lab.reproduce.reproduce_plan import TRAINING
    from mprm_lab.shipped import SCORES

    lab, subsets, runs, measured = (folder / name for name in ("lab", "subsets", "runs", "eval"))
    corpus, images = lab / "corpus.jsonl", ("--image-root", lab / "images")
    how = {"learning_rate": LabPlan().demo_rate, **TRAINING}
    training = [word for name, value in how.items() for word in (f"--{name.replace('_', '-')}", value)]
    policy = lab / "policies" / LabPlan().demo_policy

    def stage(about: str, seconds: int, *words: object) -> Stage:
        return Stage(about, seconds, tuple(map(str, words)))

    def trained(name: str) -> Stage:
        options = ("--model", policy, *images, *training, "--no-gradient-checkpointing", "--out", runs / name)
        return stage(f"train on {name}", 62, "train", subsets / f"{name}.jsonl", *options)

    def evaluated(name: str) -> Stage:
        options = ("--model", runs / name, *images, "--out", measured / name)
        return stage(f"measure {name}", 16, "evaluate", lab / "benchmark.jsonl", *options)

    bis, random = "bis-0.1", "random-0.1"
    choice = ("--model", runs / bis, *images, "--out", folder / "rerank")
    page = (*images, "--runs", runs, measured, "--out", folder / "report.html")
    scores = [measured / name / "scores.jsonl" for name in (random, bis)]
    return [
        stage("unpack the corpus, draw its pictures", 14, "lab", "open", lab),
        stage("look for problems", 2, "check", corpus, *images),
        stage("describe", 1, "stats", corpus),
        stage("select", 1, "select", corpus, "--strategy", "bis", "random", "--rho", 0.1, "--out-dir", subsets),
        trained(bis),
        trained(random),
        evaluated(bis),
        evaluated(random),
        stage(f"choose answers to {N_PROBLEMS} questions", 12, "rerank", folder / "candidates.jsonl", *choice),
        stage("write the page", 1, "report", corpus, *page),
        stage("compare with all data", 4, "evaluate", "--scores", *scores, lab / SCORES, "--out", folder / "compare"),
    ]


def demo(folder: Path) -> None:
    """Run all stages; each says what it does, and how long it and the rest will take."""
    from mprm.cli.main import run

    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputExistsError(f"{folder} is there already; choose another folder, or remove it")
    plan, began = stages(folder), monotonic()
    for number, stage in enumerate(plan, 1):
        planned = sum(earlier.seconds for earlier in plan[: number - 1])
        pace = max(1.0, (monotonic() - began) / planned) if planned else 1.0  # slower machines, or busy ones
        rest = pace * sum(later.seconds for later in plan[number - 1 :])
        print(
            f"\n[{number} of {len(plan)}] {stage.about}: about {pace * stage.seconds:.0f} s,"
            f" all that is left about {rest:.0f} s"
            f"\n$ mprm {shlex.join(stage.words)}",
            flush=True,
        )
        if stage.words[0] == "rerank":
            lines = (folder / "lab" / "candidates.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "candidates.jsonl").write_bytes(b"".join(lines[:N_PROBLEMS]))
        # the tables of the comparison are in its metrics.md; here the few numbers that matter are shown instead
        with redirect_stdout(io.StringIO()) if number == len(plan) else nullcontext():
            code = run(list(stage.words))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code and not (stage.words[0] == "check" and code == 3):  # 3: there is something to look at
            raise MprmError(f"the demo stopped: mprm {stage.words[0]} ended with exit code {code}")
    show(_last_table(folder))
    print(f"Done in {monotonic() - began:.0f} s. The page is {folder / 'report.html'}.")


def _last_table(folder: Path) -> Any:
    """All three models on the benchmark, in points; the last one was trained where the lab was made."""
    found = msgspec.json.decode((folder / "compare" / "metrics.json").read_bytes())
    chosen = msgspec.json.decode((folder / "rerank" / "metrics.json").read_bytes())
    leads = {one["model"]: one["differences"]["all"]["overall"]["estimate"] for one in found["comparisons"]}
    n_rollouts = {name: _n_lines(folder / "subsets" / f"{name}.jsonl") for name in NAMES if name != "full"}
    n_rollouts["full"] = _n_lines(folder / "lab" / "corpus.jsonl")
    rows = []
    for model in found["models"]:
        name, values = model["name"], model["metrics"]["all"]
        lead = _points(leads[name], "+") if name in leads else ""
        rows.append(
            [NAMES[name], f"{n_rollouts[name]:,}", _points(values["overall"]), lead]
            + [_points(values[metric]) for metric in ("macro_f1", "auc")]
        )
    n, accuracy = max(chosen["n"]), chosen["total"]["accuracy"]
    best = ", ".join(f"{_points(accuracy[how][str(n)])} by {words}" for how, words in CHOICES.items())
    heads = ["trained on", "rollouts", "overall F1", "minus random", "pooled F1", "AUC"]
    table = rich_table("What a tenth of the rollouts teaches", heads, rows, total_last=False)
    counts = found["models"][0]["counts"]
    table.caption = (
        f"On {counts['n_solutions']:,} solutions, in points, with 95% intervals over problems. Overall F1 is the"
        " paper's, a mean over sources; pooled F1 is of all steps at once.\n"
        f"Accuracy of one of {n} answers to {chosen['n_questions']} questions: {best}."
        " docs/lab.md tells what to make of both."
    )
    table.caption_justify = "left"
    return table


def _points(estimate: dict[str, Any], sign: str = "") -> str:
    """Nothing where the benchmark is too small for a number."""
    if None in estimate.values():
        return ""
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _n_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for _ in lines)
