"""Short forms of `train` for the settings of a stage: --epochs, --lr, --batch-tokens."""

from pathlib import Path

from softbeam.cli.parser import options
from softbeam.training.config import load_settings

FIELDS = {
    "--epochs": "epochs",
    "--lr": "lr",
    "--batch-tokens": "tokens",
    "--batch_tokens": "tokens",
}


def stage_aliases(words: list[str], files: list[str]) -> dict[str, str]:
    """Map the short forms to flags of the first stage that runs.

    This is the second stage if the first is replaced by --warm-start, and else the first.

    Args:
        words: the command line.
        files: those of --config, whose content is known to be YAML.
    """
    flags = {flag.replace("_", "-") for flag, _ in options(words)}
    warm = "--warm-start" in flags
    second = not flags.isdisjoint(("--objective", "--finetune.objective"))
    for path in files:
        settings = load_settings(Path(path).read_text(encoding="utf-8"))
        warm = warm or settings.get("warm_start") is not None
        stage = settings.get("finetune")
        second = second or (isinstance(stage, dict) and stage.get("objective") is not None)
    name = "finetune" if warm and second else "pretrain"
    return {flag: f"--{name}.{field}" for flag, field in FIELDS.items()}
