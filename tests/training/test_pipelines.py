"""The pipeline `joint-fill-mask`: 8,000 fillings of a real model by plain loops, words, options."""

import itertools
import math

import pytest
import torch
import transformers

import softbeam
from softbeam.errors import UserError
from support.tiny_bert import piece_mlm

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


class Plain:
    """The model itself, on strings in which `?` is a mask: log-probabilities of each letter."""

    def __init__(self, pipeline):
        self.model, tokenizer = pipeline.model, pipeline.tokenizer
        ids = tokenizer.convert_tokens_to_ids(list(LETTERS))
        self.number = dict(zip(LETTERS, ids, strict=True)) | {"?": tokenizer.mask_token_id}
        self.first, _, self.last = tokenizer("Q")["input_ids"]  # the letter is between two marks

    def log_p(self, contexts: list[str], *, among: bool) -> dict[str, dict[str, float]]:
        """At the first mask of each string; normalized among the 20 letters, or over all tokens."""
        rows = [[self.first, *(self.number[c] for c in row), self.last] for row in contexts]
        with torch.no_grad():
            parts = torch.tensor(rows).split(500)
            logits = torch.cat([self.model(input_ids=part).logits.double() for part in parts])
        tables = {}
        for name, table in zip(contexts, logits, strict=True):
            scores = table[1 + name.index("?")]
            own = scores[[self.number[c] for c in LETTERS]]
            total = (own if among else scores).logsumexp(0)
            tables[name] = dict(zip(LETTERS, (own - total).tolist(), strict=True))
        return tables


def local_law(plain: Plain) -> dict[str, float]:
    """exp(-E) of 8,000 sequences; E sums -log p of each letter given all others."""
    texts = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    hidden = sorted({text[:i] + "?" + text[i + 1 :] for text in texts for i in range(3)})
    log_p = plain.log_p(hidden, among=False)
    score = {
        text: sum(log_p[text[:i] + "?" + text[i + 1 :]][c] for i, c in enumerate(text))
        for text in texts
    }
    total = sum(math.exp(s) for s in score.values())
    return {text: math.exp(s) / total for text, s in score.items()}


def chain_law(plain: Plain, before: str, after: str) -> dict[str, float]:
    """The product of the probabilities of three letters from left to right."""
    starts = ["".join(s) for n in range(3) for s in itertools.product(LETTERS, repeat=n)]
    names = {start: before + start + "?" * (3 - len(start)) + after for start in starts}
    log_p = plain.log_p(list(names.values()), among=True)
    p = {}
    for letters in itertools.product(LETTERS, repeat=3):
        word = "".join(letters)
        score = sum(log_p[names[word[:i]]][c] for i, c in enumerate(word))
        p[before + word + after] = math.exp(score)
    return {text: share / sum(p.values()) for text, share in p.items()}


def distance(p: dict[str, float], fillings) -> float:
    q = {filling["sequence"]: filling["score"] for filling in fillings}
    return sum(abs(share - q.get(text, 0)) for text, share in p.items()) / 2


@pytest.mark.slow
def test_probabilities_are_those_of_8000_enumerated_fillings(antibodies):
    p = local_law(Plain(antibodies))
    assert len(p) == 8000
    found = antibodies("[MASK][MASK][MASK]", top_k=8000)
    assert len(found) == 8000 and distance(p, found) < 1e-4
    best = max(p, key=p.get)
    assert found[0]["sequence"] == best and found[0]["token_str"] == list(best)
    masked = transformers.pipeline(
        "fill-mask", model=antibodies.model, tokenizer=antibodies.tokenizer
    )
    each = [
        {row["token_str"]: row["score"] for row in gap} for gap in masked("<mask>" * 3, top_k=25)
    ]
    alone = {t: math.prod(gap.get(c, 0) for gap, c in zip(each, t, strict=True)) for t in p}
    apart = sum(abs(p[text] - alone[text] / sum(alone.values())) for text in p) / 2
    assert apart > 0.3, "probabilities of single masks are another law"


@pytest.mark.slow
def test_samples_have_the_law_of_8000_enumerated_fillings(antibodies):
    p = chain_law(Plain(antibodies), "QVQLVQS", "VKKPG")
    text, n = "QVQLVQS[MASK][MASK][MASK]VKKPG", 800
    law = {"energy": "chain-rule", "top_k": 8000}
    assert distance(p, antibodies(text, **law)) < 1e-4
    drawn = antibodies(text, method="mh", samples=n, chains=400, burn_in=1, seed=3, **law)
    # The expected distance of n independent samples is at most this
    assert distance(p, drawn) < sum((share / n) ** 0.5 for share in p.values()) / 2
    flat = dict.fromkeys(p, 1 / 8000)
    assert distance(flat, drawn) > 0.5, "another law must fail"


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
