"""ProteinMPNN: residues of a protein, given its backbone (Dauparas et al. 2022).

`BackboneMlm` is a `TextModel` for sequences of one structure. The network was trained to fill
positions in any order. Here the tokens that are not masked come first, from the first position to
the last, and each masked one is filled given all of them and none of the other masked ones.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, one_hot

from softbeam.data.batches import pad
from softbeam.data.structures import Backbone, read_backbone
from softbeam.errors import UserError
from softbeam.models.residues import amino_acids
from softbeam.models.trained_mlm import GAP, tokens_of
from softbeam.tensors import may_stand
from softbeam.types import Prompts, WordParts

RESIDUES = "ACDEFGHIKLMNPQRSTVWYX"
PAD, MASK = len(RESIDUES), len(RESIDUES) + 1
NEIGHBOURS = 48
FARTHEST = 32  # distance along a chain that is told apart
CENTRES = torch.linspace(2.0, 22.0, 16)  # of distances, in angstroms
SCALE = 30.0  # of sums of messages
BETA = (-0.58273431, 0.56802827, -0.54067466)  # where an ideal CB is, from the other atoms
ROWS = 16  # texts that are scored at once
NEVER = -1e4  # score of padding and of the mask


class Graph(NamedTuple):
    """A backbone after the encoder."""

    neighbours: Int[Tensor, "time near"]
    edges: Float[Tensor, "time near width"]
    nodes: Float[Tensor, "time width"]


class Layer(nn.Module):
    """Messages of the neighbours, then a dense layer; an encoder's also changes the edges.

    The first layer of a message is linear in the node, the edge and the neighbour, so that each
    part is computed once and gathered; the last one is linear too, and comes after the sum.

    Args:
        width: of nodes and edges.
        parts: what a message is made of: the node, the edge, and what is known of the neighbour.
        edges: whether edges are changed too.
    """

    def __init__(self, width: int, parts: int, *, edges: bool):
        super().__init__()
        self.W1, self.W2 = nn.Linear(parts * width, width), nn.Linear(width, width)
        self.W3, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        hidden = {"W_in": nn.Linear(width, 4 * width), "W_out": nn.Linear(4 * width, width)}
        self.dense = nn.ModuleDict(hidden)
        if edges:
            self.W11, self.W12 = nn.Linear(parts * width, width), nn.Linear(width, width)
            self.W13, self.norm3 = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(
        self, nodes: Float[Tensor, "*rows width"], first: Float[Tensor, "*rows near width"]
    ) -> Float[Tensor, "*rows width"]:
        """Compute the nodes after their neighbours' messages, of which the first layer is given."""
        inner = gelu(self.W2(gelu(first))).sum(-2)
        heard = linear(inner, self.W3.weight) + first.shape[-2] * self.W3.bias
        nodes = self.norm1(nodes + heard / SCALE)
        more = self.dense["W_out"](gelu(self.dense["W_in"](nodes)))
        out: Tensor = self.norm2(nodes + more)
        return out


def met(
    layer: nn.Linear, nodes: Float[Tensor, "time width"], graph: tuple[Tensor, Tensor]
) -> Float[Tensor, "time near width"]:
    """The first layer of messages of an encoder: node, edge and neighbour."""
    near, edges = graph
    own, edge, other = layer.weight.chunk(3, 1)
    return (
        linear(nodes, own, layer.bias)[:, None] + linear(edges, edge) + linear(nodes, other)[near]
    )


class ProteinMpnn(nn.Module):
    """The network, with the parameters' names of the published checkpoints."""

    def __init__(self, width: int = 128, layers: int = 3):
        super().__init__()
        count = len(CENTRES)
        self.features = nn.ModuleDict(
            {
                "embeddings": nn.ModuleDict({"linear": nn.Linear(2 * FARTHEST + 2, 16)}),
                "edge_embedding": nn.Linear(16 + 25 * count, width, bias=False),
                "norm_edges": nn.LayerNorm(width),
            }
        )
        self.W_e, self.W_s = nn.Linear(width, width), nn.Embedding(len(RESIDUES), width)
        self.encoder_layers = nn.ModuleList(Layer(width, 3, edges=True) for _ in range(layers))
        self.decoder_layers = nn.ModuleList(Layer(width, 4, edges=False) for _ in range(layers))
        self.W_out = nn.Linear(width, len(RESIDUES))

    def encode(self, backbone: Backbone) -> Graph:
        """Read a backbone: distances of all pairs of atoms of near residues, and their places."""
        atoms = torch.tensor(backbone.atoms, dtype=self.W_e.weight.dtype)
        atoms = with_beta(atoms.to(self.W_e.weight.device))
        centres = atoms[:, 1]
        near = distances(centres[:, None], centres[None]).topk(
            min(NEIGHBOURS, len(centres)), largest=False
        )[1]
        between = distances(atoms[:, None, PAIRS[:, 0]], atoms[near][:, :, PAIRS[:, 1]])
        width = (CENTRES[-1] - CENTRES[0]) / len(CENTRES)
        shifted = (between[..., None] - CENTRES.to(between)) / width.to(between)
        bumps = torch.exp(-shifted.square()).flatten(-2)
        along = self.features.get_submodule("embeddings.linear")(self.steps(backbone, near))
        edges = self.features["edge_embedding"](torch.cat([along, bumps], -1))
        edges = self.W_e(self.features["norm_edges"](edges))
        nodes = torch.zeros_like(edges[:, 0])
        for layer in self.encoder_layers:
            assert isinstance(layer, Layer)
            nodes = layer(nodes, met(layer.W1, nodes, (near, edges)))
            inner = gelu(layer.W12(gelu(met(layer.W11, nodes, (near, edges)))))
            edges = layer.norm3(edges + layer.W13(inner))
        return Graph(near, edges, nodes)

    def steps(
        self, backbone: Backbone, near: Int[Tensor, "time near"]
    ) -> Float[Tensor, "time near kinds"]:
        """How far a neighbour is before a residue in its chain, or that it is in another one."""
        places = torch.tensor(backbone.places, device=near.device)
        names = {name: i for i, name in enumerate(dict.fromkeys(backbone.chains))}
        chains = torch.tensor([names[name] for name in backbone.chains], device=near.device)
        offset = (places[:, None] - places[near] + FARTHEST).clamp(0, 2 * FARTHEST)
        kind = torch.where(chains[:, None] == chains[near], offset, 2 * FARTHEST + 1)
        return one_hot(kind, 2 * FARTHEST + 2).to(self.W_e.weight.dtype)

    def forward(
        self,
        graph: Graph,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
    ) -> Float[Tensor, "rows time residues"]:
        """Scores at every position; those of masked ones do not depend on masked tokens."""
        near, edges, first = graph
        place = torch.arange(tokens.shape[1], device=tokens.device)
        seen = ~masked[:, near] & (masked[:, :, None] | (near < place[:, None]))
        words = self.W_s(tokens.masked_fill(masked, 0))
        nodes = first.expand(len(tokens), *first.shape)
        for layer in self.decoder_layers:
            assert isinstance(layer, Layer)
            own, edge, word, other = layer.W1.weight.chunk(4, 1)
            told = (linear(words, word) + linear(nodes, other))[:, near]
            known = torch.where(seen[..., None], told, linear(first, other)[near])
            around = known + linear(edges, edge)
            nodes = layer(nodes, around + linear(nodes, own, layer.W1.bias)[:, :, None])
        out: Tensor = self.W_out(nodes)
        return out


PAIRS = torch.tensor(  # of N, CA, C, O and CB: the order of the checkpoint's features
    [
        *[[1, 1], [0, 0], [2, 2], [3, 3], [4, 4], [1, 0], [1, 2], [1, 3], [1, 4], [0, 2]],
        *[[0, 3], [0, 4], [4, 2], [4, 3], [3, 2], [0, 1], [2, 1], [3, 1], [4, 1], [2, 0]],
        *[[3, 0], [4, 0], [2, 4], [3, 4], [2, 3]],
    ]
)


def distances(
    a: Float[Tensor, "*#rows 3"], b: Float[Tensor, "*#rows 3"]
) -> Float[Tensor, "*#rows"]:
    """Distances of points, never quite zero."""
    return ((a - b).square().sum(-1) + 1e-6).sqrt()


def with_beta(atoms: Float[Tensor, "time 4 3"]) -> Float[Tensor, "time 5 3"]:
    """Add where CB would be, to N, CA, C and O."""
    b, c = atoms[:, 1] - atoms[:, 0], atoms[:, 2] - atoms[:, 1]
    parts = (torch.linalg.cross(b, c), b, c)
    beta = atoms[:, 1] + sum(weight * part for weight, part in zip(BETA, parts, strict=True))
    return torch.cat([atoms, beta[:, None]], 1)


class BackboneMlm:
    """A `TextModel` of the sequences of one backbone, without gradients.

    A text has a residue for each of the backbone, all chains one after the other.
    """

    pad_id, mask_id = PAD, MASK

    def __init__(self, model: ProteinMpnn, backbone: Backbone):
        self.model, self.backbone = model.eval().requires_grad_(False), backbone
        self.graph = model.encode(backbone)
        self.allowed = torch.arange(MASK + 1) < PAD
        self.alphabet = amino_acids(RESIDUES.__getitem__, self.allowed)
        self.word_parts = WordParts(*[torch.zeros(MASK + 1).bool()] * 4)

    @classmethod
    def load(
        cls, folder: Path, structure: Path, *, dtype: torch.dtype, device: torch.device
    ) -> "BackboneMlm":
        """Load the network of a folder for a PDB file."""
        model = ProteinMpnn()
        model.load_state_dict(load_file(folder / "model.safetensors"))
        return cls(model.to(device=device, dtype=dtype), read_backbone(structure))

    def to(self, device: str | torch.device) -> "BackboneMlm":
        """Move the network to a device."""
        self.model.to(device)
        self.graph = Graph(*(part.to(device) for part in self.graph))
        return self

    @torch.no_grad()
    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones; `owner` is not read."""
        device, scores = self.graph.nodes.device, []
        for rows, hidden in zip(tokens.split(ROWS), masked.split(ROWS), strict=True):
            hidden = hidden.to(device)
            scores.append(self.model(self.graph, rows.to(device), hidden)[hidden])
        cells = torch.cat(scores) if scores else self.model.W_out.bias.new_zeros(0, PAD)
        cells = cells if cells.dtype in (torch.float32, torch.float64) else cells.float()
        return torch.cat([cells, cells.new_full((len(cells), 2), NEVER)], 1)

    def encode(self, texts: str | Sequence[str]) -> Prompts:
        """Convert sequences to tokens; `[MASK]` is a gap. Raises UserError if one does not fit."""
        rows = [self.ids(text) for text in ([texts] if isinstance(texts, str) else texts)]
        tokens = pad(rows, PAD) if rows else torch.zeros(0, 0, dtype=torch.long)
        return Prompts(tokens, tokens == MASK, tokens == PAD)

    def ids(self, text: str) -> list[int]:
        """The tokens of a sequence."""
        names, size = tokens_of(text, "characters"), len(self.backbone.residues)
        ids = [self.token_id(name) for name in names]
        if None in ids:
            raise UserError(f"the model has no token for {names[ids.index(None)]!r}")
        if len(ids) != size:
            raise UserError(f"{text[:40]!r} has {len(ids)} residues; the backbone has {size}")
        return [i for i in ids if i is not None]

    def decode(self, tokens: Int[Tensor, "chain time"]) -> list[str]:
        """Convert tokens to sequences."""
        shown = may_stand(tokens, self.allowed) | (tokens == MASK)
        pairs = zip(tokens, shown, strict=True)
        return ["".join(self.token_names(row[kept].tolist())) for row, kept in pairs]

    def token_names(self, ids: Sequence[int]) -> list[str]:
        """The names of tokens; that of the mask is `[MASK]`."""
        return ["[MASK]" if i == MASK else "" if i == PAD else RESIDUES[i] for i in ids]

    def token_id(self, name: str) -> int | None:
        """The number of the token of this name; None if there is none."""
        if GAP.fullmatch(name):
            return MASK
        return RESIDUES.find(name) if len(name) == 1 and name in RESIDUES else None

    def word_ids(self, text: str) -> list[int]:
        """The tokens of a piece of a sequence; none if a part of it is unknown."""
        ids = [self.token_id(name) for name in tokens_of(text, "characters")]
        return [] if None in ids else [i for i in ids if i is not None]
