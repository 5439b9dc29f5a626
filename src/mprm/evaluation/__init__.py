"""Step metrics, thresholds, intervals, comparison, best-of-N."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.evaluation.bootstrap import bootstrap_overall as bootstrap_overall
    from mprm.evaluation.bootstrap import count_units as count_units
    from mprm.evaluation.bootstrap import drawn_confusion as drawn_confusion
    from mprm.evaluation.bootstrap import estimate as estimate
    from mprm.evaluation.bootstrap import measured as measured
    from mprm.evaluation.bootstrap import overall_values as overall_values
    from mprm.evaluation.metrics import ranked as ranked
    from mprm.evaluation.metrics import ranking_metrics as ranking_metrics
    from mprm.evaluation.rerank import RerankConfig as RerankConfig
    from mprm.evaluation.step_table import FloatArray as FloatArray
    from mprm.evaluation.step_table import IntArray as IntArray
    from mprm.evaluation.step_table import ScoredSolution as ScoredSolution
    from mprm.evaluation.step_table import StepTable as StepTable
    from mprm.evaluation.step_table import read_scores as read_scores
    from mprm.evaluation.step_table import score_benchmark as score_benchmark
    from mprm.evaluation.step_table import write_scores as write_scores
    from mprm.evaluation.tables import step_counts as step_counts
    from mprm.evaluation.thresholds import EvaluateConfig as EvaluateConfig
    from mprm.evaluation.thresholds import choose_thresholds as choose_thresholds

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.evaluation.bootstrap": [
            "bootstrap_overall",
            "count_units",
            "drawn_confusion",
            "estimate",
            "measured",
            "overall_values",
        ],
        "mprm.evaluation.metrics": [
            "ranked",
            "ranking_metrics",
        ],
        "mprm.evaluation.rerank": [
            "RerankConfig",
        ],
        "mprm.evaluation.step_table": [
            "read_scores",
            "FloatArray",
            "IntArray",
            "ScoredSolution",
            "StepTable",
            "score_benchmark",
            "write_scores",
        ],
        "mprm.evaluation.tables": [
            "step_counts",
        ],
        "mprm.evaluation.thresholds": [
            "EvaluateConfig",
            "choose_thresholds",
        ],
    },
)
