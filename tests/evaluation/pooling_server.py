"""A small server that speaks vLLM's pooling protocol: it renders, tokenizes and scores with a real exported model."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image
from transformers import PreTrainedTokenizerFast

from mprm.models import PRM, TokenizedChain, step_probabilities
from mprm.models.serving import TEMPLATE, TOKENIZER
from tests.annotation.samplers.chat_server import ChatServer


@dataclass
class PoolingServer(ChatServer):
    """What the server received, and how it answers; faults count requests to ``/pooling``."""

    folder: Path = Path()
    max_model_len: int = 8192
    models: tuple[str, ...] = ()
    """Names of the models; the folder by default."""
    root: str | None = None
    """Where the server says that the model lies; the folder by default."""
    tokenizer: str = TOKENIZER
    """Folder of the tokenizer, in the model's."""
    rows: Any = None
    """What becomes of the scores before they are sent."""
    _scoring: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.prm = PRM.from_pretrained(self.folder, device="cpu")
        self.served = PreTrainedTokenizerFast.from_pretrained(self.folder / self.tokenizer)
        self.template = (self.folder / TEMPLATE).read_text()
        self.models = self.models or (str(self.folder),)

    def got(self, path: str) -> tuple[int, bytes]:
        if path != "/v1/models":
            return 404, b"{}"
        root = str(self.folder) if self.root is None else self.root
        cards = [{"id": name, "root": root, "max_model_len": self.max_model_len} for name in self.models]
        return 200, json.dumps({"object": "list", "data": cards}).encode()

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("task") != "token_classify" or body["model"] not in self.models:
            return {"error": {"message": "another task or model"}}
        if "messages" not in body:  # a health check
            return {"data": [{"index": 0, "data": []}]}
        with self._scoring:
            ids, images = self.read(body["messages"], body.get("mm_processor_kwargs", {}))
            scores = self.score(ids, images)
        rows: Any = [[score] for score in scores]
        if self.rows is not None:
            rows = self.rows(rows)
        return {"object": "list", "data": [{"index": 0, "data": rows}], "usage": {"prompt_tokens": len(ids)}}

    def read(self, messages: list[dict[str, Any]], options: dict[str, int]) -> tuple[list[int], list[Any]]:
        """Ids and images of messages, as vLLM reads them: text may hold special tokens."""
        images, encoder = [], self.prm.encoder
        for part in messages[0]["content"]:
            if part["type"] == "image_url":
                data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                images.append(Image.open(io.BytesIO(data)))
                part["type"] = "image"
        text = self.served.apply_chat_template(messages, chat_template=self.template, tokenize=False)
        ids, placed = [], iter(images)
        n_images = len(images) if options else 1
        tokens = encoder.tokenizer.convert_tokens_to_ids(list(encoder.family.image_tokens))
        for id_ in self.served.encode(text, add_special_tokens=False):
            if not tokens or id_ != tokens[1]:
                ids.append(id_)
                continue
            image = next(placed)
            own = encoder.family.image_ids(
                self.prm.encoder.tokenizer, encoder.image_processor, "", image.size, n_images
            )
            ids += own if encoder.family.name == "internvl" else own[1:-1]
        assert next(placed, None) is None
        return ids, images

    def score(self, ids: list[int], images: list[Any]) -> list[float]:
        import torch

        encoder = self.prm.encoder
        positions = [index for index, id_ in enumerate(ids) if id_ == encoder.tokens.prm]
        sizes = tuple(image.size for image in images)
        chain = TokenizedChain(ids, positions, len(positions), tuple(images), sizes)
        with torch.no_grad():
            logits = self.prm.model(**encoder.collate([encoder.add_pixel_values(chain)]))["logits"]
        return list(step_probabilities(logits).tolist())


@contextmanager
def pooling_server(folder: Path, **settings: Any) -> Iterator[PoolingServer]:
    """A running server on a free port."""
    server = PoolingServer(folder=folder, **settings)
    server.start()
    try:
        yield server
    finally:
        server.die()
