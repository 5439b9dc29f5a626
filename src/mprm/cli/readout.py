"""``mprm readout``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import ScorerOptions, as_json, command
from mprm.config import Json, inputs, output, positional
from mprm.data.hub import dataset_files
from mprm.evaluation.readout import INPUTS, ReadOutConfig, readout
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class ReadOutCommand(ReadOutConfig, ScorerOptions):
    paths: Annotated[tuple[str, ...], positional("Rollouts, or a benchmark with labelled steps.", "INPUT")]
    policy: Annotated[str, inputs("The policy: the backbone that training started from, or another.", "DIR|ORG/NAME")]
    out: Annotated[str, output("Where the read-out goes, a .json file.", "FILE")]
    json: Json = False
    readout: None = None  # no option: this command makes one

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_scorer()


@command(ReadOutCommand, "readout", "annotations/*.jsonl --model runs/bis10 --policy DIR --out readout.json")
def run_readout(options: ReadOutCommand) -> None:
    from mprm.models.logprobs import StepLogProbs

    compute = options.as_dict("device", "dtype", "image_root")
    policy = StepLogProbs.from_pretrained(options.policy, tokens_per_batch=options.batch_tokens, **compute)
    fitted = readout(
        dataset_files(options.paths, options.files),
        options.scorer(),
        policy,
        options.out,
        options,
        run=options.model,
        format=options.format,
        progress=progress_bar,
    ).fitted
    if options.json:
        print(as_json(fitted))
        return
    on = fitted.fitted_on
    print(f"Fitted to {on['n_steps']:,} steps of {on['n_solutions']:,} solutions, {on['n_positive']:,} positive.")
    if on["n_unscored"] or on["n_ignored"]:
        unscored = f"{on['n_unscored']:,} steps beyond a model's length, or nan"
        print(f"Not used: {unscored}; {on['n_ignored']:,} without a label.")
    if on["n_trained_on"]:
        print(f"{on['n_trained_on']:,} more were left out: the model was trained on them.")
    print("Weights: " + ", ".join(f"{name.replace('_', ' ')} {fitted.weights[name]:.3g}" for name in INPUTS) + ".")
    if auc := on["auc"]:
        print("AUC in held-out fifths: " + ", ".join(f"{name} {value:.3f}" for name, value in auc.items()) + ".")
        best = max(auc, key=lambda name: auc[name])
        if best != "read-out":
            without = ", or do without it" * (best == "model")
            print(f"Here the {best} alone is better than the read-out: fit it to more steps{without}.")
    print(f"{options.out}: use it with --readout, where --model is the same.")
