"""Searches inside transformers: `model.generate(..., custom_generate=softbeam.hf.beam)`.

`beam`, `soft_beam`, `constrained_beam` and `mbr` take the place of transformers' own decoding loop:
`generate` prepares inputs, length limits and logits processors as always and returns what it always
returns. Encoder-decoders and causal language models work.

`register_pipelines` adds the task `joint-fill-mask` to `transformers.pipeline`, and `eval_model`
makes a masked language model one of lm-evaluation-harness.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import utils as generation

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range, need
from softbeam.models.huggingface.causal import HfCausalLM
from softbeam.models.huggingface.decoder import HfModel
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.objectives.losses.risk import bleu_cost, edit_rate
from softbeam.search.constrained import constrained_beam_search
from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.hard import ancestral_sample
from softbeam.search.live import Stop, live_beam_search
from softbeam.search.prefixes import WithPrefixes
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.training.metrics import sentence_chrf
from softbeam.types import Decoder, Hypotheses, TextModel

if TYPE_CHECKING:
    from softbeam.training import harness, pipelines
else:
    harness, pipelines = (lazy(f"softbeam.training.{name}") for name in ("harness", "pipelines"))

Utility = Literal["chrf", "bleu", "edit"]
STOPS: dict[Any, Stop] = {True: "first", False: "likely", "never": "sure"}
ENDING = ("MaxLengthCriteria", "EosTokenCriteria")  # criteria that every search here has
HARMLESS = ("ForcedEOSTokenLogitsProcessor",)  # a soft beam ends at the limit by itself


def beam(model: Any, input_ids: Tensor, *, inputs_tensor: Tensor, **prepared: Any) -> Any:
    """Beam search, whose outputs are those of transformers' own.

    `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, length limits and
    logits processors are those of `generate`.
    """
    given = Prepared.of(model, input_ids, inputs_tensor, prepared)
    return given.outputs(given.beam(given.config.num_return_sequences))


def soft_beam(
    model: Any, input_ids: Tensor, *, inputs_tensor: Tensor, alpha: float = 10.0, **prepared: Any
) -> Any:
    """Follow the back pointers of a soft beam of `num_beams` (Goyal et al. 2018, Sec. 2.4).

    Give the `alpha` that the model was trained with. Raises UserError if a logits processor looks
    at the tokens so far, as a soft beam mixes them.
    """
    given = Prepared.of(model, input_ids, inputs_tensor, prepared)
    names = [type(p).__name__ for p in given.processors if type(p).__name__ not in HARMLESS]
    words = given.config.bad_words_ids or []
    if names and (names != ["NoBadWordsLogitsProcessor"] or any(len(word) > 1 for word in words)):
        raise UserError(f"soft_beam: cannot apply {names[0]}, as a soft beam mixes tokens")
    decoder: Decoder = LocallyNormalized(given.decoder)
    if words:
        numbers = given.adapter.renumbered(torch.tensor([word[0] for word in words]))
        decoder = Forbidding(decoder, numbers.tolist())
    limits, eos = given.limits, given.eos
    k, time = given.config.num_beams, int(limits.max())
    paths = soft_beam_decode(decoder, k=k, alpha=alpha, time=time, lengths=limits, eos=eos)
    n = given.config.num_return_sequences
    return given.outputs(
        Hypotheses(paths.tokens[:, :n], paths.lengths[:, :n], paths.hard_scores[:, :n])
    )


def constrained_beam(
    model: Any,
    input_ids: Tensor,
    *,
    inputs_tensor: Tensor,
    must_occur: Sequence[Sequence[int]] = (),
    must_not_occur: Sequence[Sequence[int]] = (),
    **prepared: Any,
) -> Any:
    """Beam search for outputs that hold some phrases and do not hold others.

    Phrases are lists of the model's token numbers, such as `tokenizer("a dog",
    add_special_tokens=False).input_ids`. `num_beams` hypotheses are kept for each number of
    required tokens. Raises UserError if no output within the limits holds all phrases.
    """
    given = Prepared.of(model, input_ids, inputs_tensor, prepared)

    def renumbered(phrases: Sequence[Sequence[int]]) -> list[list[int]]:
        return [given.adapter.renumbered(torch.tensor(list(p)).long()).tolist() for p in phrases]

    try:
        hypotheses = constrained_beam_search(
            given.scored(),
            k=given.config.num_beams,
            lengths=given.limits,
            eos=given.eos,
            must=renumbered(must_occur),
            must_not=renumbered(must_not_occur),
            nbest=given.config.num_return_sequences,
            length_penalty=given.config.length_penalty,
            stop=STOPS[given.config.early_stopping],
        )
    except ValueError as error:
        raise UserError(f"constrained_beam: {error}") from None
    if bool(hypotheses.scores[:, 0].isneginf().any()):
        raise UserError(
            f"constrained_beam: no output of at most {int(given.limits.max())} tokens holds all "
            "phrases; allow longer ones or more beams"
        )
    return given.outputs(hypotheses)


def mbr(
    model: Any,
    input_ids: Tensor,
    *,
    inputs_tensor: Tensor,
    utility: Utility = "chrf",
    candidates: int = 16,
    to_texts: Callable[[list[list[int]]], list[str]] | None = None,
    **prepared: Any,
) -> Any:
    """The candidate with the least Bayes risk: the highest mean utility against all candidates.

    With `do_sample`, candidates are samples (temperature, `top_k` and `top_p` are those of
    `generate`), and all count the same. Without, they are the best of a beam, and count by their
    probabilities.

    Args:
        model: and what else `generate` gives.
        input_ids: the first tokens of the outputs.
        inputs_tensor: the sources or prompts.
        utility: chrF or BLEU of sacreBLEU, or 1 - edits for each word of the other text.
        candidates: their number.
        to_texts: such as `tokenizer.batch_decode`; without it, utilities compare token numbers.
        prepared: what else `generate` gives.
    """
    check_range("candidates", candidates, least=1)
    if utility not in get_args(Utility):
        raise UserError(f"utility {utility!r}: must be {', '.join(get_args(Utility))}")
    given = Prepared.of(model, input_ids, inputs_tensor, prepared)
    drawn = given.samples(candidates) if given.config.do_sample else given.beam(candidates)
    weights = torch.zeros_like(drawn.scores) if given.config.do_sample else drawn.scores
    chosen = []
    for tokens, lengths, weight in zip(drawn.tokens, drawn.lengths, weights, strict=True):
        ids = [
            given.adapter.renumbered(row[:n]).tolist()
            for row, n in zip(tokens, lengths, strict=True)
        ]
        texts = [" ".join(map(str, row)) for row in ids] if to_texts is None else to_texts(ids)
        gains = utilities(texts, utility) @ weight.softmax(-1).double().cpu()
        chosen.append(int(gains.argmax()))
    place = torch.tensor(chosen, device=drawn.tokens.device)[:, None]
    tokens = drawn.tokens.gather(1, place[:, :, None].expand(-1, -1, drawn.tokens.shape[2]))
    return given.outputs(
        Hypotheses(tokens, drawn.lengths.gather(1, place), drawn.scores.gather(1, place))
    )


def utilities(texts: Sequence[str], utility: Utility) -> Float[Tensor, "candidate reference"]:
    """The utility of each text if another one is right."""
    each = dict.fromkeys(texts)  # equal texts are compared once
    if utility == "chrf":
        table = {(a, b): sentence_chrf(a, b) / 100 for a in each for b in each}
    else:
        cost = bleu_cost if utility == "bleu" else edit_rate
        table = {(a, b): 1 - cost(a.split(), b.split()) for a in each for b in each}
    return torch.tensor([[table[a, b] for b in texts] for a in texts], dtype=torch.float64)


class Prepared(NamedTuple):
    """What `generate` has prepared, as a search here needs it."""

    adapter: HfModel
    decoder: Decoder
    config: Any
    processors: Sequence[Any]
    first: Int[Tensor, "batch time"]  # the model's numbers of the tokens before the output
    source: Int[Tensor, "batch time"]  # the adapter's numbers of tokens, or of rows

    @classmethod
    def of(
        cls, model: Any, input_ids: Tensor, inputs: Tensor, prepared: dict[str, Any]
    ) -> "Prepared":
        """Bind the model to its sources.

        Raises UserError if there is a stopping criterion that is not supported.
        """
        config = prepared["generation_config"]
        for criterion in prepared.get("stopping_criteria") or []:
            if type(criterion).__name__ not in ENDING:
                name = type(criterion).__name__
                raise UserError(f"{name}: softbeam.hf stops at the end mark and at length limits")
        copies = max(config.num_beams, config.num_return_sequences)
        first, mask = input_ids[::copies], prepared.get("attention_mask")
        adapter: HfModel
        if model.config.is_encoder_decoder:
            read = {model.main_input_name: inputs}
            read |= {} if mask is None else {"attention_mask": mask[::copies]}
            adapter = HfSeq2Seq(model, inputs=read, prefix=first)
            source = adapter.rows
        else:
            real = torch.ones_like(inputs) if mask is None else mask[::copies]
            ends = numbers_of(config.eos_token_id)
            unused = set(range(len(inputs.unique()) + len(ends) + 1)) - set(
                inputs.unique().tolist()
            )
            adapter = HfCausalLM(model, pad_id=min(unused - set(ends)))
            source = to_the_left(adapter.renumbered(inputs), real.bool())
        processors = list(prepared.get("logits_processor") or [])
        return cls(adapter, adapter(source), config, processors, first, source)

    @property
    def eos(self) -> int:
        """The end mark; -1 if there is none. Raises UserError if there are several."""
        ends = numbers_of(self.config.eos_token_id)
        if len(ends) > 1:
            raise UserError(f"eos_token_id={ends}: softbeam.hf needs a single one; choose one")
        return int(self.adapter.order[ends[0]]) if ends else -1

    @property
    def limits(self) -> Int[Tensor, " batch"]:
        """The largest number of new tokens of each output."""
        most = self.config.max_length - self.first.shape[1]
        return self.source.new_full((len(self.source),), most)

    def scored(self) -> Decoder:
        """Log-probabilities, changed by the logits processors."""
        normalized = LocallyNormalized(self.decoder)
        if not self.processors:
            return normalized

        def change(tokens: Tensor, scores: Tensor) -> Tensor:
            ids, scores = self.adapter.renumbered(tokens), self.adapter.in_order(scores)
            for processor in self.processors:
                scores = processor(ids, scores)
            return self.adapter.in_order(scores)

        return WithPrefixes(normalized, self.adapter.renumbered(self.first), change)

    def beam(self, nbest: int) -> Hypotheses:
        """The best outputs of a beam of `num_beams`, or of as many as are asked for."""
        return live_beam_search(
            self.scored(),
            k=max(self.config.num_beams, nbest),
            lengths=self.limits,
            eos=self.eos,
            nbest=nbest,
            length_penalty=self.config.length_penalty,
            stop=STOPS[self.config.early_stopping],
        )

    def samples(self, n: int) -> Hypotheses:
        """Independent samples of each output, by torch's own random numbers."""
        seed = int(torch.randint(2**62, ()))
        rng = torch.Generator(self.source.device).manual_seed(seed)
        again = self._replace(
            decoder=self.adapter(self.source.repeat_interleave(n, 0)),
            source=self.source.repeat_interleave(n, 0),
            first=self.first.repeat_interleave(n, 0),
        )
        drawn = ancestral_sample(again.scored(), lengths=again.limits, eos=self.eos, rng=rng)
        return Hypotheses(*(part.squeeze(1).unflatten(0, (-1, n)) for part in drawn))

    def outputs(self, found: Hypotheses) -> Any:
        """What `generate` returns: all outputs below each other, padded on the right."""
        n, longest = found.tokens.shape[1], int(found.lengths.max())
        tokens = self.adapter.renumbered(found.tokens[:, :, :longest].flatten(0, 1))
        beyond = torch.arange(longest, device=tokens.device) >= found.lengths.flatten()[:, None]
        ends = numbers_of(self.config.eos_token_id)
        pad = self.config.pad_token_id or (ends[0] if ends else 0)  # as transformers: 0 is no pad
        tokens = tokens.masked_fill(beyond, pad)
        sequences = torch.cat([self.first.repeat_interleave(n, 0), tokens], 1)
        if not self.config.return_dict_in_generate:
            return sequences
        penalty = self.config.length_penalty
        scores = found.scores / found.lengths.clamp(min=1).to(found.scores) ** penalty
        names = ("GenerateBeamDecoderOnlyOutput", "GenerateBeamEncoderDecoderOutput")
        kind = getattr(generation, names[self.adapter.model.config.is_encoder_decoder])
        return kind(sequences=sequences, sequences_scores=scores.flatten())


def numbers_of(given: int | list[int] | None) -> list[int]:
    """A number, several or none, as a list."""
    return [] if given is None else list(given) if isinstance(given, list) else [given]


def to_the_left(tokens: Int[Tensor, "batch time"], real: Tensor) -> Int[Tensor, "batch time"]:
    """Move the real tokens of each row to its beginning; the others become padding."""
    order = (~real).long().sort(dim=1, stable=True).indices
    moved = tokens.masked_fill(~real, 0).gather(1, order)
    return moved[:, : int(real.sum(1).max())]


# Masked language models


def register_pipelines() -> None:
    """Add the task `joint-fill-mask` to `transformers.pipeline`; a second call changes nothing.

    `pipeline("joint-fill-mask", model=..., tokenizer=...)` fills several gaps of a text jointly,
    with probabilities: `[MASK]` is a gap of one token, `[WORD]` one of a whole word. Its options
    are `top_k`, and those of `softbeam.infill`.
    """
    pipelines.register()


def eval_model(
    mlm: TextModel | str, *, law: Literal["pseudo", "joint", "chain-rule"] = "pseudo"
) -> Any:
    """A masked language model for `lm_eval.simple_evaluate(model=...)`.

    The score of a continuation is one of `softbeam.score`: by default the pseudo-log-likelihood of
    its tokens; with `joint` that of the whole text, which compares fillings as `softbeam.infill`
    does; with `chain-rule` its log-probability from left to right. Raises UserError if lm-eval is
    not installed.

    Args:
        mlm: the model, or its name.
        law: what the score is.
    """
    need("lm_eval", "eval")
    return harness.MaskedEval(mlm, law=law)
