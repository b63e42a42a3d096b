"""Drive one headless Chromium: open pages, click at what is on them, look at what comes of it."""

import asyncio
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--mute-audio"]
FLAGS += ["--disable-extensions", "--disable-background-networking", "--hide-scrollbars"]
WATCH = """window.failed = [];
addEventListener("error", (event) => failed.push(event.message));
addEventListener("unhandledrejection", (event) => failed.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => failed.push(event.blockedURI));"""


async def connected(address: str) -> WebSocketClientConnection:
    """A connection to a tab, whose messages may be pictures."""
    return await websocket_connect(address, max_message_size=2**27)


class Browser:
    """A browser with one tab, over its own protocol for developers."""

    def __init__(self, program: str):
        self.program = program

    def __enter__(self) -> "Browser":
        self.loop = asyncio.new_event_loop()
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        words = [*FLAGS, "--remote-debugging-port=0", f"--user-data-dir={self.profile.name}"]
        self.process = subprocess.Popen(
            [self.program, *words, "about:blank"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        port = next(m[1] for line in lines if (m := re.search(r"ws://127.0.0.1:(\d+)/", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as listed:
            page = next(tab for tab in json.load(listed) if tab["type"] == "page")
        self.socket = self.loop.run_until_complete(connected(page["webSocketDebuggerUrl"]))
        self.number, self.said = 0, list[str]()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.run_until_complete(self.closed())
        self.process.terminate()
        self.process.wait(timeout=60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.loop.close()
        self.profile.cleanup()

    async def closed(self) -> None:
        """Close the connection."""
        self.socket.close()
        while await self.socket.read_message() is not None:
            pass

    def call(self, method: str, **options: Any) -> dict[str, Any]:
        """Call a method of the protocol; messages of the console are kept in `said`."""
        self.number += 1
        request = json.dumps({"id": self.number, "method": method, "params": options})
        return self.loop.run_until_complete(asyncio.wait_for(self.answer(request), 60))

    async def answer(self, request: str) -> dict[str, Any]:
        """Send a request, and wait for its answer."""
        await self.socket.write_message(request)
        while True:
            message = json.loads(await self.socket.read_message() or "")
            if message.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled"):
                self.said.append(json.dumps(message["params"]))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show pages as on a screen of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 20) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (found := self.value(script)):
            if time.monotonic() > end:
                said = self.value(
                    "[...document.querySelectorAll('.error')].map((e) => e.innerText)"
                )
                raise AssertionError(f"not within {seconds} s: {script}; the page says {said}")
            time.sleep(0.02)
        return found

    def click(self, selector: str, *, across: float = 0.5) -> None:
        """Press and release the mouse on an element, at this share of its width."""
        x, y = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({ block: 'center' }); const r = e.getBoundingClientRect();"
            f"return [r.x + r.width * {across}, r.y + r.height / 2]; }})()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text: str) -> None:
        """Type into the element that has the focus, in place of what is there."""
        self.value("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what the screen shows, or the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(b64decode(shot["data"]))
