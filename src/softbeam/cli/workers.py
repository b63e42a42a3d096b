"""The flags of commands whose cells several processes or machines can compute."""

from typing import Any

from softbeam.runtime.cluster import FORMS, Cluster
from softbeam.runtime.grid import Workers


def worker_arguments(command: Any, *, jobs: int | None = 1) -> None:
    """Add the flags that say which processes run a command's cells."""
    default = "one for each core if not given" if jobs is None else "1 if not given"
    command.add_argument("--jobs", type=int, default=jobs, help=f"processes here; {default}")
    cluster_arguments(command)


def cluster_arguments(command: Any) -> None:
    """Add the flags that name a Dask cluster."""
    cluster = f"a Dask cluster, whose workers share the folders: {FORMS}"
    command.add_argument("--cluster", type=str, default=None, help=cluster)
    page = "print the address of the cluster's page"
    command.add_argument("--dashboard", action="store_true", help=page)


def cluster_of(parsed: Any) -> Cluster | None:
    """Return the cluster that the flags name, or None."""
    if parsed.cluster is None:
        return None
    return Cluster(address=parsed.cluster, dashboard=parsed.dashboard)


def workers_of(parsed: Any) -> Workers:
    """Return the processes that the flags ask for."""
    return Workers(jobs=parsed.jobs, cluster=cluster_of(parsed))
