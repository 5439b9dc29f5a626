"""The paper's claims in the lab's first run and in another one, side by side.

mprm-lab reproduce LAB --make --seeds 3 --out AGAIN
python benchmarks/lab_again.py docs/results/lab.json AGAIN/lab.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mprm_lab.reproduce.findings import FINDINGS, Claim
from mprm_lab.reproduce.page import MAIN_PAIRS, OTHER_METRICS, markdown, points
from mprm_lab.reproduce.results import METRICS, Runs, read_results

WORDS = """# The lab's experiments, made a second time

`mprm-lab reproduce LAB --make --seeds 3` in an empty folder: policies, corpus, benchmarks, candidates and every
run from nothing, on a GPU of the same kind. [What came out the same](../lab.md#from-nothing) is everything but the
order of the rollouts in the corpus, on which sampling and batches depend, and what is trained on them. So each run
has another random subset and another order of training, as other seeds would give; and the learning rate, chosen by
the same rule, is another one
({rates}).
All runs are in [lab_again.json](lab_again.json); the first run's are those of [its page](lab.md).

Differences in points, with Student's 95% intervals over {seeds} seeds: of three seeds they are wide. *(curve)* is the
mean of the points of the learning curve, which three seeds have in both runs. **Bold** where the whole interval lies
on the claimed side of the bound, *italic* where it lies on the other side.
"""


def _cell(claim: Claim, runs: Runs, backbone: str) -> str:
    difference = claim.difference(runs, backbone)
    mark = {"reproduced": "**", "not reproduced": "*", "open": ""}[claim.outcome(difference)]
    return f"{mark}{points(difference, 1.0)}{mark}"


def page(first: dict[str, Any], again: dict[str, Any]) -> str:
    """Both runs' differences, claim by claim, and how many point the same way."""
    both = [Runs(first["runs"]), Runs(again["runs"])]
    backbones = both[0].backbones
    heads = ["claim", *(f"{name}, {run}" for name in backbones for run in ("first", "again"))]
    claims = [claim for finding in FINDINGS for claim in finding.claims]
    rows = [[claim.words, *(_cell(claim, run, name) for name in backbones for run in both)] for claim in claims]
    pairs = [[claim.outcome(claim.difference(run, name)) for run in both] for claim in claims for name in backbones]
    settled = [pair for pair in pairs if pair[0] != "open"]
    counts = {
        "have the same verdict again": sum(pair[0] == pair[1] for pair in settled),
        "are open in the second run": sum(pair[1] == "open" for pair in settled),
        "have the opposite one": sum(pair[1] not in (pair[0], "open") for pair in settled),
    }
    told = ", ".join(f"{n} {words}" for words, n in counts.items())
    tried = [
        [f"{results['learning_rates'][name]['learning_rate']:g}" for results in (first, again)] for name in backbones
    ]
    rates = "; ".join(f"{name}: {b} instead of {a}" for name, (a, b) in zip(backbones, tried, strict=True))
    seeds = " and ".join(str(results["plan"]["seeds"]) for results in (first, again))
    kinds = [(name, kind) for name in backbones for kind in OTHER_METRICS]
    others = [
        [
            f"{condition} − {other}, {which}",
            *(points(run.difference(name, condition, other, METRICS[kind])) for name, kind in kinds),
        ]
        for condition, other in MAIN_PAIRS
        for which, run in zip(("first", "again"), both, strict=True)
    ]
    others_heads = ["", *(f"{name}: {OTHER_METRICS[kind]}" for name, kind in kinds)]
    return (
        f"{WORDS.format(rates=rates, seeds=seeds)}\nOf {len(settled)} claims that the first run settled, "
        f"both\nbackbones counted, {told}.\n\n{markdown(heads, rows)}\n\n"
        f"By metrics that do not take the mean over sources:\n\n{markdown(others_heads, others)}\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(page(*(read_results(Path(path)) for path in sys.argv[1:])), end="")
