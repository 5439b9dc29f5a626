"""Stop a run before its end, at a checkpoint, to be resumed later."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after so many updates; the learning rate stays that of the whole schedule."""

    def __init__(self, n_updates: int) -> None:
        self._n_updates = n_updates

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when it is time."""
        if state.global_step >= self._n_updates and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
