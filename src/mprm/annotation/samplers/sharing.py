"""Which models can compute what several requests begin with once."""

from __future__ import annotations

from typing import Any

from mprm.annotation.samplers.policy import Policy

MODELS = ("qwen2_5_vl", "internvl", "llama", "qwen2", "qwen3", "mistral")
LANGUAGE_MODELS = ("qwen2_5_vl_text", "llama", "qwen2", "qwen3", "mistral")
"""Plain decoders: every layer keeps keys and values of all tokens, and takes positions and masks as given."""
TAKEN_FROM_THE_REQUEST = ("do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens")
HELD = ("repetition_penalty", "eos_token_id")
OF_NO_EFFECT = (
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "num_return_sequences", "transformers_version"),
    *("use_cache", "cache_config", "max_cache_len", "compile_config", "disable_compile", "prefill_chunk_size"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("early_stopping", "length_penalty", "diversity_penalty", "_from_model_config"),
)
"""Names, memory, speed, and what counts with several beams alone."""
NEUTRAL: dict[str, Any] = {
    **{"num_beams": 1, "num_beam_groups": 1, "min_length": 0, "min_new_tokens": 0, "typical_p": 1.0},
    **{"epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0},
    **{"encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0},
}
"""Values at which a setting that is not followed here does nothing."""


def can_share_prefixes(policy: Policy) -> str | None:
    """Why `PrefixSampler` cannot answer for this policy, or None where it can.

    Whatever it does not know is a reason: the plain sampler leaves everything to transformers.
    """
    return why_not_shared(policy.model) or _unusual_setting(policy.model.generation_config)


def why_not_shared(model: Any) -> str | None:
    """Why nothing may be assumed of how the model attends, or None where it is known to be a plain decoder."""
    text = model.config.get_text_config()
    if model.config.model_type not in MODELS or text.model_type not in LANGUAGE_MODELS:
        kinds = " with ".join(dict.fromkeys((model.config.model_type, text.model_type)))
        return f"models of type {kinds} are not known to it"
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        return "the model is spread over several devices"
    if text._attn_implementation != "sdpa":
        return f"the model attends with {text._attn_implementation}; expected sdpa"
    if _slides(text):
        return "the model attends to a sliding window"
    return None


def _slides(text: Any) -> bool:
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if text.model_type == "mistral" and text.sliding_window is not None:
        return True
    return kinds != {"full_attention"}


def _unusual_setting(generation_config: Any) -> str | None:
    known = {*TAKEN_FROM_THE_REQUEST, *HELD, *OF_NO_EFFECT}
    for name, value in generation_config.to_dict().items():
        # `is False` beside None: flags that are off; 0 may mean something
        if name not in known and value is not None and value is not False and value != NEUTRAL.get(name):
            return f"its generation config sets {name} to {value!r}"
    return None
