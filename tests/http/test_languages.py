"""The language of a request, by a field or the name of the file, and models that know one language only."""

import json
from dataclasses import replace

import pytest
from http_server import mercury
from plugins import FILLS
from scripted import MASK_SPEC, ScriptedDenoiser


def infill(above, line, below):
    """The request of llama.vim; it names neither a language nor the file."""
    return {**json.loads(FILLS["llama.vim"][1]), "input_prefix": above, "prompt": line, "input_suffix": below}


def test_a_file_name_is_the_language_that_the_syntax_is_checked_by(complete):
    fill = "= = 1"

    def tabby(path):
        segments = {"prefix": "x = f(", "suffix": ")\n", "filepath": path}
        return complete(fill, "/v1/completions", {"segments": segments}).tree["choices"][0]["text"]

    def edit(path):
        body = {"messages": [{"role": "user", "content": mercury(path, "x = f(<|cursor|>)")}]}
        return complete(fill, "/v1/edit/completions", body).tree["choices"][0]["message"]["content"]

    assert (tabby("a.py"), edit("a.py")) == ("", "None")
    assert (tabby("unknown.xyz"), edit("unknown.xyz")) == (fill, f"```\nx = f({fill})\n```")
    assert complete(fill, "/infill", infill("", "x = f(", ")\n")).tree["content"] == fill


CODE = {"prompt": "a = ", "suffix": "\n"}
TABBY = {"prefix": "a = ", "suffix": "\n"}


@pytest.mark.parametrize(
    ("path", "body", "is_unknown"),
    [
        ("/infill", {"input_prefix": "a = ", "language": "go"}, True),
        ("/infill", {"input_prefix": "a = ", "language": "python"}, False),
        ("/infill", infill("package main\n", "", "\n"), False),  # in no known language
        ("/v1/completions", {**CODE, "language": "go", "stream": True}, True),
        ("/v1/completions", {"segments": {**TABBY, "filepath": "a.go"}}, True),
        ("/v1/completions", {"segments": {**TABBY, "filepath": "a.pyi"}}, False),
        ("/v1/completions", {"prompt": "# language: lua\na = ", "suffix": "\n"}, True),
        ("/v1/completions", {"prompt": "Once upon"}, False),  # raw text
    ],
)
def test_a_fill_in_a_language_that_the_model_does_not_know_is_logged_once(start, capfd, path, body, is_unknown):
    client = start(ScriptedDenoiser("1", spec=replace(MASK_SPEC, languages=("python",))))
    for _ in range(2):
        reply = client.post(path, body)
        assert (reply.status, reply.headers["dg-lsp-languages"]) == (200, "python")
        assert b'"1"' in reply.body
    assert client.get("/v1/models").headers["dg-lsp-languages"] == "python"
    warning = "dg-lsp: warning: scripted knows Python only; choose another model: dg-lsp setup\n"
    assert capfd.readouterr().err.count(warning) == is_unknown
