"""A layer of ours and torch's own with the same weights."""

import torch
from torch import nn

from softbeam.models.layers import Attention, Layer


def as_torch(attention: Attention) -> nn.MultiheadAttention:
    width = attention.query.in_features
    made = nn.MultiheadAttention(width, attention.heads, batch_first=True).double()
    made.in_proj_weight.data = torch.cat([attention.query.weight, attention.key_value.weight])
    made.in_proj_bias.data = torch.cat([attention.query.bias, attention.key_value.bias])
    made.out_proj.load_state_dict(attention.joined.state_dict())
    return made


def twins(norm_first: bool) -> tuple[Layer, nn.TransformerDecoderLayer]:
    torch.manual_seed(0)
    layer = Layer(8, 2, 12, 0.0, source=True, norm_first=norm_first).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.TransformerDecoderLayer(
        8, 2, 12, 0.0, activation="gelu", batch_first=True, norm_first=norm_first
    ).double()
    theirs.self_attn, theirs.multihead_attn = as_torch(layer.attention), as_torch(layer.source)
    theirs.linear1, theirs.linear2 = layer.hidden, layer.back
    norms = (layer.attention_norm, layer.source_norm, layer.hidden_norm)
    theirs.norm1, theirs.norm2, theirs.norm3 = norms
    return layer, theirs
