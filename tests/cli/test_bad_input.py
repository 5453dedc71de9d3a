"""Errors: one line on standard error, the documented exit code, no output and no changed file."""

import io
import os
import re
import shlex

import pytest

from dg_lsp.cli import app


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "good.py").write_bytes(b"x = 1\ny\n")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'")
    (tmp_path / "a\nb.py").write_bytes(b"")
    read_only = tmp_path / "locked.py"
    read_only.write_bytes(b"x")
    read_only.chmod(0o444)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.py:1"], "no such file: gone.py"),
        (["x" * 3000 + ":1"], "cannot read x"),
        (["a\0b:1"], "cannot read"),
        ([".:1"], ". is a directory: name a file in it"),
        ([f"{os.devnull}:1"], "no regular file"),
        (["binary.py:1"], "binary.py is binary: only text files can be filled"),
        (["latin.py:1"], "latin.py is not UTF-8 (byte 5): convert it first"),
        (["good.py:9"], "good.py has 3 lines: there is no line 9"),
        (["good.py:2:9"], "line 2 of good.py has 1 character: its last column is 2, not 9"),
        (["good.py:0"], "good.py:0: lines and columns start at 1"),
        (["good.py:1:0"], "lines and columns start at 1"),
        (["good.py:1-2"], "good.py:1-2: expected FILE:LINE[:COL]"),
        (["good.py:1:1", "--gaps"], "good.py:1:1: expected FILE[:FIRST-LAST]"),
        (["good.py", "--gaps"], "there is no gap"),
        (["good.py", "--gaps", "--candidates", "2"], "--gaps takes the best fill of each gap: leave --candidates out"),
        (["good.py"], "good.py: expected FILE:LINE[:COL], for example samples/shapes.py:12"),
        (["a\nb.py:7"], "a\\nb.py has 1 line: there is no line 7"),
        (["locked.py:1", "--write"], "locked.py is read-only: nothing was written; change its permissions first"),
        (["good.py:1", "--deadline", "soon"], "--deadline"),
        (["good.py:1", "--nonsense"], "(see dg-lsp fill --help)"),
        (["good.py:1", "--threads", "-1"], "model.threads must be >= 0"),
        (["good.py:1", "--decoder", "x"], "Invalid value for '--decoder': 'x' is not one of 'auto', 'diffusion',"),
        (["good.py:1", "--remote", "host:80"], "remote.url must be an address such as http://127.0.0.1:8000"),
        (["good.py:1", "--remote", "http://127.0.0.1:9", "--decoder", "diffusion"], "chooses its decoder itself"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(dg_lsp, script, folder, arguments, message):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert message in dg_lsp("fill", *arguments).error(2)
    assert script.settings is None  # no model was opened
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_working_directory_that_was_removed_is_exit_code_2(dg_lsp, script, folder, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "change to another one" in dg_lsp("fill", f"{folder}/good.py:1").error(2)
    assert "change to another one" in dg_lsp("doctor").out


def test_commands_that_need_no_data_folder_run_where_it_is_out_of_reach(dg_lsp, folder, monkeypatch):
    monkeypatch.setenv("DG_LSP_DATA_DIR", "/" + "x" * 300)  # each access is an error, as in a home of another user
    monkeypatch.delenv("DG_LSP_DAEMON_DIR")
    commands = (("fill", "good.py:1"), ("models", "list"), ("models", "show"), ("daemon", "status"), ("daemon", "stop"))
    assert [dg_lsp(*command).code in (0, 1) for command in commands] == [True] * len(commands)


def test_standard_input_that_is_no_text_is_exit_code_2(dg_lsp, script, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x = '\xe9'"), "utf-8"))
    assert "standard input is not UTF-8 (byte 5): convert it first" in dg_lsp("generate").error(2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "dg-mini") for name in ("dg-maxi", "no/such.gguf", "a\0b", "x" * 5000)),
        ("good.py", "good.py"),
        (".", "directory"),
    ],
)
def test_an_unknown_or_invalid_model_is_exit_code_3(dg_lsp, folder, name, message):
    assert message in dg_lsp("fill", "good.py:1", "--model", name).error(3)


def test_a_context_that_does_not_fit_into_memory_is_exit_code_3(dg_lsp, position, user_settings):
    user_settings("[model]\ncontext_length = 1000000000\n")
    message = dg_lsp("fill", position).error(3)
    assert "dg-mini.gguf needs" in message
    assert "GB of memory including a reserve, " in message
    assert "set context_length" in message


def test_without_a_command_the_help_is_printed_with_exit_code_2(dg_lsp):
    outcome = dg_lsp()
    assert outcome.code == 2
    assert "fill" in outcome.out


def test_the_help_of_each_command_has_whole_names_and_an_example_that_the_command_accepts(dg_lsp, monkeypatch):
    for words in app.COMMANDS:
        monkeypatch.setenv("COLUMNS", "80")
        assert "…" not in dg_lsp(*words.split(), "--help").out, words
        monkeypatch.setenv("COLUMNS", "200")
        if words != "daemon run":
            [example] = re.findall(r"^ Example: dg-lsp (.*?) *$", dg_lsp(*words.split(), "--help").out, re.MULTILINE)
            assert example.startswith(words)
            arguments = shlex.split(example.removeprefix(words))
            app.load_command(words).make_context(words, arguments)  # raises for wrong use


def test_a_folder_of_models_that_cannot_be_made_is_named(dg_lsp, folder, monkeypatch):
    (folder / "taken").write_text("")
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(folder / "taken"))
    error = dg_lsp("models", "pull", "qwen2.5-coder-0.5b").err.splitlines()[-1]
    assert "is not writable (" in error
    assert "): check who may write there, or set DG_LSP_DATA_DIR" in error
