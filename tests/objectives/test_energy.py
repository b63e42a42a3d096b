"""Objectives of energy-based models against enumeration in plain loops, in float64."""

import copy
import itertools
import math
from functools import cache

import pytest
import torch
from torch import nn

from softbeam import exact
from softbeam.errors import UserError
from softbeam.models.lstm import Seq2Seq
from softbeam.models.random_field import BiLstmMrf
from softbeam.objectives.energy import (
    KlProjection,
    Likelihood,
    MaskedLikelihood,
    NoiseContrastive,
    PersistentContrastiveDivergence,
    Pseudolikelihood,
)
from softbeam.objectives.losses.energy import (
    Field,
    Memory,
    Noise,
    SharingField,
    UnigramNoise,
    divergence,
    free_conditionals,
    log_phi,
    nce,
    true_conditionals,
)
from softbeam.schedules import Moment
from softbeam.training.checkpoint import restore_training, training_tensors
from softbeam.types import Batch, ChainState, Kernel, StepInfo

V = 3


class Table(nn.Module):
    r"""A field whose f(v, h(y\t)) are independent numbers, for each length, t and context."""

    vocab = V

    def __init__(self, longest: int = 3, *, scale: float = 1.0, seed: int = 0):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.tables = nn.ParameterList(
            scale * torch.randn(n, V ** (n - 1), V, generator=rng, dtype=torch.float64)
            for n in range(1, longest + 1)
        )

    def potentials(self, tokens, mask):
        found = torch.zeros(*tokens.shape, V, dtype=torch.float64)
        for row, n in enumerate(mask.sum(1).tolist()):
            for t in range(n):
                context = [y for s, y in enumerate(tokens[row, :n].tolist()) if s != t]
                code = sum(y * V**i for i, y in enumerate(context))
                found[row, t] = self.tables[n - 1][t, code]
        return found


def mrf(seed: int = 0, **sizes: int) -> BiLstmMrf:
    """A model with large weights, so that every context matters."""
    torch.manual_seed(seed)
    model = BiLstmMrf(V, **({"embedding": 4, "hidden": 5} | sizes)).double()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    return model


class Pairs(nn.Module):
    """A field over pairs of tokens that can be any distribution, and is quick to train."""

    vocab = V

    def __init__(self):
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.f = nn.Parameter(torch.randn(2, V, V, generator=rng, dtype=torch.float64))

    def potentials(self, tokens, mask):
        return torch.stack([self.f[0][tokens[:, 1]], self.f[1][tokens[:, 0]]], 1)


FIELDS = [mrf, Table]


def batch_of(*sequences, width: int | None = None, fill: int = 0) -> Batch:
    width = max(len(s) for s in sequences) if width is None else width
    target = torch.tensor([[*s, *[fill] * (width - len(s))] for s in sequences])
    mask = torch.tensor([[t < len(s) for t in range(width)] for s in sequences])
    return Batch.of(torch.zeros_like(target), target, mask.sum(1))


SEQUENCES = [(2, 0, 1), (1, 1), (0, 2, 2), (1,)]
BATCH = batch_of(*SEQUENCES)
START = Moment()


def call(objective, model, batch=BATCH, seed: int = 0):
    return objective(model, batch, now=START, rng=torch.Generator().manual_seed(seed))


def gradients(value, model) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    pairs = zip(model.parameters(), found, strict=True)
    return [torch.zeros_like(p) if g is None else g for p, g in pairs]


def score(model, sequence) -> torch.Tensor:
    """-E_raw of one sequence: a plain sum of its potentials."""
    tokens = torch.tensor([sequence])
    scores = model.potentials(tokens, torch.ones_like(tokens, dtype=torch.bool))[0]
    return sum(scores[t, y] for t, y in enumerate(sequence))


@cache
def space(time: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(V), repeat=time))


def plain_distribution(model, time: int) -> dict[tuple[int, ...], float]:
    weights = {y: math.exp(score(model, y).item()) for y in space(time)}
    z = math.fsum(weights.values())
    return {y: w / z for y, w in weights.items()}


def plain_conditional(model, sequence, t: int) -> list[torch.Tensor]:
    r"""p(y_t = v | y\t) for every v, each substituted sequence scored by itself."""
    changed = [(*sequence[:t], v, *sequence[t + 1 :]) for v in range(V)]
    weights = [score(model, y).exp() for y in changed]
    return [w / sum(weights) for w in weights]


# Likelihood


@pytest.mark.parametrize("make", FIELDS)
def test_likelihood_normalizes_each_length_by_itself(make):
    model = make()
    found = call(Likelihood(), model)
    expected = -sum(math.log(plain_distribution(model, len(y))[y]) for y in SEQUENCES)
    assert found.total.item() == pytest.approx(expected, abs=1e-10)
    assert found.size == 9 and found.log["nll"] == pytest.approx(expected / 4)


@pytest.mark.parametrize("make", FIELDS)
def test_the_likelihoods_gradient_is_data_minus_model_expectation(make):
    model = make()
    found = gradients(call(Likelihood(), model, batch_of((2, 0, 1), (1, 1))).total, model)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for sequence in ((2, 0, 1), (1, 1)):
        p = plain_distribution(model, len(sequence))
        for y in space(len(sequence)):
            weight = p[y] - float(y == sequence)
            for total, part in zip(expected, gradients(score(model, y), model), strict=True):
                total += weight * part
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


# Pseudolikelihood, true and degenerate


@pytest.mark.parametrize("make", FIELDS)
def test_the_conditionals_are_those_of_the_joint(make):
    model = make()
    found = true_conditionals(model, BATCH.target, BATCH.mask)
    for row, sequence in enumerate(SEQUENCES):
        for t in range(len(sequence)):
            expected = torch.stack(plain_conditional(model, sequence, t))
            torch.testing.assert_close(found[row, t].exp(), expected)
        tokens = torch.tensor([sequence])
        log_p = exact.conditionals(
            lambda rows: log_phi(model, rows, torch.ones_like(rows, dtype=torch.bool)),
            tokens,
            exact.Space(vocab=V, time=len(sequence)),
        )
        torch.testing.assert_close(found[row, : len(sequence)], log_p[0])


@pytest.mark.parametrize("make", FIELDS)
def test_pseudolikelihood_equals_a_plain_sum_with_its_gradient(make):
    model = make()
    found = call(Pseudolikelihood(), model)
    expected = -sum(
        plain_conditional(model, y, t)[y[t]].log() for y in SEQUENCES for t in range(len(y))
    )
    torch.testing.assert_close(found.total, expected)
    for a, b in zip(gradients(found.total, model), gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", FIELDS)
def test_masked_likelihood_equals_a_plain_sum_and_is_not_the_pseudolikelihood(make):
    model, expected = make(), 0.0
    for sequence in SEQUENCES:
        tokens = torch.tensor([sequence])
        scores = model.potentials(tokens, torch.ones_like(tokens, dtype=torch.bool))[0]
        for t, y in enumerate(sequence):
            expected -= math.log(scores[t, y].exp().item() / scores[t].exp().sum().item())
    found = call(MaskedLikelihood(), model)
    assert found.total.item() == pytest.approx(expected)
    assert abs(found.total.item() - call(Pseudolikelihood(), model).total.item()) > 0.1
    free, true = (
        conditionals(model, BATCH.target, BATCH.mask).exp()
        for conditionals in (free_conditionals, true_conditionals)
    )
    assert (free - true)[0].abs().amax(-1).min() > 0.01, "they differ at every position"
    torch.testing.assert_close(free[3, 0], true[3, 0])  # nothing else depends on a single token


def test_hidden_positions_train_the_mask_embedding():
    model = mrf()
    plain = gradients(call(MaskedLikelihood(), model).total, model)[0]
    assert not plain[model.mask_id].any()
    hidden = gradients(call(MaskedLikelihood(hide=0.6), model).total, model)[0]
    assert hidden[model.mask_id].any() and not hidden[model.pad_id].any()


# KL projection


class Given(nn.Module):
    """A masked language model whose logits are given."""

    vocab = V

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def potentials(self, tokens, mask):
        return self.logits


@pytest.mark.parametrize("make", FIELDS)
def test_kl_is_zero_with_the_true_conditionals_as_teacher_and_positive_otherwise(make):
    model = make()
    true = true_conditionals(model, BATCH.target, BATCH.mask).detach()
    found = call(KlProjection(teacher=Given(true + 5.0), pseudolikelihood=0.0), model)
    assert abs(found.total.item()) < 1e-12
    assert max(g.abs().max() for g in gradients(found.total, model)) < 1e-12
    own = call(KlProjection(teacher=copy.deepcopy(model), pseudolikelihood=0.0), model)
    assert own.total.item() > 0.1, "the free conditionals are not the true ones"


def test_kl_equals_a_plain_sum_and_pll_is_added_with_its_weight():
    model, teacher = mrf(), mrf(seed=1)
    expected, free = 0.0, free_conditionals(teacher, BATCH.target, BATCH.mask).exp()
    for row, sequence in enumerate(SEQUENCES):
        for t in range(len(sequence)):
            p, q = free[row, t].tolist(), plain_conditional(model, sequence, t)
            expected += sum(a * math.log(a / b.item()) for a, b in zip(p, q, strict=True))
    alone = call(KlProjection(teacher=teacher, pseudolikelihood=0.0), model)
    assert alone.total.item() == pytest.approx(expected)
    pll = call(Pseudolikelihood(), model)
    both = call(KlProjection(teacher=teacher), model)
    torch.testing.assert_close(both.total, alone.total + pll.total)
    half = call(KlProjection(teacher=teacher, pseudolikelihood=0.5), model)
    torch.testing.assert_close(half.total, alone.total + 0.5 * pll.total)
    assert both.log["pseudo_nll"] == pytest.approx(pll.log["pseudo_nll"])


def test_the_teacher_is_not_trained_and_not_the_model():
    model, teacher = mrf(), mrf(seed=1)
    call(KlProjection(teacher=teacher), model).total.backward()
    assert all(p.grad is None and p.requires_grad for p in teacher.parameters())
    with pytest.raises(ValueError, match="teacher is the model"):
        call(KlProjection(teacher=model), model)
    with pytest.raises(ValueError, match="teacher has 4"):
        call(KlProjection(teacher=BiLstmMrf(4, embedding=2, hidden=2)), model)


class Losses(nn.Module):
    """A loss as a function of the parameters, for gradcheck."""

    def __init__(self, objective, model):
        super().__init__()
        self.objective, self.model = objective, model

    def forward(self, batch):
        return call(self.objective, self.model, batch).total


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [Likelihood(), Pseudolikelihood(), KlProjection(teacher=mrf(seed=1), pseudolikelihood=0.0)],
    ids=lambda o: type(o).__name__,
)
def test_gradients_by_finite_differences(objective):
    """Along random directions in the space of all parameters."""
    model = mrf(embedding=2, hidden=2)
    losses, batch = Losses(objective, model), batch_of((2, 0, 1), (1, 1))
    names = [f"model.{name}" for name, _ in model.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in model.parameters()]

    def loss(*values):
        return torch.func.functional_call(losses, dict(zip(names, values, strict=True)), (batch,))

    assert torch.autograd.gradcheck(loss, values, fast_mode=True)


def test_divergence_by_finite_differences():
    p, q = (torch.randn(2, 3, V, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = torch.tensor([[True, True, True], [True, False, False]])

    def loss(p, q):
        return divergence(p.log_softmax(-1), q.log_softmax(-1), mask)

    assert torch.autograd.gradcheck(loss, (p, q)) and (loss(p, q) > 0).all()


# Noise-contrastive estimation


class EverySequence:
    """Uniform noise, drawn without chance: all sequences of the length in turn."""

    def sample(self, lengths, rng):
        time = int(lengths.max())
        rows, counts = [], dict.fromkeys(lengths.tolist(), 0)
        for n in lengths.tolist():
            y = space(n)[counts[n] % V**n]
            rows.append([*y, *[0] * (time - n)])
            counts[n] += 1
        return torch.tensor(rows)

    def log_prob(self, tokens, mask):
        return -mask.sum(1) * math.log(V)


def with_memory(model, **options):
    model.memory = Memory(V, **({"longest": 3, "chains": 4} | options))
    return model.double()


@pytest.mark.parametrize("self_normalized", [False, True])
def test_nce_equals_a_plain_sum(self_normalized):
    model, nu = with_memory(mrf()), 27
    with torch.no_grad():
        model.memory.log_z.copy_(torch.tensor([0.0, 1.0, 2.0, 2.5]))
    batch = batch_of((2, 0, 1), (1, 1, 1))
    log_z = 0.0 if self_normalized else 2.5
    expected, log_q = 0.0, -3 * math.log(V)

    def p_data(y) -> float:
        p = math.exp(score(model, y).item() - log_z)
        return p / (p + nu * math.exp(log_q))

    for sequence in ((2, 0, 1), (1, 1, 1)):
        expected -= math.log(p_data(sequence))
        expected -= sum(math.log(1 - p_data(y)) for y in space(3))
    objective = NoiseContrastive(noise=EverySequence(), nu=nu, self_normalized=self_normalized)
    found = call(objective, model, batch)
    assert found.total.item() == pytest.approx(expected)
    gradient = gradients(found.total, model)
    assert bool(gradient[-1].any()) == (not self_normalized), "log Z is learned"


@pytest.mark.slow
def test_the_gradient_of_nce_tends_to_that_of_the_likelihood():
    """With all noise enumerated and log Z right; the difference falls as 1 / nu."""
    model, sequence = mrf(), (2, 0, 1)
    expected = gradients(call(Likelihood(), model, batch_of(sequence)).total, model)
    log_z = torch.stack([score(model, y) for y in space(3)]).logsumexp(0).detach()
    errors = []
    for nu in (1e3, 1e6):
        ratio = {y: score(model, y) - log_z + 3 * math.log(V) for y in space(3)}
        noise = torch.stack(list(ratio.values()))[None]
        found = gradients(nce(ratio[sequence][None], noise, nu=nu).sum(), model)
        errors.append(max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True)))
    assert errors[1] < 1e-4 and errors[0] / errors[1] == pytest.approx(1e3, rel=0.5)


def fitted(model, objective, batch) -> nn.Module:
    """The model where the objective, which is without chance, is least."""
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = call(objective, model, batch)
        loss.total.backward()
        return loss.total

    optimizer.step(closure)
    return model


SKEWED = [(0, 1)] * 8 + [(1, 0)] * 4 + [(2, 2)] * 3 + list(itertools.product(range(V), repeat=2))
SHARES = {y: SKEWED.count(y) / len(SKEWED) for y in SKEWED}  # every pair occurs
ENTROPY = -sum(p * math.log(p) for p in SHARES.values())


@pytest.mark.parametrize("self_normalized", [False, True])
def test_nce_recovers_the_log_ratio_and_the_normalizer(self_normalized):
    model, batch = with_memory(Pairs(), longest=2), batch_of(*SKEWED)
    objective = NoiseContrastive(noise=EverySequence(), nu=9, self_normalized=self_normalized)
    fitted(model, objective, batch)
    log_z = 0.0 if self_normalized else model.memory.log_z[2].item()
    for y, p in SHARES.items():
        assert score(model, y).item() - log_z == pytest.approx(math.log(p), abs=1e-3)


def test_unigram_noise_is_a_distribution_for_each_length():
    noise = UnigramNoise.fit(BATCH.target, BATCH.mask, vocab=V, smoothing=0.5)
    assert isinstance(noise, Noise)
    # Of length 2 there is (1, 1): counts 0.5, 2.5, 0.5.
    torch.testing.assert_close(noise.probs[2], torch.tensor([1, 5, 1]).double() / 7)
    for time in (1, 2, 3):
        every = batch_of(*space(time), width=4, fill=V)
        assert noise.log_prob(every.target, every.mask).exp().sum().item() == pytest.approx(1)
    lengths = torch.tensor([2, 3]).repeat_interleave(4000)
    drawn = noise.sample(lengths, torch.Generator().manual_seed(0))
    share = (drawn[:4000, :2] == 1).double().mean().item()
    assert share == pytest.approx(5 / 7, abs=4 * (10 / 49 / 8000) ** 0.5)
    again = noise.sample(lengths, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_impossible_noise_is_refused():
    batch = batch_of((0, 0))
    with pytest.raises(ValueError, match="smoothing=0"):
        UnigramNoise.fit(batch.target, batch.mask, vocab=V, smoothing=0.0)
    noise = UnigramNoise(torch.tensor([[0.0, 0.5, 0.5]]).repeat(3, 1))
    with pytest.raises(ValueError, match="probability 0"):
        call(NoiseContrastive(noise=noise, self_normalized=True), mrf(), batch)
    with pytest.raises(ValueError, match="length 3"):
        call(NoiseContrastive(noise=noise, self_normalized=True), mrf(), batch_of((1, 1, 1)))


# Persistent contrastive divergence


def gibbs(model) -> Kernel:
    """Draws each chain's one position from its true conditional."""

    def init(tokens):
        return ChainState(tokens, -log_phi(model, tokens, tokens >= 0))

    def step(state, positions, rng):
        log_p = true_conditionals(model, state.tokens, state.tokens >= 0)[positions]
        drawn = torch.multinomial(log_p.exp(), 1, generator=rng)[:, 0]
        tokens = state.tokens.clone()
        tokens[positions] = drawn
        moved = (tokens != state.tokens).any(-1)
        yes = torch.ones_like(moved)
        info = StepInfo(torch.zeros(len(moved)), yes, moved, ~moved, ~yes)
        return init(tokens), info

    return Kernel(init, step)


PCD = PersistentContrastiveDivergence(kernel=gibbs)


def test_the_gradient_of_pcd_is_data_minus_chains():
    model = with_memory(mrf())
    found = call(PCD, model)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for sequence in SEQUENCES:
        n = len(sequence)
        chains = model.memory.chains[n, :, :n].tolist()
        value = sum(score(model, y) for y in chains) / 4 - score(model, sequence)
        for total, part in zip(expected, gradients(value, model), strict=True):
            total += part
    for a, b in zip(gradients(found.total, model), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert found.log["chain_energy"] != found.log["energy"] and 0 < found.log["moved"] <= 1


def test_chains_go_on_and_those_of_absent_lengths_rest():
    model = with_memory(mrf(), chains=50)
    before = model.memory.chains.clone()
    call(PCD, model, batch_of((0, 1), (2, 2)))
    after = model.memory.chains
    assert not torch.equal(after[2, :, :2], before[2, :, :2])
    assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]]) and after.max() < V


@pytest.mark.slow
def test_pcd_comes_near_the_exact_likelihood():
    model, batch = with_memory(Pairs(), longest=2, chains=300), batch_of(*SKEWED)
    before = call(Likelihood(), model, batch).log["nll"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    rng = torch.Generator().manual_seed(0)
    for _ in range(80):
        optimizer.zero_grad()
        PCD(model, batch, now=START, rng=rng).total.backward()
        optimizer.step()
        falling.step()
    after = call(Likelihood(), model, batch).log["nll"]
    best = call(Likelihood(), fitted(Pairs(), Likelihood(), batch), batch).log["nll"]
    assert best == pytest.approx(ENTROPY, abs=1e-6)
    assert before > best + 0.3 and after < best + 0.02


def test_likelihood_and_pseudolikelihood_find_the_truth_and_the_masked_objective_does_not():
    """NLL(MLM) > NLL(PLL) = NLL(LL): the thesis's ordering (Sec. 6.2.2), with data without end."""
    batch = batch_of(*SKEWED)
    ll, pll, mlm = (
        call(Likelihood(), fitted(Pairs(), objective, batch), batch).log["nll"]
        for objective in (Likelihood(), Pseudolikelihood(), MaskedLikelihood())
    )
    assert ll == pytest.approx(ENTROPY, abs=1e-6) and pll == pytest.approx(ENTROPY, abs=1e-6)
    assert mlm > ENTROPY + 0.1


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint_to_the_same_weights_and_chains():
    def begin():
        model = with_memory(mrf())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        return model, optimizer, torch.Generator().manual_seed(5)

    def go_on(model, optimizer, rng, updates):
        for _ in range(updates):
            optimizer.zero_grad()
            PCD(model, BATCH, now=START, rng=rng).total.backward()
            optimizer.step()

    whole = begin()
    go_on(*whole, 2)
    saved = {name: t.clone() for name, t in training_tensors(*whole).items()}
    go_on(*whole, 3)
    resumed = begin()
    go_on(*resumed, 1)
    restore_training(saved, *resumed)
    go_on(*resumed, 3)
    for a, b in zip(whole[0].state_dict().values(), resumed[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


# Conformance

EXACT = [
    Likelihood(),
    Pseudolikelihood(),
    MaskedLikelihood(),
    KlProjection(teacher=mrf(seed=1)),
]
NOISE = UnigramNoise.fit(BATCH.target, BATCH.mask, vocab=V)
ALL = [*EXACT, MaskedLikelihood(hide=0.5), NoiseContrastive(noise=NOISE, nu=3), PCD]


def name_of(objective) -> str:
    return type(objective).__name__


@pytest.mark.parametrize("objective", [*EXACT, *ALL[5:]], ids=name_of)
def test_more_padding_changes_nothing(objective):
    wider = batch_of(*SEQUENCES, width=5, fill=2)
    losses = [call(objective, with_memory(mrf()), batch) for batch in (BATCH, wider)]
    torch.testing.assert_close(losses[0].total, losses[1].total)
    assert losses[0].size == losses[1].size == 9
    assert dict(losses[0].log) == pytest.approx(dict(losses[1].log))


@pytest.mark.parametrize("objective", EXACT, ids=name_of)
def test_a_batch_is_the_sum_of_its_rows_in_any_order(objective):
    model = mrf()
    together = call(objective, model).total
    swapped = call(objective, model, batch_of(*SEQUENCES[::-1])).total
    alone = sum(call(objective, model, batch_of(y)).total for y in SEQUENCES)
    torch.testing.assert_close(swapped, together)
    torch.testing.assert_close(alone, together)
    for a, b in zip(gradients(together, model), gradients(alone, model), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("make", FIELDS)
@pytest.mark.parametrize("kind", [Likelihood, Pseudolikelihood])
def test_chunks_change_nothing(kind, make):
    model = make()
    whole = call(kind(), model).total
    expected = gradients(whole, model)
    for chunk in (4, 10):
        parts = call(kind(chunk=chunk), model).total
        torch.testing.assert_close(parts, whole)
        for a, b in zip(gradients(parts, model), expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("objective", ALL, ids=name_of)
def test_gradient_reaches_every_parameter_and_is_finite(objective):
    model = with_memory(mrf()).float()
    batch = batch_of(*SEQUENCES)
    if isinstance(objective, KlProjection):
        objective = KlProjection(teacher=mrf(seed=1).float())
    loss = call(objective, model, batch)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        if name != "memory.log_z" or isinstance(objective, NoiseContrastive):
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("objective", ALL[4:], ids=name_of)
def test_same_seed_same_loss(objective):
    one, two = (call(objective, with_memory(mrf()), seed=3).total for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, call(objective, with_memory(mrf()), seed=4).total)


def test_an_empty_sequence_costs_nothing():
    longer = batch_of(*SEQUENCES, ())
    for objective in EXACT:
        torch.testing.assert_close(
            call(objective, mrf(), longer).total, call(objective, mrf()).total
        )
    call(PCD, with_memory(mrf()), longer)


def test_knobs_are_checked():
    for make in (
        lambda: Likelihood(chunk=0),
        lambda: Pseudolikelihood(chunk=0),
        lambda: KlProjection(teacher=None, chunk=0),
        lambda: NoiseContrastive(noise=NOISE, nu=0),
        lambda: PersistentContrastiveDivergence(kernel=gibbs, sweeps=0),
    ):
        with pytest.raises(UserError, match=" 0: must be at least 1"):
            make()
    with pytest.raises(UserError, match="hide 1.0: must be at least 0 and below 1"):
        MaskedLikelihood(hide=1.0)
    with pytest.raises(ValueError, match="longest=0"):
        Memory(V, longest=0)


def test_models_without_potentials_or_memory_are_refused():
    with pytest.raises(ValueError, match="Seq2Seq"):
        call(Likelihood(), Seq2Seq(4, 3, embedding=2, hidden=2))
    assert isinstance(Table(), Field) and not isinstance(Table(), SharingField)
    with pytest.raises(ValueError, match="no memory"):
        call(PCD, mrf())
    with pytest.raises(ValueError, match="longest=2"):
        call(PCD, with_memory(mrf(), longest=2))
    with pytest.raises(ValueError, match="chains=1"):
        call(PCD, with_memory(mrf(), chains=0))
