"""From steps rated one at a time to whole rollouts.

PRM800K and its relatives rate a step in the light of the steps before it, and several tries at
the same place. Each try that no other goes on from ends a rollout, so every rating is in one.
"""

from __future__ import annotations

from typing import TypeGuard

from mprm.rollouts.rollout import Step

RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}
"""PRM800K's ratings as labels; neutral (0) counts as positive, as its authors train on it."""

Path = tuple[str, ...]


def is_rating(value: object) -> TypeGuard[int]:
    """Whether the value is one of the three ratings; a float column holds them as 1.0, 0.0 and -1.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value in RATINGS


def leaf_paths(scores: dict[Path, float]) -> dict[Path, tuple[Step, ...]]:
    """The rollouts of a tree that is given as the score of each path's last step.

    Parameters
    ----------
    scores
        Score of each path; every beginning of a path must itself be a path.

    Examples
    --------
    >>> sorted(leaf_paths({("a",): 1.0, ("a", "b"): 0.0, ("a", "c"): 1.0}))
    [('a', 'b'), ('a', 'c')]
    """
    inner = {path[:-1] for path in scores}
    return {
        path: tuple(Step(path[j], scores[path[: j + 1]]) for j in range(len(path)))
        for path in scores
        if path not in inner
    }
