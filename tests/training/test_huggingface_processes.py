"""Two processes of a `SearchAwareTrainer` under DDP: the losses and weights of one."""

import json
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from support.trainer_programs import OBJECTIVES, train_both

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(nursery, tmp_path_factory):
    """The folders of one process and of two."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    train_both([str(one)])
    end = nursery.life([str(two)], program="support.trainer_programs:train_both", ranks=2)
    assert end.code == 0, end.said
    return one, two


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_give_the_losses_and_weights_of_one(name, both):
    losses = [json.loads((folder / f"{name}.json").read_text()) for folder in both]
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], rel=0, abs=1e-6)
    one, two = (load_file(folder / f"{name}.weights") for folder in both)
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-5)


def test_a_process_that_stops_is_named(nursery, tmp_path):
    """The other one would wait for half an hour."""
    nursery.begin([str(tmp_path)], program="support.trainer_programs:stop_one", ranks=2)
    started = psutil.Process(nursery.process.pid)

    def stopped() -> list[psutil.Process]:
        return [c for c in started.children(recursive=True) if c.status() == psutil.STATUS_STOPPED]

    wait_until(stopped)
    wait_until(lambda: len(started.children(recursive=True)) == 2)  # it, and who started it
    stopped()[0].kill()
    end = nursery.end()
    expected = "softbeam: rank 0 ends: rank 1 has not answered for 1 s (stopped, or its machine is"
    assert end.code != 0 and expected in end.said, end.said


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
