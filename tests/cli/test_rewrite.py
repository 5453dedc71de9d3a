import re
import sys

import pytest

SOURCE = "def f(a):\r\n\ttotal = a + 1\r\n\treturn total  # é😋\r\n"
KEYS = ["text", "model", "first", "last", "gaps", "rejected", "follows_instructions", "score", "steps", "timings_ms"]


@pytest.fixture
def file(tmp_path, script):
    script.fill = "total = 2 * a"
    path = tmp_path / "a.py"
    path.write_bytes(SOURCE.encode())
    return path


def test_a_diff_is_shown_and_only_with_write_the_lines_change(dg_lsp, script, file):
    outcome = dg_lsp("rewrite", f"{file}:2-2")
    assert outcome.code == 0
    assert "-\ttotal = a + 1" in outcome.out
    assert "+\ttotal = 2 * a" in outcome.out
    assert file.read_bytes() == SOURCE.encode()
    assert dg_lsp("rewrite", f"{file}:2", "--write").code == 0
    assert file.read_bytes() == SOURCE.replace("a + 1", "2 * a").encode()


@pytest.mark.parametrize("command", [("rewrite",), ("fill", "--gaps")])
def test_a_file_does_not_control_the_terminal(dg_lsp, file, monkeypatch, command):
    file.write_text("def f(a):\n    total = ...\n    # \x1b]0;x\x07\n")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    name, *options = command
    out = re.sub(r"\x1b\[[\d;]*m", "", dg_lsp(name, f"{file}:2-2", *options).out)  # without colours
    assert "+    total = " in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_json_has_the_documented_keys_and_an_ignored_instruction_is_reported(dg_lsp, script, file):
    outcome = dg_lsp("rewrite", f"{file}:2-2", "double it", "--json")
    assert list(outcome.json) == KEYS
    assert (outcome.json["text"], outcome.json["rejected"]) == ("total = 2 * a", None)
    assert outcome.json["follows_instructions"] is False
    assert "follows no instructions" in outcome.err


def test_without_a_result_the_exit_code_is_1_and_nothing_is_written(dg_lsp, script, file):
    script.fill = "total = a + 1"
    outcome = dg_lsp("rewrite", f"{file}:2-2", "--strength", "0.4", "--write")
    assert outcome.code == 1
    assert "no rewrite: the result equals the text that it would replace" in outcome.out
    assert file.read_bytes() == SOURCE.encode()


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("2-9", [], "no line 9"),
        ("2-1", [], "LAST is before FIRST"),
        ("4-4", [], "nothing to rewrite"),
        ("2-2", ["--strength", "1.5"], "strength"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(dg_lsp, script, file, lines, options, message):
    assert message in dg_lsp("rewrite", f"{file}:{lines}", *options).error(2)


def test_the_model_of_rewrites_is_used_unless_another_one_is_named(dg_lsp, script, file, user_settings):
    user_settings("rewrite.model = 'large.gguf'")
    for command in (("rewrite", f"{file}:2-2"), ("chat", "--message", "hi")):
        dg_lsp(*command)
        assert script.settings.model.name.endswith("large.gguf")
        dg_lsp(*command, "--model", "other.gguf")
        assert script.settings.model.name == "other.gguf"
    for command in (("fill", f"{file}:2"), ("generate", "hi")):
        dg_lsp(*command)
        assert script.settings.model.name == "auto"
