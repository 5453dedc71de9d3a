"""A report to look at, and a real Chromium to look with: driven over two pipes, with no driver, port or package."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from dg_lsp.bench.report import Film, Report, Table
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.metrics.attempt import Attempt, Shown

HOSTILE = (
    "</script></style><img src=x onerror=alert(1)>\"'><svg onload=alert(2)> <!-- ]]> &lt; "
    "\0\x1b[31m \u202etxet\ud800 $lead"
)
"""What a model may say, given enough time."""

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The first starts in a fifth of the time of the others."""
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
SECONDS = 300
"""A browser that says nothing for so long is broken; on a busy machine its start takes some."""

LAUNCHER = """
import os, sys
reads, writes = int(sys.argv[1]), int(sys.argv[2])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser's protocol is spoken on descriptors 3 and 4."""


class Chromium:
    """One browser with one page."""

    def __init__(self, path, folder):
        (theirs_in, ours_out), (ours_in, theirs_out) = (_high(os.pipe()), _high(os.pipe()))
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
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """One command of the protocol, and what it gives back."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, *, width=1100, height=900, scheme="light"):
        """Loads a file and waits until it is there."""
        self.size(width, height)
        self.scheme(scheme)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def size(self, width, height):
        """Of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, scheme, media="", motion="no-preference"):
        """Light or dark, screen or print, with or without motion, as the system would say."""
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=listed)

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, code=0, text=None, *, shift=False):
        """One key, as a person presses it."""
        held = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **held, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **held)

    def close(self):
        """Ends the browser; it is killed where it does not end by itself."""
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
            assert ready, f"Chromium said nothing for {SECONDS} s"
            got = os.read(self._in, 1 << 20)
            if not got:
                raise BrokenPipeError("Chromium ended")
            self._rest += got
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


def _high(pipe):
    """The same pipe on descriptors that 3 and 4 are not among."""
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe)
    for end in pipe:
        os.close(end)
    return moved


def is_browser(path):
    """It runs here: some systems have a script of that name that only says how to install it."""
    if path is None:
        return False
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    path = next(filter(is_browser, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(
            "no Chromium here to look at the report with: on Debian, run: sudo apt-get install chromium-headless-shell"
        )
    browser = Chromium(path, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def attempt_of(site, way="diffusion", **changes):
    """One request; useful and exact unless the changes say otherwise."""
    facts = {
        "kind": "line-end",
        "plan": "canvas",
        "want": "return a\n    b",
        "shown": (Shown(40.0, "return a\n    b"),),
        "is_exact": True,
        "passes": None,
        "latency_ms": 40.0,
        "steps": 4,
        "tokens": 9,
        "confidence": -0.1,
        "rejection": None,
        "prefill_ms": 10.0,
        "model_ms": 30.0,
    }
    return Attempt(site=site, way=way, **{**facts, **changes})


def frame_of(step, tokens, num_committed, *, block=0):
    """A canvas whose first cells are accepted; an empty token is an end token."""
    cells = tuple(
        Cell(text, 0.95 if i < num_committed else 0.65 - 0.1 * i, i < num_committed, not text)
        for i, text in enumerate(tokens)
    )
    return Frame(block, step, cells, "".join(tokens[:num_committed]))


def film_of(site="pkg/shapes.py:12", tokens=("self", ".height", " =", " height", "", ""), **changes):
    """Two positions a step."""
    frames = tuple(frame_of(i, tokens, 2 * i) for i in range(1, len(tokens) // 2 + 1))
    facts = {"want": "self.height = height", "frames": frames, "before": "def f():\n    ", "after": "\n\nnext()"}
    return Film(site=site, **{**facts, "text": "self.height = height", "why": "exact", **changes})


@pytest.fixture
def make_attempt():
    return attempt_of


@pytest.fixture
def make_frame():
    return frame_of


@pytest.fixture
def make_film():
    return film_of


def report_of(text="plain"):
    """A report of everything; `text` stands wherever a file, a model or a person may have written something."""
    ways = ("diffusion", "autoregressive", text)
    attempts = {
        way: [
            attempt_of(f"right {text}", way, shown=(Shown(20.0 * i, "return b"), Shown(30.0 * i, "return a"))),
            attempt_of(
                f"wrong {text}",
                way,
                kind="block",
                shown=(Shown(50.0, text),),
                latency_ms=260.0,
                is_exact=False,
                want=text,
            ),
            attempt_of(f"late {text}", way, shown=(Shown(1800.0, "return a"),), latency_ms=1800.0, steps=70, plan=text),
            attempt_of(f"none {text}", way, kind=text, shown=(), is_exact=False, rejection=text),
            attempt_of("tested", way, passes=True, latency_ms=260.0),
        ]
        for i, way in enumerate(ways, 1)
    }
    film = film_of(f"{text}.py", tokens=(text, "\n", "    ", "x" * 40, "", ""), want=text, before=text, after=text)
    return Report(
        title=f"bench {text}",
        machine={"cpu": text, "cores": 2, "versions": {"dg-lsp": "1", "gone": None}},
        options={"plan": text, "execute": False, "suffix_lines": [1, 2]},
        attempts=attempts,
        films=[film_of(), film],
        notes=[f"length_knowledge: none {text}"],
        tables=[Table(f"Ratios {text}", ("way", "ratio"), ((text, "1.4×"),), note=text)],
        date="2026-01-31",
    )


@pytest.fixture
def report():
    return report_of()


@pytest.fixture
def hostile_report():
    return report_of(HOSTILE)


@pytest.fixture
def hostile_text():
    return HOSTILE
