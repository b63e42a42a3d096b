"""The benchmark of decoding, on a tiny model."""

import pytest

from softbeam.errors import UserError
from softbeam.experiments.bench import decode
from softbeam.search.live import live_beam_search

TINY = {"repeats": 1, "vocab": 40, "width": 16, "layers": 1, "k": 2, "steps": 5}


def test_every_search_has_a_row_in_every_case():
    lines: list[str] = []
    results = decode.run(**TINY, progress=lines.append)
    rows = {(row["case"], row["search"]): row for row in results["rows"]}
    assert len(lines) == len(rows) and {case for case, _ in rows} == {c.name for c in decode.CASES}
    for case in decode.CASES:
        assert rows[case.name, "generate"]["ratio"] == 1.0
        assert rows[case.name, "live"]["same"] == 1.0 and rows[case.name, "beam"]["seconds"] > 0
    early, full = (rows[case.name, "live"]["tokens"] for case in (decode.CASES[3], decode.CASES[2]))
    assert early < full == 64 * 5


def test_other_outputs_are_no_comparison(monkeypatch):
    def wrong(decoder, **knobs):
        hypotheses = live_beam_search(decoder, **knobs)
        return hypotheses._replace(tokens=hypotheses.tokens + 1)

    monkeypatch.setattr(decode, "live_beam_search", wrong)
    with pytest.raises(UserError, match="1 sentence: other outputs than those of generate"):
        decode.run(**TINY)
