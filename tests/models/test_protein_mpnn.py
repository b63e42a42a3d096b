"""ProteinMPNN: its formulas in plain loops, and sequences for a backbone from the command line."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import softbeam
from softbeam.cli import main
from softbeam.data.structures import read_backbone
from softbeam.errors import UserError
from softbeam.models import catalogue, protein_mpnn
from softbeam.models.conversions import mpnn
from softbeam.models.protein_mpnn import RESIDUES, BackboneMlm, ProteinMpnn
from softbeam.types import TextModel

from .test_text_seq2seq import saved

CODES = {"A": "ALA", "G": "GLY", "W": "TRP", "M": "MSE"}


def pdb_lines(residues: str, chain: str = "A", first: int = 1) -> list[str]:
    """A chain of residues on a helix, shaken."""
    rng, lines = np.random.default_rng(ord(chain)), []
    for i, residue in enumerate(residues):
        for name, angle, rise in (("N", -27, -0.9), ("CA", 0, 0), ("C", 27, 1.1), ("O", 25, 2.3)):
            turn = math.radians(100 * i + angle)
            at = np.array([2 * math.cos(turn), 2 * math.sin(turn), 1.5 * i + rise])
            x, y, z = at + rng.normal(0, 0.3, 3) + (ord(chain) - 65) * 6
            kind = "HETATM" if residue == "M" else "ATOM  "
            lines.append(
                f"{kind}{len(lines) + 1:5d}  {name:<3s} {CODES[residue]} {chain}{first + i:4d}    "
                f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           {name[0]}"
            )
    return lines


@pytest.fixture
def structure(tmp_path: Path) -> Path:
    """Two chains: a gap in the numbers of the first, and a residue that lacks an atom."""
    lines = pdb_lines("AGW") + pdb_lines("GA", first=7) + pdb_lines("WMG", "B")
    path = tmp_path / "two.pdb"
    water = "HETATM  999  O   HOH A 900      10.000  10.000  10.000  1.00  0.00           O"
    cut = [line for line in lines if not (line[21:26] == "B   3" and " O  " in line)]
    path.write_text("\n".join([*cut, water, "ENDMDL", *pdb_lines("AAAA", "C"), "END"]))
    return path


def small() -> ProteinMpnn:
    torch.manual_seed(0)
    model = ProteinMpnn(width=6, layers=2).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def test_a_backbone_is_read(structure):
    backbone = read_backbone(structure)
    assert backbone.residues == "AGWGAWM" and backbone.chains == tuple("AAAAABB")
    assert backbone.places == (0, 1, 2, 6, 7, 0, 1)
    third = [line for line in structure.read_text().splitlines() if " CA  TRP A   3" in line][0]
    assert backbone.atoms[2][1] == tuple(map(float, third[30:54].split()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("HEADER\n", "has no residue with the atoms N, CA, C, O"),
        ("ATOM      1  N   ALA A   x      0.0\n", "atom 1"),
    ],
)
def test_a_file_without_residues_is_refused(text, said, tmp_path):
    (tmp_path / "no.pdb").write_text(text)
    with pytest.raises(UserError, match=said):
        read_backbone(tmp_path / "no.pdb")
    with pytest.raises(UserError, match=r"none\.pdb"):
        read_backbone(tmp_path / "none.pdb")


def plain_scores(model, backbone, tokens: list[int], hidden: set[int]) -> np.ndarray:
    """Dauparas et al. 2022, Methods, in loops over residues, neighbours and pairs of atoms."""
    w = {name: value.detach().numpy() for name, value in model.named_parameters()}
    size = len(tokens)

    def linear(x, name):
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0)

    def norm(x, name):
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return np.array([v * (1 + math.erf(v / 2**0.5)) / 2 for v in x])

    def message(x, layer, names):
        first, second, third = names
        return linear(
            gelu(linear(gelu(linear(x, f"{layer}.{first}")), f"{layer}.{second}")),
            f"{layer}.{third}",
        )

    def updated(node, messages, layer):
        node = norm(node + sum(messages) / 30, f"{layer}.norm1")
        inner = linear(gelu(linear(node, f"{layer}.dense.W_in")), f"{layer}.dense.W_out")
        return norm(node + inner, f"{layer}.norm2")

    atoms = []
    for four in np.array(backbone.atoms):
        b, c = four[1] - four[0], four[2] - four[1]
        beta = -0.58273431 * np.cross(b, c) + 0.56802827 * b - 0.54067466 * c + four[1]
        atoms.append(dict(zip("NACOB", [*four, beta], strict=True)))  # A is CA, B is CB
    edges = {}
    for i in range(size):
        for j in range(size):  # fewer residues than 48: all are neighbours
            bumps = []
            for (
                p,
                q,
            ) in (
                "AA NN CC OO BB AN AC AO AB NC NO NB BC BO OC NA CA OA BA CN ON BN CB OB CO".split()
            ):
                far = math.sqrt(((atoms[i][p] - atoms[j][q]) ** 2).sum() + 1e-6)
                bumps += [
                    math.exp(-(((far - 2 - 20 * n / 15) / (20 / 16)) ** 2)) for n in range(16)
                ]
            kind = np.zeros(66)
            step = backbone.places[i] - backbone.places[j]
            same = backbone.chains[i] == backbone.chains[j]
            kind[min(max(step + 32, 0), 64) if same else 65] = 1
            along = linear(kind, "features.embeddings.linear")
            edge = w["features.edge_embedding.weight"] @ np.concatenate([along, bumps])
            edges[i, j] = linear(norm(edge, "features.norm_edges"), "W_e")
    nodes = [np.zeros(len(w["W_e.bias"]))] * size
    for n in range(len(model.encoder_layers)):
        layer = f"encoder_layers.{n}"
        heard = {
            (i, j): message(np.concatenate([nodes[i], e, nodes[j]]), layer, ("W1", "W2", "W3"))
            for (i, j), e in edges.items()
        }
        nodes = [updated(nodes[i], [heard[i, j] for j in range(size)], layer) for i in range(size)]
        for (i, j), e in edges.items():
            inside = np.concatenate([nodes[i], e, nodes[j]])
            edges[i, j] = norm(e + message(inside, layer, ("W11", "W12", "W13")), f"{layer}.norm3")
    first, order = nodes, sorted(range(size), key=lambda i: (i in hidden, i))
    rank = {i: n for n, i in enumerate(order)}
    for n in range(len(model.decoder_layers)):
        layer, before = f"decoder_layers.{n}", nodes
        nodes = []
        for i in range(size):
            heard = []
            for j in range(size):
                known = j not in hidden and rank[j] < rank[i]
                word = w["W_s.weight"][tokens[j]] if known else np.zeros(len(first[0]))
                inside = [before[i], edges[i, j], word, before[j] if known else first[j]]
                heard.append(message(np.concatenate(inside), layer, ("W1", "W2", "W3")))
            nodes.append(updated(before[i], heard, layer))
    return np.stack([linear(nodes[i], "W_out") for i in sorted(hidden)])


@pytest.mark.slow
def test_scores_are_those_of_plain_loops(structure):
    backbone = read_backbone(structure)
    mlm = BackboneMlm(small(), backbone)
    assert isinstance(mlm, TextModel)
    prompts = mlm.encode(["AG[MASK]GAWM", "[MASK]GWG[MASK]WM", backbone.residues])
    cells = mlm.logits(prompts.tokens, prompts.hidden, torch.zeros(3, dtype=torch.long))
    expected = []
    for row, hidden in ((0, {2}), (1, {0, 4})):
        tokens = [t if t < 21 else 0 for t in prompts.tokens[row].tolist()]
        expected.append(plain_scores(mlm.model, backbone, tokens, hidden))
    np.testing.assert_allclose(cells[:, :21].numpy(), np.concatenate(expected), atol=1e-9)
    assert (cells[:, 21:] < -1000).all(), "no padding and no mask"


def test_what_is_masked_is_not_read(structure):
    mlm = BackboneMlm(small(), read_backbone(structure))
    text = mlm.encode("AGWGAWM").tokens
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[:, [1, 5]] = True
    other = text.clone()
    other[0, [1, 5]] = torch.tensor([7, 3])
    cells = mlm.logits(torch.cat([text, other]), hidden, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(cells[:2], cells[2:])


def test_near_residues_alone_are_neighbours(tmp_path, monkeypatch):
    (tmp_path / "long.pdb").write_text("\n".join(pdb_lines("AGW" * 8)))
    monkeypatch.setattr(protein_mpnn, "NEIGHBOURS", 5)
    graph = small().encode(read_backbone(tmp_path / "long.pdb"))
    centres = np.array(read_backbone(tmp_path / "long.pdb").atoms)[:, 1]
    for i, near in enumerate(graph.neighbours.tolist()):
        far = np.sqrt(((centres - centres[i]) ** 2).sum(1))
        assert set(near) == set(np.argsort(far)[:5])


def test_texts_that_do_not_fit_are_refused(structure):
    mlm = BackboneMlm(small(), read_backbone(structure))
    for text, said in (("AGW", "has 3 residues; the backbone has 7"), ("AGWGAW?", "token for '?'")):
        with pytest.raises(UserError, match=said.replace("?", r"\?")):
            mlm.encode(text)
    assert mlm.decode(mlm.encode("AG[MASK]GAWM").tokens) == ["AG[MASK]GAWM"]
    assert mlm.alphabet.sum() == 20 and mlm.token_id("X") == 20 and mlm.token_id("?") is None
    assert mlm.word_ids("GA") == [RESIDUES.index("G"), 0] and mlm.word_ids("G?") == []


@pytest.mark.slow
def test_a_structure_is_a_model_on_the_command_line(structure, tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    state = ProteinMpnn().state_dict()
    folder = tmp_path / "converted"
    folder.mkdir()
    checkpoint = {"num_edges": 48, "noise_level": 0.2, "model_state_dict": state}
    mpnn("m.pt")({"m.pt": saved(checkpoint)}.__getitem__, folder)
    with pytest.raises(ValueError, match="num_edges 30"):
        mpnn("m.pt")({"m.pt": saved(checkpoint | {"num_edges": 30})}.__getitem__, folder)
    monkeypatch.setattr(catalogue, "fetch", lambda name: {"proteinmpnn": folder}[name])
    assert main(["score", "--mlm", str(structure), "--text", "AGWGAWM"]) == 0
    shown = capsys.readouterr().out
    mlm = catalogue.load_mlm(str(structure))
    tokens = mlm.encode("AGWGAWM").tokens
    cells = mlm.logits(tokens.expand(7, -1), torch.eye(7).bool(), torch.zeros(7).long())
    expected = cells.log_softmax(-1).gather(1, tokens.T).sum().item()
    assert f"{expected:.3f}" in shown
    drawn = softbeam.sample(mlm, "AG[MASK][MASK]AWM", chains=1, sweeps=2, burn_in=0, seed=1)
    assert all(text[:2] == "AG" and text[4:] == "AWM" for text in drawn.texts[0])
    assert set(catalogue.model_files(str(structure))) >= {"two.pdb"}
