"""The interface of the schedulers of `diffusers`: theirs on our models, and ours in their loops.

Their pipelines call a model on texts with masks, and `scheduler.step(logits, step, texts)`, whose
`prev_sample` are the texts for the next call. Nothing of diffusers is imported here.
"""

from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from softbeam.sampling.kernels import checked, log_acceptance, log_uniform
from softbeam.sampling.masking import packed_logits
from softbeam.sampling.proposals import by_chain
from softbeam.sampling.unmasking import Unmask
from softbeam.tensors import draw
from softbeam.types import Energy, MaskedLM


class Output(NamedTuple):
    """What a step returns, as in diffusers."""

    prev_sample: Int[Tensor, "batch time"]


class Scheduler(Protocol):
    """What the schedulers of diffusers for texts with masks have in common."""

    def set_timesteps(self, num_inference_steps: int, **options: Any) -> None: ...
    def step(self, model_output: Any, timestep: Any, sample: Any, **options: Any) -> Any: ...


def scheduled(scheduler: Scheduler, *, mask_id: int, steps: int, **options: Any) -> Unmask:
    """Make a sampler of a scheduler, such as `diffusers.BlockRefinementScheduler`.

    The whole text is one block. Disallowed tokens have no probability; a token that is visible has
    all of it.

    Args:
        scheduler: the scheduler.
        mask_id: the token of the mask.
        steps: the number of steps.
        options: more arguments of its `step`, such as `temperature=1.0`.
    """

    @torch.no_grad()
    def fill(mlm: MaskedLM, tokens: Tensor, hidden: Tensor, rng: Generator) -> Tensor:
        scheduler.set_timesteps(steps, block_length=tokens.shape[1])
        sample = tokens.masked_fill(hidden, mask_id)
        for step in range(steps):
            masked = sample == mask_id
            logits = torch.nn.functional.one_hot(sample, len(mlm.allowed)).double().log()
            if bool(masked.any()):
                active = masked.any(-1)
                cells = torch.cat(list(packed_logits(mlm, sample[active], masked[active])))
                logits[masked] = cells.double().masked_fill(~mlm.allowed, float("-inf"))
            given = {"mask_token_id": mask_id, "generator": rng} | options
            sample = scheduler.step(logits, step, sample, **given).prev_sample
        return sample

    return fill


class MetropolisScheduler:
    """Metropolis-Hastings in the form of a scheduler: corrects texts in the loop of a pipeline.

    The first step fills what is masked, all at once. From then on, a step proposes new tokens at
    the positions that it masked before the call of the model, accepts or refuses them by the energy
    of the whole text, and masks the next positions: every `stride`-th, then those beside them. The
    last step masks nothing. Which positions are masked never depends on the text, so the texts
    converge to exp(-energy).

    Args:
        energy: of the target, such as `ChainEnergy` of the same model.
        mask_id: the token of the mask.
        stride: the distance of positions that are proposed together.
    """

    def __init__(self, energy: Energy, *, mask_id: int, stride: int = 2):
        if stride < 1:
            raise ValueError(f"stride={stride} must be at least 1")
        self.energy, self.mask_id, self.stride = energy, mask_id, stride
        self.text: Tensor | None = None

    def set_timesteps(self, num_inference_steps: int, **options: Any) -> None:
        """Begin a new text; the first of the steps makes the draft, the others correct it."""
        self.num_inference_steps = num_inference_steps
        self.timesteps = torch.arange(num_inference_steps - 1, -1, -1)
        self.text = None

    @torch.no_grad()
    def step(
        self,
        model_output: Float[Tensor, "batch time vocab"],
        timestep: int,
        sample: Int[Tensor, "batch time"],
        *,
        generator: Generator,
        **options: Any,
    ) -> Output:
        """Take a step: propose, accept or refuse, mask the next positions."""
        masked = sample == self.mask_id
        log_p = model_output[masked].double().log_softmax(-1)
        drawn = draw(log_p.exp(), generator) if len(log_p) else log_p[:, :1].long()
        new = sample.masked_scatter(masked, drawn)
        if self.text is None:  # the draft
            self.free = masked
            self.text, self.current = new, checked(self.energy(new))
        else:
            old = self.text[masked][:, None]
            forward, reverse = (by_chain(log_p.gather(1, t)[:, 0], masked) for t in (drawn, old))
            energy = checked(self.energy(new))
            log_a = log_acceptance(self.current, energy, forward, reverse)
            accepted = log_uniform(log_a, generator) < log_a
            self.text = torch.where(accepted[:, None], new, self.text)
            self.current = torch.where(accepted, energy, self.current)
        if timestep + 1 >= self.num_inference_steps:
            return Output(self.text)
        turn = (self.free.cumsum(-1) - 1) % self.stride == timestep % self.stride
        return Output(self.text.masked_fill(self.free & turn, self.mask_id))
