"""Causal language models: kept prefixes give the model's own logits, and GGUF files are read."""

import struct

import numpy as np
import pytest
import torch
import transformers

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.experiments.power import PowerSamples
from softbeam.models import gguf
from softbeam.models.huggingface.prefixes import HfPrefixLM
from softbeam.sampling.diagnostics import Mixing

HEADS, SHARED, WIDTH = 4, 2, 32
TOKENS = [*(bytes([i]).decode("latin-1") for i in range(97, 117)), "Ġ", "ab", "Ġc", "<end>"]
MERGES = ["a b", "Ġ c"]


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def setting(name: str, value) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", 6, value)
    if isinstance(value, int):
        return text(name) + struct.pack("<II", 4, value)
    kind = 8 if isinstance(value[0], str) else 5
    body = b"".join(text(v) if kind == 8 else struct.pack("<i", v) for v in value)
    return text(name) + struct.pack("<IIQ", 9, kind, len(value)) + body


def file_of(model) -> bytes:
    """A GGUF file of a model in float32, as llama.cpp writes it: other names, another order."""
    names = {new: old for old, new in gguf.NAMES.items()}
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        array = value.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = HEADS if "q_proj" in name else SHARED
            array = array.reshape(heads, 2, -1, WIDTH).swapaxes(1, 2).reshape(array.shape)
        if name.startswith("model.layers"):
            _, _, number, *part, _ = name.split(".")
            name = f"blk.{number}.{names['.'.join(part)]}.weight"
        outside = {"model.embed_tokens.weight": "token_embd.weight"}
        outside["model.norm.weight"] = "output_norm.weight"
        tensors[outside.get(name, name)] = np.ascontiguousarray(array, np.float32)
    config = model.config
    settings = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": SHARED,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 1) + [3],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": len(TOKENS) - 1,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    head += b"".join(setting(name, value) for name, value in settings.items())
    data = b""
    for name, array in tensors.items():
        shape = array.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += array.tobytes()
        data += b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture(scope="module")
def folder(llama, tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")
    gguf.llama("x.gguf")(lambda name: {"x.gguf": file_of(llama)}[name], place)
    return place


@pytest.mark.slow
def test_a_gguf_file_becomes_the_same_model_with_its_tokenizer(llama, folder):
    lm = HfPrefixLM.load(folder)
    ids = lm.tokenizer("ab cdd<end>")["input_ids"]
    assert lm.tokenizer.convert_ids_to_tokens(ids) == ["ab", "Ġc", "d", "d", "<end>"]
    assert lm.decode(ids) == "ab cdd" and lm.eos == len(TOKENS) - 1
    with torch.no_grad():
        mine, theirs = (m(input_ids=torch.tensor([ids])).logits for m in (lm.model, llama))
    torch.testing.assert_close(mine, theirs)


def test_numbers_of_four_and_eight_bits():
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, 32)
    packed = (q[:16] | q[16:] << 4).astype(np.uint8).tobytes()
    scale, least = np.float16(0.25).tobytes(), np.float16(-1.5).tobytes()
    found = gguf.numbers(scale + least + packed, 0, [2, 16], 3)
    np.testing.assert_array_equal(found.ravel(), 0.25 * q - 1.5)
    np.testing.assert_array_equal(gguf.numbers(scale + packed, 0, [32], 2), 0.25 * (q - 8.0))
    eight = rng.integers(-128, 128, 32).astype(np.int8)
    np.testing.assert_array_equal(gguf.numbers(scale + eight.tobytes(), 0, [32], 8), 0.25 * eight)
    for wrong in (b"GGUX", b"GGUF", b"GGUF" + struct.pack("<IQQ", 9, 0, 0)):
        with pytest.raises(ValueError, match="GGUF|cut off"):
            gguf.read(wrong)
    with pytest.raises(ValueError, match="form 77"):
        gguf.numbers(b"", 0, [32], 77)


@pytest.mark.slow
def test_kept_prefixes_give_the_logits_of_the_whole_text(llama, folder):
    lm = HfPrefixLM.load(folder).after("ab c")
    text_ids = [3, 5, 1, 8, 2]
    with torch.no_grad():
        whole = llama(input_ids=torch.tensor([[*lm.prompt, *text_ids]])).logits[0]
    first, past = lm.start()
    more, past = lm.step(past, text_ids)
    expected = whole[len(lm.prompt) - 1 :]
    torch.testing.assert_close(torch.cat([first[None], more]), expected)
    again, _ = lm.step(lm.cut(past, 2), text_ids[2:])
    torch.testing.assert_close(again, expected[3:])


@pytest.mark.slow
def test_the_command_prints_samples_diagnostics_and_tokens(folder, capsys):
    words = ["power", "--lm", str(folder), "--text", "ab c", "--length", "6", "--moves", "3"]
    words += ["--chains", "2", "--sweeps", "6", "--burn-in", "1", "--quiet"]
    assert main(words) == 0
    kept = capsys.readouterr().out
    assert main([*words, "--no-reuse"]) == 0
    again = capsys.readouterr().out
    assert "R-hat" in kept and "ESS" in kept
    assert kept.splitlines()[:-1] == again.splitlines()[:-1], "the same chain"
    read, from_start = (
        int(out.splitlines()[-1].split()[0].replace(",", "")) for out in (kept, again)
    )
    assert read < from_start
    with pytest.raises(UserError, match="no token"):
        HfPrefixLM.load(folder).after("")


@pytest.mark.parametrize("rhat", [1.3, 1.01, None])
def test_chains_that_disagree_are_told(rhat, monkeypatch, capsys):
    mixing = Mixing(-3.0, rhat, 9.0, None)
    result = PowerSamples([["x"]], torch.zeros(1, 1), 0.5, mixing, 10, 20, -4.0)
    monkeypatch.setattr("softbeam.models.huggingface.prefixes.HfPrefixLM.load", lambda _: None)
    monkeypatch.setattr("softbeam.experiments.power.power_sample", lambda *_, **__: result)
    assert main(["power", "--lm", "M", "--text", "a"]) == 0
    said = capsys.readouterr().out
    assert ("chains disagree" in said) == (rhat == 1.3)
