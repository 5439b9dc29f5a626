"""The paper's analysis as functions: what each equation says of steps, rollouts and training."""

from mprm.theory.beta_binomial import all_fail, eta_eff, posterior_mean, pseudo_positive_share
from mprm.theory.corpus_fit.fit_corpus import fit_corpus
from mprm.theory.corpus_fit.results import CorpusFit
from mprm.theory.fit_beta import fit_beta
from mprm.theory.gradient_moment import gradient_second_moment
from mprm.theory.label_flips import flipped_mixture, flipped_probability, mixture_shift, mixture_shift_bound
from mprm.theory.logistic_teacher import gradient, positive_probability
from mprm.theory.positive_label import positive_label_probability, score_variance
from mprm.theory.prior_interval import observed_information, prior_covariance
from mprm.theory.risk_bound import RiskBound, risk_bound, subsampled
from mprm.theory.rollout_mixture import expected_mixture, mixture_bounds, step_information, teacher_mixture
from mprm.theory.rollout_signal import rollout_signal
from mprm.theory.simulation.verify import Verification, verify

__all__ = [
    "CorpusFit",
    "RiskBound",
    "Verification",
    "all_fail",
    "eta_eff",
    "expected_mixture",
    "fit_beta",
    "fit_corpus",
    "flipped_mixture",
    "flipped_probability",
    "gradient",
    "gradient_second_moment",
    "mixture_bounds",
    "mixture_shift",
    "mixture_shift_bound",
    "observed_information",
    "positive_label_probability",
    "positive_probability",
    "posterior_mean",
    "prior_covariance",
    "pseudo_positive_share",
    "risk_bound",
    "rollout_signal",
    "score_variance",
    "step_information",
    "subsampled",
    "teacher_mixture",
    "verify",
]
