"""Process reward models: backbones, their prompt, the two-row head, shared prefixes, loading and scoring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.models.attention import use_window_attention as use_window_attention
    from mprm.models.chat import Backbone as Backbone
    from mprm.models.chat import plain_text as plain_text
    from mprm.models.checkpoint import PRMConfig as PRMConfig
    from mprm.models.checkpoint import device_name as device_name
    from mprm.models.checkpoint import family_of as family_of
    from mprm.models.checkpoint import fingerprint_of as fingerprint_of
    from mprm.models.checkpoint import load_backbone as load_backbone
    from mprm.models.checkpoint import need_torch as need_torch
    from mprm.models.checkpoint import prm_config_path as prm_config_path
    from mprm.models.checkpoint import read_prm_config as read_prm_config
    from mprm.models.checkpoint import resolve_device as resolve_device
    from mprm.models.checkpoint import write_prm_config as write_prm_config
    from mprm.models.families import FAMILIES as FAMILIES
    from mprm.models.families import Family as Family
    from mprm.models.families import group_equal_grids as group_equal_grids
    from mprm.models.head import PRMModel as PRMModel
    from mprm.models.head import freeze_vision as freeze_vision
    from mprm.models.head import prm_model as prm_model
    from mprm.models.head import step_probabilities as step_probabilities
    from mprm.models.internvl_convert import ConversionSummary as ConversionSummary
    from mprm.models.internvl_convert import ConvertInternVLConfig as ConvertInternVLConfig
    from mprm.models.internvl_convert import convert_internvl as convert_internvl
    from mprm.models.prefix_tree import collate_tree as collate_tree
    from mprm.models.prm import PRM as PRM
    from mprm.models.prm import score_chains as score_chains
    from mprm.models.prompt import PromptEncoder as PromptEncoder
    from mprm.models.prompt import TokenizedChain as TokenizedChain
    from mprm.models.prompt import step_tokens as step_tokens

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.models.attention": ["use_window_attention"],
        "mprm.models.chat": ["Backbone", "plain_text"],
        "mprm.models.checkpoint": [
            *("PRMConfig", "device_name", "family_of", "fingerprint_of", "load_backbone", "need_torch"),
            *("prm_config_path", "read_prm_config", "resolve_device", "write_prm_config"),
        ],
        "mprm.models.families": ["FAMILIES", "Family", "group_equal_grids"],
        "mprm.models.head": ["PRMModel", "freeze_vision", "prm_model", "step_probabilities"],
        "mprm.models.internvl_convert": ["ConversionSummary", "ConvertInternVLConfig", "convert_internvl"],
        "mprm.models.prefix_tree": ["collate_tree"],
        "mprm.models.prm": ["PRM", "score_chains"],
        "mprm.models.prompt": ["PromptEncoder", "TokenizedChain", "step_tokens"],
    },
)
