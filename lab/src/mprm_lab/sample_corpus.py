"""The sample corpus: eight sources of made-up rollouts with the statistics of their published namesakes.

The texts are made from templates and there are no images behind the paths. The package ships the
corpus as ``lab/data/*.jsonl.zst``; ``python -m mprm_lab.sample_corpus FOLDER`` makes the same files anew.

"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import zstandard

from mprm.data.output import atomic_write, check_overwrite
from mprm_lab.draws import Draws
from mprm_lab.problems import angles, charts, curves, experiments, food_webs, photos, plots, shapes
from mprm_lab.sample_scores import N_MC, Course, Sampled, draw_courses, draw_n_steps, draw_samples
from mprm_lab.sample_text import Problem, write_steps

N_ROLLOUTS = 3000
ERROR_STEP_RATIO = 0.036
"""Share of steps with score 0."""
MIXED_SHARE = 0.077
"""Share of rollouts with positive and zero steps."""
ROLLOUTS_PER_QUESTION = (3, 4, 4, 4, 5)
LEVEL = 19
"""Of compression."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the corpus, with the paper's numbers for the data set of that name."""

    name: str
    n_published: int
    """Rollouts of the data set; the sample has its share of `N_ROLLOUTS`."""
    steps_per_rollout: float
    mean_mc: float
    draw_problem: Callable[[Draws], Problem]

    @property
    def n_rollouts(self) -> int:
        """Rollouts in the sample."""
        return round(N_ROLLOUTS * self.n_published / sum(source.n_published for source in SOURCES))

    @property
    def n_steps(self) -> float:
        """Steps in the sample, about."""
        return self.n_rollouts * self.steps_per_rollout


SOURCES = (
    Source("ai2d", 28147, 5.20, 0.9409, food_webs.draw_problem),
    Source("chartqa", 28049, 4.87, 0.9078, charts.draw_problem),
    Source("figureqa", 12345, 4.67, 0.7615, plots.draw_problem),
    Source("geometry3k", 11756, 8.05, 0.9243, angles.draw_problem),
    Source("geomverse", 7765, 4.91, 0.6819, shapes.draw_problem),
    Source("mavis_poly", 23461, 8.79, 0.8836, curves.draw_problem),
    Source("scienceqa", 34523, 5.41, 0.9723, experiments.draw_problem),
    Source("vqav2", 18887, 3.56, 0.8253, photos.draw_problem),
)


def sample_files() -> list[Path]:
    """The packed files that the package ships, one a source."""
    folder = files("mprm_lab") / "data"
    return sorted(Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".jsonl.zst"))


def write_sample(folder: str | Path, *, force: bool = False) -> list[Path]:
    """Unpack the shipped corpus into ``folder`` as JSON lines; returns the files written.

    Raises
    ------
    OutputExistsError
        One of the files is there already, and ``force`` was not given.
    """
    targets = {packed: Path(folder).expanduser() / packed.name.removesuffix(".zst") for packed in sample_files()}
    for target in targets.values():
        check_overwrite(str(target), force=force)
    for packed, target in targets.items():
        with atomic_write(str(target)) as temporary:
            temporary.write_bytes(zstandard.ZstdDecompressor().decompress(packed.read_bytes()))
    return list(targets.values())


def generate(folder: str | Path, seed: int = 0) -> list[Path]:
    """Make the corpus and write it to ``folder``, packed; returns the files written.

    The same seed gives the same records on every version of Python; the packed bytes may differ
    between versions of zstandard.
    """
    written = []
    for number, source in enumerate(SOURCES):
        path = Path(folder) / f"{source.name}.jsonl.zst"
        lines = (
            json.dumps(record, ensure_ascii=False) + "\n"
            for record in draw_records(source, seed * len(SOURCES) + number)
        )
        packed = zstandard.ZstdCompressor(level=LEVEL).compress("".join(lines).encode())
        with atomic_write(str(path)) as temporary:
            temporary.write_bytes(packed)
        written.append(path)
    return written


def draw_records(source: Source, seed: int) -> Iterator[dict[str, Any]]:
    """The source's records, in the form of VisualPRM400K-v1.1-Raw; those of one question together."""
    draws = Draws(seed)
    questions = _draw_questions(draws, source.n_rollouts)
    courses = _draw_courses(draws, source, questions)
    samples = draw_samples(draws, courses, mean_mc=source.mean_mc)
    problems = [source.draw_problem(draws) for _ in range(questions[-1] + 1)]
    told: set[tuple[str, ...]] = set()
    for question, course, row in zip(questions, courses, samples, strict=True):
        image = f"{source.name}/images/{question:04d}"
        steps = _new_steps(draws, problems[question], course, told)
        yield _record(problems[question], image, steps, row)


def _draw_questions(draws: Draws, n_rollouts: int) -> list[int]:
    """The number of each rollout's question."""
    questions: list[int] = []
    while len(questions) < n_rollouts:
        number = questions[-1] + 1 if questions else 0
        questions += [number] * draws.pick(ROLLOUTS_PER_QUESTION)
    return questions[:n_rollouts]


def _draw_courses(draws: Draws, source: Source, questions: list[int]) -> list[Course]:
    """How each rollout goes; errors are spread over the sources as failures are."""
    failure = 1 - source.mean_mc
    by_steps = sum(s.n_steps for s in SOURCES) / sum((1 - s.mean_mc) * s.n_steps for s in SOURCES)
    by_rollouts = sum(s.n_rollouts for s in SOURCES) / sum((1 - s.mean_mc) * s.n_rollouts for s in SOURCES)
    ease_of = [draws.uniform() for _ in range(questions[-1] + 1)]
    eases = [min(1.0, max(0.02, ease_of[question] + 0.4 * (draws.uniform() - 0.5))) for question in questions]
    return draw_courses(
        draws,
        draw_n_steps(draws, len(questions), mean=source.steps_per_rollout),
        eases,
        error_share=ERROR_STEP_RATIO * failure * by_steps,
        mixed_share=MIXED_SHARE * failure * by_rollouts,
    )


def _new_steps(draws: Draws, problem: Problem, course: Course, told: set[tuple[str, ...]]) -> list[str]:
    """Steps that no rollout of the source has told yet."""
    while True:
        steps = write_steps(draws, problem, course.n_steps, slip_at=course.slip_at, back_at=course.back_at)
        if tuple(steps) not in told:
            told.add(tuple(steps))
            return steps


def _record(problem: Problem, image: str, steps: list[str], row: list[Sampled]) -> dict[str, Any]:
    return {
        "image": f"{image}.png"
        if problem.n_images == 1
        else [f"{image}_{n + 1}.png" for n in range(problem.n_images)],
        "question": problem.prompt,
        "question_orig": problem.question,
        "answer": problem.answer,
        "response": "\n\n".join(steps),
        "steps_with_score": [
            {
                "step": step,
                "score": sampled.n_correct / N_MC,
                "num_mc_correct": sampled.n_correct,
                "num_mc_total": sampled.n_total,
            }
            for step, sampled in zip(steps, row, strict=True)
        ],
        "num_mc_sequences": N_MC,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m mprm_lab.sample_corpus FOLDER")
    for path in generate(sys.argv[1]):
        print(f"{path}: {path.stat().st_size:,} bytes")
