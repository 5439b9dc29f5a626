"""A small visual world: problems are drawn and solved by program, and the truth of every step is decidable.

>>> from mprm_lab.world import draw, judge_chain, problem, solution
>>> tallest = problem("bars-range", 3)
>>> picture = draw(tallest)
>>> set(judge_chain(tallest, solution(tallest))) <= {"correct", "neutral"}
True
"""

from mprm_lab.world.drawing import draw, write_images
from mprm_lab.world.problems import SOURCES, SPLITS, Problem, problem, problem_named, problems_of
from mprm_lab.world.solutions import Verdict, judge_chain, judge_step, solution

__all__ = [
    "SOURCES",
    "SPLITS",
    "Problem",
    "Verdict",
    "draw",
    "judge_chain",
    "judge_step",
    "problem",
    "problem_named",
    "problems_of",
    "solution",
    "write_images",
]
