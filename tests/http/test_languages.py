"""Files in other languages than Python: llama.vim's requests, languages by file name, and models that know one."""

from dataclasses import replace

import pytest
from http_server import chunks
from plugins import llama_vim

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser

GO = "package main\n\nfunc sum(items []int) int {\n\ttotal := 0\n"
TYPESCRIPT = "import { log } from './log';\n\nexport class Store {\n  private items: string[] = [];\n\n"
METHOD = TYPESCRIPT + "  add(item: string): void {\n"
HTML = "<!DOCTYPE html>\n<html>\n<body>\n"
LOOP = "\tfor _, item := range items {\n\t\ttotal += item\n\t}"
ADD = "  add(item: string): void {\n    this.items.push(item);\n  }"
LIST = "  <ul>\n    <li>one</li>\n    <li>two</li>\n  </ul>"


def infill(above, line, below):
    """The request of llama.vim a1c8e6e under Vim 9.0; it names neither a language nor the file."""
    timings = [f"timings/{kind}_{unit}" for kind in ("prompt", "predicted") for unit in ("n", "ms", "per_second")]
    return {
        "id_slot": 0,
        "input_prefix": above,
        "input_suffix": below,
        "input_extra": [],
        "prompt": line,
        "n_predict": 128,
        "stop": [],
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60_000,
        "response_fields": ["content", *timings, "truncated", "tokens_cached"],
        "model": "",
    }


@pytest.mark.parametrize(
    ("above", "line", "fill", "below", "shown"),
    [
        # (the file's lines above, the cursor's line, what the model writes, the text after the cursor, the completion)
        pytest.param(GO, "\tlog(", '"a", total)', ")\n}\n", '"a", total', id="go, rest of a line"),
        pytest.param(GO, "", "\treturn total", "\n}\n", "\treturn total", id="go, line"),
        pytest.param(GO, "", LOOP, "\n\treturn total\n}\n", LOOP, id="go, block"),
        pytest.param(GO, "", f"{LOOP}\n\treturn total\n}}", "\n\treturn total\n}\n", LOOP, id="go, block and more"),
        pytest.param(GO, "", f"{LOOP}\n}}", "\n", f"{LOOP}\n}}", id="go, rest of a function"),
        pytest.param(METHOD, "    this.items.push(", "item);", ");\n  }\n}\n", "item", id="typescript, rest of a line"),
        pytest.param(METHOD, "    log(`added ${", "item}`);", "}`);\n  }\n}\n", "item", id="typescript, template"),
        pytest.param(TYPESCRIPT, "", ADD, "\n}\n", ADD, id="typescript, block"),
        pytest.param(TYPESCRIPT, "", f"{ADD}\n}}", "\n}\n", ADD, id="typescript, block and more"),
        pytest.param(HTML, "  <h1>", "Shelves</h1>", "</h1>\n</body>\n</html>\n", "Shelves", id="html, rest of a line"),
        pytest.param(HTML, "  <p>", "text</p>", "\n</body>\n</html>\n", "text</p>", id="html, tag"),
        pytest.param(HTML, '  <a href="', 'a.html">', '">a</a>\n</body>\n', "a.html", id="html, attribute"),
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
    text = "".join(one["choices"][0]["text"] for one in chunks(reply)) if body.get("stream") else reply.body.decode()
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
