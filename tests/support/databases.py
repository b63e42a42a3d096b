"""A PostgreSQL server on loopback, for the time of a test."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = ["/usr/local/bin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]


def postgres_program(name: str) -> str | None:
    """Where a program of PostgreSQL is; Debian keeps them off the path."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def plain_user() -> dict[str, str]:
    """As whom to start it: PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    return {"user": "postgres" if "postgres" in names else "nobody"}


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a database of a new server, which is gone afterwards."""
    ctl, who, port = postgres_program("pg_ctl"), plain_user(), free_port()
    assert ctl is not None
    base = Path(tempfile.mkdtemp(prefix="softbeam-postgres-"))  # pytest's own are root's alone
    if who:
        shutil.chown(base, who["user"])
    secret = base / "password"
    secret.write_text("secret")
    secret.chmod(0o644)

    def control(*words: str) -> None:
        """To files, not pipes: the server would keep them, and nobody would see their end."""
        with (base / "said").open("w") as file:
            command = [ctl, *words, "-s", "-D", str(base / "data")]
            done = subprocess.run(command, cwd=base, stdout=file, stderr=file, timeout=120, **who)
        assert done.returncode == 0, "\n".join(p.read_text() for p in base.glob("*") if p.is_file())

    try:
        options = f"-A scram-sha-256 -U softbeam --pwfile={secret} --no-sync -E UTF8 --locale=C"
        control("initdb", "-o", options)
        only_here = "-c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        control("start", "-w", "-l", str(base / "log"), "-o", f"-p {port} -F {only_here}")
        try:
            yield f"postgresql://softbeam:secret@127.0.0.1:{port}/postgres"
        finally:
            control("stop", "-m", "immediate")
    finally:
        shutil.rmtree(base)
