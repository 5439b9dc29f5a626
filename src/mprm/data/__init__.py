"""What flows between the stages: records, formats, validation, images, corpora, outputs."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark as Benchmark
    from mprm.data.benchmarks import check_images_exist as check_images_exist
    from mprm.data.benchmarks import read_benchmark as read_benchmark
    from mprm.data.candidates import read_candidates as read_candidates
    from mprm.data.charts import Chart as Chart
    from mprm.data.charts import Point as Point
    from mprm.data.charts import Series as Series
    from mprm.data.charts import can_draw as can_draw
    from mprm.data.charts import line_figure as line_figure
    from mprm.data.charts import need_altair as need_altair
    from mprm.data.charts import save_figure as save_figure
    from mprm.data.check import check as check
    from mprm.data.convert import convert as convert
    from mprm.data.corpus import Corpus as Corpus
    from mprm.data.corpus import open_corpus as open_corpus
    from mprm.data.engine import n_cores as n_cores
    from mprm.data.format import Format as Format
    from mprm.data.format import format_named as format_named
    from mprm.data.output import MANIFEST_SUFFIX as MANIFEST_SUFFIX
    from mprm.data.output import atomic_write as atomic_write
    from mprm.data.output import check_overwrite as check_overwrite
    from mprm.data.output import hash_file as hash_file
    from mprm.data.questions import prompt_of as prompt_of
    from mprm.data.questions import read_questions as read_questions
    from mprm.data.quickstart import quickstart as quickstart
    from mprm.data.records import Record as Record
    from mprm.data.records import read_records as read_records
    from mprm.data.rollout_formats import ROLLOUT_FORMATS as ROLLOUT_FORMATS
    from mprm.data.tables import Table as Table
    from mprm.data.tables import markdown_table as markdown_table
    from mprm.data.types import Candidate as Candidate
    from mprm.data.types import CandidateSet as CandidateSet
    from mprm.data.types import Chain as Chain
    from mprm.data.types import Question as Question
    from mprm.data.types import Rollout as Rollout
    from mprm.data.types import Solution as Solution
    from mprm.data.types import Step as Step
    from mprm.data.types import StepScorer as StepScorer
    from mprm.data.validate import Issue as Issue
    from mprm.data.validate import Issues as Issues
    from mprm.data.validate import ValidationOptions as ValidationOptions

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.data.benchmarks": ["Benchmark", "check_images_exist", "read_benchmark"],
        "mprm.data.candidates": ["read_candidates"],
        "mprm.data.charts": ["Chart", "Point", "Series", "can_draw", "line_figure", "need_altair", "save_figure"],
        "mprm.data.check": ["check"],
        "mprm.data.convert": ["convert"],
        "mprm.data.corpus": ["Corpus", "open_corpus"],
        "mprm.data.engine": ["n_cores"],
        "mprm.data.format": ["Format", "format_named"],
        "mprm.data.output": ["MANIFEST_SUFFIX", "atomic_write", "check_overwrite", "hash_file"],
        "mprm.data.questions": ["prompt_of", "read_questions"],
        "mprm.data.quickstart": ["quickstart"],
        "mprm.data.records": ["Record", "read_records"],
        "mprm.data.rollout_formats": ["ROLLOUT_FORMATS"],
        "mprm.data.tables": ["Table", "markdown_table"],
        "mprm.data.types": [
            *("Candidate", "CandidateSet", "Chain", "Question", "Rollout", "Solution", "Step", "StepScorer"),
        ],
        "mprm.data.validate": ["Issue", "Issues", "ValidationOptions"],
    },
)
