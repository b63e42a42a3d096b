r"""A Markov random field over whole sequences, of two LSTMs (thesis, Sec. 6.2.1 and 6.2.3).

E_raw(y) = -sum_t f(y_t, h(y\t)) over the real positions, h(y\t) = [state of the forward LSTM before
t; state of the backward LSTM after t]. Neither has read y_t, so all potentials come in one pass and
nothing has to be masked. Padding is on the right and never changes a number: what stands there is
not read, and its potentials are 0.

Sequences that have a part in common share its states: that makes the true conditionals several
times cheaper than the |V| T passes of Sec. 6.2.2, and log Z far cheaper than |V|^T.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from softbeam.tensors import lengths_of, reverse_within

CHUNK = 2**20


class Reader(nn.Module):
    """One LSTM over the embeddings, and its share in the hidden layer of f."""

    def __init__(self, embedding: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.share = nn.Linear(hidden, hidden)

    def before(self, emb: Float[Tensor, "rows time emb"]) -> Float[Tensor, "rows time hidden"]:
        """The state before each position: zeros, then what was read so far."""
        return pad(self.lstm(emb)[0][:, :-1], (0, 0, 1, 0))

    def inputs(self, embedding: Float[Tensor, "tokens emb"]) -> Float[Tensor, "tokens gates"]:
        """What reading each token adds to the gates."""
        w_ih, _, b_ih, b_hh = self.lstm.all_weights[0]
        return embedding @ w_ih.T + (b_ih + b_hh)

    def recurrent(self, h: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows gates"]:
        """What the state adds to the gates."""
        return h @ self.lstm.all_weights[0][1].T

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        zeros = self.share.weight.new_zeros(rows, self.lstm.hidden_size)
        return zeros, zeros


def cell(
    gates: Float[Tensor, "*rows gates"], c: Float[Tensor, "*#rows hidden"]
) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "*rows hidden"]]:
    """h and c after a step, in torch's order of gates; `c` may be shared by several rows."""
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class BiLstmMrf(nn.Module):
    r"""f(v, h(y\t)) = w_v relu(A h(y\t) + a) + b_v, for every v in one pass.

    The hidden layer lets left and right context interact. Without it the masked conditionals could
    not say "as y_5, but only if y_2 = y_4", which palindromes need.

    A `MaskedLM`, exactly where one position of a row is masked. Where several are, each reads the
    others as a learned mask embedding, which `MaskedLikelihood(hide=...)` trains.

    Args:
        vocab: number of tokens, 0 ... vocab - 1; all of them may occur. `pad_id` = vocab and
            `mask_id` = vocab + 1 have embeddings but no scores.
        embedding: width of the embeddings.
        hidden: width of each LSTM and of the hidden layer.
    """

    def __init__(self, vocab: int, *, embedding: int = 64, hidden: int = 128):
        super().__init__()
        for name, value in {"vocab": vocab, "embedding": embedding, "hidden": hidden}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.vocab, self.pad_id, self.mask_id = vocab, vocab, vocab + 1
        self.embed = nn.Embedding(vocab + 2, embedding)
        nn.init.normal_(self.embed.weight, std=embedding**-0.5)
        self.past = Reader(embedding, hidden)
        self.future = Reader(embedding, hidden)
        self.output = nn.Linear(hidden, vocab)

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return torch.ones(self.vocab, dtype=torch.bool, device=self.output.weight.device)

    def potentials(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        r"""f(v, h(y\t)) for every t and v; `mask` is True at the real positions."""
        past, future = self.shares(tokens, lengths_of(mask))
        return self.output((past + future).relu()) * mask[:, :, None]

    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """E_raw; rows may be padded with `pad_id` (an `Energy`)."""
        mask = tokens != self.pad_id
        scores = self.potentials(tokens, mask)
        return -scores.gather(-1, tokens.where(mask, 0)[:, :, None]).sum((1, 2))

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """f at the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        past, future = self.shares(tokens.masked_fill(masked, self.mask_id), lengths)
        return self.output((past + future)[masked].relu())

    def shares(
        self, tokens: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows time hidden"], Float[Tensor, "rows time hidden"]]:
        """What the left and the right context add to the hidden layer at each position."""
        emb = self.embed(tokens)
        past = self.past.before(emb)
        future = reverse_within(self.future.before(reverse_within(emb, lengths)), lengths)
        return self.past.share(past), self.future.share(future)

    # The true conditionals (Sec. 6.2.1)

    def substituted(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        """-E_raw of each sequence with v instead of y_t, for every t and v.

        A substitution at t leaves the potentials' forward states up to t and backward states from
        t as they are. So each LSTM runs over what follows in its direction alone, and once for all
        v at t itself.
        """
        lengths = lengths_of(mask)
        past, future = self.shares(tokens, lengths)
        here = self.output((past + future).relu())
        after = self.rest(self.past, tokens, future, mask)
        before = self.rest(
            self.future, reverse_within(tokens, lengths), reverse_within(past, lengths), mask
        )
        return (here + after + reverse_within(before, lengths)) * mask[:, :, None]

    def rest(
        self,
        reader: Reader,
        tokens: Int[Tensor, "rows time"],
        other: Float[Tensor, "rows time hidden"],
        mask: Bool[Tensor, "rows time"],
    ) -> Float[Tensor, "rows time vocab"]:
        """sum_{s > t} f(y_s, .) when v is read at t; `other` is the other direction's share."""
        rows, time = tokens.shape
        tokens = tokens.where(mask, 0)
        inputs = reader.inputs(self.embed.weight)
        w, b = self.output.weight[tokens], self.output.bias[tokens]
        h, c = reader.start(rows)  # of y itself
        changed: tuple[Tensor, Tensor] | None = None  # rows, substitutions before s, vocab
        total = inputs.new_zeros(rows, time, self.vocab)
        for s in range(time):
            if changed is not None:
                z = (reader.share(changed[0]) + other[:, s, None, None]).relu()
                f = torch.einsum("rtvh,rh->rtv", z, w[:, s]) + b[:, s, None, None]
                total = total + pad(f * mask[:, s, None, None], (0, 0, 0, time - s))
            if s + 1 == time:
                break
            gates = inputs[: self.vocab] + reader.recurrent(h)[:, None]
            new_h, new_c = cell(gates, c[:, None])  # rows, vocab: each token at s
            row = torch.arange(rows, device=tokens.device)
            h, c = new_h[row, tokens[:, s]], new_c[row, tokens[:, s]]
            new_h, new_c = new_h[:, None], new_c[:, None]
            if changed is not None:
                gates = inputs[tokens[:, s]][:, None, None] + reader.recurrent(changed[0])
                old_h, old_c = cell(gates, changed[1])
                new_h, new_c = torch.cat([old_h, new_h], 1), torch.cat([old_c, new_c], 1)
            changed = new_h, new_c
        return total

    # log Z (Sec. 2.4)

    def log_partition(self, time: int, *, chunk: int | None = None) -> Float[Tensor, ""]:
        """log sum_y exp(-E_raw(y)) over all vocab^time sequences, in float64.

        At most `chunk` sequences are held at a time. Among them each prefix is read once, each
        suffix once, and f(., h) is evaluated for all tokens between the two at once. With several
        chunks, each is evaluated again in the backward pass.
        """
        chunk = CHUNK if chunk is None else chunk
        if min(time, chunk) < 1:
            raise ValueError(f"time={time} and chunk={chunk} must be at least 1")
        tokens = torch.arange(self.vocab, device=self.output.weight.device)
        sides = box_sides(self.vocab, time, chunk)
        boxes = list(itertools.product(*(tokens.split(side) for side in sides)))
        again = torch.is_grad_enabled() and len(boxes) > 1
        parts = [
            checkpoint(self.box_mass, box, use_reentrant=False) if again else self.box_mass(box)
            for box in boxes
        ]
        return torch.stack(parts).logsumexp(0)

    def box_mass(self, box: Sequence[Tensor]) -> Float[Tensor, ""]:
        return self.box_scores(box).double().logsumexp(0)

    def box_scores(self, box: Sequence[Int[Tensor, " _"]]) -> Float[Tensor, " sequences"]:
        """-E_raw of all sequences with y_t in box[t], in the order of their tokens."""
        past = self.read(self.past, box, newest_last=True)
        future = self.read(self.future, box[::-1], newest_last=False)[::-1]
        total = past[0].new_zeros(math.prod(len(tokens) for tokens in box))
        for tokens, a, b in zip(box, past, future, strict=True):
            z = (a[:, None] + b).relu_()  # prefixes, suffixes, hidden
            f = z @ self.output.weight[tokens].T + self.output.bias[tokens]
            total = total + f.transpose(1, 2).flatten()  # prefixes, tokens, suffixes
        return total

    def read(
        self, reader: Reader, box: Sequence[Int[Tensor, " _"]], *, newest_last: bool
    ) -> list[Float[Tensor, "_ hidden"]]:
        """The reader's share after each number of tokens read, 0 ... time - 1, for all of a box.

        Row order is that of the tokens; the newest counts fastest, or slowest.
        """
        inputs = reader.inputs(self.embed.weight)
        h, c = reader.start(1)
        found = [reader.share(h)]
        axis = 1 if newest_last else 0
        for tokens in box[:-1]:
            gates = reader.recurrent(h).unsqueeze(axis) + inputs[tokens].unsqueeze(1 - axis)
            h, c = (value.flatten(0, 1) for value in cell(gates, c.unsqueeze(axis)))
            found.append(reader.share(h))
        return found


def box_sides(vocab: int, time: int, chunk: int) -> list[int]:
    """Sides of boxes of at most `chunk` sequences, the ends as wide as can be.

    The longest prefixes and suffixes cost most, and are shared by all last and all first tokens.
    """
    sides, middle = [vocab] * time, range(1, time - 1)
    while math.prod(sides) > chunk:
        narrow = [t for t in middle if sides[t] > 1] or range(time)
        widest = max(narrow, key=lambda t: sides[t])
        sides[widest] = -(-sides[widest] // 2)
    return sides
