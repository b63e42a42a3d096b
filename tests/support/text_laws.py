"""Laws of samplers on texts: exact ones by enumeration, and those of samples."""

import itertools
from collections import Counter

import torch

from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.texts.sampler import sampler
from softbeam.sampling.texts.settings import SamplingConfig

SMALL = SamplingConfig(chains=3, sweeps=4, burn_in=1, dtype="float64")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(mlm, texts, config, seed=0):
    made = sampler(mlm, texts, config)
    return made, list(made.run(generator(seed)))


def joint(mlm, text: str, weight=lambda text: 0.0) -> dict[str, float]:
    """exp(-E) over all fillings of the gaps, by plain loops."""
    letters = [t for t in "ACDEFGHIKL"]
    gaps = text.count("[MASK]")
    fillings = []
    for chosen in itertools.product(letters, repeat=gaps):
        filled = text
        for letter in chosen:
            filled = filled.replace("[MASK]", letter, 1)
        fillings.append(filled)
    energy = LocalEnergy(mlm)(mlm.encode(fillings).tokens)
    energy = energy + torch.tensor([weight(f) for f in fillings], dtype=torch.float64)
    p = (-energy).softmax(0)
    return dict(zip(fillings, p.tolist(), strict=True))


def distance(found: Counter, expected: dict[str, float]) -> float:
    """Total variation between a histogram and a distribution."""
    total = sum(found.values())
    keys = set(found) | set(expected)
    return sum(abs(found[k] / total - expected.get(k, 0.0)) for k in keys) / 2
