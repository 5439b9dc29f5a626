"""The lab that the package ships: what `mprm lab make` made once, small enough to come along.

Records are compressed, weights are in bfloat16, and pictures are drawn from their problems' seeds when the lab
is opened.

"""

from __future__ import annotations

import io
import shutil
import tarfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import xxhash
import zstandard

from mprm.data.corpus import MANIFEST_SUFFIX
from mprm.data.output import atomic_write, check_overwrite
from mprm.errors import ConfigError, DataError, InputNotFoundError, MprmError
from mprm_lab.pictures import check_folder, pictures_of
from mprm_lab.world import write_images

RECORDS = ("corpus", "validation", "benchmark", "candidates")
"""Files of the lab, ``NAME.jsonl``."""
POLICIES = ("internvl", "qwen", "small")
"""Policies that reward models begin from; the small one is for machines without a GPU."""
HASHES = "hashes.json"
"""XXH3-128 of every other shipped file."""
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
    return files("mprm_lab") / "shipped"


def pack_lab(folder: str | Path, out: str | Path) -> dict[str, int]:
    """Pack a lab as `make_lab` leaves it; returns the bytes of each file written to ``out``."""
    source, target = Path(folder).expanduser(), Path(out).expanduser()
    wanted = [source / f"{name}.jsonl" for name in RECORDS] + [source / SCORES]
    wanted += [source / "policies" / name for name in POLICIES]
    if missing := [str(path) for path in wanted if not path.exists()]:
        raise InputNotFoundError(f"{', '.join(missing)} not there; make the lab first: mprm lab make {folder}")
    packed = {}
    for path in wanted:
        data, ending = (path.read_bytes(), ".zst") if path.is_file() else (_tar(path), ".tar.zst")
        packed[path.name + ending] = _compressed(data)
    if (n_bytes := sum(map(len, packed.values()))) > MOST_BYTES:
        raise ConfigError(f"the lab takes {n_bytes:,} bytes; {MOST_BYTES:,} may be shipped")
    target.mkdir(parents=True, exist_ok=True)
    hashes = {name: xxhash.xxh3_128_hexdigest(data) for name, data in packed.items()}
    packed[HASHES] = msgspec.json.format(msgspec.json.encode(hashes), indent=1) + b"\n"
    for name, data in packed.items():
        with atomic_write(str(target / name)) as temporary:
            temporary.write_bytes(data)
    return {name: len(data) for name, data in packed.items()}


def open_lab(folder: str | Path, *, force: bool = False) -> list[str]:
    """Write the shipped lab into a folder, as `make_lab` would leave it, and draw its pictures.

    Returns
    -------
    The files of records.
    """
    target, source = Path(folder).expanduser(), shipped_files()
    records = {f"{name}.jsonl": f"{name}.jsonl.zst" for name in RECORDS} | {SCORES: f"{Path(SCORES).name}.zst"}
    policies = {name: f"{name}.tar.zst" for name in POLICIES}
    if not all((source / packed).is_file() for packed in [HASHES, *records.values(), *policies.values()]):
        raise InputNotFoundError("this installation ships no lab; make one on a GPU: mprm lab make DIR")
    for path in [*records, *(f"policies/{name}/config.json" for name in policies)]:
        check_overwrite(str(target / path), force=force)
    check_folder(target / "images", target / "policies")
    unpacked = {path: _unpacked(source, packed) for path, packed in (records | policies).items()}
    images = {image for path in records if path != SCORES for image in pictures_of(unpacked[path].splitlines(), path)}
    if force:  # they may be of another version's problems
        for image in images:
            (target / "images" / image).unlink(missing_ok=True)
    write_images(sorted(images), target / "images")
    for name in policies:
        _untar(unpacked[name], target / "policies" / name)
    for path in records:  # last: without them there is no lab
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(str(target / path)) as temporary:
            temporary.write_bytes(unpacked[path])
    # who reads the scores finds the model's name there
    Path(f"{target / SCORES}{MANIFEST_SUFFIX}").write_bytes(
        msgspec.json.encode({"config": {"model": Path(SCORES).stem}})
    )
    return [str(target / path) for path in records if path != SCORES]


def _compressed(data: bytes) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW_LOG, enable_ldm=True)
    return zstandard.ZstdCompressor(compression_params=settings).compress(data)


def _unpacked(folder: Traversable, name: str) -> bytes:
    """A shipped file, if it is the one that was packed."""
    data = (folder / name).read_bytes()
    try:
        is_whole = msgspec.json.decode((folder / HASHES).read_bytes())[name] == xxhash.xxh3_128_hexdigest(data)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise DataError(f"{folder / HASHES} is damaged ({error}); install mprm anew") from error
    if not is_whole:
        raise DataError(f"{folder / name} is damaged (it is not what was packed); install mprm anew")
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


def _untar(data: bytes, folder: Path) -> None:
    """Write a packed folder, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as bundle:
            bundle.extractall(partial, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        (partial / folder.name).replace(folder)
    except OSError as error:
        raise MprmError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
