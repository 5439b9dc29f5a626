"""What a reranking leaves in its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from mprm.reranking.figure import can_draw, write_figure
from mprm.reranking.markdown import markdown
from mprm.reranking.rerank import Reranking
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.files import corpus_files
from mprm.rollouts.manifest import hash_file, write_manifest
from mprm.rollouts.printable import printable


def metrics(found: Reranking) -> dict[str, Any]:
    """The content of ``metrics.json``; N as text."""
    return {
        "model": found.model,
        **asdict(found.config),
        "n": found.ns,
        "n_questions": len(found.chosen),
        "n_candidates": found.n_candidates,
        "n_failed": found.n_failed,
        "failed_share": found.failed_share,
        "n_answerless": found.n_answerless,
        "n_cut_steps": found.n_cut_steps,
        "n_unscored": found.n_unscored,
        "total": msgspec.to_builtins(found.measured.total, str_keys=True),
        "sources": msgspec.to_builtins(found.measured.sources, str_keys=True),
    }


def write(found: Reranking, folder: Path, *, candidates: Any, scores: str | Path | None) -> None:
    """Write chosen.jsonl, metrics.json with its manifest, metrics.md and, where Altair is installed, the figure."""
    encode = msgspec.json.Encoder().encode
    chosen_path = str(folder / "chosen.jsonl")
    with atomic_write(chosen_path) as temporary, temporary.open("wb") as lines:
        lines.writelines(encode(chosen) + b"\n" for chosen in found.chosen)
    title = f"Best of N: {printable(found.model)}"
    figures = write_figure(found.measured.total, folder, title=title) if can_draw() else []
    with atomic_write(str(folder / "metrics.md")) as temporary:
        text = markdown(found, figure=figures[0] if figures else None)
        temporary.write_text(text, encoding="utf-8")
    path = str(folder / "metrics.json")
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.format(encode(metrics(found)), indent=2) + b"\n")
        inputs = [_entry(file.path, file.n_bytes, is_remote=file.is_remote) for file in corpus_files(candidates)]
        if scores is not None:
            inputs.append(_entry(str(scores), Path(scores).expanduser().stat().st_size, is_remote=False))
        write_manifest(
            path,
            command="rerank",
            config={"model": found.model, **asdict(found.config), "n": found.ns},
            inputs=inputs,
            sources=found.sources,
            output={
                "path": path,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "chosen_xxh3_128": hash_file(chosen_path),
                "figures": figures,
            },
        )


def _entry(path: str, n_bytes: int, *, is_remote: bool) -> dict[str, Any]:
    return {"path": path, "n_bytes": n_bytes, "xxh3_128": None if is_remote else hash_file(path)}
