"""Training a process reward model: the training set, batches, loss, checkpoints, learning curves."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.training.config import TrainConfig as TrainConfig
    from mprm.training.objective import (
        LABELS as LABELS,
        StepBatch as StepBatch,
        StepCounts as StepCounts,
        beta_binomial_loss_sum as beta_binomial_loss_sum,
        ranking_loss_sum as ranking_loss_sum,
        step_loss_sum as step_loss_sum,
    )
    from mprm.training.train import Trained as Trained, train as train
    from mprm.training.trainer import curve_point as curve_point

__getattr__ = lazy_exports(__name__)
