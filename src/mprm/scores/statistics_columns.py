"""The columns of the statistics tables: heads, and how a row fills them."""

from __future__ import annotations

from dataclasses import dataclass

from mprm.scores.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head and how a row fills it."""

    head: str
    attribute: str
    form: str = "{:,}"

    def cell(self, statistics: Statistics) -> str:
        """The text of one cell."""
        value = getattr(statistics, self.attribute)
        return "–" if value is None else self.form.format(value)


STATISTICS = (
    Column("rollouts", "n_rollouts"),
    Column("steps", "n_steps"),
    Column("steps/rollout", "steps_per_rollout", "{:.2f}"),
    Column("words/step", "words_per_step", "{:.1f}"),
    Column("error steps", "error_step_ratio", "{:.2%}"),
    Column("avg MC", "mean_mc", "{:.4f}"),
    Column("avg out of N", "mean_out_of_n", "{:.4f}"),
    Column("mixed", "mixed_share", "{:.2%}"),
    Column("tied at α", "tied_share", "{:.2%}"),
    Column("never sampled", "n_unsampled"),
)
