"""Real Neovim, driven over its RPC: keys in, buffers and extmarks out. `make editors` installs Neovim and pynvim."""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from gates import wait_until
from installation import PLUGIN, PYTHONPATH

try:
    import pynvim
except ModuleNotFoundError:
    pynvim = None

INSTALLED = Path(os.environ.get("DG_LSP_EDITORS", Path(sys.prefix) / "editors"))
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
SCREEN = """
vim.cmd.redraw()
local rows = {}
for row = 1, vim.o.lines do
  rows[row] = {}
  for column = 1, vim.o.columns do
    rows[row][column] = { vim.fn.screenstring(row, column), vim.fn.screenattr(row, column) }
  end
end
return rows
"""
IS_READY = """
local client = vim.lsp.get_clients({ name = "dg_lsp", bufnr = 0 })[1]
local status = client and require("dg_lsp.status").of(0)
return status and status.dgLsp and status.dgLsp.state == "ready" or false
"""


def program(version):
    """Path of that Neovim, or None."""
    if version == "0.11":
        installed = shutil.which("nvim", path=str(Path(sys.executable).parent))
        return installed and Path(installed)
    path = INSTALLED / f"nvim-{version}" / "nvim"
    return path if path.exists() else None


class Editor:
    """One Neovim with the plugin, and the messages that its server receives."""

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
            "notifications = {}\n"
            "vim.notify = function(message) table.insert(notifications, message) end\n"
            "outcomes = {}\n"
            'vim.api.nvim_create_autocmd("User", { pattern = "DgLspDone", callback = function(event)\n'
            "  table.insert(outcomes, event.data)\n"
            "end })\n" + more
        )
        home = directory / "home"
        home.mkdir()
        env = {
            "HOME": home,
            **PYTHONPATH,
            "DG_LSP_DAEMON_DIR": directory / "no-daemon",  # a daemon of the developer must not be used
            **{f"XDG_{name}_HOME": directory for name in ("STATE", "DATA", "CONFIG")},
        }
        argv = [str(path), "--embed", "--headless", "-n", "-i", "NONE", "-u", str(init)]
        self.nvim = pynvim.attach("child", argv=["env", *(f"{name}={value}" for name, value in env.items()), *argv])
        # it answers while its init.lua still runs
        self.wait(lambda: self.lua("return vim.v.vim_did_enter == 1"), "Neovim does not start")
        self.nvim.command(f"cd {directory}")

    # doing

    def open(self, text="", name=None, *, wait=True):
        """A new file in a window of its own; forgets earlier messages and notifications."""
        self.nvim.command("stopinsert | silent! %bwipeout!")
        self.number += 1
        self.path = self.directory / (name or f"file{self.number}.py")
        self.path.write_bytes(text.encode())
        self.nvim.command(f"edit {self.path}")
        self.lua("notifications, outcomes = {}, {}")
        if wait:
            self.wait(lambda: self.lua(IS_READY), "the server is not ready")
        return self.path

    def show(self, keys, ghost, text="", name=None):
        """Opens a new file, types, and waits for this ghost text."""
        self.open(text, name)
        self.keys(keys)
        self.wait_ghost(ghost)

    def keys(self, keys):
        self.nvim.input(keys)

    def lua(self, code, *args):
        return self.nvim.exec_lua(code, *args)

    def rest(self):
        """Waits 400 ms of the editor's time; the plugin sends its requests within 200 ms."""
        self.lua("has_rested = false; vim.defer_fn(function() has_rested = true end, 400)")
        self.wait(lambda: self.lua("return has_rested"))

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
        """`(row, column, text, namespace)` of all ghost texts, rows from 0, columns in bytes."""
        return [tuple(ghost) for ghost in self.lua(GHOST)]

    @property
    def ghost(self):
        """The ghost text at the cursor, or None."""
        ghosts = self.ghosts
        assert len(ghosts) <= 1, ghosts
        if not ghosts:
            return None
        row, column, text, _ = ghosts[0]
        assert (row + 1, column) == self.cursor
        return text

    @property
    def screen(self):
        """The rows of the screen; a cell is a text and the number of its colours."""
        return self.lua(SCREEN)

    def health(self):
        self.nvim.command("checkhealth dg_lsp")
        return "\n".join(self.lines)

    @property
    def status(self):
        return self.lua("return require('dg_lsp').status()")

    @property
    def notifications(self):
        return self.lua("return notifications")

    def received(self, method):
        """Parameters of the messages that the server has received since the file was opened."""
        if not self.log.exists():
            return []
        # the first message about a file opens it; the last line may still be written
        later = self.log.read_text().partition(json.dumps(self.path.as_uri()))[2].split("\n")[1:-1]
        messages = [json.loads(line) for line in later]
        return [message.get("params") for message in messages if message.get("method") == method]

    def wait(self, happened, complaint="timeout"):
        """The first true value of `happened()`."""
        state = lambda: f"{complaint}; {self.lines}, {self.ghosts}, {self.notifications}"  # noqa: E731
        return wait_until(happened, state, pause=0.02)

    def wait_ghost(self, text):
        def is_there():
            ghosts = self.ghosts
            return ghosts and ghosts[0][2] == text

        self.wait(is_there, f"no ghost text {text!r}")
        assert self.ghost == text

    def wait_lines(self, *lines):
        self.wait(lambda: self.lines == list(lines), f"not {lines}")

    def close(self):
        """Ends Neovim. Idempotent."""
        with contextlib.suppress(OSError, EOFError, AssertionError):
            self.nvim.command("qa!")
        self.nvim.close()
