"""``mprm-lab demo``: the pipeline from end to end on the shipped lab, without a GPU."""

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

from mprm.cli import run, show_table
from mprm.errors import MprmError, OutputExistsError
from mprm_lab.folder import CANDIDATE_SCORES, SCORES
from mprm_lab.make import TRAINING, LabPlan
from mprm_lab.shipped import open_lab

INTERRUPTED, WARNINGS_ONLY = 130, 3
"""Exit codes of ``mprm``."""
N_QUESTIONS = 150
"""Of best-of-N."""
NAMES = {"random-0.1": "a random tenth", "bis-0.1": "a tenth by BIS", "full": "all rollouts (shipped scores)"}
BASELINES = {"random": "one answer", "majority_vote": "majority vote", "oracle": "oracle"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of ``mprm``, and how long it takes on two cores."""

    about: str
    seconds: int
    words: tuple[str, ...]


def stages(folder: Path) -> list[Stage]:
    """The commands of the demo, in order."""
    lab, subsets, runs, evaluations = (folder / name for name in ("lab", "subsets", "runs", "eval"))
    corpus, images = lab / "corpus.jsonl", ("--image-root", lab / "images")
    options = {"learning_rate": LabPlan().demo_learning_rate, **TRAINING}
    training = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    policy = lab / "policies" / LabPlan().demo_policy
    bis, random = "bis-0.1", "random-0.1"

    def stage(about: str, seconds: int, *words: object) -> Stage:
        return Stage(about, seconds, tuple(map(str, words)))

    def train(name: str) -> Stage:
        options = ("--model", policy, *images, *training, "--no-gradient-checkpointing", "--out", runs / name)
        return stage(f"train on {name}", 62, "train", subsets / f"{name}.jsonl", *options)

    def evaluate(name: str) -> Stage:
        options = ("--model", runs / name, *images, "--out", evaluations / name)
        return stage(f"evaluate {name}", 12, "evaluate", lab / "benchmark.jsonl", *options)

    def rerank(name: str, seconds: int, *scores: object) -> Stage:
        about = f"choose answers to {N_QUESTIONS} questions by {name}"
        return stage(
            about, seconds, "rerank", folder / "candidates.jsonl", *scores, "--out", folder / "rerank" / name
        )

    page = (*images, "--runs", runs, evaluations, "--out", folder / "report.html")
    scores = [evaluations / name / "scores.jsonl" for name in (random, bis)]
    return [
        stage("look for problems", 1, "check", corpus, *images),
        stage("describe", 1, "stats", corpus),
        stage("select", 1, "select", corpus, "--strategy", "bis", "random", "--rho", 0.1, "--out-dir", subsets),
        train(bis),
        train(random),
        evaluate(bis),
        evaluate(random),
        rerank(bis, 8, "--model", runs / bis, *images),
        rerank(random, 8, "--model", runs / random, *images),
        rerank("full", 1, "--scores", lab / CANDIDATE_SCORES),
        stage("write the page", 1, "report", corpus, *page),
        stage("compare with all data", 2, "evaluate", "--scores", *scores, lab / SCORES, "--out", folder / "compare"),
    ]


def demo(folder: Path) -> None:
    """Run all stages; each prints what it does, and how long it and the rest will take."""
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputExistsError(f"{folder} is there already; choose another folder, or remove it")
    opening = Stage("unpack the corpus, draw its pictures", 10, ("open", str(folder / "lab")))
    plan, start = [opening, *stages(folder)], monotonic()
    for number, stage in enumerate(plan, 1):
        planned = sum(earlier.seconds for earlier in plan[: number - 1])
        pace = max(1.0, (monotonic() - start) / planned) if planned else 1.0  # slower machines, or busy ones
        rest = pace * sum(later.seconds for later in plan[number - 1 :])
        print(
            f"\n[{number} of {len(plan)}] {stage.about}: about {pace * stage.seconds:.0f} s,"
            f" all that is left about {rest:.0f} s"
            f"\n$ {'mprm-lab' if stage is opening else 'mprm'} {shlex.join(stage.words)}",
            flush=True,
        )
        if stage is opening:
            open_lab(folder / "lab")
            lines = (folder / "lab" / "candidates.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "candidates.jsonl").write_bytes(b"".join(lines[:N_QUESTIONS]))
            continue
        # the tables of the comparison are in its metrics.md; here the few numbers that matter are shown instead
        with redirect_stdout(io.StringIO()) if number == len(plan) else nullcontext():
            code = run(list(stage.words))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code and not (stage.words[0] == "check" and code == WARNINGS_ONLY):
            raise MprmError(f"the demo stopped: mprm {stage.words[0]} ended with exit code {code}")
    _show_summary(folder)
    print(f"Done in {monotonic() - start:.0f} s. The page is {folder / 'report.html'}.")


def _show_summary(folder: Path) -> None:
    """Print one table, in points: the three models on both tasks, and what best-of-N is without a model."""
    compared = msgspec.json.decode((folder / "compare" / "metrics.json").read_bytes())
    files = {name: folder / "subsets" / f"{name}.jsonl" for name in NAMES} | {"full": folder / "lab/corpus.jsonl"}
    rows = []
    for model in compared["models"]:
        name, metrics = model["name"], model["metrics"]["all"]
        reranked = msgspec.json.decode((folder / "rerank" / name / "metrics.json").read_bytes())
        n, accuracy = str(max(reranked["n"])), reranked["total"]["accuracy"]
        values = (metrics["overall"], metrics["auc"], accuracy["prm"][n])
        rows.append([NAMES[name], f"{len(files[name].read_bytes().splitlines()):,}", *map(_points, values)])
    for method, words in BASELINES.items():
        rows.append([words, "", "", "", _points(accuracy[method][n]) if method in accuracy else ""])
    heads = ["reward model trained on", "rollouts", "step F1", "AUC", f"best-of-{n}"]
    show_table("What a tenth of the rollouts teaches", heads, rows, total_last=False)
    print(
        f"In points, with 95% intervals. Step F1 and AUC: is a step of {model['counts']['n_solutions']:,} solutions"
        f" right? Best-of-{n}: how many of {reranked['n_questions']} questions are answered right by the one of {n}"
        " answers that the reward model scores highest; and without a reward model by any one of them, by the most"
        " frequent one, and by the right one wherever there is one. docs/lab.md tells what to make of it."
    )


def _points(estimate: dict[str, Any], sign: str = "") -> str:
    """Nothing where the benchmark is too small for a number."""
    if None in estimate.values():
        return ""
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
