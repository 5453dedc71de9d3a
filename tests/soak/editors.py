"""The campaign of editors: hours of typing in real Neovim and real VS Code, with the bundled model.

A `Session` types files of samples/ with the rhythm of people, waits at some keys for ghost text, accepts or ignores it,
undoes what was accepted, writes notes elsewhere and saves. It knows what was typed and accepted: after each accepted
text and each batch the file on the disk must be that text.
"""

import json
import os
import random
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from chromium import start_browser
from code_server import CodeServer, Window
from gates import wait_until
from neovim import NATIVE, Editor, program, pynvim

from dg_lsp.bench.typing_model import TypingModel
from soak.figures import Figures

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "samples").glob("*.py") if "\t" not in path.read_text(encoding="utf-8"))
RHYTHM = TypingModel(speed=3.0)
"""Three times as fast as the mean of 168,000 people."""
BATCH_KEYS = 40
LONGEST_TEXT = 6000
WAIT_SHARE, ACCEPT_SHARE, UNDO_SHARE, NOTE_SHARE = 0.08, 0.7, 0.25, 0.3
"""Of keys, of ghost texts that were waited for, of accepted ones, and of batches."""
GHOST_SECONDS, PATIENCE = 3.0, 180.0
"""Seconds without work of the server after which no ghost text follows, and after which something counts as failed."""
COMPLETION = {"min_confidence": 0}
"""More suggestions than users get."""
NEOVIM_KEYS = {"<": "<lt>", "\n": "<CR>"}
PLAIN_NEOVIM = (
    'vim.cmd("filetype indent off")\nvim.o.autoindent = false\n'
    'vim.api.nvim_create_autocmd("FileType", { callback = function() vim.bo.formatoptions = "" end })\n'
)
PLAIN_VSCODE = {
    **{f"editor.autoClosing{kind}": "never" for kind in ("Brackets", "Quotes", "Comments", "Delete", "Overtype")},
    "editor.autoIndent": "none",
    "editor.autoSurround": "never",
    "editor.trimAutoWhitespace": False,
    "editor.acceptSuggestionOnEnter": "off",
    "editor.parameterHints.enabled": False,
    "files.eol": "\n",
}
"""The editors insert nothing by themselves."""
SHOWN = """(() => {
  const plain = text => text.replaceAll("\\u00a0", " ").replaceAll("\\u200b", "");
  const texts = selector => [...document.querySelectorAll(selector)].map(one => plain(one.textContent));
  const lines = texts(".suggest-preview-text .view-line").map(line => line.trimEnd());
  return [texts(".ghost-text-decoration, .ghost-text-decoration-preview").join(""), ...lines].join("\\n");
})()"""
"""The ghost text of VS Code, with its lines."""
GUARD = f"""window.addEventListener("keydown", event => {{
  if (event.key === "Tab") {{
    window.isAccepted = {SHOWN} === window.expected;
    if (!window.isAccepted) {{
      event.preventDefault();
      event.stopImmediatePropagation();
    }}
  }}
}}, true)"""
"""Drops `Tab` in VS Code unless the ghost text is still the expected one when the page receives the key.

Between two commands to a busy browser the answer to the last key may replace it.
"""


def _servers(process):
    """Language servers that a process or its children have started."""
    return [child for child in process.children(recursive=True) if "dg_lsp" in child.cmdline()]


class Neovim:
    """Neovim with the plugin."""

    name = "Neovim"
    indentation = None

    def __init__(self, folder):
        programs = [path for version in ("0.12", "0.11", "0.10") if (path := program(version))]
        if pynvim is None or not programs:
            pytest.skip("no Neovim: run make editors")
        decoded = f"vim.json.decode([==[{json.dumps({'completion': COMPLETION})}]==])"
        config = f'{PLAIN_NEOVIM}vim.lsp.config("dg_lsp", {{ init_options = {decoded} }})\n'
        command = [sys.executable, "-P", "-m", "dg_lsp", "lsp", "--stdio"]
        self._editor = Editor(programs[0], folder, cmd=command, ghost_text=NATIVE, more=config)
        self._file = self._editor.open()
        self._editor.keys("i")
        self.editor = psutil.Process(self._editor.lua("return vim.uv.os_getpid()"))

    def type(self, text):
        self._editor.keys("".join(NEOVIM_KEYS.get(key, key) for key in text))

    def is_busy(self):
        return self._editor.lua("return (require('dg_lsp.status').of(0) or {}).busy") is not False

    def ghost(self):
        return "".join(ghost[2] for ghost in self._editor.ghosts[:1])

    def accept(self, _shown):
        """Accepts the ghost text; whether that was done."""
        self._editor.keys("<Tab>")
        return True

    def undo(self):
        self._editor.keys("<Esc>uGA")

    def to_line_end(self, number):
        self._editor.keys(f"<Esc>{number}GA")

    def to_end(self):
        self._editor.keys("<Esc>GA")

    def clear(self):
        self._editor.keys("<Esc>ggdGi")

    def saved(self, text):
        """Saves; the content of the file once it is this text, or after some time."""
        is_saved = lambda: self._editor.nvim.command("silent write") or self._read() == text  # noqa: E731
        with suppress(AssertionError):
            wait_until(is_saved, seconds=PATIENCE, pause=0.1)
        return self._read()

    def _read(self):
        # Neovim ends each file with a line end
        return self._file.read_text(encoding="utf-8").removesuffix("\n")

    def servers(self):
        return _servers(self.editor)

    def close(self):
        self._editor.close()


class VSCode:
    """VS Code with the extension, in a browser."""

    name = "VS Code"
    indentation = " " * 4
    """`Tab` indents where a ghost text begins with it."""

    def __init__(self, folder):
        options = {**PLAIN_VSCODE, **{f"dg-lsp.completion.{key}": value for key, value in COMPLETION.items()}}
        (folder / "browser").mkdir()
        (folder / "server").mkdir()
        self._browser = start_browser(folder / "browser")
        try:
            self._code_server = CodeServer(folder / "server", settings=options)
        except BaseException:
            self._browser.close()
            raise
        project = folder / "project"
        project.mkdir()
        self._code_server.put_program("dg-lsp", f'PYTHONPATH={ROOT} exec {sys.executable} -P -m dg_lsp "$@"')
        self._file = project / "main.py"
        self._file.touch()
        self._window = Window(self._browser, self._code_server, project, self._file)
        self._window.until_status("dg-mini")
        self._window.focus()
        self._window.run(GUARD)

    def type(self, text):
        for key in text:
            if key == "\n":
                self._window.press("Enter", 13, text="\r")
            else:
                self._window.type(key)

    def is_busy(self):
        return "busy" in self._window.status_label

    def ghost(self):
        return self._window.run(SHOWN)

    def accept(self, shown):
        """Accepts the ghost text; whether it was still this one."""
        self._window.run(f"window.expected = {json.dumps(shown)}")
        self._window.press("Tab", 9)
        is_accepted = self._window.run("window.isAccepted")
        if is_accepted and any(ord(character) > 0xFFFF for character in shown):
            self.to_end()  # VS Code 1.139 leaves the cursor one place too far left for each of these characters
        return is_accepted

    def undo(self):
        self._window.press("z", 90, ctrl=True)

    def to_line_end(self, number):
        self._window.press("Home", 36, ctrl=True)
        for _ in range(number - 1):
            self._window.press("ArrowDown", 40)
        self._window.press("End", 35)

    def to_end(self):
        self._window.press("End", 35, ctrl=True)

    def clear(self):
        self._window.press("a", 65, ctrl=True)
        self._window.press("Delete", 46)

    def saved(self, text):
        """Saves; the content of the file once it is this text, or after some time."""
        with suppress(AssertionError):
            self._window.until_saved(text)
        return self._file.read_text(encoding="utf-8")

    def servers(self):
        return _servers(psutil.Process(self._code_server.pid))

    def close(self):
        self._code_server.close()
        self._browser.close()


@dataclass
class Session:
    """Types in one editor; `text` is what its buffer must be."""

    editor: Neovim | VSCode
    rng: random.Random
    figures: Figures
    text: str = ""
    num_batches: int = 0
    servers: set = field(default_factory=set)
    """Process ids; more than one if a server ended."""

    def run(self, has_ended):
        keys, delays = iter(()), iter(())
        while not has_ended():
            self._sample()
            for _ in range(BATCH_KEYS):
                if (key := next(keys, None)) is None:
                    source = self.rng.choice(SOURCES).read_text(encoding="utf-8") + "\n"
                    keys, delays = iter(source), iter(RHYTHM.delays(source, self.rng.getrandbits(31)))
                    key = next(keys)
                time.sleep(next(delays) / 1000)
                self.editor.type(key)
                self.text += key
                self.figures.add("messages")
                if self.rng.random() < WAIT_SHARE:
                    self._wait_for_ghost()
            self._end_batch()

    def _wait_for_ghost(self):
        """Accepts the ghost text, and undoes that, or goes on typing."""
        seen, busy_at = [None, None], time.monotonic()

        def has_settled():
            nonlocal busy_at
            is_busy = self.editor.is_busy()
            busy_at = time.monotonic() if is_busy else busy_at
            seen.append("" if is_busy else self.editor.ghost())
            is_stable = seen[-1] and seen[-1] == seen[-2] == seen[-3]
            return is_stable or time.monotonic() - busy_at > GHOST_SECONDS

        wait_until(has_settled, "the server stays busy", seconds=PATIENCE, pause=0.1)
        ghost = seen[-1]
        if not ghost or ghost != seen[-3]:
            return
        self.figures.add("shown")
        # `Tab` indents where a ghost text begins with indentation
        is_indented = self.editor.indentation and ghost.startswith(self.editor.indentation)
        if self.rng.random() > ACCEPT_SHARE or is_indented:
            return
        if not self.editor.accept(ghost):
            self.figures.add("replaced")
            return
        self.figures.add("accepted")
        before = self.text
        self.text += ghost
        self._check(f"after {ghost!r} was accepted")
        if self.text == before + ghost and self.rng.random() < UNDO_SHARE:
            self.editor.undo()
            self.editor.to_end()
            self.text = before

    def _end_batch(self):
        if self.rng.random() < NOTE_SHARE:
            lines = self.text.split("\n")
            number, note = self.rng.randrange(len(lines)), f"  # {self.editor.name} {self.num_batches}"
            self.editor.to_line_end(number + 1)
            self.editor.type(note)
            self.editor.to_end()
            lines[number] += note
            self.text = "\n".join(lines)
        self._check("at the end of a batch")
        if len(self.text) > LONGEST_TEXT:
            self.editor.clear()
            self.text = ""
            self._check("after all was deleted")
        self.num_batches += 1

    def _check(self, when):
        """The file has what was typed and accepted; the campaign goes on with what it has."""
        saved = self.editor.saved(self.text)
        if saved == self.text:
            return
        pairs = enumerate(zip(saved, self.text, strict=False))
        start = next((at for at, (left, right) in pairs if left != right), min(len(saved), len(self.text)))
        part = slice(max(0, start - 40), start + 40)
        is_crossed = any(kind.name in saved for kind in (Neovim, VSCode) if kind.name != self.editor.name)
        what = f"{self.editor.name} {when}: {saved[part]!r} in place of {self.text[part]!r}"
        self.figures.add("crossed" if is_crossed else "lost", what)
        self.text = saved
        self.editor.to_end()

    def _sample(self):
        with suppress(psutil.Error):
            for server in self.editor.servers():
                self.servers.add(server.pid)
                self.figures.sample(server.memory_info().rss, f"server of {self.editor.name}")


def campaign(figures, folder, seed):
    """Types in one editor after the other, half of the time in each; an editor that is missing is skipped."""
    os.environ.setdefault("DG_LSP_CONFIG_DIR", os.devnull)
    for kind in (Neovim, VSCode):
        place = folder / kind.name
        place.mkdir()
        has_ended = figures.limit(0.5)
        try:
            with closing(kind(place)) as editor:
                session = Session(editor, random.Random(f"{seed} {kind.name}"), figures)
                session.run(has_ended)
                figures.add("crashes", number=max(0, len(session.servers) - 1))
        except pytest.skip.Exception as reason:
            figures.facts[kind.name] = f"skipped: {reason}"
        except (AssertionError, OSError, EOFError) as error:
            figures.add("unexpected", f"{kind.name}: {error!r}")
