"""Real Neovim, driven over its own RPC: keys in, buffers and extmarks out. `make editors` installs what is needed."""

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

try:
    import pynvim
except ModuleNotFoundError:
    pynvim = None

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "editors" / "nvim"
INSTALLED = Path(os.environ.get("DG_LSP_EDITORS", Path(sys.prefix) / "editors"))
PATIENCE = float(os.environ.get("DG_TEST_PATIENCE", "60"))
"""Seconds; a limit for a machine that is busy with something else, not an expectation."""

NATIVE, OWN = "auto", "own"
EDITORS = {"0.12": ("0.12", NATIVE), "0.12-own": ("0.12", OWN), "0.11": ("0.11", NATIVE), "0.10": ("0.10", NATIVE)}

GHOST = """
local found = {}
for name, ns in pairs(vim.api.nvim_get_namespaces()) do
  if name == "dg_lsp" or name == "nvim.lsp.inline_completion" then
    for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, ns, 0, -1, { details = true })) do
      local lines = { mark[4].virt_text, unpack(mark[4].virt_lines or {}) }
      local text = table.concat(vim.tbl_map(function(line)
        return table.concat(vim.tbl_map(function(chunk) return chunk[1] end, line))
      end, lines), "\\n")
      if text ~= "" then table.insert(found, { mark[2], mark[3], text, name }) end
    end
  end
end
return found
"""
IS_READY = """
local client = vim.lsp.get_clients({ name = "dg_lsp", bufnr = 0 })[1]
local status = client and require("dg_lsp.status").of(0)
return status and status.dgLsp and status.dgLsp.state == "ready" or false
"""


def program(version):
    """Where that Neovim is, or None."""
    if version == "0.11":
        found = shutil.which("nvim", path=str(Path(sys.executable).parent))
        return found and Path(found)
    path = INSTALLED / f"nvim-{version}" / "nvim"
    return path if path.exists() else None


def uri_of(message):
    """Of the document that it is about, if it is about one."""
    params = message.get("params")
    return params.get("textDocument", {}).get("uri") if isinstance(params, dict) else None


class Editor:
    """One Neovim with the plugin, and what its server has heard."""

    def __init__(self, path, directory, *, cmd, ghost_text=NATIVE, more=""):
        self.directory = directory
        self.log = directory / "log.jsonl"
        self.hold = directory / "hold"
        self.number = 0
        self.path = None
        command = json.dumps([str(part) for part in cmd]).replace("[", "{").replace("]", "}")
        init = directory / "init.lua"
        init.write_text(
            f"vim.opt.rtp:prepend({json.dumps(str(PLUGIN))})\n"
            "vim.o.swapfile = false\n"
            f"vim.g.dg_lsp = {{ ghost_text = {json.dumps(ghost_text)}, config = {{ cmd = {command} }} }}\n"
            f'if vim.lsp.config then vim.lsp.config("dg_lsp", {{ cmd = {command} }}) end\n'
            "told = {}\n"
            "vim.notify = function(message) table.insert(told, message) end\n"
            "done = {}\n"
            'vim.api.nvim_create_autocmd("User", { pattern = "DgLspDone", callback = function(event)\n'
            "  table.insert(done, event.data)\n"
            "end })\n" + more
        )
        home = directory / "home"
        home.mkdir()
        env = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "DG_LSP_DAEMON_DIR": str(directory / "no-daemon"),  # not what the person who runs this has started
            "XDG_STATE_HOME": str(directory),
            "XDG_DATA_HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory),
        }
        argv = [str(path), "--embed", "--headless", "-n", "-i", "NONE", "-u", str(init)]
        ours = [
            f"{name}={value}" for name, value in env.items() if name.startswith(("HOME", "XDG", "PYTHONPATH", "DG_LSP"))
        ]
        self.nvim = pynvim.attach("child", argv=["env", *ours, *argv])
        # it answers while its init.lua still runs
        self.wait(lambda: self.lua("return vim.v.vim_did_enter == 1"), "Neovim is there")
        self.nvim.command(f"cd {directory}")

    # doing

    def open(self, text="", name=None, *, wait=True):
        """A new file in a window of its own, the cursor at its beginning; what was heard before is forgotten."""
        self.nvim.command("stopinsert | silent! %bwipeout!")
        self.number += 1
        self.path = self.directory / (name or f"file{self.number}.py")
        self.path.write_bytes(text.encode())
        self.nvim.command(f"edit {self.path}")
        self.lua("told = {}; done = {}")
        if wait:
            self.wait(lambda: self.lua(IS_READY), "the server is ready")
        return self.path

    def keys(self, keys):
        self.nvim.input(keys)

    def lua(self, code, *args):
        return self.nvim.exec_lua(code, *args)

    # seeing

    @property
    def lines(self):
        return list(self.nvim.current.buffer[:])

    @property
    def cursor(self):
        """Row from 1, column in bytes."""
        return tuple(self.nvim.current.window.cursor)

    @property
    def ghosts(self):
        """`(row, column, text, namespace)` of everything that is shown, rows from 0, columns in bytes."""
        return [tuple(one) for one in self.lua(GHOST)]

    @property
    def ghost(self):
        """The text that is shown after the cursor; None when there is none."""
        found = self.ghosts
        assert len(found) <= 1, found
        if not found:
            return None
        row, column, text, _ = found[0]
        assert (row + 1, column) == self.cursor
        return text

    def messages(self):
        """All that the server has heard since the file was opened; of files before it some may come later than that."""
        if not self.log.exists():
            return []
        whole, _, _being_written = self.log.read_text().rpartition("\n")
        heard = [json.loads(line) for line in whole.splitlines()]
        opening = ("textDocument/didOpen", self.path.as_uri())
        starts = [number for number, one in enumerate(heard) if (one.get("method"), uri_of(one)) == opening]
        return heard[starts[0] + 1 :] if starts else []

    def heard(self, method):
        """Parameters of what the server was sent since the file was opened."""
        return [one.get("params") for one in self.messages() if one.get("method") == method]

    def wait(self, happened, what=""):
        """The first true value of `happened()`."""
        end = time.monotonic() + PATIENCE
        while not (value := happened()):
            assert time.monotonic() < end, (
                f"waited in vain: {what}; {self.lines}, {self.ghosts}, {self.lua('return told')}"
            )
            time.sleep(0.02)
        return value

    def wait_ghost(self, text):
        def is_there():
            found = self.ghosts
            return found and found[0][2] == text

        self.wait(is_there, f"ghost text {text!r}")
        assert self.ghost == text

    def wait_lines(self, *lines):
        self.wait(lambda: self.lines == list(lines), f"lines {lines}")

    def close(self):
        """Harmless, also twice."""
        with contextlib.suppress(OSError, EOFError, AssertionError):
            self.nvim.command("qa!")
        self.nvim.close()


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    """Starts editors; those still there in the end are closed."""
    editors = []

    def start(name, *, cmd=None, more=""):
        version, ghost_text = EDITORS[name]
        path = program(version)
        if path is None or pynvim is None:
            pytest.skip(f"no Neovim {version}: run make editors, as root on Debian")
        directory = tmp_path_factory.mktemp(f"nvim-{name}")
        cmd = cmd or [sys.executable, HERE / "scripted_server.py", directory / "log.jsonl", directory / "hold"]
        editors.append(Editor(path, directory, cmd=cmd, ghost_text=ghost_text, more=more))
        return editors[-1]

    yield start
    for editor in editors:
        editor.close()


@pytest.fixture(scope="session", params=EDITORS)
def shared(request, launch):
    """One editor of each kind for all tests."""
    return launch(request.param)


@pytest.fixture
def editor(shared):
    """An editor in which nothing is held."""
    shared.hold.unlink(missing_ok=True)
    yield shared
    shared.hold.unlink(missing_ok=True)
    shared.nvim.command("stopinsert")
