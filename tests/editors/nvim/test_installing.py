"""The plugin as a user gets it: loaded by a package manager, checked by :checkhealth, explained by :help."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "editors" / "nvim"
LUA = sorted(PLUGIN.rglob("*.lua"))


def test_checkhealth_finds_the_program_the_server_and_what_draws(shared):
    shared.open()
    shared.nvim.command("checkhealth dg_lsp")
    report = "\n".join(shared.lines)
    assert "ERROR" not in report
    assert re.search(r"server \d+, positions in utf-(8|16): dg-lsp · ready · scripted", report)
    assert re.search(r"ghost text is drawn by (Neovim itself|this plugin)", report)


def test_checkhealth_says_how_to_get_a_program_that_is_missing(launch):
    editor = launch("0.11", cmd=["no-such-dg-lsp", "lsp"])
    editor.nvim.command("checkhealth dg_lsp")
    report = "\n".join(editor.lines)
    assert "no-such-dg-lsp is not on the PATH" in report
    assert "pipx install dg-lsp" in report


@pytest.mark.parametrize("kind", ["0.12", "0.12-own"])
def test_inline_completion_that_is_on_already_asks_no_more_often(launch, kind):
    editor = launch(kind, more="vim.lsp.inline_completion.enable()\n")
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost("(name):")
    assert len(editor.heard("textDocument/inlineCompletion")) == 1
    [(*_, drawn_by)] = editor.ghosts
    assert drawn_by == ("dg_lsp" if kind == "0.12-own" else "nvim.lsp.inline_completion")
    editor.close()


@pytest.mark.parametrize("is_project", [True, False])
@pytest.mark.parametrize("kind", ["0.12", "0.11", "0.10"])
def test_a_server_that_dies_is_started_again(launch, kind, is_project):
    editor = launch(kind)
    if is_project:
        (editor.directory / "pyproject.toml").touch()
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost("(name):")
    [server] = [
        one
        for one in psutil.Process(editor.lua("return vim.fn.getpid()")).children()
        if str(editor.log) in one.cmdline()
    ]
    server.kill()
    editor.wait(lambda: "started again" in "".join(editor.lua("return told")), "said to be started again")
    editor.keys("<Esc>Sdef good")
    editor.wait_ghost("_night(moon, stars):")


def test_help_has_a_tag_for_every_command_and_function(launch, tmp_path):
    doc = shutil.copytree(PLUGIN / "doc", tmp_path / "doc")
    launch("0.11").nvim.command(f"helptags {doc}")
    tags = {line.split("\t")[0] for line in (doc / "tags").read_text().splitlines()}
    commands = set(re.findall(r"^  (Dg\w+) = ", (PLUGIN / "plugin/dg_lsp.lua").read_text(), re.MULTILINE))
    functions = set(re.findall(r"^function M\.(\w+)", (PLUGIN / "lua/dg_lsp/init.lua").read_text(), re.MULTILINE))
    assert {f":{name}" for name in commands} <= tags
    assert {f"dg_lsp.{name}()" for name in functions} <= tags
    assert len(commands) >= 5


def test_the_package_manager_of_neovim_installs_it(launch, tmp_path):
    """From a clone of a repository that has the plugin in a folder of its own, as docs/editors/neovim.md says."""
    source = tmp_path / "dg-lsp"
    shutil.copytree(PLUGIN, source / "editors/nvim")
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    page = (ROOT / "docs/editors/neovim.md").read_text(encoding="utf-8")
    [setup] = [block for block in re.findall(r"```lua\n(.*?)```", page, re.DOTALL) if "vim.pack.add" in block]
    setup = re.sub(r'src = "[^"]*"', f"src = {json.dumps(source.as_uri())}", setup)
    without = "vim.opt.rtp:remove(" + json.dumps(str(PLUGIN)) + ")\nvim.fn.confirm = function() return 1 end\n"
    editor = launch("0.12", more=without + setup)
    loaded = editor.lua("return vim.api.nvim_get_runtime_file('lua/dg_lsp/init.lua', true)")
    assert [Path(path).is_relative_to(editor.directory) for path in loaded] == [True]
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost("(name):")


def test_files_in_no_project_share_a_server(editor):
    editor.open()
    editor.open()
    editor.lua("vim.cmd.split('another.py')")
    editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ name = 'dg_lsp', bufnr = 0 }) > 0"))
    assert editor.lua("return #vim.lsp.get_clients({ name = 'dg_lsp' })") == 1


def test_the_lua_is_as_stylua_would_have_it():
    modules = Path(sys.prefix) / "editors" / "stylua"
    node = next(
        (one for one in (modules.parent / "bin/node", shutil.which("node")) if one and Path(one).exists()), None
    )
    if node is None or not (modules / "node_modules").exists():
        pytest.skip("no stylua: run make editors")
    done = subprocess.run(
        [str(node), str(HERE / "stylua.mjs"), str(modules), str(PLUGIN / "stylua.toml"), *map(str, LUA)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
