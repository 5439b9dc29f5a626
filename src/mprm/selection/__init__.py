"""Label counts, the Balanced-Information Score, strategies, selection."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.selection.bis import bis as bis
    from mprm.selection.bis import mixture as mixture
    from mprm.selection.bis import positive_fraction as positive_fraction
    from mprm.selection.bis import reliability as reliability
    from mprm.selection.select import SelectConfig as SelectConfig
    from mprm.selection.select import select as select
    from mprm.selection.selection import Selection as Selection
    from mprm.selection.stats import Statistics as Statistics
    from mprm.selection.stats import score as score
    from mprm.selection.stats import stats as stats
    from mprm.selection.strategies import ROW_TYPE as ROW_TYPE
    from mprm.selection.strategies import STRATEGIES as STRATEGIES
    from mprm.selection.strategies import LabelCounts as LabelCounts
    from mprm.selection.strategies import Strategy as Strategy
    from mprm.selection.strategies import keep_top as keep_top

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.selection.bis": ["bis", "mixture", "positive_fraction", "reliability"],
        "mprm.selection.select": ["SelectConfig", "select"],
        "mprm.selection.selection": ["Selection"],
        "mprm.selection.stats": ["Statistics", "score", "stats"],
        "mprm.selection.strategies": ["ROW_TYPE", "STRATEGIES", "LabelCounts", "Strategy", "keep_top"],
    },
)
