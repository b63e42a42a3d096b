"""Searches for a model's outputs, as configurations name them. Nothing here loads torch.

Class names and field names are a file format: `select` in a run's config.yaml has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from softbeam._lazy import lazy
from softbeam.data.vocabulary import BOS, EOS, MASK, PAD, Codec
from softbeam.errors import (
    LARGEST_SEED,
    TEMPERATURES,
    WIDEST_BEAM,
    UserError,
    check_range,
)
from softbeam.objectives.base import check_beam

if TYPE_CHECKING:
    from torch import Generator, Tensor

    import softbeam.sampling.masked_search as masked_search
    from softbeam import types
    from softbeam.search import decoders, hard
    from softbeam.search.soft import decode as soft
else:
    types = lazy("softbeam.types")
    masked_search = lazy("softbeam.sampling.masked_search")
    decoders, hard = lazy("softbeam.search.decoders"), lazy("softbeam.search.hard")
    soft = lazy("softbeam.search.soft.decode")

S = TypeVar("S", bound="Search")
FIT = "mask-predict works only with conditional masked LMs, and they support no other search"


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """A way to search for outputs; called with a decoder and the longest outputs of its rows.

    Args:
        normalize: normalize the scores of each step; false for raw scores.
        max_ratio: longest output, in source tokens ...
        max_extra: ... plus this number of tokens (not for tagging).
    """

    normalize: bool = True
    max_ratio: float = 1.5
    max_extra: int = 10

    def __post_init__(self) -> None:
        self.check_fields(least=0, names=("max_ratio", "max_extra"))

    def check_fields(self, *, names: tuple[str, ...], **limits: float) -> None:
        """Raises UserError if one of the fields is outside of the limits."""
        for name in names:
            check_range(
                f"--{FLAGS.get(name, name).replace('_', '-')}", getattr(self, name), **limits
            )

    @property
    def left_to_right(self) -> bool:
        """Whether the search is for decoders; else it is for masked language models."""
        return True

    @property
    def width(self) -> int:
        """The number of outputs that are compared for each input."""
        return 1

    @property
    def nbest(self) -> int:
        """The number of outputs that are returned for each input."""
        return 1

    @property
    def seed(self) -> int:
        """The seed of the generator with which the search is called."""
        return 0

    def to(self, kind: type[S], **settings: Any) -> S:
        """Make a search of another class with the settings that both have, and these."""
        own = {f.name for f in fields(self)} & {f.name for f in fields(kind)}
        return kind(**{name: getattr(self, name) for name in own} | settings)

    def bind(self, decoder: Any, codec: Codec) -> Any:
        """Wrap a decoder as this search sees it: no special tokens, scores as asked."""
        never = [i for i in (codec.id(s) for s in (PAD, BOS, MASK)) if i is not None]
        bound = decoders.Forbidding(decoder, never) if never else decoder
        return decoders.LocallyNormalized(bound) if self.normalize else bound

    def limits(self, sources: "Tensor", codec: Codec, longest: int | None = None) -> "Tensor":
        """Compute the longest output of each source from the sources' lengths.

        Args:
            sources: length of each source.
            codec: of the outputs; without an end mark every output is as long as its source.
            longest: the model's own limit.
        """
        if codec.id(EOS) is None:
            return sources
        limits = (sources * self.max_ratio).long() + self.max_extra
        return limits.clamp(min=1, max=longest)

    def check_space(self, *, vocab: int, time: int) -> None:
        """Raises UserError if a beam is wider than the number of possible outputs."""
        if self.left_to_right:
            check_beam("--beam", self.width, vocab=vocab, time=time)

    def check_model(self, decoder: Any) -> None:
        """Raises UserError if the search is not for this model."""
        if self.left_to_right != isinstance(decoder, types.Decoder):
            raise UserError(f"--search {name_of(self)}: {FIT}")

    @abstractmethod
    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        """Search the outputs of a decoder that `bind` has wrapped."""


@dataclass(frozen=True, kw_only=True)
class Greedy(Search):
    """Greedy search: the best token of each step."""

    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        return hard.greedy(decoder, lengths=lengths, eos=eos)


@dataclass(frozen=True, kw_only=True)
class Beam(Search):
    """Beam search.

    Args:
        k: hypotheses that are kept at each step.
        nbest: outputs to return for each input.
        length_penalty: rank by score / length**length_penalty.
    """

    k: int = 5
    nbest: int = 1
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields(least=1, most=WIDEST_BEAM, names=("k",))
        self.check_fields(least=1, most=self.k, names=("nbest",))

    @property
    def width(self) -> int:
        return self.k

    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        return hard.beam_search(
            decoder,
            k=self.k,
            lengths=lengths,
            eos=eos,
            nbest=self.nbest,
            length_penalty=self.length_penalty,
        )


@dataclass(frozen=True, kw_only=True)
class AncestralSample(Search):
    """Sampling token by token.

    Args:
        temperature: divides the scores; larger is flatter.
        top_k: sample only among this number of best tokens.
        top_p: sample only among the fewest tokens that have this share of the probability.
        seed: of the samples.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields(names=("temperature",), **TEMPERATURES)
        self.check_fields(least=1, names=("top_k",))
        self.check_fields(above=0, most=1, names=("top_p",))
        self.check_fields(least=0, most=LARGEST_SEED, names=("seed",))

    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        return hard.ancestral_sample(
            decoder,
            lengths=lengths,
            eos=eos,
            rng=rng,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
        )


@dataclass(frozen=True, kw_only=True)
class SoftBeamSearch(Search):
    """The hard paths of soft-beam decoding, with their soft scores (2018, Sec. 2.4).

    Args:
        k: elements of the beam.
        nbest: outputs to return for each input.
        alpha: inverse temperature of the relaxation.
        marginal: follow marginal instead of joint back pointers.
    """

    k: int = 5
    nbest: int = 1
    alpha: float = 1.0
    marginal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields(least=1, most=WIDEST_BEAM, names=("k",))
        self.check_fields(least=1, most=self.k, names=("nbest",))
        self.check_fields(above=0, names=("alpha",))

    @property
    def width(self) -> int:
        return self.k

    def bind(self, decoder: Any, codec: Codec) -> Any:
        """Wrap a decoder without forbidden tokens: relaxed code takes no infinities."""
        return decoders.LocallyNormalized(decoder) if self.normalize else decoder

    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        paths = soft.soft_beam_decode(
            decoder,
            k=self.k,
            alpha=self.alpha,
            time=int(lengths.max()),
            lengths=lengths,
            eos=eos,
            marginal=self.marginal,
        )
        best = (x[:, : self.nbest] for x in (paths.tokens, paths.lengths, paths.scores))
        return types.Hypotheses(*best)


@dataclass(frozen=True, kw_only=True)
class MaskPredict(Search):
    """Mask-Predict decoding of conditional masked language models.

    Args:
        candidates: lengths that are tried for each input.
        iterations: rounds of masking and predicting.
        nbest: outputs to return for each input.
    """

    candidates: int = 5
    iterations: int = 10
    nbest: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fields(least=1, names=("candidates", "iterations"))
        self.check_fields(least=1, most=self.candidates, names=("nbest",))

    @property
    def left_to_right(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self.candidates

    def bind(self, decoder: Any, codec: Codec) -> Any:
        """Return the model as it is: it knows its special tokens."""
        return decoder

    def check_model(self, decoder: Any) -> None:
        super().check_model(decoder)
        possible = decoder.length_scores.shape[1] - 1  # a text has at least one token
        self.check_fields(most=possible, names=("candidates",))

    def __call__(
        self, decoder: Any, lengths: "Tensor", *, eos: int | None, rng: "Generator"
    ) -> "types.Hypotheses":
        return masked_search.mask_predict_decode(
            decoder,
            decoder.length_scores,
            candidates=self.candidates,
            iterations=self.iterations,
            nbest=self.nbest,
        )


SEARCHES: dict[str, type[Search]] = {  # by the names that --search and --select take
    "greedy": Greedy,
    "beam": Beam,
    "sample": AncestralSample,
    "soft-beam": SoftBeamSearch,
    "mask-predict": MaskPredict,
}
FLAGS = {"k": "beam"}  # flags of evaluate and decode that are not called like their fields


def name_of(search: Search) -> str:
    """The short name of a search; of a class that is not softbeam's, the class's name."""
    names = {kind: name for name, kind in SEARCHES.items()}
    return names.get(type(search), type(search).__name__)


def from_method(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate `{method: beam, beam: 3, …}`, the form of `select` in older files.

    That form had one class with the fields of all searches; those of the others are left out.
    """
    kind = SEARCHES.get(settings.get("method", ""))
    if kind is None:
        return settings
    every = {f.name for search in SEARCHES.values() for f in fields(search)}
    own = {f.name for f in fields(kind)}
    named = {"k" if name == "beam" else name: value for name, value in settings.items()}
    kept = {n: v for n, v in named.items() if n != "method" and (n in own or n not in every)}
    return {"class_path": kind.__name__, "init_args": kept}
