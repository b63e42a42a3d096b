"""The standard comparison of second stages: `softbeam compare RECIPE --preset standard`."""

from softbeam.errors import UserError
from softbeam.training.kinds import kind_of
from softbeam.training.recipes import RECIPES

ALWAYS = (
    "--finetune.objective.gold Constant --finetune.objective.gold.value 0 "
    "--finetune.objective.gold_epochs 0"
)
ENDING = (  # outputs that decide their own end: docs/design/0005-variable-length.md
    "--finetune.objective.finish true --finetune.objective.extra 3 "
    "--finetune.objective.cross_entropy 0.3"
)
STANDARD = {
    "more-ce": "--objective cross-entropy",
    "hard-feedback": "--objective scheduled-sampling --finetune.objective.feedback hard_argmax "
    + ALWAYS,
    "soft-feedback": f"--objective scheduled-sampling {ALWAYS}",
    "direct-local": "--objective direct-loss",
    "direct-global": "--objective direct-loss --finetune.objective.normalize false",
    "beam-crf": "--objective beam-crf",
    "bso": "--objective beam-search-optimization",
}
SEEDS = "1,2,3"  # unless they are given: two are too few for a test
SEARCHING = ("direct-local", "direct-global", "beam-crf", "bso")


def standard(preset: str, recipe: str) -> list[str]:
    """Return the trials of a preset for a recipe, the control first; raises UserError if unknown.

    All have the settings of the recipe's second stage: the same number of updates at most.
    """
    if preset != "standard":
        raise UserError(f"--preset {preset}: there is standard")
    ends = recipe in RECIPES and kind_of(RECIPES[recipe]().data).has_end
    trials = []
    for name, words in STANDARD.items():
        extra = f" {ENDING}" if ends and name in SEARCHING else ""
        if ends and name.startswith("direct"):
            extra += " --finetune.objective.cost Windowed"
        trials.append(f"{name}: {words}{extra}")
    return trials
