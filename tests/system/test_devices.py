"""All loops of the package on a device that is not the CPU: the same results, and no mixture.

The device is `support.pretended_device`, which refuses what CUDA refuses.
"""

import json
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from softbeam import objectives as o
from softbeam.errors import Interrupted, UserError
from softbeam.models.conditional_masked import ConditionalMlm
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.models.layers import TransformerShape
from softbeam.models.random_field import BiLstmMrf
from softbeam.models.specs import Lstm
from softbeam.models.transformer import TransformerSeq2Seq
from softbeam.objectives import energy as e
from softbeam.objectives.losses.energy import Memory, UnigramNoise
from softbeam.objectives.losses.masked import hidden_at_rate, masked_cross_entropy
from softbeam.reports.gold_on_beam import beam_recovery
from softbeam.runtime.devices import device_of
from softbeam.runtime.synchronizations import count_synchronizations
from softbeam.sampling import kernels
from softbeam.sampling.chains import Plan, RandomBlocks, partition, run_chains, trace
from softbeam.sampling.compatibility import masked_cross_ratios
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.masked_search import mask_predict_decode
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.texts import api, files
from softbeam.sampling.texts.sampler import sampler
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.schedules import Constant, Moment
from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.hard import ancestral_sample, beam_search, greedy
from softbeam.search.live import live_beam_search
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import Form
from softbeam.search.tracked import tracked_beam
from softbeam.training import loop as training_loop
from softbeam.training.api import train
from softbeam.training.config import Stage
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam
from support.hf_toys import marian
from support.objective_toys import EOS, batch_of, build
from support.pretended_device import NAME, pretended_device
from support.tiny_bert import letter_tokenizer, small
from training.test_api import EXAMPLES

pytestmark = pytest.mark.slow  # two devices each, one of them with Python in each operation
CPU = torch.device("cpu")


def on_both(run, *, near=1e-6, **options):
    """Run on the CPU and on the pretended device; the results must be the same up to rounding."""
    expected = run(CPU)
    with pretended_device(**options) as device:
        actual = pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), run(device))
    (left, form), (right, same) = map(pytree.tree_flatten, (actual, expected))
    assert form == same
    for a, b in zip(left, right, strict=True):
        if isinstance(b, torch.Tensor | float):
            assert_close(a, b, rtol=near, atol=near / 1000)
        else:
            assert a == b
    return actual


# Sampling


@cache
def letters(device, dtype=torch.float64):
    return HfMaskedLM(small("bert").to(dtype).to(device), letter_tokenizer())


TEXTS = ["AC[MASK]D[MASK]E", "[MASK]KL", "A[MASK][MASK][MASK]C"]
SETTINGS = {
    "plain": {},
    "blocks": {"block": 2},
    "shrinking blocks": {"block": "linear"},
    "random blocks": {"block": "random"},
    "raw energy": {"energy": "raw", "order": "sequential"},
    "annealed": {"anneal": (2.0, -0.1, 0.5), "forced": 1},
    "gibbs": {"kernel": "gibbs"},
    "exact Gibbs": {"kernel": "exact-gibbs", "sweeps": 3},
    "uniform": {"proposal": "uniform"},
    "nucleus": {"nucleus": 0.8, "epsilon": 0.1},
    "near": {"near": "self", "start": "random", "lexicon": ("AC", "K")},
    "edits": {"near": "ACDL", "near_distance": "edit", "start": "greedy"},
    "some tokens": {"allowed": ("A", "C", "D", "K")},
    "whole texts": {"free": "all", "sweeps": 3},
    "few rows": {"rows": 3, "at_once": 4, "sweeps": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_chains_are_the_same_on_every_device(settings):
    settings = {"chains": 2, "sweeps": 3, "burn_in": 1} | settings

    def run(device):
        samples = api.sample(letters(device), TEXTS, SamplingConfig(**settings))
        return samples.texts, samples.energy, samples.tokens, samples.trace[1:]

    on_both(run)


def test_chains_run_on_a_device_without_float64():
    def run(device):
        samples = api.sample(letters(device, torch.float32), TEXTS, chains=2, sweeps=6, burn_in=1)
        return samples.texts, samples.tokens

    on_both(run, float64=False)


@pytest.mark.parametrize("method", ["mh", "in-turn", "greedy"])
def test_gaps_are_filled(method):
    on_both(lambda d: api.infill(letters(d), TEXTS[0], samples=20, method=method, burn_in=1))


@pytest.mark.parametrize("energy", ["local", "raw"])
def test_texts_are_scored(energy):
    on_both(lambda d: api.score(letters(d), ["ACD", "KLKLA"], energy=energy, rows=3))


def test_files_of_samples_are_the_same_and_resume_on_another_device(tmp_path):
    config = SamplingConfig(chains=2, sweeps=8, burn_in=1, at_once=4)
    header = files.make_header("letters", TEXTS, config, 1)

    def write(device, out, **options):
        files.write_samples(letters(device), header, config, out, quiet=True, **options)
        return [json.loads(line) for line in out.read_text().splitlines()]

    whole = on_both(lambda d: write(d, tmp_path / f"{d.type}.jsonl", every=0.0))
    begun = tmp_path / "pretended.jsonl"
    checkpoint = files.checkpoint_of(begun)
    kept = begun.read_bytes(), checkpoint.read_bytes()
    again = tmp_path / "again.jsonl"
    again.write_bytes(kept[0])
    files.checkpoint_of(again).write_bytes(kept[1])
    assert write(CPU, again, resume=True) == whole
    with pretended_device() as device:
        assert write(device, again, resume=True) == whole


def test_replicas_are_exchanged():
    temperatures = torch.tensor([1.0, 2.0, 4.0])

    def run(device):
        mlm = letters(device)
        tokens = mlm.encode(["ACDKL"] * 6).tokens
        free = mlm.allowed[tokens]
        energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm, allowed=mlm.alphabet)
        ladder = kernels.ladder(temperatures, 2).to(tokens.device)
        swaps = [
            kernels.replica_exchange(energy, temperatures=temperatures, first=n) for n in (0, 1)
        ]
        records = run_chains(
            kernels.metropolis_hastings(energy, propose, temperature=ladder),
            tokens,
            free,
            plan=Plan(sweeps=4, burn_in=0, blocks=RandomBlocks()),
            rng=torch.Generator().manual_seed(1),
            between=swaps,
        )
        return trace(records)[1:]

    on_both(run)


def test_cross_ratios():
    def run(device):
        mlm = letters(device)
        text = mlm.encode("ACDKL").tokens[0]
        tokens = mlm.alphabet.nonzero()[:4, 0]
        return tuple(masked_cross_ratios(mlm, text, [(1, 2), (3, 1)], tokens))

    on_both(run)


# Models and searches


def shape():
    return TransformerShape(width=8, heads=2, layers=1, hidden=12, dropout=0.0, longest=16)


def lstm(device):
    return build().to(device)


def transformer(device):
    torch.manual_seed(0)
    return TransformerSeq2Seq(9, 7, shape()).double().eval().to(device)


def hugging_face(device):
    torch.manual_seed(0)
    return HfSeq2Seq(marian()).double().eval().to(device)


MODELS = {"lstm": lstm, "transformer": transformer, "marian": hugging_face}


def limits_of(batch):
    return batch.ends.lengths


def rng():
    return torch.Generator().manual_seed(2)


SEARCHES = {
    "greedy": lambda d, n: greedy(d, lengths=n, eos=EOS),
    "beam": lambda d, n: beam_search(d, k=3, lengths=n, eos=EOS, nbest=2),
    "live beam": lambda d, n: live_beam_search(d, k=3, lengths=n, eos=EOS),
    "sample": lambda d, n: ancestral_sample(d, lengths=n, eos=EOS, rng=rng(), top_k=4, top_p=0.9),
    "soft beam": lambda d, n: soft_beam_decode(d, k=2, alpha=1.5, time=5, lengths=n, eos=EOS),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_searches(model, search):
    batch = batch_of([4, 2, 5])

    def run(device):
        decoder = Forbidding(LocallyNormalized(model(device)(batch.source.to(device))), [3])
        with torch.no_grad():
            return tuple(search(decoder, limits_of(batch).to(device)))

    on_both(run)


def test_gold_is_followed_on_the_beam():
    batch = batch_of([4, 2, 5])

    def run(device):
        source, target, lengths = (t.to(device) for t in (*batch[:2], limits_of(batch)))
        decoder = lstm(device)(source)
        with torch.no_grad():
            steps = list(tracked_beam(decoder, target, k=2, lengths=lengths, eos=EOS))
            recovery = beam_recovery(decoder, target, k=2, lengths=lengths, limits=lengths, eos=EOS)
        return [tuple(step) for step in steps], tuple(recovery)

    on_both(run)


def test_mask_predict():
    def run(device):
        torch.manual_seed(0)
        model = ConditionalMlm(9, 8, shape(), mask_id=2).double().eval().to(device)
        bound = model(batch_of([4, 2, 5]).source.to(device))
        return tuple(mask_predict_decode(bound, bound.length_scores, candidates=3, iterations=3))

    on_both(run)


# Objectives


OBJECTIVES = {
    "cross-entropy": o.CrossEntropy(smoothing=0.1),
    "self-normalized": o.SelfNormalized(),
    "scheduled sampling": o.ScheduledSampling(gold=Constant(value=0.3), gold_epochs=0),
    "sampled feedback": o.ScheduledSampling(
        gold=Constant(value=0.3), gold_epochs=0, feedback="hard_sample"
    ),
    "Gumbel feedback": o.ScheduledSampling(
        gold=Constant(value=0.3), gold_epochs=0, feedback="gumbel_soft_sample"
    ),
    "two passes": o.TwoPassScheduledSampling(gold=Constant(value=0.3), gold_epochs=0),
    "direct loss": o.DirectLoss(k=3),
    "direct loss, raw": o.DirectLoss(k=2, normalize=False, cross_entropy=0.5),
    "direct loss, plain": o.DirectLoss(k=2, form=Form(reference=True, diagnostics=True)),
    "direct loss, any length": o.DirectLoss(k=3, finish=True, extra=2, cost=o.Windowed()),
    "soft hinge": o.SoftHinge(k=3),
    "hard hinge": o.HardHinge(k=3),
    "beam search optimization": o.BeamSearchOptimization(k=3),
    "beam CRF": o.BeamCrf(k=3),
    "minimum risk": o.MinimumRisk(n=3),
    "sampled risk": o.MinimumRisk(n=3, candidates="sample", include_gold=True),
    "reinforce": o.Reinforce(),
}


def gradient(objective, model, batch):
    """The loss of an objective, its log, and the gradients of all parameters."""
    loss = objective(model, batch, now=Moment(), rng=torch.Generator().manual_seed(0))
    loss.total.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.total.detach(), loss.size, dict(loss.log), grads


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_objectives(objective):
    on_both(lambda d: gradient(objective, lstm(d), batch_of([4, 2, 5]).to(d)))


@pytest.mark.parametrize("name", ["cross-entropy", "direct loss", "two passes"])
def test_objectives_of_transformers(name):
    on_both(lambda d: gradient(OBJECTIVES[name], transformer(d), batch_of([4, 2, 5]).to(d)))


def test_distillation():
    def run(device):
        objective = o.Distillation(teacher=Path("teacher")).loaded(lambda _: transformer(CPU))
        return gradient(objective, lstm(device), batch_of([4, 2, 5]).to(device))

    on_both(run)


def test_masking():
    def run(device):
        torch.manual_seed(0)
        model = ConditionalMlm(9, 8, shape(), mask_id=2).double().to(device)
        return gradient(o.UniformMasking(), model, batch_of([4, 2, 5]).to(device))

    on_both(run)


def field(device):
    torch.manual_seed(0)
    model = BiLstmMrf(7, embedding=4, hidden=5).double()
    model.memory = Memory(7, longest=5, chains=3).double()
    return model.to(device)


def moves(model):
    return kernels.metropolis_hastings(model.energy, MaskedConditionals(model))


NOISE = UnigramNoise.fit(batch_of([4, 2, 5]).target, batch_of([4, 2, 5]).mask, vocab=7)
ENERGIES = {
    "likelihood": e.Likelihood(),
    "pseudolikelihood": e.Pseudolikelihood(),
    "masked likelihood": e.MaskedLikelihood(),
    "noise-contrastive": e.NoiseContrastive(noise=NOISE, nu=3),
    "contrastive divergence": e.PersistentContrastiveDivergence(kernel=moves),
}


@pytest.mark.parametrize("objective", ENERGIES.values(), ids=ENERGIES)
def test_energy_objectives(objective):
    on_both(lambda d: gradient(objective, field(d), batch_of([4, 2, 5]).to(d)))


def test_masked_training_with_hidden_tokens():
    def run(device):
        model = letters(device)
        tokens = model.encode(["ACDKL", "KLA"]).tokens
        rng = torch.Generator().manual_seed(0)
        hidden = hidden_at_rate(model.allowed[tokens], rng, rate=0.3)
        return hidden, tuple(masked_cross_entropy(model, tokens, hidden))

    on_both(run)


# Whole runs

SMALL = {
    "model": Lstm(embedding=8, hidden=8, dropout=0.2),
    "pretrain": Stage(objective=o.CrossEntropy(), epochs=2, lr=0.05, tokens=20),
    "finetune": Stage(objective=o.DirectLoss(k=2), epochs=1, lr=0.05, tokens=20),
    "select": Beam(k=2),
    "precision": "float32",
    "threads": 1,
    "quiet": True,
}


def test_a_run_trains_and_decodes_the_same(tmp_path):
    def run(device):
        out = tmp_path / device.type
        tagger = train("tagging", out=out, examples=EXAMPLES, device=device.type, **SMALL)
        assert next(tagger.model.parameters()).device.type == device.type
        weights = {name: p.detach() for name, p in tagger.model.named_parameters()}
        return tagger.decode(["the cat runs", "a dog"]), tagger.evaluate("dev").metrics, weights

    on_both(run, near=1e-3)  # of float32, after several updates
    with pretended_device():
        assert load_run(tmp_path / NAME).decode(["the cat runs"])
    assert load_run(tmp_path / NAME).decode(["the cat runs"])


def test_a_run_goes_on_on_another_device(tmp_path, monkeypatch):
    whole = train("tagging", out=tmp_path / "whole", examples=EXAMPLES, **SMALL)
    calls = []

    def stop(signum, out):
        calls.append(out)
        if len(calls) == 2:
            raise Interrupted(15, "stopped")

    with pretended_device(), monkeypatch.context() as patch:
        patch.setattr(training_loop, "stop_here", stop)
        with pytest.raises(Interrupted):
            train("tagging", out=tmp_path / "parts", examples=EXAMPLES, device=NAME, **SMALL)
    parts = train(
        "tagging", out=tmp_path / "parts", examples=EXAMPLES, resume=True, device="cpu", **SMALL
    )
    state = parts.model.state_dict()
    assert_close(state, whole.model.state_dict(), rtol=1e-3, atol=1e-6)


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="--device cuda:7: is not on this machine; there is cpu$"):
        train("tagging", out=tmp_path / "run", examples=EXAMPLES, device="cuda:7")
    with pytest.raises(UserError, match="--device 'cuda 1': must be auto"):
        device_of("cuda 1")
    assert device_of("auto") == CPU
    with pretended_device() as device:
        assert device_of("auto").type == device_of(f"{NAME}:0").type == device.type
        with pytest.raises(UserError, match=f"there is cpu, {NAME}:0"):
            device_of("mps")


# How often the processor waits


@pytest.mark.parametrize("settings", [{}, {"block": 2}, {"energy": "raw"}, {"kernel": "gibbs"}])
def test_a_sampling_step_waits_for_the_device_at_most_three_times(settings):
    config = SamplingConfig(free="all", chains=4, start="text", **settings)
    with pretended_device() as device:
        chains = sampler(letters(device), ["ACDKLAC"], config)
        rng, kernel = torch.Generator().manual_seed(0), chains.kernel(1.0)
        state = kernel.init(chains.tokens)
        for positions in partition(chains.free, torch.ones(4).long(), rng=rng):
            step = partial(kernel.step, state, positions, rng)
            assert 1 <= count_synchronizations(step, device=NAME) <= 3
            state = step()[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_energies_of_half_precision_are_summed_in_single_or_double(dtype):
    mlm = letters(CPU, dtype)
    tokens = mlm.encode(["ACDKLACDKL"]).tokens
    energy = LocalEnergy(mlm)
    each = energy.scores(tokens)
    assert each.dtype == energy(tokens).dtype == torch.float32
    assert float(energy(tokens)) == pytest.approx(-float(each.double().sum()), rel=1e-6)
    kernel = fast_metropolis_hastings(energy, MaskedConditionals(mlm, allowed=mlm.alphabet))
    assert kernel.init(tokens).energy.dtype == torch.float64
