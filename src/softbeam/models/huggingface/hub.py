"""Names on the Hugging Face hub, also on a machine that has no network."""

from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import get_session

from softbeam.errors import UserError

WAIT = 10.0  # seconds


def loading_options(name: str | Path) -> dict[str, Any]:
    """Return options of `from_pretrained` with which a folder or hub name is loaded.

    The hub is asked once whether it answers; transformers alone would ask a dozen times. If it does
    not, a model that was downloaded before is loaded from this machine. Raises UserError if the
    model is neither on this machine nor in reach.
    """
    if Path(name).is_dir() or answers():
        return {}
    if isinstance(huggingface_hub.try_to_load_from_cache(str(name), "config.json"), str):
        return {"local_files_only": True}
    raise UserError(
        f"{str(name)!r} is no folder and was never downloaded to this machine, and "
        f"{constants.ENDPOINT} cannot be reached; give a folder, or connect to the network"
    )


def answers() -> bool:
    """Say whether the hub can be reached: one request, through the proxies of the environment."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=WAIT)
    except Exception:  # of whichever library makes the request
        return False
    return True
