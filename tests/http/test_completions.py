"""Completions for clients of OpenAI, Mistral, Tabby and Mercury, and reports of user actions."""

from dataclasses import replace

import pytest
from http_server import OPERATOR, choices, connect, mercury, message, metric, packed, wait_for_active
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.context.edit_history import MAX_EDITS
from dg_lsp.http.routes import parse_edit_history

PATHS = ("/v1/completions", "/v1/fim/completions")
REGION = mercury("a.py", "x = <|cursor|>", "above = 0\n", "below = 2\n")


@pytest.mark.parametrize(
    ("body", "problem"), [({"prompt": "a", "n": 2}, "n must be 1"), ({"prompt": "a" * 4096}, "shorten")]
)
def test_a_raw_continuation_that_the_model_cannot_take_is_refused(module_client, body, problem):
    reply = module_client.post("/v1/completions", body)
    assert reply.status == 400
    assert problem in reply.error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_with_diffusing_each_draft_replaces_the_last_and_the_final_text_is_judged(complete, path):
    body = {"prompt": "def f(items):\n    return ", "suffix": "\n", "stream": True, "diffusing": True}
    streamed = choices(complete("sum(items   ", path, {**body, "language": "python"}))
    drafts = [choice["text"] for choice in streamed[:-1]]
    assert drafts[-1] == "sum(items   "
    assert all(drafts[-1].startswith(text) for text in drafts)
    assert (streamed[-1]["text"], streamed[-1]["finish_reason"]) == ("sum(items)", "stop")
    assert len(streamed) > 2


@pytest.fixture
def prompts_of(complete):
    """Posts a body to a path, and returns the prefixes and suffixes that the model was given."""

    def call(path, body):
        prompts = set()

        def fill(prefix, suffix):
            prompts.add((prefix, suffix))
            return "1"

        assert complete(fill, path, body).status == 200
        return prompts

    return call


@pytest.mark.parametrize(
    "prompt",
    [
        "<|repo_name|>r\n<|file_sep|>a.py\n<|fim_prefix|>a = <|fim_suffix|>\nb = 2\n<|fim_middle|>",
        "[SUFFIX]\nb = 2\n[PREFIX]a = ",
        "<|fim_begin|>a = <|fim_hole|>\nb = 2\n<|fim_end|>",
        "<|code_prefix|>a = <|code_suffix|>\nb = 2\n<|code_middle|>",
    ],
    ids=["Qwen", "Codestral", "DeepSeek in ASCII", "GLM"],
)
def test_a_prompt_with_sentinels_of_another_model_is_split(prompts_of, prompt):
    body = {"model": "qwen", "prompt": prompt, "suffix": None, "max_tokens": 64}
    assert prompts_of("/v1/completions", body) == {("a = ", "\nb = 2\n")}


def test_minuets_first_line_or_the_field_sets_the_language(complete):
    head = "\n# indentation: use 4 spaces for a tab\n"

    def text(**fields):
        body = {"prompt": "x = f(1, ", "suffix": ")\n", **fields}
        return complete("= = 2", "/v1/completions", body).tree["choices"][0]["text"]

    invalid = text(prompt=f"# language: python{head}x = f(1, ")
    assert invalid == text(language="python") == ""
    assert text() == "= = 2"  # nothing is judged by a syntax that the client did not name
    assert text(language="lua") == ""  # invalid Lua
    assert text(language="cobol") == text(prompt=f"-- language: cobol{head}x = f(1, ") == "= = 2"


def edit(content, **fields):
    return {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}], **fields}


def test_an_edit_completes_the_region_in_its_file(prompts_of):
    assert prompts_of("/v1/edit/completions", edit(REGION)) == {("above = 0\nx = ", "\nbelow = 2\n")}


@pytest.mark.parametrize(
    ("fill", "options", "content", "reason"),
    [
        pytest.param("1", {}, "```\nx = 1\n```", "stop", id="whole"),
        pytest.param("1", {"diffusing": True}, "```\nx = 1\n```", "stop", id="no drafts"),
        pytest.param("", {}, "None", "stop", id="empty"),
        pytest.param("= =", {}, "None", "stop", id="invalid Python"),
        pytest.param("abcdefghijkl", {"max_tokens": 4}, "```\nx = abcd\n```", "length", id="cut"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_region_of_an_edit(complete, fill, options, content, reason, is_streamed):
    parts = choices(complete(fill, "/v1/edit/completions", edit(REGION, stream=is_streamed, **options)))
    assert [message(part)["content"] for part in parts] == [content, ""][: 1 + is_streamed]
    assert parts[-1]["finish_reason"] == reason


CALLS = mercury("a.py", "<|cursor|>second = load(path, mode)\nthird = 3", "first = load(path, mode, strict=True)\n")
HISTORY = (
    "<|edit_diff_history|>\n--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-first = load(path, mode)\n"
    "+first = load(path, mode, strict=True)\n\n--- b.py\n+++ b.py\n@@ -1,1 +1,1 @@\n-a\n+third = 3\n\n"
    "<|/edit_diff_history|>\n"
)


WITH_LINES_AROUND = HISTORY.replace("-1,1 +1,1", "-1,2 +1,2", 1).replace(
    "True)\n\n", "True)\n second = load(path, mode)\n\n"
)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("history", [HISTORY, WITH_LINES_AROUND], ids=["changed lines", "with lines around them"])
def test_an_edit_repeats_the_last_edits_in_the_region(complete, history, is_streamed):
    parts = choices(complete("nothing", "/v1/edit/completions", edit(CALLS + history, stream=is_streamed)))
    content = "".join(message(part)["content"] for part in parts)
    assert content == "```\nsecond = load(path, mode, strict=True)\nthird = 3\n```"


def test_edits_of_other_files_and_of_lines_that_are_gone_are_left_out():
    below_a_feed = HISTORY.replace("@@\n-first", "@@\n \fx = 1\n-first", 1)
    [parsed] = parse_edit_history(below_a_feed, "\fx = 1\nfirst = load(path, mode, strict=True)\n", "a.py")
    assert (parsed.line, parsed.old) == (1, "first = load(path, mode)\n")
    assert parse_edit_history(HISTORY, "x = 1\n", "a.py") == parse_edit_history("", "x = 1\n", "a.py") == ()


def test_only_the_last_edits_of_a_long_history_are_parsed():
    """A body can have a million hunks, and the time for each grows with the length of the code."""
    hunks = "".join(f"@@ -1,1 +1,1 @@\n-a{number}\n+b{number}\n" for number in range(100))
    history = f"<|edit_diff_history|>\n--- a.py\n+++ a.py\n{hunks}<|/edit_diff_history|>\n"
    parsed = parse_edit_history(history, "".join(f"b{number}\n" for number in range(100)), "a.py")
    assert [edit.line for edit in parsed] == [*range(99, 99 - MAX_EDITS, -1)]


EDIT_MODEL = replace(MASK_SPEC, name="zeta-2", sampling=None, canvas_lengths=())
MOVED = edit(CALLS.replace("first = load(path, mode, strict=True)", "PATH = 1"))


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("PATH = 1\nsecond = load(PATH, mode)\nthird = 3\n", "```\nsecond = load(PATH, mode)\nthird = 3\n```"),
        ("NO_EDITS\n", "None"),
        ("PATH = 1\nsecond = load(\n", "None"),
    ],
)
def test_an_edit_model_rewrites_the_region(start, answer, content):
    fill = lambda prefix, _suffix: answer[len(prefix.partition("<[fim-middle]>")[2]) :]  # noqa: E731
    client = start(ScriptedDenoiser(fill, spec=EDIT_MODEL))
    assert client.post("/v1/edit/completions", {**MOVED, "t_max_predict_ms": 0.001}).status == 504
    reply = client.post("/v1/edit/completions", MOVED)
    assert (reply.tree["model"], reply.tree["choices"][0]["message"]["content"]) == ("zeta-2", content)
    assert ("dg-lsp-reason" in reply.headers) is (content == "None")


def test_a_disconnect_stops_an_edit_model(start):
    client = start(ScriptedDenoiser("x" * 1000, spec=EDIT_MODEL, step_seconds=0.05))
    with connect(client, packed("/v1/edit/completions", {**MOVED, "t_max_predict_ms": 600_000})):
        wait_for_active(client, 1)
    wait_for_active(client, 0)
    assert metric(client, "dg_lsp_disconnects_total") == 1


@pytest.mark.parametrize(
    "content",
    ["", "<|code_to_edit|>\nx\n<|/code_to_edit|>", "<|cursor|>", "<|current_file_content|>\n" * 300_000],
    ids=["empty", "no cursor", "no region", "many open marks"],
)
def test_an_edit_without_marks_is_refused(module_client, content):
    reply = module_client.post("/v1/edit/completions", edit(content))
    assert (reply.status, reply.error["param"]) == (400, "messages")


def test_user_actions_are_counted(start):
    client = start(ScriptedDenoiser("x"), rules=OPERATOR)
    for path, body, action in (
        ("/feedback", {"request_id": "r", "provider_name": "mercury", "user_action": "accept"}, "accept"),
        ("/v1/events", {"type": "select", "completion_id": "c", "choice_index": 0, "elapsed": 5}, "select"),
    ):
        assert client.post(path, body).body == b'{"status":"ok"}'
        assert metric(client, f'dg_lsp_feedback_total{{action="{action}"}}') == 1
