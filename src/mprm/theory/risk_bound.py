"""The bound on the excess risk of the trained student, and what random sub-sampling does to it (section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from numpy.typing import ArrayLike

from mprm.errors import ConfigError
from mprm.theory.argument_checks import FloatArray, above_zero, within

Updates = Literal["matched", "single-pass"]
"""As many updates on the subset as on all data, or one pass over each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskBound:
    """The two terms that bound the expected excess risk, up to a constant factor."""

    data: FloatArray
    """``C_data N_eff^(-1/2)``: falls with the number of independent steps."""
    opt: FloatArray
    """``C_opt T^(-1/2)``: falls with the number of updates; noisier gradients have a larger C_opt."""

    @property
    def total(self) -> FloatArray:
        """The bound, both terms together."""
        return self.data + self.opt


def risk_bound(*, N_eff: ArrayLike, T: ArrayLike, C_data: ArrayLike, C_opt: ArrayLike) -> RiskBound:
    """Bound on the excess risk of projected SGD after T updates on N_eff steps.

    ``E[L(w_T)] - L(w*) <~ C_data N_eff^(-1/2) + C_opt T^(-1/2)``.

    Assumes (appendix) bounded representations; labels drawn from a logistic teacher; a population and an
    empirical loss that are strongly convex and smooth on a bounded convex set, which holds w* and, in its
    interior, the empirical minimizer; and projected SGD on that set, its batches drawn independently from
    the sample, its gradients of bounded second moment, with steps ``eta_0 / sqrt(t)``, eta_0 small.

    Parameters
    ----------
    N_eff, T : any shapes that broadcast, above 0
        Independent training steps; SGD updates.
    C_data, C_opt : likewise
        Constants of the problem; the paper shows that there are such, and gives no values.

    Examples
    --------
    >>> bound = risk_bound(N_eff=10_000, T=100, C_data=1, C_opt=1)
    >>> float(bound.data), float(bound.opt), round(float(bound.total), 4)
    (0.01, 0.1, 0.11)
    """
    return RiskBound(
        data=above_zero("C_data", C_data) * above_zero("N_eff", N_eff) ** -0.5,
        opt=above_zero("C_opt", C_opt) * above_zero("T", T) ** -0.5,
    )


def subsampled(bound: RiskBound, *, gamma: ArrayLike, updates: Updates) -> RiskBound:
    """The bound on a random subset that keeps each training step with probability gamma.

    The subset has ``gamma N_eff`` steps, and the constants are taken to stay the same, so

    - ``matched`` (T updates all the same): ``gamma^(-1/2) C_data N_eff^(-1/2) + C_opt T^(-1/2)``
    - ``single-pass`` (gamma T updates): ``gamma^(-1/2)`` times the whole bound

    Parameters
    ----------
    bound
        On all data.
    gamma : a shape that broadcasts with the bound's terms
        Share kept, in (0, 1]; the rho of Random-rho.
    updates
        How long the student trains on the subset.

    Examples
    --------
    >>> full = risk_bound(N_eff=10_000, T=100, C_data=1, C_opt=1)
    >>> matched = subsampled(full, gamma=0.25, updates="matched")
    >>> float(matched.data), float(matched.opt)
    (0.02, 0.1)
    """
    if updates not in get_args(Updates):
        raise ConfigError(f"updates must be one of {', '.join(get_args(Updates))}, got {updates!r}")
    factor = within("gamma", above_zero("gamma", gamma), 0, 1) ** -0.5
    return RiskBound(data=factor * bound.data, opt=bound.opt if updates == "matched" else factor * bound.opt)
