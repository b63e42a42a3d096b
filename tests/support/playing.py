"""A playground that is served to tests, and requests to it."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, NamedTuple

from softbeam.reports.playground.server import JSON, Playground, listening


class Served(NamedTuple):
    """A playground at its port."""

    play: Playground
    port: int
    sockets: list[tuple[str, int]]  # what the server listens at

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.play.token}/"

    def ask(
        self, name: str, given: object = None, *, path: str = "", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request as the page does; returns status, headers and what came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = None if given is None else given if isinstance(given, str) else json.dumps(given)
        sent = {"Content-Type": JSON} | {n.replace("_", "-"): v for n, v in headers.items()}
        method = "GET" if given is None else "POST"
        connection.request(method, path or f"/{self.play.token}/{name}", body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        found = dict(answer.getheaders())
        parsed = json.loads(text) if found.get("Content-Type", "").startswith(JSON) else text
        return answer.status, found, parsed


@contextmanager
def served(play: Playground) -> Iterator[Served]:
    """Serve a playground in a thread."""
    loop, found = asyncio.new_event_loop(), list[Served]()

    async def start() -> Any:
        server, port = listening(play, 0)
        names = [s.getsockname() for s in server._sockets.values()]
        found.append(Served(play, port, names))
        return server

    server = loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield found[0]
    finally:
        if play.chains is not None:
            play.chains.stop(wait=True)

        async def stop() -> None:
            server.stop()
            await server.close_all_connections()
            await loop.shutdown_default_executor()

        asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
