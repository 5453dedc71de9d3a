"""Why a text ends, in every dialect, whole and as a stream."""

import json

import pytest
from http_server import trees
from scripted import ScriptedDenoiser

LINE = {"input_prefix": "def total(items):\n", "prompt": "    return ", "input_suffix": "\n"}
METHOD = {"input_prefix": "class A:\n    def f(self):\n", "input_suffix": "\n", "n_indent": 8, "n_predict": 64}
GAP = {"prompt": "def total(items):\n    return ", "suffix": "\n"}
WIDE = "'\u00e9\U0001f60b'"
STORY = "Once upon" + " = a time (\n\n" * 8
ENDINGS = {
    "infill-end": ("/infill", WIDE, {**LINE, "input_prefix": "s = # \u00e9\U0001f60b\u2028\ns = "}, WIDE, "eos"),
    "infill-limit": ("/infill", "abcdefghijk", {**LINE, "n_predict": 8}, "abcdefgh", "limit"),
    "infill-stop": ("/infill", "alpha; beta", {**LINE, "stop": ["beta", ";"]}, "alpha", "word"),
    "infill-dedent": ("/infill", "        a\n\n        b\n    c", METHOD, "        a\n\n        b", "eos"),
    "infill-lines": ("/infill", "a = 1\nb = 2", {"input_prefix": "x = ", "input_suffix": "\n"}, "a = 1", "limit"),
    "completion-end": ("/v1/completions", "1", {**GAP, "suffix": "<|endoftext|>"}, "1", "stop"),  # Continue's no suffix
    "completion-limit": ("/v1/completions", "abcdefghijklmnop", {**GAP, "max_tokens": 8}, "abcdefgh", "length"),
    "completion-lines": ("/v1/completions", "a\n\nb", {**GAP, "suffix": "", "stop": ["\n\n"]}, "a", "length"),
    "text-end": ("/completion", STORY, {"prompt": "Once upon"}, STORY[9:], "eos"),
    "text-limit": ("/completion", STORY, {"prompt": "Once upon", "n_predict": 5}, STORY[9:14], "limit"),
    "text-stop": ("/completion", STORY, {"prompt": "Once upon", "stop": [" time", "x"]}, " = a", "word"),
    "openai-text-default": ("/v1/completions", STORY, {"prompt": "Once upon"}, STORY[9:25], "length"),
    "openai-text-no-limit": ("/v1/completions", STORY, {"prompt": "Once upon", "max_tokens": -1}, STORY[9:], "stop"),
    "openai-text-none": ("/v1/completions", STORY, {"prompt": "Once upon", "max_tokens": 0}, "", "length"),
    "openai-text-line": ("/v1/completions", STORY, {"prompt": "Once upon", "stop": "\n"}, " = a time (", "stop"),
    # an end token after the limit is not the end of the text
    "text-just-too-long": ("/completion", "whole", {"prompt": "a", "n_predict": 4}, "whol", "limit"),
    "text-just-right": ("/completion", "whole", {"prompt": "a", "n_predict": 5}, "whole", "eos"),
}
"""Path, text of the model, body of the request, and the text and the reason of the answer."""


@pytest.fixture(scope="module")
def server(module_start):
    """A model that accepts all tokens of a canvas in one pass."""
    denoiser = ScriptedDenoiser("", tokens_per_step=64)
    return module_start(denoiser), denoiser


def read(path, reply, *, is_streamed):
    """The completion, text and reason of each part of an answer; all but the last part of a completion have none."""
    if path.startswith("/v1/"):
        choices = [choice for tree in trees(reply) for choice in tree["choices"]]
        return [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices]
    assert is_streamed or b"\n" not in reply.body  # llama.vim reads one line
    parts = [json.loads(event) for event in reply.events] if is_streamed else reply.tree
    parts = parts if isinstance(parts, list) else [parts]
    assert all(part["stop"] is ("stop_type" in part) for part in parts)
    return [(part["index"], part["content"], part.get("stop_type")) for part in parts]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ENDINGS)
def test_the_text_and_the_reason_of_its_end(server, name, is_streamed):
    path, fill, body, text, reason = ENDINGS[name]
    client, denoiser = server
    denoiser._fill = lambda prefix, _suffix: fill.removeprefix(prefix) if fill is STORY else fill
    parts = read(path, client.post(path, {**body, "stream": is_streamed}), is_streamed=is_streamed)
    assert "".join(part for _, part, _ in parts) == text
    assert [reason for *_, reason in parts] == [None] * (len(parts) - 1) + [reason]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body", "reasons"),
    [
        ("/infill", {"input_prefix": "x = ", "input_suffix": "\n", "n_cmpl": 2}, ("eos", "limit")),
        ("/v1/completions", {"prompt": "x = ", "suffix": "\n", "n": 2}, ("stop", "length")),
    ],
)
def test_each_of_several_completions_has_its_own_reason(server, path, body, reasons, is_streamed):
    client, denoiser = server
    denoiser._fill = ["total", "width\n+ 1"]
    parts = read(path, client.post(path, {**body, "stream": is_streamed}), is_streamed=is_streamed)
    assert [part for _, part, _ in parts if part] == ["total", "width"]
    assert [(index, reason) for index, _, reason in parts if reason] == [*enumerate(reasons)]
