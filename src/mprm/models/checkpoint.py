"""Load a checkpoint: its family, weights, tokenizer and image processor, and how it was trained."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import xxhash

from mprm import __version__
from mprm.config import MAX_LENGTH, NEGATIVE, POSITIVE, PRMLayout, PromptLayout
from mprm.data.format import PRM_TOKEN
from mprm.data.output import atomic_write, hash_file
from mprm.errors import ConfigError, InputNotFoundError, MissingDependencyError, MprmError
from mprm.models.chat import Backbone, chat_template_of
from mprm.models.families import FAMILIES, OTHER_VLMS, PROCESSOR_FILES, Family, OtherVLM
from mprm.models.prompt import PROMPT_VERSION

PRM_CONFIG = "prm_config.json"
OLD_PRM_CONFIG = "mprm.json"
"""The file's name in checkpoints of earlier versions."""
FINGERPRINT_BYTES = 1 << 20
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention implementations that a checkpoint's config may name."""
INTERNVL_TEXT = ("llama", "qwen2", "qwen3")
"""Types of language models of an InternVL."""
SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
"""For every ``from_pretrained``: without the first, transformers asks on stdin whether to run a checkpoint's code."""

VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
)
TOKENIZER = ("tokenizer_config.json", "merges.txt", "added_tokens.json", "special_tokens_map.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json")
TOKENIZER_FILES = (*VOCABULARIES, *TOKENIZER, *TEMPLATES, *PROCESSOR_FILES)
"""Files beside the weights that decide what the model reads."""
TOKENIZER_REMEDY = "its files are missing or not of this model: copy them, tokenizer.json first, from the original"


@dataclass(frozen=True, slots=True, kw_only=True)
class PRMConfig:
    """The part of a process reward model that its weights do not say."""

    prompt_version: int = PROMPT_VERSION
    prompt_layout: PromptLayout = "user"
    step_token: str = PRM_TOKEN
    positive: str = POSITIVE
    negative: str = NEGATIVE
    max_length: Annotated[int, msgspec.Meta(ge=1)] = MAX_LENGTH
    image_settings: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    loss: str = "cross-entropy"
    """With beta-binomial, a third row of the head reads out the concentration of each step's Beta distribution."""
    base_fingerprint: str | None = None
    files: dict[str, int | str] = field(default_factory=dict)
    """XXH3-128 of the files beside it, when the checkpoint was complete; of a finished run, of `TOKENIZER_FILES`."""
    base: str | None = None
    """The checkpoint that training started from; an adapter's base weights."""
    base_licence: dict[str, str] = field(default_factory=dict)
    """What its card says of its licence."""
    data: dict[str, Any] = field(default_factory=dict)
    """Inputs with their hashes, counts read, trained on and dropped."""
    mprm: str = __version__


def prm_config_path(folder: str | Path) -> Path | None:
    """The config file of a process reward model, by its present or its old name; None where there is none."""
    paths = (Path(folder) / name for name in (PRM_CONFIG, OLD_PRM_CONFIG))
    return next((path for path in paths if path.is_file()), None)


def write_prm_config(folder: str | Path, config: PRMConfig) -> None:
    """Write ``prm_config.json`` into the checkpoint's folder."""
    with atomic_write(str(Path(folder) / PRM_CONFIG)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(config)), indent=2) + b"\n")


def checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a training run, oldest first, complete or not."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in Path(run).glob("checkpoints/checkpoint-*")}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]))


def read_prm_config(folder: str | Path, prompt_layout: PromptLayout | None = None) -> PRMConfig:
    """The config of a process reward model, whose layout ``prompt_layout`` must be; a folder without one needs it."""
    path = prm_config_path(folder)
    if path is None and (Path(folder) / "train.json").is_file():
        saved = [checkpoint for checkpoint in checkpoints(folder) if prm_config_path(checkpoint)]
        state = f"its last checkpoint, {saved[-1]}, can be used as a model" if saved else "it has no checkpoint"
        raise ConfigError(f"{folder} is a training run that is not finished; {state}. Go on: mprm train … --resume")
    if path is None and prompt_layout is not None:
        return PRMConfig(prompt_layout=prompt_layout)
    if path is None:
        known = f"--prompt-layout paper for the paper's code, or --prm-layout {', '.join(get_args(PRMLayout))}"
        reason = f"it has no {PRM_CONFIG}; name its layout: {known}"
        raise ConfigError(f"{folder} was not trained by mprm train: {reason}")
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        config = msgspec.convert({"prompt_version": 0, **fields}, PRMConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}; expected what mprm train writes") from error
    if not 1 <= config.prompt_version <= PROMPT_VERSION:
        known = f"expected 1 to {PROMPT_VERSION}; score it with the mprm that trained it, {config.mprm}"
        raise ConfigError(f"{path}: trained with prompt version {config.prompt_version}; {known}")
    if prompt_layout not in (None, config.prompt_layout):
        reason = f"trained with prompt layout {config.prompt_layout}; it cannot be scored with {prompt_layout}"
        raise ConfigError(f"{path}: {reason}. Leave out --prompt-layout.")
    read = {name: before for name, before in config.files.items() if name in TOKENIZER_FILES}
    if damage := damage_of(folder, read):
        raise ConfigError(f"{folder}: {damage}; scores would differ. Restore it, or copy the run again.")
    return config


def tokenizer_hashes(folder: str | Path) -> dict[str, int | str]:
    """XXH3-128 of the tokenizer's, the template's and the processor's files in a folder, by name."""
    files = [path for name in sorted(TOKENIZER_FILES) if (path := Path(folder) / name).is_file()]
    return {path.name: hash_file(str(path)) for path in files}


def damage_of(folder: str | Path, files: dict[str, int | str]) -> str | None:
    """What is wrong with files whose hash, or size, was recorded; None where nothing is."""
    for name, before in files.items():
        path = Path(folder) / name
        if not path.is_file():
            return f"{name} is missing"
        if before != (path.stat().st_size if isinstance(before, int) else hash_file(str(path))):
            return f"{name} has changed since it was written"
    return None


def fingerprint_of(folder: str | Path, *, is_pushed: bool = False) -> str:
    """XXH3-128 of the configuration and of the weight files' sizes, first and last megabytes: training moves all."""
    digest = xxhash.xxh3_128()
    own = () if is_pushed else (PRM_CONFIG, OLD_PRM_CONFIG)  # which mprm push changes
    patterns = ("config.json", *own, "*.safetensors")
    for path in sorted(path for name in patterns for path in Path(folder).glob(name) if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(FINGERPRINT_BYTES))
            handle.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(handle.read(FINGERPRINT_BYTES))
    return digest.hexdigest()


def family_of(path: str | Path) -> Family:
    """The family of the checkpoint in a folder."""
    config_path = Path(path) / "config.json"
    if not config_path.is_file():
        expected = "name a folder that has one, or a model on the hub, ORGANISATION/NAME"
        raise InputNotFoundError(f"{path} is no checkpoint: {config_path} is not there; {expected}")
    try:
        config = msgspec.json.decode(config_path.read_bytes(), type=dict)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{config_path} is not the configuration of a model: {error}") from error
    model_type = config.get("model_type", "")
    if not isinstance(model_type, str):
        raise ConfigError(f"{config_path}: model_type is {model_type!r:.100}; expected text")
    if model_type == "internvl_chat":
        command = f"mprm convert-internvl {path} --out {Path(path).name}-native"
        raise ConfigError(f"{path} is an InternVL checkpoint in its remote-code layout; convert it: {command}")
    text = config.get("text_config")
    text_type = text.get("model_type", "qwen2") if isinstance(text, dict) else "qwen2"  # as transformers has it
    if model_type == "internvl" and text_type not in INTERNVL_TEXT:
        found = f"an InternVL whose language model is of type {text_type!r:.100}"
        raise ConfigError(f"{config_path}: {found}; expected {', '.join(INTERNVL_TEXT)}, no mixture of experts")
    for part in _objects(config):
        names = [part[key] for key in part if key.endswith("attn_implementation")]
        names += [name for value in names if isinstance(value, dict) for name in value.values()]
        odd = [name for name in names if name not in (None, *ATTENTION) and not isinstance(name, dict)]
        if odd:  # transformers takes any other name for code on the Hugging Face hub
            raise ConfigError(f"{config_path}: attention {odd[0]!r:.100}; expected one of {', '.join(ATTENTION)}")
        if part is not config and "auto_map" in part:  # transformers would ask whether to run it
            raise ConfigError(f"{config_path}: a part of the model has code of its own (auto_map), never run")
    if model_type in FAMILIES or model_type not in _vlm_types():
        return FAMILIES.get(model_type, Family())
    if model_type not in OTHER_VLMS:
        known = ", ".join((*FAMILIES, *OTHER_VLMS))
        raise ConfigError(
            f"{config_path}: models of type {model_type} see images in a way that mprm does not know; use {known}"
        )
    return OtherVLM(model_type)


def _vlm_types() -> Collection[str]:
    """The types of models that take images and text, as transformers knows them."""
    need_torch()
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    types: Collection[str] = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return types


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The object and all objects in it."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_weights(path: str | Path, name: str = "model") -> list[str]:
    """The files of a checkpoint's or adapter's weights; an error unless they are numbers only. Asks no hub."""
    folder = Path(path)
    index = folder / f"{name}.safetensors.index.json"
    with named_errors(index, "index"):
        files = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else set()
    if odd := sorted(str(file) for file in files if not re.fullmatch(r"[^/\\]+\.safetensors", str(file))):
        raise ConfigError(f"{index}: weights in {odd[0]!r:.100}; expected .safetensors files beside it")
    if (folder / f"{name}.safetensors").is_file():  # which transformers prefers
        return [f"{name}.safetensors"]
    if not files:
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        found = f"{pickles[0]} is a pickle, which can run code, and is not read" if pickles else "it has none"
        raise ConfigError(f"{path}: expected weights in {name}.safetensors; {found}. Download .safetensors files.")
    return [*sorted(files), index.name]


def need_torch() -> None:
    """Raise an error with the remedy where torch and transformers are not installed."""
    try:
        import torch  # noqa: F401
        from transformers.utils import logging
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs torch and transformers ({error.name} is missing): install mprm with its extra [train]"
        ) from error
    if not sys.stderr.isatty():
        logging.disable_progress_bar()


@contextmanager
def named_errors(path: str | Path, what: str) -> Iterator[None]:
    """Turn whatever transformers raises into one line that names the folder."""
    try:
        yield
    except MprmError:
        raise
    except Exception as error:  # broken JSON, broken weights, unknown types: each library has errors of its own
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "contains custom code" in first:
            first = "it needs code of its own (auto_map), which is never run; use a model type that transformers has"
        if first.startswith("Couldn't instantiate the backend tokenizer"):
            first = f"there is none; {TOKENIZER_REMEDY}"
        raise ConfigError(f"{path}: the {what} cannot be loaded: {first}") from error


def check_complete(path: str | Path, info: dict[str, Any]) -> None:
    """Raise an error where weights are missing or left over: a model with random ones would score all the same."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if names := sorted(map(str, info.get(kind) or ())):
            what = f"{len(names)} {kind.replace('_', ' ')}: {', '.join(names[:5])}"
            raise ConfigError(f"{path}: the weights do not fit config.json; {what}")


def resolve_device(device: str) -> str:
    """``auto`` is the GPU where there is one."""
    import torch

    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ConfigError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_name(device: str) -> str:
    """The device, a GPU by its model's name."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def load_backbone(
    path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str | None = None,
    image_settings: dict[str, int] | None = None,
    model_class: Any = None,
) -> Backbone:
    """The model in a folder in Hugging Face format, with its tokenizer and image processor; none of its code is run.

    ``auto`` is the GPU where there is one, with bfloat16 there and float32 elsewhere; ``attention`` an implementation
    by transformers' name; ``image_settings`` replace those of `Family.image_settings`, ``model_class`` the family's.
    """
    need_torch()
    import torch
    from transformers.integrations import is_deepspeed_zero3_enabled

    family = family_of(path)
    if (Path(path) / "adapter_config.json").is_file():
        raise ConfigError(f"{path} is an adapter on another model, not a whole checkpoint; merge the two first")
    check_weights(path)
    device = resolve_device(device)
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise ConfigError(f"unknown dtype {dtype!r}; expected auto, float32, bfloat16, float16")
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    options = SAFE | ({} if attention is None else {"attn_implementation": attention})
    with named_errors(path, "model"):
        model, info = (model_class or family.model_class()).from_pretrained(
            str(path), dtype=dtype, output_loading_info=True, use_safetensors=True, **options
        )
    check_complete(path, info)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        # InternVL's -HF configs do not say so: growing the vocabulary would put the embeddings in the head's place
        model.config.tie_word_embeddings = False
    if device.startswith("cuda"):
        # it plans anew for every shape of a batch, which takes longer than the batch itself
        torch.backends.cuda.enable_cudnn_sdp(False)
    if not is_deepspeed_zero3_enabled():  # it has sharded the weights over the ranks while they were loaded
        model.to(device)
    tokenizer, processor = load_processors(path, family, image_settings)
    with named_errors(path, "image processor"):
        if not is_deepspeed_zero3_enabled():  # its weights are not here
            family.check(model, processor)
    return Backbone(family, model.eval(), tokenizer, processor)


def load_processors(
    path: str | Path, family: Family, image_settings: dict[str, int] | None = None
) -> tuple[Any, Any]:
    """Tokenizer and image processor of the checkpoint in a folder, which need no weights."""
    from transformers import AutoTokenizer

    settings = image_settings or {}
    if unknown := settings.keys() - family.image_settings.keys():
        known = ", ".join(family.image_settings) or "none"
        raise ConfigError(f"{', '.join(sorted(unknown))}: no setting of this type of model; it takes {known}")
    if min(settings.values(), default=1) < 1:
        raise ConfigError(f"image settings must be at least 1, got {settings}")
    with named_errors(path, "image processor"):
        processor = family.image_processor(str(path), settings)
    with named_errors(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(path), **SAFE)
        decoded = str(tokenizer.decode(tokenizer.encode("so 1 is 1", add_special_tokens=False)))
    if "".join(decoded.split()) != "so1is1":  # without files, transformers makes up an empty vocabulary
        raise ConfigError(f"{path}: the tokenizer turns 'so 1 is 1' into {decoded!r:.100}; {TOKENIZER_REMEDY}")
    if not tokenizer.chat_template or isinstance(family, OtherVLM):
        tokenizer.chat_template = chat_template_of(path) or tokenizer.chat_template
    return tokenizer, processor
