"""Records of benchmarks: other work on the machine, and all benchmarks in one go."""

import io
import json
from importlib import import_module

import pytest

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.experiments.bench import records
from softbeam.experiments.bench.records import Clocks, busy_seconds, other_work, recorded, verdict

bench = import_module("softbeam.cli.bench")  # the package has a function of that name


def test_other_work_is_what_the_processors_did_beside_us(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 9999 8888 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert busy_seconds(stat) == pytest.approx(1.65)  # of 100 ticks a second
    assert busy_seconds(tmp_path / "none") is None
    before, after = Clocks(10.0, 50.0, 1.0), Clocks(20.0, 65.0, 10.0)
    assert other_work(before, after) == pytest.approx(0.6)
    assert other_work(before, after._replace(busy=None)) is None


@pytest.mark.parametrize(
    ("others", "said"), [(0.02, "quiet: "), (1.5, "NOT QUIET: "), (None, "is not known")]
)
def test_a_figure_is_called_quiet_only_if_it_was(monkeypatch, others, said):
    monkeypatch.setattr(records, "other_work", lambda before, after: others)
    record = recorded(["train", "--repeats", "1"], lambda: {"rows": []})
    assert record["quiet"] is (others == 0.02) and said in verdict(record)
    assert record["command"] == "softbeam bench train --repeats 1"


def test_a_record_stays_in_its_folder_whatever_paths_are_measured(tmp_path):
    command = "softbeam bench hollow --plain /models/plain --texts ../dev.txt"
    path = records.write_record({"command": command, "found": 1}, tmp_path / "records")
    assert path == tmp_path / "records" / "hollow-plain-plain-texts-dev.txt.json"
    assert json.loads(path.read_text())["found"] == 1


class Finished(io.StringIO):
    """A process that has printed its figures."""

    returncode = 0

    @property
    def stdout(self) -> "Finished":
        return self


def test_all_benchmarks_are_run_and_the_busy_ones_named(monkeypatch, capsys):
    commands: list[list[str]] = []

    def start(command: list[str], **_) -> Finished:
        commands.append(command[4:])
        return Finished("a line\n" + json.dumps({"quiet": command[4] != "decode"}) + "\n")

    monkeypatch.setattr(bench, "Popen", start)
    assert main(["bench", "all", "--record", "DIR", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(words[:-3]) for words in commands] == list(bench.ALL)
    assert all(words[-3:] == ["--record", "DIR", "--json"] for words in commands)
    assert lines[-2] == "not quiet: decode" and list(json.loads(lines[-1])) == list(bench.ALL)
    monkeypatch.setattr(Finished, "returncode", 1)
    with pytest.raises(UserError, match="softbeam bench train ended with 1"):
        bench.bench_all([])
