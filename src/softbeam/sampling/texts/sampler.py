"""Build the sampler of some texts: texts and settings in, records of all chains out.

Chains are rows: every text is repeated once for each of its chains. Where a text has gaps, only the
gaps are sampled unless the settings free the whole text. The tokens that the tokenizer adds around
a text (such as `[CLS]`) and padding are never sampled.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from softbeam.errors import UserError
from softbeam.sampling.chains import (
    Blocks,
    ConstantBlocks,
    LinearBlocks,
    Plan,
    RandomBlocks,
    Record,
    fill_greedily,
    fill_in_turn,
    fill_randomly,
    run_chains,
)
from softbeam.sampling.energies import WeightedSum
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.fitting_rows import FittingRows
from softbeam.sampling.gaps import SqueezedEnergy, SqueezedMlm, WholeGaps, used_cells
from softbeam.sampling.kernels import degenerate_gibbs, exact_gibbs
from softbeam.sampling.lengths import length_metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals, ReducibleWarning, UniformProposals
from softbeam.sampling.strided import named_energy
from softbeam.sampling.terms import EditDistance, HammingDistance, PhraseCount, RepeatedPhrases
from softbeam.sampling.texts.growing import check_gaps, frame_of, length_term, shortened
from softbeam.sampling.texts.own_terms import own_terms, within_limits
from softbeam.sampling.texts.positions import allowed_sets, free_positions, named_tokens
from softbeam.sampling.texts.settings import SamplingConfig, row_limit
from softbeam.sampling.texts.word_gaps import (
    Gaps,
    check_words,
    gaps_of,
    has_words,
    spread,
    word_sets,
)
from softbeam.tensors import Allowed, may_stand
from softbeam.types import ChainState, Energy, Kernel, MaskedLM, Propose, TextModel


class Sampler(NamedTuple):
    """Chains over texts, ready to run: everything that stays fixed from sweep to sweep."""

    tokens: Int[Tensor, "chain time"]  # the texts, with a mask in each gap
    free: Bool[Tensor, "chain time"]  # the positions that are sampled
    allowed: Allowed  # what may stand there
    terms: Energy  # what is added to the energy of the model
    start: Callable[[Generator], Tensor]  # draws texts without gaps
    kernel: Callable[[float], Kernel]  # the kernel at a temperature of the target
    warm_up: Kernel  # the kernel of forced sweeps
    plan: Plan
    energy: Energy  # of the target
    gaps: Int[Tensor, "chain time"]  # the number of the gap of each free position; others have -1
    redraw: Callable[[float], Kernel]  # draws all gaps anew, at a temperature of the target
    grows: bool = False  # texts change their length

    def run(
        self,
        rng: Generator,
        *,
        state: ChainState | None = None,
        first: int = 0,
        between: Sequence[Kernel] = (),
        on_step: Callable[[float], object] = bool,
    ) -> Iterator[Record]:
        """Yield a record of all chains after each sweep, and the kernels between the sweeps.

        To continue a run, pass the state of its last record, the number of the next sweep as
        `first`, and the generator as it was then: the chains are the same. `on_step` is called with
        the share of a sweep that is done.
        """
        return run_chains(
            self.kernel,
            self.start(rng) if state is None else state,
            self.free,
            plan=self.plan,
            rng=rng,
            warm_up=self.warm_up,
            between=between,
            first=first,
            on_step=on_step,
        )

    def fits(
        self, tokens: Int[Tensor, "chain time"], allowed: Bool[Tensor, " vocab"], pad_id: int
    ) -> bool:
        """Tell whether these can be texts of the chains."""
        kept, standing = tokens == self.tokens, may_stand(tokens, allowed)
        if not self.grows:
            return bool(torch.where(self.free, standing, kept).all())
        frame = torch.cat([self.tokens[~self.free], torch.tensor([pad_id])])
        return bool((standing | torch.isin(tokens, frame)).all())


class Ingredients(NamedTuple):
    """What kernels and starting points are built from."""

    tokens: Int[Tensor, "chain time"]
    free: Bool[Tensor, "chain time"]
    allowed: Allowed
    energy: Energy  # of the target
    propose: Propose
    conditionals: MaskedConditionals  # of the model, at temperature 1
    gaps: Int[Tensor, "chain time"] | None  # their numbers, if some are of words


# The kernel "mh" has a new cache in each sweep. So a sweep depends on its first state alone, and
# continuing from a checkpoint repeats it to the last bit.
KERNELS: dict[str, Callable[[Ingredients, SamplingConfig, float], Kernel]] = {
    "mh": lambda of, _, t: fast_metropolis_hastings(of.energy, of.propose, temperature=t),
    "gibbs": lambda of, _, t: degenerate_gibbs(of.propose, of.energy),
    "exact-gibbs": lambda of, _, t: exact_gibbs(of.energy, allowed=of.allowed, temperature=t),
    "lengths": lambda of, config, t: length_kernel(of, config, t),
}
STARTS: dict[str, Callable[[Ingredients, Generator], Tensor]] = {
    "in-turn": lambda of, rng: fill_in_turn(of.conditionals, of.tokens, of.free, rng),
    "greedy": lambda of, rng: fill_greedily(of.conditionals, of.tokens, of.free),
    "random": lambda of, rng: fill_randomly(of.tokens, of.free, of.allowed, rng),
    "text": lambda of, rng: of.tokens,
}
BLOCKS: dict[str, Blocks] = {"linear": LinearBlocks(), "random": RandomBlocks()}


def sampler(mlm: TextModel, texts: Sequence[str], config: SamplingConfig) -> Sampler:
    """Build the sampler of these texts; row i * chains + c is chain c of text i.

    Raises UserError if a text cannot be sampled with these settings.
    """
    tokens, free, gaps = text_rows(mlm, texts, config)
    allowed = allowed_sets(
        mlm,
        tokens,
        named_tokens("--allowed", mlm, config.allowed) if config.allowed else mlm.alphabet,
        config.allowed_at,
        chains=config.chains,
    )
    words = gaps.number if has_words(texts) else None
    if words is not None:
        allowed = word_sets(mlm, tokens, gaps, allowed)
    terms = composed(mlm, texts, tokens, config)
    if grows := config.lengths is not None:
        check_gaps(free, config)
        terms.append((1.0, length_term(free, config, mlm.pad_id)))
    lm: MaskedLM = FittingRows(mlm) if config.rows == "auto" else mlm
    lm = lm if words is None else SqueezedMlm(lm)
    limit = row_limit(config.rows)
    own = named_energy(config.energy, lm, rows=limit, stride=config.stride, free=free)
    of = Ingredients(
        tokens,
        free,
        allowed,
        energy=WeightedSum([(1.0, own), *terms]),
        propose=proposals(lm, allowed, words, config),
        conditionals=MaskedConditionals(lm, allowed=allowed, rows=limit),
        gaps=words,
    )
    if config.start == "text":
        check_start(mlm, of, config)
    return Sampler(
        tokens,
        free,
        allowed,
        WeightedSum(terms),
        start=within_limits(lambda rng: STARTS[config.start](started(of, config, rng), rng), terms),
        kernel=lambda t: KERNELS["lengths" if grows else config.kernel](of, config, t),
        warm_up=degenerate_gibbs(of.propose, of.energy),
        plan=plan(config),
        energy=of.energy,
        gaps=gaps.number,
        redraw=lambda t: fast_metropolis_hastings(
            of.energy, WholeGaps(of.conditionals, gaps.number, together=True), temperature=t
        ),
        grows=grows or words is not None,
    )


def started(of: Ingredients, config: SamplingConfig, rng: Generator) -> Ingredients:
    """Draw the lengths of the chains, or of their gaps, if these change their length."""
    pad_id = of.conditionals.mlm.pad_id
    if of.gaps is not None:
        used = used_cells(of.gaps, rng)
        return of._replace(tokens=of.tokens.masked_fill(of.free & ~used, pad_id), free=used)
    if config.lengths is None:
        return of
    tokens, free = shortened(of.tokens, of.free, config, rng, pad_id)
    return of._replace(tokens=tokens, free=free)


def length_kernel(of: Ingredients, config: SamplingConfig, temperature: float) -> Kernel:
    """Make the kernel of texts that change their length."""
    assert isinstance(of.propose, MaskedConditionals)
    return length_metropolis_hastings(
        of.energy,
        of.propose,
        lengths=config.length_range,
        frame=frame_of(of.free),
        temperature=temperature,
    )


def plan(config: SamplingConfig) -> Plan:
    """Make the plan of the sweeps that the settings describe."""
    block = config.block
    return Plan(
        sweeps=config.sweeps,
        burn_in=config.burn_in,
        forced=config.forced,
        order=config.order,
        blocks=ConstantBlocks(size=block) if isinstance(block, int) else BLOCKS[block],
        temperature=config.target_temperature,
    )


# Groups of texts


def samplers(mlm: TextModel, texts: Sequence[str], config: SamplingConfig) -> list[Sampler]:
    """Build a sampler for each group of texts that run side by side."""
    return [sampler(mlm, group, config) for group in grouped(texts, config)]


def grouped(texts: Sequence[str], config: SamplingConfig) -> list[Sequence[str]]:
    """Split texts into groups of at most `at_once` chains; a group has at least one text."""
    size = group_size(config)
    return [texts[i : i + size] for i in range(0, max(len(texts), 1), size)]


def group_size(config: SamplingConfig) -> int:
    """The number of texts in a group."""
    return max(1, config.at_once // config.chains)


def generator(config: SamplingConfig, group: int) -> Generator:
    """The random number generator of a group of texts."""
    return torch.Generator().manual_seed(config.stream(group))


# Texts


def text_rows(
    mlm: TextModel, texts: Sequence[str], config: SamplingConfig
) -> tuple[Int[Tensor, "chain time"], Bool[Tensor, "chain time"], Gaps]:
    """Encode the texts: tokens and sampled positions of each chain, and the gaps there."""
    if not texts:
        raise UserError("there is no text to sample")
    if has_words(texts):
        check_words(mlm, config)
    prompts = mlm.encode(spread(texts, config.pieces))
    free = free_positions(mlm, prompts, free=config.free, fix=config.fix)
    gaps = gaps_of(texts, free, config.pieces)
    for i, (row, text) in enumerate(zip(free, texts, strict=True)):
        if bool(row.any()):
            continue
        if config.free == "mask" and config.fix is None:
            raise UserError(
                f"text {i} has no [MASK]: {text[:40]!r}; "
                "--free all samples the whole text, --free 26-33 a part of it"
            )
        raise UserError(f"text {i} has no token to sample: {text[:40]!r}")
    tokens, free = (table.repeat_interleave(config.chains, 0) for table in (prompts.tokens, free))
    return tokens, free, gaps.repeated(config.chains)


def check_start(mlm: TextModel, of: Ingredients, config: SamplingConfig) -> None:
    """Raise UserError if chains cannot start from the texts as they are."""
    gaps = of.tokens == mlm.mask_id
    if bool(gaps.any()):
        row = int(gaps.any(-1).nonzero()[0])
        raise UserError(
            f"--start text: text {row // config.chains} has {int(gaps[row].sum())} gaps; "
            "in-turn, greedy and random fill them"
        )
    foreign = of.free & ~may_stand(of.tokens, of.allowed)
    if bool(foreign.any()):
        row, time = foreign.nonzero()[0].tolist()
        token = mlm.token_names([int(of.tokens[row, time])])[0]
        raise UserError(
            f"--start text: text {row // config.chains} has {token!r}, which is not allowed there"
        )


# Targets and proposals


def composed(
    mlm: TextModel, texts: Sequence[str], tokens: Tensor, config: SamplingConfig
) -> list[tuple[float, Energy]]:
    """List the weighted terms that the settings add to the model's energy."""
    terms: list[tuple[float, Energy]] = []
    if config.near is not None:
        terms.append((config.near_weight, distance(mlm, texts, tokens, config)))
    if config.lexicon:
        occurrences = PhraseCount(phrases(mlm, config.lexicon), mlm.word_parts)
        terms.append((-config.lexicon_weight, occurrences))
    if config.repetition_weight:
        repeated = RepeatedPhrases(config.repetition_size, mlm.allowed)
        terms.append((config.repetition_weight, repeated))
    if has_words(texts):
        terms = [(weight, SqueezedEnergy(term, mlm.pad_id)) for weight, term in terms]
    return terms + own_terms(mlm, config)


def distance(
    mlm: TextModel, texts: Sequence[str], tokens: Tensor, config: SamplingConfig
) -> Energy:
    """Build the distance of each chain to the text of `near`.

    Raises UserError if a Hamming distance is between texts of different lengths.
    """
    assert config.near is not None
    others = list(texts) if config.near == "self" else [config.near] * len(texts)
    near = mlm.encode(others).tokens.repeat_interleave(config.chains, 0)
    if config.near_distance == "edit":
        rows = [[i for i in row if i != mlm.pad_id] for row in near.tolist()]
        return EditDistance(rows, mlm.pad_id)
    lengths = [(table != mlm.pad_id).sum(-1).tolist() for table in (tokens, near)]
    for row, (time, other) in enumerate(zip(*lengths, strict=True)):
        if time != other:
            raise UserError(
                f"--near has {other} tokens and text {row // config.chains} has {time}: "
                "--near-distance hamming needs the same number, edit does not"
            )
    return HammingDistance(near[:, : tokens.shape[1]])


def phrases(mlm: TextModel, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word, both at the beginning of a text and inside of it.

    Raises UserError if the model has no tokens for a word.
    """
    forms = {}
    for word in words:
        for form in (word, f" {word}"):
            ids = mlm.word_ids(form)
            if ids and all(bool(mlm.allowed[i]) for i in ids):
                forms[tuple(ids)] = word
        if word not in forms.values():
            raise UserError(f"--lexicon: the model has no tokens for {word!r}")
    return [list(ids) for ids in forms]


def proposals(
    mlm: MaskedLM,
    allowed: Allowed,
    gaps: Int[Tensor, "chain time"] | None,
    config: SamplingConfig,
) -> Propose:
    """Build the proposal distribution that the settings describe; with `gaps`, of whole ones."""
    if config.proposal == "uniform":
        return UniformProposals(allowed)
    with warnings.catch_warnings():  # `config.caveats()` reports it
        warnings.simplefilter("ignore", ReducibleWarning)
        conditionals = MaskedConditionals(
            mlm,
            allowed=allowed,
            temperature=config.proposal_temperature,
            nucleus=config.nucleus,
            epsilon=config.epsilon,
            rows=row_limit(config.rows),
        )
    return conditionals if gaps is None else WholeGaps(conditionals, gaps)
