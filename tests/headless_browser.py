"""A headless Chromium that opens pages and says what it met, over its DevTools protocol."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_SECONDS = 30


class Browser:
    """One page of a browser, in a context that ends it.

    Commands and events are JSON, ended by a zero byte, on the file descriptors 3 (to the browser)
    and 4 (from it). It ends with them.

    Attributes:
        errors: what stood on the console as an error since the last `open`, exceptions included.
    """

    def __init__(self, profile: Path):
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._events: list[dict] = []
        self._buffer = b""
        self._session: str | None = None
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        self._process = subprocess.Popen(
            [
                "bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", PROGRAM,
                "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
            ],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        targets = self._call("Target.getTargets")["targetInfos"]
        (page,) = (target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def resize(self, width: int, height: int) -> None:
        """The size of the window, in pixels; below 700 it is a phone's."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 700,
        )  # fmt: skip

    def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        self.errors.clear()
        self._events.clear()
        received = self._call("Page.navigate", url=url)
        assert "errorText" not in received, received
        end = time.monotonic() + _SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive(end)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression in the page, waiting for it if it is a promise."""
        received = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in received, received
        return received["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Waits until a JavaScript expression is true, as long as there is no error."""
        end = time.monotonic() + _SECONDS
        while not self.evaluate(expression):
            assert not self.errors, self.errors
            assert time.monotonic() < end, f"not within {_SECONDS} s: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Presses a key of the keyboard, and lets it go."""
        code = ord(key.upper())
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, text=key, windowsVirtualKeyCode=code
            )

    def screenshot(self, path: Path) -> None:
        """Writes what the window shows as a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while True:
            received = self._receive(end)
            if received.get("id") == number:
                assert "error" not in received, (method, received)
                return received["result"]

    def _receive(self, end):
        """The next message before a time; an event is kept, an error noted."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            assert chunk, f"{PROGRAM} gave no answer within {_SECONDS} s, or has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self._events.append(message)
            self._note_error(message["method"], message["params"])
        return message

    def _note_error(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            said = details.get("exception", {}).get("description", details["text"])
            self.errors.append(said)
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(each.get("value")) for each in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
