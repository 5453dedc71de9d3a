"""OpenAI's legacy completions and its readers; Tabby's clients; Mercury's template."""

import json

import pytest

GAP = {"model": "m", "prompt": "def total(items):\n    return ", "suffix": "\n"}
# a recorded exchange of cursortab's provider `mercuryapi` (MIT)
MERCURY = (
    rb'{"model":"mercury-edit","messages":[{"role":"user","content":"<|recently_viewed_code_snippets|>\n'
    rb"<|/recently_viewed_code_snippets|>\n\n<|current_file_content|>\ncurrent_file_path: app.py\n<|code_to_edit|>\n"
    rb"from functools import cache\n\n@\nd<|cursor|>ef slow_computation(x, y):\n    return x * y\n<|/code_to_edit|>\n"
    rb'<|/current_file_content|>\n\n<|edit_diff_history|>\n<|/edit_diff_history|>\n"}],"stream":false}'
)


def chunks(reply):
    *found, done = reply.events
    assert done == "[DONE]"
    return [json.loads(one) for one in found]


def test_a_plain_completion(ask):
    reply = ask("sum(items)", "/v1/completions", {**GAP, "max_tokens": 32})
    assert reply.status == 200
    tree = reply.tree
    assert tree["object"] == "text_completion"
    assert tree["id"].startswith("cmpl-")
    assert tree["model"] == "scripted"
    [choice] = tree["choices"]
    assert choice == {"text": "sum(items)", "logprobs": None, "index": 0, "finish_reason": "stop"}
    usage = tree["usage"]
    assert usage["completion_tokens"] == len("sum(items)") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert tree["timings"]["prompt_n"] + tree["timings"]["cache_n"] == usage["prompt_tokens"]


def test_tabby_servers_stream_ends_with_a_reason_before_done(ask):
    reply = ask("sum(items)", "/v1/completions", {**GAP, "stream": True, "temperature": 0.1, "presence_penalty": 0.0})
    found = chunks(reply)
    assert "".join(one["choices"][0]["text"] for one in found) == "sum(items)"
    assert [one["choices"][0]["finish_reason"] for one in found] == [None, "stop"]
    assert len({one["id"] for one in found}) == 1


def test_usage_comes_last_for_who_asks(ask):
    *_, last = chunks(ask("x", "/v1/completions", {**GAP, "stream": True, "stream_options": {"include_usage": True}}))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2


def test_every_reader_of_fills_finds_the_text(ask):
    [choice] = ask("x", "/v1/fim/completions", GAP).tree["choices"]
    assert choice["text"] == choice["message"]["content"] == "x"


def test_every_reader_of_streamed_fills_finds_the_text(ask):
    found = [one["choices"][0] for one in chunks(ask("x", "/v1/fim/completions", {**GAP, "stream": True}))]
    # a missing `content` ends Tabby's server
    assert [one["delta"]["content"] for one in found] == [one["text"] for one in found] == ["x", ""]


def test_several_choices(ask):
    choices = ask(("first", "other", "third"), "/v1/completions", {**GAP, "n": 3}).tree["choices"]
    assert [one["text"] for one in choices] == ["first", "other", "third"]
    assert [one["index"] for one in choices] == [0, 1, 2]


def test_continues_stops_and_its_sign_for_no_suffix(ask):
    seen = set()

    def fill(prefix, suffix):
        seen.add((prefix, suffix))
        return "a = 1\n\nb = 2"

    body = {"prompt": "# two\n", "suffix": "<|endoftext|>", "stop": ["\n\n", "\n \n"], "max_tokens": 150, "top_p": 1}
    [choice] = ask(fill, "/v1/completions", body).tree["choices"]
    assert choice["text"] == "a = 1"
    assert seen == {("# two\n", "")}


def test_length_is_the_reason_when_there_might_be_more(ask):
    [choice] = ask("abcdefghijklmnop", "/v1/completions", {**GAP, "max_tokens": 4}).tree["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/fim/completions"])
def test_drafts_replace_each_other_and_the_last_is_judged(ask, path):
    body = {"prompt": "def f(items):\n    return ", "suffix": "\n", "stream": True, "diffusing": True}
    found = [one["choices"][0] for one in chunks(ask("sum(items   ", path, body))]
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
        "<｜fim▁begin｜>a = <｜fim▁hole｜>\nb = 2\n<｜fim▁end｜>",
    ],
)
def test_another_models_sentinels_tell_what_prefix_and_suffix_are(ask, prompt):
    seen = set()

    def fill(prefix, suffix):
        seen.add((prefix, suffix))
        return "1"

    body = {"model": "qwen", "prompt": prompt, "suffix": None, "max_tokens": 64}
    assert ask(fill, "/v1/completions", body).tree["choices"][0]["text"] == "1"
    assert seen == {("a = ", "\nb = 2\n")}


@pytest.mark.parametrize(
    "prompt", ["a <|fim_prefix|> b", "<|fim_suffix|>a<|fim_prefix|>b", "<|fim_prefix|>a<|fim_suffix|>b", "[SUFFIX] a"]
)
def test_sentinels_that_make_no_template_are_text(ask, prompt):
    seen = set()

    def fill(prefix, suffix):
        seen.add((prefix, suffix))
        return "1"

    ask(fill, "/v1/completions", {"prompt": prompt})
    assert seen == {(prompt, "")}


def test_minuets_first_line_tells_the_language(ask):
    head = "\n# indentation: use 4 spaces for a tab\n"

    def text(**more):
        body = {"prompt": "x = f(1, ", "suffix": ")\n", **more}
        return ask("= = 2", "/v1/completions", body).tree["choices"][0]["text"]

    assert text() == text(prompt=f"# language: python{head}x = f(1, ") == ""  # Python's grammar has no such thing
    assert text(language="lua") == text(prompt=f"-- language: lua{head}x = f(1, ") == "= = 2"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"prompt": 1}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"suffix": 1}, "suffix"),
        ({"n": 0}, "n"),
        ({"max_tokens": "all"}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"language": 1}, "language"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/fim/completions"])
def test_a_wrong_type_is_refused_by_its_fields_name(module_client, path, more, field):
    reply = module_client.post(path, {**GAP, **more})
    assert (reply.status, reply.error["param"]) == (400, field)


TABBY = {
    "language": "python",
    "segments": {"prefix": "def total(items):\n    return ", "suffix": "\n", "filepath": "a.py", "clipboard": ""},
    "user": "u",
}


def test_segments_are_tabbys(ask):
    tree = ask("sum(items)", "/v1/completions", TABBY).tree
    assert list(tree) == ["id", "choices", "mode"]
    assert tree["choices"] == [{"index": 0, "text": "sum(items)"}]


def test_next_edits_are_not_promised(module_client):
    reply = module_client.post("/v1/completions", {**TABBY, "mode": "next_edit_suggestion"})
    assert (reply.status, reply.error["type"]) == (501, "not_supported_error")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"segments": {"prefix": 1}}, "segments.prefix"),
        ({"segments": []}, "segments"),
        ({"mode": "sideways"}, "mode"),
        ({"user": 1}, "user"),
    ],
)
def test_segments_have_types_too(module_client, more, field):
    reply = module_client.post("/v1/completions", {**TABBY, **more})
    assert (reply.status, reply.error["param"]) == (400, field)


REGION = (
    "<|current_file_content|>\ncurrent_file_path: a.py\nabove = 0\n<|code_to_edit|>\nx = <|cursor|>\n"
    "<|/code_to_edit|>\nbelow = 2\n<|/current_file_content|>\n"
)


def test_mercurys_region_stands_in_its_file(ask):
    seen = set()

    def fill(prefix, suffix):
        seen.add((prefix, suffix))
        return "1"

    body = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": REGION}]}
    tree = ask(fill, "/v1/edit/completions", body).tree
    assert tree["object"] == "chat.completion"
    assert tree["choices"][0]["message"]["content"] == "```\nx = 1\n```"
    assert seen == {("above = 0\nx = ", "\nbelow = 2\n")}


@pytest.mark.parametrize("fill", ["", "ecorate_"])  # the second one makes no Python there
def test_mercurys_none_is_no_prediction(ask, fill):
    assert ask(fill, "/v1/edit/completions", MERCURY).tree["choices"][0]["message"]["content"] == "None"


def test_mercury_streamed(ask):
    body = {"messages": [{"role": "user", "content": REGION}], "stream": True}
    found = [one["choices"][0] for one in chunks(ask("1", "/v1/edit/completions", body))]
    assert [one["delta"]["content"] for one in found] == ["```\nx = 1\n```", ""]
    assert [one["finish_reason"] for one in found] == [None, "stop"]


def test_marks_without_an_end_are_read_once(module_client):
    """And not from each of them on to the end: that would take hours."""
    content = "<|current_file_content|>\n" * 300_000
    assert (
        module_client.post("/v1/edit/completions", {"messages": [{"role": "user", "content": content}]}).status == 400
    )


@pytest.mark.parametrize("content", ["", "<|code_to_edit|>\nx\n<|/code_to_edit|>", "<|cursor|>"])
def test_a_template_without_its_marks_is_refused(module_client, content):
    reply = module_client.post("/v1/edit/completions", {"messages": [{"role": "user", "content": content}]})
    assert (reply.status, reply.error["param"]) == (400, "messages")


@pytest.mark.parametrize(
    ("path", "body", "action"),
    [
        ("/feedback", {"request_id": "r", "provider_name": "mercury", "user_action": "accept"}, "accept"),
        ("/v1/events", {"type": "select", "completion_id": "c", "choice_index": 0, "elapsed": 5}, "select"),
    ],
)
def test_what_users_did_is_counted(module_client, path, body, action):
    assert module_client.post(path, body).status == 200
    assert f'dg_lsp_feedback_total{{action="{action}"}} 1\n' in module_client.get("/metrics").body.decode()


def test_what_nobody_does_is_not_counted(module_client):
    assert module_client.post("/feedback", {"user_action": "x" * 100}).status == 400
