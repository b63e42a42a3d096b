"""Searches as configurations name them, their flags, and their older form in files."""

from dataclasses import asdict, replace

import pytest

from softbeam.cli import main
from softbeam.cli.parser import parser
from softbeam.cli.runs import parse_search, search_arguments
from softbeam.cli.train import parse_run
from softbeam.errors import UserError
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.soft_beam import DirectLoss, SoftHinge
from softbeam.schedules import Constant
from softbeam.training.config import RunConfig, from_text, to_json, to_yaml
from softbeam.training.recipes import masked_g2p
from softbeam.training.searches import (
    SEARCHES,
    AncestralSample,
    Beam,
    Greedy,
    MaskPredict,
    SoftBeamSearch,
    from_method,
)

OLD = {  # the one class of older versions, with its defaults
    "method": "greedy",
    "beam": 5,
    "nbest": 1,
    "length_penalty": 0.0,
    "normalize": True,
    "max_ratio": 1.5,
    "max_extra": 10,
    "alpha": 1.0,
    "marginal": False,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "seed": 0,
    "candidates": 5,
    "iterations": 10,
}
TRANSLATED = {
    "greedy": ({"max_extra": 3}, Greedy(max_extra=3)),
    "beam": (
        {"beam": 3, "nbest": 2, "length_penalty": 0.5, "normalize": False},
        Beam(k=3, nbest=2, length_penalty=0.5, normalize=False),
    ),
    "sample": (
        {"temperature": 2.0, "top_k": 7, "top_p": 0.5, "seed": 9},
        AncestralSample(temperature=2.0, top_k=7, top_p=0.5, seed=9),
    ),
    "soft-beam": (
        {"beam": 4, "nbest": 3, "alpha": 2.5, "marginal": True, "max_ratio": 2.0},
        SoftBeamSearch(k=4, nbest=3, alpha=2.5, marginal=True, max_ratio=2.0),
    ),
    "mask-predict": (
        {"candidates": 3, "iterations": 4, "nbest": 2},
        MaskPredict(candidates=3, iterations=4, nbest=2),
    ),
}


def base_of(search) -> RunConfig:
    return RunConfig() if search.left_to_right else masked_g2p()


@pytest.mark.parametrize("method", SEARCHES)
def test_the_older_form_of_a_search_is_read(method):
    changes, expected = TRANSLATED[method]
    config = replace(base_of(expected), select=expected)
    block = "".join(
        f"  {name}: {'null' if value is None else str(value).lower()}\n"
        for name, value in (OLD | {"method": method} | changes).items()
    )
    new = to_yaml(config)
    start, end = new.index("select:\n"), new.index("seed: ", new.index("select:\n"))
    end = new.index("\nseed: ", start) + 1
    old = new[:start] + "select:\n" + block + new[end:]
    assert from_text(old) == config


def test_an_unknown_field_of_the_older_form_is_not_dropped():
    text = to_json(RunConfig())
    with pytest.raises(UserError, match="frob"):
        from_text(text[:-1] + ', "select": {"method": "beam", "frob": 1}}')
    with pytest.raises(UserError, match="not a run configuration"):
        from_text(text[:-1] + ', "select": {"method": "frob"}}')


def test_the_older_form_needs_no_other_fields():
    assert from_method({"method": "beam", "beam": 3}) == {
        "class_path": "Beam",
        "init_args": {"k": 3},
    }


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_survives_its_file(name):
    config = replace(base_of(TRANSLATED[name][1]), select=TRANSLATED[name][1])
    assert from_text(to_json(config)) == config == from_text(to_yaml(config))


def test_another_class_takes_over_what_both_have():
    beam = Beam(k=3, nbest=2, normalize=False, max_extra=1)
    assert beam.to(Greedy) == Greedy(normalize=False, max_extra=1)
    soft = beam.to(SoftBeamSearch, alpha=2.0)
    assert soft == SoftBeamSearch(k=3, nbest=2, alpha=2.0, normalize=False, max_extra=1)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_field_of_a_search_has_a_flag(name, monkeypatch):
    monkeypatch.setattr("softbeam.cli.runs.from_yaml", lambda path: RunConfig())
    expected = TRANSLATED[name][1]
    made = parser("evaluate", "")
    search_arguments(made)
    flags = {"k": "beam"}
    words = ["RUN", "--search", name]
    for field, value in asdict(expected).items():
        words += [f"--{flags.get(field, field.replace('_', '-'))}", str(value).lower()]
    assert parse_search(made, words)[1] == expected


@pytest.mark.slow
def test_the_short_beam_is_that_of_training_and_of_selection(tmp_path, capsys):
    words = ["ccg", "--objective", "direct-loss", "--beam", "5"]
    config, _ = parse_run("train", words)
    assert config.finetune.objective.k == 5 and config.select == Beam(k=5)
    assert parse_run("train", [*words, "--select", "greedy"])[0].select == Greedy()
    assert parse_run("train", [*words, "--select.k", "2"])[0].select == Beam(k=2)
    soft = parse_run("train", [*words, "--select", "soft-beam"])[0].select
    assert soft == SoftBeamSearch(k=5)
    stress = ["stress", "--objective", "direct-loss", "--beam", "5"]
    assert parse_run("train", stress)[0].select == Beam(k=5)
    file = tmp_path / "c.yaml"
    file.write_text("select:\n  method: beam\n  beam: 2\n")
    assert parse_run("train", ["stress", "--config", str(file)])[0].select == Beam(k=2)
    assert parse_run("train", [*stress, "--config", str(file)])[0].select == Beam(k=5)
    with pytest.raises(SystemExit):
        main(["train", *words, "--print_config"])
    assert capsys.readouterr().out.count("k: 5\n") == 2


def test_a_beam_may_come_before_the_objective_and_with_one_that_has_none():
    local = parse_run("train", ["ccg", "--beam", "5", "--objective", "direct-loss"])[0]
    assert local.finetune.objective == DirectLoss(k=5) and local.select == Beam(k=5)
    plain = parse_run("train", ["ccg", "--beam", "5", "--objective", "cross-entropy"])[0]
    assert plain.finetune.objective == CrossEntropy() and plain.select == Beam(k=5)
    alpha = "--finetune.objective.alpha"
    words = [f"{alpha}.value", "4", alpha, "Constant", "--objective", "direct-loss"]
    made = parse_run("train", ["ccg", *words, "--objective", "soft-hinge"])[0].finetune.objective
    assert made == SoftHinge(alpha=Constant(value=4.0))
