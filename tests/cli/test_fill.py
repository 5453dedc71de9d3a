import json
from pathlib import Path

import pytest

from dg_lsp.engine.engine import Engine

KEYS = [
    "text",
    "model",
    "candidates",
    "rejected",
    "decoder",
    "canvas_length",
    "steps",
    "tokens_per_forward",
    "prompt_tokens",
    "cached_tokens",
    "timings_ms",
]
TIMES = ["load", "prefill", "denoise", "postprocess", "total"]

HOLE = "class A:\n    def f(self, x):\n        self.x = x\n        return \n"


@pytest.fixture
def hole(tmp_path):
    path = tmp_path / "hole.py"
    path.write_bytes(HOLE.encode())
    return path


@pytest.fixture
def tree(tmp_path):
    """Whatever lies in the folder, to be compared afterwards."""
    return lambda: {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_json_is_one_object_with_the_documented_keys_in_order(dg_lsp, script, hole, tree):
    script.fill = "self.x"
    before = tree()
    outcome = dg_lsp("fill", f"{hole}:4:16", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    pairs = json.loads(outcome.out, object_pairs_hook=list)
    assert [key for key, _ in pairs] == KEYS
    assert [key for key, _ in dict(pairs)["timings_ms"]] == TIMES
    assert [[key for key, _ in one] for one in dict(pairs)["candidates"]] == [["text", "score"]]
    answer = outcome.json
    assert answer["text"] == answer["candidates"][0]["text"] == "self.x"
    assert answer["model"] == "scripted"
    assert answer["rejected"] is None
    assert answer["canvas_length"] in (8, 16, 32, 64)
    assert answer["steps"] >= 1
    assert answer["prompt_tokens"] > 0
    assert answer["cached_tokens"] == 0
    times = answer["timings_ms"]
    assert times["total"] >= times["load"] + times["prefill"] + times["denoise"]
    assert tree() == before


def test_nothing_worth_showing_is_exit_code_1_with_the_reason(dg_lsp, script, hole, tree):
    script.fill = ""
    before, status = tree(), hole.stat()
    outcome = dg_lsp("fill", f"{hole}:4", "--json", "--write")
    assert hole.stat().st_ino == status.st_ino
    assert outcome.code == 1
    assert outcome.json["text"] == ""
    assert outcome.json["candidates"] == []
    assert outcome.json["rejected"] == "empty"
    assert outcome.err == ""
    assert tree() == before
    outcome = dg_lsp("fill", f"{hole}:4")
    assert outcome.code == 1
    assert "nothing worth showing (empty)" in outcome.out


def test_without_json_the_fill_stands_in_its_place(dg_lsp, script, hole):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{hole}:4:16")
    assert outcome.code == 0
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[:6] == [
        "  1 │ class A:",
        "  2 │     def f(self, x):",
        "  3 │         self.x = x",
        "> 4 │         return self.x",
        "    │                ^^^^^^",
        "  5 │ ",
    ]
    assert "\x1b" not in outcome.out
    assert len(lines) == 7
    assert "prefill" in lines[6]
    assert "load" in lines[6]


def test_visual_in_a_pipe_is_one_plain_line_per_step(dg_lsp, script, hole):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{hole}:4:16", "--visual")
    rows = [line for line in outcome.out.splitlines() if line[:4].strip().isdigit() and "│" not in line]
    assert rows[0].startswith("   1  self····")
    assert rows[-1] == "   2  self.x∎∎" or rows[-1].startswith("   2  self.x∎")
    assert "\x1b" not in outcome.out


def test_visual_leaves_standard_output_to_json(dg_lsp, script, hole):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{hole}:4:16", "--visual", "--json")
    assert list(outcome.json) == KEYS
    assert "   1  self····" in outcome.err


def test_write_inserts_and_says_so(dg_lsp, script, hole):
    script.fill = "self.x"
    outcome = dg_lsp("fill", f"{hole}:4:16", "--write")
    assert outcome.code == 0
    assert hole.read_text() == HOLE.replace("return ", "return self.x")
    assert f"wrote {hole}" in outcome.out


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("indent", ["    ", "\t"])
@pytest.mark.parametrize("has_final_newline", [True, False])
def test_write_keeps_the_files_own_style(dg_lsp, script, tmp_path, newline, bom, indent, has_final_newline):
    script.fill = "if x:\n        return 1\n    return 2\n"
    path = tmp_path / "a.py"
    last = "y = f(1)" + ("\n" if has_final_newline else "")
    text = "def f(x):\n    |\n\n\n" + last

    def stored(text):
        return bom + text.replace("    ", indent).replace("\n", newline).encode()

    path.write_bytes(stored(text.replace("|", "")))
    outcome = dg_lsp("fill", f"{path}:2", "--write", "--json")
    assert outcome.code == 0
    fill = outcome.json["text"]
    assert newline in fill
    assert indent + "return 2" in fill
    head, tail = stored(text).split(b"|")
    assert path.read_bytes() == head + fill.encode() + tail


def test_mixed_line_ends_outside_the_fill_stay_mixed(dg_lsp, script, tmp_path):
    script.fill = "x"
    path = tmp_path / "a.py"
    path.write_bytes("é = 1\r\ny = 2\rprint()\n\n\r\nz\f = 3".encode())
    assert dg_lsp("fill", f"{path}:3:7", "--write").code == 0
    assert path.read_bytes() == "é = 1\r\ny = 2\rprint(x)\n\n\r\nz\f = 3".encode()


def test_options_reach_settings_and_request(dg_lsp, script, hole, monkeypatch):
    seen = []
    run = Engine.run

    def spy(self, request, **keywords):
        seen.append((request, keywords))
        return run(self, request, **keywords)

    monkeypatch.setattr(Engine, "run", spy)
    options = [
        "--candidates",
        "3",
        "--suffix-lines",
        "2",
        "--seed",
        "7",
        "--threads",
        "1",
        "--gpu-layers",
        "0",
        "--model",
        "m.gguf",
    ]
    assert dg_lsp("fill", f"{hole}:4", *options, "--model", "m.gguf").code == 0
    [(request, keywords)] = seen
    assert (request.num_candidates, request.suffix_lines, request.seed) == (3, 2, 7)
    assert request.offset == len(HOLE) - 1
    assert keywords["deadline"] == float("inf")
    runtime = script.settings.runtime
    assert (script.settings.model, runtime.threads, runtime.gpu_layers) == ("m.gguf", 1, 0)


def test_a_deadline_that_is_over_is_unfinished_and_nothing_is_lost(dg_lsp, script, hole, monkeypatch):
    import time

    script.fill = "self.x"
    start = time.monotonic()
    monkeypatch.setattr(time, "monotonic", iter([start, *[start + 10] * 100]).__next__)
    outcome = dg_lsp("fill", f"{hole}:4", "--deadline", 5, "--json", "--write")
    assert outcome.code == 1
    assert outcome.json["rejected"] == "unfinished"
    assert hole.read_text() == HOLE


def test_the_model_is_given_back_also_when_the_runtime_fails(dg_lsp, script, hole, monkeypatch):
    from dg_lsp.errors import BackendError

    def fail(self, *args):
        raise BackendError("the step failed: try --gpu-layers 0")

    assert dg_lsp("fill", f"{hole}:4").code == 0
    assert script.denoiser.is_closed
    monkeypatch.setattr("dg_lsp.backends.scripted.ScriptedDenoiser.predict", fail)
    outcome = dg_lsp("fill", f"{hole}:4")
    assert (outcome.code, outcome.out, outcome.err) == (3, "", "dg-lsp: the step failed: try --gpu-layers 0\n")
    assert script.denoiser.is_closed


def test_a_file_that_changed_while_it_was_filled_is_left_alone(dg_lsp, script, hole):
    def fill(prefix, suffix):
        hole.write_text("somebody else\n")
        return "self.x"

    script.fill = fill
    outcome = dg_lsp("fill", f"{hole}:4", "--write")
    assert outcome.code == 2
    assert outcome.err.startswith("dg-lsp: ")
    assert "changed while" in outcome.err
    assert outcome.out == "" or "wrote" not in outcome.out
    assert hole.read_text() == "somebody else\n"


def test_an_empty_file_can_be_filled(dg_lsp, script, tmp_path):
    script.fill = "import os\n"
    (tmp_path / "new.py").write_bytes(b"")
    assert dg_lsp("fill", "new.py:1", "--write").code == 0
    assert Path("new.py").read_bytes().startswith(b"import os")


def test_a_file_cannot_steer_the_terminal(dg_lsp, script, tmp_path):
    script.fill = "x"
    (tmp_path / "a.py").write_bytes(b"# \x1b[31mred\x07\nprint()\n")
    outcome = dg_lsp("fill", "a.py:2:7")
    assert "\x1b" not in outcome.out
    assert "\x07" not in outcome.out
    assert "␛[31mred␇" in outcome.out


def test_a_prompt_format_is_what_the_model_is_opened_with(dg_lsp, script, hole):
    assert dg_lsp("fill", f"{hole}:4:16", "--prompt-format", "prefix", "--json").code == 0
    assert script.settings.fill.prompt_format == "prefix"


def test_a_format_that_the_model_cannot_take_is_told_in_one_line(dg_lsp, script, hole):
    outcome = dg_lsp("fill", f"{hole}:4:16", "--prompt-format", "instruct")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert "choose fim, infill, prefix" in outcome.err


def test_the_bundled_model_between_frozen_text(dg_lsp, hole):
    outcome = dg_lsp("fill", f"{hole}:4:16", "--prompt-format", "infill", "--json", "--threads", "1")
    assert outcome.code in (0, 1)
    assert outcome.json["decoder"] == "infill"
    assert outcome.json["canvas_length"] == 64
    assert outcome.json["steps"] >= 2
