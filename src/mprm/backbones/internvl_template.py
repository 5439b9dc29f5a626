"""The conversation of the published InternVL2.5 checkpoints as a chat template."""

from __future__ import annotations

import json

SYSTEM_MESSAGES = {
    "internvl2_5": "你是书生·万象，英文名是InternVL，"
    "是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
}
"""What stands before a conversation without a system message of its own, by the config's ``template``."""

START, END = "<|im_start|>", "<|im_end|>"
IMAGE_START, IMAGE_CONTEXT, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"

_MESSAGES = f"""\
{{%- for message in messages -%}}
{{{{- '{START}' + message['role'] + '\\n' -}}}}
{{%- if message['content'] is string -%}}
{{{{- message['content'] -}}}}
{{%- else -%}}
{{%- for part in message['content'] -%}}
{{%- if part['type'] == 'image' -%}}
{{{{- '{IMAGE_CONTEXT}\\n' -}}}}
{{%- elif part['type'] == 'text' -%}}
{{{{- part['text'] -}}}}
{{%- else -%}}
{{{{- raise_exception('a message is made of text and images, not of ' + part['type']) -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- endif -%}}
{{{{- '{END}\\n' -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- '{START}assistant\\n' -}}}}
{{%- endif -%}}
"""


def chat_template(system_message: str, *, begins_text: bool) -> str:
    """The Jinja template; an image is one `IMAGE_CONTEXT`, which the native processor makes as many as needed.

    Parameters
    ----------
    begins_text
        Whether the beginning-of-text token stands first, as InternLM2's tokenizer puts it.
    """
    system = json.dumps(f"{START}system\n{system_message}{END}\n", ensure_ascii=False)
    first = "{{- bos_token -}}\n" if begins_text else ""
    default = f"{{%- if messages[0]['role'] != 'system' -%}}\n{{{{- {system} -}}}}\n{{%- endif -%}}\n"
    return first + default + _MESSAGES
