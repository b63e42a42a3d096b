"""Schedulers: those of diffusers on oracles, and Metropolis-Hastings as one of them."""

import pytest
import torch

from softbeam.sampling.audit import audit
from softbeam.sampling.oracles import TableOracle
from softbeam.sampling.schedulers import MetropolisScheduler, Output, scheduled
from softbeam.sampling.unmasking import NAMES
from support.requirements import absent

ORACLE = TableOracle.random(3, 3, scale=1.0, seed=5)
MASK = ORACLE.mask_id


@pytest.mark.slow
def test_metropolis_hastings_as_a_scheduler_reaches_the_law():
    ours = MetropolisScheduler(ORACLE.energy, mask_id=MASK)
    draft = audit(scheduled(ours, mask_id=MASK, steps=1), ORACLE, draws=3000)
    assert not draft.holds and draft.rows == 1
    mended = audit(scheduled(ours, mask_id=MASK, steps=25), ORACLE, draws=3000)
    assert mended.holds and mended.rows == 25


def test_visible_tokens_stay_and_have_all_probability():
    seen = []

    class Watching(MetropolisScheduler):
        def step(self, model_output, timestep, sample, **options):
            seen.append((model_output, sample))
            return super().step(model_output, timestep, sample, **options)

    tokens, hidden = ORACLE.hidden(4)
    tokens[:, 1], hidden[:, 1] = 2, False
    ours = Watching(ORACLE.energy, mask_id=MASK)
    texts = scheduled(ours, mask_id=MASK, steps=6)(
        ORACLE, tokens, hidden, torch.Generator().manual_seed(0)
    )
    assert bool((texts[:, 1] == 2).all()) and bool((texts < 3).all())
    for logits, sample in seen:
        assert bool((sample[:, 1] == 2).all())
        assert logits[0, 1].softmax(-1).tolist() == [0, 0, 1, 0, 0]
    masks = [(sample == MASK)[0].tolist() for _, sample in seen]
    assert masks[:3] == [[True, False, True], [True, False, False], [False, False, True]]


def test_a_scheduler_gets_what_its_step_takes():
    calls = []

    class Greedy:
        def set_timesteps(self, number, **options):
            calls.append((number, options))

        def step(self, logits, timestep, sample, *, mask_token_id, generator, temperature):
            calls.append((timestep, temperature))
            return Output(torch.where(sample == mask_token_id, logits.argmax(-1), sample))

    sampler = scheduled(Greedy(), mask_id=MASK, steps=2, temperature=0.5)
    texts = sampler(ORACLE, *ORACLE.hidden(1), torch.Generator())
    assert calls == [(2, {"block_length": 3}), (0, 0.5), (1, 0.5)] and bool((texts < 3).all())


@pytest.mark.slow
def test_the_scheduler_of_diffusers_draws_as_our_function_does():
    try:
        import diffusers
    except ImportError:
        absent("the package diffusers (softbeam[bench]) is not installed")
    for steps in (1, 3):
        theirs = diffusers.BlockRefinementScheduler(threshold=1.0)
        sampler = scheduled(theirs, mask_id=MASK, steps=steps, temperature=1.0)
        found = audit(sampler, ORACLE, draws=1000, repetitions=2)
        ours = audit(NAMES["confidence"](steps), ORACLE, draws=1000, repetitions=2, seed=1)
        a, b = (result.figures[0].value for result in (found, ours))
        assert abs(a - b) < 0.07 and not found.holds
