"""What a person sees of a training run: a bar with loss, speed and time left; lines where there is no terminal."""

from __future__ import annotations

from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

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
