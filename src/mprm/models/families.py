"""What differs between backbones: image tokens, image preprocessing, positions, and where the vision tower is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mprm.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

VisionInputs = dict[str, Any]
"""Vision inputs of one chain, by the name that the model's forward takes; each a numpy array."""
INTERNVL2_5_SYSTEM = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
NO_IMAGES = "a text model cannot see images; use a vision-language checkpoint, or rollouts without images"

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
PROCESSING = Lock()
"""A fast tokenizer is one thread's at a time while it pads or truncates, as processors make it do."""


def _named(image: Any) -> str:
    """The image in a message: its path; one in memory has no name, and its address would tell nothing."""
    return f"image {image}" if isinstance(image, str | Path) else "an image"


class Family:
    """Any causal language model, for chains without images; the others override what differs. Holds no weights."""

    name = "text"
    architecture = "AutoModelForCausalLM"
    image_tokens: tuple[str, ...] = ()
    """First token, placeholder and last token of an image, or the placeholder alone; empty for a text model."""
    image_settings: ClassVar[dict[str, int]] = {}
    """What can be set about images, and the paper's values."""
    image_end = ""
    """Text between an image that precedes the question and what follows it."""
    system_message = ""
    """Of the released training code's conversation; empty where it has none for the family."""
    vision_tower_path, projector_path = "", ""

    def model_class(self) -> Any:
        import transformers

        return getattr(transformers, self.architecture)

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """The checkpoint's Pillow image processor at the paper's settings and these; None for a text model."""
        return None

    def save_processor(self, processor: Any, folder: Path) -> None:
        """Save an image processor with its settings, in place of the base checkpoint's."""
        if processor is None:
            return
        processor.save_pretrained(str(folder))
        if (whole := folder / "processor_config.json").is_file():  # a newer layout has the image processor in it
            rest = {name: value for name, value in json.loads(whole.read_text()).items() if name != "image_processor"}
            whole.write_text(json.dumps(rest, indent=2) + "\n")

    def check(self, model: Any, processor: Any) -> None:
        """Raise what the model raises at an image, where its processor does not fit it."""

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        raise DataError(NO_IMAGES)

    def image_ids(
        self, tokenizer: Any, processor: Any, image: Any, size: tuple[int, int], n_images: int = 1
    ) -> list[int]:
        """Token ids that stand for an image of ``size`` (width, height), one of ``n_images`` that share a budget."""
        try:
            n_tokens = self.n_image_tokens(processor, *size, n_images)
        except ValueError as error:  # a text model, or of a shape that the backbone cannot take
            raise DataError(f"{_named(image)} of {size[0]} × {size[1]} pixels cannot be used: {error}") from error
        start, placeholder, end = tokenizer.convert_tokens_to_ids(list(self.image_tokens))
        return [start, *[placeholder] * n_tokens, end]

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        raise DataError(NO_IMAGES)

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: VisionInputs) -> Any:
        """Position of each token of one chain, an array of shape (axes, tokens)."""
        return np.arange(len(ids))[None]

    def batch_inputs(self, tokenizer: Any, input_ids: Any, *, has_images: bool = True) -> dict[str, Any]:
        """Further inputs that the model needs for a padded batch."""
        return {}

    def vision_tower(self, model: Any) -> Any:
        """The module that stays frozen and in eval mode, or None."""
        return attrgetter(self.vision_tower_path)(model) if self.vision_tower_path else None

    def projector_paths(self, model: Any) -> list[str]:
        """Names of the trained modules between vision tower and language model."""
        return [self.projector_path] if self.projector_path else []

    def projectors(self, model: Any) -> list[Any]:
        return [model.get_submodule(path) for path in self.projector_paths(model)]


class Qwen25VL(Family):
    """Qwen2.5-VL: images at their own shape, at most 256 tokens each at the paper's setting; M-RoPE positions."""

    name = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"
    vision_tower_path, projector_path = "model.visual", "model.visual.merger"
    image_tokens = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    image_settings: ClassVar[dict[str, int]] = {"min_pixels": 784, "max_pixels": 200_704}
    """28 × 28 pixels a token: 1 to 256 tokens an image."""

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        bounds = {**self.image_settings, **settings}
        if bounds["min_pixels"] > bounds["max_pixels"] or bounds["max_pixels"] < 784:
            raise ConfigError(f"min_pixels must be at most max_pixels, that at least 784 (one token), got {bounds}")
        # both bounds are passed, or the checkpoint's own would apply
        size = {"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]}
        return Qwen2VLImageProcessorPil.from_pretrained(path, size=size)

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        return int(processor.get_number_of_image_patches(height, width, {}) // processor.merge_size**2)

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        inputs = processor(list(images), return_tensors="np")
        return {"pixel_values": inputs["pixel_values"], "image_grid_thw": inputs["image_grid_thw"]}

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: VisionInputs) -> Any:
        """Time, height and width, shape (3, tokens): text counts on, an image as far as its longer side."""
        is_image = ids == tokenizer.convert_tokens_to_ids(self.image_tokens[1])
        positions = np.empty((3, len(ids)), np.int64)
        token = position = 0
        for _, rows, columns in vision.get("image_grid_thw", ()):
            height, width = int(rows) // processor.merge_size, int(columns) // processor.merge_size
            image = token + int(is_image[token:].argmax())
            positions[:, token:image] = position + np.arange(image - token)
            position += image - token
            token = image + height * width
            positions[:, image:token] = position + np.indices((1, height, width)).reshape(3, -1)
            position += max(height, width)
        positions[:, token:] = position + np.arange(len(ids) - token)
        return positions

    def batch_inputs(self, tokenizer: Any, input_ids: Any, *, has_images: bool = True) -> dict[str, Any]:
        """Which tokens are of an image: without it the model silently falls back to text positions."""
        if not has_images:
            return {}
        return {"mm_token_type_ids": (input_ids == tokenizer.convert_tokens_to_ids(self.image_tokens[1])).int()}


class InternVL(Family):
    """InternVL2.5, 3 and 3.5: images are cut into tiles of 448 pixels, at most 6 and thumbnails, 256 tokens each."""

    name = "internvl"
    architecture = "InternVLForConditionalGeneration"
    vision_tower_path, projector_path = "model.vision_tower", "model.multi_modal_projector"
    image_tokens = ("<img>", "<IMG_CONTEXT>", "</img>")
    image_settings: ClassVar[dict[str, int]] = {"max_patches": 6}
    image_end = "\n"
    system_message = INTERNVL2_5_SYSTEM

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        from transformers import AutoConfig
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        patches = {**self.image_settings, **settings}["max_patches"]
        processor = GotOcr2ImageProcessorPil.from_pretrained(path, max_patches=patches, crop_to_patches=True)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        side = config.vision_config.image_size[0]
        if (processor.size["height"], processor.size["width"]) != (side, side):
            raise ConfigError(f"{path}: the vision tower takes {side} pixels, its processor makes {processor.size}")
        processor.tokens_per_tile = config.image_seq_length
        return processor

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        budget = {"max_patches": max(1, processor.max_patches // n_images)}
        return int(processor.get_number_of_image_patches(height, width, budget)) * int(processor.tokens_per_tile)

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        tiles = processor(list(images), max_patches=max(1, processor.max_patches // n_images))
        return {"pixel_values": np.stack(tiles["pixel_values"])}


def concatenated(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors along their first axis, the others padded with zeros where chains differ, as in tiles an image."""
    import torch

    shape = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        missing = [n - size for n, size in zip(shape, tensor.shape[1:], strict=True)]
        padding = [n for pair in zip([0] * len(missing), reversed(missing), strict=True) for n in pair]
        padded.append(torch.nn.functional.pad(tensor, padding) if any(missing) else tensor)
    return torch.cat(padded)


def _blank(size: tuple[int, int]) -> Image:
    from PIL import Image

    return Image.new("RGB", size)


OTHER_VLMS = ("qwen2_vl", "qwen3_vl", "gemma3", "smolvlm", "idefics3", "llava_next", "llava_onevision")
"""Types whose scores were compared with the whole model's. Others may see later steps, as PaliGemma does, scale
logits elsewhere, as Aya Vision does, or have no image tokens in their text: scores would be wrong in silence."""


class OtherVLM(Family):
    """One of `OTHER_VLMS`, an object a checkpoint; images are left to the checkpoint's own processor.

    Batches are padded. Images are preprocessed with Pillow, so that results do not depend on whether torchvision is
    installed.
    """

    name = "auto"
    architecture = "AutoModelForImageTextToText"

    def __init__(self, model_type: str) -> None:
        self._model_type = model_type
        self._image_text, self._token_inputs = "", tuple[str, ...]()
        self._files: dict[str, bytes] = {}
        self._ids: dict[tuple[int, int], list[int]] = {}
        """Of an image, by its size."""

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """The checkpoint's whole processor, but for videos."""
        import transformers
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

        from mprm.models.chat import chat_template_of, image_text

        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        image_id = transformers.AutoConfig.from_pretrained(path, **options).image_token_id
        self._files = {name: file.read_bytes() for name in PROCESSOR_FILES if (file := Path(path) / name).is_file()}
        kind: Any = getattr(transformers, PROCESSOR_MAPPING_NAMES[self._model_type])
        # its parts are given, so that no video processor is needed, which takes torchvision
        kind = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
        own, _ = kind.get_processor_dict(path, **options)
        parts = dict.fromkeys(kind.get_attributes())
        parts |= {
            "image_processor": transformers.AutoImageProcessor.from_pretrained(path, backend="pil", **options),
            "tokenizer": transformers.AutoTokenizer.from_pretrained(path, **options),
        }
        known = inspect.signature(kind.__init__).parameters
        processor = kind(**{**{name: own[name] for name in own.keys() & known.keys()}, **parts})
        processor.tokenizer.chat_template = chat_template_of(path) or processor.tokenizer.chat_template
        self._image_text = image_text(processor.tokenizer)
        inputs = self._processed(processor, _blank((56, 56)))
        self._token_inputs = tuple(name for name in inputs if name.endswith("token_type_ids"))
        if image_id not in inputs["input_ids"]:
            raise ConfigError(f"{path}: its processor writes no image token, id {image_id}, for an image")
        self.image_tokens = (processor.tokenizer.convert_ids_to_tokens(image_id),)
        return processor

    def check(self, model: Any, processor: Any) -> None:
        import torch

        blank = _blank((56, 56))
        inputs = {name: torch.as_tensor(array) for name, array in self.preprocess(processor, [blank]).items()}
        inputs["input_ids"] = torch.tensor([self.image_ids(processor.tokenizer, processor, "blank", blank.size)])
        inputs |= self.batch_inputs(processor.tokenizer, inputs["input_ids"])
        with torch.no_grad():
            model.model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}, use_cache=False)

    def _processed(self, processor: Any, image: Image) -> Any:
        with PROCESSING:
            return processor(text=[self._image_text], images=[image], add_special_tokens=False, return_tensors="pt")

    def image_ids(
        self, tokenizer: Any, processor: Any, image: Any, size: tuple[int, int], n_images: int = 1
    ) -> list[int]:
        if size not in self._ids:
            try:
                self._ids[size] = self._processed(processor, _blank(size))["input_ids"][0].tolist()
            except (ValueError, ZeroDivisionError) as error:  # of a shape that the model cannot take
                raise DataError(f"{_named(image)} of {size[0]} × {size[1]} pixels cannot be used: {error}") from error
        return self._ids[size]

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        """Of each image as if it were alone: some processors spend fewer tokens on one of several."""
        each = [self._processed(processor, image) for image in images]
        of_text = ("input_ids", "attention_mask", *self._token_inputs)
        names = [name for name in each[0] if name not in of_text]
        return {name: concatenated([inputs[name] for inputs in each]).numpy() for name in names}

    def batch_inputs(self, tokenizer: Any, input_ids: Any, *, has_images: bool = True) -> dict[str, Any]:
        """Which tokens are of an image, by the names that the processor has for it."""
        is_image = (input_ids == tokenizer.convert_tokens_to_ids(self.image_tokens[0])).long()
        return dict.fromkeys(self._token_inputs, is_image)

    def save_processor(self, processor: Any, folder: Path) -> None:
        for name, content in self._files.items():
            (folder / name).write_bytes(content)

    def vision_tower(self, model: Any) -> Any:
        return model.get_encoder(modality="image")

    def projector_paths(self, model: Any) -> list[str]:
        """What lies beside tower and decoder, and what merges patches inside the tower."""
        tower, decoder = self.vision_tower(model), model.get_decoder()
        path = next(name for name, module in model.named_modules() if module is tower)
        inside: list[str] = []
        for name, module in tower.named_children():
            if "merger" in name:  # a list of them has no forward, which adapters need
                numbers = [f".{i}" for i in range(len(module))] if hasattr(module, "extend") else [""]
                inside += [f"{path}.{name}{number}" for number in numbers]
        parts = {name: set(module.modules()) for name, module in model.model.named_children()}
        return inside + [f"model.{name}" for name, modules in parts.items() if not modules & {tower, decoder}]


FAMILIES: dict[str, Family] = {"qwen2_5_vl": Qwen25VL(), "internvl": InternVL()}
"""By the checkpoint's ``model_type``; others are `OtherVLM`, or a text model."""


def group_equal_grids(grids: Any) -> Any:
    """Grids of images, shape (n, 3), with consecutive images of one size as frames of one video: faster.

    Examples
    --------
    >>> import torch
    >>> group_equal_grids(torch.tensor([[1, 8, 8], [1, 8, 8], [1, 4, 8]])).tolist()
    [[2, 8, 8], [1, 4, 8]]
    """
    import torch

    sizes, counts = torch.unique_consecutive(grids[:, 1:], dim=0, return_counts=True)
    frames = [int(group.sum()) for group in grids[:, 0].split(counts.tolist())]
    return torch.cat([torch.tensor(frames)[:, None], sizes], dim=1)
