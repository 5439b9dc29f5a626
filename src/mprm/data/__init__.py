"""What flows between the stages: records, formats, validation, images, corpora, outputs."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark as Benchmark, read_benchmark as read_benchmark
    from mprm.data.candidates import read_candidates as read_candidates
    from mprm.data.charts import (
        Chart as Chart,
        Point as Point,
        Series as Series,
        can_draw as can_draw,
        line_figure as line_figure,
        need_altair as need_altair,
        save_figure as save_figure,
    )
    from mprm.data.corpus import Corpus as Corpus, open_corpus as open_corpus
    from mprm.data.engine import n_cores as n_cores
    from mprm.data.format import Format as Format
    from mprm.data.images import check_images_exist as check_images_exist
    from mprm.data.output import (
        atomic_write as atomic_write,
        check_overwrite as check_overwrite,
        hash_file as hash_file,
        markdown_table as markdown_table,
    )
    from mprm.data.questions import prompt_of as prompt_of, read_questions as read_questions
    from mprm.data.records import Record as Record, read_records as read_records
    from mprm.data.rollout_formats import ROLLOUT_FORMATS as ROLLOUT_FORMATS
    from mprm.data.types import (
        CandidateSet as CandidateSet,
        Chain as Chain,
        Question as Question,
        Rollout as Rollout,
        Solution as Solution,
        Step as Step,
        StepScorer as StepScorer,
    )

__getattr__ = lazy_exports(__name__)
