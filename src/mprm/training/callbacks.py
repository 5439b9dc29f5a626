"""The learning curve: a benchmark scored every so many updates.

What a person sees of a training run: a bar with loss, speed and time left; lines where there is no terminal.

Stop a run before its end, at a checkpoint, to be resumed later.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from mprm.data.benchmarks import Benchmark, check_images_exist, check_images_readable, read_benchmark
from mprm.evaluation.bootstrap import model_result
from mprm.evaluation.metrics import step_counts
from mprm.evaluation.scores import with_scores
from mprm.models.prm import score_chains
from mprm.models.prompt import PromptEncoder
from mprm.training.config import TrainConfig

CURVE = "curve.jsonl"


class LearningCurve(TrainerCallback):  # type: ignore[misc]
    """Appends a line to ``curve.jsonl`` each time: overall value, macro-F1 of each source, AUC.

    All ranks score their share. A resumed run takes up the curve at its checkpoint.
    """

    def __init__(self, trainer: Any, config: TrainConfig, encoder: PromptEncoder) -> None:
        self._trainer, self._config = trainer, config
        root = config.benchmark_root or config.image_root
        self._encoder = encoder
        if root != config.image_root:
            self._encoder = PromptEncoder(
                encoder.tokenizer,
                encoder.image_processor,
                encoder.family,
                encoder.tokens,
                max_length=encoder.max_length,
                image_root=root,
            )
        self._benchmark = read_benchmark(config.benchmark, text_only=config.text_only)
        check_images_exist(self._benchmark, root)
        check_images_readable(self._benchmark, root)
        self._path = Path(config.out) / CURVE

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score the untrained model; forget what a killed run measured after its last checkpoint."""
        if args.should_save and self._path.is_file():
            kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            kept = [line for line in kept if 0 < state.global_step >= msgspec.json.decode(line)["update"]]
            self._path.write_bytes(b"".join(kept))
        if state.global_step == 0:
            self._measure(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score when it is time."""
        if state.global_step % self._config.eval_every == 0 or state.global_step == state.max_steps:
            self._measure(state)

    def _measure(self, state: Any) -> None:
        trainer, chains = self._trainer, self._benchmark.chains
        world, rank = trainer.args.world_size, trainer.args.process_index
        share = trainer.model.why_no_trees is None
        found = score_chains(
            trainer.model_wrapped, self._encoder, chains, rank=rank, world=world, share_prefixes=share
        )
        shares: list[Any] = [None] * world
        if world > 1:
            torch.distributed.all_gather_object(shares, found)
        else:
            shares = [found]
        if not trainer.args.should_save:
            return
        scores = {chains[index]: values for share in shares for index, values in share.items()}
        point = curve_point(self._benchmark, scores)
        point = {"update": state.global_step, "epoch": state.epoch, **point}
        with self._path.open("ab") as out:
            out.write(msgspec.json.encode(point) + b"\n")
        due = trainer.control.should_log
        trainer.log({name: point[name] for name in ("overall", "auc") if point[name] is not None})
        # Trainer takes the loss of this update for logged now; the other ranks would wait for this one to gather it
        trainer.control.should_log = due


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


LINE_EVERY_S = 30.0


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """A bar on stderr, on the first process alone."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._last, self._told = "", 0.0
        self._began, self._first_step = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar at the update that training begins with."""
        self._began, self._first_step, self._told = monotonic(), state.global_step, monotonic()
        if not state.is_world_process_zero or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.start()
        self._bar.add_task("", total=state.max_steps, completed=state.global_step, shown="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One more update."""
        if not state.is_world_process_zero:
            return
        speed = (state.global_step - self._first_step) / max(1e-9, monotonic() - self._began)
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=state.global_step, shown=f"{self._last}{speed:.3g} updates/s"
            )
        elif monotonic() - self._told > LINE_EVERY_S:
            self._told = monotonic()
            left = (state.max_steps - state.global_step) / speed
            self._console.print(
                f"update {state.global_step}/{state.max_steps}  {self._last}{speed:.3g} updates/s  {left:.0f} s left"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Remember the loss."""
        if logs and "loss" in logs:
            self._last = f"loss {logs['loss']:.4f}  "

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after so many updates; the learning rate stays that of the whole schedule."""

    def __init__(self, n_updates: int) -> None:
        self._n_updates = n_updates

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when it is time."""
        if state.global_step >= self._n_updates and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
