"""Hugging Face masked LMs of several families, small and with random weights."""

import re
from itertools import product

import pytest
import torch
import transformers
from torch.nn.functional import pad

from softbeam.errors import UserError
from softbeam.models.huggingface.alphabets import word_parts
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.terms import PhraseCount
from softbeam.sampling.texts.api import sample
from softbeam.sampling.texts.positions import named_tokens
from softbeam.types import MaskedLM
from support.tiny_bert import FAMILIES, LETTERS, SIZES, UNPADDABLE, VOCAB, letter_tokenizer, small


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> tuple[str, HfMaskedLM]:
    return request.param, HfMaskedLM(small(request.param), letter_tokenizer())


def plain(mlm: HfMaskedLM, tokens: torch.Tensor) -> torch.Tensor:
    """All logits of one row without padding, by the model alone."""
    return mlm.model(input_ids=tokens[None]).logits[0]


def nobody(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(rows), dtype=torch.long)


def test_masked_cells_are_those_of_the_plain_forward(family):
    name, mlm = family
    prompts = mlm.encode(["AC[MASK]DE[MASK]G", "[MASK]AC", "ACDEF"])
    cells = mlm.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    rows = [
        plain(mlm, row[row != mlm.pad_id])[gaps[row != mlm.pad_id]]
        for row, gaps in zip(prompts.tokens, prompts.hidden, strict=True)
    ]
    torch.testing.assert_close(cells, torch.cat(rows), rtol=0, atol=1e-5)
    assert isinstance(mlm, MaskedLM)
    assert mlm.separable, "the head of each of these reads one position at a time"
    assert mlm.paddable == (name not in UNPADDABLE)
    assert cells.std() > 0.1 and not cells.requires_grad


def test_padding_changes_nothing(family):
    _, mlm = family
    prompts = mlm.encode(["AC[MASK]DE", "A[MASK]"])
    cells = mlm.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    wide = mlm.logits(
        pad(prompts.tokens, (0, 3), value=mlm.pad_id),
        pad(prompts.hidden, (0, 3)),
        nobody(prompts.tokens),
    )
    torch.testing.assert_close(wide, cells, rtol=0, atol=1e-5)
    swapped = mlm.logits(prompts.tokens.flip(0), prompts.hidden.flip(0), nobody(prompts.tokens))
    torch.testing.assert_close(swapped.flip(0), cells, rtol=0, atol=1e-5)


def test_energies_are_pseudo_log_likelihoods_of_a_plain_loop(family):
    _, mlm = family
    texts = ["ACDEFG", "KL"]
    tokens = mlm.encode(texts).tokens
    for row, text in zip(tokens, texts, strict=True):
        row = row[row != mlm.pad_id]
        raw = local = 0.0
        for t in range(1, 1 + len(text)):
            hidden = row.clone()
            hidden[t] = mlm.mask_id
            scores = plain(mlm, hidden)[t].double()
            raw -= scores[row[t]].item()
            local -= (scores[row[t]] - scores.exp().sum().log()).item()
        at = texts.index(text)
        for energy, expected in ((RawEnergy(mlm), raw), (LocalEnergy(mlm), local)):
            torch.testing.assert_close(energy(tokens)[at].item(), expected, rtol=0, atol=1e-4)


def test_specials_are_never_proposed(family):
    _, mlm = family
    assert [VOCAB[i] for i in mlm.allowed.nonzero()[:, 0]] == LETTERS
    prompts = mlm.encode(["ACDEFGHI"] * 8)
    propose = MaskedConditionals(mlm, temperature=5.0)
    rng = torch.Generator().manual_seed(0)
    new = propose(prompts.tokens, ~prompts.frozen, rng)
    assert mlm.allowed[new.tokens[~prompts.frozen]].all()
    assert (new.tokens == prompts.tokens)[prompts.frozen].all()
    kernel = metropolis_hastings(LocalEnergy(mlm), propose)
    state, _ = kernel.step(kernel.init(prompts.tokens), ~prompts.frozen, rng)
    torch.testing.assert_close(state.energy, LocalEnergy(mlm)(state.tokens), rtol=0, atol=1e-4)


# A head that looks at other positions cannot be given the cells alone


class Mixing(transformers.BertForMaskedLM):
    """Its scores at a position depend on all positions."""

    def forward(self, input_ids=None, attention_mask=None, **options):
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        found.logits = found.logits + found.logits[:, 1:2]
        return found


class Shaped(transformers.BertForMaskedLM):
    """It fails unless there is a score for each position of its input."""

    def forward(self, input_ids=None, attention_mask=None, **options):
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        found.logits = found.logits.reshape(*input_ids.shape, -1)[:, : input_ids.shape[1]]
        if found.logits.shape[-1] != self.config.vocab_size:
            raise ValueError("a score for each position, please")
        return found


@pytest.mark.parametrize("kind", [Mixing, Shaped])
def test_a_head_that_needs_whole_rows_gets_them(kind):
    torch.manual_seed(0)
    model = kind(transformers.BertConfig(**SIZES))
    mlm = HfMaskedLM(model, letter_tokenizer())
    assert not mlm.separable
    prompts = mlm.encode(["AC[MASK]DE", "A[MASK]"])
    cells = mlm.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    rows = [plain(mlm, row[row != mlm.pad_id]) for row in prompts.tokens]
    expected = torch.stack([rows[0][3], rows[1][2]])
    torch.testing.assert_close(cells, expected, rtol=0, atol=1e-5)


def test_the_output_layer_sees_the_masked_cells_alone():
    mlm = HfMaskedLM(small("distilbert"), letter_tokenizer())
    seen = []
    head = mlm.model.vocab_projector
    head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[:-1]))
    prompts = mlm.encode(["AC[MASK]DE[MASK]G", "[MASK]AC"])
    mlm.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    assert seen == [(1, 3)]
    assert not mlm.model.base_model._forward_hooks, "the model is as it was"


def test_precisions():
    double = HfMaskedLM(small("bert").double(), letter_tokenizer())
    half = HfMaskedLM(small("bert").bfloat16(), letter_tokenizer())
    assert half.separable and half.paddable
    prompts = double.encode(["AC[MASK]DE"])
    exact = double.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    rough = half.logits(prompts.tokens, prompts.hidden, nobody(prompts.tokens))
    assert exact.dtype == torch.float64 and rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), exact, rtol=0.1, atol=0.1)


# Texts


def test_texts_come_back_and_gaps_have_two_spellings():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    prompts = mlm.encode(["AC[MASK]DE<mask>", "FG"])
    assert prompts.tokens[0].tolist() == [2, 7, 8, 4, 9, 10, 4, 3]
    assert prompts.hidden.nonzero().tolist() == [[0, 3], [0, 6]]
    assert prompts.frozen.nonzero().tolist() == [
        [0, 0],
        [0, 7],
        *([1, t] for t in (0, *range(3, 8))),
    ]
    assert mlm.decode(prompts.tokens) == ["AC[MASK]DE[MASK]", "FG"]
    assert mlm.encode("FG").tokens.tolist() == [[2, 11, 12, 3]]


def test_words_and_their_pieces_are_decoded_by_the_tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "the", "dog"]
    tokenizer = transformers.BertTokenizer(vocab={w: i for i, w in enumerate(words)})
    mlm = HfMaskedLM(small("bert"), tokenizer)
    prompts = mlm.encode("the dog [MASK] playing")
    assert prompts.tokens.tolist() == [[2, 7, 8, 4, 5, 6, 3]]
    assert mlm.decode(prompts.tokens) == ["the dog [MASK] playing"]


def test_what_cannot_be_read_is_refused():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    with pytest.raises(UserError, match=r"no token for a part of 'ACZ'"):
        mlm.encode(["AC", "ACZ"])
    with pytest.raises(UserError, match="41 tokens; the model's limit is 40"):
        mlm.encode("A" * 39)
    roberta = HfMaskedLM(small("roberta"), letter_tokenizer())
    assert roberta.longest == 39, "positions start after padding's"
    roberta.logits(full := roberta.encode("A" * 37).tokens, full == 7, nobody(full))
    with pytest.raises(UserError, match="40 tokens; the model's limit is 39"):
        roberta.encode("A" * 38)
    with pytest.raises(UserError, match="has no mask token"):
        HfMaskedLM(small("bert"), letter_tokenizer(mask_token=None))


# Folders


def test_a_folder_gives_the_same_model(tmp_path, capfd):
    mlm = HfMaskedLM(small("electra"), letter_tokenizer())
    mlm.model.save_pretrained(tmp_path)
    mlm.tokenizer.save_pretrained(tmp_path)
    capfd.readouterr()
    again = HfMaskedLM.load(tmp_path)
    assert capfd.readouterr().err == ""
    tokens = mlm.encode(["ACDE", "KL"]).tokens
    torch.testing.assert_close(again.encode(["ACDE", "KL"]).tokens, tokens)
    torch.testing.assert_close(LocalEnergy(again)(tokens), LocalEnergy(mlm)(tokens))
    assert HfMaskedLM.load(tmp_path, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_a_checkpoint_without_an_output_layer_is_refused(tmp_path):
    small("bert").base_model.save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is not a masked LM: its checkpoint lacks cls.predictions"):
        HfMaskedLM.load(tmp_path)


def test_a_missing_or_foreign_folder_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="neither a folder nor a name on the hub"):
        HfMaskedLM.load(tmp_path / "nothing")
    letter_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded as a masked LM") as caught:
        HfMaskedLM.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "fnet"])
def test_in_half_precision_a_text_scores_the_same_beside_a_longer_one(family):
    """The trial of padding has power in bfloat16 too: rounding there is 0.8 % of a logit."""
    model = small(family).bfloat16()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mlm = HfMaskedLM(model, letter_tokenizer())
    assert mlm.paddable == (family not in UNPADDABLE)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name]), name
    texts = ["ACD", "ACDEFGHIKLACDEFGH"]
    both, alone = mlm.encode(texts), mlm.encode(texts[0])
    masked = torch.zeros_like(both.tokens, dtype=torch.bool)
    masked[0, 2] = True
    beside = mlm.logits(both.tokens, masked, torch.tensor([0, 1]))
    single = mlm.logits(alone.tokens, masked[:1, : alone.tokens.shape[1]], torch.tensor([0]))
    torch.testing.assert_close(beside, single, rtol=0, atol=0.05 * float(single.abs().max()))


def test_a_model_that_does_not_run_in_half_precision_is_refused():
    with pytest.raises(UserError, match="the model does not run in torch.bfloat16"):
        HfMaskedLM(small("fnet").bfloat16(), letter_tokenizer())


# Words and alphabets


class Named:
    """A tokenizer that has names of tokens alone."""

    def __init__(self, names: list[str]):
        self.names = names

    def convert_ids_to_tokens(self, ids):
        return [self.names[i] for i in ids]


WORDPIECE = ["[CLS]", "cat", "con", "##cat", "##ch", ".", "a"]
BYTE_LEVEL = ["<s>", "cat", "con", "Ġcat", "ch", ".", "Ġa"]


def as_text(names: list[str]) -> str:
    """How the tokenizers write tokens: WordPiece puts spaces, byte-level tokens have their own."""
    if names[0] == "[CLS]":
        return " ".join(names[1:]).replace(" ##", "").replace(".", " . ")
    return "".join(names[1:]).replace("Ġ", " ")


@pytest.mark.parametrize("names", [WORDPIECE, BYTE_LEVEL], ids=["wordpiece", "byte-level"])
def test_a_lexicon_counts_whole_words(names):
    """As a regular expression finds them in the text."""
    allowed = torch.tensor([False] + [True] * 6)
    count = PhraseCount([[1], [3]], word_parts(Named(names), allowed))
    rows = torch.tensor([[0, *row] for row in product(range(1, 7), repeat=4)])
    if names is WORDPIECE:
        count = PhraseCount([[1]], count.words)
        rows = rows[(rows[:, 1] != 3) & (rows[:, 1] != 4)]  # no text begins inside of a word
        after_mark = (rows[:, :-1] == 5) & ((rows[:, 1:] == 3) | (rows[:, 1:] == 4))
        rows = rows[~after_mark.any(1)]  # nor does a word go on after a full stop
    texts = [as_text([names[i] for i in row]) for row in rows.tolist()]
    expected = [len(re.findall(r"\bcat\b", text)) for text in texts]
    assert count(rows).tolist() == expected
    assert 0 < sum(expected) < sum("cat" in text for text in texts)


def test_letters_of_a_sequence_are_no_words():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    assert not mlm.word_parts.joined.any(), "a motif may stand anywhere"


def protein_tokenizer(folder, tokens: str) -> transformers.EsmTokenizer:
    frame = ["<cls>", "<pad>", "<eos>", "<unk>"]
    (folder / "vocab.txt").write_text("\n".join([*frame, *tokens, "<null_1>", "<mask>"]))
    return transformers.EsmTokenizer(str(folder / "vocab.txt"))


@pytest.mark.slow
def test_protein_models_sample_the_twenty_amino_acids(tmp_path):
    tokenizer = protein_tokenizer(tmp_path, "LAGVSERTIDPKQNFYMHWCXBUZO.-")
    config = {"vocab_size": len(tokenizer), "pad_token_id": 1, "mask_token_id": 32}
    model = transformers.AutoModelForMaskedLM.from_config(
        transformers.EsmConfig(**{**SIZES, **config}, position_embedding_type="rotary")
    )
    mlm = HfMaskedLM(model, tokenizer)
    names = tokenizer.convert_ids_to_tokens(mlm.alphabet.nonzero()[:, 0].tolist())
    assert sorted(names) == list("ACDEFGHIKLMNPQRSTVWY")
    assert mlm.allowed.sum() == 27, "a text may hold the others"
    assert mlm.decode(mlm.encode("AXC-D").tokens) == ["AXC-D"]
    wider = named_tokens("--allowed", mlm, ("A", "X"))
    assert tokenizer.convert_ids_to_tokens(wider.nonzero()[:, 0].tolist()) == ["A", "X"]
    drawn = sample(mlm, "A" + "[MASK]" * 8, chains=8, sweeps=6, burn_in=1, start="random")
    assert {letter for text in drawn.texts[0] for letter in text} <= set("ACDEFGHIKLMNPQRSTVWY")


def test_other_models_sample_all_of_their_tokens():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    assert torch.equal(mlm.alphabet, mlm.allowed)
