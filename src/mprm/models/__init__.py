"""Backbones, the one prompt, the Yes/No head, shared prefixes, checkpoints."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.models.attention import look_by_windows as look_by_windows
    from mprm.models.chat import chat_ids as chat_ids
    from mprm.models.chat import plain_text as plain_text
    from mprm.models.checkpoint import FAMILIES as FAMILIES
    from mprm.models.checkpoint import Backbone as Backbone
    from mprm.models.checkpoint import PRMConfig as PRMConfig
    from mprm.models.checkpoint import device_name as device_name
    from mprm.models.checkpoint import family_of as family_of
    from mprm.models.checkpoint import fingerprint_of as fingerprint_of
    from mprm.models.checkpoint import load_backbone as load_backbone
    from mprm.models.checkpoint import need_torch as need_torch
    from mprm.models.checkpoint import resolve_device as resolve_device
    from mprm.models.families import Family as Family
    from mprm.models.families import as_frames as as_frames
    from mprm.models.head import load_step_model as load_step_model
    from mprm.models.prm import PRM as PRM

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.models.attention": [
            "look_by_windows",
        ],
        "mprm.models.chat": [
            "chat_ids",
            "plain_text",
        ],
        "mprm.models.checkpoint": [
            "load_backbone",
            "FAMILIES",
            "Backbone",
            "PRMConfig",
            "device_name",
            "family_of",
            "fingerprint_of",
            "need_torch",
            "resolve_device",
        ],
        "mprm.models.families": [
            "Family",
            "as_frames",
        ],
        "mprm.models.head": [
            "load_step_model",
        ],
        "mprm.models.prm": [
            "PRM",
        ],
    },
)
