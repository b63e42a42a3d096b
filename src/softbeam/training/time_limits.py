"""The time that a run may take, divided among its stages."""

import math
from typing import NamedTuple


class TimeLimit(NamedTuple):
    """When a stage began and when it has to end, in seconds of the run."""

    began: float
    end: float = math.inf

    @classmethod
    def of(cls, minutes: float | None, began: float, stages: int) -> "TimeLimit":
        """Divide the time that is left equally among this stage and those after it.

        Args:
            minutes: of the whole run; None for no limit.
            began: seconds of the run when the stage began.
            stages: this one and those after it.
        """
        if minutes is None:
            return cls(began)
        return cls(began, began + max(60 * minutes - began, 0.0) / stages)

    def share(self, seconds: float) -> float:
        """Return how much of the stage's time has passed, from 0 to 1."""
        if seconds >= self.end:
            return 1.0
        return (seconds - self.began) / (self.end - self.began)
