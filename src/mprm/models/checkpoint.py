"""``mprm.json``: what a checkpoint was taught, so that it is asked the same way.

Which weights a folder holds, told apart without reading all of them.

Load a checkpoint: which backbone it is, its tokenizer and image processor, its weights.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm import __version__
from mprm.errors import ConfigError, InputNotFoundError, MissingDependencyError, MprmError
from mprm.models.chat import encode_chat
from mprm.models.families import Family, InternVL, Qwen25VL, Text
from mprm.models.prompt import MAX_LENGTH, NEGATIVE, POSITIVE, PRM_TOKEN, PROMPT_VERSION

CARD = "mprm.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PRMConfig:
    """The part of a process reward model that its weights do not say."""

    prompt_version: int = PROMPT_VERSION
    step_token: str = PRM_TOKEN
    positive: str = POSITIVE
    negative: str = NEGATIVE
    max_length: int = MAX_LENGTH
    image_settings: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    """How steps were labelled: hard at tau, or soft."""
    base_fingerprint: str | None = None
    """Of the checkpoint that training began with."""
    files: dict[str, int] = field(default_factory=dict)
    """Sizes of the files beside it, when the checkpoint was whole."""
    base: str | None = None
    """The checkpoint that training began with; where the adapter's base weights lie."""
    data: dict[str, Any] = field(default_factory=dict)
    """Inputs with their hashes, counts read, trained on and dropped."""
    mprm: str = __version__


def write_prm_config(folder: str | Path, card: PRMConfig) -> None:
    """Write ``mprm.json`` into the checkpoint's folder."""
    text = msgspec.json.format(msgspec.json.encode(asdict(card)), indent=2)
    (Path(folder) / CARD).write_bytes(text + b"\n")


def read_prm_config(folder: str | Path) -> PRMConfig:
    """The card of a checkpoint, refused where this version of mprm would ask it otherwise than it was taught."""
    path = Path(folder) / CARD
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {CARD}: it was not trained by mprm train. To score with other weights, write one with"
            " mprm.models.checkpoint.write_prm_config, naming the prompt and tokens they were trained with."
        )
    try:
        if "prompt_version" not in msgspec.json.decode(path.read_bytes(), type=dict):
            raise ConfigError(f"{path} names no prompt_version; expected what mprm train writes")
        card = msgspec.json.decode(path.read_bytes(), type=PRMConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; expected what mprm train writes") from error
    if card.prompt_version != PROMPT_VERSION:
        raise ConfigError(
            f"{path}: the model was trained with prompt version {card.prompt_version}, this mprm {__version__} asks"
            f" with version {PROMPT_VERSION}; score it with the mprm that trained it ({card.mprm})"
        )
    return card


SAMPLE = 1 << 20


def fingerprint_of(folder: str | Path) -> str:
    """XXH3-128 of the checkpoint's configuration and of its weights' sizes, headers, first and last megabytes.

    Training moves every weight, so that the sample changes; gigabytes need not be read.
    """
    digest = xxhash.xxh3_128()
    folder = Path(folder)
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json", folder / "mprm.json"]):
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(SAMPLE))
            handle.seek(max(0, size - SAMPLE))
            digest.update(handle.read(SAMPLE))
    return digest.hexdigest()


FAMILIES: dict[str, Family] = {"qwen2_5_vl": Qwen25VL(), "internvl": InternVL()}
"""By the checkpoint's ``model_type``; every other type is a text model."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """A vision-language or text model with what it takes to speak to it."""

    family: Family
    model: Any
    tokenizer: Any
    image_processor: Any

    def encode_chat(self, text: str, images: Any = (), *, begun: str = "") -> dict[str, Any]:
        """Tensors for ``generate``; see `mprm.models.chat.encode_chat`."""
        return encode_chat(self, text, images, begun=begun)


def family_of(path: str | Path) -> Family:
    """Which backbone the checkpoint at ``path`` is."""
    config_path = Path(path) / "config.json"
    if not config_path.is_file():
        fetch = "; a model is a folder on this machine, such as hf download ORGANISATION/NAME --local-dir NAME makes"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not Path(path).exists():
            fetch = f"; from the Hugging Face hub it comes with: hf download {path} --local-dir {Path(path).name}"
        raise InputNotFoundError(f"{path} is no checkpoint: {config_path} is not there{fetch}")
    try:
        kind = json.loads(config_path.read_text(encoding="utf-8")).get("model_type", "")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{config_path} is not the configuration of a model: {error}") from error
    if kind == "internvl_chat":
        raise ConfigError(
            f"{path} is an InternVL checkpoint in its remote-code layout; turn it into the native one with"
            f" mprm convert-internvl {path} {Path(path).name}-native"
        )
    return FAMILIES.get(kind, Text())


def need_torch() -> None:
    """Stop with the remedy where the training packages are not installed."""
    try:
        import torch  # noqa: F401
        from transformers.utils import logging
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs torch and transformers ({error.name} is missing): install mprm with its extra [train]"
        ) from error
    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def load_tokenizer(path: str | Path) -> Any:
    """The checkpoint's fast tokenizer; its chat template may lie in a file of the processor's."""
    from transformers import AutoTokenizer

    with _named_errors(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    beside = Path(path) / "chat_template.json"
    if not tokenizer.chat_template and beside.is_file():
        tokenizer.chat_template = json.loads(beside.read_text(encoding="utf-8"))["chat_template"]
    return tokenizer


@contextmanager
def _named_errors(path: str | Path, what: str) -> Iterator[None]:
    """Whatever transformers stumbles over in a folder becomes one line that names it."""
    try:
        yield
    except MprmError:
        raise
    except Exception as error:  # broken JSON, broken weights, unknown types: each library has errors of its own
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path}: the {what} cannot be loaded: {first}") from error


def check_complete(path: str | Path, info: dict[str, Any]) -> None:
    """Stop when weights are missing or left over: a model with random ones would score all the same."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(map(str, info.get(kind) or ()))
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ConfigError(
                f"{path}: the weights do not fit config.json; {kind.replace('_', ' ')}: {', '.join(names[:5])}{more}"
            )


def resolve_device(device: str) -> str:
    """``auto`` is the GPU where there is one."""
    import torch

    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"device {device!r} cannot be used: {first}") from error
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_name(device: str) -> str:
    """What the device is called: that of a GPU by its maker."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def resolve_dtype(dtype: str, device: str) -> Any:
    """``auto`` is bfloat16 on a GPU and float32 elsewhere."""
    import torch

    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype == "auto":
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    if dtype not in names:
        raise ConfigError(f"unknown dtype {dtype!r}; expected auto, {', '.join(names)}")
    return names[dtype]


def load_backbone(
    path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str | None = None,
    image_settings: dict[str, int] | None = None,
) -> Backbone:
    """The checkpoint in a folder, of whichever family it is.

    Parameters
    ----------
    path
        Folder in Hugging Face format. Nothing of it is executed.
    dtype, device
        ``auto``: the GPU where there is one, bfloat16 there and float32 elsewhere.
    attention
        Attention implementation by transformers' name; its default when None.
    image_settings
        Instead of the paper's: ``min_pixels`` and ``max_pixels`` (Qwen2.5-VL), ``max_patches`` (InternVL).
    """
    need_torch()
    import torch

    family = family_of(path)
    device = resolve_device(device)
    options = {} if attention is None else {"attn_implementation": attention}
    with _named_errors(path, "model"):
        model, info = family.model_class().from_pretrained(
            str(path),
            dtype=resolve_dtype(dtype, device),
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    check_complete(path, info)
    if device.startswith("cuda"):
        # its plans are made anew for every shape of a batch, which takes longer than the batch itself
        torch.backends.cuda.enable_cudnn_sdp(False)
    if not shards_weights():
        model.to(device)
    settings = image_settings or {}
    if unknown := settings.keys() - family.image_settings.keys():
        raise ConfigError(
            f"{', '.join(sorted(unknown))}: no setting of {family.name} checkpoints; expected"
            f" {', '.join(family.image_settings) or 'none, they see no images'}"
        )
    if min(settings.values(), default=1) < 1:
        raise ConfigError(f"image settings must be at least 1, got {settings}")
    with _named_errors(path, "image processor"):
        processor = family.image_processor(str(path), settings)
    return Backbone(family, model.eval(), load_tokenizer(path), processor)


def shards_weights() -> bool:
    """Whether DeepSpeed splits the weights over the ranks while they are loaded."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    return bool(is_deepspeed_zero3_enabled())
