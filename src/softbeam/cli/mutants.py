"""The command that scores variants of protein sequences: mutants."""

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import Parser, overwrite_argument, parser, say_json
from softbeam.cli.sample import DTYPES, load_mlm, model_arguments
from softbeam.cli.texts import normalize_argument
from softbeam.data.fasta import Named, normalized, packed, read_named
from softbeam.data.readers import read_texts
from softbeam.errors import UserError, check_range
from softbeam.runtime import outputs
from softbeam.runtime.files import write_atomic, write_text
from softbeam.runtime.progress import Progress
from softbeam.runtime.text_tables import aligned
from softbeam.sampling.texts.settings import MOST_ROWS, positions_in

if TYPE_CHECKING:
    from softbeam.models import catalogue
    from softbeam.reports import charts, heat_maps
    from softbeam.sampling.texts import designs, estimate, mutants as variants
else:
    catalogue = lazy("softbeam.models.catalogue")
    charts, heat_maps = lazy("softbeam.reports.charts"), lazy("softbeam.reports.heat_maps")
    designs, estimate = (
        lazy("softbeam.sampling.texts.designs"),
        lazy("softbeam.sampling.texts.estimate"),
    )
    variants = lazy("softbeam.sampling.texts.mutants")

SHOWN = 10  # variants that are printed


def mutants_parser() -> Parser:
    """Make the parser of `softbeam mutants`."""
    arguments = parser(
        "mutants",
        "Score variants of protein sequences, all single substitutions if no list is given, and "
        "write a table in the columns of ProteinGym, a heat map (.png) and a summary (.json). A "
        "score is above 0 if the variant is likelier than the wild type. M are the changed "
        "positions. masked-marginal: log p(variant) - log p(wild type) at M, all of M masked; "
        "wild-type-marginal: the same in the wild type, unmasked; mutant-marginal: the same in the "
        "variant, unmasked; pseudo-log-likelihood: the difference of the sums over all positions, "
        "each masked alone, also for insertions and deletions.",
    )
    model_arguments(arguments)
    add = arguments.add_argument
    add("--fasta", type=str, default=None, help="FASTA file of sequences, also .gz; - for stdin")
    add("--text", type=str, default=None, help="one sequence")
    normalize_argument(arguments)
    add(
        "--score",
        type=str,
        default="masked-marginal",
        help="masked-marginal, wild-type-marginal, mutant-marginal or pseudo-log-likelihood; "
        "several with commas, or all",
    )
    add(
        "--variants",
        type=str,
        default=None,
        help="file of variants: a table with a column mutant (S31T:Y32F) or mutated_sequence, as "
        "ProteinGym has, or one mutant or sequence on a line; its other columns are kept",
    )
    add(
        "--positions",
        type=str,
        default=None,
        help="positions of single substitutions, as 26-33,51; all if not given",
    )
    add("--first", type=int, default=1, help="number of the first letter of the sequence")
    add("--out", type=str, default="mutants.csv", help="file to write")
    overwrite_argument(arguments)
    add("--dtype", type=str, choices=list(DTYPES), default="float32", help="number format")
    add("--rows", type=int, default=256, help="largest number of rows at once")
    add("--json", action="store_true", help="print the summary as a last line of JSON")
    return arguments


def mutants(words: list[str]) -> int:
    """Run `softbeam mutants`."""
    parsed = mutants_parser().parse_args(words)
    check_range("--rows", parsed.rows, least=1, most=MOST_ROWS)
    check_range("--first", parsed.first, least=-MOST_ROWS, most=MOST_ROWS)
    out = Path(parsed.out)
    if not out.name.removesuffix(".gz").endswith(".csv"):
        raise UserError(f"--out {out}: must end in .csv or .csv.gz")
    sequences = given_sequences(parsed)
    scores = [part.strip() for part in parsed.score.split(",")]
    plain = out.with_name(out.name.removesuffix(".gz"))
    together = [out, plain.with_suffix(".png"), plain.with_suffix(".json")]
    read = [Path(name) for name in (parsed.fasta, parsed.variants) if name not in (None, "-")]
    with outputs.owned_files(together, overwrite=parsed.overwrite, inputs=read):
        record = write_scores(parsed, sequences, scores, together)
    print(as_text(record))
    if parsed.json:
        say_json({name: value for name, value in record.items() if name != "best"})
    return 0


def given_sequences(parsed: Any) -> list[Named]:
    """Return the sequence of `--text`, or those of `--fasta`."""
    if (parsed.text is None) == (parsed.fasta is None):
        raise UserError("give either --fasta FILE or --text SEQUENCE")
    if parsed.text is not None:
        return [Named("", normalized(parsed.text) if parsed.normalize_sequence else parsed.text)]
    texts = read_named(parsed.fasta, fasta=True, normalize=parsed.normalize_sequence)
    if len(texts) > 1 and parsed.variants is not None:
        raise UserError(f"--variants are of one sequence, and {parsed.fasta} has {len(texts)}")
    return texts


def write_scores(
    parsed: Any, sequences: list[Named], scores: list[str], together: list[Path]
) -> dict[str, Any]:
    """Score the variants of all sequences, write the three files, and return the summary."""
    out, picture, summary = together
    names = list(variants.SCORES) if scores == ["all"] else scores
    lines = None if parsed.variants is None else read_texts(parsed.variants)
    mlm = load_mlm(parsed)
    plans = []
    for _, sequence in sequences:
        listed = listed_for(parsed, mlm, sequence, lines)
        plans.append(variants.plan(mlm, sequence, listed, names))
    total = sum(len(each.variants) for each in plans) * len(names)
    started = time.monotonic()
    with Progress("mutants", total, quiet=parsed.quiet) as progress:
        if not parsed.quiet:
            progress.say(estimated(mlm, plans, parsed.rows))
        results = [
            variants.scored(mlm, each, rows=parsed.rows, on_done=progress.advance) for each in plans
        ]
    more = list(plans[0].variants[0].more) if plans[0].variants else []
    columns = [*variants.COLUMNS, *(name.replace("-", "_") for name in names), *more, "name"]
    rows = [
        row
        for (name, _), result in zip(sequences, results, strict=True)
        for row in variants.table_rows(name or "", result)
    ]
    write_atomic(out, packed(out, designs.as_csv(columns, rows)))
    record: dict[str, Any] = {
        "mlm": parsed.mlm,
        "scores": names,
        "variants": len(rows),
        "rows": sum(each.rows() for each in plans),
        "seconds": time.monotonic() - started,
        "spearman": variants.spearman([row for result in results for row in result]),
        "table": str(out),
        "map": None,
    }
    if find_spec("matplotlib") is not None:
        table = [dict(zip(columns, map(text_of, row), strict=True)) for row in rows]
        if maps := heat_maps.maps_of(table, columns[2 : 2 + len(names)]):
            write_atomic(picture, charts.image(heat_maps.draw_maps(maps), "png"))
            record["map"] = str(picture)
    write_text(summary, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    first = [(row[2], row) for row in rows if isinstance(row[2], float)]
    best = sorted(first, key=lambda pair: -pair[0])[:SHOWN]
    record["best"] = [row for _, row in best]
    return record


def text_of(cell: Any) -> str:
    """Write a cell as it is read back from a table."""
    return "" if cell is None else str(cell)


def listed_for(
    parsed: Any, mlm: Any, sequence: str, lines: list[str] | None
) -> "list[variants.Variant]":
    """Return the variants of a sequence: those of `--variants`, or all single substitutions."""
    first = parsed.first
    if lines is not None:
        listed = variants.listed_variants(lines, sequence, parsed.variants, first=first)
        if parsed.positions is not None:
            raise UserError("--positions is for single substitutions; --variants has its own")
        return listed
    last = first + len(sequence) - 1
    places = list(range(first, last + 1))
    if parsed.positions is not None:
        places = positions_in("--positions", parsed.positions)
        if places[0] < first or places[-1] > last:
            raise UserError(f"--positions {parsed.positions}: the sequence has {first} to {last}")
    letters = mlm.token_names(mlm.alphabet.nonzero()[:, 0].tolist())
    return variants.single_substitutions(sequence, sorted(letters), places, first=first)


def estimated(mlm: Any, plans: "list[variants.Plan]", limit: int) -> str:
    """Say how long scoring takes, from a trial of about a second."""
    text = max((each.wild for each in plans), key=len)[None]
    sites = mlm.allowed[text[0]].nonzero()[:, 0]
    seconds, _ = estimate.timed_rows(mlm, text, sites, limit)
    rows = sum(each.rows() for each in plans)
    count = sum(len(each.variants) for each in plans)
    return (
        f"about {estimate.duration(rows * seconds)} for {rows:,} rows of the model "
        f"({count:,} variants)"
    )


def as_text(record: dict[str, Any]) -> str:
    """Render the best variants as a table, and name the files."""
    names = [name.replace("-", " ") for name in record["scores"]]
    head = ("mutant", *names)
    body = [
        (
            row[0] or row[1][:40],
            *("-" if v is None else f"{v:.3f}" for v in row[2 : 2 + len(names)]),
        )
        for row in record["best"]
    ]
    lines = [aligned([head, *body], "<" + ">" * len(names))]
    if record["variants"] > len(body):
        lines.append(f"the {len(body)} best by {names[0]} of {record['variants']:,}")
    lines += [f"Spearman with DMS_score: {name} {r:.3f}" for name, r in record["spearman"].items()]
    files = ", ".join(str(record[key]) for key in ("table", "map") if record[key])
    return "\n".join([*lines, f"{record['seconds']:.1f} s: {files}"])
