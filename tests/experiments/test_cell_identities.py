"""Cells of reproduced tables keep their names, and nothing in them is left to data or machine."""

import hashlib
import json

import pytest

from softbeam.experiments.samplers.models import masked, recipe
from softbeam.experiments.search_aware.cells import settings_of
from softbeam.experiments.search_aware.runs import runs
from softbeam.training.config import AUTO, RunConfig
from softbeam.training.defaults import settled

PRESETS = ("cpu", "paper", "tiny")
DIGEST = "e697475523c9"  # of all names; a change of it orphans the results in everybody's folders


def test_cells_keep_their_names():
    names = {f"{p}/{name}": settings_of(p, name) for p in PRESETS for name in runs(p)}
    names |= {f"masked-{p}": masked(p, 1).settings for p in PRESETS}
    text = json.dumps(names, sort_keys=True)
    assert len(names) == 141 and hashlib.sha256(text.encode()).hexdigest()[:12] == DIGEST


@pytest.mark.parametrize("preset", PRESETS)
def test_their_settings_are_stated(preset):
    configs: list[RunConfig] = [plan.config for plan in runs(preset).values()] + [recipe(preset)]
    for config in configs:
        assert config.threads != AUTO and config.minutes is None
        assert settled(config.pretrain).score_every == 1 == settled(config.finetune).score_every
