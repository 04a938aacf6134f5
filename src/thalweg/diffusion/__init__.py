"""The bridge to discrete diffusion models: noise as a gradient flow, scores, reversal, samplers.

The noising process of a discrete diffusion model is the steepest descent of the entropy in `W_K`;
the score is the exponential of its gradient; a potential steers the process to another base
distribution. Exact on spaces that can be enumerated, token by token on sequences. What needs torch
(networks, losses, training) is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg.diffusion.models import ContextModel, ExactModel, ScoreModel, TemperedModel
from thalweg.diffusion.reversal import NoisingPath, hamming_path, heat_path, time_reversal
from thalweg.diffusion.sampling import Sampling, infill, sample
from thalweg.diffusion.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    LogLinearSchedule,
    Schedule,
)
from thalweg.diffusion.scores import (
    entropy_gradient,
    langevin_rates,
    reverse_rates,
    score_ratios,
    scores_from_entropy_gradient,
)
from thalweg.diffusion.sequences import HammingProcess
from thalweg.diffusion.tilted import (
    MarginalFlowTokens,
    conditional_law,
    tilted_kernel,
    tilted_path,
    tilted_rates,
    tilted_tokens,
)
from thalweg.diffusion.token_process import TokenProcess
from thalweg.diffusion.tokens import (
    AbsorbingTokens,
    DenseTokens,
    RefreshTokens,
    absorbing_tokens,
    ordinal_tokens,
    tokens_from_kernel,
    uniform_tokens,
)

if TYPE_CHECKING:
    from thalweg.diffusion.losses import cross_entropy, score_entropy
    from thalweg.diffusion.networks import MLPDenoiser, TransformerDenoiser
    from thalweg.diffusion.training import (
        Bound,
        NetworkModel,
        NetworkScores,
        Training,
        TrainingResult,
        likelihood_bound,
        train,
    )

_LAZY = {
    "losses": ("cross_entropy", "score_entropy"),
    "networks": ("MLPDenoiser", "TransformerDenoiser"),
    "training": (
        "Bound", "NetworkModel", "NetworkScores", "Training", "TrainingResult", "likelihood_bound",
        "train",
    ),
}  # fmt: skip

__all__ = [
    "AbsorbingTokens",
    "Bound",
    "ConstantSchedule",
    "ContextModel",
    "CosineSchedule",
    "DenseTokens",
    "ExactModel",
    "ExponentialSchedule",
    "HammingProcess",
    "LinearSchedule",
    "LogLinearSchedule",
    "MLPDenoiser",
    "MarginalFlowTokens",
    "NetworkModel",
    "NetworkScores",
    "NoisingPath",
    "RefreshTokens",
    "Sampling",
    "Schedule",
    "ScoreModel",
    "TemperedModel",
    "TokenProcess",
    "Training",
    "TrainingResult",
    "TransformerDenoiser",
    "absorbing_tokens",
    "conditional_law",
    "cross_entropy",
    "entropy_gradient",
    "hamming_path",
    "heat_path",
    "infill",
    "langevin_rates",
    "likelihood_bound",
    "ordinal_tokens",
    "reverse_rates",
    "sample",
    "score_entropy",
    "score_ratios",
    "scores_from_entropy_gradient",
    "tilted_kernel",
    "tilted_path",
    "tilted_rates",
    "tilted_tokens",
    "time_reversal",
    "tokens_from_kernel",
    "train",
    "uniform_tokens",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"thalweg.diffusion.{module}"), name)
    raise AttributeError(f"module 'thalweg.diffusion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
