"""The fast sampler against plain ones: same model, same proposals, same seed, one run.

The forms take turns, and ratios are medians over the turns of processor time, which other work on
the machine disturbs less; proposals/s are by the clock. Chains are burnt in first, by the fast
form, so that words are proposed again and again as often as they are at stationarity. Effective
sample sizes are of one long run: the chains of all forms are the same, and a form's ESS/s is its
sweeps/s times the ESS of a sweep. Peak memory is that of a process of its own for each form, less
what importing the packages takes.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from softbeam.errors import UserError
from softbeam.experiments.bench.plain_sampler import FullLogits, plain_sampler
from softbeam.experiments.bench.soft_beam import _peak_kb, timed
from softbeam.experiments.bench.trained_mlm import trained_mlm
from softbeam.models import catalogue
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.models.masked import TransformerMlm
from softbeam.sampling.chains import Plan, partition, trace
from softbeam.sampling.chains import run as run_chain
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


class Setting(NamedTuple):
    """A model and texts of equal length to start from."""

    mlm: TransformerMlm | HfMaskedLM
    tokens: Tensor
    free: Tensor


def setting(model: str, *, chains: int, time: int, updates: int, double: bool = False) -> Setting:
    """Chains at held-out captions, or all at one reaction."""
    if model == "multi30k":
        trained = trained_mlm(updates=updates)
        rows = [row for row in trained.held_out if len(row) == time][:chains]
        if len(rows) < max(chains, 1):
            raise UserError(f"{len(rows)} held-out captions have {time} words; {chains} are asked")
        tokens = torch.tensor(rows)
        mlm = trained.model.double() if double else trained.model
        return Setting(mlm, tokens, torch.ones_like(tokens, dtype=torch.bool))
    loaded = catalogue.load(model, dtype=torch.float64 if double else torch.float32)
    prompts = loaded.encode([REACTION] * chains)
    return Setting(loaded, prompts.tokens, ~prompts.frozen)


def full_logits(mlm: TransformerMlm | HfMaskedLM) -> FullLogits:
    """Logits of every position, as most code has them."""
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

    made = plain_sampler(
        logits,
        mask_id=case.mlm.mask_id,
        allowed=case.mlm.allowed,
        sites=case.free[0].nonzero()[:, 0].tolist(),
        keep_energy=form == "T+1 passes",
    )
    return Counting(made, lambda: count[0])


def played(
    step: Kernel, state: ChainState, blocks: Sequence[Tensor], seed: int
) -> tuple[ChainState, list[StepInfo]]:
    """The kernel at each block in turn, and what it said."""
    rng, infos = torch.Generator().manual_seed(seed), []
    for positions in blocks:
        state, info = step.step(state, positions, rng)
        infos.append(info)
    return state, infos


def some_blocks(free: Tensor, steps: int, seed: int) -> list[Tensor]:
    """Single sites in random order, sweep after sweep."""
    rng, size = torch.Generator().manual_seed(seed), torch.ones_like(free[:, 0]).long()
    found: list[Tensor] = []
    while len(found) < steps:
        found += list(partition(free, size, rng=rng))
    return found[:steps]


def burnt_in(case: Setting, sweeps: int) -> Tensor:
    plan, rng = Plan(sweeps=sweeps, burn_in=0), torch.Generator().manual_seed(0)
    state = ChainState(case.tokens, torch.zeros(len(case.tokens)))
    for record in run_chain(
        kernel("fast", case).kernel, case.tokens, case.free, plan=plan, rng=rng
    ):
        state = record.state
    return state.tokens


def compared(case: Setting, *, steps: int, repeats: int) -> dict[str, dict[str, float]]:
    """Proposals/s and rows of each form, and how many times as fast it is as the first two."""
    made = {form: kernel(form, case) for form in FORMS}
    states = {form: made[form].kernel.init(case.tokens) for form in FORMS}
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    processor: dict[str, list[float]] = {form: [] for form in FORMS}
    rows = dict.fromkeys(FORMS, 0)
    for turn in range(repeats):
        blocks = some_blocks(case.free, steps, turn)
        for form in FORMS:
            before = made[form].rows()

            def play(form: str = form, blocks: list[Tensor] = blocks, turn: int = turn) -> None:
                states[form], _ = played(made[form].kernel, states[form], blocks, turn)

            started = process_time()
            seconds[form].append(timed(play))
            processor[form].append(process_time() - started)
            rows[form] += made[form].rows() - before
    proposals = steps * len(case.tokens)
    found = {}
    for form in FORMS:
        found[form] = {
            "proposals_per_s": proposals / statistics.median(seconds[form]),
            "rows_per_proposal": rows[form] / proposals / repeats,
        }
        for name, other in zip(("over_2t_1", "over_t_1"), FORMS, strict=False):
            pairs = zip(processor[other], processor[form], strict=True)
            found[form][name] = statistics.median(a / b for a, b in pairs)
    return found


def identical(case: Setting, *, steps: int) -> dict[str, bool]:
    """Whether each form's chain is that of the reference: tokens, flags, energies to 1e-9."""
    blocks, expected = some_blocks(case.free, steps, 0), None
    found = {}
    for form in ("reference", *FORMS):
        made = kernel(form, case).kernel
        state, infos = played(made, made.init(case.tokens), blocks, 0)
        expected = expected or (state, infos)
        found[form] = (
            torch.equal(state.tokens, expected[0].tokens)
            and float((state.energy - expected[0].energy).abs().max()) < 1e-9
            and all(
                torch.equal(a.accepted, b.accepted) for a, b in zip(infos, expected[1], strict=True)
            )
        )
    return found


def long_run(case: Setting, *, sweeps: int) -> dict[str, float]:
    """What the chain is like: the ESS of its energy a sweep, and its rates."""
    plan, rng = Plan(sweeps=sweeps, burn_in=0), torch.Generator().manual_seed(1)
    made = kernel("fast", case).kernel
    found = trace(run_chain(made, case.tokens, case.free, plan=plan, rng=rng))
    ess = bulk_ess(found.energy)
    return {
        "ess_per_sweep": float("nan") if ess is None else ess / sweeps,
        "energy": float(found.energy.mean()),
        "accept": float(found.accept.mean()),
        "repeated": float(found.repeated.mean()),
        "novel": float(found.novel.mean()),
    }


def peak_mb(form: str, model: str, **options: Any) -> float:
    """Peak resident memory of two steps in a process of their own, in MB: model, cache and all."""
    call = f"from {__name__} import probe; probe({form!r}, {model!r}, **{options})"
    out = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
    return float(json.loads(out.stdout)["peak_mb"])


def probe(form: str, model: str, **options: Any) -> None:
    """Prints the peak of two steps, less what the imports had taken: run in a child."""
    torch.set_num_threads(1)
    before = _peak_kb()
    case = setting(model, **options)
    made = kernel(form, case).kernel
    played(made, made.init(case.tokens), some_blocks(case.free, 2, 0), 0)
    print(json.dumps({"peak_mb": (_peak_kb() - before) / 1024}))


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
    memory: bool = True,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The figures of each model and form.

    Args:
        models: multi30k, trained here, or one of the pretrained.
        chains: number of chains.
        time: length of the captions; a reaction has its own.
        steps: of a turn; each is a proposal of every chain.
        repeats: number of turns.
        burn_in: sweeps before anything is measured.
        long: sweeps of the run that the ESS is of.
        updates: of the trained model.
        memory: whether to measure peaks.
        progress: is told lines as they are found.
    """
    say = progress or (lambda line: None)
    rows = []
    for model in models:
        options: dict[str, Any] = {"chains": chains, "time": time, "updates": updates}
        case = setting(model, **options)
        sites, vocab = int(case.free[0].sum()), len(case.mlm.allowed)
        say(f"{model}: V={vocab} T={sites} {len(case.tokens)} chains, burn-in of {burn_in} sweeps")
        case = case._replace(tokens=burnt_in(case, burn_in))
        chain = long_run(case, sweeps=long)
        say(
            f"  at stationarity: energy {chain['energy']:.1f}, repeated {chain['repeated']:.2f}, "
            f"accepted {chain['accept']:.2f}, novel {chain['novel']:.3f}"
        )
        forms = compared(case, steps=steps, repeats=repeats)
        exact = setting(model, **options, double=True)._replace(tokens=case.tokens)
        same = identical(exact, steps=min(steps, 16))
        for form, found in forms.items():
            sweeps_per_s = found["proposals_per_s"] / sites / len(case.tokens)
            found["ess_per_s"] = chain["ess_per_sweep"] * sweeps_per_s
            found["identical_in_float64"] = same[form]
            if memory:
                found["peak_mb"] = peak_mb(form, model, **options)
            peak = f"  {found['peak_mb']:5.0f} MB" if memory else ""
            say(
                f"  {form:22} {found['proposals_per_s']:8.1f} proposals/s  "
                f"{found['rows_per_proposal']:5.1f} rows each  {found['ess_per_s']:7.3f} ESS/s"
                f"{peak}  {found['over_2t_1']:5.1f}x 2T+1  {found['over_t_1']:5.1f}x T+1  "
                f"{'same chain' if same[form] else 'ANOTHER CHAIN'}"
            )
        rows.append({"model": model, "vocab": vocab, "time": sites, "chain": chain, "forms": forms})
    return {"bench": "sampler", "chains": chains, "steps": steps, "repeats": repeats, "rows": rows}
