"""A SentencePiece BPE model as a fast tokenizer; its file is a small protocol buffer, read here by hand.

Neither the sentencepiece nor the protobuf package is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
