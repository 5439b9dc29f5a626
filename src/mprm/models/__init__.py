"""Process reward models: backbones, their prompt, the two-row head, shared prefixes, loading and scoring."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.models.attention import use_window_attention as use_window_attention
    from mprm.models.chat import Backbone as Backbone, chat_frame as chat_frame, plain_text as plain_text
    from mprm.models.checkpoint import (
        PRMConfig as PRMConfig,
        device_name as device_name,
        family_of as family_of,
        fingerprint_of as fingerprint_of,
        load_backbone as load_backbone,
        need_torch as need_torch,
        prm_config_path as prm_config_path,
        read_prm_config as read_prm_config,
        resolve_device as resolve_device,
        write_prm_config as write_prm_config,
    )
    from mprm.models.families import FAMILIES as FAMILIES, Family as Family, group_equal_grids as group_equal_grids
    from mprm.models.head import (
        PRMModel as PRMModel,
        freeze_vision as freeze_vision,
        prm_model as prm_model,
        step_probabilities as step_probabilities,
    )
    from mprm.models.internvl_convert import (
        ConversionSummary as ConversionSummary,
        ConvertInternVLConfig as ConvertInternVLConfig,
        convert_internvl as convert_internvl,
    )
    from mprm.models.logprobs import (
        STEP_FEATURES as STEP_FEATURES,
        StepLogProbs as StepLogProbs,
        step_features as step_features,
    )
    from mprm.models.prefix_tree import collate_tree as collate_tree
    from mprm.models.prm import PRM as PRM, score_chains as score_chains
    from mprm.models.prompt import (
        PromptEncoder as PromptEncoder,
        TokenizedChain as TokenizedChain,
        cache_images as cache_images,
        step_tokens as step_tokens,
    )
    from mprm.models.serving import ExportConfig as ExportConfig, ExportSummary as ExportSummary, export as export

__getattr__ = lazy_exports(__name__)
