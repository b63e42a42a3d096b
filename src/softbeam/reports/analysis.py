"""Find where trained models go wrong, for several runs side by side (thesis 5.5).

The measures are plain functions of tokens or of a `Decoder`; `analyze` applies them to runs. Their
results can be written as JSON; `analysis_charts` prints and draws them. Shares are in percent, and
None where there is nothing to count.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rapidfuzz.distance import Levenshtein
from torch import nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example
from softbeam.errors import UserError
from softbeam.reports.gold_on_beam import OUTCOMES, Fate, gold_fates
from softbeam.runtime.progress import Progress
from softbeam.search.decoders import forced_scores
from softbeam.training.decoding import Output, best, decode, decode_encoded
from softbeam.training.evaluation import (
    log_z,
)
from softbeam.training.kinds import LOWER_IS_BETTER, Kind, Problems
from softbeam.training.runs import Run, load_run
from softbeam.training.searches import Beam, Search

Tokens = Sequence[str]
OnBatch = Callable[[int], None]
BEAMS = (1, 2, 3, 5, 10, 20)
USUAL_BEAM = 3  # if no run was selected with a beam
CLEAR = 0.5  # points of the main metric; smaller differences get no advice


def percent(part: int, whole: int) -> float | None:
    """A share in percent; None of nothing."""
    return 100 * part / whole if whole else None


# Outputs against references


def ngram_overlap(
    predicted: Sequence[Tokens], gold: Sequence[Tokens], *, longest: int = 4
) -> list[dict[str, Any]]:
    """Count the n-grams that outputs share with their references, over the corpus, for each n.

    An n-gram matches at most as often as the reference has it. `precision` is the share of the
    outputs' n-grams that match: the "n-gram overlap" of thesis Table 5.5, which is BLEU's (with the
    length ratio it gives the BLEU of Table 5.4). `recall`, which the thesis does not have, is the
    share of the references' n-grams that match: short outputs gain precision and lose recall.
    """
    rows = []
    for n in range(1, longest + 1):
        pairs = [(ngrams(p, n), ngrams(g, n)) for p, g in zip(predicted, gold, strict=True)]
        matches = sum((p & g).total() for p, g in pairs)
        in_outputs, in_gold = (sum(side.total() for side in c) for c in zip(*pairs, strict=True))
        precision, recall = percent(matches, in_outputs), percent(matches, in_gold)
        rows.append({"n": n, "matches": matches, "precision": precision, "recall": recall})
    return rows


def ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def length_ratio(predicted: Sequence[Tokens], gold: Sequence[Tokens]) -> float | None:
    """Tokens of the outputs over tokens of the references (thesis Table 5.5)."""
    total = sum(map(len, gold))
    return sum(map(len, predicted)) / total if total else None


def nearest(predicted: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[Tokens]:
    """The reference of each output that is the fewest edits away; the longest of several."""
    return [
        min(golds, key=lambda gold: (Levenshtein.distance(list(p), list(gold)), -len(gold)))
        for p, golds in zip(predicted, references, strict=True)
    ]


def comparable(
    kind: Kind, predicted: Sequence[Tokens], references: Sequence[Sequence[Tokens]]
) -> tuple[list[Tokens], list[Tokens]]:
    """Outputs and their nearest references as tokens; translations in BLEU's tokens (13a)."""
    gold = nearest(predicted, references)
    outputs, golds = ([kind.counted(tokens) for tokens in s] for s in (predicted, gold))
    return outputs, golds


# After a first error


def marks_by_position(predicted: Tokens, gold: Tokens) -> list[bool]:
    """Whether each label is right, for outputs that are as long as their references."""
    return [p == g for p, g in zip(predicted, gold, strict=True)]


def marks_by_edits(predicted: Tokens, gold: Tokens) -> list[bool]:
    """Whether each column of an alignment with gold is right, for outputs of any length.

    The alignment has the fewest edits; a kept token is right, and a replaced, added or missing one
    is wrong. Marks by position would call everything after one additional word wrong. The alignment
    sees the whole output, so it is lenient after an error; where word order is free, it is too
    strict. Compare these marks between runs, not with those of tagging.
    """
    return [
        edit.tag == "equal"
        for edit in Levenshtein.opcodes(list(gold), list(predicted))
        for _ in range(max(edit.src_end - edit.src_start, edit.dest_end - edit.dest_start))
    ]


def after_first_error(
    marks: Sequence[Sequence[bool]],
    gold_fed: Sequence[Sequence[bool]] | None = None,
    *,
    depth: int = 5,
) -> list[dict[str, Any]]:
    """Accuracy by the distance from a sentence's first error, with the number of places.

    Distance 0 is every place that no error precedes, the first error itself included; the last
    row has all distances above `depth`. Accuracy falls after an error for two reasons: the model
    continues from a mistake, or the sentence is hard. `gold_fed`, marks of the predictions after
    gold prefixes, tells the reasons apart: at the same places, only the difficulty lowers it.
    """
    places = [
        (distance, sentence, place)
        for sentence, row in enumerate(marks)
        for place, distance in enumerate(distances(row, depth + 1))
    ]
    rows = []
    for wanted in range(depth + 2):
        here = [(s, p) for distance, s, p in places if distance == wanted]
        beside = None if gold_fed is None else sum(gold_fed[s][p] for s, p in here)
        rows.append(
            {
                "distance": wanted,
                "places": len(here),
                "accuracy": percent(sum(marks[s][p] for s, p in here), len(here)),
                "gold_fed": None if beside is None else percent(beside, len(here)),
            }
        )
    return rows


def distances(row: Sequence[bool], most: int) -> list[int]:
    """The distance of each place from the first error, at most `most`; 0 up to that error."""
    first = row.index(False) if False in row else len(row)
    return [min(max(0, place - first), most) for place in range(len(row))]


@torch.inference_mode()
def gold_fed_marks(
    model: nn.Module, examples: Sequence[Encoded], *, tokens: int = 4000
) -> list[list[bool]]:
    """Whether the best next label is right at each place when gold prefixes are fed (tagging)."""
    device = next(model.parameters()).device
    marks: list[list[bool]] = [[] for _ in examples]
    for numbers, batch in in_order(examples, tokens=tokens):
        scores = forced_scores(model(batch.source.to(device)), batch.target.to(device))
        right = ((scores.argmax(-1).cpu() == batch.target) & batch.mask).tolist()
        for number, row in zip(numbers, right, strict=True):
            marks[number] = row[: len(examples[number].target)]
    return marks


# Gold on the beam


def recovery_figures(fates: Sequence[Fate]) -> dict[str, Any]:
    """How often gold stays on the beam, where it falls off, and which kinds of errors there are.

    `on_beam` has, for each step, the share of golds still on the beam among those with at least
    that many tokens; `fell_by_tenth` counts falls by tenths of gold's length, and `fell_after_end`
    falls of golds that had ended. `fell` has the step of each sentence, in order.
    """
    stayed = [fate for fate in fates if not fate.fell]
    fallen = [fate for fate in fates if fate.fell]
    inside = [fate for fate in fallen if fate.fell <= fate.length]
    tenths = Counter(-(-10 * fate.fell // fate.length) for fate in inside)
    best = sum(fate.outcome == "found" for fate in stayed)
    return {
        "survived": percent(len(stayed), len(fates)),
        "best_of_survived": percent(best, len(stayed)),
        "outcomes": {
            name: percent(sum(fate.outcome == name for fate in fates), len(fates))
            for name in OUTCOMES
        },
        "median_step_of_fall": median(fate.fell for fate in fallen) if fallen else None,
        "on_beam": [on_beam(fates, t) for t in range(1, max(fate.length for fate in fates) + 1)],
        "fell_by_tenth": [tenths[tenth] for tenth in range(1, 11)],
        "fell_after_end": len(fallen) - len(inside),
        "fell": [fate.fell for fate in fates],
    }


def on_beam(fates: Sequence[Fate], step: int) -> dict[str, Any]:
    """The share of golds on the beam after a step, among those with at least `step` tokens."""
    there = [fate.fell == 0 or fate.fell > step for fate in fates if fate.length >= step]
    return {"step": step, "sentences": len(there), "share": percent(sum(there), len(there))}


# Beam sizes and source lengths


def beam_row(
    kind: Kind,
    metric: str,
    beam: int,
    outputs: Sequence[Sequence[Output]],
    material: Problems,
) -> dict[str, Any]:
    """Quality, length and model score of the outputs of one beam size.

    These rows show the beam-search curse: wider beams find better scores, but worse, shorter or
    empty outputs.
    """
    tokens, gold = comparable(kind, best(outputs), material.references)
    return {
        "beam": beam,
        "value": figures(kind, best(outputs), material)[metric],
        "length_ratio": length_ratio(tokens, gold),
        "length": fmean(map(len, tokens)),
        "empty": percent(sum(not output for output in tokens), len(tokens)),
        "score": fmean(hypotheses[0].score for hypotheses in outputs),
    }


def quality_by_length(
    kind: Kind,
    metric: str,
    predicted: Sequence[Tokens],
    material: Problems,
    edges: Sequence[int],
) -> list[dict[str, Any]]:
    """The metric of the sentences with at most edges[0] source tokens, ..., more than edges[-1].

    This is `training.metrics.bleu_by_length` (thesis Table 5.6) for any kind of task. The value is
    None where a bucket is empty, or has nothing that the metric counts.
    """
    lengths = [len(source) for source in material.sources]
    rows = []
    for bucket, (above, at_most) in enumerate(pairwise([0, *edges, None])):
        inside = [i for i, n in enumerate(lengths) if bisect_left(edges, n) == bucket]
        value = None
        if inside:
            part = Problems(
                [material.sources[i] for i in inside], [material.references[i] for i in inside]
            )
            value = figures(kind, [predicted[i] for i in inside], part).get(metric)
        rows.append({"above": above, "at_most": at_most, "sentences": len(inside), "value": value})
    return rows


def figures(kind: Kind, predicted: Sequence[Tokens], material: Problems) -> dict[str, Any]:
    """All metrics of outputs."""
    return kind.score(predicted, material.references, [len(s) for s in material.sources])


# Raw or normalized scores


def check_normalization(
    model: nn.Module,
    material: Problems,
    kind: Kind,
    codecs: Codecs,
    search: Beam,
    *,
    encoded: Sequence[Encoded] | None = None,
    on_batch: OnBatch = lambda done: None,
) -> dict[str, Any]:
    """Compare beam search with raw and with locally normalized scores, and advise if one is worse.

    The beam is the search's; greedy search gives the same outputs with both. `p_value` comes from
    `Kind.compare`; log Z is measured on the first reference of each source.
    """
    if search.k < 2:
        raise ValueError(f"k={search.k}: one hypothesis is the same with raw scores")
    if encoded is None:
        encoded = encode(firsts(material), codecs)
    outputs = []
    for normalize in (False, True):
        way = replace(search, nbest=1, normalize=normalize)
        decoded = decode_encoded(model, encoded, codecs.target, way, on_batch=on_batch)
        outputs.append(best(decoded))
    both = [figures(kind, side, material) for side in outputs]
    (metric, raw), (_, normalized) = (kind.main_metric(values) for values in both)
    test = kind.compare(material.references, outputs[1:2], outputs[:1])
    partition = log_z(model, encoded)
    agree = test.difference * (normalized - raw) > 0  # the test is of accuracy, also beside F1
    sure = agree and test.p_value < 0.05
    return {
        "beam": search.k,
        "metric": metric,
        "raw": both[0][metric],
        "normalized": both[1][metric],
        "p_value": test.p_value,
        "log_z_mean": partition["mean"],
        "log_z_variance": partition["variance"],
        "advice": advice(metric, normalized - raw) if sure else None,
    }


def check_split(run: Run, split: str, search: Search, *, quiet: bool) -> dict[str, Any]:
    """Run `check_normalization` on a run, with the search's beam or, if it has none, the run's."""
    material = run.problems(split)
    beam = own_beam([search if isinstance(search, Beam) else run.config.select])
    with Progress(f"check {split}", 2 * len(material.sources), quiet=quiet) as progress:
        return check_normalization(
            run.model,
            material,
            run.kind,
            run.codecs,
            search.to(Beam, k=beam, nbest=1),
            encoded=run.encoded(split),
            on_batch=progress.advance,
        )


def advice(metric: str, gain: float) -> str | None:
    """Which scores to decode with, given the gain from normalizing; None if it hardly matters.

    Normalizing can also hurt a locally trained model: cross-entropy taggers that see only the past
    of their input gained 4 to 5 points of accuracy from raw scores (ccg-ewt, 3 seeds).
    """
    if abs(gain) < CLEAR:
        return None
    points = f"{abs(gain):.1f} points of {metric.replace('_', ' ')}"
    if gain > 0:
        return (
            f"raw scores cost {points}, the mark of a locally normalized model: "
            "decode it with --normalize true"
        )
    return f"normalized scores cost {points}: decode it with --normalize false"


def firsts(material: Problems) -> list[Example]:
    """Each source with its first reference."""
    pairs = zip(material.sources, material.references, strict=True)
    return [Example(source, golds[0]) for source, golds in pairs]


# Runs


def analyze(
    folders: Sequence[Path],
    *,
    split: str = "dev",
    beams: Sequence[int] = BEAMS,
    normalize: bool | None = None,
    limit: int | None = None,
    threads: int = 1,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure runs on the first `limit` problems of a split that they share.

    Except for the curve over beam sizes, all runs have one beam size: the widest that one of them
    was selected with. Normalization (unless given), length penalty and length limits are those of
    each run's own `select`. If a source has several references, the first is the gold that is
    followed through the beam; the other measures use the nearest.
    """
    torch.set_num_threads(threads)
    runs = dict(zip(labels(folders), map(load_run, folders), strict=True))
    for folder, run in zip(folders, runs.values(), strict=True):
        if not run.config.model.left_to_right:
            raise UserError(f"{folder} is a masked language model, which has no beam to analyze")
    kind, whole = shared_problems(runs, split)
    material = Problems(whole.sources[:limit], whole.references[:limit])
    beam = own_beam([run.config.select for run in runs.values()])
    measures: dict[str, Any] = {}
    for name, run in runs.items():
        passes = len({*beams, beam}) + 3
        with Progress(f"analyze {name}", passes * len(material.sources), quiet=quiet) as progress:
            measures[name] = measure(
                run, material, beams, beam, normalize=normalize, on_batch=progress.advance
            )
    metric = next(iter(measures.values()))["normalization"]["metric"]
    return {
        "task": kind.name,
        "metric": metric,
        "lower_is_better": metric in LOWER_IS_BETTER,
        "split": split,
        "sentences": len(material.sources),
        "beam": beam,
        "runs": measures,
    }


def labels(folders: Sequence[Path]) -> list[str]:
    """Short names of the runs: the folders' names if these differ, else their paths.

    Raises UserError if a folder is given twice.
    """
    whole = [folder.resolve() for folder in folders]
    twice = [folder for folder, path in zip(folders, whole, strict=True) if whole.count(path) > 1]
    if twice:
        raise UserError(f"the run {twice[0]} is given twice")
    names = [path.name for path in whole]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def shared_problems(runs: Mapping[str, Run], split: str) -> tuple[Kind, Problems]:
    """The kind and the problems that all runs share; raises UserError if two runs differ."""
    (first, run), *others = runs.items()
    kind, material = run.kind, run.problems(split)
    for name, other in others:
        if other.kind is not kind:
            raise UserError(
                f"{first} is a run of {kind.name} but {name} of {other.kind.name}: "
                "only runs of one task can be compared"
            )
        if other.config.data == run.config.data:
            continue
        if other.problems(split) != material:
            raise UserError(
                f"{first} and {name} have different {split} splits: "
                "only runs of one task can be compared"
            )
    return kind, material


def own_beam(searches: Sequence[Search]) -> int:
    """The widest beam among the searches that use one; 3 if none does."""
    wide = [s.k for s in searches if isinstance(s, Beam) and s.k > 1]
    return max(wide, default=USUAL_BEAM)


def measure(
    run: Run,
    material: Problems,
    beams: Sequence[int],
    beam: int,
    *,
    normalize: bool | None,
    on_batch: OnBatch = lambda done: None,
) -> dict[str, Any]:
    """All measures of one run."""
    kind, select = run.kind, run.config.select
    model, codecs = run.model, run.codecs
    search = select.to(
        Beam,
        k=beam,
        nbest=1,
        normalize=select.normalize if normalize is None else normalize,
    )
    outputs = {
        k: decode(model, material.sources, codecs, replace(search, k=k), on_batch=on_batch)
        for k in sorted({*beams, beam})
    }
    check = check_normalization(model, material, kind, codecs, search, on_batch=on_batch)
    fates = gold_fates(model, firsts(material), codecs, search, on_batch=on_batch)
    predicted = best(outputs[beam])
    tokens, gold = comparable(kind, predicted, material.references)
    return {
        "normalize": search.normalize,
        "beam_curve": [
            beam_row(kind, check["metric"], k, outputs[k], material) for k in sorted(set(beams))
        ],
        "normalization": check,
        "overlap": ngram_overlap(tokens, gold),
        "length_ratio": length_ratio(tokens, gold),
        "by_source_length": quality_by_length(
            kind,
            check["metric"],
            predicted,
            material,
            kind.length_edges([len(s) for s in material.sources]),
        ),
        "after_first_error": errors_of(kind, model, codecs, material, tokens, gold),
        "gold_on_beam": recovery_figures(fates),
    }


def errors_of(
    kind: Kind,
    model: nn.Module,
    codecs: Codecs,
    material: Problems,
    tokens: Sequence[Tokens],
    gold: Sequence[Tokens],
) -> list[dict[str, Any]]:
    """`after_first_error` by position, with gold fed, for tagging; by edits for other tasks."""
    pairs = zip(tokens, gold, strict=True)
    if kind.has_end:
        return after_first_error([marks_by_edits(p, g) for p, g in pairs])
    fed = gold_fed_marks(model, encode(firsts(material), codecs))
    return after_first_error([marks_by_position(p, g) for p, g in pairs], fed)
