"""The installed plugin: package manager, :checkhealth, :help, and the server process."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "editors" / "nvim"
LUA = sorted(PLUGIN.rglob("*.lua"))


def test_checkhealth_reports_the_program_the_server_and_the_owner_of_ghost_text(shared):
    shared.open()
    shared.nvim.command("checkhealth dg_lsp")
    report = "\n".join(shared.lines)
    assert "ERROR" not in report
    assert re.search(r"server \d+, positions in utf-(8|16): dg-lsp · ready · scripted", report)
    assert re.search(r"ghost text is drawn by (Neovim itself|this plugin)", report)


def test_checkhealth_reports_how_to_install_a_missing_program(launch):
    editor = launch("0.11", cmd=["no-such-dg-lsp", "lsp"])
    editor.nvim.command("checkhealth dg_lsp")
    report = "\n".join(editor.lines)
    assert "no-such-dg-lsp is not on the PATH" in report
    assert "pipx install dg-lsp" in report


@pytest.mark.parametrize("kind", ["0.12", "0.12-own"])
def test_neovims_own_inline_completion_causes_no_second_request(launch, kind):
    editor = launch(kind, more="vim.lsp.inline_completion.enable()\n")
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost("(name):")
    assert len(editor.received("textDocument/inlineCompletion")) == 1
    [(*_, drawn_by)] = editor.ghosts
    assert drawn_by == ("dg_lsp" if kind == "0.12-own" else "nvim.lsp.inline_completion")
    editor.close()


def test_help_has_a_tag_for_every_command_and_function(launch, tmp_path):
    doc = shutil.copytree(PLUGIN / "doc", tmp_path / "doc")
    launch("0.11").nvim.command(f"helptags {doc}")
    tags = {line.split("\t")[0] for line in (doc / "tags").read_text().splitlines()}
    commands = set(re.findall(r"^  (Dg\w+) = ", (PLUGIN / "plugin/dg_lsp.lua").read_text(), re.MULTILINE))
    functions = set(re.findall(r"^function M\.(\w+)", (PLUGIN / "lua/dg_lsp/init.lua").read_text(), re.MULTILINE))
    assert {f":{name}" for name in commands} <= tags
    assert {f"dg_lsp.{name}()" for name in functions} <= tags
    assert len(commands) >= 5


def test_neovims_package_manager_installs_the_plugin(launch, tmp_path):
    """With the configuration of docs/editors/neovim.md, from a repository with the plugin in a subfolder."""
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


def test_the_lua_is_formatted_with_stylua():
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
