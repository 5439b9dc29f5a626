"""From rollouts to a process reward model."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.training.config import TrainConfig as TrainConfig
    from mprm.training.train import Trained as Trained

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.training.config": [
            "TrainConfig",
        ],
        "mprm.training.train": [
            "Trained",
        ],
    },
)
