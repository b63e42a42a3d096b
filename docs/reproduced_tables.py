"""Make the page of reproduced tables: the records of `softbeam reproduce`, and all verdicts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softbeam.experiments.reproduce import TARGETS
from softbeam.reports.records import figures, place
from softbeam.reports.tables import columns_of, pairs
from softbeam.reports.verdicts import reason

Record = Mapping[str, Any]


def page(results: Path) -> str:
    """Write how many claims hold, then a section for each record, in the order of the thesis."""
    records = {path: read(path) for path in sorted(results.rglob("*.json"), key=place)}
    sections = [section(path, record, results) for path, record in records.items()]
    return "\n".join([counts(records, results), *sections])


def read(path: Path) -> Record:
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    return found


def counts(records: Mapping[Path, Record], results: Path) -> str:
    """Count the claims that hold, in all and record by record."""
    found = {
        heading(path, results): Counter(claim["verdict"] for claim in record["claims"])
        for path, record in records.items()
    }
    total = sum(found.values(), Counter())
    said = ", ".join(f"{n} {verdict}" for verdict, n in total.most_common())
    names = [verdict for verdict, _ in total.most_common()]
    rows = [[name, *(str(one[v] or "") for v in names)] for name, one in found.items()]
    return f"Of {total.total()} claims: {said}.\n\n{table(['', *names], rows)}\n"


def heading(path: Path, results: Path) -> str:
    folder = path.parent.relative_to(results).as_posix()
    return path.stem.capitalize().replace("-", " ") + ("" if folder == "." else f" ({folder})")


def section(path: Path, record: Record, results: Path) -> str:
    """Write a record as Markdown: title, origin, figures, verdicts, picture."""
    what, name = TARGETS[record["target"]], heading(path, results)
    parts = [
        f"## {name}",
        f"{what[0].upper()}{what[1:]}. {origin(record)}",
        beside(record) if "published" in record else f"```text\n{figures(record)}\n```",
    ]
    if record["claims"]:
        parts.append(verdicts(record["claims"]))
    if record.get("not_judged"):
        claims = "; ".join(f"{c['claim']} (R-hat {c['rhat']:.2f})" for c in record["not_judged"])
        parts.append(f"Not judged, as chains have not mixed: {claims}.")
    if (picture := path.with_suffix(".svg")).is_file():
        away = Path("..") / results.name / picture.relative_to(results)
        parts.append(f"![{name}]({away.as_posix()})")
    return "\n\n".join(parts) + "\n"


def origin(record: Record) -> str:
    facts = record["environment"]
    commit = (facts["commit"] or "unknown")[:10]
    command = " ".join(facts["command"])
    return f"`{command}`, {facts['started'][:10]}, commit `{commit}`, {facts['cores']} cores."


def beside(record: Record) -> str:
    """Write our means and spreads over the repetitions, with the published figures in brackets."""
    rows = pairs(record["rows"], record["published"], record["digits"])
    lines = [
        [name, *(f"{ours} ({printed})" if printed else ours for ours, printed in row)]
        for name, row in rows.items()
    ]
    title = record["title"]
    head = f"{title[0].upper()}{title[1:]}; mean of {len(record['seeds'])} {record['repeated']}."
    return f"{head}\n\n{table(['', *columns_of(record['rows'])], lines)}"


def verdicts(claims: Sequence[Any]) -> str:
    rows = []
    for one in claims:
        interval = one["interval"]
        sure = "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
        p = "" if one["p"] is None else f"{one['p']:.2g}"
        right = f"{one['right']} of {one['repetitions']}"
        holm = f"{one['p_holm']:.2g}" if one.get("p_holm") is not None else ""
        verdict = one["verdict"] if one["verdict"] == "undecided" else f"**{one['verdict']}**"
        claim = f"{one['claim']} ({one['source']})" if one["source"] else one["claim"]
        effect, over = f"{one['effect']:.2f}", one["over"] or ""
        rows.append([verdict, claim, effect, sure, p, holm, over, right, reason(one)])
    head = ["verdict", "claim", "effect", "95 %", "p", "Holm", "over", "repetitions that agree"]
    head += ["why it is not simply reproduced"]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)
