"""A headless Chromium over its debugging pipe: what a page says, asks for and shows."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60


def find() -> str | None:
    """The browser's program, where there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One tab; `events` holds what it reported."""

    def __init__(self, write: int, read: int):
        self.write, self.read, self.rest = write, read, b""
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        made = self.ask("Target.createTarget", url="about:blank")
        attached = self.ask(
            "Target.attachToTarget", targetId=made["targetId"], flatten=True
        )
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            for answer in self._messages():
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    return answer["result"]
                self.events.append(answer)
        raise TimeoutError(method)

    def _messages(self) -> Iterator[dict[str, Any]]:
        if select.select([self.read], [], [], 1)[0]:
            self.rest += os.read(self.read, 2**20)
        while b"\0" in self.rest:
            line, self.rest = self.rest.split(b"\0", 1)
            message = json.loads(line)
            yield message

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        self.events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while self.run("document.readyState") != "complete":
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, script: str) -> None:
        """A real click in the middle of the element that a script gives."""
        self.run(f"({script}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(() => {{const r = ({script}).getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent",
                type=kind, x=box[0], y=box[1], button="left", clickCount=1,
            )  # fmt: skip

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What the page wrote to the console, and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [e for e in self.events if e.get("method") in (*kinds, "Log.entryAdded")]

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """A tab of a browser that is ended afterwards."""
    program = find()
    assert program is not None
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()

    def connect() -> None:
        # The browser reads commands from 3 and writes answers to 4.
        a, b = os.dup(to_browser), os.dup(from_browser)
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate((a, b))]
        for at, fd in zip((3, 4), high, strict=True):
            os.dup2(fd, at)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                program, "--headless=new", "--no-sandbox", "--disable-gpu",
                "--remote-debugging-pipe", f"--user-data-dir={profile}",
                "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(write, read)
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(write)
            os.close(read)
