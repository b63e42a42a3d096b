"""Certificates: right kernels have them all, and each kind of wrong one fails its own."""

import math
import warnings

import pytest
import torch

from softbeam.sampling.certificates import (
    NotEnumerable,
    certify,
    chi_square,
    fit,
    symmetry,
    transitions,
)
from softbeam.sampling.energies import Constrained, LocalEnergy, RawEnergy
from softbeam.sampling.kernels import (
    degenerate_gibbs,
    exact_gibbs,
    metropolis_hastings,
)
from softbeam.sampling.proposals import MaskedConditionals, UniformProposals
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.types import Kernel, MaskedLM, Proposed, StepInfo

ROWS = 10**5
MLM = TinyMLM(seed=1)
STATES = every_text(MLM, time=2)
RAW, LOCAL = RawEnergy(MLM, rows=ROWS), LocalEnergy(MLM, rows=ROWS)
QUICK = {"samples": 10_000, "chains": 1000, "patience": 5}  # what is wrong is soon seen to be
PATIENT = {"samples": 10_000, "chains": 500, "patience": 20}
METHODS = ["exact", "sampled"]


def conditionals(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MaskedConditionals(MLM, rows=ROWS, **options)


def failed(kernel, energy=LOCAL, states=STATES, **options):
    """The names of the certificates that do not hold, without positions."""
    found = certify(kernel, energy, states, **QUICK, **options)
    assert len({c.name for c in found}) == len(found)
    return {c.name.split(" at ")[0] for c in found if not c.holds}


GOOD = {
    "mh": (metropolis_hastings(LOCAL, conditionals()), 2),
    "mixture": (metropolis_hastings(LOCAL, conditionals(nucleus=0.5, epsilon=0.5)), 1),
    "uniform": (metropolis_hastings(LOCAL, UniformProposals(MLM.allowed)), 1),
    "gibbs": (exact_gibbs(LOCAL, allowed=MLM.allowed), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "exact") for name in GOOD), ("mh", "sampled"), ("gibbs", "sampled")],
)
def test_right_kernels_have_all_certificates(name, method):
    kernel, block = GOOD[name]
    found = certify(kernel, LOCAL, STATES, block=block, method=method, **PATIENT)
    assert all(c.holds for c in found), found


@pytest.mark.slow
def test_the_names_of_the_certificates():
    found = certify(GOOD["mh"][0], LOCAL, STATES, block=2, **QUICK)
    sets = ("0", "1", "0, 1")
    assert [c.name for c in found] == [
        "closed",
        "bookkeeping",
        *(f"reversible at {s}" for s in sets),
        "invariant",
        "irreducible",
        "long run",
    ]
    assert all(c.value <= c.limit for c in found[:-1]) and found[-1].value >= found[-1].limit


# Must fail


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_degenerate_gibbs_is_not_invariant(method):
    kernel = degenerate_gibbs(conditionals(), LOCAL)
    assert failed(kernel, method=method) == {"reversible", "invariant", "long run"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_pure_nucleus_is_reducible_though_reversible(method):
    kernel = metropolis_hastings(LOCAL, conditionals(nucleus=0.5))
    assert failed(kernel, method=method) == {"irreducible", "long run"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_flipped_sign_is_caught(method):
    kernel = metropolis_hastings(lambda tokens: -LOCAL(tokens), conditionals())
    assert failed(kernel, method=method) >= {"reversible", "invariant", "long run"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_rejection_that_keeps_the_new_tokens_is_caught(method):
    """Accepting is decided, and nothing depends on it."""
    energy, propose = LOCAL, conditionals()
    right = metropolis_hastings(energy, propose)

    def step(state, positions, rng):
        before = rng.get_state()
        proposed = propose(state.tokens, positions, rng).tokens
        rng.set_state(before)
        new, info = right.step(state, positions, rng)
        return new._replace(tokens=proposed), info

    found = failed(Kernel(right.init, step), method=method)
    assert found == {"bookkeeping", "reversible", "invariant", "long run"}


@pytest.mark.slow
def test_a_rejection_that_leaves_the_mask_is_caught():
    """Algorithm 4 as printed: line 7 masks y itself, and nothing puts the old token back."""

    class Lenient:
        """Proposes at masks too, as code that does so must."""

        def __call__(self, tokens, positions, rng):
            known = tokens.where(tokens >= 3, 3)
            return conditionals()(known, positions, rng)

    right = metropolis_hastings(LOCAL, Lenient())

    def step(state, positions, rng):
        new, info = right.step(state, positions, rng)
        hidden = positions & ~info.accepted[:, None]
        return new._replace(tokens=new.tokens.masked_fill(hidden, MLM.mask_id)), info

    assert failed(Kernel(right.init, step)) >= {"closed", "invariant", "long run"}


@pytest.mark.slow
def test_energies_divided_as_printed_are_caught():
    """Algorithm 4, line 11: E_new q / (E_old q) instead of exp(-E_new) q / (exp(-E_old) q)."""
    assert (LOCAL(STATES) > 0).all()
    kernel = metropolis_hastings(lambda tokens: -LOCAL(tokens).log(), conditionals())
    assert failed(kernel) >= {"reversible", "invariant", "long run"}


class DifferingSet:
    """A block proposal whose q masks only the positions that differ (thesis, Sec. 6.4.1)."""

    def __call__(self, tokens, positions, rng):
        q = conditionals()
        new = q(tokens, positions, rng)
        differ = new.tokens != tokens
        q_rows = q.log_probs(tokens, differ)
        flat = torch.zeros(tokens.shape).double()
        there, back = (
            flat.masked_scatter(differ, q_rows.gather(-1, text[differ][:, None])).sum(-1)
            for text in (new.tokens, tokens)
        )
        return Proposed(new.tokens, there, back)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_q_of_the_positions_that_differ_is_caught_in_blocks(method):
    kernel = metropolis_hastings(LOCAL, DifferingSet())
    holds = {
        c.name: c.holds for c in certify(kernel, LOCAL, STATES, block=2, method=method, **QUICK)
    }
    assert not holds["invariant"]
    assert holds["reversible at 0"] and holds["reversible at 1"] and not holds["reversible at 0, 1"]


@pytest.mark.slow
def test_wrong_books_are_caught():
    right = metropolis_hastings(LOCAL, conditionals())

    def error(step):
        found = transitions(Kernel(right.init, step), STATES, torch.tensor([True, False]))
        return found.misreported

    def stale(state, positions, rng):
        new, info = right.step(state, positions, rng)
        return new._replace(energy=state.energy), info

    def proud(state, positions, rng):
        new, info = right.step(state, positions, rng)
        return new, info._replace(moved=info.accepted)

    def hopeful(state, positions, rng):
        new, info = right.step(state, positions, rng)
        return new, info._replace(log_accept=info.log_accept / 2)

    assert error(right.step) < 1e-9 and error(proud) == 1.0
    assert error(stale) > 0.1 and error(hopeful) > 0.1


@pytest.mark.slow
def test_special_tokens_that_are_proposed_are_caught():
    everything = torch.ones(6).bool()
    kernel = metropolis_hastings(LOCAL, conditionals(allowed=everything))
    assert "closed" in failed(kernel)


# Which kernels can be enumerated


def by_gumbel(accept=None):
    """Metropolis-Hastings with uniform proposals, all of whose draws are of other kinds."""

    def propose(tokens, positions, rng):
        noise = torch.empty(*tokens.shape, 3).exponential_(generator=rng)
        new = tokens.where(~positions, 3 + noise.argmax(-1))
        zero = torch.zeros(len(tokens)).double()
        return Proposed(new, zero, zero)

    return metropolis_hastings(accept or LOCAL, propose)


@pytest.mark.slow
def test_a_kernel_that_draws_otherwise_is_judged_by_samples():
    with pytest.raises(NotEnumerable, match="other than multinomial and rand"):
        certify(by_gumbel(), LOCAL, STATES, method="exact")
    assert all(c.holds for c in certify(by_gumbel(), LOCAL, STATES, block=2, **PATIENT))
    wrong = by_gumbel(lambda tokens: 2 * LOCAL(tokens))
    assert failed(wrong, block=2) >= {"reversible", "invariant", "long run"}


def test_a_kernel_that_uses_the_global_generator_is_not_enumerated():
    def propose(tokens, positions, rng):
        new = tokens.where(~positions, torch.randint(3, 6, tokens.shape))
        zero = torch.zeros(len(tokens)).double()
        return Proposed(new, zero, zero)

    with pytest.raises(NotEnumerable, match="other than"):
        transitions(metropolis_hastings(LOCAL, propose), STATES, torch.tensor([True, False]))


def turning(decide, *, numbers=1):
    """A kernel that turns the first word into the next where its uniform number says so."""
    init = metropolis_hastings(LOCAL, conditionals()).init

    def step(state, positions, rng):
        u = torch.rand(len(positions), numbers, generator=rng)[:, 0]
        moves, no = decide(u), torch.zeros(len(u)).bool()
        first = torch.where(moves, (state.tokens[:, 0] - 2) % 3 + 3, state.tokens[:, 0])
        tokens = torch.stack([first, state.tokens[:, 1]], 1)
        return init(tokens), StepInfo(torch.zeros(len(u)), moves, moves, no, no)

    return Kernel(init, step)


def test_a_threshold_is_found_though_it_is_misreported():
    """In float32 to 2^-24. It says that it always accepts; the books are wrong by 0.7."""
    found = transitions(turning(lambda u: u < 0.3), STATES, torch.tensor([True, False]))
    turned = torch.tensor([3, 4, 5, 6, 7, 8, 0, 1, 2])
    expected = 0.7 * torch.eye(9).double() + 0.3 * torch.eye(9).double()[turned]
    torch.testing.assert_close(found.matrix, expected, rtol=0, atol=1e-7)
    assert found.misreported == pytest.approx(0.7)


def test_what_depends_on_uniform_numbers_in_other_ways_is_not_enumerated():
    site = torch.tensor([True, False])
    with pytest.raises(NotEnumerable, match="in several steps"):
        transitions(turning(lambda u: (u > 0.4) & (u < 0.6)), STATES, site)
    with pytest.raises(NotEnumerable, match="call 1 of rand, of 18 numbers"):
        transitions(turning(lambda u: u < 0.3, numbers=2), STATES, site)


def test_a_choice_that_depends_on_a_uniform_number_is_not_enumerated():
    def propose(tokens, positions, rng):
        """The mixture of two laws, by choosing between them first."""
        which = torch.rand(len(tokens), generator=rng) < 0.5
        p = torch.where(
            which[:, None], torch.tensor([0, 0, 0, 1.0, 1, 1]), torch.tensor([0, 0, 0, 4.0, 1, 1])
        )
        new = torch.multinomial(p, 1, generator=rng)
        zero = torch.zeros(len(tokens)).double()
        return Proposed(tokens.masked_scatter(positions, new), zero, zero)

    kernel = degenerate_gibbs(propose, LOCAL)
    with pytest.raises(NotEnumerable, match="a choice depends on a uniform number"):
        transitions(kernel, STATES, torch.tensor([True, False]))


def test_enumerations_are_bounded():
    with pytest.raises(ValueError, match="rows exceed"):
        transitions(GOOD["mh"][0], every_text(MLM, time=6), torch.ones(6).bool())


@pytest.mark.slow
def test_frozen_positions_and_impossible_texts():
    """Texts between separators, one position narrowed: pi is 0 on the others, as it should be."""
    texts = torch.cat([torch.full((9, 1), 2), STATES, torch.full((9, 1), 2)], 1)

    def energy(tokens):
        allowed = torch.zeros(len(tokens), 4, 6).bool()
        allowed[:, 1, 3:] = True
        allowed[:, 2, 3:5] = True
        text = torch.full_like(tokens, 2)
        return Constrained(LOCAL, text=text, allowed=allowed)(tokens)

    kernel = metropolis_hastings(energy, conditionals())
    found = certify(kernel, energy, texts, block=2, **PATIENT)
    assert all(c.holds for c in found), found
    assert "reversible at 1, 2" in {c.name for c in found}


def test_the_method_is_checked():
    with pytest.raises(Exception, match="method|psychic"):
        certify(GOOD["mh"][0], LOCAL, STATES, method="psychic")


# Chi-square


@pytest.mark.parametrize(
    ("freedom", "statistic", "p"),
    [(1, 3.841459, 0.05), (5, 20.515, 0.001), (10, 9.341818, 0.5), (30, 18.49266, 0.95)],
)
def test_chi_square_equals_the_tables(freedom, statistic, p):
    terms = torch.full((freedom + 1,), statistic / (freedom + 1))
    assert chi_square(terms) == pytest.approx(p, rel=1e-4)


def test_no_degrees_of_freedom_prove_nothing():
    assert chi_square(torch.tensor([5.0])) == 1.0


def test_fit_throws_rare_states_together_and_refuses_impossible_ones():
    pi = torch.tensor([0.5, 0.4, 0.06, 0.04, 0.0]).double()
    counts = torch.tensor([52, 37, 8, 3, 0, 0])  # two expect less than 10, one less than 5
    terms = [(52 - 50) ** 2 / 50, (37 - 40) ** 2 / 40, (8 - 6) ** 2 / 6, (3 - 4) ** 2 / 4]
    assert fit(counts, pi) == pytest.approx(chi_square(torch.tensor(terms)))
    assert fit(torch.tensor([52, 37, 8, 2, 1, 0]), pi) == 0.0
    assert fit(torch.tensor([52, 37, 8, 2, 0, 1]), pi) == 0.0
    few = fit(torch.tensor([11, 8, 1, 0, 0, 0]), pi)  # 10, 8, and 1.2 + 0.8 together
    assert few == pytest.approx(chi_square(torch.tensor([1 / 10, 0, 1 / 2])))


def test_symmetry_is_bowkers_test():
    pairs = torch.tensor([[99, 30, 12], [20, 99, 3], [18, 4, 99]])
    terms = torch.tensor([100 / 50, 36 / 30])  # 3 and 4 are too few
    assert symmetry(pairs) == pytest.approx(chi_square(terms, constraints=0))
    assert chi_square(terms, constraints=0) == pytest.approx(math.exp(-1.6))


# The model


def test_tiny_mlm_is_a_masked_lm():
    mlm = TinyMLM(words=4, sources=2)
    assert isinstance(mlm, MaskedLM) and mlm.allowed.tolist() == [False] * 3 + [True] * 4
    tokens = torch.tensor([[3, 4, 5, 0], [6, 6, 3, 4]])
    masked = torch.tensor([[True, False, True, False], [False, True, False, False]])
    owner = torch.tensor([0, 1])
    found = mlm.logits(tokens, masked, owner)
    assert found.shape == (3, 7) and found.dtype == torch.float64
    torch.testing.assert_close(mlm.logits(tokens.masked_fill(masked, 6), masked, owner), found)
    one = mlm.logits(tokens[:1, :3], masked[:1, :3], owner[:1])  # padding adds nothing
    torch.testing.assert_close(one, found[:2])
    assert not torch.allclose(mlm.logits(tokens, masked, 1 - owner), found)
    assert torch.equal(TinyMLM(seed=3).out, TinyMLM(seed=3).out)


def test_every_text_is_listed_once():
    texts = every_text(TinyMLM(words=2), time=3).tolist()
    assert len(texts) == 8 and len(set(map(tuple, texts))) == 8
    assert {v for text in texts for v in text} == {3, 4}
