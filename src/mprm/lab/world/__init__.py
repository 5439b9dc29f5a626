r"""A small visual world: problems are drawn and solved by program, and the truth of every step is decidable.

>>> from mprm.lab.world import draw, judge_chain, problem, solution
>>> one = problem("bars-range", 3)
>>> picture = draw(one)
>>> set(judge_chain(one, solution(one))) <= {"correct", "neutral"}
True
"""

from mprm.lab.world.drawing import draw
from mprm.lab.world.images import problem_named, write_images
from mprm.lab.world.judge import Judgement, judge_chain, judge_step
from mprm.lab.world.places import places
from mprm.lab.world.problem import Problem, as_question
from mprm.lab.world.solution import solution
from mprm.lab.world.sources import SOURCES, Source, problem
from mprm.lab.world.splits import SPLITS
from mprm.lab.world.vocabulary import vocabulary, words_of

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
