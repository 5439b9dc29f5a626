"""The page as a file: what is in it, where it goes, what is refused."""

import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mprm.cli.report import run
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError, OutputExistsError
from mprm.report import corpus_view as label_cells
from mprm.report import figures
from mprm.report.corpus_view import ReportConfig
from mprm.report.report import page_path, report
from tests.conftest import raw_record, write_jsonl


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text in it."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data_of(page: Path) -> dict:
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found)


def test_the_page_holds_everything_and_names_nothing_outside(random_corpus: Path, tmp_path: Path) -> None:
    found = report(random_corpus, out=tmp_path / "r.html")
    page = tmp_path / "r.html"
    assert found.n_rollouts == 138
    assert found.n_bytes == page.stat().st_size
    for tag, attributes in Elements(page.read_text()).found:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    assert "url(" not in page.read_text()


def test_the_same_corpus_gives_the_same_bytes(random_corpus: Path, tmp_path: Path) -> None:
    pages = [Path(report(random_corpus, out=tmp_path / name).page).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_a_folder_gets_report_html_and_a_manifest(random_corpus: Path, tmp_path: Path) -> None:
    found = report(random_corpus, out=tmp_path / "out", config=ReportConfig(rho=0.25))
    assert found.page == str(tmp_path / "out" / "report.html")
    manifest = json.loads((tmp_path / "out" / "report.html.manifest.json").read_text())
    assert manifest["command"] == "report"
    assert manifest["config"]["rho"] == 0.25
    assert manifest["sources"] == {"ai2d": 97, "geos": 1, "vqav2": 40}
    assert [entry["source"] for entry in manifest["inputs"]] == ["ai2d", "geos", "vqav2"]
    assert page_path("x/Y.HTML") == "x/Y.HTML"


def test_the_statistics_are_those_of_mprm_stats(
    random_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mprm.cli.stats import run as run_stats

    report(random_corpus, out=tmp_path / "r.html")
    assert run_stats([str(random_corpus), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    rows = re.findall('<th scope="row">(.*?)</th>(.*?)</tr>', (tmp_path / "r.html").read_text())
    for name, cells in rows:
        expected = stats["all"] if name == "all" else stats["sources"][name]
        found = re.findall("<td>(.*?)</td>", cells)
        assert found[0] == f"{expected['n_rollouts']:,}"
        assert found[4] == f"{expected['error_step_ratio']:.2%}"
        assert found[5] == f"{expected['mean_mc']:.4f}"
    assert [name for name, _ in rows] == ["ai2d", "geos", "vqav2", "all"]


HOSTILE = "<script>window.hacked = 1</script></script><!--<script><img src=x onerror='window.hacked=2'>\u2028\x00\"'&"


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    record = raw_record([1.0, 0.0], question_orig=HOSTILE, answer=HOSTILE, image=HOSTILE)
    record["steps_with_score"][0]["step"] = HOSTILE
    # a source can be named as badly as the file system lets it
    write_jsonl(tmp_path / "in" / "<img src=x onerror=hack()>'\".jsonl", [record])
    report(tmp_path / "in", out=tmp_path / "r.html", config=ReportConfig(image_root=str(tmp_path)))
    markup = (tmp_path / "r.html").read_text()
    tags = [tag for tag, _ in Elements(markup).found]
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
    config = ReportConfig(image_root=str(tmp_path / "images"), cards=2)
    report(tmp_path / "in", out=tmp_path / "r.html", config=config)
    images = [attributes for tag, attributes in Elements((tmp_path / "r.html").read_text()).found if tag == "img"]
    assert [(image["alt"], image["width"], image["height"]) for image in images] == [("good.png", "360", "120")]
    assert images[0]["src"].startswith("data:image/png;base64,")
    words = unescape((tmp_path / "r.html").read_text())
    assert "broken.png cannot be read" in words
    assert "missing.png is not there" in words
    assert "'../secret.png' leaves the image root" in words


def test_no_image_is_opened_without_a_root_nor_outside_it(tmp_path: Path) -> None:
    picture(tmp_path / "good.png")
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0], image=str(tmp_path / "good.png"))])
    report(tmp_path / "in", out=tmp_path / "r.html")
    assert "images are shown with --image-root DIR" in (tmp_path / "r.html").read_text()
    report(tmp_path / "in", out=tmp_path / "r.html", config=ReportConfig(image_root=str(tmp_path)), force=True)
    assert "leaves the image root" in (tmp_path / "r.html").read_text()
    assert "<img" not in (tmp_path / "r.html").read_text()


def test_pictures_stop_where_the_page_would_grow_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mprm.report import page as card_images

    monkeypatch.setattr(card_images, "MOST_BYTES", 1)
    records = []
    for number in range(3):
        picture(tmp_path / f"{number}.png", (40 + number, 40))
        records.append(raw_record([1.0] * (number + 1) + [0.0], number=number, image=f"{number}.png"))
    write_jsonl(tmp_path / "in" / "a.jsonl", records)
    report(tmp_path / "in", out=tmp_path / "r.html", config=ReportConfig(image_root=str(tmp_path)))
    markup = (tmp_path / "r.html").read_text()
    assert markup.count("<img ") == 1
    assert "left out, to keep the page small" in markup


def test_scores_of_too_many_values_turn_the_live_part_off(
    random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_cells, "MOST_CELLS", 3)
    report(random_corpus, out=tmp_path / "r.html")
    found = data_of(tmp_path / "r.html")["corpus"]
    assert found["cells"] is None
    assert "nothing can be moved" in found["why_not_live"]
    overall = next(h for h in found["histograms"] if h["quantity"] == "bis" and h["source"] is None)
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
        report("a.jsonl", out=tmp_path / "r.html", config=ReportConfig(image_root="no-such-folder"))
    with pytest.raises(ConfigError, match="rho must be in"):
        ReportConfig(rho=0.0)
    with pytest.raises(ConfigError, match="cards must be 0 or more"):
        ReportConfig(cards=-1)
    with pytest.raises(InputNotFoundError, match="no such folder"):
        report(random_corpus, out=tmp_path / "r.html", runs=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"neither train\.json nor metrics\.json"):
        report(random_corpus, out=tmp_path / "r.html", runs=random_corpus)
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputExistsError):
        report(random_corpus, out=tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"


FIGURES = ("bis", "r", "mixture", "bis_by_source", "r_by_source", "mixture_by_source", "step_scores")


def test_the_command_writes_the_page_and_says_where(
    random_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert run([str(random_corpus), "--out", str(out)]) == 0
    assert f"The page is {out} ({out.stat().st_size / 1e6:.2f} MB)" in capsys.readouterr().out


def test_figures_need_their_libraries(random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mprm.data.charts.find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r"extra \[report\]"):
        report(random_corpus, out=tmp_path / "r.html", figures=tmp_path / "figures")
    assert not (tmp_path / "r.html").exists()


def test_a_figure_shows_all_kept_and_coverage_of_every_source(
    random_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.setattr(figures, "KINDS", ("svg",))
    found = report(random_corpus, out=tmp_path / "r.html", figures=tmp_path / "figures")
    assert [Path(path).stem for path in found.figures] == [
        *("bis", "bis_by_source", "r", "r_by_source", "mixture", "mixture_by_source", "step_scores")
    ]
    drawn = (tmp_path / "figures" / "bis_by_source.svg").read_text()
    assert all(name in drawn for name in ("ai2d", "geos", "vqav2"))
    for colour in (figures.ALL, figures.KEPT):
        assert drawn.count(f'fill="{colour}"') > 3
    assert drawn.count(f'stroke="{figures.COVERAGE}"') == 3


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
    extras = ("torch", "transformers", "sklearn", "scipy", "PIL", "altair", "vl_convert", "pandas", "httpx", "ray")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras!r}))\n"
        "from mprm.cli.main import run\n"
        f"sys.exit(run(['report', {str(random_corpus)!r}, '--image-root', '.', '--out', {str(tmp_path / 'r.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "images need Pillow" in (tmp_path / "r.html").read_text()
