"""``mprm sample``."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.cli.arguments import Force, Json, Option, as_json, parsed
from mprm.cli.progress import counting
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from mprm.annotation.samplers.sampler import Sampler

DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCommand:
    """Let a policy answer each question several times. A run that was stopped continues where it was."""

    questions: Annotated[
        tuple[str, ...], Option("Files, globs or folders of questions.", "QUESTIONS", is_positional=True)
    ]
    out: Annotated[str, Option("Where the candidates go, one line a question.", "FILE")]
    policy: Annotated[str | None, Option("Checkpoint to sample from in this process.", "DIR")] = None
    server: Annotated[
        str | None, Option("OpenAI-compatible server to sample from, such as http://localhost:8000/v1.", "URL")
    ] = None
    model: Annotated[str | None, Option("The name under which the server knows the policy.", "NAME")] = None
    n: Annotated[int, Option("Candidates of each question.", "N")] = 16
    temperature: Annotated[float, Option("0 takes the likeliest token always.", "NUMBER")] = 0.7
    top_p: Annotated[float, Option("Probability of the tokens that are drawn from; 1 for all.", "NUMBER")] = 0.9
    top_k: Annotated[int, Option("Number of the tokens that are drawn from; 0 for all.", "N")] = 30
    max_new_tokens: Annotated[int, Option("Most tokens of a candidate.", "N")] = 2048
    seed: Annotated[int, Option("Seed; each question has its own made from it.", "N")] = 0
    max_steps: Annotated[int | None, Option("Most steps a candidate is split into.", "N")] = None
    questions_format: Annotated[
        str | None, Option("Format of the questions, where the first record must not decide.", "NAME")
    ] = None
    image_root: Annotated[str | None, Option("Folder that holds the questions' images.", "DIR")] = None
    concurrency: Annotated[int, Option("Requests to the server at a time.", "N")] = 64
    timeout_s: Annotated[float, Option("Longest wait for a reply of the server.", "SECONDS")] = 600.0
    retries: Annotated[int, Option("How often a request to the server is sent again.", "N")] = 6
    api_key_env: Annotated[
        str, Option("Environment variable with the server's API key, where it needs one.", "NAME")
    ] = DEFAULT_KEY
    extra_body: Annotated[
        str | None, Option("More fields for every request to the server, as a JSON object.", "JSON")
    ] = None
    rows_per_batch: Annotated[int, Option("Candidates drawn at a time in this process.", "N")] = 16
    device: Annotated[str, Option("Where the policy runs, such as cpu or cuda:1.", "NAME")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Option("Number format of the policy's weights.")
    ] = "auto"
    allow_failures: Annotated[
        bool, Option("Write the output without the questions that failed, instead of stopping before it.")
    ] = False
    force: Force = False
    json: Json = False

    def check(self) -> None:
        """Stop when the options do not go together, before anything is read."""
        if (self.policy is None) == (self.server is None):
            raise ConfigError("name either --policy DIR or --server URL with --model NAME")
        if (self.server is None) != (self.model is None):
            raise ConfigError("--server URL and --model NAME go together")
        from mprm.annotation.samplers.http_sampler import refuse_limits

        # wrong ones are told even where a policy in this process has no use for them
        refuse_limits(concurrency=self.concurrency, timeout_s=self.timeout_s, retries=self.retries)
        if self.rows_per_batch < 1:
            raise ConfigError(f"rows_per_batch must be 1 or more, got {self.rows_per_batch}")


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.sample`, print."""
    options = parsed(
        SampleCommand,
        arguments,
        command="sample",
        example="mprm sample questions.jsonl --server http://localhost:8000/v1 --model policy --out candidates.jsonl",
    )
    options.check()
    from mprm.annotation.sample import SampleConfig, refuse_output, sample
    from mprm.annotation.samplers.sampler import Decoding

    decoding = Decoding(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_new_tokens=options.max_new_tokens,
    )
    config = SampleConfig(n=options.n, decoding=decoding, seed=options.seed, max_steps=options.max_steps)
    refuse_output(options.out, options.questions, force=options.force)
    summary = sample(
        options.questions,
        _sampler(options),
        options.out,
        config=config,
        format=options.questions_format,
        image_root=options.image_root,
        allow_failures=options.allow_failures,
        force=options.force,
        watch=counting,
    )
    if options.json:
        print(as_json(asdict(summary)))
        return 0
    print(f"{summary.n_done:,} questions with {options.n} candidates each in {summary.out}.")
    if summary.n_continued:
        print(f"{summary.n_continued:,} of them were done by an earlier run.")
    if summary.renamed_images:
        name, path = next(iter(summary.renamed_images.items()))
        print(
            f"{len(summary.renamed_images):,} images were found under another name, such as {name} as {path}:"
            " are they the right ones?"
        )
    if summary.n_cut:
        limit = options.max_new_tokens
        print(f"{summary.n_cut:,} of {summary.n_candidates:,} candidates were cut off at {limit:,} tokens.")
    if summary.n_failed:
        print(f"{summary.n_failed:,} questions failed, each with its reason in {summary.failed_to}.")
    return 0


def _sampler(options: SampleCommand) -> Sampler:
    """The policy, in this process or on a server."""
    if options.policy is not None:
        from mprm.annotation.samplers.transformers_sampler import TransformersSampler
        from mprm.backbones.load import load_backbone

        backbone = load_backbone(options.policy, dtype=options.dtype, device=options.device)
        return TransformersSampler(backbone, name=options.policy, rows_per_batch=options.rows_per_batch)
    assert options.server is not None, "checked before"
    assert options.model is not None, "checked before"
    from mprm.annotation.samplers.http_sampler import HTTPSampler

    return HTTPSampler(
        options.server,
        options.model,
        api_key=_api_key(options.api_key_env),
        concurrency=options.concurrency,
        timeout_s=options.timeout_s,
        retries=options.retries,
        extra_body=_extra_body(options.extra_body),
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
