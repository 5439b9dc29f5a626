"""Saved step scores of a benchmark with one threshold for all sources, and with one for each; its incorrect steps.

mprm-lab demo DEMO
python benchmarks/own_thresholds.py DEMO/lab/scores/full.jsonl DEMO/eval/*/scores.jsonl --out FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mprm.evaluation import StepTable, read_scores
from mprm_lab.reproduce.measure import of_source, own_thresholds, step_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", nargs="+", help="scores.jsonl of mprm evaluate")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for path in options.scores:
        saved = read_scores(path)
        table = StepTable.of(saved.solutions)
        single = step_metrics(table)["held_out"]
        found[saved.name] = {
            "single": {name: single[name] for name in ("overall", "auc")},
            "own": own_thresholds(table),
        }
        print(saved.name, json.dumps(found[saved.name]))
    labels = {name: of_source(table, number).labels for number, name in enumerate(table.sources)}
    found["incorrect_share"] = {
        name: round(float((one == -1).sum() / (one != 0).sum()), 4) for name, one in labels.items()
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
