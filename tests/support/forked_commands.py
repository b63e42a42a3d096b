"""Commands in processes that can be killed by the dozen: forked from one that has all imports.

A life is one command in one process. It says which phase it is in, so that a signal can be sent
at a chosen moment of a chosen phase, and so that afterwards one knows which phase was hit.
"""

import gc
import json
import mmap
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

START = "start-up"
Program = Callable[[list[str]], int]


class Phase(NamedTuple):
    """Where a command may be hit: in one of its first entries, up to some seconds after it."""

    entries: int = 1
    seconds: float = 0.004


Phases = dict[str, Phase]
OF_TRAINING: Phases = {
    START: Phase(seconds=0.05),
    "update": Phase(5),
    "checkpoint": Phase(3),
    "epoch end": Phase(2),
    "between stages": Phase(),
}
OF_SAMPLING: Phases = {
    START: Phase(seconds=0.05),
    "sampling": Phase(seconds=0.2),
    "lines": Phase(9),
    "checkpoint": Phase(5),
    "summary": Phase(seconds=0.2),
}
OF_A_GRID: Phases = {START: Phase(seconds=0.05), "cell": Phase(3, 0.1), "result": Phase(3)}
PHASES = ["loading", "step", *(OF_TRAINING | OF_SAMPLING | OF_A_GRID)]


class Aim(NamedTuple):
    """When a signal is sent: some seconds after a phase has been entered for the n-th time.

    Without a delay the process is held there until the signal comes.
    """

    phase: str
    entry: int = 1
    delay: float = 0.0
    signum: int = signal.SIGKILL


class End(NamedTuple):
    """How a life ended: its exit code, or minus the signal; what it said; where it was hit."""

    code: int
    said: str
    hit: str | None


class Nursery:
    """A process that has imported some modules and starts lives, one after the other."""

    def __init__(self, *modules: str):
        self.modules = modules

    def __enter__(self) -> "Nursery":
        self.modules_cache = tempfile.TemporaryDirectory()  # of code that a model's folder brings
        alone = {"HF_MODULES_CACHE": self.modules_cache.name}
        alone |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, *self.modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | alone,
        )
        return self

    def life(self, words: list[str], aim: Aim | None = None, **options: Any) -> End:
        """Run a command to its end, or to the signal.

        Options are those of `run`, which is what the process does.
        """
        self.begin(words, aim, **options)
        return self.end()

    def begin(self, words: list[str], aim: Aim | None = None, **options: Any) -> None:
        """Start a command; `end` waits for it."""
        assert self.process.stdin is not None
        request = {"words": words, "aim": aim, **options}
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def end(self) -> End:
        """Wait for the end of the command that was begun last."""
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer, "the nursery has ended"
        return End(*json.loads(answer))

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.modules_cache.cleanup()


def killed(
    nursery: Nursery,
    words: list[str],
    phases: Phases,
    hits: Counter[str],
    *,
    kills: int,
    rng: random.Random,
    after: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Give a command again and again, each time killed, until it has ended well.

    Args:
        nursery: where.
        words: of the command.
        phases: where it may be hit.
        hits: how often each phase was hit; those that were hit least come first.
        kills: so many are `enough`, if every phase was hit.
        rng: of the moments.
        after: called after each kill.
        options: those of `run`.
    """
    while True:
        aim = None if enough(hits, phases, kills) else random_aim(phases, hits, rng)
        end = nursery.life(words, aim, **options)
        if end.hit is None:
            assert end.code == 0, end.said
            return
        assert end.code == -signal.SIGKILL, end
        hits[end.hit] += 1
        after()


def enough(hits: Counter[str], phases: Phases, kills: int) -> bool:
    """So many hits, and in every phase; a delay may miss the one that was meant."""
    assert hits.total() < 3 * kills, hits
    return hits.total() >= kills and set(phases) <= set(hits)


def random_aim(phases: Phases, hits: Counter[str], rng: random.Random) -> Aim:
    """A moment in one of the phases that were hit least."""
    least = min(hits[phase] for phase in phases)
    phase = rng.choice([phase for phase in phases if hits[phase] == least])
    delay = rng.uniform(0.0001, phases[phase].seconds)
    return Aim(phase, rng.randint(1, phases[phase].entries), rng.choice([0.0, delay]))


# Inside the process

MARKS = (  # what is called when a phase is entered; phases may lie within one another
    ("softbeam.training.loop", "make_codecs", "loading"),
    ("softbeam.training.loop", "run_update", "update"),
    ("softbeam.training.loop", "save_checkpoint", "checkpoint"),
    ("softbeam.training.loop", "Trainer.scored", "epoch end"),
    ("softbeam.training.loop", "load_weights", "between stages"),
    ("softbeam.sampling.texts.files", "write_samples", "sampling"),
    ("softbeam.sampling.texts.files", "Writer.write", "lines"),
    ("softbeam.sampling.fast", "_FastKernel.step", "step"),
    ("softbeam.sampling.texts.files", "save_checkpoint", "checkpoint"),
    ("softbeam.sampling.texts.summary", "finish", "summary"),
    ("softbeam.runtime.grid", "compute", "cell"),
    ("softbeam.runtime.cells", "write_text", "result"),
)


def serve(modules: list[str]) -> None:
    """Lives as they are asked for, until nothing more is."""
    sys.path[0] = str(Path(__file__).parents[1])
    for name in ("softbeam.cli", *modules):
        import_module(name)
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("bert")
    import_module("softbeam.training.config").file_parser()  # both are made once a process
    gc.freeze()  # a child that collects garbage would copy the pages of everything imported
    for line in sys.stdin:
        request = json.loads(line)
        aim = request.pop("aim")
        print(json.dumps(life(request, Aim(*aim) if aim else None)), flush=True)


def life(request: dict[str, Any], aim: Aim | None) -> End:
    now = mmap.mmap(-1, 1)  # the number of the phase, shared with the child
    now[0] = PHASES.index(START)
    entered, tell = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            held = (PHASES.index(aim.phase), aim.entry) if aim and not aim.delay else None
            os._exit(run(Here(now, tell, held), **request))
        os.close(tell)
        hit, status = sent(aim, child, entered, now) if aim else (None, None)
        if status is None:
            while os.read(entered, 1000):
                pass
            _, status = os.waitpid(child, 0)
        os.close(entered)
        said.seek(0)
        return End(os.waitstatus_to_exitcode(status), said.read().decode(), hit)


def sent(aim: Aim, child: int, entered: int, now: mmap.mmap) -> tuple[str | None, int | None]:
    """Send the signal when it is time: the phase that it came in, and a status if it has ended."""
    left = aim.entry
    while left:
        seen = os.read(entered, 1)
        if not seen:
            return None, None
        left -= PHASES[seen[0]] == aim.phase
    if aim.delay:
        time.sleep(aim.delay)
        os.kill(child, signal.SIGSTOP)  # so that it stays where it is while one looks
    _, status = os.waitpid(child, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        return None, status
    os.kill(child, aim.signum)
    os.kill(child, signal.SIGCONT)
    return PHASES[now[0]], None


def run(
    here: "Here",
    words: list[str],
    *,
    program: str = "softbeam.cli:main",
    ranks: int = 1,
    largest: int | None = None,
    user: int | None = None,
    memory: int | None = None,
    folder: str | None = None,
    stdin: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run the command, in the child.

    Args:
        here: where the child is.
        words: the command.
        program: the module and the function that the words are given to.
        ranks: the number of processes that run it together, as under torchrun.
        largest: the size that no file may exceed.
        user: a number to run as.
        memory: bytes that the process may have beyond those it has now.
        folder: the current folder.
        stdin: the bytes of standard input, each as a letter.
        variables: of the environment.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(variables)
    if folder is not None:
        os.chdir(folder)
    if stdin is not None:
        with tempfile.TemporaryFile() as file:
            file.write(stdin.encode("latin-1"))
            file.seek(0)
            os.dup2(file.fileno(), 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if user is not None:
        os.setuid(user)
    for module, name, phase in MARKS:
        if module in sys.modules:
            here.mark(sys.modules[module], name, PHASES.index(phase))
    module, _, name = program.partition(":")
    try:
        main = getattr(import_module(module), name)
        here.enter(PHASES.index(START))
        code = launch(ranks, main, words) if ranks > 1 else main(words)
        gc.collect()  # what is closed late may complain
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def launch(world: int, main: Program, words: list[str]) -> int:
    """Run a command in several processes; if one of them fails, the others are stopped."""
    port = free_port()
    children = {start(main, words, rank, world, port) for rank in range(world)}
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


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def start(main: Program, words: list[str], rank: int, world: int, port: int) -> int:
    """Fork a process that runs the command; returns its number."""
    if child := os.fork():
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    code = main(words)
    sys.stdout.flush()
    os._exit(code)


class Here:
    """Where a child is: told to its parent when a phase is entered, and for it to see at any time.

    At one entry it may be held, that is, it stops itself.
    """

    def __init__(self, now: mmap.mmap, tell: int, held: tuple[int, int] | None):
        self.now, self.tell, self.held = now, tell, held
        self.entries: Counter[int] = Counter()

    def mark(self, owner: Any, name: str, phase: int) -> None:
        """Let a function, or a class's method, be a phase."""
        *classes, last = name.split(".")
        for one in classes:
            owner = getattr(owner, one)
        plain: Callable[..., Any] = getattr(owner, last)

        @wraps(plain)
        def marked(*args: Any, **options: Any) -> Any:
            before = self.now[0]
            self.enter(phase)
            try:
                return plain(*args, **options)
            finally:
                self.now[0] = before

        setattr(owner, last, marked)

    def enter(self, phase: int) -> None:
        self.now[0] = phase
        self.entries[phase] += 1
        os.write(self.tell, bytes([phase]))
        if self.held == (phase, self.entries[phase]):
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    serve(sys.argv[1:])
