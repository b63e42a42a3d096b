"""Scores of masked cells of BERT, RoBERTa, ELECTRA and ESM at a part of the models' own cost.

The sums are those of the model in another order, so that scores agree with it up to rounding:

- Rows of each length run together. Nothing is padded, and the attention needs no mask.
- The first layer's queries, keys and values depend on a token and its place. Rows of one text have
  most of them in common, and each is computed once.
- The last layer runs at the masked cells alone and computes no keys and values: q.(K h) = (K'q).h,
  and a weighted sum of values V h is V times the sum of the states h.
- A large output layer is packed once for oneDNN.

`HfMaskedLM` compares these scores with the model's own when it wraps a model, and does not use them
if they differ.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from softbeam.models.huggingface.packed import Linear, packed, stamp

CELLS = 4096  # cells of a batch, whose states then stay in the processor's cache

Transform = Callable[[Tensor], Tensor]
Rotate = Callable[..., tuple[Tensor, Tensor]]  # of queries and keys, by cosines and sines


class Layer(NamedTuple):
    """A layer of an encoder; its norms are before the sums (ESM) or after them."""

    projections: Linear  # queries, keys and values, side by side
    merge: Linear
    attention_norm: Transform
    up: Linear
    activation: Transform
    down: Linear
    norm: Transform
    norm_first: bool
    heads: int

    def read(self, x: Tensor) -> Tensor:
        """The input of the attention."""
        return self.attention_norm(x) if self.norm_first else x

    def finish(
        self, x: Float[Tensor, "*cells width"], seen: Float[Tensor, "*cells width"]
    ) -> Float[Tensor, "*cells width"]:
        """The layer's output at some cells, from its input and its attention's output there."""
        y = self.merge(seen).add_(x)
        if self.norm_first:
            return self.down(self.activation(self.up(self.norm(y)))).add_(y)
        y = self.attention_norm(y)
        return self.norm(self.down(self.activation(self.up(y))).add_(y))


class FastRows:
    """Computes the scores of masked cells with a copy of some of a model's weights.

    Args:
        model: a masked LM of transformers. Raises KeyError for one of another architecture.
    """

    def __init__(self, model: Any):
        heads = HEADS[type(model).__module__.rpartition(".")[2], type(model).__name__]
        self.model, base = model, model.base_model
        if base.config.is_decoder:
            raise KeyError("a decoder's attention is causal")
        self.embed = base.embeddings
        self.project: Transform = getattr(base, "embeddings_project", same)
        self.layers = [layer_of(module) for module in base.encoder.layer]
        self.last_norm: Transform = getattr(base.encoder, "emb_layer_norm_after", None) or same
        self.transform, output = heads(model)
        self.output = packed(output)
        self.rotary = getattr(base, "rotary_embeddings", None)
        module: Any = sys.modules[type(model).__module__]
        self.rotate: Rotate = getattr(module, "apply_rotary_pos_emb", lambda q, k, *turns: (q, k))
        self.stamp = stamp(model)

    def current(self) -> bool:
        """False if the model's weights have changed since they were copied."""
        return self.stamp == stamp(self.model)

    def __call__(
        self,
        ids: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        lengths: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """The scores of the masked cells, row by row; rows are as long as `lengths` says."""
        batches = alike(lengths)
        states = [self.states(ids[rows, :time], masked[rows, :time]) for rows, time in batches]
        order = lengths[masked.nonzero()[:, 0]].argsort(stable=True)
        cells = torch.cat(states)[order.argsort()]
        return self.output(self.transform(cells))

    def states(
        self, ids: Int[Tensor, "rows time"], masked: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "cells width"]:
        """The encoder's states at the masked cells of rows without padding."""
        x = self.embedded(ids)
        turns = self.turns(x)
        for number, layer in enumerate(self.layers[:-1]):
            y = layer.read(x)
            projected = self.shared(layer, y, ids, masked) if number == 0 else layer.projections(y)
            x = layer.finish(x, self.attend(projected, layer.heads, turns))
        return self.last_norm(self.last(x, masked, turns))

    def embedded(self, ids: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
        real = {} if self.rotary is None else {"attention_mask": torch.ones_like(ids)}
        return self.project(self.embed(input_ids=ids, **real))

    def turns(self, x: Float[Tensor, "rows time width"]) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of rotary positions, of models that have them."""
        if self.rotary is None:
            return None
        places = torch.arange(x.shape[1], device=x.device)[None]
        turns: tuple[Tensor, Tensor] = self.rotary(x, places)
        return turns

    def shared(self, layer: Layer, y: Tensor, ids: Tensor, masked: Tensor) -> Tensor:
        """The projections of a first layer, each distinct cell computed once."""
        time, vocab = ids.shape[1], len(self.embed.word_embeddings.weight)
        code = (masked.sum(1, keepdim=True) * vocab + ids) * time  # ESM also counts the masks
        _, place = (code + torch.arange(time, device=ids.device)).unique(return_inverse=True)
        first = place.new_empty(int(place.max()) + 1)
        first[place.flatten()] = torch.arange(place.numel(), device=ids.device)
        return layer.projections(y.flatten(0, 1)[first])[place]

    def attend(
        self, projected: Float[Tensor, "rows time wide"], heads: int, turns: Any
    ) -> Float[Tensor, "rows time width"]:
        """The attention of whole rows."""
        q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        if turns is not None:
            q, k = self.rotate(q * q.shape[-1] ** -0.5, k, *turns)
        seen = scaled_dot_product_attention(q, k, v, scale=None if turns is None else 1.0)
        return seen.transpose(1, 2).flatten(2)

    def last(
        self, x: Float[Tensor, "rows time width"], masked: Bool[Tensor, "rows time"], turns: Any
    ) -> Float[Tensor, "cells width"]:
        """The last layer at the masked cells."""
        layer = self.layers[-1]
        y, (row, place) = layer.read(x), masked.nonzero(as_tuple=True)
        (wq, wk, wv), (bq, bk, bv) = (part.chunk(3) for part in layer.projections)
        q = linear(y[row, place], wq, bq).unflatten(-1, (layer.heads, -1))
        q = q * q.shape[-1] ** -0.5
        alone = len(row) == len(y) and bool((row.diff() == 1).all())
        memory = y if alone else y[row]
        if turns is None:  # the bias of the keys adds the same number to all scores of a query
            asked = torch.einsum("chd,hdw->chw", q, wk.unflatten(0, (layer.heads, -1)))
            scores = asked @ memory.mT
        else:
            k = linear(memory, wk, bk).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            here = [table[0, place, None] for table in turns]
            q = self.rotate(q[:, :, None], q[:, :, None], *here)[0]
            scores = (q @ self.rotate(k, k, *turns)[1].mT)[:, :, 0]
        seen = scores.softmax(-1) @ memory
        values = torch.einsum("chw,hdw->chd", seen, wv.unflatten(0, (layer.heads, -1)))
        return layer.finish(x[row, place], values.flatten(1) + bv)


def alike(lengths: Int[Tensor, " rows"]) -> Iterator[tuple[Int[Tensor, " some"], int]]:
    """Yield the rows of each length, a bounded number of cells at a time."""
    for time in lengths.unique().tolist():
        for rows in (lengths == time).nonzero()[:, 0].split(max(1, CELLS // max(time, 1))):
            yield rows, time


def layer_of(module: Any) -> Layer:
    """Collect the parts of a layer of transformers."""
    attention, merge = module.attention.self, module.attention.output
    projections = attention.query, attention.key, attention.value
    norm_first = hasattr(module, "LayerNorm")
    return Layer(
        Linear(
            torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections])
        ),
        Linear(merge.dense.weight, merge.dense.bias),
        module.attention.LayerNorm if norm_first else merge.LayerNorm,
        Linear(module.intermediate.dense.weight, module.intermediate.dense.bias),
        getattr(module.intermediate, "intermediate_act_fn", gelu),
        Linear(module.output.dense.weight, module.output.dense.bias),
        module.LayerNorm if norm_first else module.output.LayerNorm,
        norm_first,
        attention.num_attention_heads,
    )


def same(x: Tensor) -> Tensor:
    return x


def bert_head(model: Any) -> tuple[Transform, Linear]:
    head = model.cls.predictions
    return head.transform, Linear(head.decoder.weight, head.decoder.bias)


def electra_head(model: Any) -> tuple[Transform, Linear]:
    output = model.generator_lm_head
    return model.generator_predictions, Linear(output.weight, output.bias)


def roberta_head(model: Any) -> tuple[Transform, Linear]:
    head = model.lm_head
    return lambda x: head.layer_norm(gelu(head.dense(x))), Linear(head.decoder.weight, head.bias)


# The parts after the encoder: what comes before the output layer, and the output layer.
HEADS: dict[tuple[str, str], Callable[[Any], tuple[Transform, Linear]]] = {
    ("modeling_bert", "BertForMaskedLM"): bert_head,
    ("modeling_electra", "ElectraForMaskedLM"): electra_head,
    ("modeling_esm", "EsmForMaskedLM"): roberta_head,
    ("modeling_roberta", "RobertaForMaskedLM"): roberta_head,
}
