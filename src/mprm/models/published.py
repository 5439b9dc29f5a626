"""Process reward models that others trained: how each layout renders a chain, and where its scores are read.

A layout renders a chain as parts: text of the data, text of its template, token ids, images, and the places where the
steps are read. Special tokens in data stay text here; published code would take them for its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import msgspec
from torch import Tensor, nn

from mprm.config import MAX_LENGTH, PRMLayout, nearest
from mprm.data.images import image_size, place_images
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError
from mprm.models import checkpoint
from mprm.models.chat import chat_pieces
from mprm.models.families import INTERNVL2_5_SYSTEM, NO_IMAGES, Family
from mprm.models.head import prm_model
from mprm.models.prompt import Prompt, PromptEncoder, StepTokens, TokenizedChain

QWEN_MATH_SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."


class Template(str):
    """Text of a template: added tokens in it are tokens. In a plain ``str`` they are text."""


class Image(int):
    """Index of an image of the chain."""


Part = Template | str | list[int] | Image | None
"""Neighbouring texts are tokenized as one, which ids end, even an empty list."""
READ = None
"""A step is read at the last token before this."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a process reward model is asked, and how its answer is read."""

    render: Callable[[Any, Chain], Iterator[Part]]
    """The parts of a chain, for a tokenizer."""
    answers: Callable[[Any], Sequence[int | None]] | None = None
    """Ids of the positive and the negative answer in a tokenizer; None for a model with a head of its own."""
    tag: str | None = None
    """Token at which steps are read; without it and with `answers`, the token before a positive answer."""
    model_class: Callable[[Any], Any] | None = None
    """The class with the head, for a config."""
    head: Callable[[Any], Callable[[Tensor], Tensor]] | None = None
    """Of a model: hidden states (S, H) → logits (S, 2) of correct and incorrect."""
    architecture: str | None = None
    """Ending of the architecture in ``config.json`` that tells the layout."""
    family: str = "text"
    image_settings: dict[str, int] = field(default_factory=dict)


def _answered(tokenizer: Any, turns: Sequence[Sequence[Part]], system: str = "") -> Iterator[Part]:
    """The user's turns, each answered with +, in front of which a step is read."""
    before, *pieces = map(Template, chat_pieces(tokenizer, ("user", "assistant") * len(turns), system))
    yield before
    for turn, after_user, after_answer in zip(turns, pieces[::2], pieces[1::2], strict=True):
        yield from (*turn, after_user, READ, Template("+"), after_answer)


def _visualprm(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    pieces = place_images(chain.question, len(chain.images))
    first: list[Part] = [Template("### Question:\n")]
    for piece in pieces:
        first.append(piece if isinstance(piece, str) else Image(piece))
        if isinstance(piece, int) and chain.question in pieces:  # without marks, each image is a line of its own
            first.append(Template("\n"))
    first += [Template("\n\n### Solution Process:\n"), chain.steps[0]]
    return _answered(tokenizer, [first, *((step,) for step in chain.steps[1:])], INTERNVL2_5_SYSTEM)


def _rlhflow(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    first, *steps = (step.strip() for step in chain.steps)
    return _answered(tokenizer, [(f"{chain.question} {first}".strip(),), *((step,) for step in steps)])


def _qwen_math(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    before, between, after = map(Template, chat_pieces(tokenizer, ("user", "assistant"), QWEN_MATH_SYSTEM))
    yield from (before, chain.question, between)
    for step in chain.steps:
        yield from (step, Template("<extra_0>"), READ)
    yield after


def _math_shepherd(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    # as the tokenizer begins every text
    yield tokenizer.encode("")[:1]
    yield chain.question
    for index, step in enumerate(chain.steps):
        yield from ("\n" if index else " ", f"{step} ки", READ)


def _skywork(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    yield _bos(tokenizer)
    yield f"{chain.question}\n"
    yield []
    for step in chain.steps:
        yield from (step, tokenizer.encode("\n", add_special_tokens=False)[-1:], READ)


def _trl(tokenizer: Any, chain: Chain) -> Iterator[Part]:
    yield _bos(tokenizer)
    yield chain.question
    yield []
    for step in chain.steps:
        yield from (step, tokenizer.encode("\n", add_special_tokens=False), READ)


def _bos(tokenizer: Any) -> list[int]:
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def _token_classifier(config: Any) -> Any:
    """The class of transformers with a linear head, ``score``."""
    from transformers.modeling_layers import GenericForTokenClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    kind = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(config), None)
    # others, such as BERT's, see later steps
    if kind is None or not issubclass(kind, GenericForTokenClassification):
        raise ConfigError(f"transformers has no decoder of type {config.model_type} with a token classification head")
    if config.num_labels != 2:
        raise ConfigError(f"the model has {config.num_labels} labels; expected two, incorrect and correct")
    return kind


def _two_layer_classifier(config: Any) -> Any:
    """A token classifier whose ``score`` has two layers."""
    kind = _token_classifier(config)

    def __init__(self: Any, config: Any) -> None:  # noqa: N807
        kind.__init__(self, config)
        size = config.hidden_size
        self.score = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 2))
        self.post_init()

    return type("ProcessRewardModel", (kind,), {"__init__": __init__})


def _causal_with_value(config: Any) -> Any:
    """A causal language model with a value head besides."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        raise ConfigError(f"transformers has no causal language model of type {config.model_type}")

    def __init__(self: Any, config: Any) -> None:  # noqa: N807
        kind.__init__(self, config)
        self.v_head = nn.ModuleDict({"summary": nn.Linear(config.hidden_size, 1)})
        self.post_init()

    return type("PrmModel", (kind,), {"__init__": __init__})


def _classes(model: Any) -> Callable[[Tensor], Tensor]:
    score = model.score.float()
    dims = () if correct_label(model.config.id2label) == 0 else (-1,)  # the published order is incorrect, correct
    return lambda hidden: score(hidden.float()).flip(dims)


INCORRECT_LABELS = ("incorrect", "wrong", "bad", "negative", "neg", "-", "no", "false", "0")
CORRECT_LABELS = ("correct", "right", "good", "positive", "pos", "+", "yes", "true", "1")


def correct_label(id2label: Any) -> int | None:
    """Which of a config's two labels, 0 or 1, is that of correct steps; None where their names do not tell."""
    names = {str(i): str(name).strip().lower() for i, name in id2label.items()}
    first, second = (names.get(i) if len(names) == 2 else None for i in "01")
    if (first, second) == ("label_0", "label_1") or (first in INCORRECT_LABELS and second in CORRECT_LABELS):
        return 1
    return 0 if first in CORRECT_LABELS and second in INCORRECT_LABELS else None


def _value(model: Any) -> Callable[[Tensor], Tensor]:
    summary = model.v_head["summary"].float()
    return lambda hidden: nn.functional.pad(summary(hidden.float()), (0, 1))  # against 0: its sigmoid


def _in_vocabulary(tokenizer: Any) -> list[int | None]:
    return [None if id_ == tokenizer.unk_token_id else id_ for id_ in tokenizer.convert_tokens_to_ids(["+", "-"])]


def _last_ids(tokenizer: Any) -> list[int]:
    return [tokenizer.encode(answer, add_special_tokens=False)[-1] for answer in "+-"]


LAYOUTS: dict[str, Layout] = {
    "visualprm": Layout(_visualprm, _in_vocabulary, family="internvl", image_settings={"max_patches": 12}),
    "qwen-math": Layout(
        _qwen_math,
        tag="<extra_0>",
        model_class=_two_layer_classifier,
        head=_classes,
        architecture="ForProcessRewardModel",
    ),
    "math-shepherd": Layout(_math_shepherd, lambda tok: tok.encode("+ -", add_special_tokens=False), tag="ки"),
    "rlhflow": Layout(_rlhflow, _last_ids),
    "skywork": Layout(_skywork, model_class=_causal_with_value, head=_value, architecture="ForPrmModel"),
    "trl": Layout(_trl, model_class=_token_classifier, head=_classes, architecture="ForTokenClassification"),
}
assert set(LAYOUTS) == set(get_args(PRMLayout))


@dataclass(frozen=True)
class LayoutEncoder(PromptEncoder):
    """Turns chains into ids as a layout renders them."""

    published: Layout = field(kw_only=True)

    def tokenize_all(self, chains: Sequence[Chain]) -> list[TokenizedChain]:
        return [self.tokenize(chain) for chain in chains]

    def tokenize(self, chain: Chain, prompt: Prompt | None = None) -> TokenizedChain:
        if chain.images and self.published.family == "text":
            raise DataError(f"image {chain.images[0]} cannot be used: {NO_IMAGES}")
        parts = self.published.render(self.tokenizer, chain) if chain.steps else ()
        ids, positions, text, marks = list[int](), list[int](), "", list[int]()
        sizes: dict[int, tuple[int, int]] = {}
        for part in [*parts, []]:
            pieces = _split(self.tokenizer, part) if isinstance(part, Template) else (part,)
            for piece in pieces:
                if isinstance(piece, str):
                    text += piece
                    continue
                if piece is READ and text:
                    marks.append(len(text))
                    continue
                own, ends = self._plain.encode_with_ends(text)
                positions += [len(ids) + bisect_right(ends, mark) - 1 for mark in marks]
                ids += own
                text, marks = "", []
                if piece is READ:
                    positions.append(len(ids) - 1)
                elif isinstance(piece, Image):
                    image = chain.images[piece]
                    size = sizes[piece] = image_size(image, self.image_root)
                    ids += self.family.image_ids(self.tokenizer, self.image_processor, image, size)
                else:
                    ids += piece
        kept = [position for position in positions if position < self.max_length]
        images = tuple(chain.images[index] for index in sizes)
        return TokenizedChain(ids[: self.max_length], kept, len(chain.steps), images, tuple(sizes.values()))


def _split(tokenizer: Any, text: str) -> Iterator[str | list[int]]:
    """The text between added tokens, and the ids of these."""
    pattern, ids = _added_tokens(tokenizer)
    for piece in pattern.split(text):
        yield [ids[piece]] if piece in ids else str(piece)


@lru_cache(maxsize=4)
def _added_tokens(tokenizer: Any) -> tuple[re.Pattern[str], dict[str, int]]:
    ids = tokenizer.get_added_vocab()
    return re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True))).join("()") if ids else "(?!)"), ids


def find_layout(folder: str | Path, name: str | None) -> str | None:
    """The name of the checkpoint's layout: the one given, or what ``config.json`` tells; None where it does not."""
    if name is not None and name not in LAYOUTS:
        raise ConfigError(f"unknown prm_layout {name!r}; {nearest(name, LAYOUTS)}")
    try:
        config = msgspec.json.decode((Path(folder) / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return name  # whoever loads the checkpoint says what is wrong
    told, names, labels = (config.get(key) for key in ("prm_layout", "architectures", "id2label"))
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if name is not None or (isinstance(told, str) and told in LAYOUTS):
        return name or told
    if architecture.endswith("ForTokenClassification") and isinstance(labels, dict) and correct_label(labels) is None:
        if len(labels) != 2:
            return None
        found = f"its labels are {' and '.join(map(repr, labels.values())):.200}"
        raise ConfigError(
            f"{folder} was not trained by mprm train: {found}; --prm-layout trl takes the last for correct"
        )
    known = (
        known for known, kind in LAYOUTS.items() if kind.architecture and architecture.endswith(kind.architecture)
    )
    return next(known, None)


def load_published(path: str, name: str, root: Path | None, **compute: Any) -> tuple[Any, LayoutEncoder]:
    """The model in a folder and the encoder of its chains, by the name of its layout."""
    layout = LAYOUTS[name]
    family: Family = checkpoint.family_of(path)
    if family.name != layout.family:
        found = f"this one is of the family {family.name}"
        raise ConfigError(f"{path}: the layout {name} is of models of the family {layout.family}; {found}")
    kind: Any = None
    if layout.model_class is not None:
        from transformers import AutoConfig

        with checkpoint.named_errors(path, "config"):
            config = AutoConfig.from_pretrained(path, **checkpoint.SAFE)
        try:
            kind = layout.model_class(config)
        except ConfigError as error:
            raise ConfigError(f"{path}: the layout {name} does not fit the model: {error}") from error
    backbone = checkpoint.load_backbone(path, image_settings=layout.image_settings, model_class=kind, **compute)
    tokenizer, processor = backbone.tokenizer, backbone.image_processor
    answers = layout.answers(tokenizer) if layout.answers else [-1, -1]
    tag = [-1] if layout.tag is None else tokenizer.encode(layout.tag, add_special_tokens=False)
    wrong = f"{path}: the tokenizer does not fit the layout {name}"
    if len(tag) != 1:
        raise ConfigError(f"{wrong}: it splits {layout.tag!r} into {tokenizer.convert_ids_to_tokens(tag)}")
    if len(answers) != 2 or None in answers or (layout.answers and answers[0] == answers[1]):
        raise ConfigError(f"{wrong}: '+' and '-' have the ids {answers}; expected two known tokens")
    tokens = StepTokens(tag[0], *map(int, answers))  # type: ignore[arg-type]
    model = prm_model(
        backbone.model, backbone.family, tokens, processor, layout.head(backbone.model) if layout.head else None
    )
    max_length = getattr(backbone.model.config.get_text_config(), "max_position_embeddings", None) or MAX_LENGTH
    encoder = LayoutEncoder(
        tokenizer,
        processor,
        backbone.family,
        tokens,
        max_length,
        root,
        version=1,  # each image as if it were alone
        published=layout,
    )
    probe = encoder.tokenize(Chain("1 + 1?", ("one", "two")))
    for position in probe.prm_positions:
        if layout.tag and probe.input_ids[position] != tokens.prm:
            raise ConfigError(f"{wrong}: {layout.tag!r} after a step becomes another token than alone")
        if layout.answers and not layout.tag and probe.input_ids[position + 1] != tokens.yes:
            raise ConfigError(f"{wrong}: '+' in the assistant's turn becomes another token than alone")
    return model, encoder
