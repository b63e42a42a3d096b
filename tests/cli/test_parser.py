"""Flags are spelled with hyphens; underscores are accepted too."""

import pytest

from softbeam.cli.train import parse_run

FLAGS = [
    ("--checkpoint-every", "7", lambda config: config.checkpoint_every),
    ("--skip-nonfinite", "7", lambda config: config.skip_nonfinite),
    ("--model.label-embedding", "7", lambda config: config.model.label_embedding),
    ("--data.max-length", "7", lambda config: config.data.max_length),
    ("--finetune.objective.diagnose-every", "7", lambda c: c.finetune.objective.diagnose_every),
]


@pytest.mark.parametrize("flag, value, field", FLAGS, ids=[flag for flag, _, _ in FLAGS])
def test_a_flag_has_hyphens_or_underscores(flag, value, field):
    words = ["ccg", "--objective", "direct-loss"]
    underscored = "--" + flag[2:].replace("-", "_")
    for given in ([flag, value], [underscored, value], [f"{flag}={value}"]):
        assert field(parse_run("train", [*words, *given])[0]) == 7
