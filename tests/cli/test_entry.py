"""The command as a process: start-up, pipes, exit codes."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "dg_lsp"]
HEAVY = ("llama_cpp", "pygls", "lsprotocol", "fastapi", "numpy", "tree_sitter", "dg_lsp.engine", "dg_lsp.models")


def dg_lsp(*arguments, **keywords):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive", **keywords.pop("env", {})}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=environment,
        check=False,
        **{"cwd": ROOT, **keywords},
    )


@pytest.mark.parametrize("arguments", [["--version"], ["lsp", "--help"]])
def test_the_version_and_a_server_beside_a_daemon_load_nothing_heavy(arguments):
    code = (
        "import sys; from dg_lsp.cli import run; "
        f"code = run({arguments!r}); print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(process.stderr.split())
    assert "dg_lsp.cli.app" in loaded
    assert not {module for module in loaded if module.startswith(HEAVY)}


def test_a_pull_without_a_network_ends_in_one_line(tmp_path):
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "DG_LSP_DATA_DIR": str(tmp_path)}
    process = dg_lsp("models", "pull", "qwen2.5-coder-0.5b", env=environment)
    assert process.returncode == 3
    [line] = [line for line in process.stderr.splitlines() if line.startswith("dg-lsp: ")]
    assert "is not reachable" in line


def test_a_shell_completes_commands():
    words = {"_DG_LSP_COMPLETE": "complete_bash", "COMP_WORDS": "dg-lsp mod", "COMP_CWORD": "1"}
    assert dg_lsp(env=words).stdout == "models\n"


def test_the_bundled_model_completes_a_sample_and_the_same_seed_gives_the_same_completion(tmp_path):
    # the deadline and the fastest decoder would depend on the load of the machine
    (tmp_path / "dg-lsp.toml").write_text("[completion]\nearly_stop_ms = 0\n")
    options = ("--json", "--seed", 3, "--decoder", "diffusion", "--deadline", 60_000)
    sample = ROOT / "samples/words.py"
    first, second = (json.loads(dg_lsp("fill", f"{sample}:5", *options, cwd=tmp_path).stdout) for _ in range(2))
    assert (first["model"], first["candidates"], first["steps"]) == ("dg-mini", second["candidates"], second["steps"])


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
    process = dg_lsp("fill", "samples/greetings.py:8", "--visual", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert process.returncode in (0, 1), process.stderr
    assert process.stdout.startswith("   1  ")
    assert process.stderr == ""
