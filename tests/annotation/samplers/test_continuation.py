import json
from pathlib import Path
from typing import Any

import pytest

from mprm.annotation.samplers.server import END_MARK, HTTPSampler, open_template, read_chat_template
from mprm.errors import ConfigError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + ']' + m['content'] | trim + '[end]' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PARTS = """
{%- macro words(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}{%- for part in content -%}{{ part.text if part.type == 'text' else '<img>' }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(n=0) -%}
{%- for m in messages -%}
    {%- set state.n = state.n + 1 -%}
    {%- if loop.first and m.role != 'system' %}{{ '<s>' }}{% endif -%}
    {{- '<' ~ state.n ~ m.role ~ '>' ~ words(m.content) ~ '</>' -}}
    {%- if loop.last and add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}
{%- endfor -%}
"""


def rendered(template: str, prefix: Any) -> str:
    templates = pytest.importorskip("transformers.utils.chat_template_utils")
    chat = [{"role": "user", "content": f"Why {END_MARK}?"}, {"role": "assistant", "content": prefix}]
    [text], _ = templates.render_jinja_template(
        conversations=[chat], chat_template=template, add_generation_prompt=True, bos_token="<b>"
    )
    return str(text)


@pytest.mark.parametrize("prefix", ["So", "So\n\n", " So\t", "{{ x }} {% raw %}", f"a {END_MARK} b"])
def test_an_open_template_ends_with_the_prefix(prefix: str) -> None:
    open_chatml = rendered(open_template(CHATML), prefix + END_MARK)
    assert open_chatml == f"<|im_start|>user\nWhy {END_MARK}?<|im_end|>\n<|im_start|>assistant\n{prefix}"
    # white space before the mark is not at the end: a template that trims leaves it
    trimmed = rendered(open_template(TRIMMING), prefix + END_MARK)
    assert trimmed == f"<b>[user]Why {END_MARK}?[end][assistant]{prefix.lstrip()}"
    parts = rendered(open_template(PARTS), [{"type": "text", "text": prefix + END_MARK}])
    assert parts == f"<s><1user>Why {END_MARK}?</><2assistant>{prefix}"


@pytest.mark.parametrize("start", ["", "\n", "\n\n ", "  "])
def test_a_template_renders_the_same_whether_it_is_opened_or_not(start: str) -> None:
    whole = rendered(start + CHATML, "So")
    assert whole.removesuffix("<|im_end|>\n<|im_start|>assistant\n") == rendered(
        open_template(start + CHATML), "So" + END_MARK
    )


def test_a_closed_template_opens_a_new_turn() -> None:
    assert rendered(CHATML, "So").endswith("So<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_is_read_wherever_a_checkpoint_may_keep_it(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]})
    )
    assert read_chat_template(tmp_path) == "d"
    config.write_text(json.dumps({"chat_template": "c"}))
    assert read_chat_template(tmp_path) == read_chat_template(config) == "c"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "p"}))
    assert read_chat_template(tmp_path) == "p"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert read_chat_template(str(tmp_path)) == read_chat_template(tmp_path / "chat_template.jinja") == "j"


def test_a_missing_template_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        read_chat_template(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        HTTPSampler("http://host", "m", chat_template=tmp_path / "gone.jinja")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_chat_template(tmp_path / "broken.json")
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"none\.json has no chat template"):
        read_chat_template(tmp_path / "none.json")
    (tmp_path / "config.json").write_text("{}")
    HTTPSampler("http://host", str(tmp_path))  # only needed for requests with a prefix
