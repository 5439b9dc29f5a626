"""Label counts, the Balanced-Information Score, strategies, selection."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.selection.scan import ROW_TYPE as ROW_TYPE
    from mprm.selection.scan import LabelCounts as LabelCounts
    from mprm.selection.strategies import Ranking as Ranking
    from mprm.selection.strategies import StrategyName as StrategyName
    from mprm.selection.strategies import keep_top as keep_top

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.selection.scan": [
            "ROW_TYPE",
            "LabelCounts",
        ],
        "mprm.selection.strategies": [
            "Ranking",
            "StrategyName",
            "keep_top",
        ],
    },
)
