"""The paper's analysis as functions: what each equation says of steps, rollouts and training."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.theory.beta_binomial import (
        all_fail as all_fail,
        eta_eff as eta_eff,
        fit_beta as fit_beta,
        observed_information as observed_information,
        posterior_mean as posterior_mean,
        prior_covariance as prior_covariance,
        pseudo_positive_share as pseudo_positive_share,
        scipy_special as scipy_special,
    )
    from mprm.theory.equations import (
        FloatArray as FloatArray,
        RiskBound as RiskBound,
        expected_mixture as expected_mixture,
        flipped_mixture as flipped_mixture,
        flipped_probability as flipped_probability,
        gradient as gradient,
        gradient_second_moment as gradient_second_moment,
        mixture_bounds as mixture_bounds,
        mixture_shift as mixture_shift,
        mixture_shift_bound as mixture_shift_bound,
        positive_label_probability as positive_label_probability,
        positive_probability as positive_probability,
        risk_bound as risk_bound,
        rollout_signal as rollout_signal,
        score_variance as score_variance,
        step_information as step_information,
        subsampled as subsampled,
        teacher_mixture as teacher_mixture,
    )
    from mprm.theory.fit import CorpusFit as CorpusFit, FitConfig as FitConfig, fit as fit, fit_corpus as fit_corpus

__getattr__ = lazy_exports(__name__)
