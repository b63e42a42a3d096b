"""Who may use a cluster, what a file may start, and what is left after Ctrl-C."""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import distributed
import psutil
import pytest

from softbeam.errors import UserError
from softbeam.runtime import cluster as clusters
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.grid import Workers, run_grid
from support.dask_processes import TESTS
from support.grid_cells import Cell, lines, ran, square

COMM = "distributed.comm"  # where Dask keeps settings of connections
CELLS = [Cell(x=x) for x in range(3)]


# The network


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    """A file with a key and a certificate, which is also the authority that signed it."""
    made = distributed.Security.temporary()
    path = tmp_path_factory.mktemp("tls") / "all.pem"
    path.write_text(f"{made.tls_client_key}{made.tls_client_cert}")
    return str(path)


@pytest.mark.slow
def test_with_tls_only_those_with_a_certificate_are_served(
    farm, certificate, tmp_path, monkeypatch, capsys
):
    scheduler = farm.scheduler(tls=certificate)
    farm.worker(scheduler, tls=certificate)
    assert scheduler.address.startswith("tls://")
    with monkeypatch.context() as patch, dask.config.set({f"{COMM}.timeouts.connect": "0.3s"}):
        patch.setattr(clusters, "CONNECT", 0.3)
        for address in (scheduler.address, scheduler.address.replace("tls", "tcp")):
            with pytest.raises(UserError, match=f"--cluster {address}: ") as caught:
                run_grid(CELLS, square, tmp_path, workers=Workers(cluster=Cluster(address=address)))
            assert "\n" not in str(caught.value)
            clients = [each for each in gc.get_objects() if type(each).__name__ == "Client"]
            assert all(each.status == "closed" for each in clients), "their end may block others"
    assert not ran(tmp_path)
    files = {"ca-file": certificate, "client.cert": certificate}
    with dask.config.set({f"{COMM}.tls.{name}": path for name, path in files.items()}):
        cluster = Workers(cluster=Cluster(address=scheduler.address))
        run_grid(CELLS, square, tmp_path, workers=cluster, quiet=True)
    assert sorted(ran(tmp_path)) == [0, 1, 2] and "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("tcp://10.0.0.5:8786", True),
        ("tcp://somewhere:8786", True),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tls://10.0.0.5:8786", False),
    ],
)
def test_a_scheduler_that_the_network_sees_without_tls_is_warned_of(address, warned, capsys):
    clusters.warn(address)
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {address} has no TLS: whoever can connect") == warned
    assert warned or not said


@pytest.fixture
def namespace(require_program):
    """A network namespace, joined to this one by a cable: 10.213.7.1 is here, 10.213.7.2 there."""
    ip, name = require_program("ip"), f"softbeam{os.getpid()}"
    steps = [
        f"netns add {name}",
        f"link add sb-here type veth peer name sb-there netns {name}",
        "address add 10.213.7.1/24 dev sb-here",
        "link set sb-here up",
        f"-n {name} address add 10.213.7.2/24 dev sb-there",
        f"-n {name} link set sb-there up",
    ]
    try:
        for step in steps:
            if subprocess.run([ip, *step.split()], capture_output=True).returncode:
                pytest.skip(f"ip {step} does not work here")
        yield [ip, "netns", "exec", name]
    finally:
        subprocess.run([ip, "netns", "del", name], capture_output=True)


@pytest.mark.slow
def test_a_worker_in_another_network_namespace(farm, namespace, tmp_path, capsys):
    scheduler = farm.scheduler(host="10.213.7.1")
    command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.address, "--no-nanny"]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    options = {"env": os.environ | {"PYTHONPATH": path}, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*namespace, *command, "--nthreads", "1"], **options) as worker:
        try:
            cluster = Workers(cluster=Cluster(address=scheduler.address))
            assert run_grid(CELLS, square, tmp_path, workers=cluster)[2] == {"square": 4}
        finally:
            worker.kill()
    said = capsys.readouterr().err
    assert f"warning: {scheduler.address} has no TLS" in said
    assert f"{scheduler.address} has no workers yet: waiting for them" in said


# Ctrl-C

GRID = """
import sys
from pathlib import Path
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.grid import Workers, run_grid
from softbeam.runtime.signals import ending
from support.grid_cells import Cell, hanging

if __name__ == "__main__":
    cells = [Cell(x=x, name="hang") for x in range(2)]
    with ending():
        workers = Workers(cluster=Cluster(address=sys.argv[2]))
        run_grid(cells, hanging, Path(sys.argv[1]), workers=workers)
"""


@contextmanager
def hanging_command(folder: Path, address: str):
    """A command in a group of its own whose two cells have begun and do not end."""
    script = folder / "grid.py"
    script.write_text(GRID)
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), address],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait(lambda: len(ran(folder)) == 2)
        yield process
    finally:
        process.kill()
        process.wait()


def wait(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_leaves_nothing_in_workers_of_others(pair, tmp_path, number):
    scheduler, workers = pair
    with hanging_command(tmp_path, scheduler.address) as command:
        command.send_signal(number)
        command.wait(60)
        wait(lambda: all(gone(pid) for _, pid in lines(tmp_path)))
    assert not any(gone(server.pid) for server in (scheduler, *workers))
    cluster = Workers(cluster=Cluster(address=scheduler.address))
    run_grid(CELLS, square, tmp_path, workers=cluster, quiet=True)


@pytest.mark.slow
def test_ctrl_c_ends_a_cluster_of_its_own(tmp_path):
    with hanging_command(tmp_path, "local:2") as command:
        started = [child.pid for child in psutil.Process(command.pid).children(recursive=True)]
        assert {pid for _, pid in lines(tmp_path)} < {*started}
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        command.wait(60)
        wait(lambda: all(map(gone, started)))


# What a file may start

YAML = "cluster: dask_jobqueue.SLURMCluster\nworkers: 2\narguments: {queue: night, cores: 1}\n"
BAD_YAML = {
    "not a mapping": ("- 1\n", "must have cluster, workers, arguments"),
    "alias": ("cluster: &a x\nworkers: *a\n", "the alias *a is refused"),
    "another class": (YAML.replace("SLURMCluster", "Frob"), "dask_jobqueue.Frob is not among"),
    "code": (YAML.replace("dask_jobqueue.SLURMCluster", "os.system"), "os.system is not among"),
    "no workers": (YAML.replace("workers: 2\n", ""), "workers"),
    "none": (YAML.replace("workers: 2", "workers: 0"), "workers 0: must be at least 1"),
    "another field": (YAML + "frob: 1\n", "frob is not among cluster, workers, arguments"),
}


@pytest.mark.parametrize("case", BAD_YAML)
def test_a_file_of_a_cluster_that_cannot_be_used_is_one_sentence(case, tmp_path):
    path, (text, expected) = tmp_path / "slurm.yaml", BAD_YAML[case]
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        Cluster(address=str(path))
    said = str(caught.value)
    assert said.startswith(f"--cluster {path}") and expected in said and "\n" not in said


def test_a_file_names_its_class_its_arguments_and_the_number_of_workers(tmp_path, monkeypatch):
    """A class in place of SLURM's that keeps what it is given."""
    path, given = tmp_path / "slurm.yaml", {}
    path.write_text(YAML)

    class SLURMCluster:
        def __init__(self, **arguments):
            given.update(arguments)

        def scale(self, number):
            given["scale"] = number

    module = type(sys)("dask_jobqueue")
    module.SLURMCluster = SLURMCluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_jobqueue", module)
    assert isinstance(clusters.started(Cluster(address=str(path))), SLURMCluster)
    assert given == {"queue": "night", "cores": 1, "scale": 2}
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(UserError, match="slurm.yaml: .*: pip install dask-jobqueue"):
        clusters.started(Cluster(address=str(path)))
