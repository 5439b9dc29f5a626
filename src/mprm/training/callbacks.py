"""What happens during training besides it: learning curve, progress, and stopping early at a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import torch
from transformers import TrainerCallback

from mprm.data.benchmarks import Benchmark, check_images_exist, check_images_readable, read_benchmark
from mprm.evaluation.bootstrap import model_result
from mprm.evaluation.metrics import step_counts
from mprm.evaluation.scores import with_scores
from mprm.models.prm import score_chains
from mprm.models.prompt import PromptEncoder
from mprm.progress import Advance, Progress
from mprm.training.config import TrainConfig

CURVE = "curve.jsonl"


class LearningCurve(TrainerCallback):  # type: ignore[misc]
    """Appends a line to ``curve.jsonl`` every so many optimizer steps: overall value, macro-F1 by source, AUC.

    All ranks score their share. A resumed run continues the curve at its checkpoint.
    """

    def __init__(self, trainer: Any, config: TrainConfig, encoder: PromptEncoder) -> None:
        folder = config.benchmark_root or config.image_root
        root = None if folder is None else Path(folder).expanduser()
        self._trainer, self._eval_every, self._path = trainer, config.eval_every, Path(config.out) / CURVE
        self._encoder = replace(encoder, image_root=root)
        self._benchmark = read_benchmark(config.benchmark, text_only=config.text_only)
        check_images_exist(self._benchmark, root)
        check_images_readable(self._benchmark, root)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score the untrained model; remove the points after the checkpoint that a killed run resumes from."""
        if args.should_save and self._path.is_file():
            kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            kept = [line for line in kept if 0 < state.global_step >= msgspec.json.decode(line)["update"]]
            self._path.write_bytes(b"".join(kept))
        if state.global_step == 0:
            self._add_point(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score when it is time."""
        if state.global_step % self._eval_every == 0 or state.global_step == state.max_steps:
            self._add_point(state)

    def _add_point(self, state: Any) -> None:
        trainer, chains = self._trainer, self._benchmark.chains
        rank, world_size = trainer.args.process_index, trainer.args.world_size
        can_share = trainer.model.why_no_trees is None
        scores = score_chains(
            trainer.model_wrapped, self._encoder, chains, rank=rank, world_size=world_size, share_prefixes=can_share
        )
        shares: list[Any] = [scores]
        if world_size > 1:
            shares = [None] * world_size
            torch.distributed.all_gather_object(shares, scores)
        if not trainer.args.should_save:
            return
        by_chain = {chains[index]: values for share in shares for index, values in share.items()}
        point = {"update": state.global_step, "epoch": state.epoch, **curve_point(self._benchmark, by_chain)}
        with self._path.open("ab") as out:
            out.write(msgspec.json.encode(point) + b"\n")
        should_log = trainer.control.should_log
        trainer.log({name: point[name] for name in ("overall", "auc") if point[name] is not None})
        # Trainer takes the loss of this step for logged now; the other ranks would wait for this one to gather it
        trainer.control.should_log = should_log


def curve_point(benchmark: Benchmark, scores: dict[Any, list[float]]) -> dict[str, Any]:
    """Overall value, AUC, and the macro-F1 of each source that the overall value is a mean of."""
    result = model_result([with_scores(solution, "", scores[solution.chain]) for solution in benchmark.solutions])
    counts = step_counts(result.table)
    counted = [name for k, name in enumerate(result.table.sources) if step_counts(result.table, k).n_counted]
    return {
        "overall": result.value("overall"),
        "auc": result.value("auc"),
        "n_counted": counts.n_counted,
        "n_unscored": counts.n_unscored,
        "macro_f1": {source: result.value("macro_f1", source) for source in sorted(counted)},
    }


class ReportProgress(TrainerCallback):  # type: ignore[misc]
    """Advances a progress bar by optimizer steps, with loss, speed and time left; on the first process alone.

    The bar is closed with ``context``, also where training fails.
    """

    def __init__(self, progress: Progress, context: ExitStack) -> None:
        self._progress, self._context = progress, context
        self._advance: Advance | None = None
        self._loss, self._started, self._first_step = "", 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar at the step that training starts with."""
        self._started, self._first_step = monotonic(), state.global_step
        if state.is_world_process_zero:
            self._advance = self._context.enter_context(self._progress("training", state.max_steps))
            self._advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance by one step."""
        if self._advance is not None:
            speed = (state.global_step - self._first_step) / max(1e-9, monotonic() - self._started)
            left = (state.max_steps - state.global_step) / speed
            self._advance(1, f"{self._loss}{speed:.3g} optimizer steps/s, {left:.0f} s left")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the loss for the next note."""
        if logs and "loss" in logs:
            self._loss = f"loss {logs['loss']:.4f}, "


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after so many optimizer steps; the learning rate stays that of the whole schedule."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when it is time."""
        if self._n_steps <= state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
