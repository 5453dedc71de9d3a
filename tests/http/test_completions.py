"""Completions for clients of OpenAI, Mistral, Tabby and Mercury, and reports of user actions."""

import pytest
from http_server import OPERATOR, choices, metric

from dg_lsp.backends.scripted import ScriptedDenoiser

GAP = {"model": "m", "prompt": "def total(items):\n    return ", "suffix": "\n"}


def test_fim_completions_have_the_text_in_every_field_that_a_client_reads(complete):
    [choice] = complete("x", "/v1/fim/completions", GAP).tree["choices"]
    assert choice["text"] == choice["message"]["content"] == "x"
    found = choices(complete("x", "/v1/fim/completions", {**GAP, "stream": True}))
    # a missing `content` ends Tabby's server
    assert [one["delta"]["content"] for one in found] == [one["text"] for one in found] == ["x", ""]


def test_n_choices(complete):
    choices = complete(("first", "other", "third"), "/v1/completions", {**GAP, "n": 3}).tree["choices"]
    assert [(one["index"], one["text"]) for one in choices] == [(0, "first"), (1, "other"), (2, "third")]


@pytest.mark.parametrize(
    ("fill", "more", "text", "reason"),
    [
        ("a = 1\n\nb = 2", {"suffix": "", "stop": ["\n\n", "\n \n"], "top_p": 1}, "a = 1", "stop"),
        ("abcdefghijklmnop", {"max_tokens": 4}, "abcd", "length"),
        ("1", {"suffix": "<|endoftext|>"}, "1", "stop"),  # Continue's mark for an empty suffix
    ],
)
def test_what_ends_a_completion(complete, fill, more, text, reason):
    [choice] = complete(fill, "/v1/completions", {**GAP, **more}).tree["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)


STORY = "Once upon" + " = a time (\n\n" * 8


@pytest.mark.parametrize(
    ("more", "text", "reason"),
    [
        ({}, STORY[9:25], "length"),
        ({"max_tokens": 500}, STORY[9:], "stop"),
        ({"max_tokens": 20, "stop": "\n"}, " = a time (", "stop"),
        ({"max_tokens": 500, "stop": ["nowhere", "time"]}, " = a ", "stop"),
    ],
    ids=["16 tokens", "end token", "line end", "word"],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_without_a_language_the_text_is_the_models_own_continuation(complete, more, text, reason, is_streamed):
    def story(prefix, suffix):
        return STORY.removeprefix(prefix)

    reply = complete(story, "/v1/completions", {"prompt": "Once upon", "stream": is_streamed, **more})
    found = choices(reply) if is_streamed else reply.tree["choices"]
    assert ("".join(one["text"] for one in found), found[-1]["finish_reason"]) == (text, reason)


@pytest.mark.parametrize(
    ("body", "word"), [({"prompt": "a", "n": 2}, "n must be 1"), ({"prompt": "a" * 4096}, "shorten")]
)
def test_a_raw_continuation_that_the_model_cannot_take_is_refused(module_client, body, word):
    reply = module_client.post("/v1/completions", body)
    assert reply.status == 400
    assert word in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/fim/completions"])
def test_with_diffusing_each_draft_replaces_the_last_and_the_final_text_is_judged(complete, path):
    body = {"prompt": "def f(items):\n    return ", "suffix": "\n", "stream": True, "diffusing": True}
    body["language"] = "python"
    found = choices(complete("sum(items   ", path, body))
    drafts = [one["text"] for one in found[:-1]]
    assert drafts[-1] == "sum(items   "
    assert all(drafts[-1].startswith(text) for text in drafts)
    assert (found[-1]["text"], found[-1]["finish_reason"]) == ("sum(items)", "stop")
    assert len(found) > 2


@pytest.mark.parametrize(
    "prompt",
    [
        "<|fim_prefix|>a = <|fim_suffix|>\nb = 2\n<|fim_middle|>",
        "<fim_prefix>a = <fim_suffix>\nb = 2\n<fim_middle>",
        "<PRE> a =  <SUF>\nb = 2\n <MID>",
        "[SUFFIX]\nb = 2\n[PREFIX]a = ",
        "<filename>a.py\n<fim_suffix>\nb = 2\n<fim_prefix>a = <fim_middle>",
        "<[fim-suffix]>\nb = 2\n<[fim-prefix]>a = <[fim-middle]>",
        "<|repo_name|>r\n<|file_sep|>a.py\n<|fim_prefix|>a = <|fim_suffix|>\nb = 2\n<|fim_middle|>",
        "<｜fim▁begin｜>a = <｜fim▁hole｜>\nb = 2\n<｜fim▁end｜>",
    ],
)
def test_a_prompt_with_sentinels_of_another_model_is_split(complete, seen, prompt):
    fill, prompts = seen
    body = {"model": "qwen", "prompt": prompt, "suffix": None, "max_tokens": 64}
    assert complete(fill, "/v1/completions", body).tree["choices"][0]["text"] == "1"
    assert prompts == {("a = ", "\nb = 2\n")}


@pytest.mark.parametrize(
    "prompt", ["a <|fim_prefix|> b", "<|fim_suffix|>a<|fim_prefix|>b", "<|fim_prefix|>a<|fim_suffix|>b", "[SUFFIX] a"]
)
def test_an_incomplete_set_of_sentinels_is_text(complete, seen, prompt):
    fill, prompts = seen
    complete(fill, "/v1/completions", {"prompt": prompt})
    assert prompts == {(prompt, "")}


def test_minuets_first_line_or_the_field_sets_the_language(complete):
    head = "\n# indentation: use 4 spaces for a tab\n"

    def text(**more):
        body = {"prompt": "x = f(1, ", "suffix": ")\n", **more}
        return complete("= = 2", "/v1/completions", body).tree["choices"][0]["text"]

    invalid = text(prompt=f"# language: python{head}x = f(1, ")
    assert invalid == text(language="python") == ""
    assert text() == "= = 2"  # nothing is judged by a syntax that the client did not name
    assert text(language="lua") == ""  # invalid Lua
    assert text(language="cobol") == text(prompt=f"-- language: cobol{head}x = f(1, ") == "= = 2"


TABBY = {
    "language": "python",
    "segments": {"prefix": "def total(items):\n    return ", "suffix": "\n", "filepath": "a.py", "clipboard": ""},
    "user": "u",
}


def test_a_request_with_segments_returns_tabbys_object(complete):
    tree = complete("sum(items)", "/v1/completions", TABBY).tree
    assert list(tree) == ["id", "choices", "mode"]
    assert tree["choices"] == [{"index": 0, "text": "sum(items)"}]


REGION = (
    "<|current_file_content|>\ncurrent_file_path: a.py\nabove = 0\n<|code_to_edit|>\nx = <|cursor|>\n"
    "<|/code_to_edit|>\nbelow = 2\n<|/current_file_content|>\n"
)


def edit(content, **more):
    return {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}], **more}


def test_an_edit_completes_the_region_in_its_file(complete, seen):
    fill, prompts = seen
    tree = complete(fill, "/v1/edit/completions", edit(REGION)).tree
    assert tree["object"] == "chat.completion"
    assert tree["choices"][0]["message"]["content"] == "```\nx = 1\n```"
    assert prompts == {("above = 0\nx = ", "\nbelow = 2\n")}


@pytest.mark.parametrize(
    ("fill", "more", "contents", "reason"),
    [
        pytest.param("1", {}, ["```\nx = 1\n```"], "stop", id="whole"),
        pytest.param("", {}, ["None"], "stop", id="empty"),
        pytest.param("= =", {}, ["None"], "stop", id="invalid Python"),
        pytest.param("abcdefghijkl", {"max_tokens": 4}, ["```\nx = abcd\n```"], "length", id="cut"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_region_of_an_edit(complete, fill, more, contents, reason, is_streamed):
    reply = complete(fill, "/v1/edit/completions", edit(REGION, stream=is_streamed, **more))
    if is_streamed:
        pieces = choices(reply)
        assert [piece["delta"]["content"] for piece in pieces] == [*contents, ""]
    else:
        pieces = reply.tree["choices"]
        assert [piece["message"]["content"] for piece in pieces] == contents
    assert pieces[-1]["finish_reason"] == reason


@pytest.mark.parametrize(
    "content",
    ["", "<|code_to_edit|>\nx\n<|/code_to_edit|>", "<|cursor|>", "<|current_file_content|>\n" * 300_000],
    ids=["empty", "no cursor", "no region", "many open marks"],
)
def test_an_edit_without_marks_is_refused(module_client, content):
    reply = module_client.post("/v1/edit/completions", edit(content))
    assert (reply.status, reply.error["param"]) == (400, "messages")


@pytest.mark.parametrize(
    ("path", "body", "action"),
    [
        ("/feedback", {"request_id": "r", "provider_name": "mercury", "user_action": "accept"}, "accept"),
        ("/v1/events", {"type": "select", "completion_id": "c", "choice_index": 0, "elapsed": 5}, "select"),
    ],
)
def test_user_actions_are_counted(start, path, body, action):
    client = start(ScriptedDenoiser("x"), rules=OPERATOR)
    assert client.post(path, body).body == b'{"status":"ok"}'
    assert metric(client, f'dg_lsp_feedback_total{{action="{action}"}}') == 1
