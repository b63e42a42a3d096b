r"""Training of energy-based sequence models (thesis, Sec. 6.2.2 and chapter 7).

The formulas are in `losses.energy`. The model is a `Field` of E_raw; the sequences are the batch's
targets, and its source is not read. Losses are sums over sequences, and logs are means over them,
in nats.

An objective has no state. An estimator keeps its numbers from update to update (an estimate of
log Z, chains) in the model's `memory`, a module, and all random choices come from `rng`: so a
checkpoint of weights, buffers and generator is a checkpoint of the whole training.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from softbeam._lazy import lazy
from softbeam.errors import check_range
from softbeam.objectives.base import Log, Objective, size
from softbeam.schedules import Moment

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn

    from softbeam import tensors, types
    from softbeam.objectives.losses import energy as losses
    from softbeam.sampling import chains as sampling
    from softbeam.types import Batch, Loss
else:
    torch, tensors, types = lazy("torch"), lazy("softbeam.tensors"), lazy("softbeam.types")
    losses = lazy("softbeam.objectives.losses.energy")
    sampling = lazy("softbeam.sampling.chains")

CHUNK = 2**14


@dataclass(frozen=True, kw_only=True)
class EnergyObjective(Objective):
    """An objective of an energy-based model: a `Field`, or an `EnergyModel` if that will do."""

    potentials: ClassVar[bool] = False  # whether it needs those of a `Field`

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        if not isinstance(model, losses.Field):
            if self.potentials or not isinstance(model, losses.EnergyModel):
                raise ValueError(
                    f"{type(self).__name__} needs a model with potentials, such as BiLstmMrf; "
                    f"{type(model).__name__} has none"
                )
        rows, log = self.rows(model, batch, rng)
        return types.Loss(rows.sum(), size(batch), log)

    @abstractmethod
    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        """The loss of each sequence, and what to log."""


@dataclass(frozen=True, kw_only=True)
class Likelihood(EnergyObjective):
    """LL: exact negative log-likelihood, E_raw(y) + log Z, by enumeration (thesis, Sec. 6.2.2).

    Each length that occurs is normalized by itself, over all vocab^length sequences.

    Args:
        chunk: largest number of sequences held at once; the model's own choice if not given.
    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        check_range("chunk", self.chunk, least=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        rows = losses.nll(model, batch.target, batch.mask, chunk=self.chunk)
        return rows, {"nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class Pseudolikelihood(EnergyObjective):
    r"""PLL: -sum_t log p(y_t | y\t) with the true conditionals of E_raw (thesis, Sec. 6.2.2).

    Args:
        chunk: largest number of substituted sequences held at once, but at least one sentence's.
    """

    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_range("chunk", self.chunk, least=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        log_probs = losses.true_conditionals(model, batch.target, batch.mask, chunk=self.chunk)
        rows = losses.gold_nll(log_probs, batch.target, batch.mask)
        return rows, {"pseudo_nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class MaskedLikelihood(EnergyObjective):
    r"""MLM: -sum_t log softmax f(y_t, h(y\t)), the degenerate pseudolikelihood (Sec. 6.2.1).

    One pass instead of |V|. Not the pseudolikelihood of E_raw: substituting y_t changes the other
    potentials too, and this one leaves them out.

    Args:
        hide: share of the positions whose token is hidden from all others behind the model's mask
            symbol. 0 is the thesis's; more trains what block proposals read.
    """

    potentials: ClassVar[bool] = True
    hide: float = 0.0

    def __post_init__(self) -> None:
        check_range("hide", self.hide, least=0, below=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        tokens = batch.target
        if self.hide > 0:
            drawn = tensors.uniform(tokens.shape, rng, tokens.device, None)
            hidden = drawn < self.hide
            tokens = tokens.masked_fill(hidden & batch.mask, model.mask_id)
        log_probs = losses.free_conditionals(model, tokens, batch.mask)
        rows = losses.gold_nll(log_probs, batch.target, batch.mask)
        return rows, {"masked_nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class KlProjection(EnergyObjective):
    r"""sum_t KL(p_mlm(. | y\t) || p(. | y\t)): a joint from a masked LM (thesis, Sec. 6.2.2).

    p_mlm are the teacher's free conditionals, p the true ones of the model's E_raw. The thesis
    starts the model from the teacher's weights.

    Args:
        teacher: a model, which stays as it is.
        pseudolikelihood: weight of PLL added to it; 0 for KL alone. The thesis gives none.
        chunk: as in Pseudolikelihood.
    """

    teacher: Any
    pseudolikelihood: float = 1.0
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_range("chunk", self.chunk, least=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        with torch.no_grad():
            log_mlm = losses.free_conditionals(self.frozen(model), batch.target, batch.mask)
        log_p = losses.true_conditionals(model, batch.target, batch.mask, chunk=self.chunk)
        if log_mlm.shape != log_p.shape:
            raise ValueError(f"teacher has {log_mlm.shape[-1]} tokens, not {log_p.shape[-1]}")
        kl = losses.divergence(log_mlm, log_p, batch.mask)
        pll = losses.gold_nll(log_p, batch.target, batch.mask)
        log = {"divergence": kl.mean().item(), "pseudo_nll": pll.mean().item()}
        return kl + self.pseudolikelihood * pll, log

    def frozen(self, model: "nn.Module") -> Any:
        """The teacher: a model that is not the one in training."""
        if self.teacher is model:
            raise ValueError("teacher is the model in training; give a copy of it")
        return self.teacher


@dataclass(frozen=True, kw_only=True)
class NoiseContrastive(EnergyObjective):
    """NCE of whole sequences: tell data from noise of the same length (thesis, chapter 7).

    The classifier's log-odds are log p(y) - log q(y) - log nu, log p(y) = -E_raw(y) - log Z with
    log Z a number for each length learned with the weights (`memory.log_z` of the model).

    Args:
        noise: q, a `softbeam.objectives.losses.energy.Noise`, such as `UnigramNoise.fit(...)`.
        nu: noise sequences for each sequence of data.
        self_normalized: log Z is taken to be 0, and the energies are trained to make it so.
    """

    noise: Any
    nu: int = 10
    self_normalized: bool = False

    def __post_init__(self) -> None:
        check_range("nu", self.nu, least=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        lengths = batch.ends.lengths
        data = self.log_ratio(model, batch.target, batch.mask)
        if not bool(data.isfinite().all()):
            raise ValueError("noise: it gives a sequence of the data the probability 0")
        each = lengths.repeat_interleave(self.nu)
        drawn = self.noise.sample(each, rng)
        noise = self.log_ratio(model, drawn, tensors.length_mask(each, drawn.shape[1]))
        noise = noise.unflatten(0, (len(lengths), self.nu))
        if not self.self_normalized:
            log_z = losses.memory_of(model, longest=int(lengths.max())).log_z[lengths]
            data, noise = data - log_z, noise - log_z[:, None]
        rows = losses.nce(data, noise, nu=float(self.nu))
        right = {"data_found": data > math.log(self.nu), "noise_found": noise < math.log(self.nu)}
        log = {name: flags.double().mean().item() for name, flags in right.items()}
        return rows, {"nce": rows.mean().item()} | log

    def log_ratio(self, model: Any, tokens: "Tensor", mask: "Tensor") -> "Tensor":
        """-E_raw(y) - log q(y)."""
        scores = losses.log_phi(model, tokens, mask)
        return scores - self.noise.log_prob(tokens, mask).to(scores)


@dataclass(frozen=True, kw_only=True)
class PersistentContrastiveDivergence(EnergyObjective):
    """The likelihood's gradient with chains in place of the enumeration (Tieleman 2008).

    E_raw(y) minus the mean E_raw of chains of y's length, which continue from update to update
    (`memory.chains` of the model). Only the gradient is of interest: it is that of the likelihood
    if the chains follow the model.

    Args:
        kernel: from the model to a `softbeam.types.Kernel` that leaves exp(-E_raw) invariant.
        sweeps: passes of the chains over their positions before each update.
    """

    kernel: Callable[..., Any]
    sweeps: int = 1

    def __post_init__(self) -> None:
        check_range("sweeps", self.sweeps, least=1)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        chains = losses.memory_of(model, longest=int(batch.ends.lengths.max()), chains=1).chains
        kernel, moved = self.kernel(model), []
        plan = sampling.Plan(sweeps=self.sweeps, burn_in=0)

        def expected(time: int) -> "Tensor":
            """The mean -E_raw of the chains of a length, after more sweeps."""
            tokens = chains[time, :, :time].clone()
            with torch.no_grad():
                free = torch.ones_like(tokens, dtype=torch.bool)
                for record in sampling.run_chains(kernel, tokens, free, plan=plan, rng=rng):
                    moved.append(record.counts.rate("novel").mean().item())
            tokens = chains[time, :, :time] = record.state.tokens
            return losses.log_phi(model, tokens, tokens >= 0).mean()

        of_model = losses.for_each_length(batch.mask, expected)
        of_data = losses.log_phi(model, batch.target, batch.mask)
        energies = {"energy": -of_data.mean().item(), "chain_energy": -of_model.mean().item()}
        return of_model - of_data, energies | {"moved": sum(moved) / max(len(moved), 1)}
