"""A tokenizer for the lab's small vocabulary, in the layout of the published ones."""

from __future__ import annotations

from typing import Any

from mprm.data.candidate_formats import JOINT
from mprm.data.questions import prompt_of
from mprm.models import Family
from mprm_lab.world import SOURCES, SPLITS, as_question, problem, solution, vocabulary

FRAME = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VIDEO = {"qwen2_5_vl": "<|video_pad|>", "internvl": "<video>"}
"""A token that the configuration must name, and nothing uses."""
PIECES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+"
"""Words, numbers, signs, each with the space before it; ends of line together, whatever follows."""
N_TEXTS = 40
"""Problems of each source whose texts the merges are learnt from."""


def lab_tokenizer(family: Family, *, size: int = 1000) -> Any:
    """A byte-level BPE in which nearly every word of the world, with the space before it, is one token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(_texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=FRAME[0], eos_token=FRAME[2])
    special = [*FRAME, *family.image_tokens, VIDEO[family.name]]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = CHAT
    return tokenizer


def _texts() -> list[str]:
    texts = ["Yes No"] * 50  # the reward model's two words, each a token
    texts += [f"{word} {word}" for word in vocabulary()] * 5
    for source in SOURCES:
        for seed in SPLITS["train"][:N_TEXTS]:
            found = problem(source, seed)
            texts += [prompt_of(as_question(found)), JOINT.join(solution(found))]
    return texts
