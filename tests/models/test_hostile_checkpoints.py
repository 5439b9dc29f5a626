"""Checkpoint folders that would run code, ask a hub, or never end: refused with one line, whatever stdin says."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from mprm.errors import ConfigError
from mprm.models import chat
from mprm.models.checkpoint import PRM_CONFIG, PRMConfig, load_backbone, write_prm_config
from mprm.models.prm import PRM
from tests.tiny_models import BACKBONES, save_tiny, tiny_tokenizer


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


class Code:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def with_code(folder: Path, mark: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")


def own_code(folder: Path, mark: Path) -> None:
    with_code(folder, mark)
    auto_map = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.Evil")
    change(folder / "config.json", model_type="evil", auto_map=auto_map)


def code_of_the_tokenizer(folder: Path, mark: Path) -> None:
    with_code(folder, mark)
    auto_map = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    change(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map=auto_map)
    (folder / "tokenizer.json").unlink()


def code_of_a_part(folder: Path, mark: Path) -> None:
    with_code(folder, mark)
    change(folder / "config.json", text_config={"model_type": "evil", "auto_map": {"AutoModel": "evil.Evil"}})


def pickled(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code(mark)))


def pickled_shard(folder: Path, mark: Path) -> None:
    pickled(folder, mark)
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def kernel_of_the_hub(folder: Path, mark: Path) -> None:
    change(folder / "config.json", attn_implementation="evil/kernel")


def kernel_of_a_part(folder: Path, mark: Path) -> None:
    change(folder / "config.json", vision_config={"_attn_implementation": {"": "evil/kernel"}})


def listed_type(folder: Path, mark: Path) -> None:
    change(folder / "config.json", model_type=["llama"])


def adapter(folder: Path, settings: str = '{"peft_type": "LORA", "base_model_name_or_path": "evil/model"}') -> None:
    base = folder.with_name(f"{folder.name}-base")
    folder.rename(base)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(settings)
    write_prm_config(folder, PRMConfig(base=str(base)))


def adapter_without_weights(folder: Path, mark: Path) -> None:
    adapter(folder)


def adapter_with_pickled_weights(folder: Path, mark: Path) -> None:
    adapter(folder)
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Code(mark)))


def adapter_with_broken_settings(folder: Path, mark: Path) -> None:
    adapter(folder, "{")
    shutil.copy(folder.with_name(f"{folder.name}-base") / "model.safetensors", folder / "adapter_model.safetensors")


def adapter_with_broken_weights(folder: Path, mark: Path) -> None:
    adapter(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"garbage" * 9)


def adapter_that_names_a_module(folder: Path, mark: Path) -> None:
    adapter(folder, '{"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evil"}')
    shutil.copy(folder.with_name(f"{folder.name}-base") / "model.safetensors", folder / "adapter_model.safetensors")


def adapter_beside_a_config(folder: Path, mark: Path) -> None:
    base = folder.with_name(f"{folder.name}-base")
    shutil.copytree(folder, base)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "evil/model"}')
    write_prm_config(folder, PRMConfig(base=str(folder)))


HOSTILE: dict[Callable[[Path, Path], None], str] = {
    own_code: "the model cannot be loaded: it needs code of its own (auto_map), which is never run",
    code_of_the_tokenizer: "the tokenizer cannot be loaded: it needs code of its own",
    code_of_a_part: "auto_map",
    pickled: "pytorch_model.bin is a pickle",
    pickled_shard: "expected .safetensors files beside it",
    kernel_of_the_hub: "attention 'evil/kernel'; expected one of eager, sdpa",
    kernel_of_a_part: "attention 'evil/kernel'",
    listed_type: "model_type is ['llama']",
    adapter_without_weights: "expected weights in adapter_model.safetensors; it has none",
    adapter_with_pickled_weights: "adapter_model.bin is a pickle",
    adapter_with_broken_settings: "the adapter cannot be loaded",
    adapter_with_broken_weights: "the adapter cannot be loaded",
    adapter_that_names_a_module: "not of a LoRA adapter",
    adapter_beside_a_config: "is an adapter on another model",
}
SCRIPT = """
import sys
from mprm.cli.main import run
for name in sys.argv[2:]:
    print("==", name, file=sys.stderr, flush=True)
    print("exit", run(["evaluate", sys.argv[1], "--model", name, "--device", "cpu", "--threshold", "0.5"]), file=sys.stderr)
"""


def test_no_code_of_a_checkpoint_runs_with_yes_on_stdin(tmp_path: Path) -> None:
    base = save_tiny("text", tmp_path / "base")
    PRM.from_pretrained(base, PRMConfig(), device="cpu").save_pretrained(tmp_path / "prm")
    names = [make.__name__ for make in HOSTILE]
    for make in HOSTILE:
        make(Path(shutil.copytree(tmp_path / "prm", tmp_path / make.__name__)), tmp_path / f"{make.__name__}.ran")
    benchmark = tmp_path / "benchmark.jsonl"
    benchmark.write_text(json.dumps({"id": "1", "problem": "how?", "steps": ["one", "2"], "label": 1}))
    # no hub to reach: whoever asks it fails with another message, or waits
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")}
    environment.pop("HF_HUB_OFFLINE", None)
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as answers:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(benchmark), *(str(tmp_path / name) for name in names)],
            stdin=answers.stdout,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        answers.terminate()
    assert not list(tmp_path.glob("*.ran"))
    outputs = done.stderr.split("== ")[1:]
    assert len(outputs) == len(HOSTILE), done.stderr
    for output, words in zip(outputs, HOSTILE.values(), strict=True):
        name, *lines, code = output.strip().splitlines()
        assert code == "exit 2", output
        assert len(lines) == 1, output
        assert words in lines[0], output
        assert Path(name).name in lines[0], output


@pytest.mark.parametrize(
    "loop", ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ 'x' * 2000000 }}"]
)
def test_a_template_that_does_not_end_is_refused(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.5)
    tokenizer = tiny_tokenizer("text")
    tokenizer.chat_template = "{{ messages[0]['content'] }}" + loop
    tokenizer.name_or_path = "some/folder"
    message = r"^some/folder: the chat template cannot render a message: it (takes more than|renders 2,000)"
    with pytest.raises(ConfigError, match=message):
        chat.chat_frame(tokenizer)


def test_a_broken_template_file_is_named(tmp_path: Path) -> None:
    path = save_tiny("text", tmp_path / "model")
    for file in path.glob("chat_template*"):
        file.unlink()
    change(path / "tokenizer_config.json", chat_template=None)
    (path / "chat_template.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"chat_template\.json: the chat template cannot be loaded"):
        load_backbone(path, device="cpu")


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("lost", [("tokenizer.json",), ("tokenizer.json", "tokenizer_config.json")])
def test_a_checkpoint_without_its_tokenizer_is_refused(kind: str, lost: tuple[str, ...], tmp_path: Path) -> None:
    path = save_tiny(kind, tmp_path / "model")
    for name in lost:
        (path / name).unlink()
    message = (
        r"model: the tokenizer (turns 'so 1 is 1' into|cannot be loaded: there is none).*: copy them, tokenizer.json"
    )
    with pytest.raises(ConfigError, match=message) as error:
        load_backbone(path, device="cpu")
    assert "\n" not in str(error.value)


def test_the_models_of_mprm_are_still_loaded(tmp_path: Path) -> None:
    path = save_tiny("internvl", tmp_path / "model")
    change(path / "config.json", attn_implementation="eager")
    assert (path / PRM_CONFIG).exists() is False
    assert load_backbone(path, device="cpu").family.name == "internvl"
