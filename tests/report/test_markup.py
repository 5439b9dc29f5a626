"""Text from data stays text."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from mprm.report.page import content_hash, json_text, table_markup, text
from mprm.report.run_views import Table, best_marked


@given(st.text())
def test_json_inside_html_reads_back_and_closes_nothing(words: str) -> None:
    found = json_text({"words": words})
    assert json.loads(found) == {"words": words}
    assert not re.search("[<>&\u2028\u2029]", found)


def test_text_shows_markup_quotes_and_control_characters_as_they_are_written() -> None:
    assert text("<script>\"'&\x1b\u202e\nline") == "&lt;script&gt;&quot;&#x27;&amp;\\x1b\\u202e\nline"


def test_cells_of_tables_are_escaped_and_the_best_is_marked() -> None:
    group = best_marked("<i>", [("<b>", [1.0, None]), ("c", [0.5, 2.0])], "{:.1f}")
    markup = table_markup(Table(caption="<u>", heads=("<s>", "x", "y"), groups=(group,), below=("<p>",)))
    assert not re.search("<(i|b|u|s)>", markup)
    assert re.findall("<strong>(.*?)</strong>", markup) == ["1.0", "2.0"]


def test_a_single_row_has_no_best() -> None:
    assert best_marked(None, [("a", [1.0])], "{:.1f}").rows[0].best == frozenset()


def test_the_hash_is_what_a_browser_computes() -> None:
    # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert content_hash("alert(1)") == "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"
