"""A scheduler and workers of Dask as processes of their own, forked by one that has all imports."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psutil

TESTS = Path(__file__).parents[1]
IMPORTED = (  # what cells of the tests need
    "softbeam.runtime.remote",
    "softbeam.training.many",
    "softbeam.experiments.energies.cells",
    "transformers.models.bert.modeling_bert",
    "torch._dynamo",
)


QUIET = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}  # no look at the stack every 10 ms


class Server(NamedTuple):
    """A scheduler or worker: its process and its address."""

    pid: int
    address: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def cell_processes(self) -> list[psutil.Process]:
        """The processes that compute cells for a worker."""
        return psutil.Process(self.pid).children()


class Farm:
    """A process that starts schedulers and workers; all of them end with it."""

    def __enter__(self) -> "Farm":
        self.servers: list[Server] = []
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | QUIET,
        )
        return self

    def scheduler(self, **options: Any) -> Server:
        """Start a scheduler; `tls` is a PEM file with a key and the certificate of all."""
        return self.started("Scheduler", {"host": "127.0.0.1", "port": 0} | options)

    def worker(self, scheduler: Server, **options: Any) -> Server:
        """Start a worker.

        `version` is what it says that softbeam's is, and `variables` are added to its environment;
        if it is `warm`, its first cells start at once.
        """
        own = {"scheduler_ip": scheduler.address, "nthreads": 1, "host": "127.0.0.1"}
        return self.started("Worker", own | options)

    def started(self, kind: str, options: dict[str, Any]) -> Server:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([kind, options]), file=self.process.stdin, flush=True)
        self.servers.append(Server(*json.loads(self.process.stdout.readline())))
        return self.servers[-1]

    @contextmanager
    def borrowed(self) -> Iterator["Farm"]:
        """End what is started in a block with it: idle servers take a tenth of a core together."""
        before = len(self.servers)
        yield self
        for server in self.servers[before:]:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(server.pid)
                for each in [*process.children(recursive=True), process]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
        del self.servers[before:]

    def __exit__(self, *_: object) -> None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        for process in [*children, psutil.Process(self.process.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()


def serve() -> None:
    """Fork a server for each line of input, and print its process and address."""
    import distributed

    import softbeam

    for name in IMPORTED:
        import_module(name)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for line in sys.stdin:
        kind, options = json.loads(line)
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)
            sys.stdin.close()
            softbeam.__version__ = options.pop("version", softbeam.__version__)
            os.environ |= options.pop("variables", {})
            if options.pop("warm", False):
                warm_up()
            asyncio.run(run(distributed, kind, options, tell))
            os._exit(0)
        os.close(tell)
        with os.fdopen(told) as answer:
            print(json.dumps([child, answer.readline().strip()]), flush=True)


def warm_up() -> None:
    """Give this worker a process for cells that has all imports; those after it begin without."""
    from softbeam.runtime.remote import IDLE, CellProcess

    process = object.__new__(CellProcess)
    process.process = Forked()  # type: ignore[assignment]
    IDLE.append(process)


class Forked:
    """A process for cells that is forked from this one, with what is needed of a `Popen`."""

    def __init__(self) -> None:
        jobs, give = os.pipe()
        take, answers = os.pipe()
        self.pid, self.returncode = os.fork(), None
        if self.pid == 0:
            os.close(give)
            os.close(take)
            os.dup2(jobs, 0)
            os.dup2(answers, 1)
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            import_module("softbeam.runtime.cell_process").main()
        os.close(jobs)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(give, "wb"), os.fdopen(take, "rb")

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> None:
        self.stdin.close()
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


async def run(distributed: Any, kind: str, options: dict[str, Any], tell: int) -> None:
    """Be a scheduler or a worker until it ends."""
    if kind == "Scheduler":
        options |= {"dashboard": False, "dashboard_address": ":0"}
    if tls := options.pop("tls", None):
        role = kind.lower()
        files = {"tls_ca_file": tls, f"tls_{role}_cert": tls, f"tls_{role}_key": tls}
        options["security"] = distributed.Security(require_encryption=True, **files)
        options["protocol"] = "tls"
    async with getattr(distributed, kind)(**options) as server:
        os.write(tell, f"{server.address}\n".encode())
        os.close(tell)
        await server.finished()


if __name__ == "__main__":
    sys.path[0] = str(TESTS)
    serve()
