"""What a read-out adds in the lab: reward models trained on a tenth, alone and with the policy's log-probabilities.

A read-out is fitted to 3,000 rollouts that the model was not trained on, or to the 600 labelled solutions of the
validation split. Measured on the step benchmark, and on candidates of other problems: on their steps, judged by the
world, and by the model's choice among 16.

    mprm-lab open LAB
    python benchmarks/readout.py --lab LAB --out benchmarks/results/readout.json
    python benchmarks/readout.py --lab LAB --run ALL --out benchmarks/results/readout_all.json

ALL is trained on all rollouts, with the command in benchmarks/search.py.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

import mprm
from mprm.data import Chain
from mprm.data.candidates import read_candidates
from mprm.errors import DataError
from mprm.models.logprobs import STEP_FEATURES, StepLogProbs, step_features
from mprm_lab.make import labeled_solutions
from mprm_lab.reproduce.measure import auc_at_same_position

N_CANDIDATES = 16
DATA = {"read-out, 3,000 rollouts": "corpus.jsonl", "read-out, 600 labelled": "validation.jsonl"}
TRAINING = {"learning_rate": 3e-4, "batch_size": 64, "per_device": 64, "max_length": 1024}


class Remembered:
    """A scorer, or a policy's log-probabilities, that reads no chain twice."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.known = inner, dict[Chain, Any]()
        self.name, self.fingerprint, self.encoder = inner.name, inner.fingerprint, inner.encoder

    def __getattr__(self, name: str) -> Any:
        def read(chains: Sequence[Chain], **_: Any) -> list[Any]:
            new = [chain for chain in dict.fromkeys(chains) if chain not in self.known]
            if new:
                self.known |= zip(new, getattr(self.inner, name)(new, progress=mprm.progress_bar), strict=True)
            return [self.known[chain] for chain in chains]

        if name not in ("score_many", "of_tokens"):
            raise AttributeError(name)
        return read


class PolicyAlone:
    """The lowest log-probability so far, as a probability."""

    name = "policy alone"

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        column = STEP_FEATURES.index("running_minimum")
        return [np.exp(step_features(steps)[:, column]).tolist() for steps in self.policy.of_tokens(chains)]


def of_steps(path: Path, scorer: Any, lab: Path) -> dict[str, float]:
    result = mprm.evaluate(str(path), model=scorer, image_root=str(lab / "images"), draws=20).models[0]
    same = auc_at_same_position(result.table)
    return {"overall F1": result.value("overall"), "AUC": result.value("auc"), "AUC, same position": same}


def measured(scorer: Any, lab: Path, folder: Path) -> dict[str, float]:
    numbers = {f"benchmark: {name}": value for name, value in of_steps(lab / "benchmark.jsonl", scorer, lab).items()}
    numbers |= {
        f"candidates: {name}": value for name, value in of_steps(folder / "judged.jsonl", scorer, lab).items()
    }
    accuracy = mprm.rerank(
        str(folder / "candidates.jsonl"), scorer, image_root=str(lab / "images"), draws=20
    ).best_of_n.total.accuracy
    numbers |= {
        f"best of 16: {name}": accuracy[name][N_CANDIDATES].value for name in ("prm", "majority_vote", "random")
    }
    return {name: round(100 * value, 2) for name, value in numbers.items()}


def with_interval(values: Sequence[float]) -> list[float]:
    """Mean and 95% interval over seeds, by Student's t; of one seed the value alone."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return [round(mean, 2)]
    half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return [round(number, 2) for number in (mean, mean - half, mean + half)]


def summary(runs: Sequence[dict[str, Any]], alone: dict[str, float]) -> dict[str, Any]:
    """What the runs of each strategy give, and each read-out less the model, and less the policy alone."""
    table: dict[str, Any] = {}
    for strategy in dict.fromkeys(run["strategy"] for run in runs):
        own = [run["cells"] for run in runs if run["strategy"] == strategy]
        rows = {name: [cells[name] for cells in own] for name in own[0]}
        others = {"model": rows["model"], "policy alone": [alone] * len(own)}
        for name in [name for name in rows if name != "model"]:
            for other, theirs in others.items():
                pairs = zip(rows[name], theirs, strict=True)
                rows[f"{name} - {other}"] = [{key: cells[key] - less[key] for key in alone} for cells, less in pairs]
        table[strategy] = {
            name: {key: with_interval([cells[key] for cells in row]) for key in alone} for name, row in rows.items()
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategies", nargs="+", default=["bis", "random"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--run", type=Path, help="a trained model, instead of tenths that are trained here")
    parser.add_argument("--questions", type=int, default=300, help="whose candidates are judged and chosen from")
    options = parser.parse_args()
    lab, images, small = options.lab, options.lab / "images", options.lab / "policies" / "small"
    policy: Any = Remembered(StepLogProbs.from_pretrained(small, image_root=images))
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = (lab / "candidates.jsonl").read_bytes().splitlines(keepends=True)[: options.questions]
        (folder / "candidates.jsonl").write_bytes(b"".join(lines))
        judged = labeled_solutions(read_candidates(str(folder / "candidates.jsonl")), policy="candidates")
        (folder / "judged.jsonl").write_text("".join(json.dumps(record) + "\n" for record in judged))
        alone = measured(PolicyAlone(policy), lab, folder)
        print("policy alone", alone, flush=True)
        given = (
            [("given", 0)]
            if options.run
            else [(name, n) for name in options.strategies for n in range(options.seeds)]
        )
        for strategy, seed in given:
            run = options.run or folder / f"{strategy}-{seed}"
            if options.run is None:
                mprm.train(
                    str(lab / "corpus.jsonl"), model=str(small), image_root=str(images), out=str(run), seed=seed,
                    strategy=strategy, rho=0.1, gradient_checkpointing=False, save_every=0, dataloader_workers=0,
                    report_to=("none",), **TRAINING,
                )  # fmt: skip
            prm: Any = Remembered(mprm.PRM.from_pretrained(run, image_root=images))
            scorers: dict[str, Any] = {"model": prm}
            for name, file in DATA.items():
                with contextlib.suppress(DataError):  # a model that was trained on all rollouts
                    scorers[name] = mprm.readout(str(lab / file), prm, policy, run=run, seed=seed)
            cells = {name: measured(scorer, lab, folder) for name, scorer in scorers.items()}
            fits = {name: dict(scorer.fitted.weights) for name, scorer in scorers.items() if name != "model"}
            runs.append({"strategy": strategy, "seed": seed, "cells": cells, "weights": fits})
            print(json.dumps(runs[-1]), flush=True)
    result = {
        "command": "python benchmarks/readout.py --lab LAB" + " --run RUN" * bool(options.run) + " --out FILE",
        "backbone": "small", "rho": None if options.run else 0.1, "training": None if options.run else TRAINING,
        "questions": options.questions,
        "policy alone": alone, "runs": runs, "mean and 95% interval over seeds": summary(runs, alone),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
