"""Requests of editor plugins, and readers that parse responses as each plugin does."""

import itertools
import json
import re

HEADERS = {"Accept": "application/json", "Authorization": "Bearer x", "Content-Type": "application/json"}


def continue_(reply, pick):
    """Continue: `data:` lines up to `[DONE]`; an `error` is raised, and its own cancellation is silent."""
    if reply.status == 499:
        return ""
    assert reply.status == 200, reply.body
    text = ""
    for line in reply.body.decode().split("\n"):
        if line.startswith(("data:[DONE]", "data: [DONE]")):
            break
        if line.startswith("data:"):
            data = json.loads(line.removeprefix("data: ").removeprefix("data:"))
            assert not data.get("error"), data
            if data["choices"]:
                text += pick(data["choices"][0]) or ""
    return text


def minuet(reply, pick):
    """minuet, streamed: every line whose JSON has a text; other lines are skipped."""
    texts = []
    for line in reply.body.decode().split("\n"):
        try:
            text = pick(json.loads(line.removeprefix("data:"))["choices"][0])
        except (ValueError, KeyError, IndexError):
            continue
        if isinstance(text, str) and text:
            texts.append(text)
    return "".join(texts) or None


def whole(reply, pick):
    """One JSON document; an empty text is no completion."""
    return pick(json.loads(reply.body)["choices"][0]) or None


def tabby_server(reply, pick):
    """Tabby's server: JSON events up to a finish reason; it crashes at `[DONE]`."""
    text = ""
    for event in reply.body.decode().split("\n\n"):
        choice = json.loads(event.removeprefix("data: "))["choices"][0]
        text += pick(choice)
        if choice["finish_reason"]:
            return text
    raise AssertionError("the stream has no finish reason")


def of_text(choice):
    return choice["text"]


def of_delta(choice):
    assert isinstance(choice["delta"]["content"], str)  # a missing one ends Tabby's server
    return choice["delta"]["content"]


def of_message(choice):
    return choice["message"]["content"]


def llama_vim(reply, _pick=None):
    """llama.vim: one line, and `"content":"` without a blank after the colon; else None."""
    text = reply.body.decode()
    if "\n" in text or text.startswith("[") or not re.search(r'"content"\s*:"', text):
        return None
    tree = json.loads(text)
    # its status line shows six of them
    names = itertools.product(("prompt", "predicted"), ("n", "ms", "per_second"))
    assert {f"timings/{kind}_{unit}" for kind, unit in names} <= {*tree}
    assert isinstance(tree["tokens_cached"], int)
    return tree["content"]


def llama_vscode(reply, _pick=None):
    """llama.vscode: an object, or an array whose first content is shown."""
    tree = json.loads(reply.body)
    first = tree[0] if isinstance(tree, list) else tree
    assert {"predicted_n", "predicted_ms", "prompt_n", "prompt_ms"} <= {*first["timings"]}
    assert isinstance(first["tokens_cached"], int)
    return first["content"]


def zed(reply, _pick=None):
    """Zed: one JSON document with an id."""
    tree = json.loads(reply.body)
    assert tree["id"]
    return tree["choices"][0]["text"]


def mercury(reply, _pick=None):
    """Cursortab and Zed: the text in the fence; `None` is no prediction."""
    content = json.loads(reply.body)["choices"][0]["message"]["content"]
    return None if content == "None" else content.removeprefix("```\n").removesuffix("\n```")


COMPLETIONS, FIM, CHAT = "/v1/completions", "/v1/fim/completions", "/v1/chat/completions"
BEFORE = rb"def total(items):\n    return "
PROMPT = rb'"prompt":"' + BEFORE + rb'","suffix":"\n"'
MINUET = rb'"prompt":"# language: python\n# indentation: use 4 spaces for a tab\n' + BEFORE + rb'","suffix":"\n"'
FILLS = {
    # captured under Vim 9.0
    "llama.vim": (
        "/infill",
        (
            rb'{"id_slot":0,"input_prefix":"import os\n\ndef add(a, b):\n",'
            rb'"input_suffix":"\n\ndef sub(a, b):\n    return a - b\n","input_extra":[],"prompt":"    return ",'
            rb'"n_predict":128,"stop":[],"n_indent":0,"top_k":40,"top_p":0.9,"samplers":["top_k","top_p","infill"],'
            rb'"stream":false,"cache_prompt":true,"t_max_prompt_ms":500,"t_max_predict_ms":1000000,"response_fields":["content",'
            rb'"timings/prompt_n","timings/prompt_ms","timings/prompt_per_token_ms","timings/prompt_per_second",'
            rb'"timings/predicted_n","timings/predicted_ms","timings/predicted_per_token_ms","timings/predicted_per_second",'
            rb'"truncated","tokens_cached"],"model":""}'
        ),
        llama_vim,
        None,
    ),
    "llama.vscode, three candidates": (
        "/infill",
        (
            rb'{"id_slot":0,"input_prefix":"def total(items):\n","input_suffix":"\n","input_extra":[{"text":"x = 1\n",'
            rb'"time":1763750000000,"filename":"b.py"}],"prompt":"    return ","n_predict":128,"n_cmpl":3,"top_k":40,'
            rb'"top_p":0.99,"stream":false,"samplers":["top_k","top_p","infill"],"cache_prompt":true,"n_indent":4,'
            rb'"t_max_prompt_ms":500,"t_max_predict_ms":1000000,"lora":[{"id":0,"scale":0.5}],"model":"m"}'
        ),
        llama_vscode,
        None,
    ),
    "Continue, inception": (
        COMPLETIONS,
        rb'{"model":"m","prompt":"' + BEFORE + rb'","suffix":"<|endoftext|>","max_tokens":150,"temperature":0.01,'
        rb'"stop":["/src/","#- coding: utf-8","```","\n\n","\n \n"],"stream":true}',
        continue_,
        of_text,
    ),
    "Continue, providers with a suffix": (
        FIM,
        rb'{"model":"m",' + PROMPT + rb',"max_tokens":4096,"frequency_penalty":0,"stop":["```"],"stream":true}',
        continue_,
        of_delta,
    ),
    # for its providers openai and vllm
    "Continue, another model's template": (
        COMPLETIONS,
        rb'{"model":"m","prompt":"<|fim_prefix|>' + BEFORE + rb'<|fim_suffix|>\n<|fim_middle|>","max_tokens":4096,'
        rb'"stop":["<|endoftext|>","<|fim_prefix|>","\n\n"],"stream":true}',
        continue_,
        of_text,
    ),
    "minuet": (COMPLETIONS, rb'{"stream":true,' + MINUET + rb',"max_tokens":64}', minuet, of_text),
    "minuet, whole": (COMPLETIONS, rb'{"stream":false,' + MINUET + rb',"stop":["\n\n"]}', whole, of_text),
    "minuet, codestral": (FIM, rb'{"stream":true,' + MINUET + rb',"model":"m","stop":["\n\n"]}', minuet, of_delta),
    "minuet, codestral, whole": (FIM, rb'{"stream":false,' + MINUET + rb',"model":"m"}', whole, of_message),
    "Tabby's server, openai": (
        COMPLETIONS,
        rb'{"model":"m",' + PROMPT + rb',"max_tokens":64,"temperature":0.1,"stream":true,"presence_penalty":0.0}',
        tabby_server,
        of_text,
    ),
    "Tabby's server, vllm": (
        COMPLETIONS,
        rb'{"model":"m","prompt":"<fim_prefix>' + BEFORE + rb'<fim_suffix>\n<fim_middle>","suffix":null,'
        rb'"max_tokens":64,"stream":true}',
        tabby_server,
        of_text,
    ),
    "Tabby's server, mistral": (
        FIM,
        rb"{" + PROMPT + rb',"model":"m","max_tokens":64,"stream":true,"random_seed":4711}',
        tabby_server,
        of_delta,
    ),
    "Tabby's clients": (
        COMPLETIONS,
        rb'{"language":"python","segments":{"prefix":"' + BEFORE + rb'","suffix":"\n","filepath":"a.py","git_url":null,'
        rb'"declarations":[{"filepath":"b.py","body":"x = 1"}],"relevant_snippets_from_changed_files":[{"filepath":'
        rb'"c.py","body":"y","score":0.5}],"clipboard":""},"temperature":0.8,"mode":"standard"}',
        whole,
        of_text,
    ),
    "Zed": (
        COMPLETIONS,
        rb'{"model":"m","prompt":"<|fim_prefix|>' + BEFORE + rb'<|fim_suffix|>\n<|fim_middle|>","max_tokens":512,'
        rb'"stop":["<|endoftext|>","<|file_sep|>"],"environment":null}',
        zed,
        None,
    ),
    "lsp-ai": (
        COMPLETIONS,
        rb'{"model":"m","max_tokens":64,"n":1,"top_p":0.95,"echo":false,"prompt":"' + BEFORE + rb'"}',
        whole,
        of_text,
    ),
    "lsp-ai, mistral": (FIM, rb"{" + PROMPT + rb',"model":"m","max_tokens":64}', whole, of_message),
    "Cursortab, Mercury": (
        "/v1/edit/completions",
        rb'{"model":"mercury-edit","messages":[{"role":"user","content":"<|recently_viewed_code_snippets|>\n'
        rb"<|/recently_viewed_code_snippets|>\n\n<|current_file_content|>\ncurrent_file_path: a.py\n<|code_to_edit|>\n"
        + BEFORE
        + rb"<|cursor|>\n<|/code_to_edit|>\n<|/current_file_content|>\n\n<|edit_diff_history|>\n"
        rb'<|/edit_diff_history|>\n"}],"stream":false}',
        mercury,
        None,
    ),
}
"""Path, body, reader, and the part of a choice that the plugin reads."""
CHATS = {
    "llama.vim, instruction": (
        CHAT,
        (
            rb'{"id_slot":1,"messages":[{"role":"system","content":"You edit code."},{"role":"user","content":"sum"}],'
            rb'"min_p":0.1,"temperature":0.1,"samplers":["min_p","temperature"],"stream":true,"cache_prompt":true}'
        ),
        continue_,
        of_delta,
    ),
    "llama.vscode": (
        CHAT,
        rb'{"messages":[{"role":"user","content":"sum"}],"stream":false,"temperature":0.8,"top_p":0.95}',
        whole,
        of_message,
    ),
    "Continue, apply": (
        "/v1/apply/completions",
        (
            rb'{"model":"mercury-edit-2","messages":[{"role":"user","content":"<|original_code|>\ndef total(items):\n'
            rb'<|/original_code|>\n\n<|update_snippet|>\nreturn\n<|/update_snippet|>"}],"max_tokens":400,"stream":true}'
        ),
        continue_,
        of_delta,
    ),
}
