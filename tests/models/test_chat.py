"""Text between the chat template's parts, and prefixes of responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("transformers")

from mprm.models.chat import PlainText, chat_frame
from tests.tiny_models import CHAT, tiny_tokenizer


def tokenizer_with(split: str) -> Any:
    """A byte-level BPE that knows two ends of line as one token, with GPT-2's way to split a text or another."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if split == "gpt2"
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["One step.\n\n", "Then one more.\n\n"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


QWEN_LIKE = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+"


def test_the_end_of_a_prefix_is_tokenized_as_within_the_response() -> None:
    tokenizer = tokenizer_with("gpt2")
    plain = PlainText(tokenizer)
    whole = plain.encode("One step.\n\nThen")
    # GPT-2 splits off the last white space before a word: an end of line, and another with the word to come
    assert tokenizer.convert_ids_to_tokens(whole)[-3:] == ["Ċ", "Ċ", "Then"]
    assert tokenizer.convert_ids_to_tokens(plain.encode("One step.\n\n"))[-1] == "ĊĊ"
    assert plain.encode_prefix("One step.\n\n") == whole[:-1]


@pytest.mark.parametrize("split", ["gpt2", QWEN_LIKE])
@given(text=st.text(alphabet="One ste.\n\t ü", max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_response_continues_its_prefix_token_by_token(split: str, text: str) -> None:
    plain = PlainText(_cached(split))
    prefix = plain.encode_prefix(text)
    assert plain._tokenizer.decode(prefix) == plain._tokenizer.decode(plain.encode(text))
    if text[-1:].isspace():
        whole = plain.encode(text + "A")
        # either the whole answer begins with these ids, or its white space and the word share a token
        assert whole[: len(prefix)] == prefix or prefix == plain.encode(text)
    else:
        assert prefix == plain.encode(text)


_MADE: dict[str, Any] = {}


def _cached(split: str) -> Any:
    if split not in _MADE:
        _MADE[split] = tokenizer_with(split)
    return _MADE[split]


def test_of_several_templates_by_name_the_default_one_frames_a_message() -> None:
    tokenizer = tiny_tokenizer("text")
    frame = chat_frame(tokenizer)
    tokenizer.chat_template = {"default": CHAT, "tool_use": "{{ messages[0]['content'] }} with tools"}
    assert chat_frame(tokenizer) == frame
    tokenizer.chat_template = {"default": "{{ messages[0]['content'] }} alone"}
    assert chat_frame(tokenizer) == ([], tokenizer.encode(" alone"))


def test_tokens_end_where_their_text_does_also_where_special_tokens_are_words() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<end>", "<", "end>", "one", "two"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain = PlainText(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>"))
    text = "one <end> two <end> one"
    ids, ends = plain.encode_with_ends(text)
    assert ids == plain.encode(text)
    assert [words[index] for index in ids] == ["one", "<", "end>", "two", "<", "end>", "one"]
    assert [text[:end].split()[-1] for end in ends] == ["one", "<", "<end>", "two", "<", "<end>", "one"]
