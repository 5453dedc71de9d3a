import itertools
import json
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from scripted import ScriptedDenoiser

from dg_lsp.engine.decoders import base
from dg_lsp.errors import BackendError

PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
DOCUMENTED = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])
SOURCE = "class A:\n    def f(self, x):\n        self.x = x\n        return \n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(SOURCE.encode())
    return path


def test_an_excluded_file_is_filled_only_with_even_secret(dg_lsp, script, source, tmp_path, user_settings):
    secret = tmp_path / ".Env"
    secret.write_text("KEY=\n")
    (tmp_path / "linked.py").symlink_to(secret)
    user_settings('[privacy]\nexclude_patterns = ["b.py"]\nexclude_gitignored = true\n')
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("c.py\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    for name, reason in ((".Env", "secrets"), ("linked.py", "secrets"), ("b.py", "pattern"), ("c.py", ".gitignore")):
        for command in ("fill", "rewrite"):
            message = dg_lsp(command, f"{tmp_path / name}:1").error(2)
            assert reason in message
            assert "use --even-secret" in message
            assert script.denoiser is None
    assert dg_lsp("fill", f"{secret}:1", "--even-secret", "--json").json["text"]
    assert dg_lsp("fill", f"{source}:4").code == 0


def test_json_is_one_object_with_the_documented_keys_in_order(dg_lsp, script, source):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{source}:4:16", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    pairs = json.loads(outcome.out, object_pairs_hook=list)
    assert [key for key, _ in pairs] == [*DOCUMENTED]
    assert [key for key, _ in dict(pairs)["timings_ms"]] == [*DOCUMENTED["timings_ms"]]
    assert [list(candidate) for candidate in outcome.json["candidates"]] == [[*DOCUMENTED["candidates"][0]]]
    answer = outcome.json
    assert answer["text"] == answer["candidates"][0]["text"] == "self.x"
    assert (answer["model"], answer["rejected"], answer["cached_tokens"]) == ("scripted", None, 0)
    assert answer["canvas_length"] in (8, 16, 32, 64)
    assert min(answer["steps"], answer["prompt_tokens"]) > 0
    times = answer["timings_ms"]
    assert times["total"] >= times["load"] + times["prefill"] + times["denoise"]
    assert source.read_text() == SOURCE


def test_without_a_completion_the_exit_code_is_1_and_the_reason_is_printed(dg_lsp, script, source):
    script.fill = ""
    number = source.stat().st_ino
    outcome = dg_lsp("fill", f"{source}:4", "--json", "--write")
    assert (outcome.code, outcome.err) == (1, "")
    assert [outcome.json[key] for key in ("text", "candidates", "rejected")] == ["", [], "empty"]
    assert (source.stat().st_ino, source.read_text()) == (number, SOURCE)
    outcome = dg_lsp("fill", f"{source}:4")
    assert outcome.code == 1
    assert "no completion: the result is empty" in outcome.out


def test_without_json_the_code_is_shown_with_the_completion(dg_lsp, script, source):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{source}:4:16")
    assert outcome.code == 0
    assert outcome.err == ""
    first, *lines = outcome.out.splitlines()
    assert first == "scripted answers: it knows all languages, and follows no instructions"
    assert lines[:5] == [
        "  1 │ class A:",
        "  2 │     def f(self, x):",
        "  3 │         self.x = x",
        "> 4 │         return self.x",
        "  5 │ ",
    ]
    assert "\x1b" not in outcome.out
    assert len(lines) == 6
    times = r"scripted: \d+ ms \(prefill \d+, denoise \d+, postprocess \d+\); load \d+ ms; "
    assert re.match(rf"{times}diffusion \d+, \d steps", lines[5])


def test_visual_in_a_pipe_prints_one_plain_line_per_step_and_with_json_on_standard_error(dg_lsp, script, source):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{source}:4:16", "--visual")
    rows = [line for line in outcome.out.splitlines() if line[:4].strip().isdigit() and "│" not in line]
    assert rows[0].startswith("   1  self····")
    assert rows[-1].startswith("   2  self.x∎")
    assert "\x1b" not in outcome.out
    outcome = dg_lsp("fill", f"{source}:4:16", "--visual", "--json")
    assert list(outcome.json) == [*DOCUMENTED]
    assert "   1  self····" in outcome.err


@pytest.mark.parametrize("command", [("fill", "a.py", "--gaps"), ("generate", "a long prompt")])
def test_visual_in_a_pipe_prints_no_row_between_the_pieces_of_a_prompt(dg_lsp, script, tmp_path, monkeypatch, command):
    monkeypatch.setattr(base, "PIECE_MS", 0.0)
    monkeypatch.setattr(base, "MIN_PIECE", 1)
    script.fill = "7"
    (tmp_path / "a.py").write_text(GAPS)
    rows = [line for line in dg_lsp(*command, "--visual", "--json").err.splitlines() if line[:4].strip().isdigit()]
    assert rows
    assert all(row[6:] for row in rows)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_behind_the_header_of_a_block_its_body_is_written_in_the_style_of_the_file(dg_lsp, script, tmp_path, newline):
    script.fill = "return 1"
    path = tmp_path / "a.py"
    before = f"\ufeffclass A:{newline}\tdef f(x):"
    path.write_bytes(f"{before}{newline}".encode())
    body = f"{newline}\t\treturn 1"
    assert dg_lsp("fill", f"{path}:2", "--write", "--json").json["text"] == body
    assert path.read_bytes() == f"{before}{body}{newline}".encode()


def test_several_candidates_are_generated_by_request(dg_lsp, script, source):
    script.fill = ("self.x", "self.y")
    tree = dg_lsp("fill", f"{source}:4:16", "--candidates", 2, "--json").json
    assert sorted(candidate["text"] for candidate in tree["candidates"]) == ["self.x", "self.y"]


def test_after_the_deadline_the_completion_is_unfinished_and_nothing_is_written(dg_lsp, script, source, monkeypatch):
    script.fill = "self.x"
    start = time.monotonic()
    monkeypatch.setattr(time, "monotonic", itertools.chain([start], itertools.repeat(start + 10)).__next__)
    outcome = dg_lsp("fill", f"{source}:4", "--deadline", 5, "--json", "--write")
    assert outcome.code == 1
    assert outcome.json["rejected"] == "unfinished"
    assert source.read_text() == SOURCE


def test_the_model_is_closed_after_an_error(dg_lsp, script, source):
    script.model = ScriptedDenoiser("x")
    script.model.predict = Mock(side_effect=BackendError("the step failed: try --gpu-layers 0"))
    outcome = dg_lsp("fill", f"{source}:4")
    assert (outcome.code, outcome.out, outcome.err) == (3, "", "dg-lsp: the step failed: try --gpu-layers 0\n")
    assert script.denoiser.is_closed


def test_a_file_that_changes_during_the_run_is_not_written(dg_lsp, script, source):
    def fill(prefix, suffix):
        source.write_text("another program\n")
        return "self.x"

    script.fill = fill
    outcome = dg_lsp("fill", f"{source}:4", "--write")
    assert outcome.code == 2
    assert "changed while" in outcome.err
    assert "wrote" not in outcome.out
    assert source.read_text() == "another program\n"


GAPS = "a = ...\nb = 2\nc = f(, b)\nd = 4\n# é\ne = ...\n"


def test_gaps_of_some_lines_are_filled_and_shown_as_a_difference(dg_lsp, script, source):
    script.fill = "7"
    source.write_text(GAPS)
    outcome = dg_lsp("fill", f"{source}:1-3", "--gaps")
    assert outcome.code == 0
    assert {"-a = ...", "+a = 7", "-c = f(, b)", "+c = f(7, b)"} <= set(outcome.out.split("\n"))
    assert "+e" not in outcome.out
    assert "2 of 2 gaps" in outcome.out
    assert source.read_text() == GAPS
    answer = dg_lsp("fill", f"{source}:6", "--gaps", "--json").json
    assert answer["follows_instructions"] is False
    [gap] = answer["gaps"]
    assert gap.items() >= {"line": 6, "placeholder": "...", "text": "7", "rejected": None}.items()
    assert list(gap)[-1] == "confidence"


def test_gaps_of_a_file_are_written_at_once_and_what_is_left_is_reported(dg_lsp, script, source):
    script.fill = lambda prefix, _suffix: "" if prefix.endswith("f(") else "7"
    source.write_text(GAPS)
    outcome = dg_lsp("fill", str(source), "--gaps", "--write", "--visual")
    assert source.read_text() == GAPS.replace("...", "7")
    assert "line 3 is not filled: the result is empty" in outcome.out
    assert re.search(r"^ +1  7", outcome.out, re.MULTILINE)
    assert dg_lsp("fill", f"{source}:3", "--gaps").code == 1


def test_a_language_that_the_bundled_model_does_not_know_is_a_warning(dg_lsp, tmp_path):
    (tmp_path / "app.ts").write_text("const total = \n")
    for command in (("fill", "app.ts:1", "--json"), ("rewrite", "app.ts:1-1", "--json")):
        outcome = dg_lsp(*command)
        assert outcome.err == "dg-lsp: warning: dg-mini knows Python only; choose another model: dg-lsp setup\n"
        assert outcome.json["model"] == "dg-mini"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("min_confidence = 1", "The completion is hidden: "),
        ("trigger = 'manual'", "Completions come only on request"),
    ],
)
def test_what_an_editor_hides_while_the_user_types_is_reported(dg_lsp, script, source, user_settings, setting, reason):
    script.fill = "x.y"
    user_settings(f"completion.{setting}\n")
    assert f"\nwhile you type, an editor shows nothing here. {reason}" in dg_lsp("fill", f"{source}:4").out
