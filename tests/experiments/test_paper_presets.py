"""Every table of `softbeam reproduce --preset paper`, on toy data and in toy size."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.experiments import reproduce
from softbeam.experiments.energies import tables as energies
from softbeam.experiments.order import Order
from softbeam.experiments.samplers import (
    cells as sampling_cells,
    finished,
    tables as samplers,
)
from softbeam.experiments.samplers.models import masked, models
from softbeam.experiments.search_aware import (
    cells as training_cells,
    runs,
)
from softbeam.training import many, runs as trained
from softbeam.training.config import RunConfig, to_json, to_yaml
from support.small_data import SENTENCES, TAGS
from support.toys import three_tokens

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(short_corpora, tmp_path_factory):
    """A folder with the files that the preset reads below data/, where commands are run."""
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        write_data()
        plans = {name: smaller(name, group) for name, group in runs.paper().items()}
        patch.setattr(runs, "paper", lambda: plans)
        forget_planned_runs()
        remember_configurations(patch)
        few, small = energies.PRESETS["paper"], energies.PRESETS["tiny"]
        knobs = {name: getattr(small, name) for name in ("sizes", "phoneme_size", "figure")}
        knobs |= {name: getattr(small, name) for name in ("figure_phonemes", "teacher")}
        patch.setitem(
            energies.PRESETS,
            "paper",
            replace(
                few,
                synthetic={**few.synthetic, **small.synthetic},
                phonemes={**few.phonemes, **small.phonemes},
                projection={**few.projection, "updates": 4},
                teacher_knobs={**few.teacher_knobs, "updates": 4, "every": 2},
                **knobs,
            ),
        )
        patch.setattr(sampling_cells, "likeliest_lengths", three_tokens)
        patch.setattr(finished, "DRAWS", 20)
        two = {"transcription": 2}
        patch.setitem(
            samplers.PRESETS,
            "paper",
            replace(samplers.PRESETS["paper"], sources=two, full=two, sweeps=2, burn_in=1),
        )
        models(Order(folder=folder, seeds=[1], preset="tiny", quiet=True))
        yield folder
    forget_planned_runs()


def forget_planned_runs():
    """Forget what was computed of other settings of the presets."""
    runs.runs.cache_clear()
    training_cells.settings_of.cache_clear()


def smaller(name, group):
    """As in the preset tiny, with even fewer sentences, and restarts in one group alone."""
    group = runs.shrunk(group)
    few = {"data": replace(group.base.data, limit=8), "restarts": 2 if name == "ccg-uni" else 1}
    return replace(group, base=replace(group.base, threads=1, **few))


def remember_configurations(patch):
    """Read configurations that this process wrote from memory: a parser takes 0.2 s for each."""
    configs: dict[str, RunConfig] = {}

    def remembering(write):
        def written(config):
            configs[text := write(config)] = config
            return text

        return written

    patch.setattr(many, "to_json", remembering(to_json))
    patch.setattr(many, "from_text", configs.__getitem__)
    patch.setattr(trained, "to_yaml", remembering(to_yaml))
    patch.setattr(trained, "from_yaml", lambda path: configs[path.read_text()])


def write_data():
    """Write CCGbank, CoNLL and parallel files of eight sentences."""
    data = Path("data")
    for name in ("ccgbank", "conll2003-de", "iwslt14"):
        (data / name).mkdir(parents=True)
    tags = [[(word, TAGS[word]) for word in sentence.split()] for sentence in SENTENCES]
    for split in ("train", "dev", "test"):
        (data / "ccgbank" / f"{split}.auto").write_text("".join(map(derivation, tags)))
    for split in ("train", "testa", "testb"):
        entities = [[(w, "B-PER" if t == "N" else "O") for w, t in pairs] for pairs in tags]
        blocks = ["".join(f"{word} {tag}\n" for word, tag in pairs) for pairs in entities]
        (data / "conll2003-de" / f"deu.{split}").write_text("\n".join(blocks))
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            (data / "iwslt14" / f"{split}.{language}").write_text("\n".join(SENTENCES) + "\n")


def derivation(pairs):
    """A flat derivation: CCGbank's brackets around leaves."""
    leaves = " ".join(f"(<L {tag} {tag} {tag} {word} {tag}>)" for word, tag in pairs)
    return f"ID=x PARSER=GOLD NUMPARSE=1\n(<T S 0 {len(pairs)}> {leaves} )\n"


def test_the_preset_paper_keeps_its_restarts():
    assert {plan.config.restarts for plan in runs.runs("paper").values()} == {3}


@pytest.mark.parametrize("what", [what for what in reproduce.TARGETS if what.startswith("table")])
def test_the_preset_paper_computes_every_table(folder, what, capsys):
    words = ["reproduce", what, "--preset", "paper", "--seeds", "1", "--jobs", "1", "--quiet"]
    run = ["--models", str(masked("tiny", 1).folder(folder))] if what in reproduce.SAMPLED else []
    assert main([*words, *run, "--out", str(folder / "out")]) == 0, capsys.readouterr().err
    record = json.loads((folder / "out" / f"{what}.json").read_text())
    assert record["preset"] == "paper"
    assert record["rows"]
    if what in ("table-4.1", "table-5.2", "table-5.3"):
        assert list((folder / "out" / "runs" / "ccg-uni").glob("*/*/restart-1"))
