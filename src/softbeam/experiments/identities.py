"""Texts that identify runs, from which cells of reproduced tables have their names."""

import json

from softbeam.training.config import AUTO, RunConfig, to_json

LATER = {"minutes": None, "score_every": 1}  # what versions without these settings did


def identity(config: RunConfig) -> str:
    """Print a run as earlier versions did, if it uses no setting that they did not have.

    Cells keep their names when settings are added.
    """
    settings = json.loads(to_json(config))
    for part in (settings, settings["pretrain"], settings["finetune"]):
        for name in [name for name, value in LATER.items() if part.get(name, ()) == value]:
            del part[name]
    for part in (settings["pretrain"], settings["finetune"]):
        first = part is settings["pretrain"] or part["objective"] is None
        if first and part["warmup"] == AUTO:  # none there, as before it could be chosen
            part["warmup"] = 0
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)
