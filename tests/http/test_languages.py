"""Files in other languages than Python: llama.vim's requests, languages by file name, and models that know one."""

import json
from dataclasses import replace

import pytest
from http_server import choices
from plugins import FILLS, llama_vim

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser

GO = "package main\n\nfunc sum(items []int) int {\n\ttotal := 0\n"
TYPESCRIPT = "import { log } from './log';\n\nexport class Store {\n  private items: string[] = [];\n\n"
METHOD = TYPESCRIPT + "  add(item: string): void {\n"
HTML = "<!DOCTYPE html>\n<html>\n<body>\n"
LOOP = "\tfor _, item := range items {\n\t\ttotal += item\n\t}"
LIST = "  <ul>\n    <li>one</li>\n    <li>two</li>\n  </ul>"


def infill(above, line, below):
    """The request of llama.vim; it names neither a language nor the file."""
    return {**json.loads(FILLS["llama.vim"][1]), "input_prefix": above, "prompt": line, "input_suffix": below}


@pytest.mark.parametrize(
    ("above", "line", "fill", "below", "shown"),
    [
        # (the file's lines above, the cursor's line, what the model writes, the text after the cursor, the completion)
        pytest.param(GO, "\tlog(", '"a", total)', ")\n}\n", '"a", total', id="go, rest of a line"),
        pytest.param(GO, "", f"{LOOP}\n\treturn total\n}}", "\n\treturn total\n}\n", LOOP, id="go, block and more"),
        pytest.param(METHOD, "    log(`added ${", "item}`);", "}`);\n  }\n}\n", "item", id="typescript, template"),
        pytest.param(HTML, "", f"{LIST}\n</body>\n</html>", "\n</body>\n</html>\n", LIST, id="html, block and more"),
    ],
)
def test_llama_vims_requests_are_joined_and_closed_in_any_language(complete, above, line, fill, below, shown):
    assert llama_vim(complete(fill, "/infill", infill(above, line, below))) == shown


@pytest.mark.parametrize(
    ("name", "line", "fill", "rest"),
    [
        ("a.go", "\tx := ", "f(1, )) }", "\n}\n"),
        ("a.ts", "    this.items.push(", "= = 1", ");\n  }\n}\n"),
        ("a.py", "x = f(", "= = 1", ")\n"),
    ],
)
def test_a_file_name_is_the_language_that_the_syntax_is_checked_by(complete, name, line, fill, rest):
    above = {"a.go": GO, "a.ts": METHOD, "a.py": ""}[name]

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


REASON = "scripted knows Python only; choose another model: dg-lsp setup"
CODE = {"prompt": "a = ", "suffix": "\n"}


@pytest.fixture(scope="module")
def python_only(module_start):
    return module_start(ScriptedDenoiser("1", spec=replace(MASK_SPEC, languages=("python",))))


@pytest.mark.parametrize(
    ("path", "body", "warning"),
    [
        ("/infill", {"input_prefix": "a = ", "language": "go"}, REASON),
        ("/infill", {"input_prefix": "a = ", "language": "python"}, None),
        ("/infill", infill(GO, "", "\n"), None),  # in no known language
        ("/v1/completions", {**CODE, "language": "go", "stream": True}, REASON),
        ("/v1/completions", {"segments": {"prefix": "a = ", "suffix": "\n", "filepath": "a.go"}}, REASON),
        ("/v1/completions", {"segments": {"prefix": "a = ", "suffix": "\n", "filepath": "a.pyi"}}, None),
        ("/v1/completions", {"prompt": "# language: lua\na = ", "suffix": "\n"}, REASON),
        ("/v1/completions", {"prompt": "Once upon"}, None),  # raw text
    ],
)
def test_a_fill_in_a_language_that_the_model_does_not_know_has_a_warning(python_only, path, body, warning):
    reply = python_only.post(path, body)
    text = "".join(one["text"] for one in choices(reply)) if body.get("stream") else reply.body.decode()
    assert reply.status == 200
    assert "1" in text
    assert reply.headers.get("dg-lsp-warning") == warning
    assert reply.headers["dg-lsp-languages"] == "python"
    assert python_only.get("/v1/models").headers["dg-lsp-languages"] == "python"


def test_the_warning_is_logged_once(start, capfd):
    client = start(ScriptedDenoiser("1", spec=replace(MASK_SPEC, name="größe", languages=("python",))))
    for language in ("go", "lua", "go"):
        reply = client.post("/infill", {"input_prefix": "a = ", "language": language})
        assert reply.headers["dg-lsp-warning"] == "gr??e knows Python only; choose another model: dg-lsp setup"
    assert capfd.readouterr().err.count("dg-lsp: warning: größe knows Python only") == 1
