"""Scores of all single substitutions of a heavy chain, against the minicons package.

minicons scores whole sequences: each variant takes a row for each of its positions. From these come
its pseudo-log-likelihood and, at the changed position, its masked marginal. softbeam computes the
masked marginals of all variants from one row for each position. minicons and softbeam's
pseudo-log-likelihoods are timed on a part of the variants, in turn, and the time of all variants is
estimated from it. Seconds are of processor time, ratios medians over the turns.
"""

import statistics
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

from softbeam.errors import need
from softbeam.experiments.bench.score import model_of, theirs
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.sampling.texts.mutants import Variant, plan, single_substitutions
from softbeam.sampling.variants import masked_marginals, pseudo_log_likelihoods

HEAVY = (  # a human heavy chain of 125 residues
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQM"
    "NSLRAEDTAVYYC"
    "AKDRGYYDSSGYYYGMDVWGQGTTVTVSS"
)
LETTERS = "ACDEFGHIKLMNPQRSTVWY"
ROWS = 128  # at once, as many as fit the bound on tokens


def run(
    *,
    models: Sequence[str] = ("sapiens-vh",),
    part: int = 2,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time both packages on each model.

    Args:
        models: pretrained models of antibodies.
        part: variants that are timed where all would take too long.
        repeats: number of turns.
        progress: called with lines of text as they are known.
    """
    need("minicons", "bench")
    rows = []
    for name in models:
        rows.append(row := compared(model_of(name), part, repeats) | {"model": name})
        progress(
            f"{name}: {row['variants']} variants: masked marginals {row['masked_s']:.2f} s "
            f"({row['masked_ratio']:.0f}x), pseudo-log-likelihoods {row['pll_s']:.0f} s "
            f"({row['pll_ratio']:.2f}x), minicons {row['minicons_s']:.0f} s, from {part} variants; "
            f"largest differences {row['masked_difference']:.1e} and {row['pll_difference']:.1e}"
        )
    return {"bench": "mutants", "repeats": repeats, "rows": rows}


def compared(mlm: HfMaskedLM, part: int, repeats: int) -> dict[str, Any]:
    """Seconds of all variants, ratios, and the largest differences of scores."""
    every = single_substitutions(HEAVY, LETTERS, range(1, len(HEAVY) + 1))
    few = every[:: len(every) // part][:part]
    whole, some = (plan(mlm, HEAVY, v, ["masked-marginal"]) for v in (every, few))
    score, share = theirs(mlm), len(every) / part
    forms: dict[str, Callable[[], list[float]]] = {
        "masked": lambda: masked_marginals(mlm, whole.wild, whole.tokens, rows=ROWS).tolist(),
        "pll": lambda: pseudo_log_likelihoods(mlm, some.tokens, rows=ROWS).tolist(),
        "minicons": lambda: [score([v.sequence])[0] for v in few],
    }
    results = {form: call() for form, call in forms.items()}
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(repeats):
        for form, call in forms.items():
            started = process_time()
            call()
            seconds[form].append(process_time() - started)
    own = dict(zip((v.mutant for v in every), results["masked"], strict=True))
    gains = token_gains(mlm, few)
    median = {form: statistics.median(values) for form, values in seconds.items()}
    turns = list(zip(*seconds.values(), strict=True))
    return {
        "variants": len(every),
        "part": part,
        "masked_s": median["masked"],
        "pll_s": median["pll"] * share,
        "minicons_s": median["minicons"] * share,
        "masked_ratio": statistics.median(m * share / a for a, _, m in turns),
        "pll_ratio": statistics.median(m / p for _, p, m in turns),
        "masked_difference": max(abs(own[mutant] - gain) for mutant, gain in gains.items()),
        "pll_difference": max(
            abs(a - b) for a, b in zip(results["pll"], results["minicons"], strict=True)
        ),
    }


def token_gains(mlm: HfMaskedLM, variants: Sequence[Variant]) -> dict[str, float]:
    """minicons' log-odds of each variant over the wild type, at the changed position."""
    from minicons.scorer import MaskedLMScorer

    scorer = MaskedLMScorer(mlm.model, "cpu", tokenizer=mlm.tokenizer)

    def scores(text: str) -> list[float]:
        batch = list(scorer.prepare_text(mlm.tokenizer([text], padding=True)))
        values: list[float] = scorer.compute_stats(batch)[0]
        return values

    wild, sites = scores(HEAVY), {v.mutant: int(v.mutant[1:-1]) - 1 for v in variants}
    return {v.mutant: scores(v.sequence)[sites[v.mutant]] - wild[sites[v.mutant]] for v in variants}
