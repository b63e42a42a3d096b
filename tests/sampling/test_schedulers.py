"""Schedulers: those of diffusers on oracles, and Metropolis-Hastings as one of them."""

import json
import math
from itertools import product

import pytest
import torch

from softbeam.cli import main
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


@pytest.mark.slow
def test_the_scheduler_of_diffusers_on_81_texts(capsys):
    """Its total variation with 1, 2 and 4 steps; corrected, it is inside the noise band."""
    try:
        import diffusers  # noqa: F401
    except ImportError:
        absent("the package diffusers (softbeam[bench]) is not installed")
    words = ["audit", "diffusers", "--oracle", "sticky", "--draws", "2500", "--json"]
    for steps, expected in ((1, 0.71), (2, 0.60), (4, 0.17)):
        assert main([*words, "--steps", str(steps)]) == 1
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        (found,) = (f for f in said["figures"] if f["name"] == "total variation")
        assert abs(found["value"] - expected) < 0.03
    assert main([*words, "--steps", "2", "--correct", "12"]) == 0


def test_the_law_of_confidence_on_81_texts_by_listing_every_draw():
    """The same figures without sampling: 0.71, 0.59 and 0.18."""
    joint = TableOracle.sticky().log_joint.exp()
    for steps, expected in ((1, 0.713), (2, 0.592), (4, 0.178)):
        law = confident_law(joint.tolist(), steps)
        gap = sum(abs(law.get(t, 0.0) - float(joint[t])) for t in product(range(3), repeat=4)) / 2
        assert gap == pytest.approx(expected, abs=1e-3)


def confident_law(joint, steps, threshold=0.95):
    """The probability of each text of 4 tokens, filled 4 // steps most confident ones at a time."""

    def p(text):
        return joint[text[0]][text[1]][text[2]][text[3]]

    def conditional(seen, site):
        weights = [
            sum(
                p(text)
                for text in product(range(3), repeat=4)
                if text[site] == token and all(text[i] == t for i, t in seen.items())
            )
            for token in range(3)
        ]
        return [w / sum(weights) for w in weights]

    states = {(): 1.0}
    for _ in range(steps):
        after = {}
        for known, share in states.items():
            seen = dict(known)
            gaps = [i for i in range(4) if i not in seen]
            tables = {i: conditional(seen, i) for i in gaps}
            for drawn in product(range(3), repeat=len(gaps)):
                sure = [tables[i][t] for i, t in zip(gaps, drawn, strict=True)]
                high = [place for place, c in enumerate(sure) if c > threshold]
                order = sorted(range(len(gaps)), key=lambda place: -round(sure[place], 9))
                keep = high if len(high) >= 4 // steps else order[: 4 // steps]
                new = seen | {gaps[place]: drawn[place] for place in keep}
                key = tuple(sorted(new.items()))
                after[key] = after.get(key, 0.0) + share * math.prod(sure)
        states = after
    return {tuple(t for _, t in known): share for known, share in states.items()}
