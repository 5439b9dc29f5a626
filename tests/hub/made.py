"""A run, an adapter, an evaluation and subsets, made once for the tests of cards and uploads."""

from __future__ import annotations

from pathlib import Path

import mprm
from mprm.training import train
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records
from tests.training.test_train import config_for

HOSTILE = "a|b <b>_x_ [c](http:d) `e`\n---\n*f* 'g' \"h\": #i"
"""A source's name with what YAML, Markdown and HTML take for their own."""
BASE_CARD = "---\nlanguage: [en]\nlicense: apache-2.0\n---\n\n# A base model\n"


def make(root: Path) -> None:
    """``run`` and ``eval`` of a subset ``bis80.jsonl``, ``lora``, and ``subsets`` of two sources, one of them hostile."""
    save_tiny("text", root / "text")
    (root / "text" / "README.md").write_text(BASE_CARD)
    save_tiny("qwen2_5_vl", root / "qwen2_5_vl")
    records = bar_records(10, root / "images")
    write_records(root / "images.jsonl", records)
    write_records(root / "text.jsonl", text_records(records))
    mprm.select(str(root / "text.jsonl"), rho=0.8).write(str(root / "bis80.jsonl"))
    train(str(root / "bis80.jsonl"), config_for("text", root, root / "run"))
    train(str(root / "images.jsonl"), config_for("qwen2_5_vl", root, root / "lora", lora_rank=2, batch_size=16))
    mprm.evaluate(
        str(root / "text.jsonl"), str(root / "run"), out=str(root / "eval"), text_only=True, draws=50, folds=2
    )
    sources = [{**record, "source": ("plain", HOSTILE)[i % 2]} for i, record in enumerate(records)]
    write_records(root / "two.jsonl", [*sources, {"question": "a bad record"}])
    chosen = mprm.select(str(root / "two.jsonl"), strategy=("bis", "random"), rho=0.5, skip_bad=True)
    chosen.write_all(str(root / "subsets"))
    chosen.write_all(str(root / "by_source"), by_source=True)
    mprm.select(str(root / "two.jsonl"), rho=0.5, skip_bad=True).write(str(root / "one.jsonl"))
