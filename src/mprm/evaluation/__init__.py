"""Step metrics, thresholds, intervals, comparisons and best-of-N; `mprm.evaluate` and `mprm.rerank` are stages."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.evaluation.best_of_n import aggregate as aggregate
    from mprm.evaluation.bootstrap import (
        ModelResult as ModelResult,
        bootstrap_means as bootstrap_means,
        bootstrap_metrics as bootstrap_metrics,
        bootstrap_overall as bootstrap_overall,
        count_units as count_units,
        estimate as estimate,
        model_result as model_result,
    )
    from mprm.evaluation.evaluate import EvaluateConfig as EvaluateConfig, Evaluation as Evaluation
    from mprm.evaluation.metrics import (
        FloatArray as FloatArray,
        IntArray as IntArray,
        StepTable as StepTable,
        choose_thresholds as choose_thresholds,
        rank_steps as rank_steps,
        ranking_metrics as ranking_metrics,
        step_counts as step_counts,
    )
    from mprm.evaluation.rerank import (
        RerankConfig as RerankConfig,
        Reranking as Reranking,
        candidate_verdicts as candidate_verdicts,
        read_candidate_scores as read_candidate_scores,
        score_candidates as score_candidates,
    )
    from mprm.evaluation.scores import (
        ScoredSolution as ScoredSolution,
        hash_chain as hash_chain,
        read_scores as read_scores,
        score_benchmark as score_benchmark,
        with_scores as with_scores,
        write_scores as write_scores,
    )

__getattr__ = lazy_exports(__name__)
