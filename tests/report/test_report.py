"""The page as a file: what is in it, where it goes, what is refused."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mprm.cli.main import run as run_mprm
from mprm.cli.runs import run_report as run
from mprm.data import charts
from mprm.data.output import Table
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError, OutputExistsError
from mprm.report import ReportConfig, corpus as report_corpus, page as report_page, report
from mprm.report.page import Best, at_most, csp_hash, render, select_command
from tests.conftest import raw_record, write_jsonl


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text in it."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def data_of(page: Path) -> dict:
    (encoded,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(encoded)


def test_the_page_holds_everything_and_names_nothing_outside(random_corpus: Path, tmp_path: Path) -> None:
    result = report(random_corpus, out=tmp_path / "r.html")
    page = tmp_path / "r.html"
    assert result.n_rollouts == 138
    assert result.n_bytes == page.stat().st_size
    for tag, attributes in Elements(page.read_text()).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    assert "url(" not in page.read_text()


def test_the_same_corpus_gives_the_same_bytes(random_corpus: Path, tmp_path: Path) -> None:
    pages = [Path(report(random_corpus, out=tmp_path / name).page).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_a_folder_gets_report_html_and_a_manifest(random_corpus: Path, tmp_path: Path) -> None:
    result = report(random_corpus, out=tmp_path / "out", rho=0.25)
    assert result.page == str(tmp_path / "out" / "report.html")
    manifest = json.loads((tmp_path / "out" / "report.html.manifest.json").read_text())
    assert manifest["command"] == "report"
    assert manifest["config"]["rho"] == 0.25
    assert manifest["sources"] == {"ai2d": 97, "geos": 1, "vqav2": 40}
    assert [entry["source"] for entry in manifest["inputs"]] == ["ai2d", "geos", "vqav2"]
    assert ReportConfig(out="x/Y.HTML").page == "x/Y.HTML"


def test_the_statistics_are_those_of_mprm_stats(
    random_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mprm.cli.corpus import run_stats

    report(random_corpus, out=tmp_path / "r.html")
    assert run_stats([str(random_corpus), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    rows = re.findall('<th scope="row">(.*?)</th>(.*?)</tr>', (tmp_path / "r.html").read_text())
    for name, cells in rows:
        expected = stats["all"] if name == "all" else stats["sources"][name]
        values = re.findall("<td>(.*?)</td>", cells)
        assert values[0] == f"{expected['n_rollouts']:,}"
        assert values[4] == f"{expected['error_step_ratio']:.2%}"
        assert values[5] == f"{expected['mean_mc']:.4f}"
    assert [name for name, _ in rows] == ["ai2d", "geos", "vqav2", "all"]


HOSTILE = "<script>window.hacked = 1</script></script><!--<script><img src=x onerror='window.hacked=2'>\u2028\x00\"'&"


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    record = raw_record([1.0, 0.0], question_orig=HOSTILE, answer=HOSTILE, image=HOSTILE)
    record["steps_with_score"][0]["step"] = HOSTILE
    # a source can be named as badly as the file system lets it
    write_jsonl(tmp_path / "in" / "<img src=x onerror=hack()>'\".jsonl", [record])
    report(tmp_path / "in", out=tmp_path / "r.html", image_root=tmp_path)
    markup = (tmp_path / "r.html").read_text()
    tags = [tag for tag, _ in Elements(markup).elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert unescape(markup).count("window.hacked = 1</script>") >= 3  # question, answer, step and image, as text
    assert data_of(tmp_path / "r.html")["corpus"]["sources"][0]["name"] == "<img src=x onerror=hack()>'\""


def picture(path: Path, size: tuple[int, int] = (900, 300)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "teal").save(path)


def test_images_are_shown_small_and_broken_ones_as_words(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "good.png")
    picture(tmp_path / "secret.png")
    (tmp_path / "images" / "broken.png").write_text("<svg onload='alert(1)'/>")
    names = ["good.png", "broken.png", "missing.png", "../secret.png"]
    records = [raw_record([1.0, 0.0, 0.0][: 3 - n // 2], number=n, image=name) for n, name in enumerate(names)]
    write_jsonl(tmp_path / "in" / "a.jsonl", records)
    report(tmp_path / "in", out=tmp_path / "r.html", image_root=tmp_path / "images", cases=2)
    images = [attributes for tag, attributes in Elements((tmp_path / "r.html").read_text()).elements if tag == "img"]
    assert [(image["alt"], image["width"], image["height"]) for image in images] == [("good.png", "360", "120")]
    assert images[0]["src"].startswith("data:image/png;base64,")
    words = unescape((tmp_path / "r.html").read_text())
    assert "broken.png cannot be read" in words
    assert "missing.png does not exist" in words
    assert "'../secret.png' leaves the image root" in words


def test_no_image_is_opened_without_a_root_nor_outside_it(tmp_path: Path) -> None:
    picture(tmp_path / "good.png")
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0], image=str(tmp_path / "good.png"))])
    report(tmp_path / "in", out=tmp_path / "r.html")
    assert "images are shown with --image-root DIR" in (tmp_path / "r.html").read_text()
    report(tmp_path / "in", out=tmp_path / "r.html", image_root=tmp_path, force=True)
    assert "leaves the image root" in (tmp_path / "r.html").read_text()
    assert "<img" not in (tmp_path / "r.html").read_text()


def test_pictures_stop_where_the_page_would_grow_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "MAX_IMAGE_BYTES", 1)
    records = []
    for number in range(3):
        picture(tmp_path / f"{number}.png", (40 + number, 40))
        records.append(raw_record([1.0] * (number + 1) + [0.0], number=number, image=f"{number}.png"))
    write_jsonl(tmp_path / "in" / "a.jsonl", records)
    report(tmp_path / "in", out=tmp_path / "r.html", image_root=tmp_path)
    markup = (tmp_path / "r.html").read_text()
    assert markup.count("<img ") == 1
    assert "left out, to keep the page small" in markup


def test_scores_of_too_many_values_turn_the_live_part_off(
    random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_corpus, "MAX_UNIQUE", 3)
    report(random_corpus, out=tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")["corpus"]
    assert data["label_counts"] is None
    overall = next(h for h in data["histograms"] if h["quantity"] == "bis" and h["source"] is None)
    assert sum(overall["n_all"]) == 138
    assert sum(overall["n_kept"]) == 9 + 1 + 4  # int(9.7), max(1, int(0.1)), int(4.0)


def test_bad_records_stop_the_report_or_are_counted_in_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0]), raw_record([1.5])])
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*mprm check"):
        report(tmp_path / "in", out=tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    assert report(tmp_path / "in", out=tmp_path / "r.html", skip_bad=True).n_dropped == 1
    assert "1 bad records were left out" in (tmp_path / "r.html").read_text()


def test_what_cannot_be_done_is_refused_before_anything_is_read(random_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to report on"):
        report(out=tmp_path / "r.html")
    with pytest.raises(ConfigError, match="the image root no-such-folder is not a folder"):
        report("a.jsonl", out=tmp_path / "r.html", image_root="no-such-folder")
    with pytest.raises(ConfigError, match="rho must be above 0 and at most 1"):
        report(random_corpus, out=tmp_path / "r.html", rho=0.0)
    with pytest.raises(ConfigError, match="cases must be at least 0"):
        report(random_corpus, out=tmp_path / "r.html", cases=-1)
    with pytest.raises(ConfigError, match="out must be given"):
        report(random_corpus)
    with pytest.raises(InputNotFoundError, match="no such folder"):
        report(random_corpus, out=tmp_path / "r.html", runs=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"neither train\.json nor metrics\.json"):
        report(random_corpus, out=tmp_path / "r.html", runs=random_corpus)
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputExistsError):
        report(random_corpus, out=tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"


QUANTITIES = ("bis", "r", "mixture", "n_steps", "first_error")
FIGURES = (*QUANTITIES, *(f"{name}_by_source" for name in QUANTITIES), "step_scores")


def test_the_command_writes_the_page_and_says_where(
    random_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert run([str(random_corpus), "--out", str(out)]) == 0
    assert f"The page is {out} ({out.stat().st_size / 1e6:.2f} MB)" in capsys.readouterr().out


def test_figures_need_their_libraries(random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r"extra \[report\]"):
        report(random_corpus, out=tmp_path / "r.html", figures=tmp_path / "figures")
    assert not (tmp_path / "r.html").exists()


def test_a_figure_shows_all_kept_and_coverage_of_every_source(
    random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.setattr(report_page, "SUFFIXES", ("svg",))
    result = report(random_corpus, out=tmp_path / "r.html", figures=tmp_path / "figures")
    assert [Path(path).stem for path in result.figures] == [
        *(name for quantity in QUANTITIES for name in (quantity, f"{quantity}_by_source")),
        "step_scores",
    ]
    drawn = (tmp_path / "figures" / "bis_by_source.svg").read_text()
    assert all(name in drawn for name in ("ai2d", "geos", "vqav2"))
    for colour in (report_page.ALL, report_page.KEPT):
        assert drawn.count(f'fill="{colour}"') > 3
    assert drawn.count(f'stroke="{report_page.COVERAGE}"') == 3


@pytest.mark.slow
def test_figures_come_as_svg_png_and_pdf(random_corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    report(random_corpus, out=tmp_path / "r.html", figures=tmp_path)
    for kind, start in {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}.items():
        for name in FIGURES:
            assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(start)


def test_the_page_needs_the_core_alone(random_corpus: Path, tmp_path: Path) -> None:
    """With every extra out of reach, as after a plain install."""
    extras = ("torch", "transformers", "sklearn", "scipy", "PIL", "altair", "vl_convert", "pandas", "openai", "ray")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras!r}))\n"
        "from mprm.cli.main import run\n"
        f"sys.exit(run(['report', {str(random_corpus)!r}, '--image-root', '.', '--out', {str(tmp_path / 'r.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "images need Pillow" in (tmp_path / "r.html").read_text()


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0])])


def test_an_output_without_a_name_is_not_the_root_of_the_disk() -> None:
    with pytest.raises(ConfigError, match="no name"):
        report(out="")


def test_a_file_beside_the_page_is_not_replaced_without_force(annotations: Path, tmp_path: Path) -> None:
    notes = tmp_path / "r.html.manifest.json"
    notes.write_text("mine")
    with pytest.raises(OutputExistsError, match="manifest"):
        report(annotations, out=tmp_path / "r.html")
    assert notes.read_text() == "mine"
    report(annotations, out=tmp_path / "r.html", force=True)


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_a_file_is_no_folder_for_a_report(option: str, annotations: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("altair")
    (tmp_path / "file").touch()
    options = {"--out": str(tmp_path / "r.html"), option: str(tmp_path / "file")}
    words = [word for pair in options.items() for word in pair]
    assert run_mprm(["report", str(annotations), *words]) == 2
    assert "is a file" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_an_image_root_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "images").mkdir()
    image.new("RGB", (8, 8)).save(tmp_path / "images" / "0.png")
    path = write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0], image="0.png")])
    report(path, out=tmp_path / "r.html", image_root="~/images")
    assert "data:image/png" in (tmp_path / "r.html").read_text()


def test_the_command_names_the_corpus_as_a_shell_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abcd":
        write_jsonl(Path("it's here") / f"{name}.jsonl", [raw_record([1.0, 0.0])])
    files = [f"it's here/{name}.jsonl" for name in "abcd"]
    config = ReportConfig(out="r.html")
    quoted = "'it'\"'\"'s here"
    assert select_command("it's here", config) == f"mprm select {quoted}'"
    assert select_command(files[:2], config) == f"mprm select {quoted}/a.jsonl' {quoted}/b.jsonl'"
    # all files of a folder are a glob, which mprm expands; with one left out they are not
    assert select_command(files, config) == f"mprm select {quoted}/*.jsonl'"
    write_jsonl(Path("it's here") / "e.jsonl", [raw_record([1.0, 0.0])])
    assert select_command(files, config).count(".jsonl") == 4
    options = ReportConfig(out="r.html", format="trl", text_only=True, skip_bad=True)
    assert select_command(Path("a"), options) == "mprm select a --format trl --text-only --skip-bad"
    assert select_command([{"prompt": ""}], config) == "mprm select INPUT"  # a table in memory


def gzipped(path: Path, records: list) -> Path:
    plain = write_jsonl(path.with_suffix(""), records)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


CHANGES = {
    "other records": lambda path: gzipped(path, [b'{"a": 1}'] * 9),
    "no records": lambda path: gzipped(path, [b""] * 9),
    "other scores": lambda path: gzipped(path, [raw_record([-3.0, 7.0])] * 9),
    "fewer": lambda path: gzipped(path, [raw_record([1.0, 0.0])] * 3),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("moment", ["before the second reading", "after it"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_input_that_changes_under_the_report_is_named(change: Any, moment: str, tmp_path: Path) -> None:
    path = gzipped(tmp_path / "in" / "a.jsonl.gz", [raw_record([1.0, 0.5, 0.0], number=n) for n in range(9)])

    @contextmanager
    def progress(title: str, _total: int | None, _unit: str = "items") -> Iterator[Any]:
        is_second = title == "reading step scores"
        if is_second and moment != "after it":
            change(path)
        yield lambda _n, _note="": None
        if is_second and moment == "after it":
            change(path)

    with pytest.raises(DataError, match=r"a\.jsonl\.gz: the file changed while it was read; run again"):
        report(path, out=tmp_path / "r.html", progress=progress)
    assert not (tmp_path / "r.html").exists()


@given(st.text())
def test_json_inside_html_reads_back_and_closes_nothing(words: str) -> None:
    encoded = report_page._environment().from_string("{{ data | tojson }}").render(data={"words": words})
    assert json.loads(encoded) == {"words": words}
    assert not re.search("[<>&\u2028\u2029]", encoded)


@given(st.text())
def test_text_in_a_template_is_escaped_whatever_it_holds(words: str) -> None:
    table = Table(title=words, heads=(words, words), rows=[(words,), (words, Best(words))], notes=(words,))
    tags = [tag for tag, _ in Elements(render("table.html", table=table)).elements]
    assert set(tags) == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "strong", "p"}
    assert len(tags) == 4 + 3 + 2 + 5 + 1


def test_text_shows_markup_quotes_and_control_characters_as_they_are_written() -> None:
    table = Table(title="", heads=(), rows=(), notes=("<script>\"'&\x1b\u202e\nline",))
    assert "&lt;script&gt;&#34;&#39;&amp;\\x1b\\u202e\nline" in render("table.html", table=table)


def test_cells_of_tables_are_escaped_and_the_best_is_marked() -> None:
    rows = [("<i>",), ("<b>", Best("1.00"), "–"), ("c", "0.50", Best("2.00"))]
    markup = render("table.html", table=Table(title="<u>", heads=("<s>", "x", "y"), rows=rows, notes=("<em>",)))
    assert not re.search("<(i|b|u|s|em)>", markup)
    assert re.findall("<strong>(.*?)</strong>", markup) == ["1.00", "2.00"]


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert at_most("a < b", 3) == "a < … (2 more characters)"
    assert at_most("a < b", 5) == "a < b"


def test_the_hash_is_what_a_browser_computes() -> None:
    # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert csp_hash("alert(1)") == "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"


def test_the_package_is_the_function_too_whatever_was_imported_before(tmp_path: Path) -> None:
    import mprm.report.corpus

    record = {"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}
    assert mprm.report([record], out=tmp_path / "r.html").n_rollouts == 1  # type: ignore[operator]
    assert mprm.report.report is report
    assert list(signature(mprm.report).parameters)[:2] == ["paths", "config"]  # type: ignore[arg-type]


def test_import_mprm_is_enough_to_write_a_report(tmp_path: Path) -> None:
    # in a process of its own: here mprm.report has been imported before
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}])
    code = "import mprm; print(mprm.report('a.jsonl', out='r.html').n_rollouts, mprm.report.ReportConfig.__name__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "ReportConfig"]
