"""The language of a request, by a field or the name of the file, and models that know one language only."""

import json
from dataclasses import replace

import pytest
from plugins import FILLS

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser

GO = "package main\n\nfunc sum(items []int) int {\n\ttotal := 0\n"
TYPESCRIPT = "import { log } from './log';\n\nexport class Store {\n  private items: string[] = [];\n\n"
METHOD = TYPESCRIPT + "  add(item: string): void {\n"


def infill(above, line, below):
    """The request of llama.vim; it names neither a language nor the file."""
    return {**json.loads(FILLS["llama.vim"][1]), "input_prefix": above, "prompt": line, "input_suffix": below}


@pytest.mark.parametrize(
    ("name", "above", "line", "fill", "rest"),
    [
        ("a.go", GO, "\tx := ", "f(1, )) }", "\n}\n"),
        ("a.ts", METHOD, "    this.items.push(", "= = 1", ");\n  }\n}\n"),
        ("a.py", "", "x = f(", "= = 1", ")\n"),
    ],
)
def test_a_file_name_is_the_language_that_the_syntax_is_checked_by(complete, name, above, line, fill, rest):
    def tabby(path):
        segments = {"prefix": above + line, "suffix": rest, "filepath": path}
        return complete(fill, "/v1/completions", {"segments": segments}).tree["choices"][0]["text"]

    def mercury(path):
        region = f"<|code_to_edit|>\n{line}<|cursor|>{rest}<|/code_to_edit|>\n"
        text = f"<|current_file_content|>\ncurrent_file_path: {path}\n{above}{region}<|/current_file_content|>\n"
        body = {"messages": [{"role": "user", "content": text}]}
        return complete(fill, "/v1/edit/completions", body).tree["choices"][0]["message"]["content"]

    assert (tabby(name), mercury(name)) == ("", "None")
    assert tabby("unknown.xyz") == fill
    assert fill in mercury("unknown.xyz")
    assert complete(fill, "/infill", infill(above, line, rest)).tree["content"] == fill


CODE = {"prompt": "a = ", "suffix": "\n"}
TABBY = {"prefix": "a = ", "suffix": "\n"}


@pytest.mark.parametrize(
    ("path", "body", "is_unknown"),
    [
        ("/infill", {"input_prefix": "a = ", "language": "go"}, True),
        ("/infill", {"input_prefix": "a = ", "language": "python"}, False),
        ("/infill", infill(GO, "", "\n"), False),  # in no known language
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
