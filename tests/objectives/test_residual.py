"""Noise of a masked language model and a residual energy on top of it, where all can be summed."""

import math
from copy import deepcopy

import pytest
import torch

from softbeam import exact
from softbeam.models.random_field import BiLstmMrf
from softbeam.models.residual import Residual
from softbeam.objectives.energy import (
    Likelihood,
    MaskedLikelihood,
    NoiseContrastive,
    PersistentContrastiveDivergence,
)
from softbeam.objectives.losses.energy import Memory, log_partition, log_phi, true_conditionals
from softbeam.objectives.losses.masked_noise import MaskedNoise
from softbeam.sampling import importance
from softbeam.sampling.certificates import certify
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.schedules import Moment
from softbeam.types import Batch

TIME = 3
MLM = TinyMLM(words=3, seed=4)
TEXTS = every_text(MLM, time=TIME)
VOCAB = len(MLM.allowed)
SPACE = exact.Space(
    vocab=VOCAB, time=TIME, forbidden=tuple((~MLM.allowed).nonzero()[:, 0].tolist())
)


def data_law() -> torch.Tensor:
    """A law that the masked model does not have: texts with equal ends are ten times as likely."""
    weight = 1.0 + 9.0 * (TEXTS[:, 0] == TEXTS[:, -1])
    return (weight / weight.sum()).double()


def batch(rng: torch.Generator, n: int = 64) -> Batch:
    rows = TEXTS[torch.multinomial(data_law(), n, replacement=True, generator=rng)]
    return Batch.of(rows[:, :0], rows, torch.full((n,), TIME))


def residual(seed: int = 0) -> Residual:
    torch.manual_seed(seed)
    noise = MaskedNoise(MLM)
    field = BiLstmMrf(VOCAB, embedding=8, hidden=8)
    model = Residual(noise.energy(TIME), field, pad_id=MLM.pad_id, allowed=MLM.allowed)
    model.memory = Memory(VOCAB, longest=TIME, chains=256, noise=noise)
    with torch.no_grad():
        model.memory.log_z.zero_()
    return model


def divergence(model) -> float:
    """KL of the data's law from the model's, by summing over all texts."""
    with torch.no_grad():
        log_p = (-model.energy(TEXTS).double()).log_softmax(0)
    p = data_law()
    return (p * (p.log() - log_p)).sum().item()


def trained(objective, model, updates: int, lr: float = 0.02):
    rng = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for update in range(updates):
        loss = objective(model, batch(rng), now=Moment(update=update), rng=rng)
        optimizer.zero_grad()
        (loss.total / loss.size).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def by_nce():
    noise = MaskedNoise(MLM)
    return trained(NoiseContrastive(noise=noise, nu=4), residual(), 60)


def bracket(model, steps: int = 60) -> importance.Bracket:
    """log Z between chains up from a fitted start and down from exact samples."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        p = (-model.energy(TEXTS)).double().softmax(0)
        samples = TEXTS[torch.multinomial(p, 200, True, generator=rng)]
        start = importance.MarkovChain.uniform(VOCAB, TIME, forbidden=SPACE.forbidden)
        return importance.bracket(
            lambda rows: -model.energy(rows), start.fitted(samples), samples, steps=steps, rng=rng
        )


def exact_log_z(model) -> float:
    return exact.log_partition(lambda rows: -model.energy(rows), SPACE).item()


def test_noise_has_the_law_that_it_says():
    noise, rng = MaskedNoise(MLM), torch.Generator().manual_seed(0)
    every = torch.ones_like(TEXTS).bool()
    p = noise.log_prob(TEXTS, every).exp()
    assert p.sum().item() == pytest.approx(1.0)
    first = []
    for text in TEXTS.tolist():  # by single calls of the model, in plain loops
        log_p = 0.0
        for site in range(TIME):
            masked = torch.arange(TIME)[None] >= site
            logits = MLM.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))[0]
            kept = logits.masked_fill(~MLM.allowed, -math.inf).log_softmax(-1)
            log_p += kept[text[site]].item()
        first.append(log_p)
    torch.testing.assert_close(p.log(), torch.tensor(first).double(), atol=1e-5, rtol=0)
    drawn = noise.sample(torch.full((2000,), TIME), rng)
    seen = (drawn[:, None] == TEXTS).all(-1).double().mean(0)
    assert ((seen - p).abs() < 5 * (p * (1 - p) / 2000).sqrt() + 1e-3).all()
    short = noise.sample(torch.tensor([1, 3]), rng)
    assert short[0, 1:].tolist() == [MLM.pad_id] * 2 and (short[1] != MLM.pad_id).all()
    one = every_text(MLM, time=1)
    padded = torch.cat([one, one.new_full((3, 2), MLM.pad_id)], 1)
    mask = torch.tensor([True, False, False]).expand(3, 3)
    alone = noise.log_prob(one, mask[:, :1])
    torch.testing.assert_close(noise.log_prob(padded, mask), alone)
    assert alone.exp().sum().item() == pytest.approx(1.0)


def test_an_untrained_residual_is_the_masked_models_law():
    model = residual()
    log_q = MaskedNoise(MLM).log_prob(TEXTS, torch.ones_like(TEXTS).bool())
    torch.testing.assert_close(-model.energy(TEXTS).double(), log_q, atol=1e-5, rtol=0)
    assert exact_log_z(model) == pytest.approx(0.0, abs=1e-5)
    assert [name for name, _ in model.named_parameters() if "field" not in name] == ["memory.log_z"]
    rows = Batch.of(TEXTS[:, :0], TEXTS, torch.full((27,), TIME))
    with pytest.raises(ValueError, match="MaskedLikelihood needs a model with potentials"):
        MaskedLikelihood()(model, rows, now=Moment(), rng=torch.Generator())


def test_exact_likelihood_of_a_residual_sums_over_all_texts():
    model = residual()
    torch.nn.init.normal_(model.field.output.weight)
    log_z = math.log(sum(math.exp(-model.energy(row[None]).item()) for row in TEXTS))
    assert log_partition(model, TIME).item() == pytest.approx(log_z, abs=1e-5)
    rows = batch(torch.Generator().manual_seed(0), 5)
    loss = Likelihood()(model, rows, now=Moment(), rng=torch.Generator())
    expected = sum(model.energy(row[None]).item() + log_z for row in rows.target)
    assert loss.total.item() == pytest.approx(expected, abs=1e-4)
    assert log_phi(model, rows.target, rows.mask)[0] == -model.energy(rows.target)[0]
    log_p = true_conditionals(model, rows.target, rows.mask)
    for site in range(TIME):
        changed = rows.target[:1].repeat(3, 1)
        changed[:, site] = MLM.allowed.nonzero()[:, 0]
        expected = (-model.energy(changed)).log_softmax(0)
        torch.testing.assert_close(log_p[0, site, MLM.allowed], expected)
        assert log_p[0, site, ~MLM.allowed].isneginf().all()


@pytest.mark.slow
def test_contrast_with_the_masked_models_samples_learns_the_data_and_log_z(by_nce):
    assert divergence(by_nce) < divergence(residual()) / 10
    assert by_nce.memory.log_z[TIME].item() == pytest.approx(exact_log_z(by_nce), abs=0.15)


@pytest.mark.slow
def test_log_z_is_bracketed_and_chains_follow_the_model(by_nce):
    truth, both = exact_log_z(by_nce), bracket(by_nce)
    assert both.holds(truth) and both.high.log_z - both.low.log_z < 0.3
    model = deepcopy(by_nce).double().requires_grad_(False)
    kernel = metropolis_hastings(model.energy, MaskedConditionals(MLM))
    assert all(c.holds for c in certify(kernel, model.energy, TEXTS, chains=200))
    other = residual().double().requires_grad_(False)  # another law than the kernel's
    assert not all(c.holds for c in certify(kernel, other.energy, TEXTS, chains=50))


@pytest.mark.slow
def test_persistent_chains_of_the_kernel_train_it_too():
    objective = PersistentContrastiveDivergence(
        kernel=lambda model: metropolis_hastings(model.energy, MaskedConditionals(MLM)),
        sweeps=2,
    )
    model = trained(objective, residual(), 40)
    assert divergence(model) < divergence(residual()) / 3
    assert bracket(model).holds(exact_log_z(model))


@pytest.mark.slow
def test_a_field_alone_is_trained_by_the_same_noise():
    torch.manual_seed(0)
    field = BiLstmMrf(VOCAB, embedding=8, hidden=8)
    field.memory = Memory(VOCAB, longest=TIME)
    before = divergence(field)
    trained(NoiseContrastive(noise=MaskedNoise(MLM), nu=2), field, 100, lr=0.05)
    assert divergence(field) < before / 2
