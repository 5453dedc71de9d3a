"""Bodies and answers, dialect by dialect."""

from dataclasses import replace

import pytest

from dg_lsp.backends.remote.dialects import SENTINELS, Chat, Completions, Infill, Piece, costs_of, dialect_of
from dg_lsp.backends.remote.fenced import after_line, code_in
from dg_lsp.context.asking import Asking, Said, Task
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.context.window import Prompt

PROMPT = Prompt("a = {x}\nb = ", "\nc = {suffix}\n", path="p.py", language="python")
ASKING = Asking(Task.FILL, PROMPT, 64)


def test_infill_splits_the_cursors_line_off():
    extra = Snippets((Snippet(SnippetSource.OPEN_FILES, "other.py", "x = 1\n"),))
    asking = Asking(Task.FILL, Prompt("a\n  b = ", "\nc\n", extra=extra), 32, num_answers=3, seed=5)
    body = Infill().body(asking, 0.5, 249.7)
    assert (body["input_prefix"], body["prompt"], body["input_suffix"]) == ("a\n", "  b = ", "\nc\n")
    assert body["input_extra"] == [{"text": "x = 1\n", "filename": "other.py"}]
    assert (body["n_predict"], body["n_cmpl"], body["seed"], body["t_max_predict_ms"]) == (32, 3, 5, 249)


def test_infill_reads_streams_objects_and_arrays():
    read = Infill().read
    assert list(read({"index": 0, "content": "x", "stop": False})) == [Piece(0, "x")]
    assert list(read({"content": "", "stop": True, "stop_type": "limit"})) == [Piece(0, "", is_full=True)]
    assert list(read([{"content": "x"}, {"index": 1, "content": "y"}])) == [
        Piece(0, "x", is_ended=True),
        Piece(1, "y", is_ended=True),
    ]


@pytest.mark.parametrize("family", SENTINELS)
def test_sentinels_stand_around_texts_that_stay_what_they_are(family):
    body = Completions(family).body(ASKING, 0.0, 100.0)
    assert PROMPT.prefix in body["prompt"]
    assert PROMPT.suffix in body["prompt"]
    assert "suffix" not in body
    assert len(body.get("stop", [])) <= 4


def test_codestral_says_the_suffix_first():
    assert (
        Completions("codestral").body(ASKING, 0.0, 1.0)["prompt"] == f"[SUFFIX]{PROMPT.suffix}[PREFIX]{PROMPT.prefix}"
    )


def test_without_a_middle_only_what_precedes_is_shown():
    body = Completions("none").body(ASKING, 0.0, 1.0)
    assert (body["prompt"], "suffix" in body) == (PROMPT.prefix, False)


def test_a_chat_is_shown_the_gap_and_its_code_is_taken_out():
    chat = Chat()
    [message] = chat.body(ASKING, 0.0, 1.0)["messages"]
    assert message["role"] == "user"
    assert f"{PROMPT.prefix}<GAP>{PROMPT.suffix}" in message["content"]
    said = chat.shown(Said(("Sure:\n```python\nb = a + 1\n```\nDone",)), ASKING)
    assert (said.texts, said.is_ended) == (("a + 1",), True)


def test_a_chat_is_shown_code_from_elsewhere_first():
    chunks = (
        Snippet(SnippetSource.OPEN_FILES, "other.py", "x = {1}\n```\n"),
        Snippet(SnippetSource.EDITS, "third.py", "y = 2"),
    )
    [message] = Chat().body(replace(ASKING, prompt=replace(PROMPT, extra=Snippets(chunks))), 0.0, 1.0)["messages"]
    content = message["content"]
    assert "other.py\n````python\nx = {1}\n```\n````" in content
    assert content.index("other.py") < content.index("third.py") < content.index("<GAP>")


def test_a_chat_rewrites_what_is_marked():
    prompt = Prompt("x = 1\n", "z = 3\n", "double it", "y = 2\n", "p.py", "python")
    [message] = Chat().body(Asking(Task.REWRITE, prompt, 64), 0.0, 1.0)["messages"]
    assert "double it" in message["content"]
    assert "x = 1\n<PART>\ny = 2\n</PART>\nz = 3\n" in message["content"]


def test_a_chat_of_turns_is_passed_on():
    asking = Asking(Task.CHAT, Prompt("", ""), 64, turns=(("system", "be brief"), ("user", "hello")))
    body = Chat().body(asking, 0.0, 1.0)
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert Chat().shown(Said(("```\nx\n```",)), asking).texts == ("```\nx\n```",)


def test_a_chat_reads_deltas_and_messages():
    read = Chat().read
    assert list(read({"choices": [{"delta": {"role": "assistant", "content": None}}]})) == [Piece(0, "")]
    assert list(read({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})) == [Piece(0, "x", True)]
    assert list(read({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]})) == [
        Piece(0, "x", is_full=True)
    ]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("", ("", False)),
        ("``", ("", False)),
        ("```python\n", ("", False)),
        ("```python\nx = 1", ("x = 1", False)),
        ("```python\nx = 1\n```", ("x = 1", True)),
        ("Here:\n\n```py\nx = 1\n\ny = 2\n```\nBye.\n```\nz\n```", ("x = 1\n\ny = 2", True)),
        ("````\n```\n````", ("```", True)),
        ("x = 1", ("x = 1", False)),
    ],
)
def test_the_code_is_what_the_first_fence_holds(answer, code):
    assert code_in(answer) == code


@pytest.mark.parametrize(
    ("code", "line", "rest"),
    [
        ("a + 1", "    return ", "a + 1"),
        ("    return a + 1", "    return ", "a + 1"),
        ("return a + 1", "    return ", "a + 1"),
        ("  return a + 1", "    return ", "a + 1"),
        ("    ret", "    return ", ""),
        ("    x = 1\n    y", "    ", "x = 1\n    y"),
        ("x = 1", "    ", "x = 1"),
        ("x = 1", "", "x = 1"),
    ],
)
def test_the_cursors_line_is_not_said_twice(code, line, rest):
    assert after_line(code, line) == rest


def test_costs_are_read_where_they_are_told_and_never_believed_blindly():
    tree = {"timings": {"cache_n": 5, "prompt_n": 2, "predicted_n": 9}, "diffusion": {"steps": 3, "canvas_length": 16}}
    assert costs_of(tree) == {
        "prompt_tokens": 7,
        "cached_tokens": 5,
        "output_tokens": 9,
        "steps": 3,
        "canvas_length": 16,
    }
    assert costs_of({"usage": {"prompt_tokens": "many"}, "timings": [], "diffusion": {"steps": -1}}) == {}


def test_names_of_the_settings():
    assert isinstance(dialect_of("infill", "suffix"), Infill)
    assert isinstance(dialect_of("chat", "suffix"), Chat)
    assert dialect_of("completions", "qwen") == Completions("qwen")
