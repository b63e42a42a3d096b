"""Fit random fields to sequences by different objectives, and measure them (thesis, Sec. 6.2.3).

One `Fit` is one cell of a grid: its data, its objective, its sizes and its seed. `run` trains it
and measures it on held-out sequences: the pseudolikelihood, the MLM objective, and the negative
log-likelihood with the model's own log Z, which is exact where the space can be enumerated and
estimated by annealed importance sampling (AIS) elsewhere.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator

from softbeam import exact
from softbeam.errors import UserError
from softbeam.experiments.energies.sequences import (
    SYNTHETIC,
    TIME,
    VOCAB,
    Data,
    Sequences,
    Splits,
    dictionary,
    draw_sequences,
    log_truth,
    phonemes,
)
from softbeam.models.random_field import BiLstmMrf
from softbeam.models.residual import Residual
from softbeam.objectives.base import Objective
from softbeam.objectives.energy import (
    KlProjection,
    Likelihood,
    MaskedLikelihood,
    NoiseContrastive,
    PersistentContrastiveDivergence,
    Pseudolikelihood,
)
from softbeam.objectives.losses.energy import Memory, UnigramNoise, log_phi
from softbeam.objectives.losses.masked_noise import MaskedNoise
from softbeam.runtime.cells import key, result_path
from softbeam.sampling import importance
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.schedules import Moment
from softbeam.training.optimization import ramp
from softbeam.training.runs import load_weights, save_weights
from softbeam.types import Batch, Kernel

Method = Literal[
    "LL", "PLL", "MLM", "KL", "KL+PLL", "NCE", "PCD", "MLM-masks", "NCE-MLM", "residual"
]
TEACHERS: dict[Method, Method] = {  # objectives that learn from another fit
    "KL": "MLM",
    "KL+PLL": "MLM",
    "NCE-MLM": "MLM-masks",
    "residual": "MLM-masks",
}
HIDDEN = 0.5  # share of the tokens that MLM-masks hides from each other
Model = BiLstmMrf | Residual
ALL = 10**6  # a training size larger than any dataset
RESERVED = 65_000  # "for the real data we reserve 65k ... instances for training the MLM"
EVALUATED = 2000  # rows that are evaluated at once


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A random field trained on one dataset with one objective.

    Args:
        data: palindromes, hmm-low, hmm-high, phonemes, or phonemes-distinct (each sequence once).
        objective: LL, PLL, MLM, KL, KL+PLL, NCE, PCD; MLM-masks, which also reads masked tokens;
            NCE-MLM, whose noise it draws; residual, an energy on top of it.
        size: number of training sequences; `ALL` for all of them.
        seed: seed of the dataset, its split, the weights and the batches.
        reserved: whether it is trained on the sequences set aside for teachers, which no other fit
            sees.
        teacher: the fit whose conditionals KL projects, and from whose weights it starts; or whose
            samples are the noise of NCE-MLM and residual.
        embedding: width of the embeddings.
        hidden: width of each LSTM.
        lr: learning rate of Adam at the start; it falls linearly to a tenth of this.
        batch: sequences in an update.
        updates: the largest number of updates.
        every: updates between evaluations on the dev set; the best weights are kept.
        patience: evaluations without improvement before training stops.
        tested: the largest number of held-out sequences.
        exact_time: the longest sequences whose log Z is enumerated.
        particles: particles of AIS, for longer sequences.
        steps: steps of AIS.
        check: whether AIS is also run at length `exact_time`, where the exact value is known.
    """

    data: Data
    objective: Method
    size: int
    seed: int
    reserved: bool = False
    teacher: "Fit | None" = None
    embedding: int = 16
    hidden: int = 32
    lr: float = 5e-3
    batch: int = 128
    updates: int = 2000
    every: int = 50
    patience: int = 6
    tested: int = 10_000
    exact_time: int = 5
    particles: int = 1000
    steps: int = 600
    check: bool = False

    def __str__(self) -> str:
        size = "all" if self.size == ALL else f"{self.size:,}"
        return f"{self.objective} on {size} {self.data}, seed {self.seed}"

    def __post_init__(self) -> None:
        if (self.objective in TEACHERS) != (self.teacher is not None):
            names = ", ".join(TEACHERS)
            raise ValueError(
                f"objective={self.objective}: {names} need a teacher, the others have none"
            )


def run(cell: Fit, folder: Path) -> dict[str, Any]:
    """Train a cell, keep its weights in the folder, and return what was measured."""
    splits = load(cell)
    model = build(cell, splits, folder)
    started = time.process_time()
    trained = train(model, cell, splits, folder)
    trained["training_cpu_seconds"] = round(time.process_time() - started, 2)
    path = weights_path(cell, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(model, path)
    measured = measure(model, cell, splits) | trained
    return measured | {"cpu_seconds": round(time.process_time() - started, 2)}


def weights_path(cell: Fit, folder: Path) -> Path:
    return folder / "models" / f"{key(cell)}.safetensors"


# Data


def load(cell: Fit) -> Splits:
    """Training, dev and test sequences, which depend on the seed but not on the objective.

    Dev has half the training size, 100 sequences at least and 1000 at most.
    """
    dev = min(max(100, cell.size // 2), 1000)
    if cell.data in SYNTHETIC:
        # Training, dev and test, and those of teachers, have different seeds.
        first = 10 * cell.seed + (5 if cell.reserved else 0)
        wanted = (cell.size, dev, cell.tested)
        train, held, test = (draw_sequences(cell.data, n, first + i) for i, n in enumerate(wanted))
        return Splits(train, held, test, VOCAB, None)
    everything, vocab = phonemes(dictionary(), distinct=cell.data == "phonemes-distinct")
    n = len(everything.tokens)
    order = torch.randperm(n, generator=Generator().manual_seed(cell.seed))
    tested, rest = order[: n // 10], order[n // 10 :]
    # Teachers take the reserved sequences, other fits begin at the far end; all share the test set.
    chosen = rest[:RESERVED] if cell.reserved else rest.flip(0)
    dev = min(dev, len(chosen) // 10)
    return Splits(
        everything.rows(chosen[dev : dev + cell.size]),
        everything.rows(chosen[:dev]),
        everything.rows(tested[: cell.tested]),
        vocab,
        n,
    )


# Training


def build(cell: Fit, splits: Splits, folder: Path) -> Model:
    """A new model, or a copy of the teacher, with the memory that the objective needs."""
    torch.manual_seed(cell.seed)
    field = BiLstmMrf(splits.vocab, embedding=cell.embedding, hidden=cell.hidden)
    longest = splits.train.tokens.shape[1]
    model: Model = field
    if cell.objective == "residual":
        base = noise_of(cell, splits, folder).energy(longest)
        model = Residual(base, field, pad_id=field.pad_id)
    elif cell.objective.startswith("KL") and cell.teacher is not None:
        model = finished_model(cell.teacher, splits.vocab, folder)
    if cell.objective in ("NCE", "PCD", "NCE-MLM", "residual"):
        model.memory = Memory(splits.vocab, longest=longest, chains=cell.batch)
        if cell.objective == "residual":
            model.memory.log_z.data.zero_()  # that of the base
    return model


def noise_of(cell: Fit, splits: Splits, folder: Path) -> MaskedNoise:
    """The law of the teacher, a masked language model."""
    assert cell.teacher is not None
    return MaskedNoise(finished_model(cell.teacher, splits.vocab, folder).requires_grad_(False))


def finished_model(cell: Fit, vocab: int, folder: Path) -> BiLstmMrf:
    """The model of a finished cell; raises UserError if its weights are missing."""
    path = weights_path(cell, folder)
    if not path.is_file():
        raise UserError(f"{path} is missing: remove {result_path(cell, folder)} and run it again")
    model = BiLstmMrf(vocab, embedding=cell.embedding, hidden=cell.hidden)
    load_weights(model, path)
    return model


def objective_of(cell: Fit, splits: Splits, folder: Path) -> Objective:
    """The objective of a cell's method."""
    if cell.objective in ("NCE-MLM", "residual"):
        return NoiseContrastive(noise=noise_of(cell, splits, folder))
    if cell.teacher is not None:
        teacher = finished_model(cell.teacher, splits.vocab, folder).requires_grad_(False)
        # 1:1 where both are summed: the thesis gives no weight (resolutions D5)
        return KlProjection(teacher=teacher, pseudolikelihood=float(cell.objective == "KL+PLL"))
    if cell.objective == "NCE":
        return NoiseContrastive(noise=UnigramNoise.fit(*splits.train, vocab=splits.vocab))
    plain: dict[str, Objective] = {
        "LL": Likelihood(),
        "PLL": Pseudolikelihood(),
        "MLM": MaskedLikelihood(),
        "MLM-masks": MaskedLikelihood(hide=HIDDEN),
        "PCD": PersistentContrastiveDivergence(kernel=own_kernel),
    }
    return plain[cell.objective]


def own_kernel(model: BiLstmMrf) -> Kernel:
    """Metropolis-Hastings with the model's own free conditionals as proposals (Algorithm 4)."""
    return metropolis_hastings(model.energy, MaskedConditionals(model))


def train(model: Model, cell: Fit, splits: Splits, folder: Path) -> dict[str, Any]:
    """Train with Adam on minibatches, and keep the weights with the best dev loss.

    The dev loss is the objective itself, or the likelihood for PCD, whose loss has no meaning.
    """
    rng = Generator().manual_seed(cell.seed)
    objective = objective_of(cell, splits, folder)
    judge = Likelihood() if cell.objective == "PCD" else objective
    optimizer = torch.optim.Adam(model.parameters(), lr=cell.lr)
    best, at, waited, update = math.inf, 0, 0, 0
    kept = model.state_dict()
    for update, batch in enumerate(batches(splits.train, cell, rng), start=1):
        optimizer.param_groups[0]["lr"] = cell.lr * ramp(
            update - 1, updates=cell.updates, rise=1, fall=cell.updates, end=0.1
        )
        loss = objective(model, batch, now=Moment(update=update), rng=rng)
        optimizer.zero_grad()
        (loss.total / loss.size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if update % cell.every == 0 or update == cell.updates:
            value = mean_loss(model, judge, splits.dev)
            waited += 1
            if value < best:
                best, waited, at = value, 0, update
                kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            if waited >= cell.patience:
                break
    if at == 0:
        raise ValueError(f"{cell}: no dev loss was a number")
    model.load_state_dict(kept)
    return {"dev_loss": best, "best_update": at, "updates": update}


def batches(train: Sequences, cell: Fit, rng: Generator) -> Iterator[Batch]:
    """Batches of the training sequences, in a new order for each pass; one for each update."""
    count = 0
    while count < cell.updates:
        for chosen in torch.randperm(len(train.tokens), generator=rng).split(cell.batch):
            yield train.rows(chosen).batch
            count += 1
            if count == cell.updates:
                return


@torch.no_grad()
def mean_loss(model: Model, objective: Objective, data: Sequences) -> float:
    """The mean of an objective in nats a sequence, with the same random numbers every time."""
    rng = Generator().manual_seed(0)
    losses = [objective(model, p.batch, now=Moment(), rng=rng) for p in data.parts(EVALUATED)]
    return sum(loss.total.item() for loss in losses) / len(data.tokens)


# Measuring


@torch.no_grad()
def measure(model: Model, cell: Fit, splits: Splits) -> dict[str, Any]:
    """Held-out values in nats a sequence, and how log Z was computed.

    `nll` is given the length of a sequence. `true_nll` is the generator's NLL on the same
    sequences; `expected_nll` is the model's exact expected NLL under the generator, which is never
    below the generator's `entropy`.
    """
    model.eval()
    test = splits.test
    scores = torch.cat([log_phi(model, *part).double() for part in test.parts(EVALUATED)])
    lengths = test.mask.sum(1)
    log_z, how, error = {}, {}, 0.0
    for length in lengths.unique().tolist():
        share = (lengths == length).double().mean().item()
        partition = log_partition(model, length, cell)
        log_z[length], how[length] = partition["log_z"], partition
        error = math.hypot(error, share * partition.get("error", 0.0))
    nll = torch.tensor([log_z[n] for n in lengths.tolist()]).double() - scores
    figures = {
        "nll": nll.mean().item(),
        "nll_spread": nll.std().item(),
        "log_z_error": error,
        "log_z": {str(n): partition for n, partition in how.items()},
        "pll": mean_loss(model, Pseudolikelihood(), test.rows(slice(0, EVALUATED))),
        "tested": len(nll),
        "trained": len(splits.train.tokens),
    }
    if isinstance(model, BiLstmMrf):
        figures["mlm"] = mean_loss(model, MaskedLikelihood(), test.rows(slice(0, EVALUATED)))
    if cell.data in SYNTHETIC:
        return figures | against_truth(model, cell.data, test)
    if cell.check and cell.exact_time in log_z:
        checked = sample_log_z(model, cell.exact_time, cell)._asdict()
        figures["ais_check"] = checked | {"exact": log_z[cell.exact_time]}
    return figures | {"instances": splits.instances}


def log_partition(model: Model, length: int, cell: Fit) -> dict[str, Any]:
    """log Z of a length and how it was computed: exact, or by AIS with its standard error.

    `exact` enumerates the synthetic spaces; the model enumerates larger ones, sharing work.
    """
    if cell.data in SYNTHETIC:
        space = exact.Space(vocab=model.vocab, time=length)
        return {"how": "exact", "log_z": exact.log_partition(score_of(model), space).item()}
    if length <= cell.exact_time and isinstance(model, BiLstmMrf):
        return {"how": "exact", "log_z": model.log_partition(length).item()}
    return {"how": "AIS"} | sample_log_z(model, length, cell)._asdict()


def sample_log_z(model: Model, length: int, cell: Fit) -> importance.Estimate:
    """log Z of a length by annealed importance sampling from a chain fitted to the dictionary.

    The chain it starts from changes the estimate's error, not its limit, so it favours no model.
    """
    everything, vocab = phonemes(dictionary(), distinct=cell.data == "phonemes-distinct")
    seen = everything.tokens[everything.mask.sum(1) == length][:, :length]
    return importance.log_partition(
        score_of(model),
        importance.MarkovChain.uniform(vocab, length).fitted(seen),
        particles=cell.particles,
        steps=cell.steps,
        rng=Generator().manual_seed(cell.seed),
    )


def score_of(model: Model) -> importance.Score:
    return lambda tokens: -model.energy(tokens)


def against_truth(model: Model, data: Data, test: Sequences) -> dict[str, float]:
    """The generator's entropy and NLL, and the model's expected NLL under the generator."""
    space = exact.Space(vocab=VOCAB, time=TIME)
    entropy = expected = 0.0
    for tokens, log_p in exact.distribution(score_of(model), space):
        truth = log_truth(data, tokens)
        p = truth.exp()
        entropy += torch.special.entr(p).sum().item()
        expected -= torch.where(p > 0, p * log_p, 0.0).sum().item()
    return {
        "true_nll": -log_truth(data, test.tokens).mean().item(),
        "entropy": entropy,
        "expected_nll": expected,
    }
