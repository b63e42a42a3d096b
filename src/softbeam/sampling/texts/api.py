"""Sample, score and fill in texts: the functions behind `softbeam sample`, `score` and `infill`."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.runtime.devices import device_of
from softbeam.sampling.chains import Trace, side_by_side, trace
from softbeam.sampling.diagnostics import TextMixing, text_mixing
from softbeam.sampling.texts.arviz_data import to_arviz
from softbeam.sampling.texts.infill import Filling, Method, fill_texts
from softbeam.sampling.texts.sampler import generator, samplers
from softbeam.sampling.texts.score import Scored, score_texts
from softbeam.sampling.texts.settings import Rows, SamplingConfig, infill_settings, overridden
from softbeam.types import TextModel

DEFAULTS = SamplingConfig()


class Samples(NamedTuple):
    """Samples of one or several texts; the trace also has the burn-in."""

    texts: list[list[str]]  #: samples of each prompt after the burn-in, sweep by sweep
    energy: Float[Tensor, "prompt sweep chain"]  #: energies of `texts`
    trace: Trace  #: all sweeps; column `prompt * chains + chain` is a chain of a prompt
    tokens: list[Int[Tensor, "sweep chain time"]]  #: tokens of `texts` for each prompt

    def summary(self) -> list[TextMixing]:
        """Compute mean energy, worst R-hat and effective sample size for each prompt."""
        return [text_mixing(*both) for both in zip(self.energy, self.tokens, strict=True)]

    def to_arviz(self) -> Any:
        """Convert to a DataTree of ArviZ, with dimensions chain and draw; without the burn-in.

        - posterior: `energy` of each prompt, and `indicator`: 1 where a token stands at a position,
          0 elsewhere, for every feature that `summary` looks at. Their means are probabilities, and
          their R-hat and effective sample size are those of `summary`.
        - sample_stats: `lp`, -energy, and of each sweep the shares of accepted proposals, of those
          that repeat the text, of novel and of stuck ones.
        - texts: `tokens`, the number of the token at each position; -1 is beyond a text's end. They
          are no part of the posterior, as numbers of tokens have no mean.

        Raises UserError if arviz-base is not installed.
        """
        return to_arviz(self.energy, self.tokens, self.trace)


def sample(
    mlm: TextModel,
    texts: str | Sequence[str],
    settings: SamplingConfig = DEFAULTS,
    *,
    device: str | None = None,
    **overrides: Any,
) -> Samples:
    """Run Markov chains over the gaps of texts, and return all samples.

    The samples are those that `softbeam sample` writes with the same settings and number of
    threads. For long runs prefer the command: it writes samples to a file while they are drawn, and
    can resume.

    Args:
        mlm: the model, as `load_mlm` returns it.
        texts: one or several texts, in which `[MASK]` is a gap of one token.
        settings: the target, the kernel and the number of chains and sweeps. Its `dtype` is that
            of the command's model; here the model has its own.
        device: where the model runs: auto, cpu, cuda, cuda:1 or mps; by default where it is. The
            chains are the same on every device up to rounding.
        overrides: fields of `settings` to replace, as in `sample(mlm, text, chains=4, seed=2)`.
    """
    settings, mlm = overridden(settings, overrides), placed(mlm, device)
    prompts = [texts] if isinstance(texts, str) else list(texts)
    samples: list[list[str]] = []
    tokens, traces = [], []
    for number, group in enumerate(samplers(mlm, prompts, settings)):
        records = list(group.run(generator(settings, number)))
        traces.append(trace(records))
        kept = torch.stack([r.state.tokens for r in records if r.phase == "sample"])
        for rows in kept.unflatten(1, (-1, settings.chains)).transpose(0, 1):
            tokens.append(rows)
            samples.append(mlm.decode(rows.flatten(0, 1)))
    every = side_by_side(traces)
    energy = every.samples().energy.unflatten(1, (len(prompts), settings.chains))
    return Samples(samples, energy.transpose(0, 1), every, tokens)


def score(
    mlm: TextModel,
    texts: str | Sequence[str],
    *,
    energy: Literal["local", "raw", "strided", "chain-rule"] = "local",
    rows: Rows = 256,
    stride: int = 8,
    device: str | None = None,
) -> list[Scored]:
    """Compute the pseudo-log-likelihood of each text, and of each of its tokens.

    Args:
        mlm: the model, as `load_mlm` returns it.
        texts: one or several texts without gaps.
        energy: local sums log-probabilities; raw sums logits; strided masks every `stride`-th token
            together, which takes `stride` rows instead of one for each token; chain-rule sums
            log-probabilities of tokens given those before them, with all later ones masked, which
            is the log-likelihood of a distribution over texts of this length.
        rows: the largest number of masked rows that the model gets at once; auto is what fits.
        stride: of a strided energy.
        device: where the model runs, as in `sample`.
    """
    prompts, mlm = [texts] if isinstance(texts, str) else list(texts), placed(mlm, device)
    return list(score_texts(mlm, prompts, energy=energy, rows=rows, stride=stride))


def infill(
    mlm: TextModel,
    text: str,
    *,
    samples: int = 200,
    method: Method = "mh",
    device: str | None = None,
    **overrides: Any,
) -> list[Filling]:
    """Find the distinct fillings of all gaps of a text together, lowest energy first.

    - mh: chains over all gaps; the shares approach exp(-energy), the joint distribution.
    - in-turn: gaps are filled one after another, in random order: independent samples, but not of
      the joint distribution.
    - greedy: the likeliest token of each gap, all predicted at once: a single filling.
    - enumerate: all fillings, at most 1,000,000, with their exact probabilities.
    - auto: enumerate if there are at most 10,000 fillings, and mh otherwise.

    A gap is `[MASK]`, one token, or `[WORD]`, one whole word of 1 to `pieces` tokens. All fillings
    share one distribution, exp(-energy / temperature) / Z, where Z is a sum over fillings of all
    lengths: a length is as likely as its fillings are together. Only with energy="chain-rule" are
    the energies of different lengths logarithms of comparable probabilities; then a number of
    pieces weighs as much as the model, shown that many masks, is sure that they are one word.

    Args:
        mlm: the model, as `load_mlm` returns it.
        text: a text with gaps, `[MASK]` or `[WORD]`.
        samples: the number of samples to draw.
        method: how to draw them.
        device: where the model runs, as in `sample`.
        overrides: fields of `SamplingConfig` to replace, as `energy`, `chains` or `seed`; not
            those that infilling decides itself, as `sweeps`.
    """
    settings, mlm = infill_settings(overrides), placed(mlm, device)
    return next(fill_texts(mlm, [text], settings, samples=samples, method=method))


def placed(mlm: TextModel, device: str | None) -> TextModel:
    """Move a model to a device, if one is given. Raises TypeError if the model has no `to`."""
    if device is None:
        return mlm
    move = getattr(mlm, "to", None)
    if move is None:
        raise TypeError(f"device={device!r}: {type(mlm).__name__} has no method `to` that moves it")
    move(device_of(device))
    return mlm
