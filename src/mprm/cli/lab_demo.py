"""``mprm lab demo``: the main job from end to end on the lab that mprm ships, without a GPU."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from mprm.errors import MprmError, OutputExistsError

INTERRUPTED = 130
N_PROBLEMS = 150
"""Of best-of-N."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, and how long it takes on two cores."""

    about: str
    seconds: int
    words: tuple[str, ...]


def stages(folder: Path) -> list[Stage]:
    """What the demo runs, in order."""
    from mprm.lab.plan import LabPlan
    from mprm.lab.reproduce.reproduce_plan import TRAINING
    from mprm.lab.shipped import SCORES

    lab, subsets, runs, measured = (folder / name for name in ("lab", "subsets", "runs", "eval"))
    corpus, images = lab / "corpus.jsonl", ("--image-root", lab / "images")
    how = {"learning_rate": LabPlan().demo_rate, **TRAINING}
    training = [word for name, value in how.items() for word in (f"--{name.replace('_', '-')}", value)]
    policy = lab / "policies" / LabPlan().demo_policy

    def stage(about: str, seconds: int, *words: object) -> Stage:
        return Stage(about, seconds, tuple(map(str, words)))

    def trained(name: str) -> Stage:
        options = ("--model", policy, *images, *training, "--no-gradient-checkpointing", "--out", runs / name)
        return stage(f"train on {name}", 80, "train", subsets / f"{name}.jsonl", *options)

    def evaluated(name: str) -> Stage:
        options = ("--model", runs / name, *images, "--out", measured / name)
        return stage(f"measure {name}", 27, "evaluate", lab / "benchmark.jsonl", *options)

    bis, random = "bis-0.1", "random-0.1"
    choice = ("--model", runs / bis, *images, "--out", folder / "rerank")
    page = (*images, "--runs", runs, measured, "--out", folder / "report.html")
    scores = [measured / name / "scores.jsonl" for name in (random, bis)]
    return [
        stage("unpack the corpus, draw its pictures", 15, "lab", "open", lab),
        stage("look for problems", 3, "check", corpus, *images),
        stage("describe", 2, "stats", corpus),
        stage("select", 2, "select", corpus, "--strategy", "bis", "random", "--rho", 0.1, "--out-dir", subsets),
        trained(bis),
        trained(random),
        evaluated(bis),
        evaluated(random),
        stage(f"choose answers to {N_PROBLEMS} questions", 20, "rerank", folder / "candidates.jsonl", *choice),
        stage("write the page", 5, "report", corpus, *page),
        stage("compare with all data", 10, "evaluate", "--scores", *scores, lab / SCORES),
    ]


def demo(folder: Path) -> None:
    """Run all stages; each says what it does, and how long it and the rest will take."""
    from mprm.cli.main import run

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputExistsError(f"{folder} is there already; choose another folder, or remove it")
    plan, began = stages(folder), monotonic()
    for number, stage in enumerate(plan, 1):
        rest = sum(later.seconds for later in plan[number - 1 :])
        print(
            f"\n[{number} of {len(plan)}] {stage.about}: about {stage.seconds} s, all that is left about {rest} s"
            f"\n$ mprm {shlex.join(stage.words)}",
            flush=True,
        )
        if stage.words[0] == "rerank":
            lines = (folder / "lab" / "candidates.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "candidates.jsonl").write_bytes(b"".join(lines[:N_PROBLEMS]))
        code = run(list(stage.words))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code and not (stage.words[0] == "check" and code == 3):  # 3: there is something to look at
            raise MprmError(f"the demo stopped: mprm {stage.words[0]} ended with exit code {code}")
    print(f"\nDone in {monotonic() - began:.0f} s. The page is {folder / 'report.html'}.")
