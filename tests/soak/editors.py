"""The campaign of editors: hours of typing in real Neovim and real VS Code, with the bundled model.

A `Session` types files of samples/ with the rhythm of people, waits at some keys for ghost text, accepts or ignores it,
undoes what was accepted, writes notes elsewhere and saves. It knows what was typed and accepted: after each accepted
text and each batch the file on the disk must be that text. Server memory and latency are those of the audit log, one
line for each answer. `python -m soak.editors --seconds 600`, in tests/ with the project on PYTHONPATH, runs only this
campaign.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from chromium import start_browser
from code_server import CodeServer, Window
from gates import wait_until
from neovim import NATIVE, Editor, program, pynvim

from dg_lsp.bench.typing_model import TypingModel
from dg_lsp.engine.audit import read_log
from dg_lsp.engine.ttfue import quantile
from soak.figures import FAILURES, MAX_GROWTH, figures_of, growth

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
MIN_ANSWERS = 1000
"""Answers from which on the growth of the server counts."""
MIB = 1 << 20
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


class Neovim:
    """Neovim with the plugin."""

    name = "Neovim"
    indentation = None

    def __init__(self, folder):
        found = [path for version in ("0.12", "0.11", "0.10") if (path := program(version))]
        if pynvim is None or not found:
            pytest.skip("no Neovim: run make editors")
        self.audit_log = folder / "audit.jsonl"
        options = {"completion": COMPLETION, "privacy": {"audit_log": str(self.audit_log)}}
        decoded = f"vim.json.decode([==[{json.dumps(options)}]==])"
        config = f'{PLAIN_NEOVIM}vim.lsp.config("dg_lsp", {{ init_options = {decoded} }})\n'
        self._server = [sys.executable, "-P", "-m", "dg_lsp", "lsp", "--stdio"]
        self._editor = Editor(found[0], folder, cmd=self._server, ghost_text=NATIVE, more=config)
        self._file = self._editor.open()
        self._editor.keys("i")
        self.editor = psutil.Process(self._editor.lua("return vim.uv.os_getpid()"))

    def type(self, text):
        self._editor.keys("".join(NEOVIM_KEYS.get(key, key) for key in text))

    def is_busy(self):
        return self._editor.lua("return (require('dg_lsp.status').of(0) or {}).busy") is not False

    def ghost(self):
        return "".join(one[2] for one in self._editor.ghosts[:1])

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

    def processes(self):
        """The server's, and the editor's."""
        started = self.editor.children(recursive=True)
        servers = [one for one in started if "dg_lsp" in one.cmdline()]
        return servers, [self.editor]

    def close(self):
        self._editor.close()


class VSCode:
    """VS Code with the extension, in a browser."""

    name = "VS Code"
    indentation = " " * 4
    """`Tab` indents where a ghost text begins with it."""

    def __init__(self, folder):
        self.audit_log = folder / "audit.jsonl"
        options = {f"dg-lsp.completion.{key}": value for key, value in COMPLETION.items()}
        options |= {"dg-lsp.privacy.audit_log": str(self.audit_log), **PLAIN_VSCODE}
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

    def processes(self):
        """The server's, and the editor's with those of the browser."""
        roots = [psutil.Process(one.pid) for one in (self._code_server, self._browser)]
        started = [one for root in roots for one in (root, *root.children(recursive=True))]
        servers = [one for one in started if "dg_lsp" in one.cmdline()]
        return servers, [one for one in started if one not in servers]

    def close(self):
        self._code_server.close()
        self._browser.close()


@dataclass
class Session:
    """Types in one editor; `text` is what its buffer must be."""

    editor: Neovim | VSCode
    rng: random.Random
    text: str = ""
    num_keys: int = 0
    num_batches: int = 0
    num_shown: int = 0
    num_accepted: int = 0
    num_undone: int = 0
    num_indented: int = 0
    """Ghost texts that `Tab` does not accept."""
    num_replaced: int = 0
    """Ghost texts that were replaced or removed before the key that accepts them."""
    num_crossed: int = 0
    failures: list = field(default_factory=list)
    memory: list = field(default_factory=list)
    """Seconds, MiB of the server, MiB of the editor."""
    servers: set = field(default_factory=set)
    """Process ids; more than one if a server ended."""
    start: float = field(default_factory=time.time)

    def run(self, seconds, most):
        """Types for some seconds, or a number of keys."""
        keys, delays = iter(()), iter(())
        while self.num_keys < most and time.time() - self.start < seconds:
            self._sample()
            for _ in range(BATCH_KEYS):
                if (key := next(keys, None)) is None:
                    source = self.rng.choice(SOURCES).read_text(encoding="utf-8") + "\n"
                    keys, delays = iter(source), iter(RHYTHM.delays(source, self.rng.getrandbits(31)))
                    key = next(keys)
                time.sleep(next(delays) / 1000)
                self._type(key)
                if self.rng.random() < WAIT_SHARE:
                    self._wait_for_ghost()
            self._end_batch()

    def _type(self, text):
        self.editor.type(text)
        self.text += text
        self.num_keys += len(text)

    def _wait_for_ghost(self):
        """Accepts the ghost text, and undoes that, or goes on typing."""
        seen, busy_at = [None, None], time.monotonic()

        def has_settled():
            nonlocal busy_at
            is_busy, now = self.editor.is_busy(), time.monotonic()
            busy_at = now if is_busy else busy_at
            seen.append("" if is_busy else self.editor.ghost())
            return (seen[-1] and seen[-1] == seen[-2] == seen[-3]) or now - busy_at > GHOST_SECONDS

        wait_until(has_settled, "the server stays busy", seconds=PATIENCE, pause=0.1)
        if not seen[-1] or seen[-1] != seen[-3]:
            return
        self.num_shown += 1
        if self.rng.random() < ACCEPT_SHARE:
            if self.editor.indentation and seen[-1].startswith(self.editor.indentation):
                self.num_indented += 1
                return
            if not self.editor.accept(seen[-1]):
                self.num_replaced += 1
                return
            self.num_accepted += 1
            before, self.text = self.text, self.text + seen[-1]
            self._check(f"after {seen[-1]!r} was accepted")
            if self.text == before + seen[-1] and self.rng.random() < UNDO_SHARE:
                self.editor.undo()
                self.editor.to_end()
                self.text = before
                self.num_undone += 1

    def _end_batch(self):
        if self.rng.random() < NOTE_SHARE:
            lines = self.text.split("\n")
            number, note = self.rng.randrange(len(lines)), f"  # {self.editor.name} {self.num_batches}"
            self.editor.to_line_end(number + 1)
            self.editor.type(note)
            self.editor.to_end()
            lines[number] += note
            self.text = "\n".join(lines)
            self.num_keys += len(note)
        self._check()
        if len(self.text) > LONGEST_TEXT:
            self.editor.clear()
            self.text = ""
            self._check()
        self.num_batches += 1

    def _check(self, when="at the end of a batch"):
        """The file has what was typed and accepted; the campaign goes on with what it has."""
        found = self.editor.saved(self.text)
        if found != self.text:
            at = next((i for i, (a, b) in enumerate(zip(found, self.text, strict=False)) if a != b), len(found))
            part = slice(max(0, at - 40), at + 40)
            parts = f"{found[part]!r} in place of {self.text[part]!r}"
            self.failures.append(f"key {self.num_keys}, {when}: {parts}")
            self.num_crossed += any(kind.name in found for kind in (Neovim, VSCode) if kind.name != self.editor.name)
            self.text = found
            self.editor.to_end()

    def _sample(self):
        with suppress(psutil.Error):
            servers, editor = self.editor.processes()
            self.servers |= {one.pid for one in servers}
            sizes = [sum(one.memory_info().rss for one in part) / MIB for part in (servers, editor)]
            self.memory.append((time.time() - self.start, *sizes))

    def records(self):
        """Seconds since the start, milliseconds and MiB of the server, for each answer."""
        found = []
        with suppress(OSError):
            found, *_ = read_log(self.editor.audit_log)
        answers = [one for one in found if one.outcome not in ("cancelled", "failed")]
        times = [datetime.fromisoformat(one.time).timestamp() - self.start for one in answers]
        sizes = [(1000 * one.total_seconds, one.resident_bytes / MIB) for one in answers]
        return [(at, *rest) for at, rest in zip(times, sizes, strict=True)]

    def figures(self):
        """Counts, latency and memory."""
        answers = self.records()
        times = [one[1] for one in answers]
        counted = ("keys", "batches", "shown", "accepted", "undone", "indented", "replaced")
        return {
            **{name: getattr(self, f"num_{name}") for name in counted},
            "answers": len(answers),
            "latency_ms": {f"p{percent}": round(quantile(times, percent / 100) or 0.0, 1) for percent in (50, 90, 99)},
            "server_mib": [round(self.memory[at][1], 1) for at in (0, len(self.memory) // 2, -1)],
            "editor_mib": [round(self.memory[at][2], 1) for at in (0, len(self.memory) // 2, -1)],
            "growth_in_second_half": growth([one[2] for one in answers]),
        }


# the campaign


def run(seconds, seed, most=float("inf")):
    """Types in one editor after the other, half of the seconds or so many keys in each; returns the figures."""
    os.environ.setdefault("DG_LSP_CONFIG_DIR", os.devnull)
    start, typed, skipped, problems = time.monotonic(), [], {}, []
    for kind in (Neovim, VSCode):
        with tempfile.TemporaryDirectory(prefix="dg-soak-", ignore_cleanup_errors=True) as name:
            session = None
            try:
                with closing(kind(Path(name))) as editor:
                    session = Session(editor, random.Random(f"{seed} {kind.name}"))
                    session.run(seconds / 2, most)
            except pytest.skip.Exception as reason:
                skipped[kind.name] = {"skipped": str(reason)}
            except (AssertionError, OSError, EOFError) as error:
                problems.append(f"{kind.name}: {error!r}"[:500])
            if session is not None and session.memory:
                typed.append((session, session.figures(), session.records()))
    for session, figures, answers in typed:
        if len(answers) >= MIN_ANSWERS and figures["growth_in_second_half"] > MAX_GROWTH:
            problems.append(f"{session.editor.name}: the server's memory grows in the second half")
    failures = [f"{one.editor.name} {what}" for one, *_ in typed for what in one.failures]
    return figures_of(
        start,
        seed,
        sum(one.num_keys for one, *_ in typed),
        crashes=sum(max(0, len(one.servers) - 1) for one, *_ in typed),
        lost=len(failures),
        crossed=sum(one.num_crossed for one, *_ in typed),
        unexpected=len(problems),
        peak_mib=round(max((sizes[1] for one, *_ in typed for sizes in one.memory), default=0.0), 1),
        **{one.editor.name: figures for one, figures, _ in typed},
        **skipped,
        examples=[*problems, *failures],
    )


def main():
    parser = argparse.ArgumentParser(description="Types in real editors; prints figures as JSON.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=float("inf"), help="number of keys in each editor")
    given = parser.parse_args()
    figures = run(given.seconds, given.seed, given.most)
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    return 1 if any(figures[kind] for kind in FAILURES) else 0


if __name__ == "__main__":
    sys.exit(main())
