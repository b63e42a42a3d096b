"""Hugging Face encoders under a tagger: pooling against plain loops, windows, frozen weights."""

import shutil

import pytest
import torch
import transformers
from torch.testing import assert_close

from softbeam.data.batches import Encoded, collate
from softbeam.data.encoding import Codecs
from softbeam.data.vocabulary import Vocabulary, load_codec, save_codec
from softbeam.errors import UserError
from softbeam.models.huggingface.words import read_pieces, windows
from softbeam.models.specs import HfEncoder
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.schedules import Moment
from softbeam.training.config import Stage
from softbeam.training.loop import Learner
from softbeam.training.optimization import make_optimizer, set_lr
from support import conformance
from support.tiny_encoder import (
    LABELS,
    SIZES,
    byte_pairs,
    change_config,
    tagger,
    word_pieces,
    write_encoder,
)

TEXTS = ["the dog runs", "a cat", "unknown dogs sleeping .", "zebra the runs ü"]
LONG = "the dogs sleeping unknown a cat runs . zebra the cat sleeps a dog runs".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def encoded(codecs: Codecs, texts: list[list[str]]) -> list[Encoded]:
    return [Encoded(codecs.source.encode(t), [len(w) % 3 for w in t]) for t in texts]


WORDS = [text.split() for text in TEXTS]


def states(folder, pieces: list[list[int]], pooling: str) -> torch.Tensor:
    """States of words by the model of the folder itself, one sentence at a time, in loops."""
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    ids = torch.tensor([[2, *(piece for word in pieces for piece in word), 3]])
    hidden = model(input_ids=ids).last_hidden_state[0]
    column, rows = 1, []
    for word in pieces:
        parts = [hidden[column + i] for i in range(len(word))]
        rows.append(parts[0] if pooling == "first" else sum(parts) / len(parts))
        column += len(word)
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_states_of_words_equal_a_plain_loop_over_the_model_of_the_folder(folder, pooling, frozen):
    model, codecs = tagger(folder, pooling=pooling, frozen=frozen, lstm_layers=0)
    tokenizer = word_pieces()
    memory = model(collate(encoded(codecs, WORDS)).source).encoded.memory
    for row, words in enumerate(WORDS):
        pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        assert_close(memory[row, : len(words)], states(folder, pieces, pooling))
        assert not memory[row, len(words) :].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"frozen": True},
        {"pooling": "mean"},
        {"lstm_layers": 0, "attention": "bahdanau"},
        {"frozen": True, "lstm_layers": 2},
    ],
)
def test_a_tagger_on_an_encoder_conforms(folder, options):
    model, codecs = tagger(folder, **options)
    data = encoded(codecs, [*WORDS, LONG])
    batch = conformance.padding_never_changes_a_number(model, data, 2)
    conformance.the_order_of_the_batch_does_not_matter(model, batch)
    same = collate(data[:1] * 2)
    conformance.steps_equal_all_at_once(model(same.source), same.target)


def test_a_long_sentence_is_read_in_windows(folder):
    model, codecs = tagger(folder, lstm_layers=0)
    pieces = codecs.source.encode(LONG)
    sizes = list(map(len, pieces))
    assert sum(sizes) > model.encoder.limit == 22
    memory = model(collate([Encoded(pieces, [0] * len(LONG))]).source).encoded.memory[0]
    wanted = []
    for window in windows(sizes, 22):
        words = [[p - 1 for p in pieces[i]] for i in window.words]
        rows = states(folder, words, "first")
        wanted += [rows[i - window.words.start] for i in window.used]
    assert_close(memory, torch.stack(wanted))


@pytest.mark.parametrize("sizes", [[1] * 30, [3, 1, 2] * 9, [9, 1, 1, 9, 1], [12, 12], [1], []])
def test_windows_use_every_word_once_and_where_it_has_most_context(sizes):
    spans = windows(sizes, 9)
    assert [i for span in spans for i in span.used] == list(range(len(sizes)))
    for span in spans:
        inside = [sizes[i] for i in span.words]
        assert sum(inside) <= 9 or len(inside) == 1
        assert set(span.used) <= set(span.words)
    if sizes == [1] * 30:
        for number in range(30):
            places = [s.words for s in spans if number in s.words]
            # beyond the sentence's own ends no window has context
            sides = [
                min(number - w.start if w.start else 30, w.stop - 1 - number if w.stop < 30 else 30)
                for w in places
            ]
            used = next(s.words for s in spans if number in s.used)
            assert sides[places.index(used)] >= max(sides) - 1


def test_a_sentence_within_the_limit_is_one_window():
    assert [tuple(map(list, w)) for w in windows([2, 3, 4], 9)] == [([0, 1, 2], [0, 1, 2])]


def step(model, codecs, stage: Stage) -> dict[str, torch.Tensor]:
    """The changes of the weights by one update."""
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    learner = Learner(model.train(), CrossEntropy())
    optimizer = make_optimizer(learner, stage)
    set_lr(optimizer, stage.lr)
    batch = collate(encoded(codecs, WORDS))
    learner(batch, Moment(), torch.Generator()).total.backward()
    optimizer.step()
    return {n: (w - before[n]).abs().max() for n, w in model.named_parameters()}


def test_a_frozen_encoder_does_not_move_and_the_rest_does(folder):
    model, codecs = tagger(folder, frozen=True)
    for name, change in step(model, codecs, Stage(lr=0.01)).items():
        assert (change == 0) == name.startswith("encoder.model."), name


def test_a_fine_tuned_encoder_moves_with_its_own_learning_rate(folder):
    model, codecs = tagger(folder, lr=1e-4)
    changes = step(model, codecs, Stage(lr=0.01))
    inside = {n: c for n, c in changes.items() if n.startswith("encoder.model.")}
    assert all(c > 0 for n, c in inside.items() if "position" not in n)
    assert 0.9e-4 < max(inside.values()) < 1.1e-4  # Adam's first step is the learning rate
    rest = [change for name, change in changes.items() if name not in inside]
    assert 0.9e-2 < max(rest) < 1.1e-2 and min(rest) > 0


def test_a_frozen_encoder_reads_a_sentence_once(folder, monkeypatch):
    model, codecs = tagger(folder, frozen=True)
    calls = []
    run = model.encoder.run
    monkeypatch.setattr(model.encoder, "run", lambda *given: calls.append(1) or run(*given))
    source = collate(encoded(codecs, [*WORDS, WORDS[0]])).source
    with torch.inference_mode():
        model(source)
    model.train()
    loss = CrossEntropy()(
        model, collate(encoded(codecs, WORDS)), now=Moment(), rng=torch.Generator()
    )
    loss.total.backward()  # also after the states were first computed for decoding
    assert len(calls) == len(WORDS)
    model.encoder.room = 0
    model(collate(encoded(codecs, [["sleeping"]])).source)
    model(collate(encoded(codecs, [["sleeping"]])).source)
    assert len(calls) == len(WORDS) + 2  # no room: read again


def test_a_vocabulary_of_pieces_survives_its_file(folder, tmp_path):
    pieces = read_pieces(str(folder))
    save_codec(pieces, tmp_path / "source.json")
    loaded = load_codec(tmp_path / "source.json")
    assert loaded.encode(LONG) == pieces.encode(LONG)
    assert loaded.frame == ([2], [3]) and loaded.longest == 24
    spec = HfEncoder(hidden=5)  # no folder is needed
    model = spec.build_for(Codecs(loaded, LABELS))
    assert model.encoder.model.config.hidden_size == 16


def test_words_are_read_with_a_space_before_them(tmp_path):
    pieces = read_pieces(str(write_encoder(tmp_path, "Roberta", byte_pairs())))
    tokens = [pieces.tokenizer.id_to_token(i - 1) for i in pieces.encode(["A"])[0]]
    assert tokens == ["Ġ", "A"]
    assert pieces.frame == ([], []) and pieces.longest == 23  # RoBERTa's positions begin after 0


def test_words_without_pieces_and_very_long_words(folder):
    pieces = read_pieces(str(folder))
    empty, long = pieces.encode(["\u200d", "abc" * 20])
    assert empty == (2,)
    assert len(long) == 16


DISTILBERT = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
SMALL = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 1, "num_heads": 2}
FAMILIES = {  # the last reads padding, and has no mask
    "Roberta": {},
    "Electra": {},
    "MPNet": {},
    "DistilBert": {"vocab_size": 70, "max_position_embeddings": 24} | DISTILBERT,
    "T5": {"vocab_size": 70, "decoder_start_token_id": 0} | SMALL,
    "FNet": {name: size for name, size in SIZES.items() if "heads" not in name},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_other_families_load_and_a_sentence_does_not_depend_on_the_batch(tmp_path, kind):
    write_encoder(tmp_path, kind, sizes=FAMILIES[kind] or SIZES)
    model, codecs = tagger(tmp_path, pooling="mean")
    data = encoded(codecs, WORDS)
    together = model(collate(data).source).encoded.memory
    for row, example in enumerate(data):
        alone = model(collate([example]).source).encoded.memory[0]
        assert_close(together[row, : len(alone)], alone)


def test_what_cannot_be_an_encoder_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"--model\.name DIR"):
        read_pieces("")
    with pytest.raises(UserError, match="is not a folder, and no model of that name"):
        read_pieces(str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"--model\.name .*: cannot be loaded"):
        read_pieces(str(tmp_path))
    with pytest.raises(UserError, match="vocabulary is not that of an encoder"):
        HfEncoder().build_for(Codecs(Vocabulary([], ("<pad>", "<unk>")), LABELS))


def test_code_of_the_folder_is_never_run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "own")
    (tmp_path / "own" / "evil.py").write_text("raise SystemExit('ran')\n")
    change_config(
        tmp_path / "own",
        model_type="evil",
        auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"},
    )
    with pytest.raises(UserError, match="cannot be loaded"):
        read_pieces(str(tmp_path / "own"))


def test_weights_are_read_from_safetensors_alone_and_must_be_whole(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    weights = load_file(other / "model.safetensors")
    del weights["encoder.layer.0.output.dense.weight"]
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack .*output\.dense\.weight"):
        tagger(other)
    torch.save(load_file(folder / "model.safetensors"), other / "pytorch_model.bin")
    (other / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        tagger(other)
