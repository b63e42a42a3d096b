"""Short forms of the settings of a stage."""

import pytest

from softbeam.cli import main
from softbeam.cli.train import parse_run

SHORT = ["--epochs", "3", "--lr=0.5", "--batch-tokens", "77"]


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ([], "pretrain"),
        (["--objective", "direct-loss"], "pretrain"),  # both run
        (["--warm-start", "RUN"], "pretrain"),  # which has no second objective
        (["--warm-start", "RUN", "--objective", "direct-loss"], "finetune"),
        (["--warm_start=RUN", "--finetune.objective", "DirectLoss"], "finetune"),
    ],
)
def test_they_are_of_the_first_stage_that_runs(words, stage):
    config, _ = parse_run("train", ["tagging", "--data.train", "x", *words, *SHORT])
    assert config.stages[0][0] == stage
    for name in ("pretrain", "finetune"):
        settings = getattr(config, name)
        values = (settings.epochs, settings.lr, settings.tokens)
        assert values == ((3, 0.5, 77) if name == stage else ("auto", "auto", "auto"))


def test_a_configuration_can_say_which_stage_runs(tmp_path, capsys):
    second = ["--warm-start", "RUN", "--objective", "direct-loss"]
    with pytest.raises(SystemExit):
        main(["train", "tagging", *second, "--print_config"])
    path = tmp_path / "c.yaml"
    path.write_text(capsys.readouterr().out)
    config, _ = parse_run("train", ["tagging", "--config", str(path), *SHORT])
    assert config.finetune.epochs == 3 and config.pretrain.epochs == "auto"


def test_a_wrong_value_names_the_flag(capsys):
    assert main(["train", "tagging", "--epochs", "many"]) == 2
    assert "pretrain.epochs" in capsys.readouterr().err
    assert main(["train", "tagging", "--minutes", "0"]) == 2
    assert "--minutes 0" in capsys.readouterr().err
