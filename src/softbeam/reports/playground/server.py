"""Serve the playground's page to a browser on this machine, and to nobody else.

The address has a secret token, without which nothing is answered. Besides, a request has to name
this server as its host, and must not come from a page of another origin; so a web site that is open
in the same browser can neither read nor ask for anything. Nothing that a request contains names a
file, a class or a function.
"""

import asyncio
import json
import secrets
import sys
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam.errors import UserError
from softbeam.reports.playground.beams import BeamViews
from softbeam.reports.playground.chains import ChainViews
from softbeam.reports.playground.view import beams_shown, page
from softbeam.runtime.signals import hurried

if TYPE_CHECKING:
    from tornado.httpserver import HTTPServer
    from tornado.httputil import HTTPServerRequest

HOST = "127.0.0.1"
LARGEST_BODY = 64 * 1024
PATIENCE = 3.0  # seconds that a step may take after Ctrl-C
JSON = "application/json"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Answer(NamedTuple):
    """What a request gets."""

    status: int
    kind: str
    text: str
    policy: str = "default-src 'none'"


@dataclass(frozen=True, eq=False)
class Playground:
    """What the page shows, behind its token.

    Args:
        beams: of a run, if one was given.
        chains: of a masked language model, if one was given.
        token: the secret part of the address.
    """

    beams: BeamViews | None
    chains: ChainViews | None
    token: str

    def answer(self, asked: Asked, port: int) -> Answer:
        """Answer a request; what is wrong with it is said in one line."""
        if why := refused(asked, self.token, port):
            return Answer(403, "text/plain", f"{why}\n")
        name = asked.path.split("/", 2)[2]
        if name == "" and asked.method == "GET":
            text, policy = page(self.beams, self.chains)
            return Answer(200, "text/html", text, policy)
        work = self.actions().get(name)
        if work is None or asked.method != "POST":
            return Answer(404, "text/plain", "not found\n")
        try:
            given = json.loads(asked.body)
            if not isinstance(given, dict):
                raise UserError("the request must be a JSON object")
            return Answer(200, JSON, json.dumps(work(given), allow_nan=False))
        except (UserError, ValueError, RecursionError) as error:
            return Answer(400, JSON, json.dumps({"error": " ".join(str(error).splitlines())}))

    def actions(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """What the page can ask for, by name."""
        beams, chains = self.beams, self.chains
        found: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        if beams is not None:
            found["beams"] = lambda given: beams_shown(beams.beams(given))
        if chains is not None:
            found |= {"begin": chains.begin, "news": chains.news}
        return found


def playground(beams: BeamViews | None, chains: ChainViews | None) -> Playground:
    """A playground with a new token."""
    return Playground(beams, chains, secrets.token_urlsafe(32))


def refused(asked: Asked, token: str, port: int) -> str:
    """Why a request is not answered; empty if it is."""
    own = [f"{name}:{port}" for name in (HOST, "localhost")]
    host, origin = asked.headers.get("Host", ""), asked.headers.get("Origin")
    if host not in own:
        return "the request names another host"  # a name of somebody else's that leads here
    if not has_token(asked.path, token):
        return "the address lacks its token; use the one that softbeam play printed"
    if origin is not None and origin != f"http://{host}":
        return "requests of other pages are refused"
    if asked.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return "requests of other pages are refused"
    if asked.method == "POST" and asked.headers.get("Content-Type") != JSON:
        return f"the content must be {JSON}"  # which no form of another page can send
    return ""


def has_token(path: str, token: str) -> bool:
    """True if the path is /TOKEN/ or below it."""
    first, _, _ = path.removeprefix("/").partition("/")
    return path.count("/") >= 2 and compare_digest(first.encode(), token.encode())


# Tornado


async def respond(play: Playground, request: "HTTPServerRequest", port: int) -> None:
    """Answer a request of the server, in a thread: the server stays free to be stopped."""
    from tornado.httputil import HTTPHeaders, ResponseStartLine
    from tornado.iostream import StreamClosedError

    asked = Asked(request.method or "", request.path, request.headers, request.body)
    try:
        answer = await asyncio.to_thread(play.answer, asked, port)
    except Exception as error:  # of a model: the page says so, and the server goes on
        line = " ".join(str(error).splitlines()) or type(error).__name__
        answer = Answer(500, JSON, json.dumps({"error": line}))
    body = answer.text.encode()
    kind = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Length": str(len(body))}
    headers = HTTPHeaders(HEADERS | kind | {"Content-Security-Policy": answer.policy})
    assert request.connection is not None
    try:
        start = ResponseStartLine("HTTP/1.1", answer.status, "")
        await request.connection.write_headers(start, headers, body)
        request.connection.finish()
    except StreamClosedError:
        return  # the browser has gone


def listening(play: Playground, port: int) -> tuple["HTTPServer", int]:
    """A server on the loopback interface, and its port: a free one for port 0.

    Raises UserError if the port cannot be had. Called inside of a running event loop.
    """
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_sockets

    tasks: set[asyncio.Future[None]] = set()

    def handle(request: "HTTPServerRequest") -> None:
        task = asyncio.ensure_future(respond(play, request, number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        sockets = bind_sockets(port, address=HOST)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror or error}") from None
    number = int(sockets[0].getsockname()[1])
    server = HTTPServer(handle, max_body_size=LARGEST_BODY, max_header_size=LARGEST_BODY)
    server.add_sockets(sockets)
    return server, number


def serve(
    play: Playground, *, port: int = 0, browser: bool = True, say: Callable[[str], object] = print
) -> None:
    """Serve the page until a signal asks to stop; `say` gets its address.

    Ctrl-C ends it at once, or after a few seconds if a step of a model takes that long.
    """

    async def run() -> None:
        _, number = listening(play, port)
        address = f"http://{HOST}:{number}/{play.token}/"
        say(address)
        if browser:
            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()

    with hurried(PATIENCE, lambda signum: print("softbeam play: interrupted", file=sys.stderr)):
        try:
            asyncio.run(run())
        finally:
            if play.chains is not None:
                play.chains.stop(wait=True)
