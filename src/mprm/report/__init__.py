"""One HTML page on a corpus, its selection and its runs."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.report.figures import line_figure as line_figure
    from mprm.report.figures import need_altair as need_altair
    from mprm.report.figures import save_figure as save_figure
    from mprm.report.run_views import Chart as Chart
    from mprm.report.run_views import Point as Point
    from mprm.report.run_views import Series as Series

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.report.figures": [
            "line_figure",
            "need_altair",
            "save_figure",
        ],
        "mprm.report.run_views": [
            "Chart",
            "Point",
            "Series",
        ],
    },
)
