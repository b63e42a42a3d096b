"""Make the benchmarks page: records of `softbeam bench … --record docs/benchmarks` as tables."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent / "benchmarks"
QUIET = 0.5  # load average below which an earlier record, without `quiet`, counts as quiet


class Bench(NamedTuple):
    """The tables of a benchmark: for each list of rows, the headings and the keys of the values."""

    title: str
    what: str
    tables: Mapping[str, Mapping[str, str]]


FORMS = ("reference", "dense", "pooled", "checkpointed")
LOG_Z = ("shared", "gradient", "enumerated")
BENCHES = {
    "train": Bench(
        "Training with cross-entropy",
        "Tokens a second of the update that `softbeam train` runs, against a bare loop over "
        "`torch.nn.LSTM` of the same sizes, in turns. A ratio of 1 costs nothing.",
        {
            "rows": {
                "model": "model",
                "tokens/s": "tokens_per_s",
                "bare loop, tokens/s": "bare_tokens_per_s",
                "ratio": "ratio",
            }
        },
    ),
    "soft-beam": Bench(
        "Training through a soft beam",
        "Seconds of an update with cross-entropy (CE), and how many times as long the forms of the "
        "soft beam take ([why there are several](design/0004-soft-beam.md)).",
        {
            "rows": {"V": "vocab", "k": "k", "CE, s": "ce_s"}
            | {f"{form}, times CE": f"{form}_ratio" for form in FORMS}
            | {f"{form}, MB": f"peak_mb.{form}" for form in ("ce", *FORMS)}
        },
    ),
    "decode": Bench(
        "Beam search",
        "Processor seconds of `live_beam_search` (live), `beam_search` (beam) and CTranslate2, all "
        "with the weights of one Marian model, and how many times as fast as `generate` of "
        "transformers they are, in turns ([how](design/0022-hard-beam-speed.md)).",
        {
            "rows": {
                "sentences": "case",
                "search": "search",
                "s": "seconds",
                "times generate": "ratio",
                "same outputs": "same",
                "tokens": "tokens",
            }
        },
    ),
    "growth": Bench(
        "Growth",
        "Processor time as a power of one size, beside the largest power in the number of "
        "operations.",
        {
            "rows": {
                "work": "work",
                "size": "size",
                "exponent": "exponent",
                "arithmetic": "power",
                "above by more than 0.1": "above",
            }
        },
    ),
    "exact": Bench(
        "Exact training of random fields",
        "The true conditionals of an LSTM random field against one batch of all substituted "
        "sequences, and log Z of spaces that can be enumerated.",
        {
            "pseudolikelihood": {
                "V": "vocab",
                "T": "time",
                "s": "ours_s",
                "one batch, s": "one_batch_s",
                "ratio": "ratio",
            },
            "log_z": {"V": "vocab", "T": "time", "sequences": "sequences"}
            | {f"{form}, s": f"{form}.seconds" for form in LOG_Z}
            | {f"{form}, MB": f"{form}.peak_mb" for form in LOG_Z},
        },
    ),
    "sampler": Bench(
        "Sampling from masked language models",
        "The fast sampler against plain ones: same model, same proposals, same seed. Rows are what "
        "the model is given for a proposal; ESS is the effective sample size of the energy.",
        {
            "rows": {
                "model": "model",
                "V": "vocab",
                "T": "time",
                "sampler": "forms",
                "proposals/s": "forms.proposals_per_s",
                "rows": "forms.rows_per_proposal",
                "ESS/s": "forms.ess_per_s",
                "times 2T+1": "forms.over_2t_1",
                "times T+1": "forms.over_t_1",
                "same chain": "forms.identical_in_float64",
                "MB": "forms.peak_mb",
            }
        },
    ),
    "score": Bench(
        "Pseudo-log-likelihoods",
        "`softbeam score` against the package minicons: same model, same texts.",
        {
            "rows": {
                "model": "model",
                "texts": "texts",
                "tokens": "tokens",
                "s": "ours_s",
                "minicons, s": "minicons_s",
                "times as fast": "ratio",
                "largest difference": "largest_difference",
            },
            "long": {
                "model": "model",
                "tokens": "tokens",
                "MB": "peak_mb",
                "all logits, MB": "all_logits_mb",
            },
        },
    ),
    "mutants": Bench(
        "Variants of a protein",
        "All 19 x 125 single substitutions of a heavy chain: masked marginals, and "
        "pseudo-log-likelihoods (PLL), against the package minicons, which gives both in one pass. "
        "PLL and minicons are estimated from a part ([why](design/0028-variant-scoring.md)).",
        {
            "rows": {
                "model": "model",
                "variants": "variants",
                "timed": "part",
                "masked, s": "masked_s",
                "PLL, s": "pll_s",
                "minicons, s": "minicons_s",
                "masked, times as fast": "masked_ratio",
                "PLL, times as fast": "pll_ratio",
            }
        },
    ),
}


def page(folder: Path) -> str:
    """Write a section for each record of the folder, in the order of the benchmarks."""
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]
    order = list(BENCHES)
    return "\n".join(section(r) for r in sorted(records, key=lambda r: order.index(r["bench"])))


def section(record: Mapping[str, Any]) -> str:
    """Write a record as Markdown: what was run, where, and its tables."""
    bench, found = BENCHES[record["bench"]], record["found"]
    parts = [f"## {bench.title}", bench.what, circumstances(record)]
    for name, columns in bench.tables.items():
        if name in found:
            rows = found[name] if isinstance(found[name], list) else [found[name]]
            parts.append(table([flat for row in rows for flat in spread(row)], columns))
    return "\n\n".join(parts) + "\n"


def circumstances(record: Mapping[str, Any]) -> str:
    """Write the command, the machine, and whether the machine was quiet."""
    machine, load = record["environment"], record["load"]
    facts = [
        f"`{record['command']}`",
        machine["started"][:10],
        f"commit `{(machine['commit'] or 'unknown')[:10]}`",
        machine["platform"],
        f"{machine['cores']} cores",
        f"torch {machine['packages']['torch']}; load average {load:.1f} when it began.",
    ]
    said = ", ".join(facts)
    busy = "**Run beside other work: times are too long and ratios rough.**"
    return said if record.get("quiet", load < QUIET) else f"{said} {busy}"


def spread(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Flatten a row: dotted names for nested values, or a row for each of its forms."""
    forms = row.get("forms", {"": {}})
    for name, values in forms.items():
        yield dict(flattened({**row, "forms": values})) | {"forms": name}


def flattened(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> str:
    """Write a table; columns of memory are left out if they were not measured."""
    measured = {h: key for h, key in columns.items() if "mb" not in key or key in rows[0]}
    lines = [list(measured), ["---"] * len(measured)]
    lines += [[shown(row[key]) for key in measured.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: Any) -> str:
    """Format a value: three significant digits, thousands as integers, words unchanged."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
