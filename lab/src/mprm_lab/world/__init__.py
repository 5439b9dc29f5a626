r"""A small visual world: problems are drawn and solved by program, and the truth of every step is decidable.

>>> from mprm_lab.world import draw, judge_chain, problem, solution
>>> one = problem("bars-range", 3)
>>> picture = draw(one)
>>> set(judge_chain(one, solution(one))) <= {"correct", "neutral"}
True
"""

from mprm_lab.world.drawing import draw
from mprm_lab.world.images import problem_named, write_images
from mprm_lab.world.judge import Judgement, judge_chain, judge_step
from mprm_lab.world.places import places
from mprm_lab.world.problem import Problem, as_question
from mprm_lab.world.solution import solution
from mprm_lab.world.sources import SOURCES, Source, problem
from mprm_lab.world.splits import SPLITS
from mprm_lab.world.vocabulary import vocabulary, words_of

__all__ = [
    "SOURCES",
    "SPLITS",
    "Judgement",
    "Problem",
    "Source",
    "as_question",
    "draw",
    "judge_chain",
    "judge_step",
    "places",
    "problem",
    "problem_named",
    "solution",
    "vocabulary",
    "words_of",
    "write_images",
]
