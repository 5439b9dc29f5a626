"""Rewards for reinforcement learning: formulas, the outcome gate, and the interfaces of three trainers."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from mprm import StepReward
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError
from mprm.evaluation.rewards import REWARDS, drop_reward
from tests.evaluation.scorers import LengthScorer

STEPS = "We add.\n\n3 and 4 make 7.\n\nThe answer is 7."
UNGATED = {"gate": False}


class TableScorer:
    """The scores of a completion by its first step."""

    def __init__(self, **scores: Sequence[float]) -> None:
        self.scores, self.chains = scores, []

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        self.chains += chains
        return [[*self.scores[chain.steps[0]]] for chain in chains]


def chain_of(reward: StepReward, prompt: Any, completion: Any = "a", **columns: Any) -> Chain:
    """What is scored for one completion."""
    reward([prompt], [completion], **{name: [value] for name, value in columns.items()})
    return reward.scorer.chains[-1]


def aggregated(how: str, *scores: float) -> float:
    return REWARDS[how](np.array(scores))


def test_the_formulas_are_those_of_their_docstring() -> None:
    scores = (0.9, 0.5, 0.8)
    assert aggregated("mean", *scores) == pytest.approx(2.2 / 3)
    assert aggregated("min", *scores) == 0.5
    assert aggregated("last", *scores) == 0.8
    assert aggregated("product", *scores) == pytest.approx(0.36)
    assert aggregated("drop", *scores) == 0.5  # (0.9 - 0.5) / 0.9 = 0.44 is 0.3 or more


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.4,), 1),  # no step before
        ((0.2, 0.6, 0.9), 1),  # rises only
        ((0.9, 0.7), 1),  # 0.2 / 0.9 = 0.22
        ((0.8, 0.5, 0.8), 0.5),  # 0.3 / 0.8 = 0.375
        ((0.2, 0.1), 0.5),  # relative: 0.1 / 0.2 = 0.5
        ((0.9, 0.8, 0.7, 0.6, 0.5), 1),  # 0.44 in all, and at most 0.1 / 0.6 = 0.17 between two steps
        ((0.0, 0.0, 0.5), 1),  # nothing to fall from
    ],
)
def test_a_drop_is_the_largest_relative_fall_between_two_steps(scores: tuple[float, ...], expected: float) -> None:
    assert aggregated("drop", *scores) == expected
    assert drop_reward(np.array(scores), rho=0.0 if expected < 1 else 1.1, gamma=0.25) == (
        0.75 if expected < 1 else 1
    )


def test_a_fall_by_the_threshold_itself_counts() -> None:
    assert drop_reward(np.array([0.5, 0.25]), rho=0.5) == 0.5  # 0.25 / 0.5, without rounding
    assert drop_reward(np.array([0.5, 0.25]), rho=0.51) == 1


PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(st.lists(PROBABILITIES, min_size=1, max_size=6), st.sampled_from([*REWARDS]), st.randoms())
def test_rewards_are_in_0_to_1_and_follow_their_completions(rows: list[list[float]], how: str, random: Any) -> None:
    reward = StepReward(TableScorer(**{f"s{i}": row for i, row in enumerate(rows)}), how, **UNGATED)
    completions = ["\n\n".join([f"s{i}", *["more"] * (len(row) - 1)]) for i, row in enumerate(rows)]
    rewards = reward(["q"] * len(rows), completions)
    assert all(0 <= value <= 1 for value in rewards)
    order = random.sample(range(len(rows)), len(rows))
    assert reward(["q"] * len(rows), [completions[index] for index in order]) == [rewards[index] for index in order]


@given(PROBABILITIES)
def test_aggregates_are_ordered(row: list[float]) -> None:
    product, least, mean = (aggregated(how, *row) for how in ("product", "min", "mean"))
    assert product <= least <= mean + 1e-12


def test_truncated_steps_are_left_out_and_counted() -> None:
    reward = StepReward(TableScorer(a=[0.8, 0.6, math.nan], b=[math.nan], c=[0.5]), "mean", **UNGATED)
    with pytest.warns(UserWarning, match=r"^rewards of 3 completions: 2 steps left out"):
        assert reward(["q"] * 3, ["a\n\nx\n\ny", "b", "c"]) == [pytest.approx(0.7), 0, 0.5]


def test_a_completion_without_steps_gets_the_lowest_reward() -> None:
    assert StepReward(LengthScorer(), "mean", **UNGATED)(["q", "q"], ["", " \n\n "]) == [0, 0]


def test_steps_are_those_of_annotation() -> None:
    reward = StepReward(LengthScorer(), max_steps=2, **UNGATED)
    assert chain_of(reward, "3 + 4?", STEPS) == Chain("3 + 4?", ("We add.", "3 and 4 make 7.\n\nThe answer is 7."))


def test_an_aggregate_can_be_a_function() -> None:
    assert StepReward(TableScorer(a=[0.2, 0.4]), aggregate=np.max, **UNGATED)(["q"], ["a\n\nb"]) == [0.4]


def test_a_wrong_answer_gets_0_and_is_not_scored() -> None:
    reward = StepReward(LengthScorer(), "last")
    wrong = STEPS.replace("is 7", "is 8")
    rewards = reward(["3 + 4?"] * 3, [STEPS, wrong, "No idea."], answer=["7", "7", "7"])
    # "The answer is 7." has 16 characters
    assert rewards == [pytest.approx(1 / 1.16), 0, 0]
    assert len(reward.scorer.chains) == 1


@pytest.mark.parametrize(
    ("response", "columns", "expected"),
    [
        (r"So \boxed{\frac{14}{2}}", {"answer": "7"}, 1),
        ("The answer is 7.", {"solution": "3 and 4 are 7.\n#### 7"}, 1),
        ("The answer is 7.", {"answer": 7}, 1),
        ("The answer is (B).", {"answer": "B"}, 1),  # an option's letter, though there are no options
        ("The answer is (B) seven.", {"answer": "B"}, 1),
        (r"\boxed{A}", {"answer": "B"}, 0),
        (r"\boxed{seven}", {"answer": "B", "options": ["six", "seven"]}, 1),
        (r"\boxed{A}", {"answer": "seven", "options": ["six", "seven"]}, 0),
    ],
)
def test_the_gate_reads_gold_answers_as_annotation_does(
    response: str, columns: dict[str, Any], expected: int
) -> None:
    reward = StepReward(LengthScorer())
    assert reward(["q"], [response], **{name: [value] for name, value in columns.items()}) == [expected]


def test_an_answer_that_the_checker_cannot_decide_gets_0_and_is_counted() -> None:
    with pytest.warns(UserWarning, match=r"^rewards of 1 completion: the checker could not decide on 1"):
        assert StepReward(LengthScorer())(["q"], [r"\boxed{x+1}"], answer=[r"\frac{"]) == [0]


def test_messages_and_columns_are_what_is_scored(tmp_path: Path) -> None:
    reward = StepReward(LengthScorer(), **UNGATED)
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    parts = [{"type": "image", "image": red}, {"type": "text", "text": "How many?"}]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    calls = [{"role": "assistant", "content": "Look."}, {"role": "tool", "content": "3"}]
    completion = [*calls, {"role": "assistant", "content": [{"type": "text", "text": "It is 3."}]}]
    assert chain_of(reward, prompt, completion) == Chain("How many?", ("Look.", "It is 3."), (red,))
    assert chain_of(reward, prompt, image=blue).images == (blue,)
    assert chain_of(reward, prompt, images=[blue, "a.png"]).images == (blue, "a.png")
    assert chain_of(reward, prompt, images=[]).images == ()
    assert chain_of(reward, "q", image="a.png", images=None).images == ("a.png",)
    assert chain_of(reward, "q", image="a.png", images=["b.png"]).images == ("b.png",)
    turns = [{"role": "user", "content": "First?"}, {"role": "assistant", "content": "1"}, *prompt]
    assert chain_of(reward, turns) == Chain("How many?", ("a",), (red,))
    assert chain_of(reward, prompt, question="3 + 4?").question == "3 + 4?"
    assert chain_of(reward, "q", trainer_state=object(), log_metric=print) == Chain("q", ("a",))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StepReward(None), r"the scorer is None; expected mprm.PRM.from_pretrained"),
        (lambda: StepReward("runs/bis10"), r"the scorer is 'runs/bis10'; expected"),
        (lambda: StepReward(LengthScorer(), "max"), r"unknown aggregate 'max'; expected one of mean, min"),
        (lambda: StepReward(LengthScorer(), max_steps=0), r"max_steps must be at least 1, got 0"),
        (
            lambda: StepReward(LengthScorer())(["q"], ["a"], image=[None]),
            r"the gate needs gold answers: expected a column answer or solution, found image\. .*gate=False",
        ),
        (
            lambda: StepReward(LengthScorer(), answer_column="gold")(["q"], ["a"], answer=["7"]),
            r"expected a column gold",
        ),
        (
            lambda: StepReward(LengthScorer())(["q"], ["a"], answer=[None]),
            r"'q': the gold answer is None; expected text",
        ),
        (lambda: StepReward(LengthScorer())(["q"], ["a"], answer=["Add.\nThen add."]), r"states no final answer"),
        (
            lambda: StepReward(LengthScorer(), **UNGATED)(["q"], ["a", "b"]),
            r"found 1 prompts, 2 completions; expected",
        ),
        (
            lambda: StepReward(LengthScorer(), **UNGATED)(["q"], ["a"], image=[]),
            r"1 prompts, 1 completions, 0 image;",
        ),
        (
            lambda: StepReward(LengthScorer(), **UNGATED)(["q"], [3]),
            r"expected a text or a list of messages, found 3",
        ),
        (
            lambda: StepReward(LengthScorer(), **UNGATED)([[]], ["a"]),
            r"the prompt \[\] holds no question; expected text",
        ),
        (
            lambda: StepReward(TableScorer(a=[1, 1]), **UNGATED)(["q"], ["a"]),
            r"TableScorer.score_many does not give one",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_async_reward_leaves_the_event_loop_free() -> None:
    is_free = threading.Event()

    class Waiting(LengthScorer):
        def score_many(self, chains: Sequence[Chain], **options: Any) -> list[list[float]]:
            assert is_free.wait(10)
            return super().score_many(chains, **options)

    async def both() -> list[float]:
        task = asyncio.create_task(
            StepReward(Waiting(), "last", **UNGATED).async_reward(["q"], ["a"], completion_ids=[[1]])
        )
        await asyncio.sleep(0)
        is_free.set()  # reached only where the reward waits elsewhere
        return await task

    assert asyncio.run(both()) == [pytest.approx(1 / 1.01)]


def test_verl_calls_compute_score_with_its_names() -> None:
    reward = StepReward(LengthScorer(), "last")
    assert inspect.iscoroutinefunction(reward.compute_score)  # as verl asks
    names = [*inspect.signature(reward.compute_score).parameters]
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    info = {"question": "How many?", "images": np.array(["a.png"], dtype=object), "index": 3, "num_turns": None}
    more = {"reward_router_address": None, "reward_model_tokenizer": None}
    sample = {"data_source": "geo3k", "ground_truth": "7", "extra_info": info, **more}
    scores = [
        asyncio.run(reward.compute_score(solution_str=text, **sample))
        for text in ("The answer is 7.", "The answer is 8.")
    ]
    assert scores == [pytest.approx(1 / 1.16), 0]
    assert reward.scorer.chains == [Chain("How many?", ("The answer is 7.",), ("a.png",))]
    with pytest.raises(DataError, match=r"^geo3k: extra_info has no question"):
        asyncio.run(reward.compute_score("geo3k", "7", "7"))


def test_openrlhf_gets_tensors_of_rewards_scores_and_logs() -> None:
    torch = pytest.importorskip("torch")
    reward = StepReward(LengthScorer(), "last")
    names = [*inspect.signature(reward.reward_func).parameters]
    assert names[:3] == ["queries", "prompts", "labels"]
    prompt = "<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    queries = [
        prompt + "The answer is 7.<|im_end|>\n<|endoftext|>",
        prompt + "The answer is 8.<|im_end|>",
        "3 + 4? The answer is 7.",
    ]
    labels = [{"answer": "7", "question": "3 + 4?", "image": "a.png"}, "7", "7"]
    found = reward.reward_func(queries, [prompt, prompt, "3 + 4?"], labels)
    assert found.keys() == {"rewards", "scores", "extra_logs"}
    assert torch.equal(found["rewards"], torch.tensor([1 / 1.16, 0, 1 / 1.16]))
    assert torch.equal(found["scores"], found["rewards"])
    assert torch.equal(found["extra_logs"]["step_reward"], found["rewards"])
    assert reward.scorer.chains == [
        Chain("3 + 4?", ("The answer is 7.",), ("a.png",)),
        Chain("3 + 4?", ("The answer is 7.",)),
    ]
    with pytest.raises(DataError, match=r"query 0 does not hold its prompt"):
        reward.reward_func(["c"], ["ab"], ["7"])
    with pytest.raises(DataError, match=r"found 1 queries, 1 prompts, 0 labels"):
        reward.reward_func(["ab"], ["a"], [])


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small real reward model that sees images."""
    pytest.importorskip("torch")
    from mprm.models import PRM, PRMConfig
    from tests.tiny_models import save_tiny

    return PRM.from_pretrained(save_tiny("qwen2_5_vl", tmp_path_factory.mktemp("prm")), PRMConfig(), device="cpu")


def test_a_real_model_scores_the_images_of_the_columns(prm: Any, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    red, blue = Image.new("RGB", (56, 56), "red"), Image.new("RGB", (56, 56), "blue")
    red.save(path)
    reward = StepReward(prm, "mean")
    columns = {"image": [red, blue, str(path)], "answer": ["7"] * 3}
    rewards = reward(["3 + 4?"] * 3, [STEPS] * 3, completion_ids=[[1]] * 3, **columns)
    expected = [np.mean(prm.score("3 + 4?", [image], STEPS.split("\n\n"))) for image in (red, blue)]
    assert rewards == pytest.approx([*expected, expected[0]], abs=1e-5)
    assert abs(rewards[0] - rewards[1]) > 1e-5
    assert asyncio.run(reward.async_reward(["3 + 4?"] * 3, [STEPS] * 3, **columns)) == pytest.approx(
        rewards, abs=1e-5
    )


def test_a_real_model_scores_one_batch_at_a_time(prm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = StepReward(prm, "mean")
    info = {"question": "3 + 4?"}
    is_busy, score_many = threading.Lock(), prm.score_many

    def alone(chains: Sequence[Chain]) -> list[list[float]]:
        assert is_busy.acquire(blocking=False)
        try:
            return score_many(chains)
        finally:
            is_busy.release()

    monkeypatch.setattr(prm, "score_many", alone)

    async def scores() -> list[float]:
        return await asyncio.gather(*(reward.compute_score("s", STEPS, "7", info) for _ in range(6)))

    assert asyncio.run(scores()) == pytest.approx(reward(["3 + 4?"], [STEPS], answer=["7"]) * 6, abs=1e-5)


def test_a_served_model_is_asked_by_several_threads_at_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    from mprm import PRM, RemotePRM
    from tests.evaluation.pooling_server import pooling_server
    from tests.evaluation.test_remote import exported

    folder = exported("internvl", tmp_path / "internvl")
    with pooling_server(folder) as server:
        reward = StepReward(RemotePRM(server.url), "mean")

        async def scores() -> list[float]:
            info = {"question": "3 + 4?"}
            return await asyncio.gather(*(reward.compute_score("s", STEPS, gold, info) for gold in ("7", "8", "7")))

        found = asyncio.run(scores())
    expected = np.mean(PRM.from_pretrained(folder, device="cpu").score("3 + 4?", steps=STEPS.split("\n\n")))
    assert found == pytest.approx([expected, 0, expected], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.filterwarnings("ignore")  # those of TRL and of its libraries
def test_trl_trains_two_steps_with_this_reward(is_async: bool, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl")
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    from mprm.models import PRM, PRMConfig
    from tests.tiny_models import save_tiny

    folder = save_tiny("text", tmp_path / "policy")
    reward = StepReward(PRM.from_pretrained(folder, PRMConfig(), device="cpu"), "mean", gate=False)
    prompts = [{"prompt": [{"role": "user", "content": f"what is {n} + 2?"}], "answer": str(n + 2)} for n in range(4)]
    sizes = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8, "max_steps": 2}
    trainer = trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=reward.async_reward if is_async else reward,
        args=trl.GRPOConfig(
            str(tmp_path / "out"),
            use_cpu=True,
            bf16=False,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            **sizes,
        ),
        train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    name = "async_reward" if is_async else "step_reward"
    logged = [log[f"rewards/{name}/mean"] for log in trainer.state.log_history if "reward" in log]
    assert len(logged) == 2
    assert all(0 < value < 1 for value in logged)
