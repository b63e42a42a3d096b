"""Power sampling of continuations of a prompt, with diagnostics and the tokens that were read."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from softbeam.models.huggingface.prefixes import HfPrefixLM
from softbeam.runtime.progress import Progress
from softbeam.sampling.chains import Plan, run_chains
from softbeam.sampling.diagnostics import Mixing, mixing
from softbeam.sampling.power import CountedCausal, power_metropolis_hastings, sharpened


class PowerSamples(NamedTuple):
    """Continuations sampled from p^alpha, and what they cost."""

    texts: list[list[str]]  # sweep, chain; after the burn-in
    log_p: Float[Tensor, "sweep chain"]  # of the model, at alpha 1
    accept: float  # share of proposals that were accepted
    mixing: Mixing  # of log_p
    tokens: int  # that the model read
    from_start: int  # that it would have read if every proposal began with the prompt
    low_temperature: float  # mean log_p of texts drawn at the temperature 1 / alpha


def power_sample(
    lm: HfPrefixLM,
    prompt: str,
    *,
    alpha: float,
    length: int,
    chains: int,
    sweeps: int,
    burn_in: int,
    moves: int,
    seed: int,
    reuse: bool = True,
    quiet: bool = False,
) -> PowerSamples:
    """Run chains over continuations of a prompt; a sweep has `moves` proposals.

    Args:
        lm: the language model.
        prompt: the text to continue.
        alpha: the power of the model's probability.
        length: the number of tokens of a continuation.
        chains: the number of chains.
        sweeps: the number of sweeps, including the burn-in.
        burn_in: sweeps that are left out.
        moves: the positions of a sweep at which texts are cut, evenly spaced.
        seed: the seed of all random numbers.
        reuse: keep what the model has read.
        quiet: show no progress.
    """
    bound = lm.after(prompt)
    counted = CountedCausal(bound, prompt=len(bound.prompt))
    rng = torch.Generator().manual_seed(seed)
    start = [sharpened(counted, length, rng, alpha=alpha, eos=lm.eos) for _ in range(chains)]
    kernel = power_metropolis_hastings(counted, alpha=alpha, eos=lm.eos, reuse=reuse)
    free = torch.zeros(chains, length, dtype=torch.bool)
    free[:, :: max(length // moves, 1)] = True
    proposals = int(free.sum()) * sweeps
    counted.tokens = 0
    first = kernel.init(torch.tensor(start))
    read_once = counted.tokens
    texts, energies, accepted = [], [], []
    plan = Plan(sweeps=sweeps, burn_in=burn_in)
    with Progress("power", sweeps, quiet=quiet) as progress:
        for record in run_chains(kernel, first, free, plan=plan, rng=rng):
            rate = float(record.counts.rate("accepted").mean())
            progress.advance(shown={"accept": f"{rate:.2f}"})
            if record.phase == "sample":
                texts.append([lm.decode(row) for row in record.state.tokens.tolist()])
                energies.append(record.state.energy)
                accepted.append(rate)
    log_p = -torch.stack(energies) / alpha
    whole = read_once + proposals * (len(bound.prompt) + length - 1)
    return PowerSamples(
        texts,
        log_p,
        sum(accepted) / len(accepted),
        mixing({"log p": log_p})["log p"],
        counted.tokens,
        whole,
        float(-first.energy.mean() / alpha),
    )
