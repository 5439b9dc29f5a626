from __future__ import annotations

from mprm.data.questions import prompt_of
from mprm_lab.policy.lessons import pointing
from mprm_lab.world import SOURCES, as_question, problem, solution, vocabulary, words_of


def test_every_word_of_prompts_and_solutions_is_in_the_vocabulary() -> None:
    words = set(vocabulary())
    for name in SOURCES:
        for seed in range(100):
            one = problem(name, seed)
            text = "\n\n".join([prompt_of(as_question(one)), *solution(one)])
            assert set(words_of(text)) <= words, one.id


def test_the_vocabulary_is_small_and_nearly_all_of_it_is_used() -> None:
    words = vocabulary()
    assert list(words) == sorted(set(words))
    assert len(words) < 350
    used: set[str] = set()
    for name in SOURCES:
        for seed in range(150):
            one = problem(name, seed)
            used.update(words_of("\n\n".join([prompt_of(as_question(one)), *solution(one)])))
            used.update(words_of(" ".join(pointing(one))))
    # of the numbers, the largest are rare
    assert {word for word in words if not word.isdigit()} - used == set()


def test_words_put_together_again_are_the_text_but_for_spaces() -> None:
    text = "\n\n".join(solution(problem("grid-alternate", 2)))
    assert "".join(words_of(text)).replace("\n", "") == "".join(text.split())
