"""The fast sampler against plain ones: same model, same proposals, same seed, one run.

The forms take turns. Ratios are medians over the turns of processor time, which other work on the
machine disturbs less than time by the clock; proposals/s are by the clock. The fast form first runs
the burn-in, so that words are proposed repeatedly as often as they are at stationarity. All forms
give the same chains, so one long run gives the effective sample size (ESS) of a sweep, and a form's
ESS/s is this times its sweeps/s. A wait is a value that the program reads; with an accelerator
there are as many waits or fewer. Each form's peak of memory is measured in a process of its own,
without what the imports take.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from softbeam.errors import UserError
from softbeam.experiments.bench.measuring import in_child, timed
from softbeam.experiments.bench.plain_sampler import FullLogits, plain_sampler
from softbeam.experiments.bench.score import SHAPES, VOCAB, pretrained, random_bert
from softbeam.experiments.bench.trained_mlm import trained_mlm
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.models.masked import TransformerMlm
from softbeam.runtime.synchronizations import count_synchronizations
from softbeam.sampling.chains import ConstantBlocks, Plan, partition, run_chains, trace
from softbeam.sampling.diagnostics import bulk_ess
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import CountedMlm
from softbeam.types import ChainState, Kernel, StepInfo

FORMS = ("2T+1 passes", "T+1 passes", "reference", "fast", "fast, early rejection")
SITES_A_ROUND = 5
REACTION = "CC(=O)O.OCC>>CC(=O)OCC"
HEAVY_CHAIN = (  # of trastuzumab, 120 residues
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)


class Setting(NamedTuple):
    """A model and texts of equal length to start from."""

    mlm: TransformerMlm | HfMaskedLM
    tokens: Tensor
    free: Tensor
    block: int = 1  # positions that are proposed together


def setting(
    model: str,
    *,
    chains: int,
    time: int,
    updates: int,
    vocab: int = VOCAB,
    block: int = 1,
    double: bool = False,
) -> Setting:
    """A model with a start for each chain: held-out captions, frequent words, or one molecule."""
    if model == "multi30k":
        trained = trained_mlm(updates=updates)
        rows = [row for row in trained.held_out if len(row) == time][:chains]
        if len(rows) < max(chains, 1):
            raise UserError(
                f"--chains {chains}: only {len(rows)} held-out captions have {time} words"
            )
        tokens = torch.tensor(rows)
        mlm = trained.model.double() if double else trained.model
        return Setting(mlm, tokens, torch.ones_like(tokens, dtype=torch.bool), block)
    if model in SHAPES:
        loaded = peaked(random_bert(model, vocab), double)
        texts = ["".join(f"w{(7 * i + j) % 40}" for j in range(time)) for i in range(chains)]
        prompts = loaded.encode(texts)
        return Setting(loaded, prompts.tokens, ~prompts.frozen, block)
    loaded = pretrained(model, "float64" if double else "float32")
    prompts = loaded.encode([HEAVY_CHAIN if model.endswith("-vh") else REACTION] * chains)
    return Setting(loaded, prompts.tokens, ~prompts.frozen, block)


def peaked(mlm: HfMaskedLM, double: bool) -> HfMaskedLM:
    """Make a random model choose as trained ones do: few words are frequent, and context matters.

    With blocks of 4 words, about a fifth of the proposals is accepted.
    """
    model = mlm.model.double() if double else mlm.model
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(6)
    bias = model.cls.predictions.decoder.bias
    first = int(mlm.allowed.nonzero()[0])
    bias[first:] -= 2.5 * torch.arange(1, 1 + len(bias) - first).log()
    return mlm


def full_logits(mlm: TransformerMlm | HfMaskedLM) -> FullLogits:
    """A function that computes the logits of every position, as most code does."""
    if isinstance(mlm, HfMaskedLM):
        return lambda ids: mlm.model(input_ids=ids).logits
    return lambda ids: linear(
        gelu(mlm.dense(mlm.states(ids, torch.full((len(ids),), ids.shape[1])))),
        mlm.embed.weight,
        mlm.bias,
    )


class Counting(NamedTuple):
    """A kernel and how many rows it has given to the model."""

    kernel: Kernel
    rows: Callable[[], int]


def kernel(form: str, case: Setting) -> Counting:
    """The kernel of a form, for the model of a setting."""
    counted = CountedMlm(case.mlm)
    energy, propose = LocalEnergy(counted), MaskedConditionals(counted)
    ours = {
        "reference": lambda: metropolis_hastings(energy, propose),
        "fast": lambda: fast_metropolis_hastings(energy, propose),
        "fast, early rejection": lambda: fast_metropolis_hastings(
            energy, propose, sites_a_round=SITES_A_ROUND
        ),
    }
    if form in ours:
        return Counting(ours[form](), lambda: counted.rows)
    count, full = [0], full_logits(case.mlm)

    def logits(ids: Tensor) -> Tensor:
        count[0] += len(ids)
        return full(ids)

    plain = plain_sampler(
        logits,
        mask_id=case.mlm.mask_id,
        allowed=case.mlm.allowed,
        sites=case.free[0].nonzero()[:, 0].tolist(),
        keep_energy=form == "T+1 passes",
    )
    return Counting(plain, lambda: count[0])


def take_steps(
    step: Kernel, state: ChainState, blocks: Sequence[Tensor], seed: int
) -> tuple[ChainState, list[StepInfo]]:
    """Apply a kernel to each block in turn; returns the last state and what each step reported."""
    rng, infos = torch.Generator().manual_seed(seed), []
    for positions in blocks:
        state, info = step.step(state, positions, rng)
        infos.append(info)
    return state, infos


def some_blocks(free: Tensor, steps: int, seed: int, block: int = 1) -> list[Tensor]:
    """Blocks of sites in random order, sweep after sweep."""
    rng, size = torch.Generator().manual_seed(seed), torch.full((len(free),), block)
    blocks: list[Tensor] = []
    while len(blocks) < steps:
        blocks += list(partition(free, size, rng=rng))
    return blocks[:steps]


def burn_in_texts(case: Setting, sweeps: int) -> Tensor:
    """The texts of a setting after some sweeps of the fast form."""
    rng = torch.Generator().manual_seed(0)
    plan = Plan(sweeps=sweeps, burn_in=0)  # of single sites, which burn in faster
    state = ChainState(case.tokens, torch.zeros(len(case.tokens)))
    for record in run_chains(
        kernel("fast", case).kernel, case.tokens, case.free, plan=plan, rng=rng
    ):
        state = record.state
    return state.tokens


def compare_forms(case: Setting, *, steps: int, repeats: int) -> dict[str, dict[str, float]]:
    """Proposals/s and rows of each form, and how many times as fast it is as the first two."""
    kernels = {form: kernel(form, case) for form in FORMS}
    states = {form: kernels[form].kernel.init(case.tokens) for form in FORMS}
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    processor: dict[str, list[float]] = {form: [] for form in FORMS}
    rows = dict.fromkeys(FORMS, 0)
    for turn in range(repeats):
        blocks = some_blocks(case.free, steps, turn, case.block)
        for form in FORMS:
            before = kernels[form].rows()

            def play(form: str = form, blocks: list[Tensor] = blocks, turn: int = turn) -> None:
                states[form], _ = take_steps(kernels[form].kernel, states[form], blocks, turn)

            started = process_time()
            seconds[form].append(timed(play))
            processor[form].append(process_time() - started)
            rows[form] += kernels[form].rows() - before
    proposals = steps * len(case.tokens)
    speeds = {}
    for form in FORMS:
        speeds[form] = {
            "proposals_per_s": proposals / statistics.median(seconds[form]),
            "rows_per_proposal": rows[form] / proposals / repeats,
        }
        for name, other in zip(("over_2t_1", "over_t_1"), FORMS, strict=False):
            pairs = zip(processor[other], processor[form], strict=True)
            speeds[form][name] = statistics.median(a / b for a, b in pairs)
        step = partial(take_steps, kernels[form].kernel, states[form], blocks, repeats)
        speeds[form]["waits_per_step"] = count_synchronizations(step) / steps
    return speeds


def identical(case: Setting, *, steps: int) -> dict[str, bool]:
    """Whether each form's chain is that of the reference: tokens, flags, energies to 1e-9."""
    blocks, expected = some_blocks(case.free, steps, 0, case.block), None
    equal = {}
    for form in ("reference", *FORMS):
        stepper = kernel(form, case).kernel
        state, infos = take_steps(stepper, stepper.init(case.tokens), blocks, 0)
        expected = expected or (state, infos)
        equal[form] = (
            torch.equal(state.tokens, expected[0].tokens)
            and float((state.energy - expected[0].energy).abs().max()) < 1e-9
            and all(
                torch.equal(a.accepted, b.accepted) for a, b in zip(infos, expected[1], strict=True)
            )
        )
    return equal


def long_run(case: Setting, *, sweeps: int) -> dict[str, float]:
    """The chain's ESS of the energy for each sweep, and its rates."""
    rng = torch.Generator().manual_seed(1)
    plan = Plan(sweeps=sweeps, burn_in=0, blocks=ConstantBlocks(size=case.block))
    stepper = kernel("fast", case).kernel
    traced = trace(run_chains(stepper, case.tokens, case.free, plan=plan, rng=rng))
    ess = bulk_ess(traced.energy)
    return {
        "ess_per_sweep": float("nan") if ess is None else ess / sweeps,
        "energy": float(traced.energy.mean()),
        "accept": float(traced.accept.mean()),
        "repeated": float(traced.repeated.mean()),
        "novel": float(traced.novel.mean()),
    }


def two_steps(form: str, model: str, **options: Any) -> dict[str, Any]:
    """Load a model and make two steps, for the memory that they take."""
    case = setting(model, **options)
    stepper = kernel(form, case).kernel
    take_steps(stepper, stepper.init(case.tokens), some_blocks(case.free, 2, 0, case.block), 0)
    return {}


def run(
    *,
    models: Sequence[str] = ("multi30k", "rxnmapper"),
    chains: int = 8,
    time: int = 16,
    steps: int = 16,
    repeats: int = 3,
    burn_in: int = 30,
    long: int = 100,
    updates: int = 4000,
    vocab: int = VOCAB,
    block: int = 1,
    memory: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Speed, effective sample size and memory of each form, for each model.

    Args:
        models: multi30k, which is trained here, shapes of BERTs, or names of pretrained models.
        chains: number of chains.
        time: words of a caption; a reaction has its own length.
        steps: steps of a turn, each of them a proposal for every chain.
        repeats: number of turns.
        burn_in: sweeps before anything is measured.
        long: sweeps of the run whose ESS is computed.
        updates: updates that multi30k is trained for.
        vocab: words of a BERT with random weights.
        block: positions that are proposed together.
        memory: whether peaks are measured.
        progress: called with lines of text as they are known.
    """
    rows = []
    sizes = {"chains": chains, "time": time, "updates": updates}
    options: dict[str, Any] = sizes | {"vocab": vocab, "block": block}
    for model in models:
        case = setting(model, **options)
        sites, words = int(case.free[0].sum()), len(case.mlm.allowed)
        progress(
            f"{model}: V={words} T={sites} {len(case.tokens)} chains, blocks of {block}, "
            f"burn-in of {burn_in} sweeps"
        )
        case = case._replace(tokens=burn_in_texts(case, burn_in))
        chain = long_run(case, sweeps=long)
        progress(
            f"  at stationarity: energy {chain['energy']:.1f}, repeated {chain['repeated']:.2f}, "
            f"accepted {chain['accept']:.2f}, novel {chain['novel']:.3f}"
        )
        forms = compare_forms(case, steps=steps, repeats=repeats)
        exact = setting(model, **options, double=True)._replace(tokens=case.tokens)
        same = identical(exact, steps=min(steps, 16))
        for form, figures in forms.items():
            sweeps_per_s = figures["proposals_per_s"] * block / sites / len(case.tokens)
            figures["seconds_per_sweep"] = 1 / sweeps_per_s
            figures["ess_per_s"] = chain["ess_per_sweep"] * sweeps_per_s
            figures["identical_in_float64"] = same[form]
            if memory:
                figures["peak_mb"] = in_child(two_steps, form, model, **options)["peak_mb"]
            progress(form_text(form, figures))
        row = {"model": model, "vocab": words, "time": sites, "block": block}
        rows.append(row | {"chain": chain, "forms": forms})
    return {"bench": "sampler", "chains": chains, "steps": steps, "repeats": repeats, "rows": rows}


def form_text(form: str, figures: dict[str, float]) -> str:
    """Write the figures of a form on a line."""
    peak = f"  {figures['peak_mb']:5.0f} MB" if "peak_mb" in figures else ""
    sweep, waits = figures["seconds_per_sweep"], figures["waits_per_step"]
    return (
        f"  {form:22} {figures['proposals_per_s']:8.1f} proposals/s  {sweep:7.2f} s a sweep  "
        f"{figures['rows_per_proposal']:5.1f} rows, at most {waits:4.1f} waits a proposal  "
        f"{figures['ess_per_s']:7.3f} ESS/s{peak}  {figures['over_2t_1']:5.1f}x 2T+1  "
        f"{figures['over_t_1']:5.1f}x T+1  "
        f"{'same chain' if figures['identical_in_float64'] else 'ANOTHER CHAIN'}"
    )
