"""Steps of Marian's and BART's decoders with fewer and larger products, without gradients.

The sums are those of the model in another order, so that scores agree with it up to rounding:

- Queries, keys and values of the prefix are one product.
- All rows of a beam attend to their source together, so that no source is repeated.
- The output layer is packed once for oneDNN, which pays for few rows.

`HfSeq2SeqDecoder` compares the scores of a first step with the model's own, and does not use these
steps if they differ.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from softbeam.models.huggingface.packed import Linear, packed, stamp

Caches = tuple[tuple[Tensor, Tensor], ...]  # keys and values of each layer: rows heads time each
OFFSETS = {"MarianMTModel": 0, "BartForConditionalGeneration": 2}  # of the first position


class FastLayer(NamedTuple):
    """A decoder's layer; its norms are after the sums."""

    projections: Linear  # queries, keys and values, side by side
    merge: Linear
    norm: Any
    query: Linear  # of the attention to the source
    source_merge: Linear
    source_norm: Any
    up: Linear
    activation: Any
    down: Linear
    last_norm: Any
    heads: int

    @classmethod
    def of(cls, module: Any) -> "FastLayer":
        """Collect the parts of a layer of transformers."""
        own, source = module.self_attn, module.encoder_attn
        parts = own.q_proj, own.k_proj, own.v_proj
        whole = Linear(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))
        return cls(
            whole,
            layer_of(own.out_proj),
            module.self_attn_layer_norm,
            layer_of(source.q_proj),
            layer_of(source.out_proj),
            module.encoder_attn_layer_norm,
            layer_of(module.fc1),
            module.activation_fn,
            layer_of(module.fc2),
            module.final_layer_norm,
            own.num_heads,
        )

    def __call__(
        self,
        x: Float[Tensor, "rows width"],
        cache: tuple[Tensor, Tensor],
        memory: tuple[Tensor, Tensor],
        real: Bool[Tensor, "batch 1 1 source_time"] | None,
    ) -> tuple[Float[Tensor, "rows width"], tuple[Tensor, Tensor]]:
        """Compute the next position; return its state and the longer cache."""
        query, key, value = self.projections(x).view(len(x), 3, self.heads, 1, -1).unbind(1)
        key, value = (torch.cat(pair, 2) for pair in zip(cache, (key, value), strict=True))
        seen = scaled_dot_product_attention(query, key, value).reshape(x.shape)
        x = self.norm(self.merge(seen).add_(x))
        shape = len(memory[0]), len(x) // len(memory[0]), self.heads, -1
        query = self.query(x).view(shape).transpose(1, 2)  # sources heads beam each
        seen = scaled_dot_product_attention(query, *memory, attn_mask=real)
        x = self.source_norm(self.source_merge(seen.transpose(1, 2).reshape(x.shape)).add_(x))
        return self.last_norm(self.down(self.activation(self.up(x))).add_(x)), (key, value)


class FastSteps:
    """Computes steps of a decoder with a copy of its weights.

    Args:
        model: an encoder-decoder of transformers. Raises KeyError for another architecture.
    """

    def __init__(self, model: Any):
        decoder = model.get_decoder()
        self.positions = decoder.embed_positions.weight[OFFSETS[type(model).__name__] :]
        self.scale = getattr(decoder, "embed_scale", 1.0)
        self.norm = getattr(decoder, "layernorm_embedding", None)
        self.layers = [FastLayer.of(layer) for layer in decoder.layers]
        self.output = packed(Linear(model.lm_head.weight, model.final_logits_bias[0]))
        self.stamp = stamp(model)

    def __call__(
        self,
        emb: Float[Tensor, "rows emb"],
        state: Caches,
        memories: Caches,
        real: Bool[Tensor, "batch source_time"],
    ) -> tuple[Float[Tensor, "rows vocab"], Caches]:
        """Scores of the next position and the longer cache; rows of a source stand together."""
        x = emb * self.scale + self.positions[state[0][0].shape[2]]
        x = x if self.norm is None else self.norm(x)
        caches = []
        for layer, cache, memory in zip(self.layers, state, memories, strict=True):
            x, cache = layer(x, cache, memory, real[:, None, None])
            caches.append(cache)
        return self.output(x), tuple(caches)


def layer_of(module: Any) -> Linear:
    """A linear layer of a model."""
    return Linear(module.weight, module.bias)
