"""Low-rank adapters on the language model, the projector trained whole."""

from __future__ import annotations

from typing import Any

from mprm.backbones.family import Family
from mprm.errors import ConfigError, MissingDependencyError
from mprm.training.config import TrainConfig


def with_lora(model: Any, family: Family, config: TrainConfig) -> Any:
    """The model in which only adapters on the language model's linear layers, and the projector, are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependencyError("--lora-rank needs peft: install mprm with its extra [train]") from error
    from torch import nn

    tower, projector, head = family.vision_tower(model), family.projector(model), model.get_output_embeddings()
    apart = {id(module) for part in (tower, projector, head) if part is not None for module in part.modules()}
    targets = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) not in apart
    ]
    if not targets:
        raise ConfigError("the model has no linear layers that adapters could go on")
    whole = [name for name, module in model.named_modules() if projector is not None and module is projector]
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha if config.lora_alpha is not None else 2 * config.lora_rank,
        target_modules=targets,
        modules_to_save=whole or None,
        base_model_name_or_path=config.model,
    )
    return get_peft_model(model, lora)
