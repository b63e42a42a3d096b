"""What training minimizes: settings here, which load no torch; formulas in `losses`."""

from softbeam.objectives.base import Objective
from softbeam.objectives.costs import Cost, DoubledO, Hamming, Windowed
from softbeam.objectives.hard_beam import BeamCrf, BeamSearchOptimization
from softbeam.objectives.likelihood import (
    CrossEntropy,
    Distillation,
    SelfNormalized,
    TokenContrast,
)
from softbeam.objectives.masked import UniformMasking
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.objectives.scheduled_sampling import ScheduledSampling, TwoPassScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, HardHinge, SoftHinge

OBJECTIVES: tuple[type[Objective], ...] = (  # that a configuration and --objective can name
    CrossEntropy,
    SelfNormalized,
    TokenContrast,
    ScheduledSampling,
    TwoPassScheduledSampling,
    DirectLoss,
    SoftHinge,
    HardHinge,
    BeamSearchOptimization,
    BeamCrf,
    MinimumRisk,
    Reinforce,
    Distillation,
    UniformMasking,
)

__all__ = [
    "OBJECTIVES",
    "BeamCrf",
    "BeamSearchOptimization",
    "Cost",
    "CrossEntropy",
    "DirectLoss",
    "Distillation",
    "DoubledO",
    "Hamming",
    "HardHinge",
    "MinimumRisk",
    "Objective",
    "Reinforce",
    "ScheduledSampling",
    "SelfNormalized",
    "SoftHinge",
    "TokenContrast",
    "TwoPassScheduledSampling",
    "UniformMasking",
    "Windowed",
]
