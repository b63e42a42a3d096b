"""Schedules: numbers that change during training, such as alpha or the share of gold feedback.

They are frozen dataclasses without torch, called with the moment of training.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

from softbeam.errors import UserError, check_range


class Moment(NamedTuple):
    """A moment of training: passes over the data and optimizer steps completed so far."""

    epoch: int = 0
    update: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A number for each moment of training.

    Args:
        unit: what the schedule counts, epochs or updates.
    """

    unit: Literal["epoch", "update"] = "epoch"

    def __call__(self, now: Moment) -> float:
        return self.at(now.epoch if self.unit == "epoch" else now.update)

    @abstractmethod
    def at(self, t: int) -> float:
        """The value after t units."""

    def stays_positive(self) -> bool:
        """Whether every value is above 0, however long training takes."""
        return self.at(0) > 0

    def bound(self) -> float:
        """A number that no value exceeds, however long training takes."""
        return self.at(0)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """A schedule with one value."""

    value: float = 1.0

    def at(self, t: int) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """start * growth^t, never above the ceiling: annealed alpha (2017 and 2018, Sec. 2.3).

    Args:
        start: value at the beginning.
        growth: factor for each unit; below 1 it decays.
        ceiling: largest value.
    """

    start: float = 1.0
    growth: float = 1.3
    ceiling: float = 1e4

    def __post_init__(self) -> None:
        check_range("growth", self.growth, above=0)

    def bound(self) -> float:
        return self.ceiling if self.growth > 1 else self.at(0)

    def at(self, t: int) -> float:
        return min(self.ceiling, self.start * math.exp(min(t * math.log(self.growth), 700.0)))


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """start + slope * t, kept between floor and ceiling.

    Args:
        start: value at the beginning.
        slope: change for each unit.
        floor: smallest value.
        ceiling: largest value.
    """

    start: float = 1.0
    slope: float = -0.1
    floor: float = 0.0
    ceiling: float = 1e4

    def __post_init__(self) -> None:
        check_range("floor", self.floor, most=self.ceiling)

    def stays_positive(self) -> bool:
        return self.floor > 0 or (self.slope >= 0 and min(self.start, self.ceiling) > 0)

    def bound(self) -> float:
        return self.ceiling if self.slope > 0 else self.at(0)

    def at(self, t: int) -> float:
        return max(self.floor, min(self.ceiling, self.start + self.slope * t))


@dataclass(frozen=True, kw_only=True)
class InverseSigmoid(Schedule):
    """k / (k + exp(t / k)): a gentle decay from 1 for large k (2017, Sec. 5).

    With epochs as unit and k = 100 it stays above 0.98 for 50 epochs: nearly teacher forcing.

    Args:
        k: decay strength; larger is gentler.
    """

    k: float = 10.0

    def __post_init__(self) -> None:
        check_range("k", self.k, above=0)

    def at(self, t: int) -> float:
        return self.k / (self.k + math.exp(min(t / self.k, 700.0)))


SCHEDULES: tuple[type[Schedule], ...] = (Constant, Exponential, Linear, InverseSigmoid)


def positive(name: str, schedule: Schedule) -> None:
    """Raises UserError if the schedule reaches 0 or less."""


LARGEST_ALPHA = 1e12  # the relaxations are hard long before; above it single precision overflows


def check_alpha(name: str, schedule: Schedule) -> None:
    """Raises UserError if the schedule of an inverse temperature leaves its range."""
    if not schedule.stays_positive():
        raise UserError(f"{name} {schedule}: must stay above 0")
    check_range(name, schedule.bound(), above=0, most=LARGEST_ALPHA)
