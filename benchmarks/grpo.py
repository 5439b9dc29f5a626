"""GRPO with TRL on a policy of the lab that sees images, rewarded by a reward model in this process and behind vLLM.

A few optimizer steps on a CPU: what the rewards are is seen, not that they help. The two runs have one seed, and
sample the same completions until their weights differ by rounding. TRL and its processors need torchvision.

    mprm-lab open LAB
    MPRM_VLLM_PYTHON=vllm-env/bin/python python benchmarks/grpo.py --lab LAB --out benchmarks/results/grpo.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import mprm
from mprm.data import prompt_of, read_questions
from serving import exported_model, vllm_server

N_QUESTIONS, N_GENERATIONS, N_STEPS = 16, 8, 6
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The lab's, for content in parts, as TRL makes it of images."""


def trained(lab: Path, reward: mprm.StepReward, out: Path) -> list[dict[str, Any]]:
    """What TRL logs of each optimizer step."""
    import trl
    from datasets import Dataset, Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    policy, images = lab / "policies" / "qwen", lab / "images"
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt_of(question)}],
            "image": str(images / question.images[0]),
            "question": question.question,
            "answer": question.answer,
        }
        for question in read_questions(str(lab / "candidates.jsonl"))[:N_QUESTIONS]
    ]
    processor = AutoProcessor.from_pretrained(policy)
    processor.chat_template = processor.tokenizer.chat_template = TEMPLATE
    config = trl.GRPOConfig(
        str(out),
        use_cpu=True,
        bf16=False,
        seed=0,
        learning_rate=1e-5,
        temperature=1.5,
        per_device_train_batch_size=N_GENERATIONS,  # one prompt at a time: TRL 1.16 pads images' prompts wrongly
        num_generations=N_GENERATIONS,
        max_completion_length=160,
        max_steps=N_STEPS,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
    )
    trainer = trl.GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(policy, dtype="float32"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows).cast_column("image", Image()),
        processing_class=processor,
    )
    trainer.train()
    names = ("rewards/step_reward/mean", "rewards/step_reward/std", "completions/mean_length", "grad_norm")
    return [{name: round(log[name], 4) for name in names} for log in trainer.state.log_history if "reward" in log]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import trl

    result: dict[str, Any] = {
        "command": "python benchmarks/grpo.py --lab LAB --out benchmarks/results/grpo.json",
        "trl": trl.__version__,
        "device": "cpu",
        "policy": "qwen",
        "completions_of_a_step": N_GENERATIONS,
        "aggregate": "mean",
        "logged": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = exported_model(options.lab, "internvl", Path(temporary) / "prm")
        prm = mprm.PRM.from_pretrained(folder, device="cpu", dtype="float32")
        result["logged"]["PRM"] = trained(options.lab, mprm.StepReward(prm, "mean"), Path(temporary) / "local")
        print(json.dumps(result["logged"]), flush=True)
        with vllm_server(folder, os.environ["MPRM_VLLM_PYTHON"], Path(temporary) / "vllm.log") as server:
            reward = mprm.StepReward(mprm.RemotePRM(server.url, folder=folder), "mean")
            result["logged"]["RemotePRM"] = trained(options.lab, reward, Path(temporary) / "remote")
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
