"""Connect to a Dask cluster: one that runs already, or one that is started for a command."""

import ipaddress
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range, need, reason
from softbeam.runtime.files import cannot_read, check_fields

if TYPE_CHECKING:
    import dask
    import distributed

    from softbeam.runtime import plain_yaml
else:
    dask, distributed = lazy("dask"), lazy("distributed")
    plain_yaml = lazy("softbeam.runtime.plain_yaml")

CLASSES = {  # what a YAML file may start, and what brings it
    "dask_jobqueue.SLURMCluster": "dask-jobqueue",
    "dask_kubernetes.operator.KubeCluster": "dask-kubernetes",
    "distributed.SSHCluster": "distributed[ssh]",
}
FORMS = "tcp://HOST:8786, tls://HOST:8786, local:4, a scheduler file, or a .yaml file"
MOST_WORKERS = 1024
CONNECT = 30.0  # seconds to wait for a scheduler
# One cell a worker at a time, so that a worker that dies takes one with it; after the third such
# death a cell is given up.
OWN = {"distributed.scheduler.worker-saturation": 1.0, "distributed.scheduler.allowed-failures": 2}


class Started(NamedTuple):
    """A cluster that a YAML file describes."""

    cluster: str
    workers: int
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Dask cluster.

    Args:
        address: `tcp://HOST:PORT` or `tls://HOST:PORT` of a scheduler, the file that it wrote,
            `local:4` for four workers on this machine, or a YAML file that says what to start.
        dashboard: print the address of Dask's page.
    """

    address: str
    dashboard: bool = False

    def __post_init__(self) -> None:
        need("distributed", "cluster")
        if self.local is None and not self.is_address and not Path(self.address).is_file():
            raise UserError(f"--cluster {self.address}: must be {FORMS}")
        check_range(f"--cluster {self.address}: workers", self.local, least=1, most=MOST_WORKERS)
        if self.is_yaml:
            read_yaml(Path(self.address))

    @property
    def is_address(self) -> bool:
        """True for an address of a scheduler."""
        try:
            parts = urlsplit(self.address)
            return parts.scheme in ("tcp", "tls") and bool(parts.hostname and parts.port)
        except ValueError:  # the port is not a number
            return False

    @property
    def local(self) -> int | None:
        """The number of workers on this machine, or None."""
        name, _, number = self.address.partition(":")
        return int(number) if name == "local" and number.isdecimal() else None

    @property
    def is_yaml(self) -> bool:
        return self.address.endswith((".yaml", ".yml"))


def read_yaml(path: Path) -> Started:
    """Read a file that says what to start; raises UserError if it is not as it must be."""
    import yaml

    try:
        content = plain_yaml.load_plain(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise cannot_read(path, error) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--cluster {path}: {reason(error)}") from None
    wrong = f"--cluster {path}"
    fields = {"cluster": str, "workers": int, "arguments": dict}
    if not isinstance(content, dict):
        raise UserError(f"{wrong}: must have {', '.join(fields)}")
    asked: dict[str, Any] = {"arguments": {}} | content
    check_fields(asked, wrong, fields, needed=True)
    if others := asked.keys() - fields.keys():
        raise UserError(f"{wrong}: {min(others)} is not among {', '.join(fields)}")
    if asked["cluster"] not in CLASSES:
        raise UserError(f"{wrong}: cluster {asked['cluster']} is not among {', '.join(CLASSES)}")
    check_range(f"{wrong}: workers", asked["workers"], least=1, most=MOST_WORKERS)
    return Started(**asked)


_kept: dict[Cluster, "distributed.Client"] | None = None  # None outside of `kept_open`
_stack = ExitStack()


@contextmanager
def kept_open() -> Iterator[None]:
    """Connect to each cluster once in the block, and leave them all at its end."""
    global _kept, _stack
    before = _kept, _stack
    _kept = {}
    try:
        with ExitStack() as _stack:
            yield
    finally:
        _kept, _stack = before


@contextmanager
def connected(cluster: Cluster) -> Iterator["distributed.Client"]:
    """Connect to a cluster, which is started if need be and then ends with the connection.

    Raises UserError if there is no scheduler.
    """
    if _kept is None:
        with opened(cluster) as client:
            yield client
        return
    if cluster not in _kept or _kept[cluster].status != "running":
        _kept[cluster] = _stack.enter_context(opened(cluster))
    yield _kept[cluster]


@contextmanager
def opened(cluster: Cluster) -> Iterator["distributed.Client"]:
    connect = client_class()  # its import sets up logging, and the settings of Dask
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)  # errors are raised here
    with ExitStack() as stack:
        try:
            place = started(cluster)
            if not isinstance(place, dict):
                stack.enter_context(place)
                place = {"address": place}
            client = connect(**place, timeout=CONNECT, set_as_default=False)
            stack.enter_context(client)
        except (OSError, ValueError, RuntimeError, TypeError, ImportError) as error:
            raise UserError(f"--cluster {cluster.address}: {reason(error)}") from error
        warn(client.scheduler.address)
        if cluster.dashboard:
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr, flush=True)
        yield client


def client_class() -> type["distributed.Client"]:
    """Dask's client, which is closed at once where it cannot connect.

    Dask leaves that to the garbage collector, and closing then waits for a lock. If it happens in
    the thread that the next client starts while it holds the lock, that one fails.
    """

    class Client(distributed.Client):
        def start(self, **options: Any) -> None:
            try:
                super().start(**options)
            except BaseException:
                self.close()
                raise

    return Client


def started(cluster: Cluster) -> Any:
    """Start what has to be started: a cluster of Dask, or the arguments that find a running one."""
    if cluster.local is not None:
        page = "127.0.0.1:0" if cluster.dashboard else None
        with dask.config.set(OWN):
            return distributed.LocalCluster(
                n_workers=cluster.local,
                threads_per_worker=1,
                host="127.0.0.1",
                security=distributed.Security.temporary(),  # others on this machine stay out
                memory_limit=0,
                dashboard_address=page,
                silence_logs=logging.CRITICAL,
            )
    if cluster.is_address:
        return {"address": cluster.address}
    if not cluster.is_yaml:
        return {"scheduler_file": cluster.address}
    asked = read_yaml(Path(cluster.address))
    module, _, name = asked.cluster.rpartition(".")
    try:
        kind = getattr(import_module(module), name)
    except ImportError as error:
        package = CLASSES[asked.cluster]
        raise UserError(f"--cluster {cluster.address}: {error}: pip install {package}") from None
    with dask.config.set(OWN):
        made = kind(**asked.arguments)
    made.scale(asked.workers)
    return made


def warn(address: str) -> None:
    """Warn if a scheduler listens to the network and does not ask for certificates."""
    parts = urlsplit(address)
    if parts.scheme == "tls" or is_loopback(parts.hostname or ""):
        return
    print(
        f"warning: {address} has no TLS: whoever can connect to it can run code in its workers; "
        "docs/scaling.md says how to use tls://",
        file=sys.stderr,
        flush=True,
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine as only its own processes see it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
