from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest

from mprm.answers.options import options_in
from mprm.data import prompt_of
from mprm.errors import ConfigError
from mprm_lab.policy.dataset import grounding_task
from mprm_lab.world import SOURCES, SPLITS, draw, problem, solution
from mprm_lab.world.problems import vocabulary, words_of
from mprm_lab.world.solutions import OUTLINES
from tests.lab.world.picture_reader import read_bars, read_grid, read_shapes
from tests.lab.world.solver import see

N_SEEDS = 200


@pytest.mark.parametrize("name", SOURCES)
def test_a_solver_that_sees_only_pixels_and_words_finds_the_answer(name: str) -> None:
    for seed in range(N_SEEDS):
        example = problem(name, seed)
        seen = see(SOURCES[name].domain, draw(example), example.question)
        assert seen.answer == example.answer, example.id
        assert tuple(seen.options.values()) == example.options, example.id


def test_pictures_show_the_scene() -> None:
    for seed in range(100):
        grid, bars, shapes = (problem(name, seed) for name in ("grid-max", "bars-above", "shapes-points"))
        assert read_grid(draw(grid)) == [list(row) for row in grid.scene.digits]  # type: ignore[union-attr]
        heights = dict(zip(bars.scene.letters, bars.scene.heights, strict=True))  # type: ignore[union-attr]
        shown = read_bars(draw(bars))
        assert (list(shown), shown) == (list(heights), heights), "the order of the bars counts"
        cells = shapes.scene.cells  # type: ignore[union-attr]
        assert read_shapes(draw(shapes)) == [[cell and (cell.shape, cell.colour) for cell in row] for row in cells]


def test_there_are_three_domains_and_eight_sources_or_more_with_every_form_of_answer() -> None:
    assert Counter(source.domain for source in SOURCES.values()) == {"grid": 6, "bars": 5, "shapes": 4}
    # open 7 of 15, options 5 of 15, yes or no 3 of 15; each domain has all three
    assert Counter(source.answers for source in SOURCES.values()) == {"open": 7, "choice": 5, "yes/no": 3}
    assert len({(source.domain, source.answers) for source in SOURCES.values()}) == 9
    assert all(name == source.name for name, source in SOURCES.items())


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.answers == "choice"])
def test_options_differ_and_every_letter_is_right_about_as_often(name: str) -> None:
    letters = Counter[str]()
    for seed in range(400):
        example = problem(name, seed)
        assert len(set(example.options)) == 4
        assert options_in(example.question) == example.options, "the question lists its options as other data sets do"
        letters[example.answer] += 1
    # 100 of 400 each, standard deviation 8.7
    assert sorted(letters) == list("ABCD")
    assert min(letters.values()) > 65


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.answers == "yes/no"])
def test_half_of_the_answers_are_yes(name: str) -> None:
    answers = Counter(problem(name, seed).answer for seed in range(400))
    assert set(answers) == {"Yes", "No"}
    assert 160 < answers["Yes"] < 240  # 200, standard deviation 10


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.answers == "open"])
def test_no_open_answer_can_be_guessed_most_of_the_time(name: str) -> None:
    answers = Counter(problem(name, seed).answer for seed in range(400))
    assert answers.most_common(1)[0][1] < 0.35 * 400


@pytest.mark.parametrize("name", SOURCES)
def test_other_seeds_give_other_problems(name: str) -> None:
    made = {(example.question, example.scene) for example in (problem(name, seed) for seed in range(500))}
    assert len(made) >= 499


def test_a_problem_is_the_same_every_time_and_differs_between_sources() -> None:
    assert problem("grid-sum", 17) == problem("grid-sum", 17)
    assert problem("grid-sum", 17).scene != problem("grid-alternate", 17).scene


def test_numbers_stay_below_one_hundred() -> None:
    for name in SOURCES:
        for seed in range(80):
            example = problem(name, seed)
            assert all(int(number) < 100 for number in re.findall(r"\d+", example.question))
            assert all(0 <= int(value) < 100 for value in example.facts.values() if re.fullmatch(r"-?\d+", value))


def test_a_problem_as_a_question_has_the_path_of_its_picture() -> None:
    example = problem("bars-total", 9)
    question = example.as_question()
    assert (question.id, question.images, question.source) == ("bars-total/9", ("bars-total/9.png",), "bars-total")
    assert (question.question, question.answer, question.options) == (
        example.question,
        example.answer,
        example.options,
    )


def test_seeds_of_different_uses_never_meet() -> None:
    splits = sorted(SPLITS.values(), key=lambda seeds: seeds.start)
    assert {"train", "corpus", "benchmark", "best-of-n"} <= set(SPLITS)
    assert all(first.stop <= second.start for first, second in pairwise(splits))
    assert all(len(seeds) >= 10_000_000 for seeds in splits)
    for seeds in splits:
        assert problem("shapes-lines", seeds[-1]).seed == seeds.stop - 1


def test_a_seed_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="grid-sum: the seed is -1; expected a whole number from 0"):
        problem("grid-sum", -1)


def test_every_source_has_an_outline_of_its_solutions() -> None:
    assert list(OUTLINES) == list(SOURCES)


def test_every_word_of_prompts_and_solutions_is_in_the_vocabulary() -> None:
    words = set(vocabulary())
    for name in SOURCES:
        for seed in range(100):
            example = problem(name, seed)
            text = "\n\n".join([prompt_of(example.as_question()), *solution(example)])
            assert set(words_of(text)) <= words, example.id


def test_the_vocabulary_is_small_and_nearly_all_of_it_is_used() -> None:
    words = vocabulary()
    assert list(words) == sorted(set(words))
    assert len(words) < 350
    used: set[str] = set()
    for name in SOURCES:
        for seed in range(150):
            example = problem(name, seed)
            used.update(words_of("\n\n".join([prompt_of(example.as_question()), *solution(example)])))
            used.update(words_of(" ".join(grounding_task(example))))
    # of the numbers, the largest are rare
    assert {word for word in words if not word.isdigit()} - used == set()


def test_words_put_together_again_are_the_text_but_for_spaces() -> None:
    text = "\n\n".join(solution(problem("grid-alternate", 2)))
    assert "".join(words_of(text)).replace("\n", "") == "".join(text.split())
