"""Training a process reward model: the training set, batches, loss, checkpoints, learning curves."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.training.config import TrainConfig as TrainConfig
    from mprm.training.dataset import step_labels as step_labels
    from mprm.training.train import Trained as Trained, train as train
    from mprm.training.trainer import curve_point as curve_point, step_loss_sum as step_loss_sum

__getattr__ = lazy_exports(__name__)
