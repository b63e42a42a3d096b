"""The checks of shapes that all other tests rely on: what they refuse, and how often."""

from dataclasses import dataclass

import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import Float
from torch import Tensor

from support import shapes


def checked(function):
    return shapes._first_calls(
        function, typechecker=beartype(conf=BeartypeConf(violation_type=TypeError))
    )


@checked
def outer(x: Float[Tensor, " a"], y: Float[Tensor, " b"], *, cut: int = 0) -> Float[Tensor, "a b"]:
    return torch.outer(x, y)[cut:]


@checked
def first(x: Float[Tensor, " a"], k: int) -> Float[Tensor, " {k}"]:
    return x[: abs(k)]


def times(factor: Tensor):
    """A function made anew with every call."""

    @checked
    def inner(x: Float[Tensor, " a"]) -> Float[Tensor, " a"]:
        return x * factor

    return inner


@checked
@dataclass(frozen=True)
class Pair:
    left: Float[Tensor, " a"]
    right: Float[Tensor, " a"]


ONES, MATRIX = torch.ones(3), torch.ones(3, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: outer(ONES, MATRIX),
        lambda: outer(ONES, ONES, cut="1"),
        lambda: outer(ONES, ONES, cut=1),
        lambda: first(ONES, -2),
        lambda: times(MATRIX)(ONES),
        lambda: times(ONES)(MATRIX),
        lambda: Pair(ONES, torch.ones(2)),
        lambda: Pair(ONES, ONES.long()),
    ],
)
def test_wrong_shapes_and_types_are_refused(wrong):
    assert outer(ONES, torch.ones(2)).shape == (3, 2) and len(first(ONES, 2)) == 2
    torch.testing.assert_close(times(2 * ONES)(ONES), times(ONES)(2 * ONES))
    with pytest.raises(TypeError):
        wrong()


def test_only_the_first_calls_are_checked():
    for _ in range(shapes.CALLS_CHECKED):
        with pytest.raises(TypeError):
            outer(ONES, ONES, cut=1)
    assert outer(ONES, ONES, cut=1).shape == (2, 3)
