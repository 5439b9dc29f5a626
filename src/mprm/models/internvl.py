"""``mprm convert-internvl``: a published InternVL2.5 checkpoint for transformers' native class.

The published checkpoints come with code of their own. None of it is run: the weights are renamed and their
fused tensors split, config and tokenizer are rewritten.

"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mprm.errors import DataError, MprmError
from mprm.models.checkpoint import need_torch
from mprm.models.internvl_config import (
    END,
    IMAGE_CONTEXT,
    SYSTEM_MESSAGES,
    generation_settings,
    native_config,
    processor_files,
    read_remote_config,
)
from mprm.models.internvl_tokenizer import build_tokenizer
from mprm.models.internvl_weights import (
    Entry,
    Source,
    bytes_of,
    check_layers,
    check_paths,
    check_source,
    layout_of,
    main_dtype,
    naming,
    new_folder,
    read_source,
    write_marker,
    write_weights,
)

HEADS = ("language_model.output.weight", "language_model.lm_head.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was converted."""

    src: str
    dst: str
    language_model: str
    """Type of the native language model."""
    n_source_tensors: int
    n_tensors: int
    n_parameters: int
    n_bytes: int
    dtype: str
    files: tuple[str, ...]
    """The weight files."""
    image_token_id: int
    vocab_size: int
    notes: tuple[str, ...]
    """What the native class does otherwise, each in a sentence."""


def convert_internvl(
    src: str | Path,
    dst: str | Path,
    *,
    dtype: str | None = None,
    force: bool = False,
    max_shard_size: str | int = "5GB",
    on_file: Callable[[str], Any] | None = None,
) -> Report:
    """Map a published InternVL2.5 checkpoint to transformers' ``InternVLForConditionalGeneration``.

    Parameters
    ----------
    src
        Folder of the checkpoint: config, .safetensors files, tokenizer. Its language model is InternLM2 or Qwen2.
    dst
        Folder to make. It appears whole or not at all.
    dtype
        float32, bfloat16 or float16; each tensor keeps its type when None.
    force
        Replace an earlier conversion at ``dst``; a folder with anything else in it is never replaced.
    max_shard_size
        Largest weight file; as much memory is needed.
    on_file
        Called with the name of each weight file before it is written.
    """
    need_torch()
    source_path, target = Path(src).expanduser(), Path(dst).expanduser()
    max_shard_bytes = bytes_of(max_shard_size)
    check_paths(source_path, target, force=force)
    plan = _checked(source_path, dtype=dtype)
    with new_folder(target) as folder:
        written = write_weights(
            plan.source, plan.layout, folder, dtype=dtype, max_shard_bytes=max_shard_bytes, on_file=on_file
        )
        with naming(folder / "config.json"):
            plan.config.save_pretrained(folder)
        with naming(folder / "tokenizer.json"):
            plan.tokenizer.save_pretrained(folder)
        for name, content in plan.files.items():
            with naming(folder / name):
                (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_marker(folder)
    return Report(
        src=str(src),
        dst=str(dst),
        language_model=plan.config.text_config.model_type,
        n_source_tensors=len(plan.source.tensors),
        n_tensors=written.n_tensors,
        n_parameters=written.n_parameters,
        n_bytes=written.n_bytes,
        dtype=main_dtype(plan.source, dtype),
        files=written.files,
        image_token_id=plan.config.image_token_id,
        vocab_size=plan.config.text_config.vocab_size,
        notes=plan.notes,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that a conversion writes, found good."""

    source: Source
    layout: tuple[Entry, ...]
    config: Any
    tokenizer: Any
    files: dict[str, dict[str, Any]]
    notes: tuple[str, ...]


def _checked(src: Path, *, dtype: str | None) -> _Plan:
    """Read everything but the weights themselves, and stop where anything does not fit."""
    remote = read_remote_config(src)
    text = remote["llm_config"]
    tokenizer = build_tokenizer(
        src, vocab_size=text["vocab_size"], system_message=SYSTEM_MESSAGES[remote["template"]]
    )
    source = read_source(src)
    check_layers(source, remote, src)
    has_head = any(name in source.tensors or name in source.unreadable for name in HEADS)
    says_tied = bool(text.get("tie_word_embeddings", False))
    try:
        config = native_config(
            remote,
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_CONTEXT),
            is_tied=says_tied and not has_head,
            dtype=main_dtype(source, dtype),
        )
        layout = layout_of(config)
    except MprmError:
        raise
    # transformers and torch raise whatever they stumble over: KeyError, RuntimeError, validation errors of their own
    except Exception as error:
        raise DataError(
            f"{src / 'config.json'}: transformers cannot set up the model that it describes"
            f" ({type(error).__name__}: {error}); download it again"
        ) from error
    check_source(source, layout, src)
    files = processor_files(remote, image_seq_length=config.image_seq_length)
    files["generation_config.json"] = generation_settings(
        src,
        end_id=tokenizer.convert_tokens_to_ids(END),
        bos_id=tokenizer.bos_token_id,
        pad_id=tokenizer.pad_token_id,
    )
    notes = tuple(_notes(remote, says_tied=says_tied, has_head=has_head))
    return _Plan(source, layout, config, tokenizer, files, notes)


def _notes(remote: dict[str, Any], *, says_tied: bool, has_head: bool) -> Iterator[str]:
    rate = remote["vision_config"].get("drop_path_rate", 0.0)
    if rate:
        yield f"vision_config.drop_path_rate {rate} is left out: the native vision tower has no stochastic depth"
    if says_tied and has_head:
        yield "the config ties the head to the embeddings, yet the checkpoint has a head of its own: kept, and untied"
