"""What flows between the stages: records, formats, validation, images, corpora, outputs."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark as Benchmark
    from mprm.data.benchmarks import check_images_exist as check_images_exist
    from mprm.data.benchmarks import read_benchmark as read_benchmark
    from mprm.data.candidate_formats import CandidateSet as CandidateSet
    from mprm.data.candidate_formats import read_candidates as read_candidates
    from mprm.data.charts import Chart as Chart
    from mprm.data.charts import Point as Point
    from mprm.data.charts import Series as Series
    from mprm.data.charts import can_draw as can_draw
    from mprm.data.charts import line_figure as line_figure
    from mprm.data.charts import need_altair as need_altair
    from mprm.data.charts import save_figure as save_figure
    from mprm.data.corpus import MANIFEST_SUFFIX as MANIFEST_SUFFIX
    from mprm.data.corpus import hash_file as hash_file
    from mprm.data.engine import n_cores as n_cores
    from mprm.data.output import atomic_write as atomic_write
    from mprm.data.output import check_overwrite as check_overwrite
    from mprm.data.questions import prompt_of as prompt_of
    from mprm.data.records import Chunk as Chunk
    from mprm.data.tables import markdown_table as markdown_table
    from mprm.data.types import Question as Question
    from mprm.data.types import StepScorer as StepScorer

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.data.benchmarks": [
            "Benchmark",
            "check_images_exist",
            "read_benchmark",
        ],
        "mprm.data.candidate_formats": [
            "CandidateSet",
            "read_candidates",
        ],
        "mprm.data.charts": [
            "Chart",
            "Point",
            "Series",
            "can_draw",
            "line_figure",
            "need_altair",
            "save_figure",
        ],
        "mprm.data.corpus": [
            "MANIFEST_SUFFIX",
            "hash_file",
        ],
        "mprm.data.engine": [
            "n_cores",
        ],
        "mprm.data.output": [
            "atomic_write",
            "check_overwrite",
        ],
        "mprm.data.questions": [
            "prompt_of",
        ],
        "mprm.data.records": [
            "Chunk",
        ],
        "mprm.data.tables": [
            "markdown_table",
        ],
        "mprm.data.types": [
            "Question",
            "StepScorer",
        ],
    },
)
