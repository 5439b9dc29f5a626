"""``mprm export``: what vLLM needs to serve a process reward model with the scores that it has in this process.

Beside the weights lie vLLM's settings, a chat template that renders mprm's one prompt, a tokenizer, and the model's
own scores of a few chains, by which a client recognises it. The template's messages are the question with its images
from the user, and the steps, a part each, from the assistant.

vLLM takes special tokens in text for tokens: a literal ``<prm>`` in a step would be one more row in its answer. The
exported tokenizer deletes `ESCAPE` after it has looked for special tokens, so that one with an `ESCAPE` inside stays
text, and has the same ids as here.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from mprm.config import Config, Device, Dtype, Force, output, takes
from mprm.data.images import place_images
from mprm.data.output import TemporaryFolder, atomic_write, check_overwrite
from mprm.data.types import Chain
from mprm.errors import ConfigError, InputNotFoundError, MissingDependencyError, OutputExistsError
from mprm.models import checkpoint
from mprm.models.chat import frame_text
from mprm.models.checkpoint import fingerprint_of, read_prm_config
from mprm.models.families import Family
from mprm.models.internvl_config import PROCESSOR_TOKENS
from mprm.models.prm import PRM
from mprm.models.prompt import PROMPT_VERSION, PromptEncoder, step_tokens

VLLM_CONFIG, TEMPLATE, TOKENIZER, PROBE_FILE = "vllm.yaml", "prm.jinja", "vllm_tokenizer", "prm_probe.json"
ESCAPE = "\ue3a7\ue3a8"
"""Two characters of private use; the pair in data is itself escaped."""
IMAGE_NAMES = {"model_specific_special_tokens": PROCESSOR_TOKENS}
"""What InternVL's processor asks its tokenizer for, as ``tokenizer_config.json`` has it."""
PROBE = Chain(
    "A box holds 3 red and 4 blue balls. How many balls are in it?",
    ("There are 3 red balls and 4 blue balls.", "3 + 4 = 7, so the box holds 7 balls.", "The answer is \\boxed{9}."),
)
WRONG_PROBE = Chain(
    "What is 12 times 12?",
    ("12 times 12 is 12 plus 12.", "12 plus 12 is 25.", "The answer is 144.", "So it is even."),
)
CONTENT = "\n".join(
    line.strip()
    for line in r"""
    {%- set state = namespace(question=false, lead="\nProcess: ") -%}
    {%- set content = [{"type": "text", "text": messages[0].content}] if messages[0].content is string
        else messages[0].content -%}
    {{- BEFORE -}}
    {%- for part in content -%}
    {%- if part.type != "text" -%}
    {{- IMAGE if state.question else IMAGE + IMAGE_END -}}
    {%- else -%}
    {%- set text = part.text.rstrip() if loop.last else part.text -%}
    {{- text if state.question else "Question: " + text.lstrip() -}}
    {%- set state.question = true -%}
    {%- endif -%}
    {%- endfor -%}
    {{- "" if state.question else "Question: " -}}
    {%- for message in messages[1:] -%}
    {%- for part in ([{"text": message.content}] if message.content is string else message.content) -%}
    {{- state.lead + part.text.strip() + STEP -}}
    {%- set state.lead = "\n\n" -%}
    {%- endfor -%}
    {%- endfor -%}
    {{- AFTER -}}
    """.splitlines()
)


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Config):
    """Write what vLLM needs to serve a trained model: settings, chat template, tokenizer, processor.

    They go into the model's folder, or with --out into one of their own with the weights, a LoRA run's merged.
    """

    for_: Annotated[Literal["vllm"], output("Server.")] = "vllm"
    out: Annotated[str | None, output("Folder to write, weights included; a LoRA run needs it.", "DIR")] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    force: Force = False


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Chains with the model's own scores; a client that gets others speaks with another model."""

    fingerprints: list[str]
    """Of the folder that was exported, and of the one that is served."""
    chains: list[tuple[str, list[str], list[float]]]
    """Question, steps and their scores, without those of truncated steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """Where the export lies, and how to start the server."""

    folder: str
    files: tuple[str, ...]
    command: str


@takes(ExportConfig)
def export(run: str | Path, config: ExportConfig | None = None, **options: Any) -> ExportSummary:
    """Write what vLLM needs to serve the model in a folder; the settings come last.

    That the exported tokenizer and template give the ids of the prompt here, of a literal ``<prm>`` in a step too, is
    checked before anything is written.
    """
    config = ExportConfig.of(config, options)
    source = Path(run).expanduser()
    folder = source if config.out is None else Path(config.out).expanduser()
    is_adapter = (source / "adapter_config.json").is_file()
    if config.out is None and is_adapter:
        raise ConfigError(f"{run} is a LoRA adapter; name a folder for the merged weights with --out DIR")
    if config.out is not None and folder.resolve() == source.resolve():
        raise ConfigError(f"{config.out} is the model's own folder; leave out --out to write beside its weights")
    encoder = load_encoder(source)
    check_can_serve(source, encoder)
    if config.out is not None and folder.is_dir() and any(folder.iterdir()) and not config.force:
        raise OutputExistsError(
            f"{config.out} holds files already; name another folder, or replace them with --force"
        )
    for name in (VLLM_CONFIG, TEMPLATE, PROBE_FILE):
        check_overwrite(str(folder / name), force=config.force)
    weights = read_prm_config(source).base if is_adapter else str(source)
    dtype = _stored_dtype(Path(str(weights))) if config.dtype == "auto" else config.dtype
    template, checked = chat_template(encoder), TemporaryFolder()
    _write_tokenizer(checked.path, encoder, template)
    prm = PRM.from_pretrained(source, device=config.device, dtype=dtype)
    if config.out is not None:
        folder.mkdir(parents=True, exist_ok=True)
        prm.save_pretrained(folder)
    files = _write_processor(folder, encoder)
    if config.out is not None:
        checkpoint.write_prm_config(folder, replace(prm.config, files=checkpoint.tokenizer_hashes(folder)))
    shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    shutil.copytree(checked.path, folder / TOKENIZER)
    scores = prm.score_many([PROBE, WRONG_PROBE])
    probe = Probe(
        fingerprints=[fingerprint_of(source), fingerprint_of(folder)],
        chains=[
            (chain.question, list(chain.steps), [score for score in row if not math.isnan(score)])
            for chain, row in zip((PROBE, WRONG_PROBE), scores, strict=True)
        ],
    )
    embeddings = prm.model.get_input_embeddings().weight
    is_tied = prm.model.get_output_embeddings().weight.data_ptr() == embeddings.data_ptr()
    settings = vllm_settings(folder.resolve(), encoder, is_tied=is_tied, dtype=dtype, text=prm.model.config)
    texts = {TEMPLATE: template, PROBE_FILE: msgspec.json.encode(probe).decode() + "\n", VLLM_CONFIG: settings}
    for name, text in texts.items():
        with atomic_write(str(folder / name)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return ExportSummary(
        folder=str(folder),
        files=(*files, f"{TOKENIZER}/", *texts),
        command=f"vllm serve --config {folder / VLLM_CONFIG}",
    )


def serve(run: str | Path, vllm_options: Sequence[str] = ()) -> NoReturn:
    """Become ``vllm serve`` with an exported model, and these further options; this process ends."""
    settings = Path(run).expanduser() / VLLM_CONFIG
    if not settings.is_file():
        raise InputNotFoundError(f"{settings} is not there; write it with mprm export {run} --for vllm")
    program = shutil.which("vllm") or shutil.which("vllm", path=str(Path(sys.executable).parent))
    if program is None:
        start = f"in an environment of its own: pip install vllm, then vllm serve --config {settings}"
        raise MissingDependencyError(f"vLLM is not installed here; {start}")
    sys.stdout.flush()
    os.execv(program, ["vllm", "serve", "--config", str(settings), *vllm_options])


def load_encoder(folder: str | Path, image_root: str | Path | None = None) -> PromptEncoder:
    """The prompt encoder of a trained model, without its weights."""
    config = read_prm_config(folder)
    is_adapter = (Path(folder) / "adapter_config.json").is_file()
    base = config.base if is_adapter and config.base else str(folder)
    checkpoint.need_torch()
    family = checkpoint.family_of(base)
    tokenizer, processor = checkpoint.load_processors(base, family, config.image_settings)
    tokens = step_tokens(tokenizer, step=config.step_token, positive=config.positive, negative=config.negative)
    prompt = config.max_length, image_root, config.prompt_layout, config.prompt_version
    return PromptEncoder(tokenizer, processor, family, tokens, *prompt)


def check_can_serve(folder: str | Path, encoder: PromptEncoder) -> None:
    """Raise an error for a model that the exported template cannot ask."""
    if encoder.layout != "user" or encoder.version != PROMPT_VERSION:
        found = f"prompt layout {encoder.layout}, version {encoder.version}"
        raise ConfigError(f"{folder} has {found}; the server's template is of layout user, version {PROMPT_VERSION}")
    if encoder.family.name not in ("qwen2_5_vl", "internvl", "text"):
        raise ConfigError(f"{folder}: serving is for Qwen2.5-VL, InternVL and text models; score it with --model")


def image_placeholder(family: Family) -> str:
    """What vLLM replaces by an image's tokens."""
    tokens = family.image_tokens
    return tokens[1] if family.name == "internvl" else "".join(tokens)  # InternVL's processor adds first and last


def chat_template(encoder: PromptEncoder) -> str:
    """Jinja that renders messages to the text of the prompt."""
    before, after = frame_text(encoder.tokenizer)
    step = encoder.tokenizer.convert_ids_to_tokens(encoder.tokens.prm)
    texts = {"BEFORE": before, "AFTER": after, "STEP": step}
    texts |= {"IMAGE_END": encoder.family.image_end, "IMAGE": image_placeholder(encoder.family)}
    head = "{#- mprm's prompt: the user's message is the question, each part of the others a step -#}\n"
    pattern = re.compile(rf"\b({'|'.join(texts)})\b")
    return head + pattern.sub(lambda found: json.dumps(texts[found[0]], ensure_ascii=False), CONTENT.strip()) + "\n"


def escape_pattern(tokenizer: Any = None) -> re.Pattern[str]:
    """Characters after which text needs an `ESCAPE`: where an added token begins; without a tokenizer, all."""
    if tokenizer is None:
        return re.compile(".", re.DOTALL)
    texts = sorted({ESCAPE, *tokenizer.get_added_vocab(), *tokenizer.all_special_tokens})
    return re.compile(f"(?={'|'.join(map(re.escape, texts))}).", re.DOTALL)


def pooling_messages(chain: Chain, pattern: re.Pattern[str], images: Callable[[int], Any]) -> list[dict[str, Any]]:
    """The chain as messages for the exported template; ``images`` gives the part of an image by its index."""

    def part(text: str) -> dict[str, Any]:
        text = text.encode("utf-8", "replace").decode()
        return {"type": "text", "text": pattern.sub(lambda found: found[0] + ESCAPE, text)}

    pieces = place_images(chain.question.strip(), len(chain.images)) or [""]
    content = [images(piece) if isinstance(piece, int) else part(piece) for piece in pieces]
    steps = [part(step.strip()) for step in chain.steps]
    return [{"role": "user", "content": content}, {"role": "assistant", "content": steps}]


def vllm_settings(folder: Path, encoder: PromptEncoder, *, is_tied: bool, dtype: str, text: Any) -> str:
    """The text of ``vllm.yaml``."""
    tokens, tokenizer = encoder.tokens, encoder.tokenizer
    answers = tokenizer.convert_ids_to_tokens([tokens.no, tokens.yes])
    tied: dict[str, Any] = {"tie_word_embeddings": is_tied}
    is_text = encoder.family.name == "text"
    overrides = {"classifier_from_token": answers, "method": "from_2_way_softmax"}
    overrides |= tied if is_text else {"text_config": tied}
    # what follows the last step is beyond the length that steps are truncated to
    longest = getattr(text.get_text_config(), "max_position_embeddings", None) or encoder.max_length
    values: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": str(folder / TOKENIZER),
        "runner": "pooling",
        "convert": "classify",
        "hf-overrides": overrides,
        "pooler-config": {"task": "token_classify", "pooling_type": "STEP", "step_tag_id": tokens.prm},
        "chat-template": str(folder / TEMPLATE),
        "chat-template-content-format": "openai",
        "dtype": dtype,
        "max-model-len": min(longest, encoder.max_length + encoder.n_end_tokens),
        "host": "127.0.0.1",
    }
    if not is_text:
        values["limit-mm-per-prompt"] = {"video": 0}
    if encoder.family.name == "internvl":  # several images of a chain share a budget of tiles, which a request sets
        values["trust-request-mm-kwargs"] = True
    lines = (f"{name}: {_yaml(value)}\n" for name, value in values.items())
    return "# Made by mprm export; vllm serve --config takes it, and further options win.\n" + "".join(lines)


def _yaml(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if isinstance(value, bool | int) else "'" + text.replace("'", "''") + "'"


def _stored_dtype(folder: Path) -> str:
    """The number format that ``config.json`` names; float32 where it is none that vLLM serves."""
    settings = json.loads((folder / "config.json").read_bytes())
    dtype = settings.get("dtype") or settings.get("torch_dtype")
    return str(dtype) if dtype in ("bfloat16", "float16") else "float32"


def _write_processor(folder: Path, encoder: PromptEncoder) -> tuple[str, ...]:
    """Write what the processor of vLLM wants beside the weights and is not there; what is there stays."""
    family, wanted = encoder.family, dict[str, dict[str, Any]]()
    if family.name == "internvl":
        length = int(encoder.image_processor.tokens_per_tile)
        wanted["processor_config.json"] = {"processor_class": "InternVLProcessor", "image_seq_length": length}
        wanted["video_preprocessor_config.json"] = {"video_processor_type": "InternVLVideoProcessor"}
        path = folder / "processor_config.json"
        found = json.loads(path.read_bytes()).get("image_seq_length", 256) if path.is_file() else length
        if found != length:
            raise ConfigError(f"{path}: image_seq_length is {found}; expected {length}, as config.json has it")
    elif family.name == "qwen2_5_vl":
        wanted["video_preprocessor_config.json"] = {"video_processor_type": "Qwen2VLVideoProcessor"}
    wanted = {name: values for name, values in wanted.items() if not (folder / name).is_file()}
    if family.name == "internvl" and not hasattr(encoder.tokenizer, "start_image_token"):
        if read_prm_config(folder).files:  # a checkpoint whose files must stay as training wrote them
            raise ConfigError(f"{folder}: its tokenizer must name the image tokens; export a copy with --out DIR")
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        wanted["tokenizer_config.json"] = settings | IMAGE_NAMES
    for name, values in wanted.items():
        with atomic_write(str(folder / name)) as temporary:
            temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return tuple(wanted)


def _write_tokenizer(folder: Path, encoder: PromptEncoder, template: str) -> None:
    """Write the tokenizer that deletes `ESCAPE`, checked against the prompt's ids."""
    from transformers import PreTrainedTokenizerFast

    encoder.tokenizer.save_pretrained(str(folder))
    path, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    pipeline, settings = json.loads(path.read_bytes()), json.loads(config.read_bytes())
    delete = {"type": "Replace", "pattern": {"String": ESCAPE}, "content": ""}
    normalizers = [delete] if pipeline["normalizer"] is None else [delete, pipeline["normalizer"]]
    pipeline["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    for token in pipeline["added_tokens"]:
        token["normalized"] = False  # else it would be looked for once more, after ESCAPE is gone
    path.write_text(json.dumps(pipeline, ensure_ascii=False), encoding="utf-8")
    # other classes build their own normalizer
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.pop("auto_map", None)
    if encoder.family.name == "internvl":
        settings |= IMAGE_NAMES
    config.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    served = PreTrainedTokenizerFast.from_pretrained(str(folder))
    check_same_ids(encoder, served, template)


def check_same_ids(encoder: PromptEncoder, served: Any, template: str) -> None:
    """Raise an error unless the served tokenizer gives the prompt's ids, of special tokens in data as well."""
    added = [*encoder.tokenizer.get_added_vocab(), ESCAPE, ESCAPE[0], ESCAPE[1]]
    hostile = Chain(f" {''.join(added)}? ", (" ".join(added), "", "a \n\n b", "\n".join(reversed(added))))
    for chain in (PROBE, WRONG_PROBE, hostile):
        for pattern in (escape_pattern(encoder.tokenizer), escape_pattern()):
            ids = rendered_ids(served, template, pooling_messages(chain, pattern, lambda _: {"type": "image"}))
            expected = encoder.tokenize(chain).input_ids
            if ids[: len(expected)] != expected:
                texts = served.decode(expected), served.decode(ids)
                index = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0)
                parts = " and ".join(repr(text[max(0, index - 20) : index + 20]) for text in texts)
                raise ConfigError(f"the tokenizer cannot be served: text that holds special tokens gives {parts}")


def rendered_ids(tokenizer: Any, template: str, messages: list[dict[str, Any]]) -> list[int]:
    """The ids of messages as vLLM tokenizes them, with a single placeholder for each image."""
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
