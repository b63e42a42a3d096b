"""Runs that were written before configurations lost their module paths stay usable."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from softbeam.cli import main
from softbeam.cli.train import parse_run
from softbeam.experiments.search_aware.cells import training
from softbeam.training.api import train
from softbeam.training.config import from_text, from_yaml, settings_of, to_json, to_yaml
from softbeam.training.recipes import RECIPES

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_before_packages"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of the two old runs and their data; the working directory."""
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["update"], row["loss"]) for row in rows if row["kind"] == "train"]


@pytest.mark.slow
def test_an_old_configuration_has_module_paths_and_a_new_one_has_none(folder):
    old = (folder / "finished" / "config.yaml").read_text()
    new = to_yaml(from_yaml(folder / "finished" / "config.yaml"))
    assert old.count("class_path: softbeam.") == 6
    assert "softbeam." not in new and "class_path: DirectLoss" in new
    (folder / "new.yaml").write_text(new)
    assert from_yaml(folder / "new.yaml") == from_yaml(folder / "finished" / "config.yaml")


def test_an_old_run_decodes(folder, capsys):
    (folder / "in.txt").write_text("the old man runs\n")
    assert main(["decode", "finished", "--input", "in.txt", "--search", "beam", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == [
        "D",
        "D",
        "N",
        "V",
    ]  # as the code of that time had it


@pytest.mark.slow
def test_an_old_run_that_was_stopped_goes_on_to_the_same_end(folder):
    words = json.loads((folder / "finished" / "environment.json").read_text())["command"][1:-1]
    new = {"--select.method": "--select", "--select.beam": "--select.k"}  # flags were renamed
    words = [new.get(word, word) for word in words]
    assert main([*words, "stopped", "--resume", "--quiet"]) == 0
    finished, resumed = (
        load_file(folder / r / "model.safetensors") for r in ("finished", "stopped")
    )
    assert_close(resumed, finished, atol=1e-5, rtol=1e-5)
    before, after = losses(folder / "finished"), losses(folder / "stopped")
    assert [update for update, _ in after] == [update for update, _ in before]
    assert [x for _, x in after] == pytest.approx([x for _, x in before], abs=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_a_recipe_survive_json(name):
    config = RECIPES[name]()
    assert from_text(to_json(config)) == config
    assert json.loads(to_json(config)) == settings_of(config, whole=False)


CELLS = {  # as they were before models read characters
    ("cpu", "ccg-uni/direct-annealed"): "be6351688f55",
    ("cpu", "ccg-bi/sn-global"): "8999f449894d",
    ("cpu", "ner/ce"): "1d93f4b6932e",
    ("cpu", "mt/local"): "fe488be53a1c",
    ("paper", "ccg-uni/direct-annealed"): "27c243e98f38",
    ("paper", "ner/ce"): "39a37830a2fd",
    ("paper", "mt/local"): "1f3c92dbfbf1",
    ("tiny", "ccg-bi/sn-global"): "c08978d5fcf2",
}


@pytest.mark.parametrize(("preset", "run"), CELLS)
def test_settings_that_were_added_change_no_cell_of_a_table(preset, run):
    assert training(preset, run, 1).settings == CELLS[preset, run]


@pytest.mark.slow
def test_settings_that_were_added_are_off_in_an_old_file_and_on_in_the_recipe(folder):
    def characters(*words: str) -> int:
        return parse_run("train", ["tagging", *words])[0].model.characters

    (folder / "part.yaml").write_text("model: {class_path: Lstm, init_args: {hidden: 64}}\n")
    assert characters("--config", "finished/config.yaml") == 0
    assert characters("--config", "part.yaml") == characters() > 0
    assert from_yaml(folder / "finished" / "config.yaml").model.characters == 0


@pytest.mark.slow
def test_a_run_goes_on_from_python_with_the_settings_it_began_with(folder):
    run = train("tagging", folder / "stopped", resume=True, quiet=True)
    assert run.config == from_yaml(folder / "finished" / "config.yaml")
    assert load_file(folder / "stopped" / "model.safetensors")
