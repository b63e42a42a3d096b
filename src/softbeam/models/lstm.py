"""Encoder and LSTM decoder, with fixed attention (taggers) or learned attention (translation).

`Seq2Seq(...)(source)` is a `Decoder` bound to the source. Padding never changes a number: the
backward encoder reads each sentence reversed within its own length, memory past the end is zero,
and learned attention sees only real positions.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from softbeam.models.cell import Layers, LstmSteps
from softbeam.models.characters import CharacterCnn
from softbeam.tensors import gather, real_tokens, reverse_within, with_pieces

State = tuple[Layers, int]  # h and c of each layer, and the step number


class Encoded(NamedTuple):
    """Encoded sources."""

    memory: Float[Tensor, "batch source_time memory"]
    mask: Bool[Tensor, "batch source_time"]
    summary: Float[Tensor, "batch memory"]  # last forward and first backward state


def lstm_layers(inputs: Sequence[int], hidden: int, directions: int) -> nn.ModuleList:
    """Make LSTM layers over inputs of these widths; two directions are two LSTMs each."""
    return nn.ModuleList(
        nn.ModuleList(nn.LSTM(n, hidden, batch_first=True) for _ in range(directions))
        for n in inputs
    )


def encoded_by(
    layers: nn.ModuleList,
    words: Float[Tensor, "batch source_time emb"],
    mask: Bool[Tensor, "batch source_time"],
    dropout: nn.Dropout,
) -> Encoded:
    """Encode words with LSTM layers, at least one."""
    lengths = mask.sum(1)
    values = dropout(words)
    for number, directions in enumerate(layers):
        values = values if number == 0 else dropout(values)
        forward, *backward = list(cast(nn.ModuleList, directions))
        outputs = [forward(values)[0]]
        for lstm in backward:
            reverse = lstm(reverse_within(values, lengths))[0]
            outputs.append(reverse_within(reverse, lengths))
        values = torch.cat(outputs, -1) * mask[:, :, None]
    last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, outputs[0].shape[-1])
    ends = [outputs[0].gather(1, last).squeeze(1)] + [o[:, 0] for o in outputs[1:]]
    return Encoded(dropout(values), mask, torch.cat(ends, -1))


class Encoder(nn.Module):
    """Embeddings, what a convolution reads from characters, and LSTM layers in one or both ways."""

    def __init__(
        self,
        vocab: int,
        embedding: int,
        hidden: int,
        *,
        both: bool,
        layers: int,
        spelling: CharacterCnn | None = None,
        shortcut: bool = False,
    ):
        super().__init__()
        directions = 2 if both else 1
        self.shortcut = shortcut
        self.embed = nn.Embedding(vocab, embedding)
        nn.init.normal_(self.embed.weight, std=embedding**-0.5)
        self.spelling = spelling
        wide = embedding + (0 if spelling is None else spelling.width)
        inputs = [wide] + [directions * hidden] * (layers - 1)
        self.layers = lstm_layers(inputs, hidden, directions)
        self.width = directions * hidden + (wide if shortcut else 0)

    def forward(
        self, source: Int[Tensor, "batch source_time *pieces"], dropout: nn.Dropout
    ) -> Encoded:
        words, mask = self.words(source), real_tokens(source)
        encoded = encoded_by(self.layers, words, mask, dropout)
        if not self.shortcut:
            return encoded
        own = words * mask[:, :, None]
        mean = own.sum(1) / mask.sum(1).clamp(min=1)[:, None]
        return Encoded(
            torch.cat([encoded.memory, dropout(own)], -1),
            mask,
            torch.cat([encoded.summary, mean], -1),
        )

    def words(self, source: Int[Tensor, "batch source_time *pieces"]) -> Tensor:
        """Represent each word by its embedding, and by its characters if the model reads them."""
        if self.spelling is None:  # a teacher may read fewer numbers of a word than its student
            return self.embed(source if source.dim() == 2 else source[:, :, 0])
        source = with_pieces(source)
        return torch.cat([self.embed(source[:, :, 0]), self.spelling(source[:, :, 1:])], -1)


class Recurrence(nn.Module):
    """Stacked LSTM layers that run a whole sequence in one call; `LstmSteps` runs single steps."""

    def __init__(self, inputs: int, hidden: int, layers: int, dropout: float):
        super().__init__()
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(inputs, hidden, layers, dropout=between, batch_first=True)
        self.between = nn.Dropout(between)

    def whole(self, inputs: Tensor, state: Layers) -> Tensor:
        """Run all steps in one call."""
        h, c = torch.stack(state).chunk(2, -1)
        return self.lstm(inputs, (h.contiguous(), c.contiguous()))[0]


class FixedAttention(nn.Module):
    """Attention of output i to input i; the decoder starts from zeros (thesis 5.4.2)."""

    def __init__(self, memory: int, hidden: int, layers: int):
        super().__init__()
        self.hidden, self.layers = hidden, layers

    def initial(self, encoded: Encoded) -> Layers:
        zeros = encoded.memory.new_zeros(encoded.memory.shape[0], 2 * self.hidden)
        return (zeros,) * self.layers

    def keys(self, memory: Tensor) -> Tensor:
        return memory


class BahdanauAttention(nn.Module):
    """Additive attention, and a learned first state of the decoder (thesis 3.3.3)."""

    def __init__(self, memory: int, hidden: int, layers: int):
        super().__init__()
        self.key = nn.Linear(memory, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.energy = nn.Linear(hidden, 1, bias=False)
        self.bridge = nn.Linear(memory, 2 * layers * hidden)
        self.layers = layers

    def initial(self, encoded: Encoded) -> Layers:
        return self.bridge(encoded.summary).tanh().chunk(self.layers, -1)

    def keys(self, memory: Tensor) -> Tensor:
        return self.key(memory)

    def context(self, encoded: Encoded, keys: Tensor, query: Tensor) -> Tensor:
        batch = keys.shape[0]
        q = self.query(query).unflatten(0, (batch, -1))  # batch, beam, hidden
        scores = self.energy((q[:, :, None] + keys[:, None]).tanh()).squeeze(-1)
        weights = scores.masked_fill(~encoded.mask[:, None], float("-inf")).softmax(-1)
        return (weights @ encoded.memory).flatten(0, 1)


class Seq2Seq(nn.Module):
    """An encoder, a decoder and an output layer. Calling the model binds a `Decoder` to a source.

    `specs.Lstm` describes the arguments. The encoder may also be a module with a `width` that
    turns a source and a dropout into an `Encoded`.
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        *,
        encoder: Literal["uni", "bi"] | nn.Module = "bi",
        attention: Literal["fixed", "bahdanau"] = "fixed",
        embedding: int = 128,
        label_embedding: int | None = None,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        characters: int = 0,
        label_noise: float = 0.0,
        shortcut: bool = False,
        alphabet: int | None = None,
    ):
        super().__init__()
        self.label_noise = label_noise
        label = label_embedding or embedding
        spelling = CharacterCnn(need_alphabet(alphabet), characters) if characters else None
        self.encoder = (
            encoder
            if isinstance(encoder, nn.Module)
            else Encoder(
                source_vocab,
                embedding,
                hidden,
                both=encoder == "bi",
                layers=layers,
                spelling=spelling,
                shortcut=shortcut,
            )
        )
        memory = int(self.encoder.width)  # type: ignore[arg-type]  # of either class
        kind = FixedAttention if attention == "fixed" else BahdanauAttention
        self.attention = kind(memory, hidden, layers)
        self.fused = attention == "fixed"  # the context does not depend on the decoder's state
        self.embed = nn.Embedding(target_vocab, label)
        nn.init.normal_(self.embed.weight, std=label**-0.5)
        self.bos = nn.Parameter(torch.randn(label) * label**-0.5)
        self.recurrence = Recurrence(label + memory, hidden, layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.deep = None if attention == "fixed" else nn.Linear(hidden + memory + label, label)
        self.output = nn.Linear(hidden if self.deep is None else label, target_vocab)
        if tied:
            if self.output.weight.shape != self.embed.weight.shape:
                raise ValueError(
                    f"tied: the output layer must be as wide as the embeddings, {label}; "
                    f"it is {self.output.weight.shape[1]} wide"
                )
            self.output.weight = self.embed.weight

    def forward(self, source: Int[Tensor, "batch source_time *pieces"]) -> "LstmDecoder":
        return LstmDecoder(self, self.encoder(source, self.dropout))

    def remembered(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time emb"]:
        """Embed gold outputs as the next step sees them: while training, some are other ones."""
        if self.training and self.label_noise and target.numel():
            others = torch.randint(target.numel(), target.shape, device=target.device)
            noisy = torch.rand(target.shape, device=target.device) < self.label_noise
            target = torch.where(noisy, target.flatten()[others], target)
        return self.embed(target)


@torch.no_grad()
def put_vectors(model: nn.Module, rows: Mapping[int, Sequence[float]]) -> None:
    """Let input embeddings begin with vectors; the others are drawn with the same spread."""
    weight = cast(Encoder, cast(Seq2Seq, model).encoder).embed.weight
    vectors = torch.tensor(list(rows.values()), dtype=weight.dtype)
    nn.init.normal_(weight, std=max(vectors.std(correction=0).item(), 1e-3))
    weight[list(rows)] = vectors


def need_alphabet(alphabet: int | None) -> int:
    if alphabet is None:
        raise ValueError("characters: the size of the alphabet is needed too")
    return alphabet


class LstmDecoder:
    """A `FusedDecoder`: `Seq2Seq` bound to its encoded source."""

    def __init__(self, model: Seq2Seq, encoded: Encoded):
        self.model = model
        self.encoded = encoded
        self.keys = model.attention.keys(encoded.memory)
        self.runs: dict[bool, _Run] = {}  # of steps with and without gradients

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self.model.embed.weight

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the scores; relaxations sum their gradients over the steps."""
        return self.model.output.weight, self.model.output.bias

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        self.runs.clear()
        self.run()
        return self.first()

    def first(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        """The state and the embedding before the first step."""
        state = self.model.attention.initial(self.encoded)
        return (state, 0), self.model.bos.expand(len(self.encoded.memory), -1)

    def select(self, sentences: Int[Tensor, " left"]) -> "LstmDecoder":
        """The decoder of some of the sources."""
        other = copy(self)
        other.encoded, other.keys = gather((self.encoded, self.keys), sentences)
        other.runs = {}
        return other

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        hidden, state = self.advance(state, emb)
        return self.model.output(hidden), state

    def advance(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows hidden"], State]:
        """Run one step up to the output layer."""
        model, (layers, t) = self.model, state
        run, emb = self.run(), model.dropout(emb)
        if isinstance(model.attention, BahdanauAttention):
            context = model.attention.context(self.encoded, self.keys, layers[-1].chunk(2, 1)[0])
            h, layers = run.steps(torch.cat([emb, context], -1), layers)
            return self.readout(h, context, emb), (layers, t + 1)
        h, layers = run.steps(emb, layers, run.base(t))
        return model.dropout(h), (layers, t + 1)

    def projected(self) -> "LstmDecoder":
        """The decoder over embeddings that went through the input layer, if nothing is between."""
        dropped = self.model.training and self.model.dropout.p > 0
        if dropped or isinstance(self.model.attention, BahdanauAttention):
            return self
        return ProjectedDecoder(self.model, self.encoded)

    def run(self) -> "_Run":
        """What the steps of a search share; computed where it starts."""
        tracked = torch.is_grad_enabled()
        if tracked not in self.runs:
            self.runs[tracked] = _Run(
                self.model, self.encoded, projected=isinstance(self, ProjectedDecoder)
            )
        return self.runs[tracked]

    def readout(self, h: Tensor, context: Tensor, emb: Tensor) -> Tensor:
        """Compute the input of the output layer from learned attention."""
        assert self.model.deep is not None
        return self.model.dropout(self.model.deep(torch.cat([h, context, emb], -1)).tanh())

    def forced(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given the gold prefix; the output layer runs once."""
        state, bos = self.first()
        emb = torch.cat([bos[:, None], self.model.remembered(target[:, :-1])], 1)
        if self.model.fused:
            return self.model.output(self.whole(emb, state[0]))
        self.start()
        hidden = []
        for t in range(target.shape[1]):
            value, state = self.advance(state, emb[:, t])
            hidden.append(value)
        return self.model.output(torch.stack(hidden, 1))

    def whole(
        self, emb: Float[Tensor, "batch time emb"], layers: Layers
    ) -> Float[Tensor, "batch time hidden"]:
        """Run all steps in one LSTM call, where the context does not depend on the state."""
        memory, time = self.encoded.memory, emb.shape[1]
        short = time - memory.shape[1]
        if short > 0:
            memory = torch.cat(
                [memory, memory.new_zeros(*memory[:, :1].shape).expand(-1, short, -1)], 1
            )
        inputs = torch.cat([self.model.dropout(emb), memory[:, :time]], -1)
        return self.model.dropout(self.model.recurrence.whole(inputs, layers))


class ProjectedDecoder(LstmDecoder):
    """An `LstmDecoder` whose embeddings are products with the weights of the first layer."""

    def __init__(self, model: Seq2Seq, encoded: Encoded):
        super().__init__(model, encoded)
        self.weight = model.recurrence.lstm.all_weights[0][0][:, : model.embed.embedding_dim]
        self.table = model.embed.weight @ self.weight.T

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self.table

    def first(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        state, bos = super().first()
        return state, (self.model.bos @ self.weight.T).expand(len(bos), -1)


class _Run:
    """The weights of a search's steps, and what fixed attention adds to the gates of each step."""

    def __init__(self, model: Seq2Seq, encoded: Encoded, *, projected: bool):
        lstm, read = model.recurrence.lstm, model.embed.embedding_dim
        self.fixed = isinstance(model.attention, FixedAttention)
        self.steps = LstmSteps(
            lstm, model.recurrence.between, read=read if self.fixed else None, projected=projected
        )
        if self.fixed:
            weight, _, *biases = lstm.all_weights[0]
            bias = biases[0] + biases[1]
            self.after = bias.expand(len(encoded.memory), -1)
            self.bases = linear(encoded.memory, weight[:, read:], bias).unbind(1)

    def base(self, t: int) -> Float[Tensor, "batch gates"]:
        """The part of step t's gates that attention decides; past the source, the bias alone."""
        return self.bases[t] if t < len(self.bases) else self.after
