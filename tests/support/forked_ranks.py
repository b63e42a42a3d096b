"""Start a softbeam command in several processes, as torchrun does, with one import for all.

The processes are forked from this one: importing torch in each of them would take most of a test.
If one of them fails, the others are stopped and the launcher fails.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def start(words: list[str], rank: int, world: int, port: int) -> int:
    """Fork a process that runs the command; returns its number."""
    if child := os.fork():
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    from softbeam.cli import main

    code = main(words)
    sys.stdout.flush()
    os._exit(code)


def launch(world: int, words: list[str]) -> int:
    port = free_port()
    children = {start(words, rank, world, port) for rank in range(world)}
    failed = False
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = True
            for other in children:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    return int(failed)


MODULES = {
    "train": ["softbeam.training.loop"],
    "sample": ["softbeam.sampling.texts.summary", "transformers.models.bert.modeling_bert"],
}

if __name__ == "__main__":
    for module in MODULES[sys.argv[2]]:
        import_module(module)
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
