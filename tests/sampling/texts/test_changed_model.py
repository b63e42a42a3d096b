"""Samples go on only with the model that they were begun with."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from softbeam.cli import main
from softbeam.models.catalogue import model_files
from support.bad_input.things import SAMPLE

ACCEPT = "--accept-changed-inputs"


def change_weights() -> None:
    path = "mlm/model.safetensors"
    tensors = {name: w * 1.01 for name, w in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["done.jsonl", "stopped.jsonl"])
def test_a_changed_model_is_named_and_can_be_accepted(here, name, capsys):
    words = [*SAMPLE, "--out", name, "--resume"]
    before = Path(name).read_bytes()
    change_weights()
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"softbeam sample: {name} was begun with other content of model.safetensors (mlm); restore "
        "it, or --accept-changed-inputs goes on with it as it is now\n"
    )
    assert Path(name).read_bytes() == before
    assert main([*words, ACCEPT]) == 0
    summary = json.loads(Path(name).with_suffix(".json").read_text())
    assert [list(each["changed"]) for each in summary["header"]["accepted"]] == [
        ["model.safetensors"]
    ]
    assert main([*words, ACCEPT]) == 0
    if name == "done.jsonl":
        assert main(words) == 0, "accepted once for all"


@pytest.mark.slow
def test_a_change_that_was_accepted_stays_accepted_after_another_stop(here, monkeypatch, capsys):
    words = [*SAMPLE, "--out", "new.jsonl", "--resume", "--checkpoint-every", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("softbeam.sampling.texts.files.progress_of", interrupted)  # after a sweep
        assert main(words) == 130
        change_weights()
        assert main(words) == 2
        assert main([*words, ACCEPT]) == 130
    assert main(words) == 0
    assert len(json.loads(Path("new.json").read_text())["header"]["accepted"]) == 1


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_samples_without_digests_go_on(here):
    """As earlier versions wrote them."""
    for name in ("done.jsonl", "done.json"):
        lines = Path(name).read_text().splitlines()
        value = json.loads(lines[0] if name == "done.jsonl" else "\n".join(lines))
        del (value if name == "done.jsonl" else value["header"])["inputs"]
        rest = lines[1:] if name == "done.jsonl" else []
        Path(name).write_text("\n".join([json.dumps(value), *rest]) + "\n")
    change_weights()
    assert main([*SAMPLE, "--out", "done.jsonl", "--resume"]) == 0


def test_the_files_of_a_model_are_those_that_it_is_made_of(here, monkeypatch, tmp_path):
    (here / "mlm" / "README.md").write_text("x")
    names = model_files("mlm")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert "README.md" not in names
    assert model_files("no-such/model") == model_files("../not a name") == {}
