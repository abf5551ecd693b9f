"""A headless Chromium for tests, driven over its DevTools pipe: nothing to install but the browser itself.

with Browser.start(tmp_path) as browser:
    page = browser.open(path, width=375, dark=True)
    page.evaluate("document.documentElement.scrollWidth")
    page.screenshot(tmp_path / "phone.png")
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-extensions", "--remote-debugging-pipe"),
)


def find_browser() -> str | None:
    """The first Chromium or Chrome on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """A browser process with an empty profile; messages are JSON with a zero byte behind each."""

    def __init__(self, command: str, profile: Path, timeout: float = 60):
        self.deadline = time.monotonic() + timeout
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        arguments = [command, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", *arguments],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        finally:
            os.close(self._write)
            os.close(self._read)

    def send(self, method: str, session: str | None = None, **params) -> dict[str, Any]:
        """The answer to a command; events that come before it are kept in `events`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event: str, session: str):
        """Until the event has come, were it before this call."""
        while not any(e.get("method") == event and e.get("sessionId") == session for e in self.events):
            self.events.append(self._receive())

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> "Page":
        """The page of a file, as a screen of this width shows it."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.send("Network.enable")
        page.send("Page.enable")
        page.look(width=width, height=height, dark=dark)
        self.events.clear()
        page.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        return page

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            remaining = self.deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._read], [], [], remaining)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise OSError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str):
        self.browser, self.session = browser, session

    def send(self, method: str, **params) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def look(self, *, width: int, height: int = 900, dark: bool = False, media: str = "screen"):
        """Width in CSS pixels and colour scheme, from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """What was requested since the page was opened."""
        events = self.browser.events
        return [e["params"]["request"]["url"] for e in events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path: Path | None = None, *, whole: bool = True, clip: dict | None = None) -> bytes:
        """PNG of the whole page, or of a part of it."""
        options = {"clip": {**clip, "scale": 1}} if clip else {}
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png", **options)["data"]
        image = base64.b64decode(data)
        if path is not None:
            path.write_bytes(image)
        return image
