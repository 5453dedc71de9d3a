"""Requests and responses of each API."""

from dataclasses import replace

import pytest

from dg_lsp.backends.remote.dialects import (
    DIALECTS,
    RemoteAnswer,
    RemoteQuery,
    RemoteTask,
    fenced_code,
    usage_of,
    without_line_start,
)
from dg_lsp.context.window import Prompt, Snippet, Snippets, SnippetSource

PROMPT = Prompt("a = {x}\nb = ", "\nc = {suffix}\n", path="p.py", language="python")
CHAT, INFILL = DIALECTS["chat"], DIALECTS["infill"]
QUERY = RemoteQuery(RemoteTask.FILL, PROMPT, 64)


def test_infill_sends_the_line_of_the_cursor_apart():
    extra = Snippets((Snippet(SnippetSource.OPEN_FILES, "other.py", "x = 1\n"),))
    query = RemoteQuery(RemoteTask.FILL, Prompt("a\n  b = ", "\nc\n", snippets=extra), 32, num_answers=3, seed=5)
    body = INFILL.body(query, "none", 0.5, 249.7)
    assert (body["input_prefix"], body["prompt"], body["input_suffix"]) == ("a\n", "  b = ", "\nc\n")
    assert body["input_extra"] == [{"text": "x = 1\n", "filename": "other.py"}]
    assert (body["n_predict"], body["n_cmpl"], body["seed"], body["t_max_predict_ms"]) == (32, 3, 5, 249)


def test_chat_fill_sends_extra_code_and_a_marked_gap_twice_and_extracts_the_code():
    chunks = (
        Snippet(SnippetSource.OPEN_FILES, "other.py", "x = {1}\n```\n"),
        Snippet(SnippetSource.EDITS, "third.py", "y = 2"),
    )
    query = replace(QUERY, prompt=replace(PROMPT, snippets=Snippets(chunks)))
    [message] = CHAT.body(query, "none", 0.0, 1.0)["messages"]
    content = message["content"]
    assert message["role"] == "user"
    assert "other.py\n````python\nx = {1}\n```\n````" in content
    assert f"````python\n{PROMPT.prefix}<GAP>{PROMPT.suffix}\n````" in content
    assert content.index("other.py") < content.index("third.py") < content.index("<GAP>")
    *_, line = PROMPT.prefix.split("\n")
    rest, *_ = PROMPT.suffix.split("\n")
    assert f"in its place:\n\n````python\n{line}<GAP>{rest}\n````\n\nAnswer with the code only." in content
    answer = CHAT.extract(RemoteAnswer(("Sure:\n```python\nb = a + 1\n```\nDone",)), QUERY)
    assert (answer.texts, answer.is_finished) == (("a + 1",), True)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param("", ("", False), id="nothing"),
        pytest.param("``", ("", False), id="begun fence"),
        pytest.param("```python\n", ("", False), id="fence"),
        pytest.param("```python\nx = 1", ("x = 1", False), id="open fence"),
        pytest.param("```python\nx = 1\n```", ("x = 1", True), id="closed fence"),
        pytest.param(
            "Here:\n\n```py\nx = 1\n\ny = 2\n```\nBye.\n```\nz\n```", ("x = 1\n\ny = 2", True), id="prose around it"
        ),
        pytest.param("````\n```\n````", ("```", True), id="fence in a longer one"),
        pytest.param("```python\r\nx = 1\r\n```\r\n", ("x = 1\r", True), id="CRLF"),
        pytest.param("x = 1", ("x = 1", False), id="no fence"),
    ],
)
def test_code_is_the_content_of_the_first_fence(answer, code):
    assert fenced_code(answer) == code


README = "# Install\n\nRun this:\n\n```bash\npip install x\n```\n\nThen start it."
DOCSTRING = 'def f():\n    """A\n\n    ```\n    x\n    ```\n    """'


@pytest.mark.parametrize(
    ("language", "selection", "answer", "code"),
    [
        pytest.param("markdown", README, README, README, id="no fence around it"),
        pytest.param("markdown", README, f"```markdown\n{README}\n```\n", README, id="its language"),
        pytest.param("markdown", README, f"````\n{README}\n````\n", README, id="a longer fence"),
        pytest.param("markdown", README, f"```\n{README}\n```\n", README, id="a fence without a language"),
        pytest.param("markdown", README, f"Here it is:\n\n```md\n{README}\n```\nDone.", README, id="prose around it"),
        pytest.param("markdown", "```sh\nx\n```", "```sh\ny\n```\n\nA", "```sh\ny\n```\n\nA", id="starts with a fence"),
        pytest.param("python", DOCSTRING, f"```python\n{DOCSTRING}\n```\nDone.", DOCSTRING, id="fence in a docstring"),
        pytest.param("python", "y", "<think>\n```\ny\n```\n</think>\n\n```python\nx\n```", "x", id="after a thought"),
        pytest.param("python", "y", "<think>\n```\ny\n```", "", id="in an unfinished thought"),
    ],
)
def test_the_code_of_a_rewrite_keeps_its_own_fences_and_is_no_thought(language, selection, answer, code):
    query = RemoteQuery(RemoteTask.REWRITE, Prompt("", "", selection=f"{selection}\n", language=language), 64)
    assert CHAT.extract(RemoteAnswer((answer,)), query).texts == (code,)


@pytest.mark.parametrize(
    ("code", "line", "rest"),
    [
        pytest.param("a + 1", "    return ", "a + 1", id="not repeated"),
        pytest.param("    return a + 1", "    return ", "a + 1", id="whole"),
        pytest.param("return a + 1", "    return ", "a + 1", id="without its indentation"),
        pytest.param("  return a + 1", "    return ", "a + 1", id="with another indentation"),
        pytest.param("  ret", "    return ", "", id="begun, with another indentation"),
        pytest.param("    ret", "    return ", "", id="begun"),
        pytest.param("    x = 1\n    y", "    ", "x = 1\n    y", id="indentation"),
        pytest.param("x = 1", "    ", "x = 1", id="indentation that is not repeated"),
        pytest.param("x = 1", "", "x = 1", id="empty line"),
    ],
)
def test_repeated_line_start_is_removed(code, line, rest):
    assert without_line_start(code, line) == rest


def test_usage_is_read_from_each_api_and_invalid_counts_are_ignored():
    tree = {"timings": {"cache_n": 5, "prompt_n": 2, "predicted_n": 9}, "diffusion": {"steps": 3}}
    counts = {"prompt_tokens": 7, "cached_tokens": 5, "output_tokens": 9, "steps": 3}
    assert usage_of(tree) == counts
    assert usage_of({"usage": {"prompt_tokens": "many"}, "timings": [], "diffusion": {"steps": -1}}) == {}
