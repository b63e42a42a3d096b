"""Tables 3.1 to 5.6 with the arms of the preset `full`, and two tables of our own.

A table here is that of `search_aware.tables` with further rows, columns and claims. Claims of ours
name docs/experiments_plan.md as their source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from softbeam.experiments.search_aware import tables
from softbeam.experiments.search_aware.planned import (
    DROPPED,
    FAMILIES,
    FURTHER,
    KINDS,
    MULTIPLES,
    PENALTIES,
    RATES,
    TUNED,
    dropped,
    multiples,
)
from softbeam.experiments.search_aware.tables import (
    BEAM,
    BEST_LOSS,
    CCG,
    GLOBAL,
    GREEDY,
    LOCAL,
    MORE,
    Claim,
    Place,
    Table,
    Value,
    decoded,
)

OURS = "docs/experiments_plan.md"
Rows = Mapping[str, Mapping[str, Value]]
OWN_FED = "own predictions fed, greedy"
BEAMS = (1, 2, 3, 5, 10, 20)  # of the beam-size curve


def claim(text: str, column: str, better: str, worse: str) -> Claim:
    return Claim(f"{text} (ours)", OURS, Place(better, column), Place(worse, column))


def extended(
    table: Table, rows: Rows, claims: Sequence[Claim], columns: Mapping[str, int] | None = None
) -> Table:
    """The table with further rows and claims; `columns` has those without published figures."""
    more = len(columns or ())
    published = {name: (*figures, *[None] * more) for name, figures in table.published.items()}
    return replace(table, rows={**rows}, published=published, claims=[*table.claims, *claims])


def nothing(run: str) -> Value:
    """A cell without a figure."""
    return Value(run, ())


# Chapter 3


def table_3_1() -> Table:
    """Table 3.1 with supertags beside entities and translation, and training from scratch."""
    before = tables.table_3_1()
    names = {
        "cross-entropy": "more-ce-greedy",
        **{
            name: PurePosixPath(row["NER dev"].run).name
            for name, row in list(before.rows.items())[1:]
        },
    }
    scratch = {
        "cross-entropy, from scratch": "scratch-ce",
        "Bengio et al., greedy, from scratch": "scratch-hard-argmax",
        "soft fixed, greedy, from scratch": "scratch-soft-argmax-fixed",
        "soft annealed, greedy, from scratch": "scratch-soft-argmax-annealed",
    }
    groups = {"NER": ("ner", "f1"), "MT": ("mt", "bleu"), "CCG": ("ccg-uni", "accuracy")}

    def row(run: str) -> dict[str, Value]:
        return {
            f"{task} {split}": nothing(f"ner/{run}")
            if task == "MT" and run.startswith("scratch")
            else decoded(f"{group}/{run}", f"{split} greedy", metric)
            for task, (group, metric) in groups.items()
            for split in ("dev", "test")
        }

    fed = [name for name in names if name != "cross-entropy"]
    claims = [
        *(
            claim(f"CCG: {name} beats cross-entropy", "CCG test", name, "cross-entropy")
            for name in fed
        ),
        *(
            claim(
                f"{task}: {name} beats cross-entropy",
                f"{task} test",
                name,
                "cross-entropy, from scratch",
            )
            for task in ("NER", "CCG")
            for name in list(scratch)[1:]
        ),
    ]
    rows = {name: row(run) for name, run in {**names, **scratch}.items()}
    return extended(before, rows, claims, {"CCG dev": 0, "CCG test": 1})


# Chapter 4

ARMS = {
    "hinge, hard": "hard-hinge",
    "hinge, alpha 20": "hinge-sharp",
    "direct loss, alpha 20": "direct-sharp",
}
RAW = "cross-entropy, raw scores"
GLOBALLY, SAMPLED = "direct loss, global", "soft argmax, own predictions fed"
BSO = "beam-search optimization"
IN_ONE = "cross-entropy, as many epochs in one stage, tuned"
FED, TWICE = "direct loss, global, after own predictions fed", "more cross-entropy, twice"


def with_more_columns(rows: Rows, metric: str) -> dict[str, dict[str, Value]]:
    """Rows of Tables 4.1 and 4.2 with whole sentences, macro F1 of entities, and the rate of O."""
    extra = {"whole sentences": "sequence_accuracy"}
    if metric == "f1":
        extra |= {"macro F1": "macro_f1", "O": "outside"}
    return {
        name: {**row}
        | {
            f"{title} {split}": value._replace(path=("decodes", f"{split} {search}", path))
            for title, path in extra.items()
            for split in ("test",)
            for value, search in [(row[BEAM], str(row[BEAM].path[1]).split()[1])]
        }
        for name, row in rows.items()
    }


def raw_row(run: str, metric: str) -> dict[str, Value]:
    """A model of normalized scores decoded with a beam of raw scores, which costs no training."""
    row = {
        f"{shown} {split}": decoded(run, f"{split} {search}", metric)
        for shown, search in (("greedy", "greedy"), ("hard beam", "raw"))
        for split in ("dev", "test")
    }
    return row | {f"soft beam {split}": nothing(run) for split in ("dev", "test")}


def table_4_1() -> Table:
    before = tables.table_4_1()
    arms = ARMS | {
        GLOBALLY: "global",
        "beam CRF": "beam-crf",
        BSO: "bso",
        SAMPLED: "soft-argmax-annealed",
        IN_ONE: "ce-tuned",
        FED: "fed-global",
        TWICE: "more-more-ce",
    }
    rows = {
        **before.rows,
        **{name: of_search("ccg-uni", run, "accuracy") for name, run in arms.items()},
        RAW: raw_row("ccg-uni/ce", "accuracy"),
        f"{MORE}, raw scores": raw_row("ccg-uni/more-ce", "accuracy"),
        f"{IN_ONE}, raw scores": raw_row("ccg-uni/ce-tuned", "accuracy"),
        f"{SAMPLED}, raw scores": raw_row("ccg-uni/soft-argmax-annealed", "accuracy"),
    }
    claims = [
        claim("global direct loss beats as much more cross-entropy", BEAM, GLOBALLY, MORE),
        claim("direct loss beats cross-entropy in one stage", BEAM, BEST_LOSS, IN_ONE),
        claim("global direct loss beats cross-entropy in one stage", BEAM, GLOBALLY, IN_ONE),
        claim("direct loss beats raw scores of cross-entropy", BEAM, BEST_LOSS, RAW),
        claim("global direct loss beats raw scores of cross-entropy", BEAM, GLOBALLY, RAW),
        claim(
            "feeding own predictions beats as much more cross-entropy, greedy",
            GREEDY,
            SAMPLED,
            MORE,
        ),
        claim("global direct loss after own predictions beats cross-entropy", BEAM, FED, TWICE),
        claim("global direct loss after own predictions beats raw scores", BEAM, FED, RAW),
        claim("it beats global direct loss alone", BEAM, FED, GLOBALLY),
        claim("it beats raw scores of its start", BEAM, FED, f"{SAMPLED}, raw scores"),
        *(  # stated after test figures of three seeds were seen
            claim(f"beam-search optimization beats {name}, stated after figures", BEAM, BSO, row)
            for name, row in (
                ("raw scores of cross-entropy", RAW),
                ("global direct loss", GLOBALLY),
                ("global direct loss after own predictions", FED),
            )
        ),
        claim("direct loss beats the beam CRF", BEAM, BEST_LOSS, "beam CRF"),
        claim("the soft hinge beats the hard one", BEAM, tables.HINGE, "hinge, hard"),
    ]
    return extended(before, with_more_columns(rows, "accuracy"), claims, {"whole sentences": 0})


def of_search(group: str, run: str, metric: str) -> dict[str, Value]:
    """A row of Tables 4.1 and 4.2."""
    return {
        f"{shown} {split}": decoded(f"{group}/{run}", f"{split} {search}", metric)
        for shown, search in tables.SEARCHES.items()
        for split in ("dev", "test")
    }


def table_4_2() -> Table:
    before = tables.table_4_2()
    other = {
        f"germeval, {name}": {
            column: value._replace(run=value.run.replace("ner/", "germ/"))
            for column, value in row.items()
        }
        for name, row in before.rows.items()
    }
    rows = {
        **before.rows,
        **{name: of_search("ner", run, "f1") for name, run in ARMS.items()},
        RAW: raw_row("ner/ce", "f1"),
        **other,
    }
    germ = "germeval, {}".format
    claims = [
        claim("direct loss beats as much more cross-entropy", BEAM, BEST_LOSS, MORE),
        claim(
            "germeval: direct loss beats as much more cross-entropy",
            BEAM,
            germ(BEST_LOSS),
            germ(MORE),
        ),
        claim("germeval: direct loss beats cross-entropy", BEAM, germ(BEST_LOSS), germ(tables.CE)),
        Claim(
            "beam search predicts more O than greedy search, cross-entropy",
            tables.SEC_4_6,
            decoded("ner/ce", "test beam", "outside"),
            decoded("ner/ce", "test greedy", "outside"),
        ),
    ]
    columns = {"whole sentences": 0, "macro F1": 1, "O": 2}
    return extended(before, with_more_columns(rows, "f1"), claims, columns)


# Chapter 5

CONTROL = "as much more training"
SOFTLY = "{}, soft beam".format


def controls(
    rows: Rows, groups: Mapping[str, tuple[str, str]], runs: Mapping[str, str]
) -> dict[str, Mapping[str, Value]]:
    """Rows of Tables 5.2 to 5.4 with raw scores of the start, more training, and soft decoding."""

    def row(role: str, search: str) -> dict[str, Value]:
        return {
            column: decoded(f"{group}/{runs[role]}", f"dev {search}", metric)
            for column, (group, metric) in groups.items()
        }

    return {
        **rows,
        "pretrain-beam, raw scores": row("start", "raw"),
        CONTROL: row("more", "beam"),
        SOFTLY(LOCAL): row("local", "soft"),
        SOFTLY(GLOBAL): row("global", "soft"),
    }


def table_5_2() -> Table:
    before = tables.table_5_2()
    runs = {"start": "ce", "more": "more-ce", "local": "direct-annealed", "global": "global"}
    rivals = {
        name: {c: decoded(f"{g}/{run}", "dev beam", metric) for c, (g, metric) in CCG.items()}
        for name, run in (("beam CRF", "beam-crf"), (BSO, "bso"))
    }
    wide = {
        f"{kind}, trained with a beam of {k}": {
            "unidirectional": decoded(f"ccg-uni/{run}-k{k}", f"dev beam{k}", "accuracy"),
            "bidirectional": nothing(f"ccg-uni/{run}-k{k}"),
        }
        for kind, run in ((LOCAL, "direct"), (GLOBAL, "global"))
        for k in (5, 10)
    }
    claims = [
        claim(f"{column}: {kind} training beats as much more cross-entropy", column, row, CONTROL)
        for column in CCG
        for kind, row in (("local", LOCAL), ("global", GLOBAL))
    ] + [
        Claim(
            f"bidirectional: {BSO} beats as much more cross-entropy, {split} (ours)",
            OURS,
            decoded("ccg-bi/bso", f"{split} beam", "accuracy"),
            decoded("ccg-bi/more-ce", f"{split} beam", "accuracy"),
        )
        for split in ("dev", "test")
    ]
    return extended(before, {**controls(before.rows, CCG, runs), **rivals, **wide}, claims)


def table_5_3() -> Table:
    before = tables.table_5_3()
    runs = {"start": "sn", "more": "more-sn", "local": "sn-local", "global": "sn-global"}
    claims = [
        claim(
            f"{column}: global training beats as much more self-normalized", column, GLOBAL, CONTROL
        )
        for column in CCG
    ]
    contrast = {
        name: {c: decoded(f"{g}/{run}", f"dev {search}", metric) for c, (g, metric) in CCG.items()}
        for name, run, search in (
            ("noise-contrastive start, raw scores", "nce", "raw"),
            ("globally normalized, noise-contrastive start", "nce-global", "beam"),
        )
    }
    return extended(before, {**controls(before.rows, CCG, runs), **contrast}, claims)


def table_5_4() -> Table:
    before = tables.table_5_4()
    sides = {
        "regular": {"start": "ce", "more": "more-ce", "local": "local", "global": "global"},
        "self-normalized": {
            "start": "sn",
            "more": "more-sn",
            "local": "sn-local",
            "global": "sn-global",
        },
    }
    both = [controls({}, {name: ("mt", "bleu")}, runs) for name, runs in sides.items()]
    rows = {**before.rows, **{name: {**both[0][name], **both[1][name]} for name in both[0]}}
    claims = [
        claim(f"{column}: local training beats as much more training", column, LOCAL, CONTROL)
        for column in sides
    ]
    return extended(before, rows, claims)


# Our own


def beam_sizes() -> Table:
    """Words right by the beam size on letters to phonemes, before and after global training."""
    names = {
        "cross-entropy": ("ce", "beam"),
        "more cross-entropy": ("more-ce", "beam"),
        "cross-entropy, raw scores": ("ce", "raw"),
        "local": ("local", "beam"),
        "global, from cross-entropy": ("global", "beam"),
        "self-normalized, raw scores": ("sn", "raw"),
        "more self-normalized, raw scores": ("more-sn", "raw"),
        "global, from self-normalized, no penalty": ("sn-free", "beam"),
        "global, from self-normalized": ("sn-global", "beam"),
    }
    rows = {
        name: {
            f"beam {k}": decoded(f"g2p/{run}", f"test {search}{k}", "word_accuracy") for k in BEAMS
        }
        for name, (run, search) in names.items()
    }
    after = "global, from self-normalized"

    def falls(name: str) -> tuple[Place, Place]:
        return Place(name, f"beam {BEAMS[2]}"), Place(name, f"beam {BEAMS[-1]}")

    claims = [
        Claim(f"{name}: a beam of 20 is worse than one of 3 (ours)", OURS, *falls(name))
        for name in ("cross-entropy, raw scores", "self-normalized, raw scores")
    ]
    claims += [
        Claim(
            f"{after}: beams of 20 and 3 are within 1 point (ours)", OURS, *falls(after), within=1.0
        ),
        Claim(
            f"{after}: falls less than raw scores of its start (ours)",
            OURS,
            *falls("self-normalized, raw scores"),
            than=falls(after),
        ),
    ]
    return Table(
        title="words right by beam size, letters to phonemes, test", rows=rows, claims=claims
    )


def gains() -> Table:
    """What training for the search gains on every task, beside the gap that it could close.

    Quality is accuracy of tags, F1 of entities, accuracy of phonemes, and BLEU. The gap is measured
    on dev, the others on test.
    """
    alike = {"own": "soft-argmax-annealed", "local": "direct-annealed", "more": "more-ce"}
    arms = {
        "supertags, unidirectional": ("ccg-uni", "accuracy", alike | {"hard": "bso"}),
        "supertags, bidirectional": (
            "ccg-bi",
            "accuracy",
            {"local": "direct-annealed", "more": "more-ce", "hard": "bso"},
        ),
        "entities": ("ner", "f1", alike),
        "entities, GermEval": ("germ", "f1", {"local": "direct-annealed", "more": "more-ce"}),
        "letters to phonemes": ("g2p", "token_accuracy", {"local": "local", "more": "more-ce"}),
        "translation": ("mt", "bleu", alike | {"local": "local"}),
    }

    def row(group: str, metric: str, runs: Mapping[str, str]) -> dict[str, Value]:
        def figure(run: str | None, search: str) -> Value:
            if run is None:
                return nothing(f"{group}/ce")
            return decoded(f"{group}/{run}", f"test {search}", metric)

        own = runs.get("own")
        everywhere = "global" if group in ("ccg-uni", "ccg-bi", "g2p", "mt") else None
        fed = ("gold_fed", "own_fed", "gap")
        return {
            **{name.replace("_", " "): Value(f"{group}/ce", ("headroom", name)) for name in fed},
            "more training, greedy": figure(own and "more-ce-greedy", "greedy"),
            OWN_FED: figure(own, "greedy"),
            "more training": figure(runs["more"], "beam"),
            "no training, raw scores": figure("ce", "raw"),
            LOCAL: figure(runs["local"], "beam"),
            GLOBAL: figure(everywhere, "beam"),
            BSO: figure(runs.get("hard"), "beam"),
        }

    return Table(
        title="gains on every task, test, beside the gap of gold-fed and own-fed accuracy, dev",
        rows={name: row(*given) for name, given in arms.items()},
    )


def tuning() -> Table:
    """Dev figures of each learning rate, with seed 1: what `planned.MULTIPLE` is chosen by."""
    rows = {
        name: {
            f"{multiple:g} times": decoded(
                f"{TUNED}/{name}@{multiple:g}",
                "dev greedy" if "argmax" in name else "dev beam",
                "accuracy",
            )
            if multiple in multiples(name)
            else nothing(f"{TUNED}/{name}@1")
            for multiple in sorted({*MULTIPLES, *FURTHER.values()})
        }
        for name in FAMILIES
    }
    return Table(title="dev figures by multiple of the learning rate, one seed", rows=rows)


METRICS = {  # of dev, by group
    "ccg-uni": "accuracy",
    "ccg-bi": "accuracy",
    "ner": "f1",
    "germ": "f1",
    "g2p": "word_accuracy",
    "mt": "bleu",
}


def starts() -> Table:
    """Dev figures of starts by learning rate, with seed 1: what their rates are chosen by."""
    rows = {
        group: {f"{lr:g}": decoded(f"{group}/ce@{lr:g}", "dev beam", metric) for lr in RATES}
        for group, metric in METRICS.items()
    }
    return Table(title="dev figures of starts by learning rate, one seed", rows=rows)


def dropout() -> Table:
    """Dev figures of each kind of dropout in the search: what its default is chosen by."""
    rows: Rows = {
        f"{group}, {name}": {
            kind: decoded(
                dropped(f"{group}/{name}", kind),
                "dev greedy" if "argmax" in name else "dev beam",
                METRICS[group],
            )
            for kind in KINDS
        }
        for group, names in DROPPED.items()
        for name in names
    }
    return Table(title="dev figures by dropout in the search", rows=rows)


def penalties() -> Table:
    """Dev figures of self-normalized starts, with seed 1: what `planned.PENALTY` is chosen by."""
    rows = {
        f"{group}, {penalty:g}": {
            "quality": decoded(f"{group}/sn-{penalty:g}", "dev beam", METRICS[group]),
            "log Z": Value(f"{group}/sn-{penalty:g}", ("log_z", "dev", "mean")),
        }
        for group in ("ccg-uni", "ccg-bi", "mt")
        for penalty in PENALTIES
    }
    return Table(title="self-normalized starts by penalty, dev, one seed", rows=rows)


TABLES: dict[str, Callable[[], Table]] = {
    **tables.TABLES,
    "table-3.1": table_3_1,
    "table-4.1": table_4_1,
    "table-4.2": table_4_2,
    "table-5.2": table_5_2,
    "table-5.3": table_5_3,
    "table-5.4": table_5_4,
    "beam-sizes": beam_sizes,
    "gains": gains,
    "starts": starts,
    "tuning": tuning,
    "dropout": dropout,
    "penalties": penalties,
}
