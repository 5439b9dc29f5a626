"""Label counts, the Balanced-Information Score, strategies, selection."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.selection.bis import (
        bis as bis,
        mixture as mixture,
        positive_fraction as positive_fraction,
        reliability as reliability,
    )
    from mprm.selection.score_table import score as score
    from mprm.selection.select import SelectConfig as SelectConfig, select as select
    from mprm.selection.selection import Selection as Selection
    from mprm.selection.stats import (
        ROW_TYPE as ROW_TYPE,
        LabelCounts as LabelCounts,
        Statistics as Statistics,
        stats as stats,
    )
    from mprm.selection.strategies import (
        STRATEGIES as STRATEGIES,
        Rollouts as Rollouts,
        Strategy as Strategy,
        keep_top as keep_top,
    )

__getattr__ = lazy_exports(__name__)
