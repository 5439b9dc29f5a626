"""A small real policy that adds digits, and errs: trained for some seconds, on the CPU, from nothing."""

from __future__ import annotations

from pathlib import Path

from mprm.data.types import Question

N_STEPS = 100


def sums() -> list[Question]:
    """Sums of two digits below four."""
    return [
        Question(id=f"{a}{b}", question=f"{a} + {b}?", answer=str(a + b), source=f"from {a}")
        for a in range(4)
        for b in range(4)
    ]


def solution(question: Question) -> str:
    """In three steps."""
    a, b = question.id
    return f"We add {a} and {b}.\n\n{a} and {b} make {question.answer}.\n\n\\boxed{{{question.answer}}}"


def save_adder(folder: Path, *, n_steps: int = N_STEPS) -> Path:
    """Write the policy; it is right about a third of the time."""
    import torch

    from mprm.data.questions import prompt_of
    from mprm.models import load_backbone
    from tests.tiny_models import save_tiny

    save_tiny("text", folder, hidden=64)
    policy = load_backbone(folder, device="cpu")
    end = policy.tokenizer.eos_token_id
    rows = []
    for question in sums():
        prompt = policy.encode_chat(prompt_of(question))["input_ids"][0].tolist()
        answered = policy.encode_chat(prompt_of(question), prefix=solution(question))
        whole = [*answered["input_ids"][0].tolist(), end]
        rows.append((whole, [-100] * len(prompt) + whole[len(prompt) :]))
    width = max(len(ids) for ids, _ in rows)
    input_ids = torch.tensor([ids + [end] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([ids + [-100] * (width - len(ids)) for _, ids in rows])
    model = policy.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    for _ in range(n_steps):
        loss = model(input_ids=input_ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    return folder
