"""The policy of a command: its options, and the sampler that they name."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mprm.annotation.samplers.sampler import Sampler, SamplingParams, ServerOptions
from mprm.config import Config, Device, Dtype, Option
from mprm.errors import ConfigError

DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(Config):
    """Where the policy is."""

    policy: Annotated[str | None, Option("Checkpoint to sample from in this process.", "DIR", "policy")] = None
    rows_per_batch: Annotated[
        int | None,
        Option("Sequences in a batch; by default 1,024 on a GPU, 64 elsewhere.", "N", "policy", at_least=1),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    server: Annotated[
        str | None, Option("OpenAI-compatible server, such as http://localhost:8000/v1.", "URL", "server")
    ] = None
    served_model: Annotated[str | None, Option("Name of the policy on the server.", "NAME", "server")] = None
    api_key_env: Annotated[str, Option("Environment variable with the server's API key.", "NAME", "server")] = (
        DEFAULT_KEY
    )
    extra_body: Annotated[str | None, Option("More fields of every request, as a JSON object.", "JSON", "server")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(SamplingParams, ServerOptions, PolicyOptions):
    """Where the policy is, and how it answers; the base of the configs of `mprm.annotate` and `mprm.sample`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy is not None and self.server is not None:
            raise ConfigError("name either --policy DIR or --server URL with --served-model NAME, not both")
        if (self.server is None) != (self.served_model is None):
            raise ConfigError("--server URL and --served-model NAME go together")

    def check_sampler(self, out: str | None = None) -> None:
        """Stop where no policy is named, or where the output would lie among the policy's own files."""
        if self.policy is None and self.server is None:
            raise ConfigError("name either --policy DIR or --server URL with --served-model NAME")
        if out and self.policy and Path(out).expanduser().resolve().parent == Path(self.policy).resolve():
            raise ConfigError(f"{out} lies in the policy's folder; choose another place for the output")

    def sampler(self) -> Sampler:
        self.check_sampler()
        if self.policy is not None:
            return load_policy(self.policy, device=self.device, dtype=self.dtype, rows=self.rows_per_batch)
        import msgspec  # not for the command line's help

        from mprm.annotation.samplers.server import HTTPSampler

        key = os.environ.get(self.api_key_env)
        if key is None and self.api_key_env != DEFAULT_KEY:
            raise ConfigError(f"--api-key-env {self.api_key_env}: the environment has no such variable")
        try:
            extra = msgspec.json.decode(self.extra_body or "{}", type=dict[str, Any])
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--extra-body takes a JSON object, such as '{{\"min_p\": 0.1}}'; {error}") from error
        options = self.narrowed(ServerOptions).as_dict()
        return HTTPSampler(str(self.server), str(self.served_model), api_key=key, extra_body=extra, **options)


def load_policy(path: str | Path, *, device: str = "auto", dtype: str = "auto", rows: int | None = None) -> Sampler:
    """A sampler of the checkpoint in a folder, for `mprm.annotate` and `mprm.sample`.

    It samples many requests at a time, with prefix caching; one at a time, with a word on why, where the model is of
    a kind that is not known to allow it. ``rows``: most sequences in a batch, 1,024 on a GPU, 64 elsewhere.
    """
    from mprm.models.checkpoint import fingerprint_of, load_backbone

    backbone = load_backbone(path, dtype=dtype, device=device)
    # these import torch, which load_backbone has checked for
    from mprm.annotation.samplers.local import PrefixSampler, TransformersSampler, can_share_prefixes

    name, weights = str(path), fingerprint_of(path)
    reason = can_share_prefixes(backbone)
    if reason is None:
        return PrefixSampler(backbone, name=name, weights=weights, rows=rows)
    print(f"{path} answers one request at a time, and slower: {reason}", file=sys.stderr)
    return TransformersSampler(backbone, name=name, weights=weights, rows_per_batch=rows or 16)
