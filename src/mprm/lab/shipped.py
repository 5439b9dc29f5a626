"""The lab that the package ships: what `mprm lab make` made once, small enough to come along.

Records are compressed, weights are in bfloat16, and pictures are drawn from their problems' seeds when the lab
is opened.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import zstandard

from mprm.errors import ConfigError, InputNotFoundError
from mprm.lab.world import write_images
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX

RECORDS = ("corpus", "validation", "benchmark", "candidates")
"""Files of the lab, ``NAME.jsonl``."""
POLICIES = ("internvl", "qwen", "small")
"""Policies that reward models begin from; the small one is for machines without a GPU."""
SCORES = "scores/full.jsonl"
"""Step scores on the benchmark of a reward model that began from the small policy and learnt from all rollouts."""
LEVEL = 19
"""Of compression."""
WINDOW_LOG = 27
"""Rollouts of a problem repeat its words, and problems each other's: look back this far, in powers of two."""
MOST_BYTES = 25_000_000
"""Of all files together."""


def shipped_files() -> Traversable:
    """Where the package keeps them."""
    return files("mprm.lab") / "shipped"


def pack_lab(folder: str | Path, out: str | Path) -> dict[str, int]:
    """Pack a lab as `make_lab` leaves it; returns the bytes of each file written to ``out``."""
    source, target = Path(folder), Path(out)
    wanted = [source / f"{name}.jsonl" for name in RECORDS] + [source / SCORES]
    wanted += [source / "policies" / name for name in POLICIES]
    if missing := [str(path) for path in wanted if not path.exists()]:
        raise InputNotFoundError(f"{', '.join(missing)} not there; make the lab first: mprm lab make {folder}")
    target.mkdir(parents=True, exist_ok=True)
    written = {}
    for path in wanted:
        data = path.read_bytes() if path.is_file() else _tar(path)
        packed = _compressed(data)
        final = target / f"{path.name}{'.zst' if path.is_file() else '.tar.zst'}"
        with atomic_write(str(final)) as temporary:
            temporary.write_bytes(packed)
        written[final.name] = len(packed)
    if (n_bytes := sum(written.values())) > MOST_BYTES:
        raise ConfigError(f"the lab takes {n_bytes:,} bytes; {MOST_BYTES:,} may be shipped")
    return written


def open_lab(folder: str | Path, *, force: bool = False) -> list[str]:
    """Write the shipped lab into a folder, as `make_lab` would leave it, and draw its pictures.

    Returns
    -------
    The files of records.
    """
    target, source = Path(folder), shipped_files()
    packed = {name: source / f"{name}.jsonl.zst" for name in RECORDS}
    if not all(entry.is_file() for entry in packed.values()):
        raise InputNotFoundError("this installation ships no lab; make one on a GPU: mprm lab make DIR")
    for name in RECORDS:
        refuse_existing(str(target / f"{name}.jsonl"), force=force)
    images: set[str] = set()
    written = []
    for name, entry in packed.items():
        data = _decompressed(entry.read_bytes())
        images.update(_images_of(data))
        final = target / f"{name}.jsonl"
        final.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(str(final)) as temporary:
            temporary.write_bytes(data)
        written.append(str(final))
    for name in POLICIES:
        with as_file(source / f"{name}.tar.zst") as path:
            _untar(path, target / "policies")
    scores = target / SCORES
    scores.parent.mkdir(exist_ok=True)
    with atomic_write(str(scores)) as temporary:
        temporary.write_bytes(_decompressed((source / f"{scores.name}.zst").read_bytes()))
    # who reads the scores finds the model's name there
    Path(f"{scores}{MANIFEST_SUFFIX}").write_bytes(msgspec.json.encode({"config": {"model": scores.stem}}))
    write_images(sorted(images), target / "images")
    return written


def _images_of(lines: bytes) -> Iterator[str]:
    for line in lines.splitlines():
        record = msgspec.json.decode(line)
        named = record.get("image") or record["images"]
        yield from [named] if isinstance(named, str) else named


def _compressed(data: bytes) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW_LOG, enable_ldm=True)
    return zstandard.ZstdCompressor(compression_params=settings).compress(data)


def _decompressed(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).decompress(data)


def _tar(folder: Path) -> bytes:
    """The folder as one file, the same bytes whenever and by whomever it is packed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as bundle:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(f"{folder.name}/{path.name}")
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                bundle.addfile(entry, content)
    return out.getvalue()


def _untar(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(_decompressed(path.read_bytes()))) as bundle:
        bundle.extractall(folder, filter="data")
