"""Words read by their characters: oracles of the convolution, and taggers that use it."""

import pytest
import torch
from torch.testing import assert_close

from softbeam.data.batches import Encoded, collate
from softbeam.data.vocabulary import CHARACTERS, SOURCE, Spelled, Vocabulary
from softbeam.errors import UserError
from softbeam.models.characters import CharacterCnn
from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.schedules import Moment
from softbeam.tensors import distinct_rows
from support import conformance

CODEC = Spelled(Vocabulary(["the", "cat"], SOURCE), Vocabulary("achtes", CHARACTERS))
TEXTS = ["the cat sat", "a hat", "the thatch sat at the cat", "x the chest"]


def network(width: int = 7) -> CharacterCnn:
    torch.manual_seed(0)
    net = CharacterCnn(10, width).double()
    torch.nn.init.normal_(net.bias)
    return net


def model(**options) -> Seq2Seq:
    torch.manual_seed(0)
    options = {"embedding": 5, "hidden": 6, "characters": 7} | options
    return Seq2Seq(len(CODEC), 5, alphabet=len(CODEC.characters), **options).double().eval()


def encoded(texts: list[str] = TEXTS) -> list[Encoded]:
    words = [text.split() for text in texts]
    return [Encoded(CODEC.encode(text), [len(word) % 5 for word in text]) for text in words]


def plain(net: CharacterCnn, word: list[int]) -> list[float]:
    """Every filter at every character of one word, in loops over plain numbers."""
    letters = [net.embed.weight[c].tolist() for c in word]
    values = []
    filters = net.filters.tolist()
    for number, bias in enumerate(net.bias.tolist()):
        largest = 0.0
        for start in range(len(letters)):
            total = bias
            for offset, letter in enumerate(letters[start : start + len(filters)]):
                total += sum(filters[offset][i][number] * x for i, x in enumerate(letter))
            largest = max(largest, total)
        values.append(largest)
    return values


def test_filters_equal_a_plain_loop_over_each_word():
    words = [[1, 4, 5, 2], [1, 2], [1, 9, 9, 9, 9, 9, 2], [3]]
    table = torch.tensor([word + [0] * (8 - len(word)) for word in words])
    net = network()
    assert_close(net.words(table), torch.tensor([plain(net, w) for w in words]).double())


def test_a_word_has_the_same_numbers_in_every_batch():
    net = network()
    words = torch.tensor([[1, 4, 5, 2, 0, 0], [1, 7, 2, 0, 0, 0], [1, 4, 5, 2, 0, 0]])
    alone = net(words[:1, None, :4])
    both = net(words[None])
    assert_close(both[0, 0], alone[0, 0])
    assert_close(both[0, 0], both[0, 2], atol=0.0, rtol=0.0)
    assert (both[0, 0] != both[0, 1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_gradients_equal_differences(width):
    net = network(width)
    weights = dict(net.named_parameters())
    words = torch.tensor([[[1, 4, 5, 2], [1, 7, 2, 0], [1, 4, 5, 2]]])

    def run(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(weights, values, strict=True))
        return torch.func.functional_call(net, given, (words,))

    inputs = tuple(w.detach().clone().requires_grad_() for w in weights.values())
    assert torch.autograd.gradcheck(run, inputs)


def test_distinct_rows_are_distinct_and_give_the_table_back():
    rows = torch.tensor([[1, 2], [3, 4], [1, 2], [0, 0], [3, 4]])
    distinct, place = distinct_rows(rows)
    assert sorted(map(tuple, distinct.tolist())) == [(0, 0), (1, 2), (3, 4)]
    assert distinct[place].equal(rows)
    empty, nowhere = distinct_rows(rows[:0])
    assert len(empty) == len(nowhere) == 0


def test_rows_with_the_same_hash_stay_apart(monkeypatch):
    monkeypatch.setattr("softbeam.tensors.HASH_BASE", 1)  # the hash is the sum of the row
    rows = torch.tensor([[1, 2], [2, 1], [1, 2]])
    distinct, place = distinct_rows(rows)
    assert len(distinct) == 2 and distinct[place].equal(rows)


def test_words_become_their_number_and_the_numbers_of_their_characters():
    known, unknown = CODEC.encode(["cat", "chat!"])
    start, end, other = (CODEC.characters.id(mark) for mark in ("<s>", "</s>", "<unk>"))
    c, h, a, t = (CODEC.characters.index[letter] for letter in "chat")
    assert known == (CODEC.words.index["cat"], start, c, a, t, end)
    assert unknown == (CODEC.id("<unk>"), start, c, h, a, t, other, end)


def test_the_middle_of_a_very_long_word_is_left_out():
    word = CODEC.encode(["ca" + "t" * 500 + "hs"])[0]
    letters = [CODEC.characters.tokens[i] for i in word[2:-1]]
    assert letters == ["c", "a", *["t"] * 36, "h", "s"]


def test_unknown_words_differ_by_their_characters():
    target = torch.tensor([[1]])
    one, two = (collate([Encoded(CODEC.encode([w]), [1])]).source for w in ("hatch", "chest"))
    assert one[0, 0, 0] == two[0, 0, 0] == CODEC.id("<unk>")
    assert (model()(one).forced(target) != model()(two).forced(target)).any()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"encoder": "uni"}, {"attention": "bahdanau"}])
def test_a_tagger_that_reads_characters_conforms(options):
    tagger, data = model(**options), encoded()
    batch = conformance.padding_never_changes_a_number(tagger, data, 2)
    conformance.the_order_of_the_batch_does_not_matter(tagger, batch)
    rows = collate([example for example in data if len(example.source) == 3])
    conformance.steps_equal_all_at_once(tagger(rows.source), rows.target)


def test_gradients_reach_every_parameter():
    tagger = model()
    CrossEntropy()(tagger, collate(encoded()), now=Moment(), rng=torch.Generator()).total.backward()
    for name, parameter in tagger.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_batch_of_no_sentence_has_a_loss_of_zero():
    empty = collate([])
    loss = CrossEntropy()(model(), empty, now=Moment(), rng=torch.Generator())
    assert loss.total.item() == 0 and loss.size == 0


def test_sources_of_another_vocabulary_are_refused_and_characters_may_go_unread():
    batch = collate(encoded())
    with pytest.raises(UserError, match="but the vocabulary has none"):
        model()(batch.source[:, :, 0])
    plain_tagger = Seq2Seq(len(CODEC), 5, embedding=5, hidden=6).eval()
    scores = [plain_tagger(s).forced(batch.target) for s in (batch.source, batch.source[:, :, 0])]
    assert_close(*scores)


def test_the_size_of_the_alphabet_is_needed():
    with pytest.raises(ValueError, match="alphabet"):
        Seq2Seq(9, 5, characters=7)
