"""Names of folders and files in the output of commands do not control the terminal."""

import re
from pathlib import Path

import pytest

NAME = "a\x1b]0;x\x07\nb\u202e"
ESCAPED = r"a\x1b]0;x\x07\nb\u202e"
COMMANDS = Path(__file__).parents[2] / "dg_lsp/cli"


@pytest.mark.parametrize(
    "command", [("fill", "a.py:1"), ("doctor",), ("why", "a.py:1"), ("bench", "cut", ".", "-o", "c")]
)
def test_the_name_of_a_folder_is_printed_with_escapes(command, dg_lsp, script, tmp_path, monkeypatch):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "a.py").write_text("x = \n" + "y = 1  # a line of a longer file\n" * 20)
    (folder / "dg-lsp.toml").write_text('[model]\nname = "other.gguf"\n')
    monkeypatch.chdir(folder)
    outcome = dg_lsp(*command)
    assert ESCAPED in outcome.out + outcome.err
    assert not re.search("[\x1b\x07\u202e]|^b", outcome.out + outcome.err, re.MULTILINE)


def test_every_command_prints_by_the_functions_that_escape():
    """The others print JSON in ASCII, a question of their own, or text as `for_stream` and `printable` change it."""
    allowed = re.compile(r'json|nl=False|for_stream|printable|get_help|echo\("(\\n)?"')
    lines = [line.strip() for path in COMMANDS.glob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    printed = [line for line in lines if re.search(r"typer\.s?echo\(", line)]
    assert [line for line in printed if not allowed.search(line)] == ["typer.echo(escaped(str(line)), err=err)"]
