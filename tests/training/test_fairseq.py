"""Mask-Predict checkpoints: their key layout with random weights, judged by torch's attention."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear, multi_head_attention_forward

from softbeam.cli import main
from softbeam.data.batches import collate
from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.training.runs import load_run
from support.fairseq_checkpoint import (
    HEADS,
    LAYERS,
    TARGET,
    WIDTH,
    arguments,
    random_state,
    write_checkpoint,
)


class Theirs:
    """Their forward pass, written from its description: one sentence, no padding, no batches."""

    def __init__(self, state: dict[str, torch.Tensor], norm_first: bool):
        self.state, self.norm_first = state, norm_first

    def norm(self, x, name):
        return layer_norm(
            x, (WIDTH,), self.state[f"{name}.gamma"], self.state[f"{name}.beta"], 1e-12
        )

    def attend(self, x, memory, name):
        found, _ = multi_head_attention_forward(
            x[:, None],
            memory[:, None],
            memory[:, None],
            WIDTH,
            HEADS,
            self.state[f"{name}.in_proj_weight"],
            self.state[f"{name}.in_proj_bias"],
            None,
            None,
            False,
            0.0,
            self.state[f"{name}.out_proj.weight"],
            self.state[f"{name}.out_proj.bias"],
            training=False,
        )
        return found[:, 0]

    def part(self, x, norm, function):
        if self.norm_first:
            return x + function(self.norm(x, norm))
        return self.norm(x + function(x), norm)

    def feed_forward(self, x, layer):
        inside = gelu(linear(x, self.state[f"{layer}fc1.weight"], self.state[f"{layer}fc1.bias"]))
        return linear(inside, self.state[f"{layer}fc2.weight"], self.state[f"{layer}fc2.bias"])

    def embedded(self, ids, side):
        places = self.state[f"{side}.embed_positions.weight"][2 : 2 + len(ids)]
        return self.state[f"{side}.embed_tokens.weight"][ids] + places

    def encoder(self, ids):
        first = self.state["encoder.embed_lengths.weight"][:1]
        x = torch.cat([first, self.embedded(ids, "encoder")])
        for n in range(LAYERS):
            at = f"encoder.layers.{n}."
            norms = [f"{at}layer_norms.{i}" for i in (0, 1)]
            x = self.part(x, norms[0], lambda y, at=at: self.attend(y, y, f"{at}self_attn"))
            x = self.part(x, norms[1], lambda y, at=at: self.feed_forward(y, at))
        if self.norm_first:
            x = self.norm(x, "encoder.layer_norm")
        return x[1:], x[0] @ self.state["encoder.embed_lengths.weight"].T

    def decoder(self, ids, memory):
        x = self.embedded(ids, "decoder")
        for n in range(LAYERS):
            at = f"decoder.layers.{n}."
            x = self.part(
                x, f"{at}self_attn_layer_norm", lambda y, at=at: self.attend(y, y, f"{at}self_attn")
            )
            x = self.part(
                x,
                f"{at}encoder_attn_layer_norm",
                lambda y, at=at: self.attend(y, memory, f"{at}encoder_attn"),
            )
            x = self.part(x, f"{at}final_layer_norm", lambda y, at=at: self.feed_forward(y, at))
        if self.norm_first:
            x = self.norm(x, "decoder.layer_norm")
        return x @ self.state["decoder.embed_tokens.weight"].T


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_converted_checkpoint_scores_as_theirs(norm_first, tmp_path):
    state = random_state(norm_first)
    assert main(write_checkpoint(tmp_path, state, arguments(norm_first))) == 0
    run = load_run(tmp_path / "run")
    ours_of = {w: i for i, w in enumerate(run.codecs.target.tokens)}
    theirs_of = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *TARGET]
    theirs = Theirs(state, norm_first)

    source = encode([Example(("Hund", "lauft", "weg"), ())], run.codecs)
    with torch.no_grad():
        bound = run.model(collate(source).source)
        memory, lengths = theirs.encoder([6, 7, 3, 2])  # known, known, <unk>, </s>
        torch.testing.assert_close(bound.length_scores[0, 1:], lengths[1:])
        hidden = torch.tensor([[False, True, False, True]])
        text = ["the", "<mask>", "runs", "<mask>"]
        row = torch.tensor([[ours_of[w] for w in text]])
        logits = bound.logits(row, hidden, torch.tensor([0]))
        gold = theirs.decoder([theirs_of.index(w) for w in text], memory)[[1, 3]]
    for i, word in enumerate(theirs_of):
        torch.testing.assert_close(logits[:, ours_of[word]], gold[:, i], rtol=1e-4, atol=1e-5)
    kept = {w for w, i in ours_of.items() if bool(bound.allowed[i])}
    assert kept == {*TARGET, "</s>"}


@pytest.mark.slow
def test_it_decodes_as_any_run(tmp_path, capsys):
    assert main(write_checkpoint(tmp_path)) == 0
    (tmp_path / "input.txt").write_text("der Hund .\nHund lauft\n")
    capsys.readouterr()
    words = ["decode", str(tmp_path / "run"), "--input", str(tmp_path / "input.txt"), "--quiet"]
    assert main([*words, "--search", "mask-predict", "--candidates", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    signs = set("".join(TARGET))  # of words, which are written as text
    assert len(lines) == 2 and all(set(line.replace(" ", "")) <= signs for line in lines)
    assert main([*words, "--search", "greedy"]) == 2
    assert "mask-predict works only with conditional masked LMs" in capsys.readouterr().err


def refused(words, capsys) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_what_does_not_fit_is_named(tmp_path, capsys):
    other = arguments(False, arch="transformer_iwslt_de_en")
    assert "arch 'transformer_iwslt_de_en'" in refused(
        write_checkpoint(tmp_path, args=other), capsys
    )
    uneven = arguments(False, decoder_layers=3)
    assert "layers differ: [2, 3]" in refused(write_checkpoint(tmp_path, args=uneven), capsys)
    words = write_checkpoint(tmp_path)
    (tmp_path / "dict.en.txt").write_text("the 7\ndog 7\n")
    assert "10 decoder embeddings, but 7 tokens" in refused(words, capsys)
    (tmp_path / "dict.en.txt").write_text("the 7\ndog\n")
    assert "dict.en.txt, line 2: expected 'token count', found 'dog'" in refused(words, capsys)
    own = random_state(False) | {"decoder.embed_out": torch.zeros(10, WIDTH)}
    assert "an output layer of its own" in refused(write_checkpoint(tmp_path, own), capsys)
    assert "convert needs a checkpoint" in refused(["models", "convert"], capsys)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_no_code_of_a_checkpoint_is_run(tmp_path, capsys):
    words = write_checkpoint(tmp_path)
    torch.save({"model": Evil(), "args": arguments(False)}, tmp_path / "checkpoint.pt")
    assert main(words) == 2
    shown = capsys.readouterr()
    assert "is not a fairseq checkpoint" in shown.err and "executed" not in shown.out
