"""Selection as one writes it in an afternoon: json.loads, one process, a sort. The yardstick.

python benchmarks/plain_select.py OUT RHO verbatim|mm-prm FILE...
"""

import json
import sys
from pathlib import Path


def bis(scores: list[float], alpha: float) -> float:
    positive = [score for score in scores if score > 0]
    p_pos = len(positive) / len(scores)
    total = 0.0
    for score in positive:  # from left to right: sum() compensates from Python 3.12 on
        total += score
    R = total / len(positive) if positive else 1.0
    return (p_pos * (1 - p_pos) + alpha) * R


def mm_prm(record: dict) -> dict:
    question = (record.get("question_orig") or record["question"]).strip()
    steps = record["steps_with_score"]
    process = "\n\n".join(step["step"].strip() + "<prm>" for step in steps)
    labels = [1.0 if step["score"] > 0 else 0.0 for step in steps]
    human = {"from": "human", "value": f"Question: {question}\nProcess: {process}"}
    return {"image": record["image"], "conversations": [human, {"from": "gpt", "value": labels}]}


def select(files: list[str], out: str, rho: float, form: str, alpha: float = 0.05) -> None:
    with Path(out).open("w", encoding="utf-8") as output:
        for file in sorted(files):
            scored = []
            with Path(file).open(encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    record = json.loads(line)
                    scores = [step["score"] for step in record["steps_with_score"]]
                    scored.append((bis(scores, alpha), number, line if form == "verbatim" else record))
            best = sorted(scored, key=lambda entry: -entry[0])[: max(1, int(len(scored) * rho))]
            for _, _, kept in sorted(best, key=lambda entry: entry[1]):
                text = kept if form == "verbatim" else json.dumps(mm_prm(kept), ensure_ascii=False) + "\n"
                output.write(text)


if __name__ == "__main__":
    select(sys.argv[4:], sys.argv[1], float(sys.argv[2]), sys.argv[3])
