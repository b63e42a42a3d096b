"""Pseudo-log-likelihoods against the minicons package: same model, same texts, in one run.

minicons gives all masked rows of all texts to the model at once, and computes the logits of every
position. softbeam computes them at masked positions alone. What this saves depends on the output
layer's share of the model: most of the work for 30,522 words and a small model, nothing for 25
amino acids.

The two packages take turns. Seconds are of processor time, which other work on the machine disturbs
less than time by the clock, and the ratio is the median over the turns. The peak of memory for one
long text is measured in a process of its own, without what the imports take.
"""

import statistics
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import torch

from softbeam.errors import UserError, need
from softbeam.experiments.bench.measuring import in_child
from softbeam.models import catalogue, conversions
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.sampling.texts.score import score_texts

# Layers and width of published BERTs with 30,522 words. Their weights are random here, as no
# package carries them; time and memory do not depend on weights.
SHAPES = {
    "bert-tiny": (2, 128),
    "bert-mini": (4, 256),
    "bert-small": (4, 512),
    "bert-12-256": (12, 256),
}
VOCAB = 30_522
ANTIBODY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAV"
)
REACTIONS = "CC(=O)O.OCCC>>CC(=O)O", "CCN.CC(=O)Cl>>CC(=O)NCC"


def model_of(name: str) -> HfMaskedLM:
    """A model of a published shape with random weights, or a pretrained model."""
    return random_bert(name, VOCAB) if name in SHAPES else pretrained(name)


def pretrained(name: str, dtype: str = "float32") -> HfMaskedLM:
    """Load a Hugging Face model. Raises UserError if it is one of `softbeam train masked-lm`."""
    mlm = catalogue.load_mlm(name, dtype=dtype)
    if not isinstance(mlm, HfMaskedLM):
        raise UserError(f"--models {name}: is no Hugging Face model")
    return mlm


def random_bert(name: str, vocab: int) -> HfMaskedLM:
    """A model of a published shape with random weights; its words are w0, w1 and so on."""
    from transformers import BertConfig, BertForMaskedLM

    layers, width = SHAPES[name]
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        pad_token_id=0,
    )
    specials = conversions.BERT_SPECIALS
    words = [*specials.values(), *(f"w{i}" for i in range(vocab - len(specials)))]
    torch.manual_seed(0)
    tokenizer = conversions.word_level(words, r"w\d+", specials, 512)
    return HfMaskedLM(BertForMaskedLM(config), tokenizer)


def texts_of(name: str, texts: int, tokens: int) -> list[str]:
    """Texts of the given number of tokens; real reactions have their own lengths."""
    if name in SHAPES:
        numbers = torch.randint(
            VOCAB - 9, (texts, tokens), generator=torch.Generator().manual_seed(0)
        )
        return ["".join(f"w{i}" for i in row) for row in numbers.tolist()]
    if name.startswith("rxn"):
        return [REACTIONS[i % len(REACTIONS)] for i in range(texts)]
    starts = range(0, len(ANTIBODY) - tokens, 10)
    return [ANTIBODY[starts[i % len(starts)] :][:tokens] for i in range(texts)]


def ours(mlm: HfMaskedLM, texts: Sequence[str]) -> list[float]:
    """softbeam's score of each text."""
    return [text.score for text in score_texts(mlm, texts)]


def theirs(mlm: HfMaskedLM) -> Callable[[Sequence[str]], list[float]]:
    """A function that gives minicons' score of each text."""
    from minicons.scorer import MaskedLMScorer

    scorer = MaskedLMScorer(mlm.model, "cpu", tokenizer=mlm.tokenizer)

    def score(texts: Sequence[str]) -> list[float]:
        # minicons 0.3.39 tokenizes by a method that transformers 5 no longer has
        batch = mlm.tokenizer(list(texts), padding=True)
        scores: list[float] = scorer.sequence_score(batch, reduction=lambda x: x.sum(0).item())
        return scores

    return score


def compare_packages(name: str, *, texts: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Seconds of both packages, their ratio, and the largest difference of a score."""
    mlm, given = model_of(name), texts_of(name, texts, tokens)
    score, seconds = theirs(mlm), {"ours": [0.0], "minicons": [0.0]}
    worst = max(abs(a - b) for a, b in zip(ours(mlm, given), score(given), strict=True))
    forms = {"ours": lambda: ours(mlm, given), "minicons": lambda: score(given)}
    for form in forms:
        seconds[form] = []
    for _ in range(repeats):
        for form, call in forms.items():
            started = process_time()
            call()
            seconds[form].append(process_time() - started)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["minicons"], strict=True)]
    row: dict[str, Any] = {"model": name, "texts": texts, "tokens": tokens}
    row |= {f"{form}_s": statistics.median(values) for form, values in seconds.items()}
    return row | {"ratio": statistics.median(ratios), "largest_difference": worst}


def peak_mb(name: str, tokens: int) -> float:
    """Peak of memory, in MB, when one text is scored in a process of its own, model included."""
    return float(in_child(score_one, name, tokens)["peak_mb"])


def score_one(name: str, tokens: int) -> dict[str, Any]:
    """Load a model and score one text."""
    return {"scores": ours(model_of(name), texts_of(name, 1, tokens))}


def run(
    *,
    models: Sequence[str] = ("bert-mini", "sapiens-vh"),
    texts: int = 8,
    tokens: int = 20,
    long: int = 200,
    repeats: int = 5,
    memory: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Speed for each model, and the memory that one long text takes.

    Args:
        models: shapes of published BERTs, or pretrained models.
        texts: number of texts.
        tokens: tokens of each text.
        long: tokens of the long text, which the first shape among the models scores.
        repeats: number of turns.
        memory: whether the peak for the long text is measured.
        progress: called with lines of text as they are known.
    """
    need("minicons", "bench")
    rows = []
    for name in models:
        rows.append(row := compare_packages(name, texts=texts, tokens=tokens, repeats=repeats))
        progress(
            f"{name:12} {texts} x {tokens} tokens: {row['ours_s']:.3f} s, minicons "
            f"{row['minicons_s']:.3f} s: {row['ratio']:.2f}x; largest difference "
            f"{row['largest_difference']:.1e}"
        )
    record: dict[str, Any] = {"bench": "score", "repeats": repeats, "rows": rows}
    shape = next((name for name in models if name in SHAPES), None)
    if memory and shape is not None:
        all_logits = 4 * long * (long + 2) * VOCAB / 2**20
        record["long"] = {
            "model": shape,
            "tokens": long,
            "peak_mb": peak_mb(shape, long),
            "short_peak_mb": peak_mb(shape, tokens),
            "all_logits_mb": all_logits,
        }
        progress(
            f"{shape:12} one text of {long} tokens: {record['long']['peak_mb']:.0f} MB "
            f"({tokens} tokens: {record['long']['short_peak_mb']:.0f} MB); logits of all its rows "
            f"and positions would be {all_logits:.0f} MB"
        )
    return record
