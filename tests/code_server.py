"""The real VS Code, served to a real browser: its server with our extension installed, and one window of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("DG_LSP_EDITORS", Path(sys.prefix) / "editors"))
"""Where `make editors` puts what it installs."""
ENTRY = TOOLS / "code-server/node_modules/code-server/out/node/entry.js"
VSIX = ROOT / "editors/vscode/dist/dg-lsp.vsix"
SECONDS = 180
"""For one thing to happen; on a busy machine a window takes some to come up."""

QUIET = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "workbench.activityBar.location": "hidden",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.enableExperiments": False,
    "workbench.tips.enabled": False,
    "telemetry.telemetryLevel": "off",
    "extensions.autoUpdate": False,
    "extensions.autoCheckUpdates": False,
    "update.mode": "none",
    "chat.disableAIFeatures": True,
    "editor.minimap.enabled": False,
    "editor.wordBasedSuggestions": "off",
    "editor.quickSuggestions": {"other": "off"},
    "files.autoSave": "off",
    "files.hotExit": "off",
    "remote.autoForwardPorts": False,
    "security.workspace.trust.enabled": False,
}
NOWHERE = dict.fromkeys(("serviceUrl", "itemUrl", "resourceUrlTemplate"), "http://127.0.0.1:9/")
"""No shop of extensions is asked for anything."""


class CodeServer:
    """VS Code's server on a free port."""

    def __init__(self, folder):
        if not (ENTRY.exists() and VSIX.exists()):
            pytest.skip("no VS Code here to test the extension in: run make editors")
        self.home = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        user = folder / "user"
        (user / "User").mkdir(parents=True)
        (user / "User/settings.json").write_text(json.dumps(QUIET))
        path = os.pathsep.join([str(self._programs), str(TOOLS / "bin"), *without_server(os.environ["PATH"])])
        # VS Code asks a login shell what the environment is
        (folder / ".profile").write_text(f"export PATH='{path}'\n")
        self._env = {
            **os.environ,
            "PATH": path,
            "HOME": str(folder),
            "DG_LSP_DAEMON_DIR": str(folder / "no-daemon"),  # not what the person who runs this has started
            "SHELL": "/bin/sh",
            "EXTENSIONS_GALLERY": json.dumps(NOWHERE),
        }
        self._argv = [str(TOOLS / "bin/node"), str(ENTRY), "--user-data-dir", str(user)]
        self._argv += ["--extensions-dir", str(folder / "extensions"), "--config", str(folder / "config.yaml")]
        with (folder / "code-server.log").open("wb") as log:
            self._log = log.name
            install = [*self._argv, "--install-extension", str(VSIX)]
            subprocess.run(install, env=self._env, stdout=log, stderr=log, timeout=SECONDS, check=True)
            self._port = free_port()
            options = ["--auth", "none", "--bind-addr", f"127.0.0.1:{self._port}", "--disable-telemetry"]
            options += ["--disable-update-check", "--disable-workspace-trust", "--disable-getting-started-override"]
            self._process = subprocess.Popen(
                [*self._argv, *options],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._is_up, "code-server does not answer")

    def url(self, folder, file):
        """Where a browser finds a folder with one file opened."""
        payload = json.dumps([["openFile", f"vscode-remote://127.0.0.1:{self._port}{file}"]])
        return f"http://127.0.0.1:{self._port}/?folder={folder}&payload={payload}"

    def put_program(self, name, script):
        """A program that extensions find on their PATH."""
        path = self._programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _is_up(self):
        assert self._process.poll() is None, Path(self._log).read_text()
        address = f"http://127.0.0.1:{self._port}/healthz"
        with suppress(URLError, ConnectionError, TimeoutError), urlopen(address) as page:
            return page.status == 200
        return False


class Window:
    """One folder, opened in a browser, as a person sees and uses it."""

    GHOST = ".ghost-text-decoration, .ghost-text-decoration-preview, .ghost-text, .suggest-preview-text"
    STATUS = "document.getElementById('dg-lsp.dg-lsp.dg-lsp.status')"

    def __init__(self, browser, server, folder, file):
        self.browser, self.file = browser, file
        browser.open(server.url(folder, file), width=1000, height=460, scheme="dark")
        self.until_tab(file.name)
        self.until("document.querySelector('.monaco-editor .view-lines .view-line')", "no editor came up")
        self.focus()
        self.press("b", 66, ctrl=True)
        self.until("!document.querySelector('.part.sidebar')?.offsetWidth", "the side bar stays")

    # looking

    def run(self, script):
        return self.browser.run(script)

    def texts(self, selector):
        """What elements say, as somebody reads it."""
        found = self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")
        return [text.replace("\u00a0", " ").replace("\u200b", "") for text in found]

    def until(self, script, complaint):
        """Waits until an expression of the page is true."""
        said = lambda: f"{complaint}; the page says: {self.run('document.body.innerText')}"  # noqa: E731
        until(lambda: self.run(f"!!({script})"), said)

    def until_text(self, selector, part):
        """The first text of an element that has a part."""
        holds = lambda: next((text for text in self.texts(selector) if part in text), None)  # noqa: E731
        return until(holds, lambda: f"{part!r} is not in {self.texts(selector)}")

    @property
    def status(self):
        """What our item of the status bar says."""
        return self.run(f"{self.STATUS}?.textContent ?? ''").replace("\u00a0", " ").strip()

    @property
    def status_label(self):
        """What it says to who cannot see it."""
        return self.run(f"{self.STATUS}?.querySelector('a')?.getAttribute('aria-label') ?? ''")

    def until_status(self, part):
        return until(lambda: part in self.status, lambda: f"{part!r} is not in {self.status!r}")

    def until_tab(self, name):
        self.until(f"document.querySelector('.tab.active[data-resource-name={json.dumps(name)}]')", f"no tab {name}")

    @property
    def ghost(self):
        return "".join(self.texts(self.GHOST))

    def until_ghost(self):
        """The grey text, once it is there and no newer answer is to take its place."""
        seen = [None, None]

        def has_settled():
            seen.append((self.ghost, self.status_label))
            return seen[-1][0] and "busy" not in seen[-1][1] and seen[-1] == seen[-2] == seen[-3]

        until(has_settled, lambda: f"no ghost text; the status bar says {self.status!r}", pause=0.3)
        return seen[-1][0]

    def until_saved(self, text):
        """Saves, and waits until a file says what it should."""
        saved = lambda: self.file.read_bytes().decode()  # noqa: E731

        def is_saved():
            # what is to be saved may not have reached the editor yet
            self.press("s", 83, ctrl=True)
            return saved() == text

        until(is_saved, lambda: f"{saved()!r} is not {text!r}", pause=0.3)

    def screenshot(self, path):
        self.browser.screenshot(path)

    # doing

    def press(self, key, code, **held):
        self.browser.press(key, code, **held)

    def press_for(self, script, complaint, key, code, **held):
        """Presses until an expression is true: the focus, when it comes back late, closes what was just opened."""
        self._repeat_for(script, complaint, lambda: self.press(key, code, **held))

    def click_for(self, script, complaint, element):
        """Clicks until an expression is true: a button that is drawn again between press and release gets no click."""
        self._repeat_for(script, complaint, lambda: self.run(f"!!({element})") and self.click(element))

    def _repeat_for(self, script, complaint, act):
        def is_done():
            act()
            end = time.monotonic() + 5
            while not (is_true := self.run(f"!!({script})")) and time.monotonic() < end:
                time.sleep(0.05)
            return is_true

        until(is_done, complaint)

    def type(self, text):
        """Key by key; what is no key of a keyboard comes as an input method would put it in."""
        for character in text:
            if character.isascii():
                self.press(character, 0, text=character)
            else:
                self.browser.call("Input.insertText", text=character)

    def to_end(self):
        """The cursor behind the last character."""
        self.focus()
        self.press("End", 35, ctrl=True)

    def to_line(self, number):
        """The cursor before the first character of a line, counted from 1, that is no space."""
        self.focus()
        self.press("Home", 36, ctrl=True)
        for _ in range(number - 1):
            self.press("ArrowDown", 40)
        self.press("Home", 36)

    def focus(self):
        self.click("document.querySelector('.editor-instance .monaco-editor .view-lines')")
        self.until_focused()

    def until_focused(self):
        self.until("document.querySelector('.editor-instance .monaco-editor.focused')", "the editor has no focus")

    def click(self, element):
        """The middle of an element, given as an expression."""
        self.until(element, f"no {element}")
        where = f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getBoundingClientRect())"
        boxes = [None]

        def has_settled():
            boxes.append(self.run(where))
            return boxes[-1] == boxes[-2]

        until(has_settled, f"{element} does not stay where it is")
        for kind in ("mousePressed", "mouseReleased"):
            at = dict(zip("xy", boxes[-1], strict=True))
            self.browser.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def click_text(self, selector, text):
        """The first of some elements that has a text."""
        self.until_text(selector, text)
        listed = f"[...document.querySelectorAll({json.dumps(selector)})]"
        self.click(f"{listed}.find(one => one.textContent.includes({json.dumps(text)}))")

    def command(self, title):
        """Through the palette."""
        is_open = "document.querySelector('.quick-input-widget input') === document.activeElement"
        self.press_for(is_open, "no palette", "F1", 112)
        self.browser.call("Input.insertText", text=title)
        self.until_text(".quick-input-list .monaco-list-row.focused", title.split(": ")[-1])
        self.press("Enter", 13, text="\r")

    def answer(self, text):
        """Into a box that asks for a line of text."""
        self.until_text(".quick-input-widget .quick-input-message", "selected code change")
        self.browser.call("Input.insertText", text=text)
        self.press("Enter", 13, text="\r")


def until(happened, complaint, pause=0.05):
    """The first true value of `happened()`."""
    deadline = time.monotonic() + SECONDS
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(complaint() if callable(complaint) else complaint)
        time.sleep(pause)
    return value


def without_server(path):
    """The folders of a PATH that have no dg-lsp of the machine's own."""
    return [one for one in path.split(os.pathsep) if not (Path(one) / "dg-lsp").exists()]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
