"""The lab's tables when training is packed, and when it is not: the same runs both ways, seed by seed.

    mprm-lab open LAB
    mprm-lab reproduce LAB --only '*.full.*'        # chooses the learning rates; or give --rate
    python benchmarks/packed_tables.py LAB --out benchmarks/results/packed_tables.json

Packed runs that `mprm-lab reproduce LAB` has done are taken as they are. A stopped command continues where it was.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mprm_lab.folder import RECORDS
from mprm_lab.make import TRAINING
from mprm_lab.reproduce.measure import seed_mean
from mprm_lab.reproduce.plan import REFERENCES, ReproducePlan
from mprm_lab.reproduce.reproduce import reproduce
from mprm_lab.reproduce.run import RunStore

CONDITIONS = ReproducePlan(rhos=(0.10, 0.25), ablated=(), alphas=(), matched=(), tau_counts=(), curves=(), keep=())
"""All rollouts with hard and soft labels, and a tenth and a quarter of them at random and by BIS."""


def plain_folder(lab: Path) -> Path:
    """The same lab, with room for other runs."""
    folder = lab / "plain"
    folder.mkdir(exist_ok=True)
    for name in (*(f"{name}.jsonl" for name in RECORDS), "images", "policies"):
        if (lab / name).exists() and not (folder / name).exists():  # missing pictures are drawn
            (folder / name).symlink_to(Path("..") / name)
    return folder


def overall(lab: Path, plan: ReproducePlan, devices: set[str]) -> dict[str, dict[str, dict[int, float]]]:
    """Of each backbone and condition, by seed; notes where they were measured."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in plan.runs():
        record = RunStore(lab).read(run)
        if record is not None and run.subset != "base":
            value = 100 * record["metrics"]["held_out"]["overall"]
            found.setdefault(run.backbone, {}).setdefault(run.condition, {})[run.seed] = value
            devices.add(record["device"])
    return found


def compared(packed: dict[int, float], plain: dict[int, float]) -> dict[str, Any]:
    """Both ways, and packed less plain, in points."""
    seeds = sorted(packed.keys() & plain.keys())
    apart = {seed: packed[seed] - plain[seed] for seed in seeds}
    ways = {"packed": packed, "plain": plain, "packed_less_plain": apart}
    return {
        name: {**asdict(seed_mean([values[seed] for seed in seeds])), "by_seed": [values[seed] for seed in seeds]}
        for name, values in ways.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    parser.add_argument("--backbones", nargs="+", default=list(CONDITIONS.backbones))
    parser.add_argument("--seeds", type=int, default=CONDITIONS.seeds)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--rate", type=float, help="learning rate; by default those of the plan")
    parser.add_argument("--only", default="*", help="a pattern of names of runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not (options.lab / "corpus.jsonl").is_file() or not options.out.parent.is_dir():
        parser.error(f"{options.lab} must be a lab, and {options.out.parent} a folder")
    plan = replace(CONDITIONS, backbones=tuple(options.backbones), seeds=options.seeds)
    if options.rate is not None:
        plan = replace(plan, rates=((1.0, options.rate),))
    padded = replace(plan, training={**TRAINING, "pack": "none"}, best_of_n=())
    failed: dict[str, str] = {}
    for folder, way in ((options.lab, plan), (plain_folder(options.lab), padded)):
        failed |= reproduce(folder, way, only=options.only, jobs=options.jobs).failed
    devices: set[str] = set()
    packed, plain = overall(options.lab, plan, devices), overall(options.lab / "plain", padded, devices)
    found = {
        "device": ", ".join(sorted(devices)),
        "rates": plan.rates,
        "overall": {
            name: {
                condition: compared(values, plain[name][condition])
                for condition, values in conditions.items()
                if condition not in REFERENCES and values.keys() & plain.get(name, {}).get(condition, {}).keys()
            }
            for name, conditions in packed.items()
        },
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for backbone, conditions in found["overall"].items():
        for condition, one in conditions.items():
            told = (f"{way} {one[way]['mean']:.2f} [{one[way]['low']:.2f}, {one[way]['high']:.2f}]" for way in one)
            print(f"{backbone} {condition}: {', '.join(told)}")
    if failed:
        raise SystemExit("\n".join(f"{name} failed: {why}" for name, why in failed.items()))


if __name__ == "__main__":
    main()
