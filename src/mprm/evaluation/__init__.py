"""Step metrics, thresholds, intervals and comparisons; best-of-N.

`mprm.evaluate` and `mprm.rerank` are the stages.
"""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.evaluation.best_of_n import aggregate as aggregate
    from mprm.evaluation.bootstrap import ModelResult as ModelResult
    from mprm.evaluation.bootstrap import bootstrap_means as bootstrap_means
    from mprm.evaluation.bootstrap import bootstrap_metrics as bootstrap_metrics
    from mprm.evaluation.bootstrap import bootstrap_overall as bootstrap_overall
    from mprm.evaluation.bootstrap import count_units as count_units
    from mprm.evaluation.bootstrap import estimate as estimate
    from mprm.evaluation.bootstrap import model_result as model_result
    from mprm.evaluation.evaluate import EvaluateConfig as EvaluateConfig
    from mprm.evaluation.evaluate import Evaluation as Evaluation
    from mprm.evaluation.metrics import FloatArray as FloatArray
    from mprm.evaluation.metrics import IntArray as IntArray
    from mprm.evaluation.metrics import StepTable as StepTable
    from mprm.evaluation.metrics import choose_thresholds as choose_thresholds
    from mprm.evaluation.metrics import rank_steps as rank_steps
    from mprm.evaluation.metrics import ranking_metrics as ranking_metrics
    from mprm.evaluation.metrics import step_counts as step_counts
    from mprm.evaluation.rerank import RerankConfig as RerankConfig
    from mprm.evaluation.rerank import Reranking as Reranking
    from mprm.evaluation.rerank import candidate_verdicts as candidate_verdicts
    from mprm.evaluation.rerank import read_candidate_scores as read_candidate_scores
    from mprm.evaluation.rerank import score_candidates as score_candidates
    from mprm.evaluation.scores import ScoredSolution as ScoredSolution
    from mprm.evaluation.scores import read_scores as read_scores
    from mprm.evaluation.scores import score_benchmark as score_benchmark
    from mprm.evaluation.scores import with_scores as with_scores
    from mprm.evaluation.scores import write_scores as write_scores

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.evaluation.best_of_n": ["aggregate"],
        "mprm.evaluation.bootstrap": [
            *("ModelResult", "bootstrap_means", "bootstrap_metrics", "bootstrap_overall"),
            *("count_units", "estimate", "model_result"),
        ],
        "mprm.evaluation.evaluate": ["EvaluateConfig", "Evaluation"],
        "mprm.evaluation.metrics": [
            *("FloatArray", "IntArray", "StepTable", "choose_thresholds", "rank_steps", "ranking_metrics"),
            "step_counts",
        ],
        "mprm.evaluation.rerank": [
            *("RerankConfig", "Reranking", "candidate_verdicts", "read_candidate_scores", "score_candidates"),
        ],
        "mprm.evaluation.scores": ["ScoredSolution", "read_scores", "score_benchmark", "with_scores", "write_scores"],
    },
)
