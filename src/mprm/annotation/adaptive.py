"""How many continuations a step needs: sample in rounds, and stop once its label and reliability are decided.

The model is the paper's: a step's success rate is ``r ~ Beta(a, b)``, of n continuations ``k ~ Binomial(n, r)``
succeed, and so ``r | k ~ Beta(a + k, b + n - k)``. What the rule decides at any round holds whatever made it stop
there: a posterior does not depend on the stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.config import Config, Option
from mprm.errors import ConfigError

Decision = Literal["positive-reliable", "positive-unreliable", "negative", "undecided"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveRule(Config):
    """When a step has enough continuations.

    The default prior is uniform: it prefers no success rate, and one success or failure moves it as much
    as the next. `mprm.theory.beta_binomial.fit_beta` takes another from counts that were sampled before.

    Examples
    --------
    >>> rule = AdaptiveRule()
    >>> rule.decision(4, 4), rule.n_next(4, 4), rule.decision(3, 4), rule.n_next(3, 4)
    ('positive-reliable', 0, 'undecided', 4)
    """

    continuations: Annotated[int, Option("N, continuations of each prefix.", "N", group="annotation", at_least=1)] = (
        16
    )
    delta: Annotated[
        float, Option("Accepted probability of a wrong decision.", "NUMBER", group="adaptive", above=0, below=0.5)
    ] = 0.05
    reliable: Annotated[
        float,
        Option("Success rate from which a step is reliable.", "NUMBER", group="adaptive", above=0, below=1),
    ] = 0.5
    prior: Annotated[
        tuple[float, ...], Option("a and b of the Beta prior of success rates.", "NUMBER", group="adaptive", above=0)
    ] = (1.0, 1.0)
    round: Annotated[
        int, Option("Continuations that are sampled between two decisions.", "N", group="adaptive", at_least=1)
    ] = 4

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if len(self.prior) != 2:
            raise ConfigError(f"prior takes two numbers, a and b, got {len(self.prior)}")

    def decision(self, k: int, n: int) -> Decision:
        """What is known of a step with k successes of n.

        - ``negative``: ``k = 0``, and ``all_fail(n, N) >= 1 - delta``
        - ``positive-reliable``: ``k > 0``, and ``eta_eff(k, n) <= delta``
        - ``positive-unreliable``: ``k > 0``, and ``eta_eff(k, n) >= 1 - delta``
        - ``undecided``: none of them. After N continuations such a step is positive all the same.
        """
        from mprm.theory.beta_binomial import all_fail, eta_eff  # numpy is not for the command line's help

        a, b = self.prior
        if n == 0:
            return "undecided"  # a prior alone labels nothing
        if k == 0:
            is_negative = n >= self.continuations or all_fail(n, self.continuations, a=a, b=b) >= 1 - self.delta
            return "negative" if is_negative else "undecided"
        noise = eta_eff(k, n, tau=self.reliable, a=a, b=b)
        if noise <= self.delta:
            return "positive-reliable"
        return "positive-unreliable" if noise >= 1 - self.delta else "undecided"

    def n_next(self, k: int, n: int) -> int:
        """How many more continuations to sample now; 0 when the step is decided or has all of them."""
        if n >= self.continuations or self.decision(k, n) != "undecided":
            return 0
        return min(self.round, self.continuations - n)
