"""A SentencePiece BPE model as a fast tokenizer; its file is a small protocol buffer, read here by hand.

The tokenizer of a published InternVL checkpoint as a fast one that needs none of its code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.errors import DataError, InputNotFoundError
from mprm.models.internvl_config import END, IMAGE_CONTEXT, IMAGE_END, IMAGE_START, START, chat_template, read_json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""
BPE_MODEL = 2
SPACE = "▁"


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What of the file decides how text is cut."""

    pieces: tuple[Piece, ...]
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The BPE model in a ``tokenizer.model`` file."""
    try:
        fields = list(_fields(path.read_bytes()))
        trainer, normalizer = (
            {number: value for tag, data in fields if tag == wanted for number, value in _fields(_bytes(data))}
            for wanted in (2, 3)
        )
        model = SentencePieceModel(
            tuple(_piece(_bytes(data)) for tag, data in fields if tag == 1),
            charsmap=_bytes(normalizer.get(2, b"")),
            add_dummy_prefix=bool(normalizer.get(3, True)),
            remove_extra_whitespaces=bool(normalizer.get(4, True)),
        )
    except (ValueError, struct.error, IndexError) as error:
        raise DataError(f"{path}: this is no SentencePiece model ({error}); download the file again") from error
    if trainer.get(3, 1) != BPE_MODEL:
        raise DataError(
            f"{path}: a SentencePiece model of type {trainer.get(3, 1)!r}; expected {BPE_MODEL}, which is BPE"
        )
    if not any(piece.type == UNKNOWN for piece in model.pieces):
        raise DataError(f"{path}: {len(model.pieces)} pieces and none for unknown text; expected one")
    return model


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))
    return Piece(_bytes(fields[1]).decode() if 1 in fields else "", score, int(fields.get(3, NORMAL)))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a number where text or a message was expected")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protocol-buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field ends after the file, at byte {at + size}")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, least significant first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"a number longer than ten bytes at byte {at}")


def merges_of(model: SentencePieceModel, replaced: Mapping[int, str]) -> list[tuple[str, str]]:
    """The pairs that BPE joins, best first: a pair is joined when its text is a piece, by that piece's score."""
    ordinary = [
        piece
        for number, piece in enumerate(model.pieces)
        if piece.type in (NORMAL, UNUSED) and number not in replaced
    ]
    known = {piece.text for piece in ordinary}
    merges = []
    for piece in sorted(ordinary, key=lambda piece: -piece.score):
        cuts = [(piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text))]
        pairs = [(left, right) for left, right in cuts if left in known and right in known]
        if pairs and piece.type == UNUSED:
            raise DataError(
                f"tokenizer.model: piece {piece.text!r} is marked unused, yet text can be joined to it;"
                " a fast tokenizer cannot do the same"
            )
        merges += pairs
    return merges


def sentencepiece_backend(model: SentencePieceModel, replaced: Mapping[int, str]) -> Tokenizer:
    """The fast tokenizer that cuts text as the model does.

    Parameters
    ----------
    replaced
        New text of some pieces: special tokens may take the ids of pieces that training left unused.
    """
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE

    vocabulary = {replaced.get(number, piece.text): number for number, piece in enumerate(model.pieces)}
    if len(vocabulary) < len(model.pieces):
        raise DataError(
            "tokenizer.model: two ids have the same text once special tokens are put in; expected one id each"
        )
    unknown = next(number for number, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            merges_of(model, replaced),
            unk_token=replaced.get(unknown, model.pieces[unknown].text),
            fuse_unk=True,
            byte_fallback=any(piece.type == BYTE for piece in model.pieces),
        )
    )
    tokenizer.normalizer = _normalizer(model)
    strip = [decoders.Strip(content=" ", left=1)] if model.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_tokens(
        [
            AddedToken(piece.text, normalized=False)
            for number, piece in enumerate(model.pieces)
            if piece.type == USER_DEFINED and number not in replaced
        ]
    )
    return tokenizer


def _normalizer(model: SentencePieceModel) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


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
