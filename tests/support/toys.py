"""Small decoders and plain-loop oracles that share no code with the package."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class ToyDecoder(nn.Module):
    """An LSTM decoder bound to a random memory; its state is (h, c) and a step counter."""

    def __init__(self, *, vocab: int, batch: int = 1, hidden: int = 6, seed: int = 0, scale=1.5):
        super().__init__()
        g = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> nn.Parameter:
            value = torch.randn(*shape, generator=g, dtype=torch.float64) * scale / hidden**0.5
            return nn.Parameter(value)

        self.E = weights(vocab, 4)
        self.bos = weights(4)
        self.w_ih, self.w_hh = weights(4 * hidden, 4 + 3), weights(4 * hidden, hidden)
        self.bias = weights(4 * hidden)
        self.out, self.out_bias = weights(vocab, hidden), weights(vocab)
        self.memory = weights(batch, 3)
        self.hidden = hidden

    @property
    def embedding(self) -> Tensor:
        return self.E

    def start(self):
        batch = self.memory.shape[0]
        zeros = torch.zeros(batch, self.hidden, dtype=self.E.dtype)
        return ((zeros, zeros), 0), self.bos.expand(batch, -1)

    def step(self, state, emb: Tensor):
        (h, c), t = state
        memory = self.memory.repeat_interleave(emb.shape[0] // self.memory.shape[0], 0)
        x = torch.cat([emb, memory], -1)
        gates = x @ self.w_ih.T + h @ self.w_hh.T + self.bias
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return 2.0 * (h @ self.out.T) + self.out_bias, ((h, c), t + 1)


def step_scores(decoder, prefix: tuple[int, ...], row: int = 0) -> Tensor:
    """Scores of the next token after a prefix, recomputed from the start for one source."""
    state, emb = decoder.start()
    scores, state = decoder.step(state, emb)
    for token in prefix:
        scores, state = decoder.step(state, decoder.embedding[token].expand_as(emb))
    return scores[row]


def sequences(vocab: int, time: int, eos: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every sequence of `time` tokens; with `eos`, every one that ends there or at `time`."""
    if eos is None:
        yield from itertools.product(range(vocab), repeat=time)
        return
    others = [v for v in range(vocab) if v != eos]
    for length in range(1, time + 1):
        for head in itertools.product(others, repeat=length - 1):
            yield (*head, eos)
    yield from itertools.product(others, repeat=time)


def score(decoder, sequence: tuple[int, ...], row: int = 0, *, normalize: bool = True) -> float:
    """The sum of a sequence's step scores, one step at a time."""
    total = 0.0
    for t, token in enumerate(sequence):
        scores = step_scores(decoder, sequence[:t], row)
        if normalize:
            scores = scores - scores.exp().sum().log()
        total += scores[token].item()
    return total


def plain_beam(decoder, k: int, time: int, *, row: int = 0, eos: int | None = None, normalize=True):
    """Beam search in plain loops: [(score, sequence)], best first; finished ones are carried."""
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(time):
        candidates = []
        for parent, (total, prefix) in enumerate(beam):
            if eos is not None and prefix and prefix[-1] == eos:
                candidates.append((-total, parent, -1, prefix))
                continue
            scores = step_scores(decoder, prefix, row)
            if normalize:
                scores = scores - scores.exp().sum().log()
            for token, value in enumerate(scores.tolist()):
                candidates.append((-(total + value), parent, token, (*prefix, token)))
        candidates.sort(key=lambda c: c[:3])
        beam = [(-c[0], c[3]) for c in candidates[:k]]
    return beam


def three_tokens(scores, n):
    """Lengths of texts that are sampled quickly, in place of `likeliest_lengths`."""
    return torch.full((len(scores), n), 3)
