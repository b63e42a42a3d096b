"""What a test needs from the machine: absent, it skips with a reason, or fails in CI."""

import os

import pytest


def absent(reason: str) -> None:
    """Skip, saying why; where everything is required (CI), fail instead."""
    if os.environ.get("SOFTBEAM_REQUIRE_ALL") == "1":
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)
