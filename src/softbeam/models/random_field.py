r"""A Markov random field over whole sequences, of two LSTMs (thesis, Sec. 6.2.1 and 6.2.3).

E_raw(y) = -sum_t f(y_t, h(y\t)) over the real positions, h(y\t) = [state of the forward LSTM before
t; state of the backward LSTM after t]. Neither state depends on y_t, so that one pass gives all
potentials without masking. Padding is on the right and never changes a number: it is not read, and
its potentials are 0.

Sequences with a common part share its states. So the true conditionals are several times cheaper
than the |V| T passes of Sec. 6.2.2, and log Z is far cheaper than |V|^T passes.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from softbeam.models.layers import check_sizes
from softbeam.tensors import lengths_of, reverse_within

CHUNK = 2**20  # sequences


class Reader(nn.Module):
    """An LSTM over the embeddings, and its contribution to the hidden layer of f."""

    def __init__(self, embedding: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.share = nn.Linear(hidden, hidden)

    def before(self, emb: Float[Tensor, "rows time emb"]) -> Float[Tensor, "rows time hidden"]:
        """Compute the state before each position; the first is zeros."""
        return pad(self.lstm(emb)[0][:, :-1], (0, 0, 1, 0))

    def inputs(self, embedding: Float[Tensor, "tokens emb"]) -> Float[Tensor, "tokens gates"]:
        """Compute the contribution of each token to the gates."""
        w_ih, _, b_ih, b_hh = self.lstm.all_weights[0]
        return embedding @ w_ih.T + (b_ih + b_hh)

    def recurrent(self, h: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows gates"]:
        """Compute the contribution of the state to the gates."""
        return h @ self.lstm.all_weights[0][1].T

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        zeros = self.share.weight.new_zeros(rows, self.lstm.hidden_size)
        return zeros, zeros


def cell(
    gates: Float[Tensor, "*rows gates"], c: Float[Tensor, "*#rows hidden"]
) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "*rows hidden"]]:
    """Compute h and c after a step, in torch's order of gates; several rows may share `c`."""
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class BiLstmMrf(nn.Module):
    r"""f(v, h(y\t)) = w_v relu(A h(y\t) + a) + b_v, for every v in one pass.

    The hidden layer lets left and right context interact. Without it the masked conditionals could
    not express "as y_5, but only if y_2 = y_4", which palindromes need.

    The model is also a `MaskedLM`. It is exact if one position of a row is masked. If several are,
    each reads the others as a learned mask embedding, which `MaskedLikelihood(hide=...)` trains.

    Args:
        vocab: number of tokens, 0 ... vocab - 1; all of them may occur. `pad_id` = vocab and
            `mask_id` = vocab + 1 have embeddings but no scores.
        embedding: width of the embeddings.
        hidden: width of each LSTM and of the hidden layer.
    """

    def __init__(self, vocab: int, *, embedding: int = 64, hidden: int = 128):
        super().__init__()
        check_sizes(vocab=vocab, embedding=embedding, hidden=hidden)
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
        r"""Compute f(v, h(y\t)) for every t and v; `mask` is True at the real positions."""
        past, future = self.shares(tokens, lengths_of(mask))
        return self.output((past + future).relu()) * mask[:, :, None]

    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """Compute E_raw; rows may be padded with `pad_id`. The method is an `Energy`."""
        mask = tokens != self.pad_id
        scores = self.potentials(tokens, mask)
        return -scores.gather(-1, tokens.where(mask, 0)[:, :, None]).sum((1, 2))

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Compute f at the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        past, future = self.shares(tokens.masked_fill(masked, self.mask_id), lengths)
        return self.output((past + future)[masked].relu())

    def shares(
        self, tokens: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows time hidden"], Float[Tensor, "rows time hidden"]]:
        """Compute the contributions of left and right context to the hidden layer."""
        emb = self.embed(tokens)
        past = self.past.before(emb)
        future = reverse_within(self.future.before(reverse_within(emb, lengths)), lengths)
        return self.past.share(past), self.future.share(future)

    # The true conditionals (Sec. 6.2.1)

    def substituted(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        """Compute -E_raw of each sequence with v instead of y_t, for every t and v.

        A substitution at t changes neither the forward states up to t nor the backward states from
        t on. So each LSTM runs only over what follows t in its direction, for all v together.
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
        """Sum f(y_s, .) over s > t if v stands at t; `other` is from the other direction."""
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
        """Compute log sum_y exp(-E_raw(y)) over all vocab^time sequences, in float64.

        At most `chunk` sequences are held at a time. Each of their prefixes and suffixes is read
        once, and f(., h) is evaluated for all tokens between two of them at once. With several
        chunks, the backward pass evaluates each of them again.
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
        """Compute log sum_y exp(-E_raw(y)) over a box of sequences."""
        return self.box_scores(box).double().logsumexp(0)

    def box_scores(self, box: Sequence[Int[Tensor, " _"]]) -> Float[Tensor, " sequences"]:
        """Compute -E_raw of all sequences with y_t in box[t], in the order of their tokens."""
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
        """Compute the reader's contribution after 0 ... time - 1 tokens, for all of a box.

        Rows are in the order of the tokens; the newest token changes fastest if `newest_last` is
        set, else slowest.
        """
        inputs = reader.inputs(self.embed.weight)
        h, c = reader.start(1)
        shares = [reader.share(h)]
        axis = 1 if newest_last else 0
        for tokens in box[:-1]:
            gates = reader.recurrent(h).unsqueeze(axis) + inputs[tokens].unsqueeze(1 - axis)
            h, c = (value.flatten(0, 1) for value in cell(gates, c.unsqueeze(axis)))
            shares.append(reader.share(h))
        return shares


def box_sides(vocab: int, time: int, chunk: int) -> list[int]:
    """Choose sides of boxes of at most `chunk` sequences, with ends as wide as possible.

    The longest prefixes and suffixes cost most; all last and all first tokens share them.
    """
    sides, middle = [vocab] * time, range(1, time - 1)
    while math.prod(sides) > chunk:
        narrow = [t for t in middle if sides[t] > 1] or range(time)
        widest = max(narrow, key=lambda t: sides[t])
        sides[widest] = -(-sides[widest] // 2)
    return sides
