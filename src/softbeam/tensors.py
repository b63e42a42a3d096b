"""What models and algorithms share: lengths, masks, states, allowed tokens, shared weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from softbeam.errors import UserError
from softbeam.types import State


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush numbers below 1e-38 to 0 inside a block: soft beams have many, and they are slow."""
    before = float(torch.full((1,), 1e-39) * 0.5) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


# Devices: random numbers come from the generator's device, and are moved


def moved(tensor: Shaped[Tensor, "*shape"], device: torch.device) -> Shaped[Tensor, "*shape"]:
    """The tensor on a device; the processor does not wait for a copy to an accelerator."""
    waits = tensor.device.type != "cpu" or device.type == "mps"
    return tensor.to(device, non_blocking=not waits)


def uniform(
    shape: Sequence[int],
    rng: Generator,
    device: torch.device,
    dtype: torch.dtype | None = torch.float64,
) -> Tensor:
    """Uniform numbers of a generator on any device, the same on every device."""
    return moved(torch.rand(shape, generator=rng, dtype=dtype, device=rng.device), device)


def draw(p: Float[Tensor, "rows n"], rng: Generator) -> Int[Tensor, "rows 1"]:
    """Draw a number for each row of probabilities, with a generator of any device.

    Elsewhere than on its own device the generator gives the exponential variables that
    `torch.multinomial` divides by, so that the numbers are the same up to rounding of `p`.
    """
    if p.device == rng.device:
        return torch.multinomial(p, 1, generator=rng)
    noise = torch.empty_like(p, device=rng.device).exponential_(generator=rng)
    return (p / moved(noise, p.device)).argmax(-1, keepdim=True)


def random_state(device: torch.device) -> Tensor:
    """The state of a device's own generator, from which dropout there draws."""
    if device.type in ("cpu", "mps"):
        return (torch.random if device.type == "cpu" else torch.mps).get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Set what `random_state` returned."""
    if device.type in ("cpu", "mps"):
        (torch.random if device.type == "cpu" else torch.mps).set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


# Lengths


def length_mask(lengths: Int[Tensor, " batch"], time: int) -> Bool[Tensor, "batch {time}"]:
    """True at the positions before each length."""
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def real_tokens(
    source: Int[Tensor, "batch source_time *pieces"],
) -> Bool[Tensor, "batch source_time"]:
    """True where a source has a token; a token is a number, or several of which 0 is no first."""
    return (source if source.dim() == 2 else source[:, :, 0]) != 0


def with_pieces(
    source: Int[Tensor, "batch source_time *pieces"],
) -> Int[Tensor, "batch source_time pieces"]:
    """Sources whose tokens have several numbers; a batch of no sentence at all has one each.

    Raises UserError if the tokens have one number each: the sources are of another vocabulary.
    """
    if source.dim() == 2 and len(source):
        raise UserError(
            "the model reads characters or pieces of words, but the vocabulary has none"
        )
    return source if source.dim() == 3 else source[:, :, None]


def distinct_rows(
    rows: Int[Tensor, "rows columns"],
) -> tuple[Int[Tensor, "distinct columns"], Int[Tensor, " rows"]]:
    """The distinct rows of a table, and for each row its place among them.

    Rows are compared by a hash, which is 30 times faster than `torch.unique` of rows; should two
    different rows have the same hash, `torch.unique` decides.
    """
    powers = torch.full_like(rows[:1], HASH_BASE).cumprod(1)  # modulo 2^64
    _, place = (rows * powers).sum(1).unique(return_inverse=True)
    first = place.new_zeros(int(place.max()) + 1 if len(place) else 0)
    first[place] = torch.arange(len(rows), device=rows.device)
    distinct = rows[first]
    if not distinct[place].equal(rows):
        distinct, place = rows.unique(dim=0, return_inverse=True)
    return distinct, place


HASH_BASE = 0x5851F42D4C957F2D  # an odd number without a pattern


def reverse_within(
    values: Shaped[Tensor, "batch time *rest"], lengths: Int[Tensor, " batch"]
) -> Shaped[Tensor, "batch time *rest"]:
    """Each row's first `length` positions in reverse order; padding stays where it is."""
    time = values.shape[1]
    position = torch.arange(time, device=values.device).expand(values.shape[0], time)
    index = torch.where(length_mask(lengths, time), lengths[:, None] - 1 - position, position)
    return values.gather(1, index.view(*index.shape, *[1] * (values.dim() - 2)).expand_as(values))


def map_state(fn: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with `fn` applied to every tensor in it; anything else passes through."""
    if isinstance(state, Tensor):
        return fn(state)
    if isinstance(state, tuple):
        parts = [map_state(fn, part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def gather(state: State, rows: Int[Tensor, " new_rows"]) -> State:
    """The chosen rows of a state: Algorithm 1's hard back pointers (Goyal et al. 2018)."""
    return map_state(lambda tensor: tensor.index_select(0, rows), state)


def mix(state: State, back: Float[Tensor, "batch beam prev"]) -> State:
    """Weighted sums of a state's rows (Algorithm 3, lines 14-16); a one-hot `back` gathers rows.

    Numbers that are not floating-point, such as counters, are gathered from the heaviest row.
    Raises ValueError if rows that differ in them would have to be mixed.
    """

    def mixed(tensor: Tensor) -> Tensor:
        rows = tensor.unflatten(0, (back.shape[0], back.shape[2]))
        if not tensor.is_floating_point():
            return heaviest(rows, back).flatten(0, 1)
        return torch.einsum("bkj,bj...->bk...", back, rows).flatten(0, 1)

    return map_state(mixed, state)


def heaviest(
    rows: Shaped[Tensor, "batch prev *rest"], back: Float[Tensor, "batch beam prev"]
) -> Shaped[Tensor, "batch beam *rest"]:
    """The row with the largest weight, for each element of a beam.

    Raises ValueError if rows with other content have weight, too: no number is between them.
    """
    sentence = torch.arange(len(rows), device=rows.device)[:, None]
    chosen = rows[sentence, back.argmax(-1)]
    other = (rows[:, None] != chosen[:, :, None]).unsqueeze(-1).flatten(3).any(-1)
    lost = (back * other).sum(-1).max()
    if lost > 1e-4:
        raise ValueError(
            f"state: a tensor of {rows.dtype} differs between elements of the soft beam, and only "
            "floating-point numbers can be mixed; convert it to them, or keep it equal in all rows "
            "of a source"
        )
    return chosen


def output_lengths(
    tokens: Int[Tensor, "*rows time"], eos: int | None, limits: Int[Tensor, "*#rows"] | None = None
) -> Int[Tensor, "*rows"]:
    """The number of tokens up to and with the first `eos`, at most `limits` and all of them."""
    time = tokens.shape[-1]
    lengths = torch.full_like(tokens[..., 0], time)
    if eos is not None:
        ends = tokens == eos
        lengths = torch.where(ends.any(-1), ends.int().argmax(-1) + 1, lengths)
    return lengths if limits is None else lengths.minimum(limits)


def nucleus(p: Float[Tensor, "*rows vocab"], mass: float) -> Bool[Tensor, "*rows vocab"]:
    """True in each row's smallest set of tokens whose probability is at least `mass`.

    Of equally likely tokens the first enter first.
    """
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    inside = ordered.cumsum(-1) - ordered < mass  # the tokens before do not suffice
    return torch.zeros_like(inside).scatter(-1, order, inside)


def rank(keys: Shaped[Tensor, "*rows n"]) -> Int[Tensor, "*rows n"]:
    """The place of each key in the ascending order of its row; of equal keys the first is first."""
    return keys.argsort(dim=-1, stable=True).argsort(-1)


Allowed = Bool[Tensor, " vocab"] | Bool[Tensor, "chain time vocab"]


def may_stand(tokens: Int[Tensor, "chain time"], allowed: Allowed) -> Bool[Tensor, "chain time"]:
    """True where a token is allowed at its position; numbers past the vocabulary never are."""
    inside = tokens < allowed.shape[-1]
    index = tokens.where(inside, 0)
    if allowed.dim() == 1:
        return inside & allowed[index]
    return inside & allowed.gather(-1, index[:, :, None])[:, :, 0]


def allowed_at(
    allowed: Allowed, positions: Bool[Tensor, "chain time"]
) -> Bool[Tensor, "#cells vocab"]:
    """The allowed sets at the chosen positions, row by row.

    Raises ValueError if a chosen position is frozen.
    """
    sets = allowed[None] if allowed.dim() == 1 else allowed[positions]
    frozen = ~sets.any(-1)
    if bool(frozen.any()):
        chain, time = positions.nonzero()[frozen.nonzero()[0, 0]].tolist()
        raise ValueError(f"positions: {time} of chain {chain} is frozen, nothing may stand there")
    return sets


def lengths_of(mask: Bool[Tensor, "rows time"]) -> Int[Tensor, " rows"]:
    """The lengths of right-padded rows. Raises ValueError if padding precedes a real position."""
    lengths = mask.sum(1)
    if not torch.equal(mask, length_mask(lengths, mask.shape[1])):
        row = int((mask != length_mask(lengths, mask.shape[1])).any(1).nonzero()[0, 0])
        raise ValueError(f"mask: row {row} has padding before a real position; pad on the right")
    return lengths


def best_columns(scores: Float[Tensor, "rows columns"], n: int) -> Int[Tensor, "rows {n}"]:
    """Indices of each row's n largest scores, best first: those of `topk`, in less time.

    The n best cells lie in the n blocks with the best maxima.
    """
    rows, columns = scores.shape
    block = 64
    blocks = columns // block
    if columns < 4096 or blocks < 4 * n:
        return scores.topk(n).indices
    whole = scores[:, : blocks * block].unflatten(1, (blocks, block))
    chosen = whole.amax(-1).topk(n).indices
    flat = chosen + blocks * torch.arange(rows, device=scores.device)[:, None]
    near = whole.reshape(-1, block).index_select(0, flat.flatten()).view(rows, -1)
    if blocks * block < columns:
        near = torch.cat([near, scores[:, blocks * block :]], 1)
    best = near.topk(n).indices
    inside = chosen.gather(1, (best // block).clamp_max(n - 1)) * block + best % block
    return torch.where(best < n * block, inside, best - n * block + blocks * block)


PACKED = 4096  # lines of a table whose products are faster when it is packed
PENDING = 1 << 22  # numbers of gradients that wait for one common product ...
ROWS = 512  # ... or rows of them, more of which make it no faster


class SharedTable:
    """A matrix, and a bias if it has one, that many steps read; gradients leave once for all.

    Autograd would make a gradient as large as the matrix at every step and add them up. Here the
    steps take `token`, and their backward passes call `add` or `add_sparse`; when all of them
    are done, autograd asks the token for the one sum. What an unfinished backward pass left
    behind is dropped when another begins.
    """

    def __init__(self, table: Float[Tensor, "lines width"], bias: Tensor | None = None):
        self.table = table.detach()
        self.bias = None if bias is None else bias.detach()
        self.token: Tensor = _Collect.apply(table, bias, self)
        self._products = 0
        self._packed: Tensor | None = None
        self._pass = -1
        self._clear()

    def product(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows lines"]:
        """Multiply rows by the table, and add the bias; a large table is packed for the second."""
        if self._products == 1:
            self._pack()
        self._products += 1
        if self._packed is not None:
            ops = torch.ops.mkldnn
            return ops._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        if self.bias is None:
            return rows @ self.table.T
        return torch.addmm(self.bias, rows, self.table.T)

    def _pack(self) -> None:
        """Pack a large table for oneDNN, if this build can do it."""
        table = self.table
        if table.device.type == "cpu" and table.dtype == torch.float32 and len(table) >= PACKED:
            with suppress(AttributeError, RuntimeError):
                self._packed = torch.ops.mkldnn._reorder_linear_weight(table, None)

    def _clear(self) -> None:
        self._sum: Tensor | None = None
        self._bias_sum: Tensor | None = None
        self._pending = 0
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._sparse: list[tuple[Tensor, Tensor, Tensor]] = []

    def _begin(self) -> None:
        now = torch._C._current_graph_task_id()
        if now != self._pass:
            self._clear()
            self._pass = now

    def add(self, weights: Float[Tensor, "rows lines"], rows: Float[Tensor, "rows width"]) -> None:
        """Add weights^T rows, and the sums of the weights to the bias's gradient."""
        if not self.token.requires_grad:
            return
        self._begin()
        if self.bias is not None:
            sums = weights.sum(0)
            self._bias_sum = sums if self._bias_sum is None else self._bias_sum.add_(sums)
        self._dense.append((weights, rows))
        self._pending += len(weights)
        if self._pending >= ROWS or self._pending * weights.shape[1] > PENDING:
            self._multiply()

    def add_sparse(
        self,
        lines: Int[Tensor, "groups cells"],
        weights: Float[Tensor, "groups each cells"],
        rows: Float[Tensor, "rows width"],
    ) -> None:
        """Add weights[g, i, c] rows[g * each + i] to line lines[g, c], for every g, i and c."""
        if not self.token.requires_grad:
            return
        self._begin()
        self._sparse.append((lines, weights, rows))

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The sums of all additions of this backward pass, of the table and of the bias."""
        self._begin()
        self._multiply()
        if self._sparse:
            self._add_cells()
        total, bias = self._sum, self._bias_sum
        self._clear()
        total = torch.zeros_like(self.table) if total is None else total
        if self.bias is not None and bias is None:
            bias = torch.zeros_like(self.bias)
        return total, bias

    def _multiply(self) -> None:
        """Multiply the pending gradients by their rows, in one product."""
        if not self._dense:
            return
        pairs = zip(*self._dense, strict=True)
        weights, rows = (p[0] if len(p) == 1 else torch.cat(p) for p in pairs)
        if self._sum is None:
            self._sum = weights.T @ rows
        else:
            self._sum.addmm_(weights.T, rows)
        self._dense, self._pending = [], 0

    def _add_cells(self) -> None:
        """Add the gradients of single lines in one sparse product; those below rounding are cut."""
        lines, values, parts = zip(*self._sparse, strict=True)
        source, weights = torch.cat(parts), torch.cat([value.reshape(-1) for value in values])
        rows = torch.arange(len(source), device=source.device).split([len(part) for part in parts])
        targets, sources = [], []
        for line, row, value in zip(lines, rows, values, strict=True):
            targets.append(line[:, None].expand_as(value).reshape(-1))
            sources.append(row[:, None].expand(-1, value.shape[2]).reshape(-1))
        index = torch.stack([torch.cat(targets), torch.cat(sources)])
        if weights.device.type == "cpu":
            size = weights.abs()
            felt = (size > 1e-3 * torch.finfo(size.dtype).eps * size.max()).nonzero()[:, 0]
            index, weights = index.index_select(1, felt), weights.index_select(0, felt)
            shape = len(self.table), len(source)
            matrix = torch.sparse_coo_tensor(index, weights, shape, check_invariants=False)
            total = torch.sparse.mm(matrix, source)
        else:  # without sparse matrices, and without waiting for their size
            added = source.index_select(0, index[1]) * weights[:, None]
            total = torch.zeros_like(self.table).index_add_(0, index[0], added)
        self._sum = total if self._sum is None else self._sum.add_(total)
        if self.bias is not None:
            if self._bias_sum is None:
                self._bias_sum = torch.zeros_like(self.bias)
            self._bias_sum.index_add_(0, index[0], weights)


class _Collect(torch.autograd.Function):
    """The token of a `SharedTable`: forward nothing, backward the table's whole gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, bias: Tensor | None, shared: SharedTable) -> Tensor:
        ctx.shared = shared
        return table.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        return *ctx.shared.take(), None
