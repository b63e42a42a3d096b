"""Is there anything to gain from training for the search?

A model that is right after gold prefixes and wrong after its own has learned what it needs, but not
to go on from its errors. A gold output that falls off the beam although its score is the best is an
error of the search; one with a worse score than the output is an error of the model.
"""

from collections.abc import Mapping
from typing import Any

from softbeam.models.specs import Lstm
from softbeam.reports.analysis import firsts, gold_fed_marks
from softbeam.reports.gold_on_beam import OUTCOMES, gold_fates
from softbeam.training.decoding import best, decode_encoded
from softbeam.training.kinds import Problems
from softbeam.training.runs import Run
from softbeam.training.searches import Beam, Greedy

SENTENCES = 300  # of the split, at most
LARGE, SMALL = 5.0, 3.0  # points of accuracy between gold-fed and own-fed
MANY = 10.0  # percent of sentences with an error of the search


def headroom(run: Run, split: str, *, sentences: int = SENTENCES) -> dict[str, Any] | None:
    """Measure what training for the search could gain, on the first sentences of a split.

    Returns `gold_fed` and `own_fed`, the percent of right tokens after gold prefixes and after own
    predictions (greedy; by edits where outputs have their own length; None for translations, which
    may be right in many ways), `gap`, their difference, `beam`, `fell`, the percent of gold
    outputs that fall off that beam, the percent of `search_errors` and `model_errors`, and
    `advice`. None for a model that is no left-to-right decoder.
    """
    if not run.config.model.left_to_right:
        return None
    whole = run.problems(split)
    material = Problems(whole.sources[:sentences], whole.references[:sentences])
    encoded = run.encoded(split)[:sentences]
    run.model.eval()
    marks = gold_fed_marks(run.model, encoded)
    ended = int(run.kind.has_end)
    places = [right for row in marks for right in row[: len(row) - ended]]
    gold_fed = 100.0 * sum(places) / max(len(places), 1)
    select = run.config.select
    own = best(decode_encoded(run.model, encoded, run.codecs.target, select.to(Greedy)))
    scores = run.kind.score(own, material.references, [len(s) for s in material.sources])
    own_fed = scores.get("accuracy", 100.0 - scores.get("token_error_rate", 0.0))
    comparable = run.kind.name != "translation"
    k = select.k if isinstance(select, Beam) and select.k > 1 else 3
    beam = select.to(Beam, k=k, nbest=1)
    fates = gold_fates(run.model, firsts(material), run.codecs, beam, encoded=encoded)
    shares = {o: 100.0 * sum(f.outcome == o for f in fates) / len(fates) for o in OUTCOMES}
    figures = {
        "sentences": len(material.sources),
        "gold_fed": gold_fed,
        "own_fed": own_fed if comparable else None,
        "gap": gold_fed - own_fed if comparable else None,
        "beam": k,
        "fell": 100.0 * sum(f.fell > 0 for f in fates) / len(fates),
        "search_errors": shares["search error"],
        "model_errors": shares["model error"],
    }
    model = run.config.model
    sees_past = isinstance(model, Lstm) and model.encoder == "uni" and not run.kind.has_end
    return figures | {"advice": advice(figures, sees_past=sees_past, ends=run.kind.has_end)}


def advice(figures: Mapping[str, Any], *, sees_past: bool, ends: bool) -> str:
    """Say on one line which objective can help; docs/objectives.md has the results behind it.

    Args:
        figures: what `headroom` measured.
        sees_past: whether a tagger's encoder reads the past alone.
        ends: whether outputs decide their own end.
    """
    gap, lost = figures["gap"], figures["search_errors"]
    if lost >= MANY:
        return (
            f"the search loses {lost:.0f} % of gold outputs that the model prefers: decode with a "
            f"wider beam, or train for this one (direct-loss, beam-search-optimization)"
        )
    if gap is None:
        return "few outputs are lost by the search: more cross-entropy first, then compare"
    if gap >= LARGE and sees_past:
        return (
            f"own errors cost {gap:.1f} points: try raw scores first; with a beam of them "
            "beam-search-optimization can help, or direct-loss with normalize false; "
            "scheduled-sampling with greedy search"
        )
    if gap >= LARGE and ends:
        return (
            f"own errors cost {gap:.1f} points: direct-loss with cross_entropy and finish can help "
            "with a beam, scheduled-sampling with greedy search"
        )
    if gap >= LARGE:
        return (
            f"own errors cost {gap:.1f} points, but the model reads the whole input, and then more "
            "cross-entropy at a tuned rate was as good: tune the rate first, then compare"
        )
    if gap < SMALL:
        return (
            f"own errors cost only {gap:.1f} points: more data or more cross-entropy; training for "
            "the search has little to gain"
        )
    return (
        f"own errors cost {gap:.1f} points: compare search-aware training with more cross-entropy"
    )


def as_text(split: str, figures: Mapping[str, Any]) -> str:
    """Write the figures and the advice on two lines."""
    fed = f"after gold {figures['gold_fed']:.1f} % of tokens right"
    if figures["gap"] is not None:
        fed += f", after own predictions {figures['own_fed']:.1f}"
    errors = f"search errors {figures['search_errors']:.0f} %"
    errors += f", model errors {figures['model_errors']:.0f} %"
    fell = f"gold falls off a beam of {figures['beam']} in {figures['fell']:.0f} % of sentences"
    what = f"{split}, {figures['sentences']} sentences"
    return f"to gain ({what}): {fed}; {fell}; {errors}\nadvice: {figures['advice']}"
