"""The folder of a converted checkpoint: it appears whole or not at all, and replaces only its like.

Which tensor of a published InternVL checkpoint is which of transformers' native class, both ways.

The weight files of a published checkpoint: checked as a whole, then rewritten a shard at a time.
"""

from __future__ import annotations

import errno
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mprm import __version__
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError, OutputExistsError
from mprm.models.internvl_config import read_json

if TYPE_CHECKING:
    from torch import Tensor


MARKER = "mprm_conversion.json"
"""Names every file that the conversion wrote; a folder with others in it is never replaced."""
SHOWN = 5
"""Files that a message names."""


def check_paths(src: Path, dst: Path, *, force: bool) -> None:
    """Stop before anything is read where input or output cannot be what was meant."""
    if not src.is_dir():
        raise InputNotFoundError(
            f"{src} is no folder; SRC is a downloaded checkpoint:"
            " hf download OpenGVLab/InternVL2_5-8B --local-dir InternVL2_5-8B"
        )
    inside, outside = src.resolve(), dst.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise ConfigError(f"{dst} and the source {src} lie in one another; choose another folder")
    if not dst.exists():
        return
    if not force:
        raise OutputExistsError(
            f"{dst} exists already; replace it with --force (in Python: force=True), or choose another name"
        )
    _check_strangers(dst)


def _check_strangers(dst: Path) -> None:
    """Stop unless the folder is empty, or holds what a conversion wrote and nothing else."""
    if not dst.is_dir():
        raise ConfigError(f"{dst} is no folder and is not replaced; choose another name")
    found = {path.name for path in dst.iterdir()}
    if not found:
        return
    written = _marked(dst)
    if written is None:
        raise ConfigError(
            f"{dst} is no converted checkpoint (no {MARKER} names its files) and is not replaced;"
            " choose another name, or remove it yourself"
        )
    strangers = sorted(found - written)
    if strangers:
        more = f" and {len(strangers) - SHOWN:,} more" if len(strangers) > SHOWN else ""
        raise ConfigError(
            f"{dst} holds what mprm convert-internvl did not write ({', '.join(strangers[:SHOWN])}{more})"
            " and is not replaced; choose another name, or remove it yourself"
        )


def _marked(dst: Path) -> set[str] | None:
    """The files that the folder's marker names; None where there is no such marker."""
    try:
        return {MARKER, *map(str, json.loads((dst / MARKER).read_text(encoding="utf-8"))["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_marker(folder: Path) -> None:
    """Write down that a conversion made the folder's files."""
    marker = {
        "mprm": __version__,
        "command": "convert-internvl",
        "files": sorted(path.name for path in folder.iterdir()),
    }
    with naming(folder / MARKER):
        (folder / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file when it cannot be written, as on a full device; the system's errors often do not."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    except Exception as error:
        # safetensors and tokenizers tell of the system's errors in their own ways
        if type(error) not in (SafetensorError, Exception):
            raise
        raise OSError(errno.EIO, str(error), str(path)) from error


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder beside ``final`` that takes its place when the block ends well, and is removed when it does not."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent) as outer:
        folder = Path(outer) / "new"
        folder.mkdir()
        try:
            yield folder
        except OSError as error:
            if error.filename is not None and Path(error.filename).parent == folder:
                error.filename = str(final / Path(error.filename).name)  # the temporary folder is gone in a moment
            raise
        old = Path(outer) / "old"
        if final.exists():
            final.replace(old)
        try:
            folder.replace(final)
        except OSError:
            if old.exists():
                old.replace(final)
            raise


Shape = tuple[int, ...]

_PARAMETER = r"(\.weight|\.bias|)$"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a module or a parameter stands in either layout; ``*`` is the number of a layer."""

    remote: str
    native: tuple[str, ...]
    """Several where the remote tensor holds them fused."""
    by_key_value_head: bool = False
    """The remote tensor is grouped by key/value heads; else it is one group."""


def _qkv(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}_proj" for name in "qkv")


_VIT, _TOWER = "vision_model.encoder.layers.*", "model.vision_tower.encoder.layer.*"
_REMOTE, _NATIVE = "language_model.model.layers.*", "model.language_model.layers.*"

VISION = (
    Rule("vision_model.embeddings.class_embedding", ("model.vision_tower.embeddings.cls_token",)),
    Rule("vision_model.embeddings.position_embedding", ("model.vision_tower.embeddings.position_embeddings",)),
    Rule("vision_model.embeddings.patch_embedding", ("model.vision_tower.embeddings.patch_embeddings.projection",)),
    Rule(f"{_VIT}.attn.qkv", _qkv(f"{_TOWER}.attention")),
    Rule(f"{_VIT}.attn.proj", (f"{_TOWER}.attention.projection_layer",)),
    Rule(f"{_VIT}.attn.q_norm", (f"{_TOWER}.attention.q_norm",)),
    Rule(f"{_VIT}.attn.k_norm", (f"{_TOWER}.attention.k_norm",)),
    Rule(f"{_VIT}.mlp.fc1", (f"{_TOWER}.mlp.fc1",)),
    Rule(f"{_VIT}.mlp.fc2", (f"{_TOWER}.mlp.fc2",)),
    Rule(f"{_VIT}.norm1", (f"{_TOWER}.layernorm_before",)),
    Rule(f"{_VIT}.norm2", (f"{_TOWER}.layernorm_after",)),
    Rule(f"{_VIT}.ls1", (f"{_TOWER}.lambda_1",)),
    Rule(f"{_VIT}.ls2", (f"{_TOWER}.lambda_2",)),
    Rule("mlp1.0", ("model.multi_modal_projector.layer_norm",)),
    Rule("mlp1.1", ("model.multi_modal_projector.linear_1",)),
    Rule("mlp1.3", ("model.multi_modal_projector.linear_2",)),
)
INTERNLM2 = (
    Rule("language_model.model.tok_embeddings", ("model.language_model.embed_tokens",)),
    Rule(f"{_REMOTE}.attention.wqkv", _qkv(f"{_NATIVE}.self_attn"), by_key_value_head=True),
    Rule(f"{_REMOTE}.attention.wo", (f"{_NATIVE}.self_attn.o_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w1", (f"{_NATIVE}.mlp.gate_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w3", (f"{_NATIVE}.mlp.up_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w2", (f"{_NATIVE}.mlp.down_proj",)),
    Rule(f"{_REMOTE}.attention_norm", (f"{_NATIVE}.input_layernorm",)),
    Rule(f"{_REMOTE}.ffn_norm", (f"{_NATIVE}.post_attention_layernorm",)),
    Rule("language_model.model.norm", ("model.language_model.norm",)),
    Rule("language_model.output", ("lm_head",)),
)
QWEN2 = (
    Rule("language_model.model.embed_tokens", ("model.language_model.embed_tokens",)),
    *(
        Rule(f"{_REMOTE}.{name}", (f"{_NATIVE}.{name}",))
        for name in (
            *_qkv("self_attn"),
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "input_layernorm",
            "post_attention_layernorm",
        )
    ),
    Rule("language_model.model.norm", ("model.language_model.norm",)),
    Rule("language_model.lm_head", ("lm_head",)),
)
RULES = {"llama": VISION + INTERNLM2, "qwen2": VISION + QWEN2}
"""By the native language model's type; InternLM2 is natively a Llama."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the remote layout and the native ones it holds."""

    remote: str
    native: tuple[str, ...]
    native_shapes: tuple[Shape, ...]
    n_groups: int

    @property
    def remote_shape(self) -> Shape:
        """Shape of the tensor in the published checkpoint."""
        return (sum(shape[0] for shape in self.native_shapes), *self.native_shapes[0][1:])

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        """The native tensors of a remote one."""
        import torch

        if len(self.native) == 1:
            return {self.native[0]: tensor}
        rows = [shape[0] // self.n_groups for shape in self.native_shapes]
        parts = torch.split(tensor.reshape(self.n_groups, sum(rows), *tensor.shape[1:]), rows, dim=1)
        return {name: part.flatten(0, 1).contiguous() for name, part in zip(self.native, parts, strict=True)}

    def fuse(self, state: Mapping[str, Tensor]) -> Tensor:
        """The remote tensor of the native ones."""
        import torch

        if len(self.native) == 1:
            return state[self.native[0]]
        found = [state[name] for name in self.native]
        parts = [part.reshape(self.n_groups, -1, *part.shape[1:]) for part in found]
        return torch.cat(parts, dim=1).flatten(0, 1)


def layout_of(config: Any) -> tuple[Entry, ...]:
    """Every tensor of the model that a native ``InternVLConfig`` describes, in the native model's order.

    Names and shapes are asked of transformers' class itself, so that none is left without a value.
    """
    import torch
    from transformers import InternVLForConditionalGeneration

    with torch.device("meta"):
        state = InternVLForConditionalGeneration(config).state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    text = config.text_config
    return match_rules(
        {name: tuple(tensor.shape) for name, tensor in state.items()},
        RULES[text.model_type],
        n_key_value_heads=text.num_key_value_heads,
    )


def match_rules(shapes: Mapping[str, Shape], rules: Sequence[Rule], *, n_key_value_heads: int) -> tuple[Entry, ...]:
    """The remote tensors that native ones of these names and shapes come from."""
    found: dict[tuple[str, Rule], dict[int, str]] = {}
    strangers = []
    for name in shapes:
        place = _place(name, tuple(rules))
        if place is None:
            strangers.append(name)
        else:
            remote, rule, part = place
            found.setdefault((remote, rule), {})[part] = name
    if strangers:
        raise MissingDependencyError(
            "this needs transformers 5.17 to 5.22; the one installed has parameters in InternVL that mprm does not"
            f" know: {', '.join(strangers)}"
        )
    entries = []
    for (remote, rule), parts in found.items():
        native = tuple(parts[number] for number in sorted(parts))
        n_groups = n_key_value_heads if rule.by_key_value_head else 1
        entries.append(Entry(remote, native, tuple(shapes[name] for name in native), n_groups))
    return tuple(entries)


def _place(native: str, rules: tuple[Rule, ...]) -> tuple[str, Rule, int] | None:
    """The remote name of a native one, its rule, and which of the rule's parts it is."""
    for pattern, rule, part in _patterns(rules):
        match = pattern.match(native)
        if match:
            *layer, parameter = match.groups()
            remote = rule.remote.replace("*", layer[0]) if layer else rule.remote
            return remote + parameter, rule, part
    return None


@cache
def _patterns(rules: tuple[Rule, ...]) -> list[tuple[re.Pattern[str], Rule, int]]:
    return [
        (re.compile(re.escape(template).replace(r"\*", r"(\d+)") + _PARAMETER), rule, part)
        for rule in rules
        for part, template in enumerate(rule.native)
    ]


def to_remote_layout(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """A native model's state dict in the names and fusions of the published checkpoints.

    Parameters
    ----------
    state
        ``model.state_dict()`` of an ``InternVLForConditionalGeneration``.
    config
        Its ``InternVLConfig``, with a Llama-type or Qwen2 language model.
    """
    return {entry.remote: entry.fuse(state) for entry in layout_of(config)}


def to_native_layout(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """The inverse of `to_remote_layout`."""
    return {name: tensor for entry in layout_of(config) for name, tensor in entry.split(state[entry.remote]).items()}


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights, as safetensors and as torch name them."""
N_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LAYERS = {"llm_config": "language_model.model.layers.", "vision_config": "vision_model.encoder.layers."}
"""Where the tensors of each part's layers stand, before their number."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor of the source lies and what it is."""

    path: Path
    shape: Shape
    dtype: str
    """As safetensors names it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Every tensor of a checkpoint, and what is wrong with its files."""

    tensors: dict[str, Stored]
    unreadable: frozenset[str]
    """Tensors that the index places in a file that cannot be read."""
    problems: tuple[str, ...]


def bytes_of(size: str | int) -> int:
    """Bytes in a size such as ``5GB``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B)", str(size).strip(), re.IGNORECASE)
    n_bytes = int(size) if isinstance(size, int) else 0
    if match and match[2].upper() in UNITS:
        n_bytes = int(float(match[1]) * UNITS[match[2].upper()])
    if n_bytes <= 0:
        raise ConfigError(f"max_shard_size is {size!r}; expected a number and a unit, such as 5GB or 500MB")
    return n_bytes


def read_source(src: Path) -> Source:
    """The names, shapes and types of all tensors; weights are not read."""
    placed = _placed(src)
    tensors: dict[str, Stored] = {}
    problems: list[str] = []
    unreadable: set[str] = set()
    for name in sorted(set(placed.values())) or [SINGLE]:
        listed = {tensor for tensor, file in placed.items() if file == name}
        try:
            found = _header(src / name)
        except (OSError, DataError) as error:
            problems.append(f"{name}: {error}; {len(listed) or 'all'} tensors cannot be read; download it again")
            unreadable |= listed
            continue
        if placed:
            problems += [f"{tensor}: {INDEX} places it in {name}, which lacks it" for tensor in listed - found.keys()]
            problems += [f"{tensor}: in {name}, where {INDEX} does not place it" for tensor in found.keys() - listed]
            unreadable |= listed - found.keys()
            found = {tensor: stored for tensor, stored in found.items() if tensor in listed}
        tensors |= found
    return Source(tensors, frozenset(unreadable), tuple(problems))


def _placed(src: Path) -> dict[str, str]:
    """The file of each tensor by the index; none where one file holds all."""
    if (src / INDEX).is_file():
        placed = read_json(src / INDEX).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise DataError(f"{src / INDEX}: no weight_map; expected the file of each tensor")
        for tensor, name in placed.items():
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.safetensors", name):
                raise DataError(
                    f"{src / INDEX}: {tensor} is placed in {name!r};"
                    " expected the plain name of a .safetensors file in the same folder"
                )
        return placed
    if (src / SINGLE).is_file():
        return {}
    pickled = sorted(path.name for path in src.glob("*.bin"))
    if pickled:
        raise DataError(
            f"{src} has its weights in {pickled[0]}: pickle files can run code and are not read;"
            " download the .safetensors files of the checkpoint"
        )
    raise InputNotFoundError(f"{src} has no weights: neither {INDEX} nor {SINGLE} is there")


def _header(path: Path) -> dict[str, Stored]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError("not there")
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {
                name: Stored(path, tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()
            }
    except SafetensorError as error:
        raise DataError(f"cut short or no safetensors file ({error})") from error


def check_layers(source: Source, remote: Mapping[str, Any], where: Path) -> None:
    """Stop when the config has other numbers of layers than the weights, before tables of all layers are made."""
    names = [*source.tensors, *source.unreadable]
    problems = []
    for part, prefix in LAYERS.items() if names else ():
        expected = remote[part]["num_hidden_layers"]
        found = {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}
        if len(found) != expected:
            problems.append(f"{part}.num_hidden_layers is {expected:,}; the weights have {len(found):,} layers")
    if problems or not names:
        _refuse([*source.problems, *problems] or ["there are no tensors"], where)


def _refuse(problems: Sequence[str], where: Path) -> NoReturn:
    lines = [f"{where}: {len(problems)} problems with the weights; nothing was written:", *problems]
    raise DataError("\n  ".join(lines))


def check_source(source: Source, layout: Sequence[Entry], where: Path) -> None:
    """Stop unless the checkpoint has exactly the expected tensors; names every one that is wrong."""
    expected = {entry.remote: entry.remote_shape for entry in layout}
    problems = list(source.problems)
    for name, shape in expected.items():
        stored = source.tensors.get(name)
        if stored is None:
            if name not in source.unreadable:
                problems.append(f"{name}: missing; expected shape {shape}")
        elif stored.shape != shape:
            problems.append(f"{name}: shape {stored.shape} in {stored.path.name}; expected {shape}")
        elif stored.dtype not in DTYPES:
            problems.append(f"{name}: type {stored.dtype} in {stored.path.name}; expected {' or '.join(DTYPES)}")
    problems += [
        f"{name}: unexpected, shape {stored.shape} in {stored.path.name}; the config has no place for it"
        for name, stored in source.tensors.items()
        if name not in expected
    ]
    if problems:
        _refuse(problems, where)


def main_dtype(source: Source, dtype: str | None) -> str:
    """The type the config names: the one asked for, or that of most weights."""
    if dtype is not None:
        if dtype not in N_BYTES:
            raise ConfigError(f"unknown dtype {dtype!r}; expected one of {', '.join(N_BYTES)}")
        return dtype
    sizes: dict[str, int] = {}
    for stored in source.tensors.values():
        sizes[stored.dtype] = sizes.get(stored.dtype, 0) + math.prod(stored.shape)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    return DTYPES.get(largest, "float32")  # others are refused with the tensors that have them


@dataclass(frozen=True, slots=True)
class Written:
    """The weight files that were made."""

    files: tuple[str, ...]
    n_tensors: int
    n_parameters: int
    n_bytes: int


def write_weights(
    source: Source,
    layout: Sequence[Entry],
    folder: Path,
    *,
    dtype: str | None,
    max_shard_bytes: int,
    on_file: Callable[[str], Any] | None = None,
) -> Written:
    """Write the native tensors; no more than one output file is in memory at a time.

    Parameters
    ----------
    dtype
        Type to cast to; None keeps each tensor's.
    on_file
        Called with the name of each file before it is written.
    """
    from safetensors.torch import save_file

    shards = list(_shards(source.tensors, layout, dtype=dtype, max_bytes=max_shard_bytes))
    placed: dict[str, str] = {}
    n_parameters = n_bytes = 0
    for number, entries in enumerate(shards, start=1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        if on_file is not None:
            on_file(name)
        tensors = _native_tensors(source, entries, dtype)
        with naming(folder / name):
            save_file(tensors, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(folder.stat().st_mode & 0o666)  # safetensors lets only the owner read
        placed |= dict.fromkeys(tensors, name)
        n_parameters += sum(tensor.numel() for tensor in tensors.values())
        n_bytes += sum(tensor.nbytes for tensor in tensors.values())
        del tensors  # before the next file's are read
    if len(shards) > 1:
        index = {"metadata": {"total_size": n_bytes, "total_parameters": n_parameters}, "weight_map": placed}
        with naming(folder / INDEX):
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return Written(tuple(dict.fromkeys(placed.values())), len(placed), n_parameters, n_bytes)


def _native_tensors(source: Source, entries: Sequence[Entry], dtype: str | None) -> dict[str, Any]:
    """The native tensors of some entries, by name."""
    import torch
    from safetensors import safe_open

    tensors: dict[str, Any] = {}
    opened: dict[Path, Any] = {}
    with ExitStack() as stack:
        for entry in entries:
            path = source.tensors[entry.remote].path
            if path not in opened:
                opened[path] = stack.enter_context(safe_open(path, "pt"))
            tensor = opened[path].get_tensor(entry.remote)
            tensors |= entry.split(tensor if dtype is None else tensor.to(getattr(torch, dtype)))
    return tensors


def _shards(
    tensors: Mapping[str, Stored], layout: Sequence[Entry], *, dtype: str | None, max_bytes: int
) -> Iterator[list[Entry]]:
    """The layout in runs that fit into a file each; a tensor larger than a file has one of its own."""
    shard: list[Entry] = []
    filled = 0
    for entry in layout:
        stored = tensors[entry.remote]
        n_bytes = math.prod(stored.shape) * N_BYTES[dtype or DTYPES[stored.dtype]]
        if shard and filled + n_bytes > max_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(entry)
        filled += n_bytes
    yield shard
