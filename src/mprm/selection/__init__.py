"""Label counts, the Balanced-Information Score, strategies, selection."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.selection.label_counts import ROW_TYPE as ROW_TYPE
    from mprm.selection.label_counts import LabelCounts as LabelCounts
    from mprm.selection.strategies import keep_top as keep_top

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.selection.label_counts": [
            "ROW_TYPE",
            "LabelCounts",
        ],
        "mprm.selection.strategies": [
            "keep_top",
        ],
    },
)
