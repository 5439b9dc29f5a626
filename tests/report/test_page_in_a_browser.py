"""The page in a real Chromium, offline: it draws, it moves, it keeps what select keeps, and nothing runs but its script."""

import json
import random
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mprm.cli.select import run_select
from mprm.report import corpus as report_corpus, report
from mprm.report.page import at_most
from tests.conftest import random_scores, raw_record, write_jsonl
from tests.report.browser import Browser
from tests.report.test_report import HOSTILE

STRATEGIES = ("bis", "random", "low-mc", "mixed", "reliable")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def without_errors(browser: Browser) -> Iterator[None]:
    """Every test fails when the page logs an error, or requests anything but itself."""
    browser.prefer(width=1280)
    browser.errors.clear()
    browser.requests.clear()
    yield
    assert browser.errors == []
    requested = {url for url in browser.requests if url != "about:blank"}
    assert [url for url in requested if not url.startswith(("file:", "data:image/"))] == []
    # none where a test was skipped before it opened its page
    assert len([url for url in requested if url.startswith("file:")]) <= 1


@pytest.fixture
def annotations(corpus) -> Path:
    """Scores of k out of 12, whose sums round, in sources of which some are all ties."""
    rng = random.Random(5)
    sizes = {"ai2d": 211, "geos": 1, "vqav2": 64}
    made = {name: [random_scores(rng, 12) for _ in range(n)] for name, n in sizes.items()}
    # (0.16 + 0.05) * 10/12 and (0.25 + 0.05) * 7/12 are one float64, 0.175; multiplied out they are two
    return corpus(12, **made, ties=[[10 / 12, 0, 0, 0, 0], [7 / 12, 0]] * 20 + [[1.0], [0.0]] * 4)


def kept(browser: Browser) -> dict[str, dict[str, float]]:
    """What the page says is kept, by source."""
    browser.drawn()
    rows = browser.run("[...document.querySelectorAll('#by-source tr[data-source]')].map(row => ({...row.dataset}))")
    return {row.pop("source"): {name: float(value) for name, value in row.items()} for row in rows}


def selected(folder: Path, capsys: pytest.CaptureFixture[str], **options: object) -> dict[str, dict[str, float]]:
    """What ``mprm select --dry-run`` keeps, by source."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert run_select([str(folder), *words, "--dry-run", "--json"]) == 0
    (subset,) = json.loads(capsys.readouterr().out)["subsets"]
    names = {"kept": "n_rollouts", "steps": "n_steps", "positive": "n_pos", "mixed": "n_mixed", "tied": "n_tied"}
    by_source = {
        source: {short: entry[name] for short, name in names.items()}
        for source, entry in subset["statistics"].items()
    }
    by_source["all"] = {short: sum(entry[short] for entry in by_source.values()) for short in names}
    return by_source


def value_of(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)}).value")


def test_moved_sliders_keep_what_select_keeps(
    annotations: Path, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    assert kept(browser) == selected(annotations, capsys, rho=0.1)
    browser.click("#rho-slider", share=0.4)
    for name, presses in (("rho", 3), ("alpha", 7), ("rho", 11), ("alpha", 20)):
        browser.run(f"document.getElementById('{name}-slider').focus()")
        browser.press("ArrowRight", presses)
        alpha, rho = value_of(browser, "#alpha"), value_of(browser, "#rho")
        assert kept(browser) == selected(annotations, capsys, rho=rho, alpha=alpha), (alpha, rho)
    assert (float(alpha), float(rho)) != (0.05, 0.1)


def text_of(browser: Browser, selector: str) -> str:
    browser.drawn()
    return browser.run(f"document.querySelector({json.dumps(selector)}).textContent")


def test_the_command_shown_runs_and_keeps_what_the_page_says(
    annotations: Path, tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = annotations.rename(tmp_path / "it's $HOME")
    report(sorted(folder.glob("*.jsonl")), out=tmp_path / "r.html", seed=3)
    browser.open(tmp_path / "r.html", "strategy=low-mc&rho=0.07")
    browser._call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click("#copy")
    browser.run("new Promise(done => setTimeout(done, 100))")
    command = browser.run("navigator.clipboard.readText()")
    assert command == text_of(browser, "#command")
    assert text_of(browser, "#copy") == "Copied"
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert words[:3] == ["mprm", "select", f"{folder}/*.jsonl"]
    assert words[-2:] == ["--out", "low-mc7.jsonl"]
    assert run_select(words[2:]) == 0
    assert len(Path("low-mc7.jsonl").read_bytes().splitlines()) == kept(browser)["all"]["kept"]


def view_of(browser: Browser) -> str:
    browser.run("new Promise(done => setTimeout(done, 300))")  # the address follows a little later
    return browser.run("location.hash")


def test_a_link_shows_the_same_view(
    annotations: Path, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    assert view_of(browser) == ""
    browser.click("#strategy label:nth-of-type(4)")
    browser.run("document.getElementById('rho').select()")
    browser.call("Input.insertText", text="0.37")
    for name, value in (("scope", "3"), ("counts", "linear"), ("quantity", "R")):
        browser.run(
            f"(s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change', {{bubbles: true}})) }})({name})"
        )
    before, charts = kept(browser), text_of(browser, "#overall")
    link = view_of(browser)
    assert link == "#strategy=mixed&rho=0.37&scope=vqav2&counts=linear&quantity=R"
    browser.click("nav a:nth-of-type(3)")  # to a section, with the same view
    assert view_of(browser) == link
    browser.open(tmp_path / "r.html", link[1:])
    assert kept(browser) == before == selected(annotations, capsys, strategy="mixed", rho=0.37)
    assert text_of(browser, "#overall") == charts
    assert [value_of(browser, f"#{name}") for name in ("rho", "scope", "counts", "quantity")] == [
        *("0.37", "3", "linear", "R")
    ]
    browser.run("location.hash = '#alpha=0.2'")  # typed into the address of the open page
    assert kept(browser) == selected(annotations, capsys, rho=0.1, alpha=0.2)


def test_a_link_to_what_there_is_not_shows_the_page_as_it_opens(
    annotations: Path, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(
        tmp_path / "r.html", "rho=7&alpha=x&strategy=<img src=x onerror=hack()>&scope=nope&quantity=&counts=9"
    )
    assert kept(browser) == selected(annotations, capsys, rho=0.1)
    values = [value_of(browser, f"#{name}") for name in ("alpha", "rho", "scope", "counts", "quantity")]
    assert values == ["0.05", "0.1", "", "logarithmic", "bis"]


def bars(browser: Browser, number: int) -> list[str]:
    browser.drawn()
    return browser.run(
        f"[...document.querySelectorAll('#overall figure:nth-child({number}) title')].map(t => t.textContent)"
    )


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "fixed"])
def test_steps_and_first_errors_are_drawn_for_all_and_for_kept(
    is_live: bool, corpus, tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_live:
        monkeypatch.setattr(report_corpus, "MAX_UNIQUE", 1)
    # BIS at 0.05: 0.30, 2/9 + 0.05, (2/9 + 0.05) * 1, 0.05
    path = corpus(a=[[1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0]])
    report(path, out=tmp_path / "r.html", rho=0.25)
    browser.open(tmp_path / "r.html")
    assert bars(browser, 4) == ["1: kept 0 of 1", "2: kept 1 of 1", "3 or more: kept 0 of 2"]
    expected = ["none: kept 0 of 1", "1: kept 0 of 1", "2: kept 1 of 1", "3 or more: kept 0 of 1"]
    assert bars(browser, 5) == expected


def test_every_axis_says_what_it_counts(annotations: Path, tmp_path: Path, browser: Browser) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    texts = (
        "[...document.querySelectorAll('{} svg')].map(s => [...s.querySelectorAll('text')].map(t => t.textContent))"
    )
    for chart in browser.run(texts.format("#overall")):
        assert {"rollouts", "coverage"} <= set(chart)
    (scores,) = browser.run(texts.format("#step-scores"))
    assert "share of steps" in scores
    # 40 rollouts of the source "ties" have one BIS, 0.175, and the other 8 that of all-equal labels
    assert ["40", "100%", "0", "0.3"] in browser.run(texts.format("#levels"))


def test_labels_of_people_are_neither_easy_nor_hard_for_a_policy(
    annotations: Path, tmp_path: Path, browser: Browser
) -> None:
    labels = [[True, True, False], [True, False], [True]]
    records = [{"prompt": "1+1?", "completions": ["2"] * len(ls), "labels": ls} for ls in labels]
    write_jsonl(tmp_path / "people.jsonl", records)
    report(tmp_path / "people.jsonl", out=tmp_path / "people.html")
    browser.open(tmp_path / "people.html")
    words = browser.run("document.querySelector('main').innerText")
    assert "easy for the policy" not in words
    assert "hard for the policy" not in words
    assert "MC score" not in words
    assert "Right or wrong, without Monte Carlo (1 source)" in words
    assert "mean label" in words
    browser.requests.clear()
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    assert "hard for the policy" in browser.run("document.querySelector('main').innerText")


def test_the_loss_of_a_run_is_drawn_on_an_axis_of_its_own(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.json").write_text(json.dumps({"seed": 0, "model": "base"}))
    log = [{"step": step, "loss": 3.0 / step} for step in (1, 2, 3)]
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    report(out=tmp_path / "r.html", runs=tmp_path / "run")
    browser.open(tmp_path / "r.html")
    assert browser.run("[...document.querySelectorAll('#charts title')].map(t => t.textContent)") == [
        *("all data, 1: 3", "all data, 2: 1.5", "all data, 3: 1")
    ]
    texts = browser.run("[...document.querySelectorAll('#charts text')].map(t => t.textContent)")
    assert "loss" in texts
    assert "3" in texts


FORMULAS = {
    r"x^2": "<msup><mi>x</mi><mn>2</mn></msup>",
    r"x_{12}^{3}'": "<msubsup><mi>x</mi><mn>12</mn><mrow><mo>′</mo><mn>3</mn></mrow></msubsup>",
    r"\frac12": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"\dfrac{a}{b}": '<mfrac displaystyle="true"><mi>a</mi><mi>b</mi></mfrac>',
    r"\sqrt[3]{1,000.5}": "<mroot><mn>1,000.5</mn><mn>3</mn></mroot>",
    r"\pi-\$5": "<mrow><mi>π</mi><mo>−</mo><mi>$</mi><mn>5</mn></mrow>",
    r"\sum_{k=1}^n k": '<mrow><munderover><mo movablelimits="true">∑</mo><mrow><mi>k</mi><mo>=</mo><mn>1</mn></mrow>'
    "<mi>n</mi></munderover><mi>k</mi></mrow>",
    r"\left(x\right.": '<mrow><mo stretchy="true" lspace="0" rspace="0">(</mo><mi>x</mi>'
    '<mo stretchy="true" lspace="0" rspace="0"></mo></mrow>',
    r"\begin{pmatrix}1&2\\3&4\\\end{pmatrix}": '<mrow><mo stretchy="true" lspace="0" rspace="0">(</mo>'
    '<mtable class=""><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd>'
    '</mtr></mtable><mo stretchy="true" lspace="0" rspace="0">)</mo></mrow>',
    r"\text{if }x\not\in\mathbb{R}": '<mrow><mrow><mtext class="">if</mtext><mspace width="0.28em"/></mrow><mi>x</mi>'
    '<mo>∉</mo><mi mathvariant="normal">ℝ</mi></mrow>',
}
NOT_READ = (
    r"\frac{1}",
    r"x^2^3",
    r"{x",
    r"x}",
    r"\href{javascript:hack()}{x}",
    r"\left(x",
    r"\begin{tikzpicture}\end{tikzpicture}",
)
NOT_READ += (r"\begin{pmatrix}1\end{bmatrix}", r"\unknown", "{" * 1000 + "}" * 1000, r"\text{\url{x}}", "\\")


def test_formulas_are_mathml_and_what_is_not_known_is_not_read(tmp_path: Path, browser: Browser) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0, 0.0])])
    report(tmp_path / "in", out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    parse = (
        '(t => {{ try {{ return new XMLSerializer().serializeToString(parseMath(t)).replaceAll(/ xmlns="[^"]*"/g, \'\') }}'
        " catch (e) {{ return e.name }} }})({})"
    )
    for tex, markup in FORMULAS.items():
        assert browser.run(parse.format(json.dumps(tex))) == markup, tex
    for tex in NOT_READ:
        assert browser.run(parse.format(json.dumps(tex))) == "SyntaxError", tex[:50]


QUESTION = r"""Costs are $5 and $10, or $4 + $4 = $<<4+4=8>>8. Let $x_1 < y$ and \(z\), \\ and \$3. Then \[ x = \frac{1}{2} \]
so $\unknown{x}$ stays. [asy] label("$A$") [/asy] It is \boxed{\frac{1}{2}} and $ n $."""


def test_formulas_of_a_question_are_rendered_and_the_rest_of_it_stays(tmp_path: Path, browser: Browser) -> None:
    record = raw_record([1.0, 0.0], question_orig=QUESTION)
    record["steps_with_score"][0]["step"] = "$" + "+".join(f"x_{{{n}}}" for n in range(99)) + "$"
    write_jsonl(tmp_path / "in" / "a.jsonl", [record])
    report(tmp_path / "in", out=tmp_path / "r.html")
    browser.prefer(width=400)
    browser.open(tmp_path / "r.html")
    titles = "[...document.querySelectorAll('.question math')].map(m => m.getAttribute('title'))"
    assert browser.run(titles) == ["$x_1 < y$", r"\(z\)", r"\[ x = \frac{1}{2} \]", r"\boxed{\frac{1}{2}}", "$ n $"]
    assert browser.run("document.querySelectorAll('.question math[display=block]').length") == 1
    # with their source in place of the formulas it is the question
    nodes = "[...document.querySelector('.question').childNodes]"
    source = f"{nodes}.map(n => n.nodeType === 3 ? n.data : n.getAttribute('title')).join('')"
    assert browser.run(source) == QUESTION
    # a line of 99 terms scrolls in its card and does not widen the page
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


HOSTILE_FORMULAS = [
    "$<img src=x onerror=window.hacked=1>$",
    r"\(\text{<script>window.hacked = 1</script>}\)",
    r"$$\href{javascript:window.hacked=1}{x}$$",
    r"\[</math><img src=x onerror=window.hacked=1>\]",
    r"$\style{position:fixed}{x}$ $x\class{top}{y}$ $\unicode{60}$",
    r"\begin{align}<svg onload=window.hacked=1>&\end{align}",
    r"\boxed{<iframe srcdoc=x>}",
    "$" + "{" * 300 + "}" * 300 + "$",
    "$" + r"\sqrt" * 200 + "$",
    "$x" * 500,
    r"\(" * 200 + r"\boxed{" * 60,
]


def test_hostile_formulas_run_nothing_and_lose_nothing(tmp_path: Path, browser: Browser) -> None:
    records = []
    for number, text in enumerate(HOSTILE_FORMULAS):
        records.append(raw_record([1.0, *[0.0] * (number + 1)], number=number, question_orig=text, answer=text))
        records[-1]["steps_with_score"][0]["step"] = text
    write_jsonl(tmp_path / "in" / "a.jsonl", records)
    report(tmp_path / "in", out=tmp_path / "r.html", cases=len(records))
    browser.open(tmp_path / "r.html")
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("[document.scripts.length, document.images.length]") == [2, 0]
    inside = "[...document.querySelectorAll('.question *, .answer *, .step p *')]"
    mathml = "http://www.w3.org/1998/Math/MathML"
    assert browser.run(f"{inside}.filter(e => e.namespaceURI !== '{mathml}').length") == 0
    names = {"title", "display", "class", "stretchy", "lspace", "rspace", "width", "mathvariant", "movablelimits"}
    assert set(browser.run(f"{inside}.flatMap(e => e.getAttributeNames())")) <= names | {"accent", "displaystyle"}
    # formulas with their source in place of themselves give the text back
    source = "[...p.childNodes].map(n => n.nodeType === 3 ? n.data : n.getAttribute('title')).join('')"
    shown = browser.run(f"[...document.querySelectorAll('.step:first-child p')].map(p => {source})")
    assert sorted(shown) == sorted(text if len(text) <= 700 else at_most(text, 700) for text in HOSTILE_FORMULAS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_keeps_what_select_keeps(
    strategy: str, annotations: Path, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    report(annotations, out=tmp_path / "r.html", seed=7, tau=0.25)
    browser.open(tmp_path / "r.html")
    browser.click(f"#strategy label:nth-of-type({STRATEGIES.index(strategy) + 1})")
    for rho in ("0.05", "0.37", "1"):
        browser.run("document.getElementById('rho').select()")
        browser.call("Input.insertText", text=rho)
        expected = selected(annotations, capsys, strategy=strategy, rho=rho, seed=7, tau=0.25)
        assert kept(browser) == expected, rho


def test_numbers_that_make_no_sense_change_nothing(annotations: Path, tmp_path: Path, browser: Browser) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    before = kept(browser)
    for wrong in ("0", "1.5"):
        browser.run("document.getElementById('rho').select()")
        browser.call("Input.insertText", text=wrong)
        assert kept(browser) == before
        assert browser.run("document.getElementById('rho').getAttribute('aria-invalid')") == "true"


def test_a_corpus_without_its_random_order_still_keeps_as_many(
    annotations: Path,
    tmp_path: Path,
    browser: Browser,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_corpus, "MAX_ORDERED", 10)
    report(annotations, out=tmp_path / "r.html", rho=0.3)
    browser.open(tmp_path / "r.html")
    shown, expected = kept(browser), selected(annotations, capsys, rho=0.3)
    for source, entry in expected.items():
        assert shown[source]["kept"] == pytest.approx(entry["kept"], abs=1e-9), source
    assert "in proportion" in browser.run("document.getElementById('notice').textContent")


def test_where_nothing_can_be_moved_the_page_says_so_and_still_draws(
    annotations: Path, tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_corpus, "MAX_UNIQUE", 3)
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    assert "nothing can be moved" in browser.run("document.getElementById('notice').innerText")
    assert browser.run("document.getElementById('controls').getClientRects().length") == 0
    assert browser.run("document.querySelectorAll('#overall .bar-kept').length") > 0


def test_the_bars_add_up_to_what_is_kept(annotations: Path, tmp_path: Path, browser: Browser) -> None:
    report(annotations, out=tmp_path / "r.html", rho=0.2)
    browser.open(tmp_path / "r.html")
    browser.run("(s => { s.value = '3'; s.dispatchEvent(new Event('change')) })(document.getElementById('scope'))")
    browser.drawn()
    words = browser.run("[...document.querySelectorAll('#overall figure:first-child title')].map(t => t.textContent)")
    pairs = [word.split(": kept ")[1].split(" of ") for word in words]
    assert sum(int(pair[0]) for pair in pairs) == int(64 * 0.2)
    assert sum(int(pair[1]) for pair in pairs) == 64


def test_hostile_text_runs_nothing_and_is_there_to_be_read(tmp_path: Path, browser: Browser) -> None:
    record = raw_record([1.0, 0.0], question_orig=HOSTILE, answer=HOSTILE, image="broken.png")
    record["steps_with_score"][0]["step"] = HOSTILE
    write_jsonl(tmp_path / "in" / "<img src=x onerror=window.hacked=3>.jsonl", [record])
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no more")
    report(tmp_path / "in", out=tmp_path / "r.html", image_root=tmp_path)
    browser.open(tmp_path / "r.html")
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.scripts.length") == 2
    assert browser.run("document.images.length") == 0
    assert "<script>window.hacked = 1</script>" in browser.run("document.querySelector('.step p').textContent")
    assert "cannot be read" in browser.run("document.querySelector('figure.missing').textContent")
    assert kept(browser)["<img src=x onerror=window.hacked=3>"]["kept"] == 1


def test_even_markup_that_slipped_through_would_not_run(annotations: Path, tmp_path: Path, browser: Browser) -> None:
    """The policy of the page is tried by breaking the page on purpose."""
    report(annotations, out=tmp_path / "r.html")
    page = tmp_path / "r.html"
    page.write_text(page.read_text().replace("<main>", "<main><script>window.hacked = 1</script>"))
    browser.open(page)
    assert browser.run("typeof window.hacked") == "undefined"
    assert len(browser.errors) == 1
    assert "Content Security Policy" in browser.errors.pop()


def contrast(first: list[float], second: list[float]) -> float:
    """Contrast of two colours as WCAG counts it; 4.5 is enough for text."""

    def light(colour: list[float]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_light_and_dark_are_readable_and_nothing_overflows(
    dark: bool, width: int, annotations: Path, tmp_path: Path, browser: Browser
) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.prefer(dark=dark, width=width)
    browser.open(tmp_path / "r.html")
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    look = "(s => getComputedStyle(document.querySelector(s)).{}.match(/[\\d.]+/g).map(Number))({!r})"
    paper = browser.run(look.format("backgroundColor", "body"))
    assert (sum(paper) < 200) == dark
    for selector in ("body", "nav a", ".note", ".tiles dt", ".step .score", ".badge"):
        assert contrast(browser.run(look.format("color", selector)), paper) >= 4.5, selector
    for selector in ("svg text", "svg .coverage-text", "svg .bar-kept"):
        assert contrast(browser.run(look.format("fill", selector)), paper) >= 3, selector
    shot = browser.screenshot(tmp_path / "shot.png")
    assert len(shot.read_bytes()) > 10_000


def test_the_switch_overrules_the_system(annotations: Path, tmp_path: Path, browser: Browser) -> None:
    report(annotations, out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)
    switch = "(s => {{ s.value = '{}'; s.dispatchEvent(new Event('change')) }})(document.getElementById('theme'))"
    browser.run(switch.format("dark"))
    dark = browser.run(background)
    browser.prefer(dark=True)
    browser.run(switch.format("light"))
    assert browser.run(background) == light != dark


@pytest.mark.slow
def test_a_tenth_of_a_corpus_of_the_paper_s_size_keeps_what_select_keeps(
    corpus, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    # the paper's 38 sources have 178 to 35,367 rollouts, 565,149 in all
    rng = random.Random(38)
    sizes = [18 + int(3000 * number / 37) for number in range(38)]
    assert 56_000 < sum(sizes) < 59_000
    annotations = corpus(**{f"s{i}": [random_scores(rng) for _ in range(n)] for i, n in enumerate(sizes)})
    assert report(annotations, out=tmp_path / "r.html").n_bytes < 5_000_000
    browser.open(tmp_path / "r.html")
    for strategy in STRATEGIES:
        browser.click(f"#strategy label:nth-of-type({STRATEGIES.index(strategy) + 1})")
        for alpha, rho in (("0.05", "0.25"), ("0", "0.1"), ("0.2", "0.05")):
            for name, value in (("alpha", alpha), ("rho", rho)):
                browser.run(f"document.getElementById('{name}').select()")
                browser.call("Input.insertText", text=value)
            expected = selected(annotations, capsys, strategy=strategy, alpha=alpha, rho=rho)
            assert len(expected) == 39
            assert kept(browser) == expected, (strategy, alpha, rho)


@pytest.mark.parametrize("value", [0.1, 0.3387055481228217])
def test_three_seeds_that_agree_on_every_point_do_not_hang_the_page(
    value: float, tmp_path: Path, browser: Browser
) -> None:
    assert sum([value] * 3) / 3 != value  # so that the band is a last bit wide
    for seed in range(3):
        folder = tmp_path / "runs" / str(seed)
        points = [{"update": u, "overall": value, "macro_f1": {"bars": value}} for u in range(3)]
        write_jsonl(folder / "curve.jsonl", points)
        (folder / "train.json").write_text(json.dumps({"seed": seed, "model": "base"}))
    report(out=tmp_path / "r.html", runs=tmp_path / "runs")
    browser.open(tmp_path / "r.html")
    assert browser.run("document.querySelectorAll('#charts .mark').length") > 0


def test_the_command_names_a_seed_of_many_digits(tmp_path: Path, browser: Browser) -> None:
    write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0])])
    report(tmp_path / "in", out=tmp_path / "r.html", seed=2**53 + 1)
    browser.open(tmp_path / "r.html")
    assert f"--seed {2**53 + 1} " in browser.run("document.getElementById('command').textContent")


def test_names_cannot_turn_the_text_around_them(tmp_path: Path, browser: Browser) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0, 0.0], source="evil\u202egnp\x00\n")])
    report(tmp_path / "in", out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    words = browser.run("document.querySelector('#by-source tbody th').textContent")
    assert words == "evil\\u{202e}gnp\\x00\\x0a"
    assert "\u202e" not in browser.run("document.body.textContent.replace(document.scripts[0].textContent, '')")
