"""Backbones, the one prompt, the Yes/No head, shared prefixes, checkpoints."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.models.internvl_convert import ConversionSummary as ConversionSummary
    from mprm.models.internvl_convert import ConvertInternVLConfig as ConvertInternVLConfig
    from mprm.models.internvl_convert import convert_internvl as convert_internvl

__getattr__ = lazy_exports(
    __name__, {"mprm.models.internvl_convert": ["ConversionSummary", "ConvertInternVLConfig", "convert_internvl"]}
)
