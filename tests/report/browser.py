"""A real Chromium without a head, driven over the pipe of its DevTools protocol: no driver, no socket, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 60


def chromium() -> str:
    """Where a Chromium is; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(NAMES)}): apt-get install chromium")
    return program


class Browser:
    """A page in a browser; its errors and requests are recorded."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        program = chromium()
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # above every number that the child's own two must take
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (reads, writes)]
        command = [
            program,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
            "--host-resolver-rules=MAP * ~NOTFOUND",  # offline, whatever the page asks for
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            *("--remote-debugging-pipe", "about:blank"),
        ]
        quiet = os.open(os.devnull, os.O_WRONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, high[0], 3),
            (os.POSIX_SPAWN_DUP2, high[1], 4),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
        ]
        profile.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(profile)}  # nothing of it is left behind elsewhere
        self._pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setpgroup=0)
        for fd in (reads, writes, *high, quiet):
            os.close(fd)
        self._number, self._buffer = 0, b""
        self.errors: list[str] = []
        """Exceptions, errors that were logged, and what the page's policy refused."""
        self.requests: list[str] = []
        """Every address that was requested."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        os.close(self._in)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command to the page."""
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        ends = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(ends)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _next(self, ends: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"Chromium did not answer within {PATIENCE_S} s"
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium went away"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialog: {params['message']}")

    def run(self, code: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, page: Path, view: str = "") -> None:
        """Open a page of ours, with what comes after # in its address, and wait until its script is done."""
        if view:  # the same address with another end would not load again
            self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.resolve().as_uri() + (f"#{view}" if view else ""))
        ends = time.monotonic() + PATIENCE_S
        while not self.run("document.documentElement?.dataset.ready === 'yes'"):
            assert time.monotonic() < ends, f"the page is not ready: {self.errors}"
            time.sleep(0.05)

    def point(self, selector: str) -> tuple[float, float, float]:
        """Left end, width and height in the middle of an element, scrolled into view."""
        box = self.run(
            f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect().toJSON()))"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return box["x"], box["width"], box["y"] + box["height"] / 2

    def click(self, selector: str, *, share: float = 0.5) -> None:
        """Press the mouse on an element, so far along its width."""
        x, width, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x + share * width, y=y, button="left", clickCount=1)

    def press(self, key: str, times: int = 1) -> None:
        """Press a key of the keyboard, such as ArrowRight."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def drawn(self) -> None:
        """Wait until what was set has been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def prefer(self, *, dark: bool = False, width: int | None = None, height: int = 900) -> None:
        """Let the system prefer dark, and the window be as wide."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        if width is not None:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            self.call("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """A PNG of what is seen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path
