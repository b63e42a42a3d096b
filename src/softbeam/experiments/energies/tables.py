"""The fits behind Table 6.1 and Figure 6.1 of the thesis, and the published values.

The sizes of the training sets are the thesis's. It gives no widths, learning rates or numbers of
updates; we chose them in short trials on one dataset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from softbeam.experiments.energies.cells import ALL, TEACHERS, Fit, Method
from softbeam.experiments.energies.sequences import SYNTHETIC, Data

PRINTED: dict[str, Mapping[str, float]] = {  # the thesis's Table 6.1
    "p-1k": {"True": 5.32, "LL": 6.74, "PLL": 7.01, "MLM": 7.71, "-PLL": 5.74, "-MLM": 5.87},
    "p-10k": {"True": 5.35, "LL": 6.21, "PLL": 6.57, "MLM": 7.23, "-PLL": 4.88, "-MLM": 5.28},
    "h-1k": {"True": 4.97, "LL": 5.07, "PLL": 5.16, "MLM": 6.01, "-PLL": 4.58, "-MLM": 4.46},
    "h-10k": {"True": 5.02, "LL": 5.03, "PLL": 5.04, "MLM": 5.94, "-PLL": 4.45, "-MLM": 4.49},
    "h-1k+": {"True": 6.45, "LL": 6.51, "PLL": 6.53, "MLM": 7.07, "-PLL": 6.27, "-MLM": 6.23},
    "h-10k+": {"True": 6.41, "LL": 6.42, "PLL": 6.43, "MLM": 6.88, "-PLL": 6.14, "-MLM": 6.13},
    "phoneme": {"PLL": 14.58, "MLM": 18.20, "-PLL": 13.31, "-MLM": 13.12},
}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How large the experiments are.

    Args:
        synthetic: knobs of every `Fit` to generated data.
        phonemes: knobs of every fit to phonemes.
        projection: knobs of KL projections, which need "fewer epochs" (thesis, Sec. 6.2.2).
        sizes: training sizes of the table's synthetic rows.
        extras: further objectives for the rows of the smallest size.
        phoneme_size: training size of the table's phonemes; `ALL` for all of them.
        figure: training sizes of the figure.
        figure_phonemes: training sizes of the figure's phonemes.
        small_phonemes: knobs of the figure's fits to phonemes that replace those above.
        teacher: training size of the figure's MLM on generated data.
        teacher_knobs: knobs of the figure's MLMs that replace those above.
    """

    synthetic: Mapping[str, Any]
    phonemes: Mapping[str, Any]
    projection: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1000, 10_000)
    extras: tuple[Method, ...] = ("KL", "KL+PLL", "NCE", "PCD")
    phoneme_size: int = ALL
    figure: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
    figure_phonemes: tuple[int, ...] = (300, 1000, 3000)
    small_phonemes: Mapping[str, Any] = field(default_factory=dict)
    teacher: int = 100_000
    teacher_knobs: Mapping[str, Any] = field(default_factory=dict)


PRESETS = {
    "cpu": Preset(
        synthetic={"batch": 64, "every": 25, "patience": 5, "updates": 1500},
        projection={"updates": 400},
        phonemes={"batch": 64, "updates": 600, "every": 100, "lr": 4e-3, "steps": 400},
        figure_phonemes=(300, 1000),
        small_phonemes={"updates": 400, "every": 25, "patience": 4},
        teacher_knobs={"batch": 256, "updates": 3000, "every": 250},
    ),
    "full": Preset(  # docs/experiments_plan_chapter_6.md: caps that no fit should reach
        extras=("KL", "KL+PLL", "NCE", "PCD", "MLM-masks", "NCE-MLM", "residual"),
        synthetic={"batch": 64, "every": 25, "patience": 10, "updates": 6000},
        projection={"updates": 4000},
        phonemes={"batch": 64, "updates": 16_000, "every": 500, "lr": 4e-3, "exact_time": 6},
        figure_phonemes=(300, 1000),
        small_phonemes={"updates": 4000, "every": 50, "patience": 8},
        teacher_knobs={"batch": 256, "updates": 12_000, "every": 250},
    ),
    "paper": Preset(  # our choice but for the sizes of training sets
        synthetic={"embedding": 64, "hidden": 128, "lr": 2e-3, "updates": 10_000, "patience": 20},
        phonemes={
            **{"embedding": 64, "hidden": 128, "lr": 2e-3, "batch": 64, "updates": 20_000},
            **{"every": 500, "particles": 4000, "steps": 2000},
        },
        projection={"updates": 3000},
        extras=(),
        teacher_knobs={"batch": 256, "updates": 20_000, "every": 500},
    ),
    "tiny": Preset(
        synthetic={"hidden": 8, "embedding": 4, "updates": 8, "every": 4, "tested": 100},
        phonemes={
            **{"hidden": 8, "embedding": 4, "updates": 4, "every": 2, "batch": 16},
            **{"tested": 100, "exact_time": 3, "particles": 10, "steps": 5},
        },
        sizes=(50,),
        phoneme_size=100,
        figure=(30,),
        figure_phonemes=(40,),
        teacher=200,
    ),
}


# Cells


def fit(preset: Preset, data: Data, objective: Method, size: int, seed: int, **knobs: Any) -> Fit:
    """A cell with the preset's knobs, of which `knobs` replaces some."""
    usual = preset.synthetic if data in SYNTHETIC else preset.phonemes
    fewer = preset.projection if objective.startswith("KL") else {}
    every = {**usual, **fewer, **knobs}
    return Fit(data=data, objective=objective, size=size, seed=seed, **every)


def table_cells(preset: Preset, seeds: Sequence[int], *, distinct: bool) -> list[Fit]:
    """The fits of Table 6.1, those that take longest first."""
    words: Data = "phonemes-distinct" if distinct else "phonemes"
    everything = partial(fit, preset, words, size=preset.phoneme_size, check=True)
    cells = [everything(objective="PLL", seed=seed) for seed in seeds]
    cells += [everything(objective="MLM", seed=seed, **mlm_knobs(preset)) for seed in seeds]
    for size in sorted(preset.sizes, reverse=True):
        methods: tuple[Method, ...] = ("PLL", "LL", "MLM")
        if size == min(preset.sizes):
            methods += preset.extras
        for method in methods:
            for data in SYNTHETIC:
                cells += [with_teacher(preset, data, method, size, seed) for seed in seeds]
    return cells


def mlm_knobs(preset: Preset) -> dict[str, Any]:
    """Batch and updates of MLM on phonemes: more than PLL's, as an update is 30 times cheaper."""
    usual = preset.phonemes
    return {"batch": 2 * usual["batch"], "updates": 5 * usual["updates"]}


def with_teacher(preset: Preset, data: Data, method: Method, size: int, seed: int) -> Fit:
    """A fit of a method, with the fit to the same sequences that it learns from, if any."""
    whose = TEACHERS.get(method)
    teacher = None if whose is None else fit(preset, data, whose, size, seed)
    return fit(preset, data, method, size, seed, teacher=teacher)


def figure_cells(preset: Preset, seeds: Sequence[int], *, distinct: bool) -> list[Fit]:
    """The fits of Figure 6.1: for each dataset a teacher, and students of every size."""
    words: Data = "phonemes-distinct" if distinct else "phonemes"
    few, large = preset.small_phonemes, mlm_knobs(preset)
    cells = []
    for seed in seeds:
        teacher = fit(preset, words, "MLM", preset.phoneme_size, seed, reserved=True, **large)
        cells += lesson(preset, teacher, preset.figure_phonemes, few)
    for data in SYNTHETIC:
        for seed in seeds:
            knobs = preset.teacher_knobs
            teacher = fit(preset, data, "MLM", preset.teacher, seed, reserved=True, **knobs)
            cells += lesson(preset, teacher, preset.figure, {})
    return cells


def lesson(
    preset: Preset, teacher: Fit, sizes: Sequence[int], knobs: Mapping[str, Any]
) -> list[Fit]:
    """A teacher, its students of every size, and fits without a teacher to the same sequences."""
    cells = [teacher]
    for n in sizes:
        pairs: tuple[tuple[Method, Fit | None], ...]
        pairs = (("PLL", None), ("MLM", None), ("KL", teacher), ("KL+PLL", teacher))
        for method, whose in pairs:
            cells.append(fit(preset, teacher.data, method, n, teacher.seed, teacher=whose, **knobs))
    return cells
