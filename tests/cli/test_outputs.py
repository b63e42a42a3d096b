"""No command replaces what it was not asked to replace, nor writes what another one writes."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.runtime.locks import owned
from support.bad_input.things import SAMPLE, SHORT, TAGS
from support.other_processes import end, holding

CONVERT = "models convert fairseq/checkpoint.pt --source-dict fairseq/de.txt".split()
CONVERT += "--target-dict fairseq/en.txt".split()
DECODE = "decode run --input in.txt --quiet".split()
EVALUATE = "evaluate run --split dev --quiet".split()
TRY = ["--try", "a: --pretrain.lr 0.01", "--try", "b: --pretrain.lr 0.02", "--quiet"]
COMPARE = ["compare", *TAGS[1:], *SHORT, *TRY]
SWEEP = ["sweep", *TAGS[1:], *SHORT, "--over", "pretrain.lr=0.01"]
REPRODUCE = "reproduce figure-3.1 --preset tiny --quiet --jobs 1".split()
DEMO = "demo --quick --quiet --words 40".split()


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(words: list[str], capsys) -> str:
    """The line that a command prints that is refused and changes nothing."""
    before = content(Path.cwd())
    capsys.readouterr()
    assert main(words) == 2
    assert content(Path.cwd()) == before, "something has changed"
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    return said.err


HOLDERS = {  # command, and what another process holds meanwhile
    "train": ([*TAGS, *SHORT, "--out", "new"], "new"),
    "train, resumed": ([*TAGS, *SHORT, "--out", "stopped", "--resume"], "stopped"),
    "train, replaced": ([*TAGS, *SHORT, "--out", "run", "--overwrite"], "run"),
    "restarts": ([*TAGS, *SHORT, "--out", "new", "--restarts", "2"], "new"),
    "compare": ([*COMPARE, "--out", "new"], "new"),
    "sweep": ([*SWEEP, "--out", "new"], "new"),
    "reproduce": ([*REPRODUCE, "--out", "new"], "new"),
    "convert": ([*CONVERT, "--out", "new"], "new"),
    "analyze": ("analyze run --beams 1 --quiet --out new".split(), "new"),
    "sample": ([*SAMPLE, "--out", "new.jsonl"], "new.jsonl"),
    "sample, resumed": ([*SAMPLE, "--out", "stopped.jsonl", "--resume"], "stopped.jsonl"),
    "samples with one plot": ([*SAMPLE, "--out", "new.txt"], "new.png"),
    "decode": ([*DECODE, "--output", "new.txt"], "new.txt"),
    "evaluate": ([*EVALUATE, "--output", "new.txt"], "new.txt"),
    "report": ("report run --out new.html".split(), "new.html"),
    "figure": ("report figure-3.1 --out new.png".split(), "new.png"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDERS)
def test_what_another_process_writes_is_not_written(here, name, capsys):
    words, output = HOLDERS[name]
    if output == "new":
        Path(output).mkdir()
    with holding(partial(owned, Path(output))) as child:
        said = refused(words, capsys)
        assert f"{output} is being written by process {child} on " in said
        assert said.rstrip().endswith("(softbeam train tagging --out held)")


@pytest.mark.slow
def test_a_killed_holder_frees_the_folder_at_once(here, capsys):
    words = [*TAGS, *SHORT, "--out", "new"]
    Path("new").mkdir()
    with holding(partial(owned, Path("new"))) as child:
        assert main(words) == 2
        end(child)
        assert main(words) == 0
    assert ".softbeam-lock" not in content(Path("new"))


EXISTING = {  # command, and how the message ends
    "a finished run": ([*TAGS, *SHORT, "--out", "run"], "run holds a finished run: --resume keeps"),
    "a stopped run": (
        [*TAGS, *SHORT, "--out", "stopped"],
        "stopped holds a run that has not finished: --resume keeps it and goes on, --overwrite",
    ),
    "restarts": (
        [*TAGS, *SHORT, "--out", "run", "--restarts", "2", "--resume"],
        "run holds a run without restarts",
    ),
    "a folder of a model": ([*TAGS, *SHORT, "--out", "mlm"], "mlm is not empty, and softbeam did"),
    "resuming a model": ([*TAGS, *SHORT, "--out", "mlm", "--resume"], "softbeam did not write"),
    "replacing a model": ([*TAGS, *SHORT, "--out", "mlm", "--overwrite"], "softbeam did not write"),
    "the current folder": ([*TAGS, *SHORT, "--out", "."], "softbeam did not write"),
    "all of it": ([*TAGS, *SHORT, "--out", ".", "--overwrite"], "softbeam did not write"),
    "its start": (
        [*TAGS, *SHORT, "--warm_start", "run", "--out", "run"],
        "run is an input of this command",
    ),
    "its start, replaced": (
        [*TAGS, *SHORT, "--warm_start", "run", "--out", "run", "--overwrite"],
        "run is an input of this command",
    ),
    "its start, under another name": (
        [*TAGS, *SHORT, "--warm_start", "run", "--out", "./mlm/../run", "--overwrite"],
        "run is an input of this command",
    ),
    "compare": ([*COMPARE, "--out", "tables"], "tables is not empty, and softbeam did not write"),
    "compare, replaced": ([*COMPARE, "--out", "new", "--overwrite"], "finished runs in --out are"),
    "sweep": ([*SWEEP, "--out", "mlm"], "mlm is not empty, and softbeam did not write"),
    "reproduce": ([*REPRODUCE, "--out", "mlm"], "mlm is not empty, and softbeam did not write"),
    "a run to sample from": (
        "reproduce table-6.2 --preset tiny --quiet --jobs 1 --models cm --out cm".split(),
        "cm is an input of this command",
    ),
    "demo": ([*DEMO, "--out", "mlm"], "mlm is not empty, and softbeam did not write"),
    "convert": ([*CONVERT, "--out", "run"], "run holds a finished run: --overwrite replaces it"),
    "convert, its own": (
        [*CONVERT, "--out", "fairseq", "--overwrite"],
        "fairseq is not empty, and softbeam did not write",
    ),
    "analyze": ("analyze run --beams 1 --quiet --out mlm".split(), "softbeam did not write"),
    "samples": (
        [*SAMPLE, "--out", "done.jsonl"],
        "done.jsonl exists; --resume goes on with it, --overwrite replaces it",
    ),
    "a summary": ([*SAMPLE, "--out", "done"], "done.json exists"),
    "a plot": ([*SAMPLE, "--out", "done.txt"], "done.png exists"),
    "samples that are a plot": (
        [*SAMPLE, "--out", "s.png"],
        "--out s.png: the plot has the same name; give a name that ends in .jsonl",
    ),
    "resumed data": ([*SAMPLE, "--out", "in.txt", "--resume"], "in.txt is not a file of samples"),
    "prompts": (
        [*SAMPLE[:3], "--input", "in.txt", "--out", "in.txt", "--overwrite"],
        "in.txt is an input of this command",
    ),
    "a model's weights": (
        [*SAMPLE, "--out", "mlm/model.safetensors", "--overwrite"],
        "mlm/model.safetensors is an input of this command",
    ),
    "decode": ([*DECODE, "--output", "de.txt"], "de.txt exists; --overwrite replaces it"),
    "its input": ([*DECODE, "--output", "in.txt", "--overwrite"], "in.txt is an input of this"),
    "weights": (
        [*DECODE, "--output", "run/model.safetensors", "--overwrite"],
        "run/model.safetensors is an input of this command",
    ),
    "evaluate": ([*EVALUATE, "--output", "run/model.safetensors"], "is an input of this command"),
    "evaluate, its data": (
        [*EVALUATE, "--output", "dev.conll", "--overwrite"],
        "dev.conll is an input of this command",
    ),
    "report": ("report run --out run/model.safetensors".split(), "is an input of this command"),
    "report, replaced": (
        "report run done.jsonl --out done.jsonl --overwrite".split(),
        "done.jsonl is an input of this command",
    ),
    "a device": ([*DECODE, "--output", "/dev/null", "--overwrite"], "is not a regular file"),
    "a figure": ("report figure-3.1 --out done.png".split(), "done.png exists; --overwrite"),
}


@pytest.mark.parametrize("name", EXISTING)
def test_what_exists_is_not_replaced_without_asking(here, name, capsys):
    words, text = EXISTING[name]
    assert text in refused(words, capsys)


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_an_input_is_recognized_under_another_name(here, link, capsys):
    getattr(Path("other.txt"), link)("in.txt")
    words = [*DECODE, "--output", "other.txt", "--overwrite"]
    assert "other.txt is an input of this command" in refused(words, capsys)


REPLACED = {
    "decode": ([*DECODE, "--output", "de.txt"], "de.txt"),
    "evaluate": ([*EVALUATE, "--output", "de.txt"], "de.txt"),
    "report": ("report run --out de.txt".split(), "de.txt"),
    "samples": ([*SAMPLE, "--seed", "2", "--out", "done.jsonl"], "done.jsonl"),
    "a run": ([*TAGS, *SHORT, "--seed", "2", "--out", "run"], "run/model.safetensors"),
    "a converted run": ([*CONVERT, "--out", "run"], "run/model.safetensors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLACED)
def test_what_the_user_asks_to_replace_is_replaced(here, name, capsys):
    words, path = REPLACED[name]
    before = content(here)
    assert main([*words, "--overwrite"]) == 0
    assert Path(path).read_bytes() != before[path]
    assert not [name for name in content(here) if ".new" in name or "lock" in name]


@pytest.mark.slow
def test_the_old_samples_stay_until_the_new_ones_are_whole(here, monkeypatch, capsys):
    before = content(here)
    words = [*SAMPLE, "--seed", "2", "--out", "done.jsonl", "--checkpoint-every", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("softbeam.sampling.texts.summary.finish", interrupted)
        assert main([*words, "--overwrite"]) == 130
    after = content(here)
    assert {name: after[name] for name in before} == before
    assert main([*words, "--overwrite", "--resume"]) == 0
    assert main([*words[:-2], "--resume"]) == 0  # finished, and with the new seed
    assert main([*SAMPLE, "--seed", "2", "--out", "direct.jsonl"]) == 0
    assert Path("done.jsonl").read_bytes() == Path("direct.jsonl").read_bytes()
    assert content(here).keys() - before.keys() == {"direct.jsonl", "direct.json", "direct.png"}
    assert '"samples": "done.jsonl"' in Path("done.json").read_text()


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_old_run_stays_until_the_new_one_is_whole(here, monkeypatch, capsys):
    before = content(Path("run"))
    words = [*TAGS, *SHORT, "--seed", "2", "--out", "run", "--overwrite"]
    with monkeypatch.context() as patch:
        patch.setattr("softbeam.training.loop.finish", interrupted)
        assert main(words) == 130
    assert content(Path("run")) == before and Path(".run.new/checkpoint.safetensors").exists()
    assert main([*words, "--resume"]) == 0
    assert main([*TAGS, *SHORT, "--seed", "2", "--out", "direct"]) == 0
    new, direct = content(Path("run")), content(Path("direct"))
    assert new["model.safetensors"] == direct["model.safetensors"] and new.keys() == direct.keys()
    assert not Path(".run.new").exists()


def test_standard_output_is_always_free(here, capsys):
    assert main(DECODE) == 0
    text = capsys.readouterr().out
    assert main([*DECODE, "--output", "-"]) == 0
    assert capsys.readouterr().out == text and not Path("-").exists()


@pytest.mark.slow
def test_a_grid_goes_on_in_its_folder_and_beside_other_runs(here, capsys):
    Path("runs").mkdir()
    shutil.copytree("run", "runs/other")
    for _ in range(2):
        assert main([*SWEEP, "--out", "runs"]) == 0
    assert {path.name for path in Path("runs").iterdir()} == {
        "inputs.json", "other", "pretrain.lr=0.01-1", "results", "sweep.json"
    }  # fmt: skip
