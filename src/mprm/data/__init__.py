"""What flows between the stages: records, formats, validation, images, corpora, outputs."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark as Benchmark
    from mprm.data.benchmarks import check_images_exist as check_images_exist
    from mprm.data.benchmarks import read_benchmark as read_benchmark
    from mprm.data.candidates import read_candidates as read_candidates
    from mprm.data.engine import n_cores as n_cores
    from mprm.data.output import MANIFEST_SUFFIX as MANIFEST_SUFFIX
    from mprm.data.output import atomic_write as atomic_write
    from mprm.data.output import check_overwrite as check_overwrite
    from mprm.data.output import hash_file as hash_file
    from mprm.data.questions import prompt_of as prompt_of
    from mprm.data.types import CandidateSet as CandidateSet
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
        "mprm.data.candidates": [
            "read_candidates",
        ],
        "mprm.data.engine": [
            "n_cores",
        ],
        "mprm.data.output": [
            "MANIFEST_SUFFIX",
            "atomic_write",
            "check_overwrite",
            "hash_file",
        ],
        "mprm.data.questions": [
            "prompt_of",
        ],
        "mprm.data.types": [
            "CandidateSet",
            "Question",
            "StepScorer",
        ],
    },
)
