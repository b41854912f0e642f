"""A headless Chromium, driven over the DevTools protocol through two pipes.

No port and no WebSocket: commands and answers are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_S = 200.0
"""Chromium may take a minute to start on a machine with ten times too much to do."""

DESKTOP = (1280, 900)
PHONE = (390, 844)

Result = dict[str, Any]

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--remote-debugging-pipe",
)


_EXEC = """
import os, sys
import fcntl
high = [fcntl.fcntl(int(n), fcntl.F_DUPFD_CLOEXEC, 10) for n in sys.argv[1].split()]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Chromium reads commands from file 3 and answers to file 4."""


class CommandFailed(AssertionError):
    """The browser refused a command."""


class Browser:
    """One page of a browser, for one thread."""

    def __init__(
        self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int
    ) -> None:
        self._process = process
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._inbox: queue.Queue[Result | None] = queue.Queue()
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        """What the page has written to the console as a warning or an error."""
        self._reader = threading.Thread(target=self._read, name="browser")

    def _read(self) -> None:
        rest = b""
        while data := _read_some(self._from_browser):
            *whole, rest = (rest + data).split(b"\0")
            for each in whole:
                self._inbox.put(json.loads(each))
        self._inbox.put(None)

    def command(self, method: str, **params: object) -> Result:
        """Send a command and return its result."""
        self._number += 1
        message: Result = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = self._inbox.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"no answer to {method} in {PATIENCE_S} s"
                ) from None
            assert found is not None, f"the browser ended during {method}"
            if found.get("id") != self._number:
                self._note(found)
                continue
            if "error" in found:
                raise CommandFailed(f"{method}: {found['error']}")
            result: Result = found["result"]
            return result

    def _note(self, message: Result) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                what = details.get("exception", {}).get("description", details["text"])
                self.problems.append(what)
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                values = [str(each.get("value", "?")) for each in params["args"]]
                self.problems.append(" ".join(values))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    def attach(self) -> None:
        """Make a page and follow its console."""
        self._reader.start()
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def resize(self, size: tuple[int, int], *, is_phone: bool = False) -> None:
        """Give the page the size of a window or a phone."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def set_colours(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def run_before_page(self, script: str) -> None:
        """Run a script in every page before its own scripts."""
        self.command("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url: str) -> None:
        """Go to a page; its files are loaded, its scripts may be waiting."""
        found = self.command("Page.navigate", url=url)
        assert "errorText" not in found, f"{url}: {found['errorText']}"
        self.wait_until("document.readyState == 'complete'")

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return the value of a JavaScript expression; promises are awaited."""
        found = self.command(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in found, f"{expression}: {found}"
        return found["result"].get("value")

    def _try(self, expression: str) -> bool:
        try:
            return self.evaluate(expression) is True
        except CommandFailed:
            return False  # the page went away under the command

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true.

        One that fails is not true yet: the document may just be replaced.
        """
        until_s = time.monotonic() + PATIENCE_S
        safe = f"(() => {{ try {{ return Boolean({expression}) }} catch {{ }} }})()"
        while not self._try(safe):
            if time.monotonic() > until_s:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"not {expression}: {text}\n{self.problems}")
            time.sleep(0.05)

    def press(self, key: str, *, with_shift: bool = False) -> None:
        """Press and release a key, as ``Tab``, ``Enter`` or ``ArrowDown``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        common: Result = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": codes[key],
            "modifiers": 8 if with_shift else 0,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {**common, "text": text} if text else common
        kind = "keyDown" if text else "rawKeyDown"
        self.command("Input.dispatchKeyEvent", type=kind, **down)
        self.command("Input.dispatchKeyEvent", type="keyUp", **common)

    def type_code(self, code: str) -> None:
        """Type the code of a shared dashboard and open it."""
        self.wait_until("!document.getElementById('gate').hidden")
        self.evaluate("document.getElementById('code').value = ''")
        self.evaluate("document.getElementById('code').focus()")
        self.command("Input.insertText", text=code)
        self.press("Enter")

    def screenshot(self, path: Path) -> None:
        """Save what the page shows as PNG."""
        found = self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the browser and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        if self._reader.ident is not None:
            self._reader.join(PATIENCE_S)
        os.close(self._to_browser)
        os.close(self._from_browser)


def _read_some(file: int) -> bytes:
    try:
        return os.read(file, 1 << 20)
    except OSError:
        return b""


@contextmanager
def browser(profile: Path, *more_flags: str) -> Iterator[Browser]:
    """A browser with an empty profile in ``profile``."""
    assert CHROMIUM is not None
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    flags = [*_FLAGS, *more_flags, f"--user-data-dir={profile}", "about:blank"]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, f"{commands} {answers}", CHROMIUM, *flags],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
            start_new_session=True,
        )
    finally:
        os.close(commands)
        os.close(answers)
    made = Browser(process, to_browser, from_browser)
    try:
        made.attach()
        yield made
    finally:
        made.close()
