"""The command as a process: start-up, pipes, exit codes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "dg_lsp"]
HEAVY = ("llama_cpp", "pygls", "lsprotocol", "fastapi", "numpy", "tree_sitter", "dg_lsp.engine", "dg_lsp.models")


def dg_lsp(*arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["lsp", "--help"]])
def test_help_and_a_server_beside_a_daemon_load_nothing_heavy(arguments):
    code = (
        "import sys; from dg_lsp.cli import run; "
        f"code = run({arguments!r}); print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(process.stderr.split())
    assert "dg_lsp.cli.app" in loaded
    assert not {module for module in loaded if module.startswith(HEAVY)}


def test_a_shell_completes_commands():
    words = {"_DG_LSP_COMPLETE": "complete_bash", "COMP_WORDS": "dg-lsp mod", "COMP_CWORD": "1"}
    assert dg_lsp(**words).stdout == "models\n"


def test_a_closed_pipe_prints_no_traceback():
    with subprocess.Popen(
        [*COMMAND, "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(os.name == "nt", reason="its shell closes no streams")
@pytest.mark.parametrize(("closed", "code"), [("--version 1>&-", 0), ("--version 0<&- 1>&- 2>&-", 0), ("x 2>&-", 2)])
def test_a_closed_stream_prints_no_traceback(closed, code):
    command = f"{shlex.join(COMMAND)} {closed}"
    process = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (code, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_a_full_disk_prints_one_line():
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run([*COMMAND, "--help"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    error = b"dg-lsp: the output cannot be written: No space left on device\n"
    assert (process.returncode, process.stderr) == (2, error)


def test_an_interrupt_prints_no_traceback():
    code = (
        "import dg_lsp.cli, sys\n"
        "def interrupted(arguments): raise KeyboardInterrupt\n"
        "dg_lsp.cli.run = interrupted\n"
        "dg_lsp.cli.main()"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (process.returncode, process.stderr) == (130, b"")


def test_visual_frames_are_printed_in_any_encoding():
    process = dg_lsp("fill", "samples/greetings.py:8", "--visual", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert process.returncode in (0, 1), process.stderr
    assert process.stdout.startswith("   1  ")
    assert process.stderr == ""
