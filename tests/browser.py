"""Drives a headless Chromium in tests through a pipe, by the DevTools protocol.

Only the standard library is needed: commands and answers are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ANSWER_S = 60.0
_OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run "
    "--disable-extensions --disable-background-networking --disable-dev-shm-usage "
    "--remote-debugging-pipe"
).split()

Tree = dict[str, Any]


def find_browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page of a running browser; `events` are the events received since the last `open`."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[Tree] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> Tree:
        """Return the answer to a command; raises RuntimeError with the browser's error."""
        self._number += 1
        message: Tree = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: Tree = found["result"]
                return result
            self.events.append(found)

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of a width in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write a screenshot of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Return the page's exceptions, log entries and console messages."""
        self.value("0")  # all earlier events have arrived after this call
        said = []
        for event in self.events:
            values = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                said.append(str(values["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                said.append(str(values["entry"]["text"]))
            elif event.get("method") == "Runtime.consoleAPICalled":
                said.append(str(values["args"]))
        return said

    def requested(self) -> list[str]:
        """Return the URLs that the page has requested."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _next(self) -> Tree:
        ends = time.monotonic() + _ANSWER_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0.0, ends - time.monotonic()))
            part = os.read(self._back, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer, or has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: Tree = json.loads(text)
        return message


@contextmanager
def a_browser(program: str, profile: Path) -> Iterator[Browser]:
    """Run a browser with a profile of its own until the end of the block."""
    its_in, to = os.pipe()
    back, its_out = os.pipe()

    def lay_pipes() -> None:
        # Chromium reads commands from descriptor 3 and answers on 4. The ends of our pipes may have
        # these numbers already, so they are duplicated first.
        copies = os.dup(its_in), os.dup(its_out)
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    process = subprocess.Popen(
        [program, *_OPTIONS, f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4),
        preexec_fn=lay_pipes,
    )
    os.close(its_in)
    os.close(its_out)
    try:
        browser = Browser(to, back)
        yield browser
        with suppress(Exception):
            os.write(to, b'{"id":0,"method":"Browser.close"}\0')
            process.wait(10)
    finally:
        os.close(to)
        os.close(back)
        process.kill()
        process.wait()
