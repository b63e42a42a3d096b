"""A full disk, or one that cannot be written, is a sentence, and what was there can go on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.nn import Linear

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.runtime.files import Growing, load_checkpoint, write_atomic
from softbeam.sampling.texts.files import read_samples
from softbeam.training.runs import save_weights
from support.disks import Disk
from support.forked_commands import Aim
from support.requirements import absent
from support.small_data import write_data
from support.small_runs import files_of, result, sample_words, train_words

FULL = "cannot be written: No space left on device"


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[int], Disk]]:
    """Makes a disk of a size."""
    made = []

    def make(size: int) -> Disk:
        try:
            made.append(Disk(tmp_path / f"disk-{len(made)}", size))
        except OSError as error:
            absent(f"no disk can be mounted: {error}")
        return made[-1]

    yield make
    for one in made:
        one.remove()


def words(whole_run: Path, out: Path, *more: str) -> list[str]:
    return train_words(whole_run.parent / "a.conll", out, *more)


def one_sentence(said: str) -> str:
    """What was said, which is one line."""
    assert said.count("\n") == 1 and said.endswith("\n"), said
    return said


@pytest.mark.slow
def test_training_on_a_full_disk_keeps_its_last_checkpoint(nursery, whole_run, disk, tmp_path):
    """There is room for a checkpoint beside the last one, until there are weights too."""
    probe = tmp_path / "probe"
    assert nursery.life(words(whole_run, probe), Aim("update", 3, signum=15)).code == 143
    size = (probe / "checkpoint.safetensors").stat().st_size
    others = sum(pages(path) for path in whole_run.iterdir())  # with the weights
    small = disk(others + 2 * size - 4096)
    out = small.folder / "run"
    end = nursery.life(words(whole_run, out))
    assert end.code == 2 and FULL in one_sentence(end.said), end
    assert str(out / "checkpoint.safetensors") in end.said
    tensors, facts = load_checkpoint(out / "checkpoint.safetensors")
    assert facts["update"] > 0 and not [p for p in files_of(out) if "part" in p]
    assert nursery.life(words(whole_run, out, "--resume")).code == 2, "still full"
    small.become("size=10m")
    assert nursery.life(words(whole_run, out, "--resume")).code == 0
    assert result(out) == result(whole_run)


def pages(path: Path) -> int:
    """Bytes that a file takes on a disk of memory."""
    return -(-path.stat().st_size // 4096) * 4096


@pytest.mark.slow
def test_training_where_no_file_may_be_larger_than_the_first_checkpoint(
    nursery, whole_run, tmp_path
):
    """A limit of the process, which needs no rights; later checkpoints have Adam's moments."""
    probe, out = tmp_path / "probe", tmp_path / "run"
    assert nursery.life(words(whole_run, probe), Aim("update", 1)).hit == "update"
    size = (probe / "checkpoint.safetensors").stat().st_size
    end = nursery.life(words(whole_run, out), largest=size + 500)
    assert end.code == 2 and "cannot be written: File too large" in one_sentence(end.said)
    assert load_checkpoint(out / "checkpoint.safetensors")[1]["update"] == 0
    assert nursery.life(words(whole_run, out, "--resume")).code == 0
    assert result(out) == result(whole_run)


@pytest.mark.slow
def test_training_in_a_folder_that_can_no_longer_be_written(nursery, whole_run, disk):
    place = disk(10_000_000)
    out = place.folder / "run"
    place.become("ro")
    end = nursery.life(words(whole_run, out))
    assert end.code == 2 and "cannot be written: " in one_sentence(end.said)
    place.become("rw")
    assert nursery.life(words(whole_run, out), Aim("update", 4, signum=15)).code == 143
    before = (out / "checkpoint.safetensors").read_bytes()
    place.become("ro")
    end = nursery.life(words(whole_run, out, "--resume"))
    assert end.code == 2 and "cannot be written: " in one_sentence(end.said)
    assert (out / "checkpoint.safetensors").read_bytes() == before
    place.become("rw")
    assert nursery.life(words(whole_run, out, "--resume")).code == 0
    assert result(out) == result(whole_run)


@pytest.mark.slow
def test_sampling_on_a_full_disk_keeps_whole_lines(nursery, letters_mlm, whole_samples, disk):
    small = disk(8 * 4096)
    out = small.folder / "s.jsonl"
    end = nursery.life(sample_words(letters_mlm, out))
    assert end.code == 2 and FULL in one_sentence(end.said), end
    rows = list(read_samples(out))
    assert (
        out.read_bytes().endswith(b"\n") and rows == list(read_samples(whole_samples))[: len(rows)]
    )
    small.become("size=10m")
    assert nursery.life(sample_words(letters_mlm, out, "--resume")).code == 0
    assert out.read_bytes() == whole_samples.read_bytes()


def test_a_line_that_does_not_fit_is_cut_off_again(disk):
    """Also where a first part of it did fit; nothing is tried again when the file is closed."""
    path = disk(3 * 4096).folder / "lines"
    write_atomic(path, b"first\n")
    with Growing(path, 6) as file, pytest.raises(UserError, match=FULL):
        file.append(b"x" * 5000 + b"\n")
        file.append(b"y" * 9000 + b"\n")
    assert path.read_bytes() == b"first\n" + b"x" * 5000 + b"\n"


def test_weights_that_do_not_fit_leave_the_old_ones(disk):
    path = disk(5 * 4096).folder / "model.safetensors"
    save_weights(Linear(20, 40), path)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"model.safetensors cannot be written: .*No space left"):
        save_weights(Linear(60, 80), path)
    assert path.read_bytes() == before and files_of(path.parent) == {path.name}


def test_a_place_below_a_file_is_a_sentence(tmp_path, capsys):
    data, out = write_data(tmp_path), tmp_path / "a.conll" / "run"
    assert main(train_words(data, out)) == 2
    assert "cannot be written: Not a directory" in one_sentence(capsys.readouterr().err)
