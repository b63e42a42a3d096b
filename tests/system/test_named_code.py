"""No file makes softbeam import or call what is not softbeam's, unless the command line allows it.

Each attack would leave a witness: a file that its code writes. Every door by which a configuration
comes in refuses it, in one line, and no witness appears.
"""

import json
import pickle
import sys
from pathlib import Path

import pytest
import yaml

import softbeam
from softbeam.cli import main
from softbeam.data.tasks import Tagging
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime.cells import cell_of, settings, work_named
from softbeam.training.config import OURS, RunConfig, Stage, modules_of, to_yaml
from softbeam.training.many import Planned
from softbeam.training.runs import load_run
from support.grid_cells import Cell

WITNESS = "witness"
MINE = """
from dataclasses import dataclass
from pathlib import Path

from softbeam.objectives.likelihood import CrossEntropy

Path("witness").write_text("imported")


@dataclass(frozen=True, kw_only=True)
class Doubled(CrossEntropy):
    weight: float = 2.0
"""


class Witness:
    """An object whose pickle writes the witness."""

    def __reduce__(self):
        return (Path.write_text, (Path(WITNESS), "unpickled"))


def named(path: str, /, **given: object) -> dict:
    return {"class_path": path, "init_args": given}


def distilled(load: str, teacher: str) -> dict:
    return {"finetune": {"objective": named("Distillation", teacher=teacher, load=load)}}


def objective(path: str, /, **given: object) -> dict:
    return {"finetune": {"objective": named(path, **given)}}


TOUCH = f"touch {WITNESS}"
ATTACKS = {
    "a native library": distilled("torch.classes.load_library", "evil.so"),
    "a shell command": distilled("torch.utils.collect_env.run", TOUCH),
    "a pickle": distilled("pandas.read_pickle", "evil.pkl"),
    "a test run": distilled("pytest.main", "evil"),
    "a loader of our own": distilled("softbeam.runtime.files.remove", "evil.pkl"),
    "a pickle as an objective": objective("pandas.read_pickle", filepath_or_buffer="evil.pkl"),
    "a command as a cost": objective(
        "DirectLoss", cost=named("Custom", function="torch.utils.collect_env.run")
    ),
    "a command as a cost by its path": objective(
        "DirectLoss", cost=named("torch.utils.collect_env.run", command=TOUCH)
    ),
    "a metric": objective("MinimumRisk", metric="torch.utils.collect_env.run"),
    "a metric that is made": objective("MinimumRisk", metric=named("pytest.main", args=[])),
    "a rival's cost": objective("BeamSearchOptimization", delta="pytest.main"),
    "a module of the folder": objective("mine.Doubled"),
    "a schedule": objective("DirectLoss", alpha=named("mine.Doubled")),
    "a model": {"model": named("mine.Doubled")},
    "a search": {"select": named("torch.classes.load_library", path="evil.so")},
    "data": {"data": named("pytest.main")},
    "a class of ours that is not for files": objective("KlProjection", teacher="x"),
    "its own permission": {"allow_module": "mine"} | objective("mine.Doubled"),
}
GIVEN = {
    "train": "train tagging --data.train d.conll --config x.yaml --out o",
    "compare": "compare tagging --data.train d.conll --config x.yaml --try a:  --try b: --out o",
    "sweep": "sweep tagging --data.train d.conll --config x.yaml --over model.hidden=2,3 --out o",
}
FOLDER = {
    "train --resume": "train tagging --data.train d.conll --resume --out run",
    "decode": "decode run --input d.conll",
    "evaluate": "evaluate run",
    "export": "export run --out o",
    "analyze": "analyze run --out o",
    "report": "report run --out o.html",
    "reproduce": "reproduce table-6.2 --models run --preset tiny --out o",
}


def base() -> RunConfig:
    stage = Stage(objective=CrossEntropy(), epochs=1)
    return RunConfig(data=Tagging(train="d.conll"), model=Lstm(hidden=4), pretrain=stage)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, in which code of a user's own can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(MINE)
    Path("evil.pkl").write_bytes(pickle.dumps(Witness()))
    Path("d.conll").write_text("the\tD\ncat\tN\n\na\tD\ndog\tN\n\n" * 4)
    Path("run").mkdir()
    return tmp_path


def write_attack(attack: dict) -> str:
    """Write the attack as a file of its own, and into a run's; returns it as JSON."""
    whole = yaml.safe_load(to_yaml(base())) | attack
    Path("x.yaml").write_text(yaml.safe_dump(attack))
    Path("run/config.yaml").write_text(yaml.safe_dump(whole))
    return json.dumps(whole)


def refused(words: str, capsys) -> None:
    assert main(words.split()) == 2, words
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, (words, error)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_every_door_refuses_code_that_a_file_names(attack, folder, capsys):
    text = write_attack(attack)
    before = sorted(folder.rglob("*"))
    for words in GIVEN.values():
        refused(words, capsys)
    with pytest.raises(UserError, match="is not a run configuration"):
        load_run("run")
    for work in ("softbeam.training.many:train_planned", "softbeam.training.many:train_quietly"):
        run = work_named(work)
        cell = cell_of(run, settings(Planned(name="o", config=text)))
        with pytest.raises(UserError, match="the text is not a run configuration"):
            run(cell, folder)
    assert sorted(folder.rglob("*")) == before, "no witness, and nothing was begun"
    assert "mine" not in sys.modules


@pytest.mark.parametrize("words", FOLDER.values(), ids=FOLDER)
def test_every_command_refuses_a_folder_that_names_code(words, folder, capsys):
    for name in ("a shell command", "a module of the folder"):
        write_attack(ATTACKS[name])
        refused(words, capsys)
    assert not Path(WITNESS).exists() and "mine" not in sys.modules


@pytest.mark.slow
def test_the_attacks_would_leave_a_witness(folder):
    """What the files name does run if something calls it."""
    import pandas
    import torch.utils.collect_env

    torch.utils.collect_env.run(TOUCH)
    assert Path(WITNESS).exists()
    Path(WITNESS).unlink()
    pandas.read_pickle("evil.pkl")
    assert Path(WITNESS).read_text() == "unpickled"
    with pytest.raises(OSError, match="evil.so"):
        torch.classes.load_library("evil.so")


def test_the_message_names_what_would_allow_it(folder, capsys):
    write_attack(ATTACKS["a module of the folder"])
    main(GIVEN["train"].split())
    wanted = "cannot name mine.Doubled, which is not softbeam's; if you trust that code, add"
    assert f"{wanted} --allow-module mine (with x.yaml)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_module_is_allowed_for_one_command_alone(folder, capsys):
    """Its run can be read again only with the same word, by every command and from Python."""
    words = "train tagging --data.train d.conll --data.dev d.conll --objective mine.Doubled"
    words += " --model.hidden 4 --pretrain.epochs 1 --finetune.epochs 1 --quiet --out trained"
    assert main([*words.split(), "--allow-module", "mine"]) == 0, capsys.readouterr().err
    assert Path(WITNESS).read_text() == "imported"
    assert "class_path: mine.Doubled" in Path("trained/config.yaml").read_text()
    evaluate = "evaluate trained --quiet".split()
    assert main(evaluate) == 2 and "--allow-module mine" in capsys.readouterr().err
    assert main([*evaluate, "--allow-module=mine"]) == 0
    with pytest.raises(UserError, match="--allow-module mine"):
        load_run("trained")
    run = softbeam.load_run("trained", allow_modules=["mine"])
    assert run.config.finetune.objective.weight == 2.0
    assert modules_of(run.config) == {"mine"}
    again = softbeam.train(run.config, "again", quiet=True)
    assert again.config == run.config, "an object of the program's own needs no permission"


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "softbeam", "softbeam.runtime", "jsonargparse"]
)
def test_a_name_that_cannot_be_allowed(name, capsys):
    assert main(["evaluate", "run", "--allow-module", name]) == 2
    assert capsys.readouterr().err.startswith(f"softbeam evaluate: --allow-module {name}: must be")


def test_classes_of_the_allowlist_are_ours_and_have_no_field_for_a_function():
    from dataclasses import fields

    for kind in OURS:
        assert kind.__module__.startswith("softbeam.")
        for field in fields(kind):
            assert "Callable" not in str(field.type) and "Any" not in str(field.type), field


def test_a_cell_can_name_no_other_function_and_no_other_folder():
    for name in ("softbeam.runtime.cells:import_module", "softbeam.training.runs:load_run"):
        with pytest.raises(UserError, match="is not a function of softbeam that computes cells"):
            work_named(name)
    run = work_named("softbeam.training.many:train_quietly")
    for place in ("../x", "/tmp/x", "a/b", "..", ""):
        with pytest.raises(UserError, match="must be the name of a folder"):
            cell_of(run, {"cell": "Planned", "name": place, "config": "{}"})
    with pytest.raises(UserError, match="Planned cannot be made"):
        cell_of(run, settings(Cell(x=1)))
