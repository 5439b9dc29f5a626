"""The tokenizer of a published InternVL checkpoint as a fast one that needs none of its code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.backbones.internvl_config import read_json
from mprm.backbones.internvl_sentencepiece import read_sentencepiece, sentencepiece_backend
from mprm.backbones.internvl_template import END, IMAGE_CONTEXT, IMAGE_END, IMAGE_START, START, chat_template
from mprm.errors import DataError, InputNotFoundError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
IMAGE_ATTRIBUTES = {
    "start_image_token": IMAGE_START,
    "end_image_token": IMAGE_END,
    "context_image_token": IMAGE_CONTEXT,
    # a token of its own would have an id beyond the embedding table, and make text with it crash
    "video_token": IMAGE_CONTEXT,
}
"""What the native processor asks of its tokenizer."""


def build_tokenizer(src: Path, *, vocab_size: int, system_message: str) -> Any:
    """The fast tokenizer, with every added token at the id that the checkpoint gives it.

    Parameters
    ----------
    vocab_size
        Rows of the embedding table; no id may lie beyond it.
    """
    from transformers import PreTrainedTokenizerFast

    config = read_json(src / "tokenizer_config.json")
    added = read_added_tokens(src, config)
    backend = _backend(src, added)
    for token in (added[number] for number in sorted(added)):
        backend.add_tokens([token])
    named = _named_tokens(src, config)
    strangers = [f"{name} {text!r}" for name, text in named.items() if backend.token_to_id(text) is None]
    if strangers:
        raise DataError(f"{src / 'tokenizer_config.json'}: not in the vocabulary: {', '.join(strangers)}")
    bos = named.get("bos_token") if _begins_text(src, config) else None
    if bos is not None:
        _put_first(backend, bos)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **named,
        extra_special_tokens=IMAGE_ATTRIBUTES,
        model_max_length=config.get("model_max_length"),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=chat_template(system_message, begins_text=bos is not None),
    )
    check_tokenizer(tokenizer, added, vocab_size=vocab_size, where=src)
    return tokenizer


def read_added_tokens(src: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The added tokens by id, from ``tokenizer_config.json`` and ``added_tokens.json``, which must agree."""
    from tokenizers import AddedToken

    try:
        found = {
            int(number): AddedToken(**{name: value for name, value in entry.items() if name != "__type"})
            for number, entry in config.get("added_tokens_decoder", {}).items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{src / 'tokenizer_config.json'}: added_tokens_decoder cannot be read ({error})") from error
    path = src / "added_tokens.json"
    listed = read_json(path) if path.is_file() else {}
    for text, number in listed.items():
        if number in found and found[number].content != text:
            raise DataError(
                f"{path}: id {number} is {text!r}, and {found[number].content!r} in tokenizer_config.json;"
                " expected the same"
            )
        found.setdefault(number, AddedToken(text, normalized=False, special=True))
    texts = [token.content for token in found.values()]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise DataError(f"{src}: added tokens with two ids: {', '.join(twice)}; expected one each")
    return found


def _backend(src: Path, added: Mapping[int, AddedToken]) -> Tokenizer:
    """The tokenizer without its added tokens: InternLM2's SentencePiece model, or Qwen2's vocabulary."""
    if (src / "tokenizer.model").is_file():
        model = read_sentencepiece(src / "tokenizer.model")
        n_pieces = len(model.pieces)
        replaced = {number: token.content for number, token in added.items() if number < n_pieces}
        return sentencepiece_backend(model, replaced)
    if (src / "vocab.json").is_file() and (src / "merges.txt").is_file():
        return _qwen2_backend(src)
    raise InputNotFoundError(
        f"{src} has no tokenizer; expected tokenizer.model (InternLM2), or vocab.json and merges.txt (Qwen2)"
    )


def _qwen2_backend(src: Path) -> Tokenizer:
    from transformers import Qwen2Tokenizer

    lines = (src / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    vocabulary = read_json(src / "vocab.json")
    try:
        tokenizer: Tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    except Exception as error:  # the tokenizers package raises no other class
        raise DataError(
            f"{src}: vocab.json and merges.txt make no tokenizer ({error}); download them again"
        ) from error
    return tokenizer


def _named_tokens(src: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = src / "special_tokens_map.json"
    given = {**(read_json(path) if path.is_file() else {}), **config}
    tokens = {name: given[name] for name in NAMED if given.get(name) is not None}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def _begins_text(src: Path, config: Mapping[str, Any]) -> bool:
    """InternLM2's tokenizer puts its beginning-of-text token first unless told otherwise; Qwen2's has none."""
    return (src / "tokenizer.model").is_file() and bool(config.get("add_bos_token", True))


def _put_first(backend: Tokenizer, bos: str) -> None:
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(
        single=[bos, "$A"],
        pair=[bos, "$A", f"{bos}:1", "$B:1"],
        special_tokens=[(bos, backend.token_to_id(bos))],
    )


def check_tokenizer(tokenizer: Any, added: Mapping[int, AddedToken], *, vocab_size: int, where: Path) -> None:
    """Stop unless every added token has its published id, and every id a row of the embedding table."""
    problems = []
    for number, token in sorted(added.items()):
        found = tokenizer.convert_tokens_to_ids(token.content)
        if found != number or tokenizer.convert_ids_to_tokens(number) != token.content:
            problems.append(f"{token.content} has id {found}; expected {number}")
    texts = {token.content for token in added.values()}
    problems += [
        f"{text} is not among the added tokens; InternVL needs it"
        for text in (START, END, IMAGE_START, IMAGE_END, IMAGE_CONTEXT)
        if text not in texts
    ]
    highest = max(tokenizer.get_vocab().values())
    if highest >= vocab_size:
        problems.append(f"the highest id is {highest}; expected less than llm_config.vocab_size, {vocab_size}")
    if problems:
        raise DataError("\n  ".join([f"{where}: the tokenizer does not fit its checkpoint:", *problems]))
