"""The real VS Code in a real browser: its server with our extension, and one window."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from gates import free_port, wait_until
from installation import VSIX

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("DG_LSP_EDITORS", Path(sys.prefix) / "editors"))
"""Where `make editors` puts what it installs."""
ENTRY = TOOLS / "code-server/node_modules/code-server/out/node/entry.js"
SECONDS = 180
"""Seconds after which a test fails; a window opens slowly on a busy machine."""

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
    "security.workspace.trust.startupPrompt": "never",
}
EAGER = {"dg-lsp.completion.deadline_ms": 60_000, "dg-lsp.completion.min_confidence": 0}
"""Completions must depend neither on the load of the machine nor on the model's confidence."""
TRUST = "security.workspace.trust.enabled"
until = partial(wait_until, seconds=SECONDS, pause=0.05)
NOWHERE = dict.fromkeys(("serviceUrl", "itemUrl", "resourceUrlTemplate"), "http://127.0.0.1:9/")
"""Keeps VS Code from requesting its marketplace."""


class CodeServer:
    """VS Code's server on a free port."""

    def __init__(self, folder, *, settings=None, trusts_all=True, without=(), like=None):
        """`settings` are the user's; without `trusts_all` a folder is in Restricted Mode.

        The programs `without` are not on the PATH. Extensions whose folders lie in `folder`/extensions are installed,
        or those of the server `like`.
        """
        if not (ENTRY.exists() and VSIX.exists()):
            pytest.skip("no VS Code: run make editors")
        self.home = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        user = folder / "user"
        for scope in ("User", "Machine"):  # those of a machine do not count among the user's
            (user / scope).mkdir(parents=True)
            content = json.dumps({**QUIET, TRUST: not trusts_all, **(settings or {})})
            (user / scope / "settings.json").write_text(content)
        hidden = ("dg-lsp", *without)
        folders = os.environ["PATH"].split(os.pathsep)
        others = [folder for folder in folders if not any((Path(folder) / name).exists() for name in hidden)]
        if shutil.which("env", path=os.pathsep.join(others)) is None:
            pytest.skip(f"one of {without} is in a folder of the system")
        path = os.pathsep.join([str(self._programs), str(TOOLS / "bin"), *others])
        # VS Code reads the environment of a login shell
        (folder / ".profile").write_text(f"export PATH='{path}'\n")
        self._env = {
            **os.environ,
            "PATH": path,
            "HOME": str(folder),
            "DG_LSP_DAEMON_DIR": str(folder / "no-daemon"),  # a daemon of the developer must not be used
            "SHELL": "/bin/sh",
            "EXTENSIONS_GALLERY": json.dumps(NOWHERE),
        }
        self._argv = [str(TOOLS / "bin/node"), str(ENTRY), "--user-data-dir", str(user)]
        self._extensions = like._extensions if like else folder / "extensions"
        self._argv += ["--extensions-dir", str(self._extensions), "--config", str(folder / "config.yaml")]
        with (folder / "code-server.log").open("wb") as log:
            self._log = log.name
            if like is None:
                install = [*self._argv, "--install-extension", str(VSIX)]
                subprocess.run(install, env=self._env, stdout=log, stderr=log, timeout=SECONDS, check=True)
            self._port = free_port()
            options = ["--auth", "none", "--bind-addr", f"127.0.0.1:{self._port}", "--disable-telemetry"]
            options += ["--disable-update-check", "--disable-getting-started-override"]
            options += ["--disable-workspace-trust"] if trusts_all else []
            self._process = subprocess.Popen(
                [*self._argv, *options],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._is_up, "code-server does not answer")

    def url(self, folder, file=None):
        """The address of a folder or a `.code-workspace` file, with one open file or none."""
        kind = "workspace" if folder.suffix == ".code-workspace" else "folder"
        payload = json.dumps([["openFile", f"vscode-remote://127.0.0.1:{self._port}{file}"]] if file else [])
        return f"http://127.0.0.1:{self._port}/?{kind}={folder}&payload={payload}"

    def put_program(self, name, script):
        """Adds a program to the PATH of extensions."""
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
    """One folder, open in a browser."""

    GHOST = ".ghost-text-decoration, .ghost-text-decoration-preview, .ghost-text, .suggest-preview-text"
    STATUS = "document.getElementById('dg-lsp.dg-lsp.dg-lsp.status')"
    EDITOR = ".editor-instance .monaco-editor"

    def __init__(self, browser, server, folder, file):
        self.browser, self.file = browser, file
        self.others = [file.with_name(f"{number}.py") for number in range(10, 20)]
        self.open(server, folder, file)
        self.until_tab(file.name)
        self.until(f"document.querySelector('{self.EDITOR} .view-lines .view-line')", "no editor")
        self.focus()
        self.press("b", 66, ctrl=True)
        self.until("!document.querySelector('.part.sidebar')?.offsetWidth", "the side bar stays")

    def open(self, server, folder, file):
        self.browser.open(server.url(folder, file), width=1000, height=460)

    # looking

    def run(self, script):
        return self.browser.run(script)

    def texts(self, selector):
        """The texts of elements, with plain spaces."""
        texts = self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")
        return [text.replace("\u00a0", " ").replace("\u200b", "") for text in texts]

    def until(self, script, complaint):
        """Waits until an expression of the page is true."""
        until(lambda: self.run(f"!!({script})"), lambda: f"{complaint}; {self.run('document.body.innerText')}")

    def until_text(self, selector, part):
        """The first text of an element that has a part."""
        holds = lambda: next((text for text in self.texts(selector) if part in text), None)  # noqa: E731
        return until(holds, lambda: f"{part!r} is not in {self.texts(selector)}")

    @property
    def status(self):
        """The text of our item in the status bar."""
        return self.run(f"{self.STATUS}?.textContent ?? ''").replace("\u00a0", " ").strip()

    @property
    def status_label(self):
        """The text of that item for screen readers."""
        return self.run(f"{self.STATUS}?.querySelector('a')?.getAttribute('aria-label') ?? ''")

    def until_status(self, part):
        return until(lambda: part in self.status, lambda: f"{part!r} is not in {self.status!r}, {self.status_label!r}")

    def until_label(self, part):
        return until(lambda: part in self.status_label, lambda: f"{part!r} is not in {self.status_label!r}")

    def until_tab(self, name):
        self.until(f"document.querySelector('.tab.active[data-resource-name={json.dumps(name)}]')", f"no tab {name}")

    @property
    def ghost(self):
        return "".join(self.texts(self.GHOST))

    @property
    def lines(self):
        """The texts of the lines of the editor."""
        return self.texts(f"{self.EDITOR} .view-line")

    def until_ghost(self):
        """The ghost text, once it stays the same and no request runs."""
        seen = [None, None]

        def has_settled():
            seen.append((self.ghost, self.status_label))
            return seen[-1][0] and "busy" not in seen[-1][1] and seen[-1] == seen[-2] == seen[-3]

        complaint = lambda: f"no ghost text; status {self.status!r}, label {self.status_label!r}; lines {self.lines}"  # noqa: E731
        until(has_settled, complaint, pause=0.3)
        return seen[-1][0]

    def until_saved(self, text):
        """Saves until the file has this text: edits may reach the editor later."""
        is_saved = lambda: self.press("s", 83, ctrl=True) or self.file.read_bytes().decode() == text  # noqa: E731
        until(is_saved, lambda: f"{self.file.read_bytes().decode()!r} is not {text!r}", pause=0.3)

    # doing

    def press(self, key, code, **held):
        self.browser.press(key, code, **held)

    def press_until(self, script, complaint, key, code, **held):
        """Presses until an expression is true: a late change of the focus closes menus."""
        self._repeat_until(script, complaint, lambda: self.press(key, code, **held))

    def click_until(self, script, complaint, element):
        """Clicks until an expression is true: a button that is drawn again between press and release gets no click."""
        self._repeat_until(script, complaint, lambda: self.run(f"!!({element})") and self.click(element))

    def _repeat_until(self, script, complaint, act):
        def is_done():
            act()
            with suppress(AssertionError):
                return wait_until(lambda: self.run(f"!!({script})"), seconds=5)

        until(is_done, complaint)

    def type(self, text):
        """Types key by key; characters without a key are inserted as by an input method."""
        for character in text:
            if character.isascii():
                self.press(character, 0, text=character)
            else:
                self.browser.call("Input.insertText", text=character)

    def to_end(self):
        """Moves the cursor behind the last character."""
        self.focus()
        self.press("End", 35, ctrl=True)

    def show(self, text):
        """Types a text behind the last character; returns the ghost text that follows it."""
        self.to_end()
        self.type(text)
        return self.until_ghost()

    def to_line(self, number):
        """Moves the cursor to the first character of a line, counted from 1, that is no space."""
        self.focus()
        self.press("Home", 36, ctrl=True)
        for _ in range(number - 1):
            self.press("ArrowDown", 40)
        self.press("Home", 36)

    def focus(self):
        self.click(f"document.querySelector('{self.EDITOR} .view-lines')")
        self.until_focused()

    def until_focused(self):
        self.until(f"document.querySelector('{self.EDITOR}.focused')", "the editor has no focus")

    def click(self, element):
        """Clicks on the middle of an element, given as an expression."""
        self.until(element, f"no {element}")
        where = f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getBoundingClientRect())"
        boxes = [None]

        def has_settled():
            boxes.append(self.run(where))
            return boxes[-1] == boxes[-2]

        until(has_settled, f"{element} moves")
        for kind in ("mousePressed", "mouseReleased"):
            at = dict(zip("xy", boxes[-1], strict=True))
            self.browser.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def click_text(self, selector, text):
        """Clicks on the first of the elements with a text."""
        self.until_text(selector, text)
        listed = f"[...document.querySelectorAll({json.dumps(selector)})]"
        self.click(f"{listed}.find(one => one.textContent.includes({json.dumps(text)}))")

    def command(self, title):
        """Runs a command of the palette."""
        self.search(title, "F1", 112)
        self._choose(title.split(": ")[-1])

    def quick_open(self, name):
        """Opens a file of the folder. A list that is opened before VS Code has found the files stays empty."""
        row = "document.querySelector('.quick-input-list .monaco-list-row.focused')"
        is_listed = f"{row}?.textContent.includes({json.dumps(name)})"
        search = lambda: self.press("Escape", 27) or self.search(name, "p", 80, ctrl=True)  # noqa: E731
        self._repeat_until(is_listed, f"{name} is not listed", search)
        self._choose(name)

    def search(self, text, key, code, **held):
        """Enters a text into the input that a key opens: F1 that of the palette."""
        is_open = "document.querySelector('.quick-input-widget input') === document.activeElement"
        self.press_until(is_open, "no input", key, code, **held)
        self.browser.call("Input.insertText", text=text)

    def _choose(self, text):
        self.until_text(".quick-input-list .monaco-list-row.focused", text)
        self.press("Enter", 13, text="\r")

    @property
    def settings_file(self):
        """The settings of the folder."""
        return self.file.parent / ".vscode/settings.json"

    def change_settings(self, **changes):
        """Changes settings of the folder; VS Code reads them again some time."""
        settings = json.loads(self.settings_file.read_text())
        self.settings_file.write_text(json.dumps({**settings, **changes}))

    def open_another(self, text, name=None):
        """Opens another file of the folder, which has this text and no history."""
        self.file = self.others.pop() if name is None else self.file.with_name(name)
        self.file.write_text(text)
        self.quick_open(self.file.name)
        self.until_tab(self.file.name)
        self.focus()
        until(lambda: self.lines[0] == text.split("\n")[0], lambda: self.lines)

    def answer(self, question, text):
        """Enters text into the input box with a question."""
        self.until_text(".quick-input-widget .quick-input-message", question)
        self.browser.call("Input.insertText", text=text)
        self.press("Enter", 13, text="\r")


class NotebookWindow(Window):
    """A notebook; the cursor is in its last cell."""

    EDITOR = ".notebookOverlay .monaco-list-row:last-child .cell .monaco-editor"

    def open(self, server, folder, file):
        """Opens the folder, then the file: with the folder it would be opened as text."""
        self.browser.open(server.url(folder), width=1000, height=620)
        self.until("document.querySelector('.statusbar-item')", "no window")
        self.quick_open(file.name)
