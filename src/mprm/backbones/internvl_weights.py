"""The weight files of a published checkpoint: checked as a whole, then rewritten a shard at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mprm.backbones.internvl_config import read_json
from mprm.backbones.internvl_folder import naming
from mprm.backbones.internvl_layout import Entry, Shape
from mprm.errors import ConfigError, DataError, InputNotFoundError

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
