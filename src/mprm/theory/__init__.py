"""The paper's analysis as functions: what each equation says of steps, rollouts and training."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.theory.beta_binomial import all_fail as all_fail
    from mprm.theory.beta_binomial import eta_eff as eta_eff
    from mprm.theory.beta_binomial import fit_beta as fit_beta
    from mprm.theory.beta_binomial import observed_information as observed_information
    from mprm.theory.beta_binomial import posterior_mean as posterior_mean
    from mprm.theory.beta_binomial import prior_covariance as prior_covariance
    from mprm.theory.beta_binomial import pseudo_positive_share as pseudo_positive_share
    from mprm.theory.beta_binomial import scipy_special as scipy_special
    from mprm.theory.equations import FloatArray as FloatArray
    from mprm.theory.equations import RiskBound as RiskBound
    from mprm.theory.equations import expected_mixture as expected_mixture
    from mprm.theory.equations import flipped_mixture as flipped_mixture
    from mprm.theory.equations import flipped_probability as flipped_probability
    from mprm.theory.equations import gradient as gradient
    from mprm.theory.equations import gradient_second_moment as gradient_second_moment
    from mprm.theory.equations import mixture_bounds as mixture_bounds
    from mprm.theory.equations import mixture_shift as mixture_shift
    from mprm.theory.equations import mixture_shift_bound as mixture_shift_bound
    from mprm.theory.equations import positive_label_probability as positive_label_probability
    from mprm.theory.equations import positive_probability as positive_probability
    from mprm.theory.equations import risk_bound as risk_bound
    from mprm.theory.equations import rollout_signal as rollout_signal
    from mprm.theory.equations import score_variance as score_variance
    from mprm.theory.equations import step_information as step_information
    from mprm.theory.equations import subsampled as subsampled
    from mprm.theory.equations import teacher_mixture as teacher_mixture
    from mprm.theory.fit import CorpusFit as CorpusFit
    from mprm.theory.fit import FitConfig as FitConfig
    from mprm.theory.fit import fit_corpus as fit_corpus

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.theory.beta_binomial": [
            *("all_fail", "eta_eff", "fit_beta", "observed_information", "posterior_mean", "prior_covariance"),
            *("pseudo_positive_share", "scipy_special"),
        ],
        "mprm.theory.equations": [
            *("FloatArray", "RiskBound", "expected_mixture", "flipped_mixture", "flipped_probability"),
            *("gradient", "gradient_second_moment", "mixture_bounds", "mixture_shift", "mixture_shift_bound"),
            *("positive_label_probability", "positive_probability", "risk_bound", "rollout_signal"),
            *("score_variance", "step_information", "subsampled", "teacher_mixture"),
        ],
        "mprm.theory.fit": ["CorpusFit", "FitConfig", "fit_corpus"],
    },
)
