"""The paper's own numbers, in percent, by the lab's names of backbones and arms."""

from __future__ import annotations

BACKBONES = {"internvl": "InternVL2.5-8B", "qwen": "Qwen2.5-VL-7B"}
"""What the paper trains where the lab trains its small models of the same architectures."""

_RHOS = (5, 10, 15, 25, 35, 50)


def _by_rho(strategy: str, values: tuple[float, ...]) -> dict[str, float]:
    return {f"{strategy}-{rho}": value for rho, value in zip(_RHOS, values, strict=True)}


OVERALL: dict[str, dict[str, float]] = {
    "internvl": {
        "base": 52.28,
        "full": 65.12,
        "full-tau-1": 64.26,
        "full-tau-2": 63.02,
        "full-soft": 61.54,
        **_by_rho("random", (63.34, 62.86, 63.27, 63.37, 63.52, 64.02)),
        **_by_rho("bis", (64.51, 65.46, 64.98, 65.46, 64.98, 65.00)),
        "mixed-25": 64.70,
        "reliable-25": 62.75,
        "low-mc-25": 64.18,
        "bis-25-alpha-0.02": 64.84,
        "bis-25-alpha-0.08": 64.86,
    },
    "qwen": {
        "base": 49.68,
        "full": 65.57,
        "full-tau-1": 65.27,
        "full-tau-2": 62.72,
        "full-soft": 62.23,
        **_by_rho("random", (53.54, 61.99, 59.82, 64.44, 64.77, 64.54)),
        **_by_rho("bis", (64.42, 64.63, 65.29, 65.53, 65.69, 65.02)),
    },
}
"""Overall micro-F1 on VisualProcessBench: its main table, and those of the ablation and alpha (InternVL alone)."""

ERROR_STEPS = {"full": 3.57, "random-25": 3.61, "low-mc-25": 12.57, "mixed-25": 11.02}
"""Share of error steps in the training sets of which the paper states it."""

BEST_OF_16: dict[str, tuple[float, float, float, float]] = {
    "base": (33.13, 8.65, 35.31, 52.77),
    "full": (39.00, 12.00, 39.41, 57.50),
    "random-25": (39.40, 11.33, 39.41, 58.20),
    "bis-25": (41.00, 12.67, 40.89, 59.00),
}
"""Accuracy with InternVL2.5-8B; ``base`` is the policy without a reward model."""
BEST_OF_16_BENCHMARKS = ("MM-K12", "OlympiadBench", "MathVerse", "MathVista")
