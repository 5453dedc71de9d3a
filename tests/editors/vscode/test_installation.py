"""The extension in the real VS Code installs the server from the wheel that it contains."""

import hashlib
import io
import json
import shlex
import sys
import sysconfig
import zipfile
from contextlib import closing

import psutil
import pytest
from code_server import EAGER, ROOT, CodeServer, Window, until
from installation import VSIX

from dg_lsp import __version__

STORAGE = "user/User/globalStorage/dg-lsp.dg-lsp"
NAME = f"dg_lsp-{__version__}-py3-none-any.whl"


def wheel():
    if not VSIX.exists():
        pytest.skip("no packed extension: run make extension")
    with zipfile.ZipFile(VSIX) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".whl")]
        assert name == f"extension/dist/{NAME}"
        return packed.read(name)


def test_the_extension_contains_the_server_of_this_tree():
    with zipfile.ZipFile(io.BytesIO(wheel())) as packed:
        contents = {name: packed.read(name) for name in packed.namelist() if name.startswith("dg_lsp/")}
    files = [path for path in (ROOT / "dg_lsp").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}
    # names only: pytest takes minutes for the difference of the contents
    assert {name for name in {**contents, **expected} if contents.get(name) != expected.get(name)} == set()
    assert VSIX.stat().st_size < 90_000_000  # dg-base has 70 MB


def start_installation(window):
    window.until_text(".notification-list-item-message", "not installed")
    window.click_text(".notification-list-item .monaco-button", "Install")


UV = """
case "$1" in
  venv) for folder; do :; done; mkdir -p "$folder/bin" ;;
  pip) [ "$2 $3 ${{5##*/}}" = "install --python {name}" ] && cp "$5" "$4" && cp {program} "$4/bin/dg-lsp" ;;
  *) exit 1 ;;
esac
"""


def test_a_missing_server_is_installed_and_updated_with_the_extension(open_window, code_server, install_program):
    program = code_server.home / "waiting"
    install_program(program, "return total")
    code_server.put_program("uv", UV.format(name=NAME, program=program))
    window = open_window("def f(a):\n    total = a\n", has_server=False)
    start_installation(window)
    window.until_status("scripted")
    storage = code_server.home / STORAGE
    [first] = storage.glob("server-*")
    assert (first / NAME).read_bytes() == wheel()

    install_program(program, "return total + 1")
    (first / "installed").write_text("the digest of another wheel")
    window.command("dg-lsp: Restart Server")
    installed = lambda: {path.parent for path in storage.glob("server-*/installed")} - {first}  # noqa: E731
    [second] = until(installed, "no update")
    assert (second / "bin/dg-lsp").read_bytes() == program.read_bytes()
    assert (second / "installed").read_text() == hashlib.sha256(wheel()).hexdigest()
    until(lambda: not (storage / "lock").exists(), "the lock stays")
    window.to_end()
    window.type("    ")
    is_shown = lambda: window.ghost == "return total + 1" or window.press("\\", 220, alt=True)  # noqa: E731
    until(is_shown, lambda: f"{window.ghost!r} is not of the new server", pause=0.5)


def test_a_program_that_never_answers_does_not_keep_the_next_start_from_running(open_window, install_program):
    window = open_window("", fill="return total")
    program = window.file.parent / ".venv/bin/dg-lsp"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    window.command("dg-lsp: Restart Server")
    window.until_label("loading")
    install_program(program, "return total")
    window.command("dg-lsp: Restart Server")
    window.until_status("scripted")


PYTHON_EXTENSION = """
const vscode = require("vscode");
exports.activate = () => ({
  ready: Promise.resolve(),
  environments: {
    getActiveEnvironmentPath: () => ({ id: "chosen", path: "CHOSEN" }),
    resolveEnvironment: async ({ id, path }) =>
      id === "chosen" ? { id, path, executable: { uri: vscode.Uri.file(path), bitness: "64-bit" } } : undefined,
  },
});
"""
"""The part of the API of ms-python.python, as @vscode/python-extension declares it, that the extension uses."""
CHOSEN = """
{python} "$@" || exit 1
[ "$1 $2" != "-m venv" ] || echo {packages} >"$({python} -c {purelib} "$3")/dependencies.pth"
"""
"""A real interpreter, in whose environments the dependencies of dg-lsp are those of the tests: no index is needed."""
PURELIB = "import sys, sysconfig; print(sysconfig.get_path('purelib', 'venv', {'base': sys.argv[1]}))"


def test_without_uv_the_interpreter_of_the_python_extension_installs_the_wheel(browser, tmp_path, monkeypatch):
    home, project = tmp_path / "home", tmp_path / "project"
    extension = home / "extensions/ms-python.python-2026.1.0"
    extension.mkdir(parents=True)
    package = {"publisher": "ms-python", "name": "python", "version": "2026.1.0", "main": "extension.js"}
    package |= {"engines": {"vscode": "^1.91.0"}, "activationEvents": []}
    (extension / "package.json").write_text(json.dumps(package))
    (extension / "extension.js").write_text(PYTHON_EXTENSION.replace("CHOSEN", str(home / "programs/chosen")))
    file = project / "main.py"
    project.mkdir()
    file.write_text("def read(path):\n    with open(path) as file:\n")
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)  # only the wheel has dg_lsp
    with closing(CodeServer(home, settings=EAGER, without=("uv",))) as server:
        names = {"python": sys.executable, "packages": sysconfig.get_path("purelib"), "purelib": PURELIB}
        server.put_program("chosen", CHOSEN.format(**{name: shlex.quote(text) for name, text in names.items()}))
        browser.renew()
        window = Window(browser, server, project, file)
        start_installation(window)
        window.until_status("dg-mini")
        [made] = (home / STORAGE).glob("server-*")
        [package] = made.glob("lib/python*/site-packages/dg_lsp")
        assert (package / "models/dg-mini.gguf").exists()
        commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        assert any(f"{made}/bin/dg-lsp" in command for command in commands)
        assert window.show("        return ")
