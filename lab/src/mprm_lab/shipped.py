"""The lab that the package ships: what ``mprm-lab make`` made once, small enough to come along.

Records are compressed, weights are in bfloat16, and pictures are drawn from their problems' seeds when the lab is
opened. The quick-start corpus of mprm is an excerpt of it, with its pictures.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec
import xxhash
import zstandard

from mprm.data import atomic_write, check_overwrite
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm_lab.folder import CANDIDATE_SCORES, RECORDS, SCORES, check_folders, image_names, whole_folder
from mprm_lab.world import draw, problem_named, write_images
from mprm_lab.world.rng import Rng

POLICIES = ("internvl", "qwen", "small")
"""Policies that reward models are trained from; the small one is for machines without a GPU."""
HASHES = "hashes.json"
"""XXH3-128 of every other shipped file."""
LEVEL = 19
"""Of compression."""
WINDOW_LOG = 27
"""Rollouts of a problem repeat its words, and problems each other's: look back this far, in powers of two."""
MAX_BYTES = 25_000_000
"""Of all files together."""
EXCERPT = "quickstart.tar.zst"
EXCERPT_SOURCES = (
    *("grid-sum", "grid-path", "grid-max", "grid-compare", "bars-total", "bars-second", "bars-above"),
    *("shapes-count", "shapes-lines", "shapes-points"),
)
"""Of the quick-start corpus."""
EXCERPT_QUESTIONS = 10
"""Of each of its sources, with all their rollouts."""
EXCERPT_SEED = 663
"""Of 2,000 seeds the one where the largest relative difference to the corpus is smallest, in error steps, mixed
rollouts, mean score and length."""


def shipped_files() -> Traversable:
    """The folder of the package that holds them."""
    return files("mprm_lab") / "shipped"


def pack_lab(folder: str | Path, out: str | Path) -> dict[str, int]:
    """Bytes of each file written to ``out``: the lab as `make_lab` leaves it, packed."""
    source, target = Path(folder).expanduser(), Path(out).expanduser()
    wanted = [source / name for name in (*(f"{name}.jsonl" for name in RECORDS), SCORES, CANDIDATE_SCORES)]
    wanted += [source / "policies" / name for name in POLICIES]
    if missing := [str(path) for path in wanted if not path.exists()]:
        raise InputNotFoundError(f"{', '.join(missing)} not there; make the lab first: mprm-lab make {folder}")
    packed = {}
    for path in wanted:
        contents = (
            path.read_bytes()
            if path.is_file()
            else tar({f"{path.name}/{file.name}": file.read_bytes() for file in sorted(path.iterdir())})
        )
        packed[path.name + (".zst" if path.is_file() else ".tar.zst")] = compressed(contents)
    if (n_bytes := sum(map(len, packed.values()))) > MAX_BYTES:
        raise ConfigError(f"the lab takes {n_bytes:,} bytes; {MAX_BYTES:,} may be shipped")
    target.mkdir(parents=True, exist_ok=True)
    hashes = {name: xxhash.xxh3_128_hexdigest(data) for name, data in packed.items()}
    packed[HASHES] = msgspec.json.format(msgspec.json.encode(hashes), indent=1) + b"\n"
    packed[EXCERPT] = quickstart_excerpt((source / "corpus.jsonl").read_bytes().splitlines())
    for name, data in packed.items():
        with atomic_write(str(target / name)) as temporary:
            temporary.write_bytes(data)
    return {name: len(data) for name, data in packed.items()}


def open_lab(folder: str | Path, *, force: bool = False) -> list[str]:
    """The files of records, after writing the shipped lab into a folder and drawing its pictures.

    The folder is as `make_lab` leaves it, but for snapshots and plans.
    """
    target, source = Path(folder).expanduser(), shipped_files()
    data = [f"{name}.jsonl" for name in RECORDS]
    records = {path: f"{Path(path).name}.zst" for path in (*data, SCORES, CANDIDATE_SCORES)}
    policies = {name: f"{name}.tar.zst" for name in POLICIES}
    if not all((source / packed).is_file() for packed in [HASHES, *records.values(), *policies.values()]):
        raise InputNotFoundError("this installation ships no lab; make one on a GPU: mprm-lab make DIR")
    for path in [*records, *(f"policies/{name}/config.json" for name in policies)]:
        check_overwrite(str(target / path), force=force)
    check_folders(target / "images", target / "policies")
    unpacked = {path: unpack(source, packed) for path, packed in (records | policies).items()}
    images = {image for path in data for image in image_names(unpacked[path].splitlines(), path)}
    if force:  # they may be of another version's problems
        for image in images:
            (target / "images" / image).unlink(missing_ok=True)
    write_images(sorted(images), target / "images")
    for name in policies:
        archive = io.BytesIO(unpacked[name])
        with whole_folder(target / "policies" / name) as partial, tarfile.open(fileobj=archive) as bundle:
            for member in bundle:
                file: Any = bundle.extractfile(member)
                (partial / Path(member.name).name).write_bytes(file.read())
    for path in records:  # last: without them there is no lab
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(str(target / path)) as temporary:
            temporary.write_bytes(unpacked[path])
    return [str(target / path) for path in data]


def unpack(folder: Traversable, name: str) -> bytes:
    """A shipped file, if it is the one that was packed."""
    data = (folder / name).read_bytes()
    try:
        is_intact = msgspec.json.decode((folder / HASHES).read_bytes())[name] == xxhash.xxh3_128_hexdigest(data)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise DataError(f"{folder / HASHES} is damaged ({error}); install mprm-lab anew") from error
    if not is_intact:
        raise DataError(f"{folder / name} is damaged (it is not what was packed); install mprm-lab anew")
    return zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).decompress(data)


def compressed(data: bytes) -> bytes:
    """The data as Zstandard packs them best."""
    settings = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW_LOG, enable_ldm=True)
    return zstandard.ZstdCompressor(compression_params=settings).compress(data)


def tar(files: Mapping[str, bytes]) -> bytes:
    """The files as one tar archive, always the same bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as bundle:
        for name, contents in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(contents)
            bundle.addfile(entry, io.BytesIO(contents))
    return out.getvalue()


def quickstart_excerpt(corpus: Iterable[bytes]) -> bytes:
    """The quick-start corpus of mprm, packed: all rollouts of some questions, a file a source, and their pictures."""
    rollouts: dict[str, list[dict[str, Any]]] = {}
    for record in map(msgspec.json.decode, corpus):
        rollouts.setdefault(record["image"], []).append(record)
    rng = Rng(EXCERPT_SEED)
    annotations: dict[str, bytes] = {}
    pictures: dict[str, bytes] = {}
    for source in EXCERPT_SOURCES:
        chosen = rng.shuffled([image for image in rollouts if image.startswith(f"{source}/")])[:EXCERPT_QUESTIONS]
        for image in sorted(chosen):
            for record in rollouts[image]:
                kept = {name: value for name, value in record.items() if name != "source"}
                path = f"annotations/{source}.jsonl"
                annotations[path] = annotations.get(path, b"") + msgspec.json.encode(kept) + b"\n"
            picture = io.BytesIO()
            # not compressed: the archive does it better
            draw(problem_named(image)).save(picture, "PNG", compress_level=0)
            pictures[f"images/{image}"] = picture.getvalue()
    return compressed(tar(annotations | pictures))
