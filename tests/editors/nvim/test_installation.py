"""The installed plugin: package manager, :checkhealth, :help, and which buffers have a server process."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "editors" / "nvim"
SERVER = [sys.executable, "-m", "dg_lsp", "lsp", "--stdio"]
NUM_CLIENTS = "return #vim.lsp.get_clients({ name = 'dg_lsp', bufnr = 0 })"


def test_checkhealth_reports_the_program_the_server_and_the_owner_of_ghost_text(shared):
    shared.open()
    report = shared.health()
    assert "ERROR" not in report
    assert re.search(r"server \d+, positions in utf-(8|16): dg-lsp · ready · scripted", report)
    assert re.search(r"ghost text is drawn by (Neovim itself|this plugin)", report)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        pytest.param(["no-such-dg-lsp"], ("no-such-dg-lsp is not on the PATH", "uv tool install ."), id="missing"),
        pytest.param(
            [sys.executable, "-c", "raise SystemExit('no library')"], ("no library", "exit code 1"), id="fails"
        ),
    ],
)
def test_checkhealth_reports_a_program_that_does_not_run(launch, command, parts):
    report = launch("0.11", cmd=[*command, "lsp"]).health()
    assert all(part in report for part in parts)


def test_checkhealth_reports_the_problems_that_doctor_finds(launch):
    editor = launch("0.11", cmd=SERVER)
    editor.lua("vim.env.DG_LSP_CONFIG_DIR = ...", str(editor.directory))
    (editor.directory / "dg-lsp.toml").write_text('model.name = "gone.gguf"\n')
    report = editor.health()
    [problem] = [line for line in report.splitlines() if "ERROR" in line]
    assert "gone.gguf" in problem
    assert "dg-mini" in problem, "no names of models to choose from"
    assert "-m dg_lsp doctor" in report


def test_checkhealth_reports_options_that_do_not_exist(launch):
    editor = launch("0.11")
    editor.lua("vim.g.dg_lsp = vim.tbl_extend('force', vim.g.dg_lsp, { gost = 1, keys = { acept = '<C-y>' } })")
    editor.open()
    report = editor.health()
    assert "unknown option: gost" in report
    assert "unknown option: keys.acept" in report
    editor.open()
    editor.keys("idef hello<C-y>")
    editor.rest()
    assert not editor.notifications
    editor.close()


@pytest.mark.parametrize("kind", ["0.12", "0.12-own"])
def test_neovims_own_inline_completion_causes_no_second_request(launch, kind):
    editor = launch(kind, more="vim.lsp.inline_completion.enable()\n")
    editor.show("idef hello", "(name):")
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


@pytest.fixture
def repository(tmp_path):
    source = tmp_path / "dg-lsp"
    shutil.copytree(PLUGIN, source / "editors/nvim")
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    return source


def snippet(page, name):
    """The Lua of a page that contains a name."""
    [example] = [
        block for block in re.findall(r"```lua\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL) if name in block
    ]
    return example


def check_installed(editor, folder):
    """The plugin is loaded from that folder only, and shows ghost text."""
    loaded = editor.lua("return vim.api.nvim_get_runtime_file('lua/dg_lsp/init.lua', true)")
    assert [Path(path).is_relative_to(folder) for path in loaded] == [True]
    editor.show("idef hello", "(name):")
    editor.close()


def test_neovims_package_manager_installs_the_plugin(launch, repository):
    """With the configuration of docs/editors/neovim.md."""
    setup = snippet("docs/editors/neovim.md", "vim.pack.add")
    setup = re.sub(r'src = "[^"]*"', f"src = {json.dumps(repository.as_uri())}", setup)
    without = "vim.opt.rtp:remove(" + json.dumps(str(PLUGIN)) + ")\nvim.fn.confirm = function() return 1 end\n"
    editor = launch("0.12", more=without + setup)
    check_installed(editor, editor.directory)


@pytest.mark.skipif("DG_LSP_TEST_LAZY" not in os.environ, reason="DG_LSP_TEST_LAZY is not a clone of lazy.nvim")
@pytest.mark.parametrize("kind", ["0.12", "0.11", "0.10"])
@pytest.mark.parametrize("page", ["README.md", "docs/editors/neovim.md"])
def test_lazy_nvim_installs_the_plugin(launch, repository, page, kind):
    spec = snippet(page, "lazy = false")
    spec = re.sub(r'dir = "[^"]*"', f"dir = {json.dumps(str(repository))}", spec)
    spec = re.sub(r'url = "[^"]*"', f"url = {json.dumps(repository.as_uri())}", spec)
    lazy = json.dumps(os.environ["DG_LSP_TEST_LAZY"])
    editor = launch(kind, more=f"vim.opt.rtp:prepend({lazy})\nrequire('lazy').setup({{ {spec} }})\n")
    check_installed(editor, repository if "dir =" in spec else editor.directory)


def test_the_server_for_sidekick_draws_no_ghost_text(launch):
    """With the configuration of docs/editors/neovim.md."""
    setup = snippet("docs/editors/neovim.md", '"dg_copilot"')
    setup = setup.replace('{ "dg-lsp", "lsp", "--stdio" }', "vim.lsp.config.dg_lsp.cmd")
    editor = launch("0.12", more=setup)
    editor.open()
    editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ name = 'dg_copilot', bufnr = 0 })") == 1)
    drawing = "return #vim.lsp.get_clients({ method = 'textDocument/inlineCompletion', bufnr = 0 })"
    assert editor.lua(drawing) == 1
    editor.close()


def test_files_in_no_project_share_a_server(editor):
    editor.open()
    editor.open()
    editor.lua("vim.cmd.split('another.py')")
    editor.wait(lambda: editor.lua(NUM_CLIENTS) > 0)
    assert editor.lua("return #vim.lsp.get_clients({ name = 'dg_lsp' })") == 1


def test_files_get_ghost_text_without_a_setting_and_buffers_without_a_file_have_no_server(editor):
    for name in ("a.ts", "COMMIT_EDITMSG"):
        editor.show("is =", " 'é😋' + str(3)", name=name)
    editor.keys("<Esc>")
    for command in (
        "help",
        "copen",
        "new | setlocal buftype=nofile filetype=markdown",
        "enew | setlocal filetype=python",
    ):
        editor.nvim.command(f"{command} | only")
        editor.lua("vim.wait(50)")  # the server is attached after the event
        assert editor.lua(NUM_CLIENTS) == 0
    editor.nvim.command("write named.py")
    editor.keys("idef hello")
    editor.wait_ghost("(name):")


def test_status_and_health_have_the_reason_why_the_bundled_model_completes_no_typescript(launch):
    editor = launch("0.12", cmd=SERVER)
    editor.open("const total = 1;\n", name="a.ts", wait=False)
    editor.wait(lambda: editor.status == "dg-lsp · unsupported · dg-mini", "no such status")
    editor.nvim.command("DgStatus")
    reason = "dg-mini knows Python only; choose another model: dg-lsp setup"
    assert reason in editor.notifications[-1]
    assert reason in editor.health()
    editor.close()
