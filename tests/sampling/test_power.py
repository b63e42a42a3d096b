"""Power sampling: exact transition matrices, the same chain with and without kept prefixes."""

import itertools
import math

import pytest
import torch

from softbeam.sampling.certificates import transitions
from softbeam.sampling.chains import Plan, run_chains
from softbeam.sampling.power import CountedCausal, power_metropolis_hastings, sharpened

ALPHA, EOS = 3.0, 2


class TableLM:
    """A causal language model that looks its logits up by all tokens before."""

    def __init__(self, vocab=3, time=3, seed=0, scale=1.0):
        rng = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.table = {
            prefix: scale * torch.randn(vocab, generator=rng, dtype=torch.float64)
            for n in range(time)
            for prefix in itertools.product(range(vocab), repeat=n)
        }

    def start(self):
        return self.table[()], ()

    def step(self, past, tokens):
        rows = []
        for token in tokens:
            past = (*past, token)
            rows.append(self.table[past])
        return torch.stack(rows), past

    def cut(self, past, length):
        return past[:length]

    def log_p(self, text, alpha=1.0, eos=None):
        """log of the product of each token's probability, at an inverse temperature."""
        total = 0.0
        for i, token in enumerate(text):
            if eos in text[:i]:
                return total if {*text[i:]} == {eos} else -math.inf
            logits = alpha * self.table[tuple(text[:i])]
            total += float(logits.log_softmax(-1)[token])
        return total


def words_of(tokens):
    """An energy of texts: how many tokens are 1."""
    return (tokens == 1).sum(-1).double()


def texts_of(lm, time, eos=None):
    every = list(itertools.product(range(lm.vocab), repeat=time))
    return [text for text in every if lm.log_p(text, eos=eos) > -math.inf]


@pytest.mark.slow
@pytest.mark.parametrize(("eos", "energy"), [(None, None), (1, None), (None, words_of)])
@pytest.mark.parametrize("site", [0, 1])
def test_a_step_is_reversible_for_the_power_of_the_whole_text(eos, energy, site):
    lm = TableLM(vocab=2)
    texts = texts_of(lm, 3, eos)
    states = torch.tensor(texts)
    kernel = power_metropolis_hastings(lm, alpha=ALPHA, energy=energy, eos=eos)
    found = transitions(kernel, states, torch.arange(3) == site)
    log_pi = ALPHA * torch.tensor([lm.log_p(t, eos=eos) for t in texts], dtype=torch.float64)
    pi = (log_pi - (words_of(states) if energy else 0)).softmax(0)
    flow = pi[:, None] * found.matrix
    assert float((flow - flow.T).abs().max()) < 1e-12
    assert found.misreported < 1e-9 and not found.outside.any()
    same = [a[:site] == b[:site] for a in texts for b in texts]
    assert torch.equal(found.matrix.flatten() > 0, torch.tensor(same)), "all ends, no other text"


def total_variation(draws, texts, log_p):
    p = torch.tensor(log_p, dtype=torch.float64).softmax(0)
    counts = torch.tensor([draws.count(text) for text in texts]).double()
    return float((counts / len(draws) - p).abs().sum() / 2)


@pytest.mark.slow
def test_chains_reach_the_noise_floor_and_a_low_temperature_does_not():
    alpha = 2.0
    lm = TableLM(seed=3)
    lm.table = {p: (0 if p[:1] == (0,) else 3) * logits for p, logits in lm.table.items()}
    lm.table[()] = torch.tensor([0.5, 0.3, 0.2]).double().log()  # 0 has many continuations
    texts = texts_of(lm, 3)
    log_p = [alpha * lm.log_p(text) for text in texts]
    rng = torch.Generator().manual_seed(0)
    n = 150
    cold = [tuple(sharpened(lm, 3, rng, alpha=alpha)) for _ in range(n)]
    p = torch.tensor(log_p).double().softmax(0)
    exact = [texts[i] for i in p.multinomial(n, replacement=True, generator=rng).tolist()]
    floor = total_variation(exact, texts, log_p)
    kernel = power_metropolis_hastings(lm, alpha=alpha)
    plan = Plan(sweeps=12, burn_in=11)
    free = torch.ones(n, 3, dtype=torch.bool)
    *_, last = run_chains(kernel, torch.tensor(cold), free, plan=plan, rng=rng)
    chains = [tuple(row) for row in last.state.tokens.tolist()]
    assert total_variation(chains, texts, log_p) < 2 * floor
    law = [lm.log_p(text, alpha=alpha) for text in texts]
    gap = float((torch.tensor(law).softmax(0) - p).abs().sum() / 2)
    assert gap > 0.1, "the law of a low temperature is another one"
    assert total_variation(cold, texts, log_p) > 2 * floor


@pytest.mark.parametrize("eos", [None, EOS])
def test_kept_prefixes_give_the_same_chain_for_fewer_tokens(eos):
    lm, time = TableLM(time=6, seed=1, scale=2.0), 6
    start = torch.tensor(
        [
            sharpened(lm, time, torch.Generator().manual_seed(s), alpha=ALPHA, eos=eos)
            for s in (1, 2)
        ]
    )
    free = torch.ones_like(start).bool()
    runs, read = [], []
    for reuse in (True, False):
        counted = CountedCausal(lm, prompt=10)
        kernel = power_metropolis_hastings(counted, alpha=ALPHA, eos=eos, reuse=reuse)
        rng = torch.Generator().manual_seed(5)
        records = list(run_chains(kernel, start, free, plan=Plan(sweeps=3, burn_in=0), rng=rng))
        runs.append(torch.stack([record.state.tokens for record in records]))
        read.append(counted.tokens)
    assert torch.equal(*runs)
    assert read[0] * 3 < read[1]
    if eos is None:
        proposals = 2 * 3 * time
        assert read[1] == 2 * (10 + time - 1) + proposals * (10 + time - 1)


def test_a_state_of_another_kernel_can_be_continued():
    lm = TableLM(seed=2)
    start = torch.tensor([[0, 1, 2], [2, 2, 1]])
    kernel = power_metropolis_hastings(lm, alpha=2.0)
    first = kernel.init(start)
    later, _ = kernel.step(first, torch.ones(2, 3).bool(), torch.Generator().manual_seed(0))
    fresh = power_metropolis_hastings(lm, alpha=2.0)
    again, _ = fresh.step(first, torch.ones(2, 3).bool(), torch.Generator().manual_seed(0))
    assert torch.equal(later.tokens, again.tokens)
    with pytest.raises(ValueError, match="alpha=0"):
        power_metropolis_hastings(lm, alpha=0)
