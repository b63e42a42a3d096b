"""Named kernels to certify on a small masked language model."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from softbeam.errors import UserError
from softbeam.sampling.certificates import Certificate, certify
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.informed import informed_metropolis_hastings
from softbeam.sampling.kernels import (
    degenerate_gibbs,
    exact_gibbs,
    metropolis_hastings,
)
from softbeam.sampling.lengths import cgmh, length_metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals, UniformProposals
from softbeam.sampling.tiny import TinyMLM, every_length, every_text
from softbeam.types import Energy, Kernel, MaskedLM

Make = Callable[[MaskedLM, Energy], Kernel]


class Named(NamedTuple):
    """A kernel to certify: a function that makes it, and how many positions it gets together."""

    make: Make
    block: int
    what: str
    grows: bool = False  # texts of all lengths from 0 on, not of one


KERNELS = {
    "metropolis-hastings": Named(
        lambda mlm, energy: metropolis_hastings(energy, MaskedConditionals(mlm)),
        1,
        "masked conditionals, one site",
    ),
    "block": Named(
        lambda mlm, energy: metropolis_hastings(energy, MaskedConditionals(mlm)),
        2,
        "masked conditionals, two sites together",
    ),
    "temperature": Named(
        lambda mlm, energy: metropolis_hastings(energy, MaskedConditionals(mlm, temperature=0.8)),
        1,
        "proposals at temperature 0.8",
    ),
    "nucleus-mixture": Named(
        lambda mlm, energy: metropolis_hastings(
            energy, MaskedConditionals(mlm, nucleus=0.6, epsilon=0.2)
        ),
        2,
        "nucleus 0.6 mixed with all tokens",
    ),
    "uniform": Named(
        lambda mlm, energy: metropolis_hastings(energy, UniformProposals(mlm.allowed)),
        1,
        "uniform proposals",
    ),
    "exact-gibbs": Named(
        lambda mlm, energy: exact_gibbs(energy, allowed=mlm.allowed), 1, "true conditionals"
    ),
    "fast": Named(
        lambda mlm, energy: fast_metropolis_hastings(energy, MaskedConditionals(mlm)),
        1,
        "kept rows, one site",
    ),
    "fast-block": Named(
        lambda mlm, energy: fast_metropolis_hastings(energy, MaskedConditionals(mlm)),
        2,
        "kept rows, two sites together",
    ),
    "fast-early-rejection": Named(
        lambda mlm, energy: fast_metropolis_hastings(
            energy, MaskedConditionals(mlm), sites_a_round=1
        ),
        2,
        "kept rows, early rejection of large energies; local energies only",
    ),
    "informed": Named(
        lambda mlm, energy: informed_metropolis_hastings(energy),
        2,
        "the site and the token that the conditionals favour",
    ),
    "lengths": Named(
        lambda mlm, energy: length_metropolis_hastings(energy, MaskedConditionals(mlm)),
        1,
        "replaces, inserts and deletes; texts of all lengths up to --time",
        grows=True,
    ),
    "cgmh": Named(
        lambda mlm, energy: cgmh(energy, MaskedConditionals(mlm)),
        1,
        "the acceptance that CGMH published: not invariant, must fail",
        grows=True,
    ),
    "nucleus": Named(
        lambda mlm, energy: metropolis_hastings(energy, MaskedConditionals(mlm, nucleus=0.6)),
        1,
        "nucleus 0.6 as in the thesis: reducible, must fail",
    ),
    "degenerate-gibbs": Named(
        lambda mlm, energy: degenerate_gibbs(MaskedConditionals(mlm), energy),
        1,
        "accepts every proposal: not invariant, must fail",
    ),
}
ENERGIES: dict[str, Callable[[MaskedLM], Energy]] = {"local": LocalEnergy, "raw": RawEnergy}


def certificates(
    kernel: str, *, energy: str = "local", words: int = 3, time: int = 3, seed: int = 0
) -> list[Certificate]:
    """Certify a named kernel on all texts of `time` words from a vocabulary of `words`.

    The name `package.module:function` is that of your own kernel: the function gets a masked
    language model and an energy, and returns a `Kernel`.
    """
    mlm = TinyMLM(words=words, seed=seed)
    target = ENERGIES[energy](mlm)
    named = KERNELS[kernel] if kernel in KERNELS else Named(imported(kernel), 1, kernel)
    try:
        chosen = named.make(mlm, target)
    except ValueError as error:  # early rejection of a raw energy
        raise UserError(f"{kernel} with --energy {energy}: {error}") from error
    except TypeError as error:
        raise UserError(f"{kernel} takes no masked language model and energy: {error}") from error
    if not isinstance(chosen, Kernel):
        raise UserError(f"{kernel} returned a {type(chosen).__name__}, not a Kernel")
    states = every_length(mlm, longest=time) if named.grows else every_text(mlm, time=time)
    return certify(chosen, target, states, block=named.block, seed=seed)


def imported(path: str, what: str = "kernel", names: Iterable[str] = KERNELS) -> Any:
    """Import the user's own function at `package.module:function`.

    Raises UserError if there is none.

    Args:
        path: where it is.
        what: it is, for messages.
        names: which could be given instead.
    """
    module, colon, name = path.partition(":")
    if not colon:
        raise UserError(
            f"no {what} {path!r}; there are {', '.join(names)}, or your own as module:function"
        )
    try:
        make: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's own code, which may fail in any way
        raise UserError(f"the {what} {path!r} cannot be loaded: {error!r}") from error
    if not callable(make):
        raise UserError(f"the {what} {path!r} is a {type(make).__name__}, not a function")
    return make
