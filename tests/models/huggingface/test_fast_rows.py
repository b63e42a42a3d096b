"""The faster form of BERT, RoBERTa, ELECTRA and ESM against the models themselves."""

import pytest
import torch
import transformers

from softbeam.models.huggingface import fast_rows, packed
from softbeam.models.huggingface.fast_rows import FastRows
from softbeam.models.huggingface.masked import HfMaskedLM
from support.tiny_bert import ROWS, SIZES, letter_tokenizer, small

FAST = ("bert", "roberta", "electra", "esm")
TEXTS = ["AC[MASK]DE[MASK]G", "[MASK]AC", "ACDEF", "ACD[MASK]FGH", "[MASK]CDEFGH", "KL[MASK]"]


@pytest.fixture(scope="module", params=FAST)
def double(request) -> HfMaskedLM:
    return HfMaskedLM(small(request.param).double(), letter_tokenizer())


def plainly(mlm: HfMaskedLM, ids: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """The model's own scores of masked cells, a row at a time and without padding."""
    rows = []
    for row, gaps in zip(ids, masked, strict=True):
        time = int(((row != mlm.pad_id) | gaps).nonzero().max()) + 1
        rows.append(mlm.model(input_ids=row[None, :time]).logits[0][gaps[:time]])
    return torch.cat(rows)


def cells(mlm: HfMaskedLM, ids: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    return mlm.logits(ids, masked, torch.zeros(len(ids), dtype=torch.long))


def test_scores_are_those_of_the_model(double):
    assert double.fast
    prompts = double.encode(TEXTS)
    expected = plainly(double, prompts.tokens, prompts.hidden)
    actual = cells(double, prompts.tokens, prompts.hidden)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert actual.std() > 0.1


def test_batches_and_their_order_change_nothing(double, monkeypatch):
    prompts = double.encode(TEXTS)
    together = cells(double, prompts.tokens, prompts.hidden)
    backwards = cells(double, prompts.tokens.flip(0), prompts.hidden.flip(0))
    sizes = prompts.hidden.sum(-1).tolist()
    swapped = torch.cat([*reversed(backwards.split(sizes[::-1]))])
    torch.testing.assert_close(swapped, together, rtol=0, atol=1e-12)
    monkeypatch.setattr(fast_rows, "CELLS", 1)  # a row at a time
    torch.testing.assert_close(
        cells(double, prompts.tokens, prompts.hidden), together, rtol=0, atol=1e-12
    )


def test_rows_without_a_masked_cell_have_no_scores(double):
    prompts = double.encode(["ACD", "KL"])
    assert cells(double, prompts.tokens, prompts.hidden).shape == (0, ROWS)


def test_the_first_layer_computes_each_token_in_its_place_once():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    tokens = mlm.encode(["ACDEFGHI"] * 8).tokens
    masked = torch.eye(8, 10, dtype=torch.bool).roll(1, 1)
    fast, seen = FastRows(mlm.model), []

    def projections(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return first(x)

    first = fast.layers[0].projections
    fast.layers[0] = fast.layers[0]._replace(projections=projections)
    fast(tokens.masked_fill(masked, mlm.mask_id), masked, torch.full((8,), 10))
    assert seen == [10 + 8], "ten tokens, and a mask in eight places"


@pytest.mark.parametrize("family", FAST)
def test_a_packed_output_layer_gives_the_same_scores(family, monkeypatch):
    monkeypatch.setattr(packed, "LARGE", 1)
    mlm = HfMaskedLM(small(family), letter_tokenizer())
    assert mlm.fast and FastRows(mlm.model).output.weight.is_mkldnn
    prompts = mlm.encode(TEXTS)
    expected = plainly(mlm, prompts.tokens, prompts.hidden)
    torch.testing.assert_close(
        cells(mlm, prompts.tokens, prompts.hidden), expected, rtol=0, atol=1e-5
    )


def test_a_build_that_cannot_pack_does_without(monkeypatch):
    def refuse(*args: object) -> None:
        raise RuntimeError("not built with oneDNN")

    monkeypatch.setattr(packed, "LARGE", 1)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    assert mlm.fast and not FastRows(mlm.model).output.weight.is_mkldnn


def test_changed_weights_are_noticed():
    mlm = HfMaskedLM(small("bert"), letter_tokenizer())
    prompts = mlm.encode(TEXTS)
    before = cells(mlm, prompts.tokens, prompts.hidden)
    mlm.model.bert.encoder.layer[0].attention.self.query.weight.mul_(2)  # in place
    query = mlm.model.bert.encoder.layer[1].attention.self.query
    query.weight = torch.nn.Parameter(query.weight * 2, requires_grad=False)  # another tensor
    after = cells(mlm, prompts.tokens, prompts.hidden)
    assert (after - before).abs().max() > 1e-3
    expected = plainly(mlm, prompts.tokens, prompts.hidden)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def test_a_model_with_parts_of_another_kind_is_run_as_it_is():
    model = small("bert")
    query = model.bert.encoder.layer[0].attention.self
    query.query.__class__ = Doubled  # as adapters replace a layer by one that computes more
    mlm = HfMaskedLM(model, letter_tokenizer())
    assert not mlm.fast and mlm.separable
    prompts = mlm.encode(TEXTS)
    expected = plainly(mlm, prompts.tokens, prompts.hidden)
    torch.testing.assert_close(
        cells(mlm, prompts.tokens, prompts.hidden), expected, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("family", ["distilbert", "albert", "fnet"])
def test_other_architectures_have_no_fast_form(family):
    assert not HfMaskedLM(small(family), letter_tokenizer()).fast


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_has_no_fast_form():
    config = transformers.BertConfig(**SIZES, is_decoder=True)
    with pytest.raises(KeyError):
        FastRows(transformers.BertForMaskedLM(config))
