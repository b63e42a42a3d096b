"""The pipeline `joint-fill-mask`: 8,000 fillings of a real model by plain loops, words, options."""

import itertools
import math

import pytest
import torch
import transformers

import softbeam
from softbeam.errors import UserError
from support.tiny_bert import piece_mlm

TEXT = "Q[MASK][MASK][MASK]"
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture(scope="module", autouse=True)
def registered():
    tasks = transformers.pipelines.PIPELINE_REGISTRY.supported_tasks
    assert softbeam.hf and "joint-fill-mask" not in tasks, "importing softbeam registers nothing"
    softbeam.hf.register_pipelines()
    softbeam.hf.register_pipelines()  # a second time is no harm
    yield
    del tasks["joint-fill-mask"]


@pytest.fixture(scope="module")
def antibodies(real):
    mlm = real("sapiens-vh")
    return transformers.pipeline("joint-fill-mask", model=mlm.model, tokenizer=mlm.tokenizer)


@pytest.fixture(scope="module")
def pieces():
    mlm = piece_mlm()
    return transformers.pipeline("joint-fill-mask", model=mlm.model, tokenizer=mlm.tokenizer)


def enumerated(model, tokenizer) -> dict[str, float]:
    """exp(-E) of all 8,000 sequences; E sums -log p of each letter given all others."""
    texts = ["Q" + "".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    ids = tokenizer.convert_tokens_to_ids(list("Q" + LETTERS))
    number = dict(zip("Q" + LETTERS, ids, strict=True))
    frame = tokenizer("Q")["input_ids"]  # a mark, the letter, a mark
    contexts = sorted({text[:i] + "?" + text[i + 1 :] for text in texts for i in range(4)})
    number["?"] = tokenizer.mask_token_id
    rows = torch.tensor([[frame[0], *(number[c] for c in row), frame[2]] for row in contexts])
    with torch.no_grad():
        tables = [model(input_ids=part).logits.double().log_softmax(-1) for part in rows.split(500)]
    hidden = zip(contexts, torch.cat(tables), strict=True)
    log_p = {name: table[1 + name.index("?")].tolist() for name, table in hidden}
    energy = {}
    for text in texts:
        hidden = [(text[:i] + "?" + text[i + 1 :], letter) for i, letter in enumerate(text)]
        energy[text] = -sum(log_p[name][number[letter]] for name, letter in hidden)
    total = sum(math.exp(-e) for e in energy.values())
    return {text: math.exp(-e) / total for text, e in energy.items()}


def distance(p: dict[str, float], fillings) -> float:
    q = {filling["sequence"]: filling["score"] for filling in fillings}
    return sum(abs(share - q.get(text, 0)) for text, share in p.items()) / 2


@pytest.mark.slow
def test_probabilities_are_those_of_8000_enumerated_fillings(antibodies):
    p = enumerated(antibodies.model, antibodies.tokenizer)
    assert len(p) == 8000
    found = antibodies(TEXT, top_k=8000)
    assert len(found) == 8000 and distance(p, found) < 1e-4
    best = max(p, key=p.get)
    assert found[0]["sequence"] == best and found[0]["token_str"] == list(best[1:])
    n = 4000
    drawn = antibodies(TEXT, top_k=8000, method="mh", samples=n, chains=500, burn_in=2, seed=3)
    expected = sum((share / n) ** 0.5 for share in p.values()) / 2  # of independent samples, most
    assert distance(p, drawn) < 1.3 * expected
    masked = transformers.pipeline(
        "fill-mask", model=antibodies.model, tokenizer=antibodies.tokenizer
    )
    each = [{row["token_str"]: row["score"] for row in gap} for gap in masked(TEXT, top_k=25)]
    product = {
        text: math.prod(gap.get(c, 0) for gap, c in zip(each, text[1:], strict=True)) for text in p
    }
    apart = sum(abs(p[text] - product[text] / sum(product.values())) for text in p) / 2
    assert apart > 0.3, "probabilities of single masks are another law"


def test_words_lists_and_options_are_those_of_infill(pieces):
    mlm = softbeam.models.huggingface.masked.HfMaskedLM(pieces.model, pieces.tokenizer)
    texts = ["a [WORD] .", "[MASK] en [MASK]"]
    options = {"energy": "chain-rule", "pieces": 2}
    both = pieces(texts, top_k=3, **options)
    assert both == pieces(texts, top_k=3, batch_size=2, **options) and len(both) == 2
    for text, fillings in zip(texts, both, strict=True):
        expected = softbeam.infill(mlm, text, method="enumerate", **options)[:3]
        assert [f["score"] for f in fillings] == [e.share for e in expected]
        assert [f["energy"] for f in fillings] == [e.energy for e in expected]
        for filling, wanted in zip(fillings, expected, strict=True):
            assert filling["sequence"] == wanted.text
            assert mlm.token_names(filling["token"]) == filling["token_str"] == wanted.tokens
    drawn = {"method": "mh", "samples": 12, "burn_in": 1, "chains": 4}
    one, again, other = (pieces(texts[1], seed=seed, **drawn) for seed in (1, 1, 2))
    assert one == again != other and len(pieces(texts[1])) == 5


def test_a_saved_pipeline_is_a_folder_of_a_model_without_code(pieces, tmp_path):
    pieces.save_pretrained(tmp_path)
    assert not [*tmp_path.glob("*.py")]
    again = transformers.pipeline("joint-fill-mask", model=str(tmp_path), energy="chain-rule")
    assert (
        again("a [WORD]", top_k=1)[0]["sequence"]
        == pieces("a [WORD]", top_k=1, energy="chain-rule")[0]["sequence"]
    )


def test_options_that_do_not_exist_are_refused(pieces):
    with pytest.raises(TypeError, match="'sweeps' is not a setting"):
        pieces("a [MASK]", sweeps=3)
    with pytest.raises(UserError, match="top_k 0: must be at least 1"):
        pieces("a [MASK]", top_k=0)
    with pytest.raises(UserError, match=r"text 0 has no \[MASK\]"):
        pieces("a")
