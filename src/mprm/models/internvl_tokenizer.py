"""The tokenizer of a published InternVL2.5 checkpoint as a fast tokenizer that needs none of its code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.errors import DataError, InputNotFoundError, MissingDependencyError
from mprm.models.internvl_config import raise_problems, read_json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

REQUIRED_TOKENS = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
PROCESSOR_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    # a token of its own would have an id beyond the embedding table, and make text with it crash
    "video_token": "<IMG_CONTEXT>",
}
"""Attributes that the native processor expects of its tokenizer."""
CHAT_TEMPLATE = r"""{%- if messages[0]['role'] != 'system' -%}
{{- "<|im_start|>system\n你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
{{- '<IMG_CONTEXT>\n' -}}
{%- elif part['type'] == 'text' -%}
{{- part['text'] -}}
{%- else -%}
{{- raise_exception('a message is made of text and images, not of ' + part['type']) -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""  # noqa: E501
"""The conversation ``internvl2_5``; the native processor repeats ``<IMG_CONTEXT>`` as often as an image needs."""


def build_tokenizer(source: Path, *, vocab_size: int) -> Any:
    """The fast tokenizer, with every added token at its published id and all ids below ``vocab_size``."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    path = source / "tokenizer_config.json"
    config = read_json(path)
    try:
        added = {int(i): AddedToken(**entry) for i, entry in config.get("added_tokens_decoder", {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: added_tokens_decoder cannot be read ({error}); download it again") from error
    is_internlm2 = (source / "tokenizer.model").is_file()
    backend = sentencepiece_backend(source / "tokenizer.model", added) if is_internlm2 else _qwen2_backend(source)
    backend.add_tokens([added[token_id] for token_id in sorted(added)])
    map_path = source / "special_tokens_map.json"
    special = {**(read_json(map_path) if map_path.is_file() else {}), **config}
    special = {
        name: special[name]["content"] if isinstance(special[name], dict) else special[name]
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        if special.get(name) is not None
    }
    unknown = [f"{name} {text!r}" for name, text in special.items() if backend.token_to_id(text) is None]
    if unknown:
        raise DataError(f"{path}: not in the vocabulary: {', '.join(unknown)}")
    # InternLM2's tokenizer puts its BOS token first unless its config says otherwise; Qwen2's has none
    bos = special.get("bos_token") if is_internlm2 and config.get("add_bos_token", True) else None
    if bos is not None:
        backend.post_processor = TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", f"{bos}:1", "$B:1"],
            special_tokens=[(bos, backend.token_to_id(bos))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **special,
        extra_special_tokens=PROCESSOR_TOKENS,
        model_max_length=config.get("model_max_length"),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=("{{- bos_token -}}\n" if bos is not None else "") + CHAT_TEMPLATE,
    )
    _check_ids(tokenizer, added, vocab_size=vocab_size, source=source)
    return tokenizer


def sentencepiece_backend(path: Path, added: Mapping[int, AddedToken]) -> Tokenizer:
    """The fast tokenizer that encodes text as the SentencePiece BPE model ``tokenizer.model`` does.

    ``added`` are the added tokens by id; some take the ids of pieces that training left unused.

    Put together from parts of transformers, whose converters cannot be used (5.17 to 5.22): ``LlamaConverter`` raises
    AttributeError on every BPE model, and ``SentencePieceExtractor`` orders merges by id where SentencePiece goes by
    score: with shuffled scores it encodes 1,578 of 3,000 lines differently, `generate_merges` with scores none.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import generate_merges

    model = _read_sentencepiece(path)
    kinds, trainer, normalizer = model.SentencePiece, model.trainer_spec, model.normalizer_spec
    vocabulary = {added[i].content if i in added else piece.piece: i for i, piece in enumerate(model.pieces)}
    if trainer.unk_piece not in vocabulary:
        raise DataError(f"{path}: no piece {trainer.unk_piece!r} for unknown text; expected one")
    pieces = [piece for i, piece in enumerate(model.pieces) if i not in added]
    scores = {piece.piece: piece.score for piece in pieces if piece.type == kinds.NORMAL}
    merges = generate_merges(vocabulary, scores, skip_tokens=vocabulary.keys() - scores.keys())
    bpe = BPE(vocabulary, merges, unk_token=trainer.unk_piece, fuse_unk=True, byte_fallback=trainer.byte_fallback)
    backend = Tokenizer(bpe)
    charsmap = normalizer.precompiled_charsmap
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if normalizer.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if normalizer.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1)] if normalizer.add_dummy_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    backend.add_tokens(
        [AddedToken(piece.piece, normalized=False) for piece in pieces if piece.type == kinds.USER_DEFINED]
    )
    return backend


def _read_sentencepiece(path: Path) -> Any:
    """The ``ModelProto`` of a BPE model."""
    from transformers.convert_slow_tokenizer import import_protobuf

    try:
        model = import_protobuf().ModelProto.FromString(path.read_bytes())
    except ImportError as error:
        raise MissingDependencyError(f"{path} needs protobuf: install mprm with its extra [train]") from error
    except Exception as error:  # protobuf's DecodeError
        raise DataError(f"{path}: not a SentencePiece model ({error}); download it again") from error
    trainer = model.trainer_spec
    if trainer.model_type != trainer.BPE:
        raise DataError(f"{path}: a SentencePiece model of type {trainer.model_type}; expected {trainer.BPE}, BPE")
    unused = [piece.piece for piece in model.pieces if piece.type == piece.UNUSED]
    if unused:
        raise DataError(f"{path}: a fast tokenizer cannot skip pieces of type UNUSED, such as {unused[0]!r}")
    return model


def _qwen2_backend(source: Path) -> Tokenizer:
    from tokenizers.models import BPE
    from transformers import Qwen2Tokenizer

    vocab, merges = source / "vocab.json", source / "merges.txt"
    if not vocab.is_file() or not merges.is_file():
        raise InputNotFoundError(
            f"{source} has no tokenizer; expected tokenizer.model (InternLM2), or vocab.json and merges.txt (Qwen2)"
        )
    try:
        backend: Tokenizer = Qwen2Tokenizer(*BPE.read_file(str(vocab), str(merges))).backend_tokenizer
    except Exception as error:  # the tokenizers package raises no other class
        raise DataError(f"{source}: vocab.json or merges.txt is broken ({error}); download them again") from error
    return backend


def _check_ids(tokenizer: Any, added: Mapping[int, AddedToken], *, vocab_size: int, source: Path) -> None:
    """Raise unless every added token has its published id, and every id a row of the embedding table."""
    problems = []
    for token_id, token in sorted(added.items()):
        native_id = tokenizer.convert_tokens_to_ids(token.content)
        if native_id != token_id or tokenizer.convert_ids_to_tokens(token_id) != token.content:
            problems.append(f"{token.content} has id {native_id}; expected {token_id}")
    texts = {token.content for token in added.values()}
    problems += [
        f"{text} is not among the added tokens; InternVL needs it" for text in REQUIRED_TOKENS if text not in texts
    ]
    highest = max(tokenizer.get_vocab().values())
    if highest >= vocab_size:
        problems.append(f"the highest id is {highest}; expected less than llm_config.vocab_size, {vocab_size}")
    raise_problems(f"{source}: the tokenizer does not fit its checkpoint:", problems)
