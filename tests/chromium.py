"""A real Chromium, driven over two pipes, without a driver or a port."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The first one starts fastest."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
NAVIGATED = "Inspected target navigated or closed"
"""The answer to a command whose page is replaced meanwhile: VS Code loads it anew at some changes of a workspace."""
SECONDS = 300
"""Seconds without a message after which the browser counts as broken."""

_CODES = {".": "Period", " ": "Space", "\\": "Backslash"}

LAUNCHER = """
import os, sys
reads, writes = int(sys.argv[1]), int(sys.argv[2])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and writes to descriptor 4. The pipe of the commands is opened first, so
its end has the lower number and is moved before anything takes its place."""


class Chromium:
    def __init__(self, path, folder):
        (theirs_in, ours_out), (ours_in, theirs_out) = (os.pipe(), os.pipe())
        command = [sys.executable, "-c", LAUNCHER, str(theirs_in), str(theirs_out), path]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._rest, self._number = ours_in, ours_out, b"", 0
        self.events = []
        self._session = None
        self._attach(
            next(target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page")[
                "targetId"
            ]
        )

    def call(self, method, **params):
        """Sends one command of the protocol and returns its result; where the page is replaced meanwhile, once more."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if answer.get("error", {}).get("message") == NAVIGATED:
            return self.call(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    def renew(self):
        """Replaces the page with a new one, without its dialogs."""
        self._session, old = None, self._target
        self._attach(self.call("Target.createTarget", url="about:blank")["targetId"])
        session, self._session = self._session, None
        self.call("Target.closeTarget", targetId=old)
        self._session = session

    def _attach(self, target):
        self._target = target
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, address, *, width, height):
        """Loads an address into a dark window of this size in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, code=0, text=None, *, shift=False, ctrl=False, alt=False):
        name = f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else _CODES.get(key, key)
        held = {"key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": 8 * shift + 2 * ctrl + alt}
        self.call("Input.dispatchKeyEvent", type="keyDown", **held, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **held)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self._session = None
        with suppress(OSError):
            self.call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self):
        until = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, until - time.monotonic()))
            assert ready, f"no message of Chromium for {SECONDS} s"
            got = os.read(self._in, 1 << 20)
            if not got:
                raise BrokenPipeError("Chromium ended")
            self._rest += got
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


def is_browser(path):
    """Some systems have a script of that name that only prints how to install it."""
    return path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


def start_browser(folder):
    """A browser with its profile in `folder`; without a browser the test is skipped."""
    path = next(filter(is_browser, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: on Debian, run: sudo apt-get install chromium-headless-shell")
    return Chromium(path, folder)
