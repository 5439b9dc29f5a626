"""``mprm convert-internvl``: a published InternVL checkpoint for transformers' own class.

None of its code is run: tensors are renamed, fused ones split, and config and tokenizer rewritten.
"""

from __future__ import annotations

import errno
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from mprm import __version__
from mprm.config import Config, Dtype, Force, output, takes
from mprm.data.output import files_of_manifest
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm.models import internvl_config
from mprm.models.internvl_config import raise_problems, read_json
from mprm.progress import Progress, silent

INDEX_FILE = "model.safetensors.index.json"
MANIFEST_FILE = "mprm_conversion.json"
"""Lists every file that the conversion wrote; a folder with other files is never replaced."""
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Number formats of weights: safetensors' name to torch's."""


@dataclass(frozen=True, kw_only=True)
class ConvertInternVLConfig(Config):
    """Rewrite a published InternVL2.5, 3 or 3.5 checkpoint for transformers' own class, without running its code."""

    dtype: Dtype = "auto"
    max_shard_size: Annotated[str, output("Largest weight file and memory use.", "SIZE")] = "5GB"
    force: Force = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"(?=.*[1-9])\d+(\.\d+)? *[KMGT]B", self.max_shard_size, re.IGNORECASE):
            raise ConfigError(f"max_shard_size is {self.max_shard_size!r}; expected a size such as 5GB or 500MB")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSummary:
    """What was converted."""

    source: str
    out: str
    language_model: str
    n_source_tensors: int
    n_tensors: int
    n_parameters: int
    n_bytes: int
    dtype: str
    files: tuple[str, ...]
    image_token_id: int
    vocab_size: int
    notes: tuple[str, ...]
    """Differences between the native model and the published one."""


@takes(ConvertInternVLConfig)
def convert_internvl(
    source: str | Path,
    out: str | Path,
    config: ConvertInternVLConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> ConversionSummary:
    """Rewrite a published InternVL2.5, 3 or 3.5 checkpoint for ``InternVLForConditionalGeneration``.

    The output folder appears complete or not at all.
    """
    from mprm.models.checkpoint import need_torch

    config = ConvertInternVLConfig.of(config, options)
    need_torch()
    source, out = Path(source).expanduser(), Path(out).expanduser()
    check_folders(source, out, force=config.force)

    published = internvl_config.read_published_config(source)
    text = published["llm_config"]
    tokenizer = internvl_config.build_tokenizer(source, vocab_size=text["vocab_size"])
    headers = read_headers(source)
    has_head = any(f"language_model.{name}.weight" in headers for name in ("output", "lm_head"))
    says_tied = bool(text.get("tie_word_embeddings", False))
    is_tied = says_tied and not has_head
    largest = max(headers.values(), key=lambda header: math.prod(header.shape))
    dtype = DTYPES.get(largest.dtype, "float32") if config.dtype == "auto" else config.dtype
    try:
        native = internvl_config.native_config(published, tokenizer, is_tied=is_tied, dtype=dtype)
        layout = native_layout(native)
    except Exception as error:  # transformers and torch raise KeyError, RuntimeError, validation errors of their own
        reason = f"transformers cannot set up the model that it describes ({type(error).__name__}: {error})"
        raise DataError(f"{source / 'config.json'}: {reason}; download it again") from error
    check_tensors(headers, layout, source)

    settings = internvl_config.json_files(published, native, tokenizer, source)
    with new_folder(out) as path_of:
        index = write_weights(headers, layout, path_of, config, progress)
        weight_files = tuple(dict.fromkeys(index["weight_map"].values()))
        if len(weight_files) > 1:
            settings[INDEX_FILE] = index
        native.save_pretrained(path_of("config.json").parent)
        folder = path_of("tokenizer.json").parent
        tokenizer.save_pretrained(folder)
        files = sorted([*settings, *(path.name for path in folder.iterdir())])
        settings[MANIFEST_FILE] = {"mprm": __version__, "command": "convert-internvl", "files": files}
        for name, content in settings.items():
            path_of(name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    notes = []
    if rate := published["vision_config"].get("drop_path_rate", 0.0):
        notes.append(f"vision_config.drop_path_rate {rate} is left out: the native model has no stochastic depth")
    if says_tied and has_head:
        notes.append("the config ties the head to the embeddings, but the weights have a separate head: kept untied")
    return ConversionSummary(
        source=str(source),
        out=str(out),
        language_model=native.text_config.model_type,
        n_source_tensors=len(headers),
        n_tensors=len(layout),
        n_parameters=index["metadata"]["total_parameters"],
        n_bytes=index["metadata"]["total_size"],
        dtype=dtype,
        files=weight_files,
        image_token_id=native.image_token_id,
        vocab_size=native.text_config.vocab_size,
        notes=tuple(notes),
    )


COMMON_RENAMES = (
    (r"^model\.vision_tower\.", "vision_model."),
    (r"\.cls_token$", ".class_embedding"),
    (r"\.position_embeddings$", ".position_embedding"),
    (r"\.patch_embeddings\.projection\.", ".patch_embedding."),
    (r"\.encoder\.layer\.", ".encoder.layers."),
    (r"\.attention\.[qkv]_proj\.", ".attn.qkv."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.attention\.([qk]_norm)\.", r".attn.\1."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"^model\.multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^model\.multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^model\.multi_modal_projector\.linear_2\.", "mlp1.3."),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head\.", "language_model.lm_head."),
)
INTERNLM2_RENAMES = (
    (r"\.embed_tokens\.", ".tok_embeddings."),
    (r"\.self_attn\.[qkv]_proj\.", ".attention.wqkv."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.lm_head\.", ".output."),
)
RENAMES = {"llama": COMMON_RENAMES + INTERNLM2_RENAMES, "qwen2": COMMON_RENAMES, "qwen3": COMMON_RENAMES}
"""From native to published names, applied in order, by type of the native language model."""


class TensorRows(NamedTuple):
    """The rows of a published tensor that make up a native one."""

    published: str
    ranges: list[tuple[int, int]]
    shape: tuple[int, ...]


def native_layout(config: Any) -> dict[str, TensorRows]:
    """Where each tensor of the native model comes from; names and shapes are those of transformers' class itself.

    The vision tower's fused ``qkv`` is the rows of q, of k, of v; InternLM2's ``wqkv`` that for each key/value head.
    """
    import torch
    from transformers import InternVLForConditionalGeneration

    with torch.device("meta"):
        state = InternVLForConditionalGeneration(config).state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    fused: dict[str, list[str]] = {}
    for native in state:
        published = native
        for pattern, replacement in RENAMES[config.text_config.model_type]:
            published = re.sub(pattern, replacement, published)
        fused.setdefault(published, []).append(native)
    layout = {}
    for published, natives in fused.items():
        natives.sort(key=lambda native: (".k_proj." in native) + 2 * (".v_proj." in native))  # q, k, v
        n_groups = config.text_config.num_key_value_heads if ".wqkv." in published else 1
        group_size = sum(len(state[native]) for native in natives) // n_groups
        offset = 0
        for native in natives:
            n = len(state[native]) // n_groups
            ranges = [(i * group_size + offset, i * group_size + offset + n) for i in range(n_groups)]
            layout[native] = TensorRows(published, ranges, tuple(state[native].shape))
            offset += n
    return layout


class TensorHeader(NamedTuple):
    """File, shape and number format (as safetensors names it) of a published tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_headers(source: Path) -> dict[str, TensorHeader]:
    """Shape and number format of every tensor in the folder's .safetensors files; weights are not read."""
    from safetensors import SafetensorError, safe_open

    files = sorted(source.glob("*.safetensors"))
    listed = read_json(source / INDEX_FILE, is_optional=True).get("weight_map", {})
    if not isinstance(listed, dict):
        raise DataError(f"{source / INDEX_FILE}: no weight_map; expected the file of each tensor")
    missing = sorted(set(map(str, listed.values())) - {path.name for path in files})
    problems = [f"{name}: not there, though {INDEX_FILE} lists it; download it again" for name in missing]
    headers: dict[str, TensorHeader] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    if name in headers:
                        problems.append(f"{name}: in {headers[name].file.name} and in {path.name}; expected once")
                    rows = file.get_slice(name)
                    headers[name] = TensorHeader(path, tuple(rows.get_shape()), str(rows.get_dtype()))
        except SafetensorError as error:
            problems.append(f"{path.name}: cut short or no safetensors file ({error}); download it again")
    if not headers and not problems:
        raise InputNotFoundError(
            f"{source} has no tensors in .safetensors files (.bin files are pickles, which can run code, and are not"
            " read); download the .safetensors files of the checkpoint"
        )
    raise_problems(f"{source}: {len(problems)} problems with the weights; nothing was written:", problems)
    return headers


def check_tensors(headers: dict[str, TensorHeader], layout: dict[str, TensorRows], source: Path) -> None:
    """Raise unless the checkpoint has exactly the expected tensors; names every one that is wrong."""
    import transformers

    expected: dict[str, tuple[int, ...]] = {}
    for rows in layout.values():
        n_rows = expected.get(rows.published, (0,))[0]
        expected[rows.published] = (n_rows + rows.shape[0], *rows.shape[1:])
    problems = []
    for name in dict.fromkeys([*expected, *headers]):
        shape, header = expected.get(name), headers.get(name)
        if header is None:
            problems.append(f"{name}: missing; transformers {transformers.__version__} expects shape {shape}")
        elif shape is None:
            problems.append(f"{name}: unexpected, shape {header.shape} in {header.file.name}")
        elif header.shape != shape:
            problems.append(f"{name}: shape {header.shape} in {header.file.name}; expected {shape}")
        elif header.dtype not in DTYPES:
            problems.append(f"{name}: type {header.dtype} in {header.file.name}; expected {' or '.join(DTYPES)}")
    raise_problems(f"{source}: {len(problems)} problems with the weights; nothing was written:", problems)


def write_weights(
    headers: dict[str, TensorHeader],
    layout: dict[str, TensorRows],
    path_of: Callable[[str], Path],
    config: ConvertInternVLConfig,
    progress: Progress,
) -> dict[str, Any]:
    """The index of the weight files that were written; only one file's tensors are in memory at a time."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import safe_open
    from safetensors.torch import save_file

    meta = {}
    for native, rows in layout.items():
        dtype = DTYPES[headers[rows.published].dtype] if config.dtype == "auto" else config.dtype
        meta[native] = torch.empty(rows.shape, dtype=getattr(torch, dtype), device="meta")
    split = split_torch_state_dict_into_shards(meta, max_shard_size=config.max_shard_size)
    with progress("converting tensors", len(layout)) as advance:
        for file_name, natives in split.filename_to_tensors.items():
            tensors = {}
            for native in natives:
                rows = layout[native]
                with safe_open(headers[rows.published].file, "pt") as file:
                    stored = file.get_slice(rows.published)
                    tensor = torch.cat([stored[start:stop] for start, stop in rows.ranges])
                tensors[native] = tensor.to(meta[native].dtype)
                advance(1, file_name)
            path = path_of(file_name)
            save_file(tensors, path, metadata={"format": "pt"})
            path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read
    metadata = {**split.metadata, "total_parameters": sum(tensor.numel() for tensor in meta.values())}
    return {"metadata": metadata, "weight_map": split.tensor_to_filename}


def check_folders(source: Path, out: Path, *, force: bool) -> None:
    """Raise before anything is read where input or output cannot be what was meant."""
    if not source.is_dir():
        raise InputNotFoundError(f"{source}: no folder; hf download OpenGVLab/InternVL2_5-8B --local-dir {source}")
    source_path, out_path = source.resolve(), out.resolve()
    if source_path.is_relative_to(out_path) or out_path.is_relative_to(source_path):
        raise ConfigError(f"{out} and the source {source} lie in one another; choose another folder")
    if not out.exists():
        return
    if not force:
        raise OutputExistsError(f"{out} exists already; replace it with --force (force=True), or choose another name")
    if not out.is_dir():
        raise ConfigError(f"{out} is no folder and is not replaced; choose another name")
    others = {path.name for path in out.iterdir()} - {MANIFEST_FILE, *files_of_manifest(str(out / MANIFEST_FILE))}
    if others:
        raise ConfigError(
            f"{out} holds files that {MANIFEST_FILE} does not list as written by mprm convert-internvl"
            f" ({', '.join(sorted(others)[:5])}{f' and {len(others) - 5:,} more' if len(others) > 5 else ''})"
            " and is not replaced; choose another name, or remove it yourself"
        )


@contextmanager
def new_folder(final: Path) -> Iterator[Callable[[str], Path]]:
    """Gives the paths of files in a folder beside ``final``, which takes its name when the block succeeds."""
    from safetensors import SafetensorError

    names = [""]

    def path_of(name: str) -> Path:
        names.append(name)
        return folder / name

    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent) as outer:
        folder, old = Path(outer) / "new", Path(outer) / "old"
        folder.mkdir()
        try:
            yield path_of
        except Exception as error:
            # a full device names no file; safetensors raises a class of its own then, tokenizers a bare Exception
            path = str(final / names[-1])
            if type(error) in (SafetensorError, Exception):
                raise OSError(errno.EIO, str(error), path) from error
            if isinstance(error, OSError) and error.errno and str(error.filename or folder).startswith(str(folder)):
                error.filename = path
            raise
        if final.exists():
            final.replace(old)
        try:
            folder.replace(final)
        except OSError:
            if old.exists():
                old.replace(final)
            raise
