import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

from mprm.cli.main import run
from mprm.data.corpus import open_corpus
from mprm.data.validate import judge
from mprm.errors import OutputExistsError
from mprm.selection.stats import CorpusStatistics, stats
from mprm_lab.issues.curves import polynomial
from mprm_lab.sample_corpus import SOURCES, Source, draw_records, generate, sample_files, write_sample
from mprm_lab.sample_scores import N_MC

Record = dict[str, Any]
NAMES = [source.name for source in SOURCES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample")
    write_sample(path)
    return path


@pytest.fixture(scope="module")
def records(folder: Path) -> list[Record]:
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def statistics(folder: Path) -> CorpusStatistics:
    return stats(folder, processes=1)


def scores_of(record: Record) -> list[float]:
    return [step["score"] for step in record["steps_with_score"]]


def answer_of(record: Record) -> str:
    last: str = record["steps_with_score"][-1]["step"]
    return last.rpartition("Final answer: ")[2]


def test_shipped_files_hold_what_the_generator_makes(tmp_path: Path) -> None:
    made = generate(tmp_path)
    assert [path.name for path in made] == [path.name for path in sample_files()]
    unpack = zstandard.ZstdDecompressor().decompress
    for new, shipped in zip(made, sample_files(), strict=True):
        assert unpack(new.read_bytes()) == unpack(shipped.read_bytes()), shipped.name


def test_shipped_files_stay_below_one_megabyte() -> None:
    assert sum(path.stat().st_size for path in sample_files()) < 1_000_000


def test_another_seed_makes_other_records_with_the_same_averages(records: list[Record]) -> None:
    source = SOURCES[4]
    made = list(draw_records(source, 4711))
    assert not {record["response"] for record in made} & {record["response"] for record in records}
    found = stats(made, processes=1).total
    assert found.mean_mc == pytest.approx(source.mean_mc, abs=0.01)
    assert found.steps_per_rollout == pytest.approx(source.steps_per_rollout, rel=0.03)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_each_source_has_the_published_averages(statistics: CorpusStatistics, source: Source) -> None:
    found = statistics.sources[source.name]
    assert found.mean_mc == pytest.approx(source.mean_mc, abs=0.01)
    assert found.steps_per_rollout == pytest.approx(source.steps_per_rollout, rel=0.03)
    assert found.n_mc == 16


def test_sources_have_their_published_shares_of_rollouts(statistics: CorpusStatistics) -> None:
    # 28147 + 28049 + 12345 + 11756 + 7765 + 23461 + 34523 + 18887 = 164933 rollouts
    assert statistics.total.n_rollouts == pytest.approx(3000, abs=10)
    for source in SOURCES:
        assert statistics.sources[source.name].n_rollouts == pytest.approx(3000 * source.n_published / 164933, abs=1)


def test_the_whole_corpus_has_the_published_averages(statistics: CorpusStatistics) -> None:
    found = statistics.total
    assert found.error_step_ratio == pytest.approx(0.036, abs=0.001)
    assert found.mixed_share == pytest.approx(0.077, abs=0.002)
    assert found.words_per_step == pytest.approx(27.8, abs=0.5)


def test_sources_that_fail_more_have_more_error_steps(statistics: CorpusStatistics) -> None:
    by_failure = sorted(SOURCES, key=lambda source: -source.mean_mc)
    ratios = [statistics.sources[source.name].error_step_ratio for source in by_failure]
    assert ratios == sorted(ratios)


def test_no_record_is_bad(folder: Path) -> None:
    kinds: list[str] = []
    for rollout in open_corpus(folder):  # stops at the first record that cannot be used
        judge(rollout, lambda kind, _: kinds.append(kind), needs_image=True, forbids="<prm>")
    assert set(kinds) == {"never_sampled"}


def test_no_record_comes_twice(records: list[Record]) -> None:
    assert len({json.dumps(record) for record in records}) == len(records)
    assert len({record["response"] for record in records}) == len(records)


def test_records_have_every_field_and_a_response_made_of_their_steps(records: list[Record]) -> None:
    for record in records:
        assert list(record) == [
            "image",
            "question",
            "question_orig",
            "answer",
            "response",
            "steps_with_score",
            "num_mc_sequences",
        ]
        assert record["response"] == "\n\n".join(step["step"] for step in record["steps_with_score"])
        n_images = len(record["image"]) if isinstance(record["image"], list) else 1
        assert record["question"].startswith("<image>\n" * n_images + record["question_orig"])
        assert record["num_mc_sequences"] == N_MC
        assert not re.search(r"\{[A-Za-z]", record["response"]), "a place for a fact was not filled"


def test_some_records_have_two_images(records: list[Record]) -> None:
    n_pairs = sum(isinstance(record["image"], list) and len(record["image"]) == 2 for record in records)
    assert 0 < n_pairs < 0.05 * len(records)


def test_about_four_rollouts_in_a_row_share_a_question_and_an_image(records: list[Record]) -> None:
    asked = [(str(record["image"]), record["question"], record["answer"]) for record in records]
    n_runs = 1 + sum(one != two for one, two in pairwise(asked))
    assert n_runs == len(set(asked)) == len({image for image, _, _ in asked})
    assert len(asked) / n_runs == pytest.approx(4, abs=0.1)


def test_only_rollouts_that_end_with_a_success_give_the_right_answer(records: list[Record]) -> None:
    for record in records:
        assert (answer_of(record) == record["answer"]) == (scores_of(record)[-1] > 0), record["image"]


def test_steps_after_the_first_error_are_errors_but_for_a_few_rollouts_that_recover(
    records: list[Record],
) -> None:
    failed = [record for record in records if 0.0 in scores_of(record)]
    recovered = []
    for record in failed:
        after = scores_of(record)[scores_of(record).index(0.0) :]
        if any(after):
            recovered.append(record)
            back = next(score for score in after if score)
            assert back <= 3 / 16
    assert 3 <= len(recovered) <= 0.1 * len(failed)


def test_about_half_of_the_failed_rollouts_were_not_sampled_after_the_error(records: list[Record]) -> None:
    n_stopped = n_sampled = 0
    for record in records:
        first = next((n for n, score in enumerate(scores_of(record)) if not score), len(scores_of(record)))
        later = {step["num_mc_total"] for step in record["steps_with_score"][first + 1 :]}
        assert all(step["num_mc_total"] == N_MC for step in record["steps_with_score"][: first + 1])
        assert later in (set(), {0}, {N_MC})
        n_stopped += later == {0}
        n_sampled += later == {N_MC}
    assert n_stopped / (n_stopped + n_sampled) == pytest.approx(0.5, abs=0.1)


def test_the_text_holds_latex_and_signs_beyond_ascii(folder: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert all(sign in text for sign in ("°", "∠", "÷", "π", "\\\\frac{"))


def test_write_sample_refuses_to_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "vqav2.jsonl").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"vqav2\.jsonl"):
        write_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["vqav2.jsonl"]
    assert (tmp_path / "vqav2.jsonl").read_text() == "mine"


def test_write_sample_replaces_a_file_when_forced(tmp_path: Path) -> None:
    (tmp_path / "vqav2.jsonl").write_text("mine")
    written = write_sample(tmp_path, force=True)
    assert [path.name for path in written] == [f"{name}.jsonl" for name in NAMES]
    assert sorted(tmp_path.iterdir()) == written
    assert (tmp_path / "vqav2.jsonl").read_text(encoding="utf-8").startswith("{")


def test_lab_corpus_writes_the_corpus_and_names_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = tmp_path / "demo"
    assert run(["lab", "corpus", str(demo)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(SOURCES) + 2
    assert told[0] == f"{demo / 'ai2d.jsonl'}: 512 rollouts, 2,662 steps"
    assert told[-1] == f"Next: mprm stats {demo}"
    assert sum(1 for _ in open_corpus(demo)) == 3001
    assert run(["lab", "corpus", str(demo)]) == 1
    assert "--force" in capsys.readouterr().err
    assert run(["lab", "corpus", str(demo), "--force"]) == 0


def test_lab_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(["lab", "--help"])
    assert stop.value.code == 0
    assert "mprm lab corpus demo" in capsys.readouterr().out


def test_polynomials_are_written_without_ones_and_zeros() -> None:
    assert polynomial([-1, 0, 1, -7]) == "-x^3 + x - 7"
