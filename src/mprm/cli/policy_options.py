"""Options that every command with a policy has, and the sampler that they ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.config import Config, Option
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from mprm.annotation.samplers.sampler import Sampler, SamplingParams


DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions(Config):
    """Where the policy is, and how it answers."""

    policy: Annotated[str | None, Option("Checkpoint to sample from in this process.", "DIR")] = None
    server: Annotated[
        str | None, Option("OpenAI-compatible server to sample from, such as http://localhost:8000/v1.", "URL")
    ] = None
    model: Annotated[str | None, Option("The name under which the server knows the policy.", "NAME")] = None
    temperature: Annotated[float, Option("0 takes the likeliest token always.", "NUMBER")] = 0.7
    top_p: Annotated[float, Option("Probability of the tokens that are drawn from; 1 for all.", "NUMBER")] = 0.9
    top_k: Annotated[int, Option("Number of the tokens that are drawn from; 0 for all.", "N")] = 30
    max_new_tokens: Annotated[int, Option("Most tokens of an answer.", "N")] = 2048
    concurrency: Annotated[int, Option("Requests to the server at a time.", "N")] = 64
    timeout_s: Annotated[float, Option("Longest wait for a reply of the server.", "SECONDS")] = 600.0
    retries: Annotated[int, Option("How often a request to the server is sent again.", "N")] = 6
    patience_s: Annotated[float, Option("How long a server that has answered before may be away.", "SECONDS")] = 900.0
    chat_template: Annotated[
        str | None,
        Option("Checkpoint or template file of the policy, to continue answers on transformers serve.", "PATH"),
    ] = None
    api_key_env: Annotated[
        str, Option("Environment variable with the server's API key, where it needs one.", "NAME")
    ] = DEFAULT_KEY
    extra_body: Annotated[
        str | None, Option("More fields for every request to the server, as a JSON object.", "JSON")
    ] = None
    rows_per_batch: Annotated[
        int | None, Option("Answers drawn at a time in this process; 1,024 on a GPU by default.", "N")
    ] = None
    device: Annotated[str, Option("Where the policy runs, such as cpu or cuda:1.", "NAME")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Option("Number format of the policy's weights.")
    ] = "auto"

    def check(self) -> None:
        """Stop when the options do not go together, before anything is read."""
        if (self.policy is None) == (self.server is None):
            raise ConfigError("name either --policy DIR or --server URL with --model NAME")
        if (self.server is None) != (self.model is None):
            raise ConfigError("--server URL and --model NAME go together")
        from mprm.annotation.samplers.server import check_limits

        # wrong ones are told even where a policy in this process has no use for them
        check_limits(
            concurrency=self.concurrency,
            timeout_s=self.timeout_s,
            retries=self.retries,
            patience_s=self.patience_s,
        )
        if self.rows_per_batch is not None and self.rows_per_batch < 1:
            raise ConfigError(f"rows_per_batch must be 1 or more, got {self.rows_per_batch}")

    def check_not_in_policy(self, out: str) -> None:
        """Stop where the output would lie among the policy's own files."""
        if self.policy is not None and Path(out).expanduser().resolve().parent == Path(self.policy).resolve():
            raise ConfigError(f"{out} lies in the policy's folder; choose another place for the output")

    def sampling(self) -> SamplingParams:
        """How tokens are drawn."""
        from mprm.annotation.samplers.sampler import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=self.max_new_tokens,
        )

    def sampler(self) -> Sampler:
        """The policy, in this process or on a server."""
        if self.policy is not None:
            from mprm.annotation.samplers.load import load_policy

            return load_policy(self.policy, device=self.device, dtype=self.dtype, rows=self.rows_per_batch)
        assert self.server is not None, "checked before"
        assert self.model is not None, "checked before"
        from mprm.annotation.samplers.server import HTTPSampler

        return HTTPSampler(
            self.server,
            self.model,
            api_key=_api_key(self.api_key_env),
            concurrency=self.concurrency,
            timeout_s=self.timeout_s,
            retries=self.retries,
            patience_s=self.patience_s,
            chat_template=self.chat_template,
            extra_body=_extra_body(self.extra_body),
        )


def _api_key(name: str) -> str | None:
    key = os.environ.get(name)
    if key is None and name != DEFAULT_KEY:
        raise ConfigError(f"--api-key-env {name}: the environment has no such variable")
    return key


def _extra_body(text: str | None) -> dict[str, Any]:
    import msgspec

    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--extra-body takes a JSON object, such as '{{\"min_p\": 0.1}}'; {error}") from error
