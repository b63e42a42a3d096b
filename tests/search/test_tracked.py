"""Baselines of the soft beam against margins worked out by hand, plain loops and enumeration."""

import math

import pytest
import torch

from softbeam.objectives.losses.hard_beam import bso_loss, crf_loss
from softbeam.objectives.losses.likelihood import distillation_loss
from softbeam.objectives.losses.risk import (
    METRICS,
    beam_candidates,
    bleu_cost,
    distinct,
    edit_rate,
    expected_risk,
    hamming_rate,
    reinforce_loss,
    rollout,
    sampled_candidates,
    sentence_costs,
    with_gold,
)
from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.tracked import Repeated, token_scores, tracked_beam
from softbeam.types import Ends, Hypotheses
from support.toys import ToyDecoder, plain_beam, score, sequences, step_scores

EOS = 1


class Table:
    """A decoder whose step scores are written down for each prefix; others score 0."""

    def __init__(self, rows: dict[tuple[int, ...], list[float]], vocab: int = 3):
        self.rows = {
            prefix: torch.tensor(values, dtype=torch.float64, requires_grad=True)
            for prefix, values in rows.items()
        }
        self.none = torch.zeros(vocab, dtype=torch.float64)
        self.embedding = torch.eye(vocab, dtype=torch.float64)
        self.asked: list[tuple[int, ...]] = []

    def start(self):
        return torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, len(self.none)).double()

    def step(self, state, emb):
        given = emb.any(-1, keepdim=True)
        history = torch.cat([state, emb.argmax(-1, keepdim=True)], -1) if given.all() else state
        prefixes = [tuple(row) for row in history.tolist()]
        self.asked += prefixes
        return torch.stack([self.rows.get(prefix, self.none) for prefix in prefixes]), history


def by_hand() -> Table:
    """Gold 1 2 0 with k = 2: second of the first beam, off the second, best of the third."""
    return Table(
        {
            (): [2.0, 1.5, 0.0],  # beam: 0 at 2.0, gold 1 at 1.5
            (0,): [1.0, 0.0, 0.0],  # 0 0 at 3.0
            (1,): [0.0, 1.2, 0.1],  # 1 1 at 2.7; gold 1 2 at 1.6 falls off
            (1, 2): [3.0, 0.5, 2.5],  # from gold alone: gold at 4.6, 1 2 2 at 4.1
        }
    )


GOLD, THREE = torch.tensor([[1, 2, 0]]), torch.tensor([3])


def test_margins_by_hand():
    table = by_hand()
    found = bso_loss(table, GOLD, k=2, ends=Ends(THREE))
    first = 1 - 1.5 + 2.0  # gold is the second itself, so the rival is the one before it
    second = 1 - 1.6 + 2.7
    third = 1 - 4.6 + 4.1  # against the best
    assert found.loss.item() == pytest.approx(first + second + third)
    assert found.violated.tolist() == [[True, True, True]]
    assert found.fell.tolist() == [[False, True, False]]
    found.loss.sum().backward()
    wanted = {(): [1, -1, 0], (1,): [0, 1, -1], (1, 2): [-1, 0, 1]}
    for prefix, gradient in wanted.items():
        assert table.rows[prefix].grad.tolist() == pytest.approx(gradient), prefix
    assert not table.rows[(0,)].grad.any(), "never a rival: no gradient"


def test_after_a_fall_only_the_gold_prefix_is_extended():
    path = [beam.path[0].tolist() for beam in tracked_beam(by_hand(), GOLD, k=2, lengths=THREE)]
    assert path == [[[0], [1]], [[0, 0], [1, 1]], [[1, 2, 0], [1, 2, 2]]]


def test_violations_weigh_what_the_rival_costs_since_the_last_start():
    found = bso_loss(by_hand(), GOLD, k=2, ends=Ends(THREE), delta=hamming_rate)
    assert found.loss.item() == pytest.approx(1 * 1.5 + 0.5 * 2.1 + 1 * 0.5)


@pytest.mark.parametrize(("margin", "violations"), [(0.99, 0), (1.0, 0), (1.25, 2), (3.5, 3)])
def test_a_margin_that_gold_keeps_costs_exactly_nothing(margin, violations):
    """Gold leads by 1, 3 and 1; the third step's rival is the second of all."""
    rows = {(): [0.0, 1.0, -9.0], (1,): [0.0, 3.0, -9.0], (1, 1): [0.0, 1.0, -9.0]}
    table = Table(rows)
    found = bso_loss(table, torch.tensor([[1, 1, 1]]), k=2, ends=Ends(THREE), margin=margin)
    assert found.violated.sum().item() == violations
    found.loss.sum().backward()
    if violations == 0:
        assert found.loss.item() == 0.0
        assert all(not row.grad.any() for row in table.rows.values())
    else:
        assert found.loss.item() > 0 and any(row.grad.any() for row in table.rows.values())


def test_a_beam_of_one_has_no_rival():
    with pytest.raises(ValueError, match="k=1"):
        bso_loss(by_hand(), GOLD, k=1, ends=Ends(THREE))


def plain_bso(decoder, target, k, row, eos=None, margin=1.0, metric=None):
    """Loss and the steps in which gold falls off, with lists and from the paper's text."""

    def cut(prefix):
        return prefix[: prefix.index(eos) + 1] if eos is not None and eos in prefix else prefix

    beam, loss, falls, since = [(0.0, ())], 0.0, [], 0
    for t in range(1, len(target) + 1):
        gold = cut(tuple(target[:t]))
        candidates = []
        for total, prefix in beam:
            if prefix and prefix[-1] == eos:
                candidates.append((total, prefix))
            else:
                local = step_scores(decoder, prefix, row).tolist()
                candidates += [(total + s, (*prefix, v)) for v, s in enumerate(local)]
        candidates.sort(reverse=True)
        own = dict((p, s) for s, p in candidates)[gold]
        beam = candidates[:k]
        others = [c for c in beam if c[1] != gold]
        rival = others[0] if t == len(target) else others[-1] if len(beam) == k else None
        if rival is not None and margin - own + rival[0] > 0:
            weight = 1.0 if metric is None else metric(rival[1][since:], gold[since:])
            loss += weight * (margin - own + rival[0])
        if gold not in [p for _, p in beam]:
            falls.append(t - 1)
            beam, since = [(own, gold)], t
    return loss, falls


def some_targets(seed: int, lengths: list[int], eos: int | None, vocab: int = 4):
    rng = torch.Generator().manual_seed(seed)
    low = 0 if eos is None else 2
    rows = [torch.randint(low, vocab, (n,), generator=rng).tolist() for n in lengths]
    rows = rows if eos is None else [[*row[:-1], eos] for row in rows]
    padded = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
    return rows, padded, torch.tensor(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("metric", [None, hamming_rate])
def test_beam_search_optimization_equals_plain_loops(eos, k, metric):
    fallen = 0
    for seed in range(6):
        decoder = ToyDecoder(vocab=4, batch=3, seed=seed)
        rows, target, lengths = some_targets(seed, [4, 2, 5], eos)
        found = bso_loss(decoder, target, k=k, ends=Ends(lengths, eos), delta=metric)
        for row, gold in enumerate(rows):
            loss, falls = plain_bso(decoder, gold, k, row, eos, metric=metric)
            assert found.loss[row].item() == pytest.approx(loss)
            assert found.fell[row].nonzero().flatten().tolist() == falls
            fallen += len(falls)
    assert fallen > 5, "the cases must have falls to tell"


def log_sum_exp(values):
    most = max(values)
    return most + math.log(sum(math.exp(v - most) for v in values))


def tensor_score(decoder, sequence, row=0, normalize=False):
    """A sequence's score with its gradient, one step at a time from the start."""
    total = torch.zeros((), dtype=torch.float64)
    for t, token in enumerate(sequence):
        scores = step_scores(decoder, sequence[:t], row)
        total = total + (scores - scores.exp().sum().log() if normalize else scores)[token]
    return total


def gradients(value, decoder):
    return torch.autograd.grad(value, list(decoder.parameters()), allow_unused=True)


def assert_gradients_equal(one, two):
    for a, b in zip(one, two, strict=True):
        zero = (
            torch.zeros(()) if a is None and b is None else torch.zeros_like(a if b is None else b)
        )
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b)


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_crf_is_exact_when_the_beam_holds_the_whole_space(eos, normalize):
    decoder = ToyDecoder(vocab=3, batch=2, seed=4)
    rows, target, lengths = some_targets(1, [3, 2], eos, vocab=3)
    wrapped = LocallyNormalized(decoder) if normalize else decoder
    found = crf_loss(wrapped, target, k=50, ends=Ends(lengths, eos))
    assert found.steps.tolist() == [3, 2] and not found.fell.any()
    wanted = torch.zeros((), dtype=torch.float64)
    for row, gold in enumerate(rows):
        scores = [tensor_score(decoder, s, row, normalize) for s in sequences(3, len(gold), eos)]
        exact = torch.stack(scores).exp().sum().log() - tensor_score(
            decoder, tuple(gold), row, normalize
        )
        assert found.loss[row].item() == pytest.approx(exact.item())
        wanted = wanted + exact
    assert_gradients_equal(gradients(found.loss.sum(), decoder), gradients(wanted, decoder))


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_early_update_stops_where_gold_falls_off(eos, k):
    stopped = []
    for seed in range(6):
        decoder = ToyDecoder(vocab=4, batch=3, seed=seed)
        rows, target, lengths = some_targets(seed, [4, 2, 5], eos)
        found = crf_loss(decoder, target, k=k, ends=Ends(lengths, eos))
        for row, gold in enumerate(rows):
            for t in range(1, len(gold) + 1):
                beam = plain_beam(decoder, k, t, row=row, eos=eos, normalize=False)
                prefix = tuple(gold[:t])
                on = prefix in [p for _, p in beam]
                if not on or t == len(gold):
                    break
            own = score(decoder, prefix, row, normalize=False)
            wanted = log_sum_exp([s for s, _ in beam] + ([] if on else [own])) - own
            assert found.loss[row].item() == pytest.approx(wanted)
            assert found.steps[row].item() == t and found.fell[row].item() is not on
            stopped.append(t < len(gold))
    assert any(stopped) and (k == 1 or not all(stopped))


def test_the_early_update_by_hand():
    table = by_hand()
    found = crf_loss(table, GOLD, k=2, ends=Ends(THREE))
    assert found.steps.tolist() == [2] and (1, 2) not in table.asked, "nothing after the fall"
    wanted = log_sum_exp([3.0, 2.7, 1.6]) - 1.6
    assert found.loss.item() == pytest.approx(wanted)


def plain_cost(predicted, gold):
    """A cost unlike any of the package's."""
    return float(sum(predicted)) / 3 + abs(len(predicted) - len(gold)) + (predicted[0] != gold[0])


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("sharpness", [1.0, 0.3])
def test_risk_is_exact_when_the_candidates_are_the_whole_space(eos, sharpness):
    decoder, gold = ToyDecoder(vocab=3, seed=5), [2, 0, 1]
    target, lengths = torch.tensor([gold]), THREE
    local = LocallyNormalized(decoder)
    found = with_gold(beam_candidates(local, Ends(lengths, eos), n=40), target, lengths)
    kept = distinct(found)
    space = list(sequences(3, 3, eos))
    assert kept.sum().item() == len(space), "gold and empty places count once and never"
    scores = token_scores(local, found.tokens, found.lengths).sum(-1)
    costs = sentence_costs(plain_cost, found, target, lengths)
    risk = expected_risk(scores, costs, kept, sharpness=sharpness)
    logs = torch.stack([tensor_score(decoder, s, normalize=True) for s in space])
    q = (sharpness * logs).exp() / (sharpness * logs).exp().sum()
    wanted = sum(p * plain_cost(s, gold) for p, s in zip(q, space, strict=True))
    torch.testing.assert_close(risk.sum(), wanted)
    assert_gradients_equal(gradients(risk.sum(), decoder), gradients(wanted, decoder))


def test_forbidden_outputs_are_no_candidates():
    decoder = LocallyNormalized(Forbidding(ToyDecoder(vocab=3, seed=1), [0]))
    found = beam_candidates(decoder, Ends(torch.tensor([2])), n=9)
    assert distinct(found).tolist() == [[True] * 4 + [False] * 5]


def test_samples_have_the_models_frequencies_and_count_once():
    decoder, n = ToyDecoder(vocab=3, batch=2, seed=1), 3000
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = sampled_candidates(decoder, Ends(torch.tensor([2, 2]), EOS), n=n, rng=rng)
    for row in range(2):
        drawn = [
            tuple(tokens[:length])
            for tokens, length in zip(
                found.tokens[row].tolist(), found.lengths[row].tolist(), strict=True
            )
        ]
        for sequence in sequences(3, 2, EOS):
            p = math.exp(score(decoder, sequence, row))
            error = (p * (1 - p) / n) ** 0.5
            assert abs(drawn.count(sequence) / n - p) <= 4 * error
        few = Hypotheses(*(value[row : row + 1, :50] for value in found))
        kept = distinct(few)[0].tolist()
        assert [s for s, k in zip(drawn, kept, strict=False) if k] == list(
            dict.fromkeys(drawn[:50])
        )


def test_repeated_rows_belong_to_their_sources():
    decoder = ToyDecoder(vocab=4, batch=2, seed=3)
    tokens = torch.randint(0, 4, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([[4, 2, 3], [1, 4, 2]])
    found = token_scores(decoder, tokens, lengths).sum(-1)
    for row in range(2):
        for i in range(3):
            sequence = tuple(tokens[row, i, : lengths[row, i]].tolist())
            wanted = score(decoder, sequence, row, normalize=False)
            assert found[row, i].item() == pytest.approx(wanted)
    assert Repeated(decoder, 3).start()[1].shape[0] == 6


@pytest.mark.parametrize("baseline", [0.0, 0.7])
@pytest.mark.parametrize("gold_steps", [0, 1])
@pytest.mark.parametrize("eos", [None, EOS])
def test_the_expected_reinforce_gradient_is_that_of_the_expected_cost(baseline, gold_steps, eos):
    """Exactly: sum over all outputs y of p(y) grad loss(y) = grad sum of p(y) cost(y)."""
    decoder, gold = ToyDecoder(vocab=3, seed=2), (2, 0, 1)
    local = LocallyNormalized(decoder)
    estimate = wanted = torch.zeros((), dtype=torch.float64)
    for sequence in sequences(3, 3, eos):
        if sequence[:gold_steps] != gold[:gold_steps]:
            continue
        cost = plain_cost(sequence, gold)
        length = torch.tensor([[len(sequence)]])
        logs = token_scores(local, torch.tensor([[sequence]]), length)[:, 0]
        loss = reinforce_loss(
            logs, torch.tensor([cost]).double(), baseline, gold_steps=gold_steps
        ).sum()
        head = tensor_score(decoder, sequence[:gold_steps], normalize=True)
        p = torch.exp(tensor_score(decoder, sequence, normalize=True) - head)  # given gold's head
        estimate = estimate + p.detach() * loss
        wanted = wanted + p * cost
    assert_gradients_equal(gradients(estimate, decoder), gradients(wanted, decoder))


def test_rollouts_begin_with_gold_and_go_on_alone():
    decoder = ToyDecoder(vocab=4, batch=2, seed=0)
    target, lengths = torch.tensor([[3, 2, 3, 2], [3, 3, EOS, 0]]), torch.tensor([4, 3])
    for steps in range(5):
        found = rollout(decoder, Ends(lengths, EOS), gold=target[:, :steps])
        for row, gold in enumerate([[3, 2, 3, 2], [3, 3, EOS]]):
            wanted = gold[:steps]
            while len(wanted) < len(gold) and EOS not in wanted:
                wanted.append(int(step_scores(decoder, tuple(wanted), row).argmax()))
            length = found.lengths[row, 0].item()
            assert found.tokens[row, 0, :length].tolist() == wanted


def test_distillation_is_the_divergence_of_real_steps():
    rng = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 2, 3, 4, generator=rng, dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found = distillation_loss(student, teacher, mask, temperature=2.0)
    for row in range(2):
        wanted = 0.0
        for t in range(int(mask[row].sum())):
            a, b = ([math.exp(x / 2) for x in s[row, t].tolist()] for s in (teacher, student))
            a, b = ([x / sum(values) for x in values] for values in (a, b))
            wanted += sum(4 * p * math.log(p / q) for p, q in zip(a, b, strict=True))
        assert found[row].item() == pytest.approx(wanted)
    shifted = distillation_loss(teacher + torch.randn(2, 3, 1), teacher, mask)
    torch.testing.assert_close(shifted, torch.zeros_like(shifted))


def test_sentence_costs():
    assert hamming_rate([1, 2, 3], [1, 0, 3]) == pytest.approx(1 / 3)
    assert hamming_rate([1], [1, 2]) == 0.5 and hamming_rate([1, 2], [1]) == 0.5
    assert edit_rate([2, 3, 4], [1, 2, 3, 4]) == 0.25 and edit_rate([], [5, 6]) == 1.0
    assert bleu_cost([], [1, 2]) == 1.0 and bleu_cost([7, 8], [1, 2]) == 1.0
    # precisions 2/3, 1/2 and (smoothed) 1/2, of orders up to the length; brevity exp(1 - 5/3)
    wanted = 1 - math.exp(1 - 5 / 3) * (2 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)
    assert bleu_cost([1, 2, 9], [1, 2, 3, 4, 5]) == pytest.approx(wanted)
    assert all(metric([3, 1, 4, 1, 5], [3, 1, 4, 1, 5]) == 0.0 for metric in METRICS.values())
